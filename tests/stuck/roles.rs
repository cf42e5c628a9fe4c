//! Programs that hang. The comment at the end of a line is the name by which a test finds that line.

use std::{
    future::{pending, poll_fn},
    hint::spin_loop,
    io::Read,
    os::unix::net::UnixStream,
    path::Path,
    pin::pin,
    task::Poll,
    time::Duration,
};

use ripstop::{Collectives, Comm, Max, Runtime, Source, Window};
use rustix::process::{DumpableBehavior, Signal, getpid, kill_process, set_dumpable_behavior};

use crate::packing;

pub(crate) const ROLE: &str = "STUCK_TEST_ROLE";

/// Not a claim: the entry point of a rank when a test starts this program again.
#[test]
fn a_rank_of_a_job() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    if role == "hostile" {
        crate::hostile::live();
    }
    if role == "never_starts" && std::env::var("PMI_RANK").unwrap() == "1" {
        wait_for_ever();
    }
    let runtime = Runtime::init().unwrap();
    let world = runtime.world();
    if role.starts_with("chaos") {
        return runtime.block_on(chaos(&role, &world)).unwrap();
    }
    if role == "metered" {
        return runtime.block_on(metered(&world)).unwrap();
    }
    if role == "metered_survivors" {
        return runtime.block_on(metered_survivors(&world)).unwrap();
    }
    let result = runtime.block_on(play(&role, &world));
    panic!("no role goes on: {role} ends with {result:?}");
}

pub(crate) async fn play(role: &str, world: &Comm) -> Result<(), ripstop::Error> {
    let (me, size) = (world.rank(), world.size());
    let next = (me + 1) % size;
    match (role, me) {
        ("recv_ring", _) => {
            world.recv::<u8>(next, 3).await?; // ring recv
        }
        ("send_ring", _) => {
            let sent = world.send(next, 3, vec![0_u64; 1 << 17]); // ring send
            sent.await.map_err(|_| unsent())?;
        }
        ("missing_collective", 2) | ("idle", _) | ("killed" | "to_itself", 0) => pending().await,
        ("create_lists" | "unanswered", _) => differ(role, world).await?,
        ("missing_collective", _) => world.barrier().await?, // barrier of three
        (role, _) if UNMATCHED.contains(&role) => unmatched(role, world).await?,
        ("crossed", _) => crossed(world).await?,
        ("killed_after", _) => {
            world.barrier().await?; // barrier before the kill
            pending().await
        }
        ("killed_after_recv", 0) => {
            world.barrier().await?;
            world.send(1, 4, vec![1_u8]).await?;
            pending().await
        }
        ("killed_after_recv", _) => {
            world.barrier().await?;
            world.recv::<u8>(0, 4).await?; // recv before the kill
            pending().await
        }
        ("not_dumpable", 0) => {
            world.recv::<u8>(1, 9).await?; // recv from a rank that is not dumpable
        }
        ("not_dumpable", _) => {
            set_dumpable_behavior(DumpableBehavior::NotDumpable).unwrap();
            pending().await
        }
        ("killed_inline", 0) => {
            world.recv::<u8>(1, 3).await?;
            let sent = world.send(1, 4, vec![0_u64; 1 << 17]);
            sent.await.map_err(|_| unsent())?;
            pending().await
        }
        ("killed_inline", _) => {
            recv_waiting(world).await?;
            compute()
        }
        ("computes" | "computes_inline" | "unread_inline" | "stopped", _) => {
            leaves(role, world).await?;
        }
        ("killed", _) => {
            kill_process(getpid(), Signal::KILL).unwrap();
        }
        ("unposted" | "uncompleted" | "unlocked" | "lock_ring" | "flush_waits", _) => {
            windows(role, world).await?;
        }
        ("to_itself", 1) => {
            world.recv::<u8>(1, 3).await?; // recv from itself
        }
        ("epoch_of_four" | "fence_of_four" | "misdirected", _) => questions(role, world).await?,
        ("reads_a_socket" | "sleeps_briefly" | "freed_by_one", _) => apart(role, world).await?,
        ("stopped_packing", _) => packing::play(world).await?,
        ("slow", _) => loop {
            world.barrier().await?;
            world.sleep(Duration::from_millis(20)).await;
        },
        _ => askew(role, world).await?,
    }
    Ok(())
}

