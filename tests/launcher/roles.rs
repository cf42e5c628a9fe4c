//! The roles of the ranks.

use std::fs::File;

use ripstop::{ErrorKind, Runtime};
use ripstop_rt::boot::{Boot, Environment, discover};
use rustix::process::{Signal, kill_process};

use crate::{apart, fates, hosts, networks};

pub(crate) use crate::role::AS_RANK;

pub(crate) const ROLE: &str = "LAUNCHER_TEST_ROLE";

/// Not a claim: the entry point of a rank when a test above starts this program again.
#[test]
fn a_rank_of_a_job() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    if role == "fate" {
        fates::live();
    }
    if role == "apart" {
        apart::live();
    }
    if role == "helper" {
        hosts::fake::live();
    }
    let mut boot = discover(&Environment::of_process()).unwrap_or_else(|error| {
        use std::io::Write;
        let _closed = writeln!(std::io::stderr(), "{error}"); // Some ranks have no /proc.
        std::process::exit(9)
    });
    match role.as_str() {
        "die-before-arrival" => die_before_arrival(boot),
        "stay" => stay(boot),
        networks::NETWORKED | networks::BEREAVED => networks::play(&role, boot),
        "talk" | "outlive" => crate::spaces::play(&role, boot),
        _ => play(&role, &mut boot),
    }
    std::process::exit(0)
}

fn play(role: &str, boot: &mut Boot) {
    let mut out = File::options()
        .append(true)
        .open("/proc/self/fd/1")
        .unwrap();
    match (role, boot.rank) {
        ("exchange", _) => say(&mut out, &exchange(boot)),
        ("finalize-early", 1) => {
            boot.exchange.finalize().unwrap();
            std::thread::park();
        }
        ("exit-early", 1) => {}
        ("die-then-fence", 1) => kill_process(rustix::process::getpid(), Signal::KILL).unwrap(),
        ("panic", 1) => panic!("the grid has a hole"),
        ("abort", 1) => {
            boot.exchange.abort(7, "no memory left");
            std::thread::park();
        }
        _ => {
            boot.exchange.fence().unwrap();
            say(&mut out, "survived");
        }
    }
}

/// Rank 1 is killed after all have met, and before it comes to its node's board.
fn die_before_arrival(mut boot: Boot) {
    let rank = boot.rank;
    if rank == 1 {
        boot.exchange.fence().unwrap();
        kill_process(rustix::process::getpid(), Signal::KILL).unwrap();
    }
    let runtime = match Runtime::builder().boot(boot).init() {
        Ok(runtime) => runtime,
        Err(error) => {
            let mut err = File::create("/proc/self/fd/2").unwrap();
            say(&mut err, &error.to_string());
            std::process::exit(9)
        }
    };
    let world = runtime.world();
    for peer in [0, 1] {
        let gone = runtime.block_on(world.recv::<u8>(peer, 1)).unwrap_err();
        let of_peer =
            |kind: &ErrorKind| matches!(kind, ErrorKind::PeerFailed { rank, .. } if *rank == peer);
        assert!(of_peer(&gone.error.kind), "{}", gone.error);
    }
    let mut out = File::options()
        .append(true)
        .open("/proc/self/fd/1")
        .unwrap();
    say(&mut out, &format!("rank {rank} heard of both"));
}

/// Prints that it is a rank, and after a while that it still runs.
fn stay(boot: Boot) {
    let runtime = Runtime::builder().boot(boot).init().unwrap();
    let mut out = File::options()
        .append(true)
        .open("/proc/self/fd/1")
        .unwrap();
    say(&mut out, "here to stay");
    runtime.block_on(runtime.sleep(std::time::Duration::from_secs(30)));
    say(&mut out, "outlived");
}

/// Sends a short and a long value to the next rank, and receives those of the one before, twice.
fn exchange(boot: &mut Boot) -> String {
    for round in 0..2 {
        let value = |rank: u32| format!("{rank}-{round}-{}", "x".repeat(3000 * round));
        boot.exchange
            .put(&format!("value-{}", boot.rank), &value(boot.rank))
            .unwrap();
        boot.exchange.fence().unwrap();
        let next = (boot.rank + 1) % boot.size;
        assert_eq!(
            boot.exchange.get(next, &format!("value-{next}")).unwrap(),
            Some(value(next))
        );
        assert_eq!(boot.exchange.get(next, "nobody's").unwrap(), None);
        boot.exchange.fence().unwrap();
    }
    boot.exchange.finalize().unwrap();
    format!(
        "rank {} of {} ({}), node {:?}",
        boot.rank, boot.size, boot.found, boot.node.ranks
    )
}

/// Writes one line in one write, because ranks write to the same file.
fn say(into: &mut File, line: &str) {
    use std::io::Write;
    into.write_all(format!("{line}\n").as_bytes()).unwrap();
}
