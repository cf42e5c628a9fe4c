//! What the ranks do until one of them dies, and what the others observe then.

use std::time::Duration;

use ripstop::{
    Builder, Collectives, Comm, Error, ErrorKind, RecvOp, Result, Runtime, Source, Status, Tag,
    boot,
};
use ripstop_fabric::shm::Board;

use crate::{
    content::{Random, content},
    faces, hosts, killed,
    links::{self, LinkTraffic},
    report::{self, RankReport},
    shrinking,
};

/// Not a test: the entry point of a rank's process.
#[test]
fn a_rank() {
    let Ok(text) = std::env::var("FAILURES_RANK") else {
        return;
    };
    let words: Vec<&str> = text.split(' ').collect();
    let (&role, place) = words.split_first().expect("a role");
    let (rank, builder) = join(place);
    report::set_own_rank(rank);
    if role == "late" && rank > 0 {
        std::io::stdin().lines().for_each(drop);
    }
    let stays_away = role == "alone" || role.starts_with("awaits");
    if stays_away && rank > 0 {
        return;
    }
    let builder = match role {
        _ if stays_away => builder.set("RIPSTOP_BOOT_TIMEOUT", "1"),
        // A process that is known to be stopped may be silent for longer than twice this.
        "stopped" => builder.set("RIPSTOP_DETECT_MS", "1500"),
        // Detection by silence would take twenty minutes.
        "silent" if sees_processes() => builder.set("RIPSTOP_DETECT_MS", "600000"),
        // As soon as a network may tell.
        "idle" | "busy" | "one_way" => builder.set("RIPSTOP_DETECT_MS", "2000"),
        // Where the link is down at each attempt, the kernel tries again after up to twice the time for which it flaps. On a busy
        // machine that is far more than a few seconds, because the commands that cut and mend the link wait for a processor.
        "flapping" => builder.set("RIPSTOP_DETECT_MS", "20000"),
        // Both reactors in one job.
        "shrink" if rank.is_multiple_of(2) => builder.set("RIPSTOP_REACTOR", "epoll"),
        _ => builder,
    };
    let runtime = builder.init().expect("a runtime");
    let world = runtime.world();
    runtime
        .block_on(async {
            match role {
                "late" => late(&world).await,
                "alone" => alone(&world).await,
                "awaits_one" => awaits(world.recv::<u8>(1, 1)).await,
                "awaits_any" => awaits(world.recv::<u8>(Source::Any, Tag::Any)).await,
                "awaits_all" => {
                    never_came(world.barrier().await.expect_err("no peer is there"));
                    Ok(())
                }
                "exchange" => exchange(&world).await,
                "faces" => faces::exchange(&world).await,
                "panic" => panics(&world).await,
                "silent" => silent(&world).await,
                "idle" => links::until_cut(&world, LinkTraffic::Idle).await,
                "busy" => links::until_cut(&world, LinkTraffic::BothWays).await,
                "one_way" => links::until_cut(&world, LinkTraffic::OneWay).await,
                "flapping" => links::until_told(&world).await,
                "stopped" => stopped(&world).await,
                "epochs" => killed::epochs(&world).await,
                "fences" => killed::fences(&world).await,
                "locks" => killed::locks(&world).await,
                "node_windows" => killed::node_windows(&world).await,
                "shrink" => shrinking::shrink(&world, ready).await,
                _ => panic!("{role} is no role"),
            }
        })
        .unwrap_or_else(|error| panic!("rank {rank}: {error}"));
    runtime.close().expect("a good end");
    RankReport::print_ended();
}

/// Returns this rank, and a builder for its runtime. A launcher gives a rank its place if the test does not.
fn join(place: &[&str]) -> (usize, Builder) {
    let number = |text: &str| text.parse().expect("a number");
    let [rank, size, board] = *place else {
        let rank = std::env::var("PMI_RANK").expect("a launcher's rank");
        return (number(&rank), Runtime::builder());
    };
    let rank = number(rank);
    let boot = boot::threads(size.parse().expect("a number")).swap_remove(rank);
    let board = Board::attach(board).expect("the test's board");
    (rank, Runtime::builder().boot(boot).board(board))
}

/// Returns true if all ranks see each other's processes, as those of one node do.
pub(crate) fn sees_processes() -> bool {
    std::env::var_os("RIPSTOP_SHM_RANKS").is_none() && hosts::launcher().is_none()
}

pub(crate) fn ready() {
    RankReport::print_ready();
}

/// Returns the rank that an error reports as failed.
pub(crate) fn failed(kind: &ErrorKind) -> usize {
    match kind {
        ErrorKind::PeerFailed { rank, .. } => *rank,
        other => panic!("{other}"),
    }
}

