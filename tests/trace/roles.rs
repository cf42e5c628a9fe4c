//! Programs whose communication is known. The comment at the end of a line is the name by which a test finds that line.

use std::{
    future::poll_fn,
    hint::black_box,
    mem,
    path::Path,
    pin::{Pin, pin},
    task::Poll,
    thread,
    time::{Duration, Instant},
};

use ripstop::{Collectives, Comm, Runtime, Window};
use rustix::process::{Resource, Signal, getpid, getrlimit, kill_process, setrlimit};
use tracing::{Instrument, info_span};
use tracing_subscriber::prelude::*;

use super::events::RecordedEvents;

pub(crate) const ROLE: &str = "TRACE_TEST_ROLE";

/// Messages of the role `stream`: more than a block of the trace holds.
pub(crate) const STREAM: usize = 3000;

/// Accesses of the role `epochs`.
pub(crate) const EPOCHS: u64 = 2;

/// Receives of the role `crowd` that are in flight at once.
pub(crate) const CROWD: u32 = 40;

/// Longest file of rank 0 in the role `full`, in bytes: room for a block of the trace, and not for two.
const FILE_MAX: u64 = 24 << 10;

/// Not a claim: the entry point of a rank when a test starts this program again.
#[test]
fn a_rank_of_a_job() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let events = (role == "events").then(RecordedEvents::start);
    let runtime = match Runtime::init() {
        Ok(runtime) => runtime,
        Err(error) => panic!("{error}"),
    };
    let world = runtime.world();
    if let Some(events) = &events {
        events.ask(&world);
    }
    runtime.block_on(play(&role, &world)).unwrap();
    drop(world);
    if let Some(events) = events {
        events.check();
    }
    runtime.close().unwrap();
}

async fn play(role: &str, world: &Comm) -> Result<(), ripstop::Error> {
    let me = world.rank();
    match role {
        "late_sender" if me == 0 => {
            let inbox = world.recv::<u64>(1, 7); // waits for a late sender
            wait_for_rank_1(world, inbox).await?;
        }
        "late_sender" => {
            compute_while_others_wait(world).await?;
            world.send(0, 7, vec![1_u64; 4]).await?;
        }
        "hidden" if me == 0 => {
            let inbox = world.recv::<u64>(1, 7); // hidden by computation
            world.send(1, 1, [1_u8]).await?;
            while !inbox.is_done() {
                black_box(me);
            }
            inbox.await?;
        }
        "hidden" => {
            world.recv::<u8>(0, 1).await?;
            world.send(0, 7, vec![1_u64; 4]).await?;
        }
        "late_receiver" if me == 0 => {
            let long = world.send(1, 7, vec![1_u64; 1 << 20]); // waits for a late receiver
            wait_for_rank_1(world, long).await?;
        }
        "late_receiver" => {
            compute_while_others_wait(world).await?;
            world.recv::<u64>(0, 7).await?;
        }
        "imbalance" => {
            world.barrier().await?;
            if me == 1 {
                compute_while_others_wait(world).await?;
            }
            let last = world.barrier(); // waits for the last rank
            if me == 1 || world.size() == 1 {
                last.await?;
            } else {
                wait_for_rank_1(world, last).await?;
            }
        }
        "rooted" if me == 0 => {
            let blocks = world.gather(0, vec![1_u64]); // waits as the root
            wait_for_rank_1(world, blocks).await?;
        }
        "rooted" => {
            compute_while_others_wait(world).await?;
            world.gather(0, vec![1_u64]).await?;
        }
        "goes_on" => goes_on(world).await?,
        _ => play_many(role, world).await?,
    }
    Ok(())
}

/// Sends from rank 0 to rank 1 until there is a file `stop`.
async fn goes_on(world: &Comm) -> Result<(), ripstop::Error> {
    let is_sender = world.rank() == 0;
    loop {
        let is_over = u8::from(is_sender && Path::new("stop").exists());
        if is_sender {
            world.send(1, 5, vec![is_over; 10]).await?;
            world.sleep(Duration::from_millis(2)).await;
        } else {
            let (got, _) = world.recv::<u8>(0, 5).await?; // receives while the job runs
            if got[0] == 1 {
                return Ok(());
            }
        }
        if is_over == 1 {
            return Ok(());
        }
    }
}