/// Receives a message that rank 0 sends when this rank waits for it: an operation that waits for nothing is not recorded.
async fn recv_waiting(world: &Comm) -> Result<(), ripstop::Error> {
    let mut inbox = pin!(world.recv::<u64>(0, 4)); // recv before the loop
    let polled = poll_fn(|cx| Poll::Ready(inbox.as_mut().poll(cx).is_pending()));
    assert!(polled.await, "the message was sent too early");
    world.send(0, 3, [1_u8]).await?;
    inbox.await?;
    Ok(())
}

/// Roles of ranks whose messages and receives do not find each other.
const UNMATCHED: [&str; 7] = [
    "missing_recv",
    "missing_send",
    "no_room",
    "tag_mismatch",
    "comm_mismatch",
    "probed",
    "probed_long",
];

/// Sends and receives that do not fit each other.
async fn unmatched(role: &str, world: &Comm) -> Result<(), ripstop::Error> {
    match (role, world.rank()) {
        ("missing_recv", 0) => {
            let sent = world.send(1, 7, vec![0_u64; 1 << 17]); // missed send
            sent.await.map_err(|_| unsent())?;
        }
        ("no_room", 0) => loop {
            let sent = world.send(1, 7, vec![1_u8]); // send without room
            sent.await.map_err(|_| unsent())?;
        },
        ("no_room", _) => pending().await,
        ("missing_send", 0) => {
            for _ in 0..3 {
                world.recv::<f64>(1, 6).await?;
            }
            world.recv::<f64>(1, 7).await?; // missed recv
        }
        ("missing_send", 1) => {
            for _ in 0..3 {
                world.send(0, 6, vec![1.0]).await.map_err(|_| unsent())?;
            }
            pending().await
        }
        ("tag_mismatch", 0) => {
            world.recv::<f64>(1, 9).await?; // recv of tag 9
        }
        ("probed", 0) => {
            let _message = world.probe(1, 8).await?;
            world.recv::<f64>(1, 8).await?; // recv beside the probe
        }
        ("probed_long", 0) => {
            let _message = world.probe(1, 8).await?;
            world.barrier().await?; // barrier beside the probe
        }
        ("probed_long", 1) => {
            let sent = world.send(0, 8, vec![0_u64; 1 << 17]); // send to the probe
            sent.await.map_err(|_| unsent())?;
        }
        ("comm_mismatch", 0) => {
            let _other = world.dup().await?;
            world.recv::<f64>(1, 9).await?; // recv on the world
        }
        ("comm_mismatch", 1) => {
            let other = world.dup().await?;
            other.send(0, 9, vec![1.0]).await.map_err(|_| unsent())?;
            world.barrier().await?;
        }
        ("tag_mismatch" | "probed", 1) => {
            world.send(0, 8, vec![1.0]).await.map_err(|_| unsent())?;
            world.barrier().await?;
        }
        _ => world.barrier().await?,
    }
    Ok(())
}

/// Messages that each of two ranks sends to a rank that computes.
pub(crate) const UNREAD: u32 = 50;

/// After a barrier, rank 1 computes or is stopped, and the others wait for it.
async fn leaves(role: &str, world: &Comm) -> Result<(), ripstop::Error> {
    world.barrier().await?; // last barrier
    if world.rank() == 1 && role == "stopped" {
        kill_process(getpid(), Signal::STOP).unwrap();
    }
    if world.rank() == 1 {
        compute();
    }
    for _ in 0..if role == "unread_inline" { UNREAD } else { 0 } {
        world.send(1, 2, vec![1_u8]).await.map_err(|_| unsent())?;
    }
    world.recv::<u8>((world.rank() + 2) % 3, 1).await?;
    Ok(())
}

/// Mistakes of some ranks, while others wait in a barrier and ask their peers again and again whether they come.
async fn questions(role: &str, world: &Comm) -> Result<(), ripstop::Error> {
    match (role, world.rank()) {
        ("epoch_of_four", me) => {
            let mut window = Window::<u64>::allocate(world, 1).await?;
            match me {
                0 => {
                    let _mine = window.post(&[1])?.wait().await?;
                }
                1 | 2 => window.start(&[0]).await?.complete().await?, // start that is not posted
                _ => {}
            }
            world.barrier().await?; // barrier after the epoch
        }
        ("fence_of_four", me) => {
            let mut window = Window::<u64>::allocate(world, 1).await?;
            if me < 3 {
                let _mine = window.fence().await?.end().await?; // fence of three
            }
            world.barrier().await?; // barrier after the fence
        }
        ("misdirected", me) => {
            let half = world.split(me / 2, 0).await?;
            match me {
                2 => drop(world.send(1, 3, vec![1.0]).await.map_err(|_| unsent())?),
                3 => drop(half.recv::<f64>(0, 3).await?), // recv in a half
                _ => {}
            }
        }
        _ => {}
    }
    world.barrier().await?; // barrier of four
    Ok(())
}