/// All ranks exchange messages of mixed sizes with all others until one of them is killed and all others know it.
async fn exchange(world: &Comm) -> Result<()> {
    let others: Vec<usize> = (0..world.size())
        .filter(|rank| *rank != world.rank())
        .collect();
    let pending = Pending::new(world, &others).await?;
    world.barrier().await?;
    ready();
    let mut victim = None;
    for round in 0.. {
        let knew = victim;
        let alive: Vec<usize> = others
            .iter()
            .copied()
            .filter(|rank| Some(*rank) != knew)
            .collect();
        let inboxes: Vec<_> = alive
            .iter()
            .map(|&peer| world.recv::<u8>(peer, 1))
            .collect();
        let sends: Vec<_> = alive
            .iter()
            .map(|&peer| world.send(peer, 1, note(world.rank(), round, knew)))
            .collect();
        let mut all_know = knew.is_some();
        for (inbox, &peer) in inboxes.into_iter().zip(&alive) {
            match inbox.await {
                Ok((got, _)) => {
                    let knows = got[0] == 1;
                    assert!(
                        got == note(peer, round, knows.then_some(0)),
                        "round {round} of rank {peer}"
                    );
                    all_know &= knows;
                }
                Err(gone) => victim = Some(failed(&gone.error.kind)),
            }
        }
        for send in sends {
            if let Err(gone) = send.await {
                victim = Some(failed(&gone.error.kind));
            }
        }
        if all_know {
            break;
        }
    }
    let victim = victim.expect("every rank knows");
    // Others may still read data that this rank holds for them.
    let _twin = pending.end(victim).await;
    afterwards(world, victim).await
}

/// Content by sender and round; the first byte tells whether the sender knows of the death.
fn note(from: usize, round: u64, knows: Option<usize>) -> Vec<u8> {
    let mut random = Random::new(round << 8 | from as u64);
    let len = match random.below(8) {
        0 => 100_000 + random.below(1 << 20),
        1 | 2 => random.below(20_000),
        _ => random.below(200),
    };
    let mut note = content(random.next(), len + 1);
    note[0] = u8::from(knows.is_some());
    note
}

type Bytes = Vec<u8>;

/// Starts operations of every kind that wait for every peer when one dies, the same number of each.
struct Pending {
    receives: Vec<(usize, RecvOp<Bytes>)>,
    sends: Vec<(usize, ripstop::SendOp<Bytes>)>,
    any: RecvOp<Bytes>,
    twin: Comm,
}

impl Pending {
    async fn new(world: &Comm, others: &[usize]) -> Result<Self> {
        let twin = world.dup().await?;
        let receives = others
            .iter()
            .map(|&peer| (peer, twin.recv_into(peer, 2, vec![7; 1000])));
        let sends = others.iter().flat_map(|&peer| {
            [
                (peer, twin.send_synchronous(peer, 3, vec![8; 10])),
                (peer, twin.send(peer, 3, vec![8; 300_000])),
            ]
        });
        let any = twin.recv_into(Source::Any, 2, vec![9; 10]);
        Ok(Self {
            receives: receives.collect(),
            sends: sends.collect(),
            any,
            twin: twin.clone(),
        })
    }

    /// The operations on the victim have failed, with their buffers; the others still wait.
    async fn end(self, victim: usize) -> Comm {
        for (peer, op) in self.receives {
            if peer == victim {
                let gone = op.await.expect_err("never sent");
                assert_eq!(
                    (failed(&gone.error.kind), gone.buf),
                    (victim, vec![7; 1000])
                );
            } else {
                assert_eq!(op.cancel().await.expect("still waits"), vec![7; 1000]);
            }
        }
        for (peer, op) in self.sends {
            if peer == victim {
                let gone = op.await.expect_err("never received");
                assert_eq!(failed(&gone.error.kind), victim);
                assert!(gone.buf.iter().all(|&byte| byte == 8));
            } else {
                assert!(!op.is_done());
            }
        }
        let gone = self.any.await.expect_err("never sent");
        assert_eq!((failed(&gone.error.kind), gone.buf), (victim, vec![9; 10]));
        // Once the failure was reported, a wildcard receive means the surviving ranks.
        assert!(self.twin.recv::<u8>(Source::Any, 2).cancel().await.is_ok());
        self.twin
    }
}

/// Survivors continue with each other, and each operation on the dead rank fails immediately.
pub(crate) async fn afterwards(world: &Comm, victim: usize) -> Result<()> {
    assert_eq!(
        failed(
            &world
                .send(victim, 1, [1_u8])
                .await
                .expect_err("dead")
                .error
                .kind
        ),
        victim
    );
    assert_eq!(
        failed(
            &world
                .recv::<f32>(victim, 9)
                .await
                .expect_err("dead")
                .error
                .kind
        ),
        victim
    );
    assert_eq!(
        failed(&world.probe(victim, Tag::Any).await.expect_err("dead").kind),
        victim
    );
    for peer in (0..world.size()).filter(|rank| ![victim, world.rank()].contains(rank)) {
        let inbox = world.recv_into(peer, 8, [0_u64]);
        world.send(peer, 8, [42_u64]).await?;
        assert_eq!(inbox.await?.0, [42]);
    }
    Ok(())
}