/// Plays the roles that have several messages, or none.
async fn play_many(role: &str, world: &Comm) -> Result<(), ripstop::Error> {
    let (me, other) = (world.rank(), 1 - world.rank().min(1));
    match role {
        "stream" | "killed" | "full" => {
            if role == "full" && me == 0 {
                let mut limit = getrlimit(Resource::Fsize);
                limit.current = Some(FILE_MAX);
                setrlimit(Resource::Fsize, limit).unwrap();
            }
            for number in 0..STREAM {
                let inbox = world.recv::<u64>(other, 5);
                world.send(other, 5, vec![number as u64]).await?;
                inbox.await?;
            }
            if role == "killed" && me == 1 {
                kill_process(getpid(), Signal::KILL).unwrap();
            }
            world.barrier().await?;
        }
        "dropped" => {
            drop(world.recv::<u8>(other, 9)); // a receive that is taken back
            drop(world.recv::<u8>(ripstop::Source::Any, ripstop::Tag::Any));
            world.barrier().await?;
        }
        "probed" if me == 0 => {
            // The second message is received before the first one, which was probed.
            let first = world.probe(1, 7).await?;
            world.recv::<u64>(1, 7).await?;
            first
                .recv_into(vec![0_u64; 1])
                .await
                .map_err(|error| error.error)?;
            world.probe(1, 7).await?.recv::<u64>().await?;
        }
        "probed" => {
            for number in 0..3_u64 {
                world.send(0, 7, vec![number]).await?;
            }
        }
        "crowd" => {
            let inboxes: Vec<_> = (0..CROWD)
                .map(|tag| world.recv::<u64>(other, tag))
                .collect();
            world.barrier().await?;
            for tag in 0..CROWD {
                world.send(other, tag, vec![1_u64]).await?;
            }
            for inbox in inboxes {
                inbox.await?;
            }
        }
        "events" => {
            // A trace sees also what channels would do by their short path.
            let channel = world.channel::<u64>(other, 7)?;
            let inbox = channel.recv_into([0; 2]); // reported
            channel.send([1, 2]).await?;
            inbox.await?;
            world.barrier().await?;
            world.dup().await?.revoke();
        }
        "spans" => play_spans(world, other).await?,
        "phases" | "short_phase" => play_phases(role, world).await?,
        "windows" => play_windows(world).await?,
        "epochs" => play_epochs(world).await?,
        "agent" => play_agent(world).await?,
        _ => panic!("there is no role {role}"),
    }
    Ok(())
}

/// Calls collectives whose messages take time.
async fn play_phases(role: &str, world: &Comm) -> Result<(), ripstop::Error> {
    let me = world.rank();
    if role == "phases" {
        world.all_gather(vec![me as u64; 1 << 17]).await?; // has phases
        return Ok(());
    }
    if me == 1 {
        compute_while_others_wait(world).await?;
    }
    let counts = [1 << 17, 1, 1];
    let blocks = world.all_gather_v(vec![1_u64; counts[me]], &counts);
    if me == 1 {
        blocks.await?;
    } else {
        wait_for_rank_1(world, blocks).await?;
    }
    Ok(())
}

/// Uses windows, so that rank 0 waits for rank 1, which computes first.
async fn play_windows(world: &Comm) -> Result<(), ripstop::Error> {
    let is_late = world.rank() == 1;
    let mut window = Window::<u64>::allocate(world, 1).await?;
    let epoch = window.fence().await?; // opens an epoch
    if is_late {
        compute();
    }
    epoch.end().await?; // waits in a fence
    if is_late {
        compute();
        window.post(&[0])?.wait().await?;
    } else {
        window.start(&[1]).await?.complete().await?; // waits for a post
    }
    let mut window = window.into_passive().await?;
    if is_late {
        let lock = window.lock_self().await?;
        world.send(0, 1, [1_u8]).await?;
        compute();
        drop(lock);
    } else {
        world.recv::<u8>(1, 1).await?;
        let locks = window.lock_exclusive(1).await?; // waits for a lock
        locks.put(1, 0, [7]).await?;
        locks.unlock().await;
    }
    window.free().await
}

