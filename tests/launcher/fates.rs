//! A program in which one rank meets with a fate, and the others react to it.

use std::{
    error::Error,
    fs::{File, read_to_string},
    future::poll_fn,
    io,
    os::unix::process::CommandExt,
    process::{Command, exit},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::Poll,
};

use ripstop::{Collectives, Comm};
use rustix::process::{Resource, Rlimit, Signal, getpid, kill_process, setrlimit};

/// The fate of rank 1.
pub(crate) const FATE: &str = "LAUNCHER_TEST_FATE";
/// The reaction of the other ranks.
pub(crate) const OTHERS: &str = "LAUNCHER_TEST_OTHERS";

/// Runs the program; its exit code is that of the process, unless the process ends in another way.
pub(crate) fn live() -> ! {
    let code = format!("{:?}", main());
    let digits = code.chars().filter(char::is_ascii_digit);
    exit(digits.collect::<String>().parse().unwrap_or(99))
}

#[ripstop::main]
async fn main(world: Comm) -> Result<(), Box<dyn Error>> {
    let (fate, others) = (std::env::var(FATE)?, std::env::var(OTHERS)?);
    for step in 0.. {
        if world.rank() == 1 && step == 20 {
            meet(&fate)?;
        }
        if fate == "panic in a task" && step == 20 {
            return go_on_beside_a_panic(&world).await;
        }
        let outcome = world.barrier().await;
        if outcome.is_ok() {
            continue;
        }
        match others.as_str() {
            "question mark" => outcome?,
            "text" => outcome.map_err(|error| format!("step {step} failed: {error}"))?,
            "exit" => exit(1),
            "unwrap" => outcome.unwrap(),
            "survive" => return survive(&world).await,
            other => panic!("nothing is called {other}"),
        }
    }
    Ok(())
}

fn meet(fate: &str) -> io::Result<()> {
    match fate {
        "panic" => panic!("the cause"),
        "none" | "panic in a task" => {}
        "abort" => std::process::abort(),
        "no memory" => eat_all(),
        "exit 3" => exit(3),
        "exit 0" => exit(0),
        // No code of this program runs any more when it exits.
        "another program" => return Err(Command::new("sh").args(["-c", "exit 3"]).exec()),
        "error" => drop(File::open("/no/such/grid")?),
        "kill" => kill_process(getpid(), Signal::KILL)?,
        other => panic!("nothing is called {other}"),
    }
    Ok(())
}

/// Rank 1 spawns a task that panics, and drops its handle. After the task has run, all ranks meet.
async fn go_on_beside_a_panic(world: &Comm) -> Result<(), Box<dyn Error>> {
    let has_run = Arc::new(AtomicBool::new(world.rank() != 1));
    let runs = Arc::clone(&has_run);
    if world.rank() == 1 {
        drop(world.spawn(async move {
            runs.store(true, Ordering::SeqCst);
            panic!("no task awaits this")
        }));
    }
    poll_fn(|context| {
        context.waker().wake_by_ref();
        let ready = has_run.load(Ordering::SeqCst);
        if ready {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
    Ok(world.barrier().await?)
}

/// Asks for more memory than there can be.
fn eat_all() {
    let text = read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = text.split(' ').next().unwrap().parse().unwrap();
    let most = Some((pages << 12) + (64 << 20));
    let limit = Rlimit {
        current: most,
        maximum: most,
    };
    setrlimit(Resource::As, limit).unwrap();
    let much = vec![1_u8; 1 << 30];
    drop(std::hint::black_box(much));
}

async fn survive(world: &Comm) -> Result<(), Box<dyn Error>> {
    let rest = world.shrink().await?;
    for _ in 0..2000 {
        rest.barrier().await?;
    }
    let line = format!("rank {} survived\n", world.rank());
    io::Write::write_all(
        &mut File::options().append(true).open("/proc/self/fd/1")?,
        line.as_bytes(),
    )?;
    Ok(())
}