/// What one rank does apart while the others go on.
async fn apart(role: &str, world: &Comm) -> Result<(), ripstop::Error> {
    let me = world.rank();
    if role == "freed_by_one" {
        let mut window = Window::<u64>::allocate(world, 1).await?;
        if me == 0 {
            return window.free().await; // free of one rank
        }
        let _mine = window.fence().await?.end().await?; // fence of the other rank
    }
    world.barrier().await?; // barrier before something else
    if me == 1 && role == "reads_a_socket" {
        let (mut mine, _other) = UnixStream::pair().unwrap();
        mine.read_exact(&mut [0]).unwrap();
    }
    if me == 1 {
        loop {
            let time = match role {
                "sleeps_long" => Duration::from_hours(1),
                _ => Duration::from_micros(50),
            };
            world.sleep(time).await; // sleep instead of a barrier
        }
    }
    world.barrier().await // barrier after something else
}

/// Messages to and from the wrong ranks, and ranks that do less than the others.
async fn askew(role: &str, world: &Comm) -> Result<(), ripstop::Error> {
    let (me, size) = (world.rank(), world.size());
    let (left, right) = ((me + size - 1) % size, (me + 1) % size);
    match role {
        "not_freed_by_two" => {
            let window = Window::<u64>::allocate(world, 1).await?;
            if me > 1 {
                return pending().await;
            }
            return window.free().await; // free of two ranks
        }
        "wrong_side" | "wrong_side_of_one" => {
            let sent = world.send(right, 7, vec![1.0]);
            let is_wrong = role == "wrong_side" || me == 1;
            let from = if is_wrong { right } else { left };
            world.recv::<f64>(from, 7).await?; // recv from the wrong side
            sent.await.map_err(|_| unsent())?;
        }
        "no_room_for_tag" if me == 0 => loop {
            let sent = world.send(1, 1, vec![1_u8]);
            sent.await.map_err(|_| unsent())?;
        },
        "no_room_for_tag" => {
            world.recv::<u8>(0, 2).await?; // recv of what is sent last
        }
        "sleeps_long" => return apart(role, world).await,
        "fewest" if me == 0 => {
            for _ in 0..5 * (size - 1) {
                world.recv::<f64>(Source::Any, 1).await?; // recv from any rank
            }
        }
        "fewest" => {
            // Parts of the barrier may count, at most two for each rank.
            for _ in 0..if me == 2 { 2 } else { 5 } {
                world.send(0, 1, vec![1.0]).await.map_err(|_| unsent())?;
            }
        }
        _ => wait_for_ever(),
    }
    world.barrier().await // barrier after what is askew
}

/// Epochs and locks of windows that another rank does not open or end.
async fn windows(role: &str, world: &Comm) -> Result<(), ripstop::Error> {
    let mut window = Window::<u64>::allocate(world, 1).await?;
    match (role, world.rank()) {
        ("unposted", 0) => {
            let _access = window.start(&[1]).await?; // start without a post
        }
        ("uncompleted", 0) => {
            window.post(&[1])?.wait().await?; // wait without a complete
        }
        ("uncompleted", _) => {
            let _access = window.start(&[0]).await?;
            pending().await
        }
        ("unlocked" | "lock_ring" | "flush_waits", me) => {
            let window = window.into_passive().await?;
            match me {
                0 => pending().await,
                1 => {
                    let _lock = window.lock_exclusive(0).await?;
                    world.send(2, 1, vec![1_u8]).await.map_err(|_| unsent())?;
                    if role == "lock_ring" {
                        world.recv::<u8>(2, 2).await?; // recv under the lock
                    }
                    pending().await
                }
                _ if role == "flush_waits" => {
                    world.recv::<u8>(1, 1).await?;
                    let lock = window.lock_all().await?;
                    lock.put(0, 0, [1]).detach();
                    lock.flush(0).await?; // flush under a lock that waits
                    pending().await
                }
                _ => {
                    world.recv::<u8>(1, 1).await?;
                    let _lock = window.lock_exclusive(0).await?; // lock that is held
                }
            }
        }
        _ => pending().await,
    }
    Ok(())
}