/// Rank 1 comes when rank 0 is ready.
async fn late(world: &Comm) -> Result<()> {
    let (other, inbox) = (1 - world.rank(), world.recv::<u8>(1 - world.rank(), 1));
    let sent = world.send(other, 1, vec![7_u8; 100_000]);
    if world.rank() == 0 {
        ready();
    }
    sent.await?;
    assert_eq!(inbox.await?.0, [7; 100_000]);
    world.barrier().await
}

/// Rank 1 never comes. On a network a rank must hear from it first, and the error names what it has waited for.
async fn alone(world: &Comm) -> Result<()> {
    let sent = world.send(1, 1, [1_u8]).await;
    let inbox = world.recv::<u8>(1, 1).await;
    let inbox = inbox.expect_err("no peer is there");
    // A short message may already be in the place where rank 1 would read it.
    for error in sent
        .err()
        .map(|gone| gone.error)
        .into_iter()
        .chain([inbox.error])
    {
        never_came(error);
    }
    Ok(())
}

/// Rank 1 never comes, and no rank sends to it.
async fn awaits(inbox: RecvOp<Vec<u8>>) -> Result<()> {
    never_came(inbox.await.expect_err("no peer is there").error);
    Ok(())
}

fn never_came(error: Error) {
    let text = error.to_string();
    let named = match error.kind {
        ErrorKind::PeerFailed { rank, .. } => rank == 1,
        ErrorKind::Setup(_) => true,
        _ => false,
    };
    assert!(named && text.contains("rank 1"), "{text}");
}

/// Rank 1 panics; the others wait for it.
async fn panics(world: &Comm) -> Result<()> {
    world.barrier().await?;
    let posted = world.recv::<u8>(1, 1);
    if world.rank() == 1 {
        drop(posted);
        let _at_the_peer_too = world.send_synchronous(0, 2, vec![1_u8; 100_000]);
        panic!("on purpose");
    }
    assert_eq!(
        failed(&posted.await.expect_err("it panicked").error.kind),
        1
    );
    afterwards(world, 1).await
}

/// No rank communicates with rank 2, which is killed.
async fn silent(world: &Comm) -> Result<()> {
    let (posted, any) = (world.recv::<u8>(2, 1), world.recv::<u8>(Source::Any, 1));
    ready();
    match world.rank() {
        0 => {
            let gone = posted.await.expect_err("dead").error;
            assert_eq!(failed(&gone.kind), 2);
            check_host(&gone);
            assert!(
                !sees_processes() || gone.to_string().contains("its process ended"),
                "{gone}"
            );
            drop(any);
            afterwards(world, 2).await
        }
        1 => {
            drop(posted);
            assert_eq!(failed(&any.await.expect_err("dead").error.kind), 2);
            afterwards(world, 2).await
        }
        _ => posted.await.map(drop).map_err(Into::into),
    }
}

/// Checks that an error about rank 2 names its host, over every network. Ranks that only share memory exchange no names.
fn check_host(error: &Error) {
    let ErrorKind::PeerFailed { host, .. } = &error.kind else {
        panic!("{error}");
    };
    let own = rustix::system::uname();
    let own = own.nodename().to_string_lossy();
    let name = if hosts::launcher().is_some() {
        "h3" // each of the first three hosts has a rank
    } else {
        &own
    };
    let has_network = std::env::var("RIPSTOP_FABRIC").is_ok_and(|fabric| fabric != "shm");
    assert_eq!(host.as_deref(), has_network.then_some(name), "{error}");
    let named = error
        .to_string()
        .contains(&format!("rank 2 on host {name} failed: "));
    assert_eq!(named, has_network, "{error}");
}

/// Rank 1 is stopped for a while, and no operation fails.
async fn stopped(world: &Comm) -> Result<()> {
    world.barrier().await?;
    ready();
    for round in 0..400 {
        let peer = (world.rank() + 1) % world.size();
        let from = (world.rank() + world.size() - 1) % world.size();
        let inbox = world.recv::<u32>(from, 1);
        world
            .send(peer, 1, vec![round; 50 * round as usize])
            .await?;
        let (got, Status { len, .. }) = inbox.await?;
        assert!(len == 50 * round as usize && got.iter().all(|&word| word == round));
        if round == 200 {
            // Time for the signal, also on a fast machine.
            let never = world
                .recv::<u8>(from, 2)
                .timeout(Duration::from_millis(50))
                .await;
            assert!(never.is_err());
        }
    }
    Ok(())
}