/// Rank 0 makes no turns until it has a message, so its agent receives it.
async fn play_agent(world: &Comm) -> Result<(), ripstop::Error> {
    if world.rank() == 0 {
        let inbox = world.recv::<u8>(1, 7);
        while !Path::new("sent").exists() {
            thread::yield_now();
        }
        inbox.await?;
    } else {
        // The receiver has taken a message of this length when it is sent.
        world.send(0, 7, vec![1_u8; 8 << 20]).await?;
        std::fs::write("sent", "").unwrap();
    }
    Ok(())
}

/// Rank 0 accesses the memory of the others several times. It waits for each of their posts, and they for its completion.
async fn play_epochs(world: &Comm) -> Result<(), ripstop::Error> {
    let others: Vec<usize> = (1..world.size()).collect();
    let mut window = Window::<u64>::allocate(world, 1).await?;
    for number in 1..=EPOCHS {
        if world.rank() == 0 {
            let mut start = pin!(window.start(&others)); // starts an access
            begin_to_wait(start.as_mut()).await;
            for &other in &others {
                world.send(other, 1, [1_u8]).await?;
            }
            let access = start.await?;
            for &other in &others {
                world.recv::<u8>(other, 2).await?;
                access.put(other, 0, [number]).await?;
            }
            access.complete().await?;
        } else {
            world.recv::<u8>(0, 1).await?;
            let exposure = window.post(&[0])?; // exposes its memory
            let mut wait = pin!(exposure.wait()); // waits for a completion
            begin_to_wait(wait.as_mut()).await;
            world.send(0, 2, [1_u8]).await?;
            assert_eq!(wait.await?, [number]);
        }
    }
    window.free().await
}

/// Waits for what rank 1 does after it has computed, which it begins to do when all others wait.
async fn wait_for_rank_1<F: Future>(world: &Comm, future: F) -> F::Output {
    let mut future = pin!(future);
    begin_to_wait(future.as_mut()).await;
    world.send(1, LET_GO, [1_u8]).await.unwrap();
    future.await
}

/// Computes on rank 1 once all other ranks wait. Rank 1 itself waits in no operation.
async fn compute_while_others_wait(world: &Comm) -> Result<(), ripstop::Error> {
    for other in (0..world.size()).filter(|rank| *rank != world.rank()) {
        let inbox = world.recv::<u8>(other, LET_GO);
        while !inbox.is_done() {
            black_box(other);
        }
        inbox.await?;
    }
    compute();
    Ok(())
}

/// Tag of the messages by which ranks tell rank 1 that they wait.
const LET_GO: u32 = 1;

/// Polls a future once, which must find that it has to wait.
async fn begin_to_wait(mut future: Pin<&mut impl Future>) {
    let polled = poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx).is_pending()));
    assert!(polled.await, "there was nothing to wait for");
}

/// Enters spans: around each other, in a future, on another thread, and one that does not end.
async fn play_spans(world: &Comm, other: usize) -> Result<(), ripstop::Error> {
    let registry = tracing_subscriber::registry().with(ripstop_tracing::layer());
    if world.rank() == 1 {
        registry.with(ripstop_tracing::layer()).init(); // as if two libraries had added one
    } else {
        registry.init();
    }
    let is_traced = std::env::var_os("RIPSTOP_TRACE").is_some();
    let never = info_span!("never entered");
    assert_eq!(never.is_disabled(), !is_traced);
    drop(never);
    mem::forget(info_span!("open").entered());
    info_span!("outer").in_scope(|| info_span!("inner").in_scope(compute)); // the spans
    let thread = thread::Builder::new().name("helper".to_owned());
    let helper = thread.spawn(|| info_span!("beside").in_scope(|| black_box(1)));
    helper.unwrap().join().unwrap();
    let exchange = async {
        if world.rank() == 1 {
            compute_while_others_wait(world).await?;
            world.send(other, 7, [1_u8]).await?;
        } else {
            wait_for_rank_1(world, world.recv::<u8>(other, 7)).await?;
        }
        Ok(())
    };
    exchange.instrument(info_span!("exchange")).await
}

/// Time for which a rank computes: long enough to stand out.
pub(crate) const COMPUTED: Duration = Duration::from_millis(60);

#[expect(clippy::disallowed_methods, reason = "it computes for a while")]
fn compute() {
    let end = Instant::now() + COMPUTED;
    while Instant::now() < end {
        black_box(end);
    }
}