/// Messages around a ring, and barriers, for some seconds. Rank 1 may be killed or stop itself meanwhile.
async fn chaos(role: &str, world: &Comm) -> Result<(), ripstop::Error> {
    let (me, size) = (world.rank(), world.size());
    let mut token = 0_u64;
    for round in 0..ROUNDS {
        if (me, round) == (1, ROUNDS / 2) {
            match role {
                "chaos_kill" => kill_process(getpid(), Signal::KILL).unwrap(),
                "chaos_stop" => kill_process(getpid(), Signal::STOP).unwrap(),
                _ => {}
            }
        }
        let (next, previous) = ((me + 1) % size, (me + size - 1) % size);
        let sent = world.send(next, 1, vec![token + 1]);
        let (got, _) = world.recv::<u64>(previous, 1).await?;
        sent.await?;
        token = got[0];
        if round % 16 == 0 {
            world.barrier().await?;
            world.sleep(Duration::from_millis(5)).await;
        }
    }
    assert_eq!(token, u64::from(ROUNDS), "each round adds one");
    Ok(())
}

const ROUNDS: u32 = 4_000;

/// Messages of 100 bytes to the next rank, until the directory of the metrics has a file `stop`.
async fn metered(world: &Comm) -> Result<(), ripstop::Error> {
    let (me, size) = (world.rank(), world.size());
    let directory = std::env::var_os("RIPSTOP_METRICS").unwrap();
    let stop = Path::new(&directory).join("stop");
    loop {
        let is_over = u8::from(me == 0 && stop.exists());
        if world.all_reduce(is_over, Max).await? == 1 {
            return Ok(());
        }
        let sent = world.send((me + 1) % size, 1, vec![0_u8; 100]);
        world.recv::<u8>((me + size - 1) % size, 1).await?;
        sent.await?;
        world.sleep(Duration::from_millis(5)).await;
    }
}

/// Exchanges messages between ranks 2 and 3 until there is a file `stop`. Rank 0 ends when there is a file `kill-0`, and rank 1
/// when there is one `kill-1`.
async fn metered_survivors(world: &Comm) -> Result<(), ripstop::Error> {
    let directory = std::env::var_os("RIPSTOP_METRICS").unwrap();
    let (directory, me) = (Path::new(&directory), world.rank());
    let pid = std::process::id().to_string();
    std::fs::write(directory.join(format!("pid-{me}")), pid).unwrap();
    loop {
        let mut is_over = u8::from(me == 2 && directory.join("stop").exists());
        match me {
            2 => drop(world.send(3, 1, [is_over]).await?),
            3 => is_over = world.recv::<u8>(2, 1).await?.0[0],
            _ if directory.join(format!("kill-{me}")).exists() => {
                kill_process(getpid(), Signal::KILL).unwrap();
            }
            _ => {}
        }
        if is_over == 1 {
            return Ok(());
        }
        world.sleep(Duration::from_millis(5)).await;
    }
}

async fn crossed(world: &Comm) -> Result<(), ripstop::Error> {
    let (one, other) = (world.dup().await?, world.dup().await?);
    if world.rank() < 2 {
        one.barrier().await?; // barrier of one
        other.barrier().await?;
    } else {
        other.barrier().await?; // barrier of the other
        one.barrier().await?;
    }
    Ok(())
}

/// Passes other lists of members than other ranks, or awaits an answer where others do.
async fn differ(role: &str, world: &Comm) -> Result<(), ripstop::Error> {
    let (me, next) = (world.rank(), (world.rank() + 1) % world.size());
    if role == "create_lists" {
        let own = if me == 0 { &[0, 1][..] } else { &[0, 1, 2] };
        world.create(own).await?; // create of a list
    } else {
        world.send(next, 1, [1_u8]).await?;
        world.recv::<u8>(next, 2).await?; // recv of an answer
    }
    Ok(())
}

fn unsent() -> ripstop::Error {
    panic!("a message that waits is not refused")
}

fn compute() -> ! {
    loop {
        spin_loop();
    }
}

fn wait_for_ever() -> ! {
    loop {
        std::thread::park();
    }
}
