//! Views that no rank has written: the command names the reason, ends with exit code 3, and goes on with other ranks.

use std::{
    env,
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
};

use ripstop_fabric::random::SeededRandom;
use ripstop_rt::internal::view::layout::{VERSION, VIEW_NAME};
use rustix::{
    fs::{MemfdFlags, memfd_create},
    io::pwrite,
};

use crate::{AS_RANK, fits, roles::ROLE, stuck};

/// The variables with the kind of contents, and the seed.
const KIND: &str = "STUCK_TEST_VIEW";
const SEED: &str = "STUCK_TEST_SEED";

/// A process with a view, which ends with this value.
struct HostileProcess(Child);

impl HostileProcess {
    fn start(kind: &str, seed: u64) -> Self {
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(AS_RANK).env(ROLE, "hostile");
        command.env(KIND, kind).env(SEED, seed.to_string());
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut lines = lines.map_while(Result::ok);
        assert!(lines.any(|line| line == UP), "the view is not there");
        Self(child)
    }

    fn report(&self) -> (String, Option<i32>) {
        stuck(&[&self.0.id().to_string()])
    }
}

impl Drop for HostileProcess {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

const UP: &str = "the view is there";

/// Publishes such a view, and does nothing else.
#[expect(clippy::print_stdout, reason = "the test waits for this line")]
pub(crate) fn live() -> ! {
    let seed = env::var(SEED).unwrap().parse().unwrap();
    let mut random = SeededRandom::new(seed);
    let bytes = contents(&env::var(KIND).unwrap(), &mut random);
    let file = memfd_create(VIEW_NAME, MemfdFlags::CLOEXEC).unwrap();
    assert_eq!(pwrite(&file, &bytes, 0).unwrap(), bytes.len());
    println!("\n{UP}");
    loop {
        std::thread::park();
    }
}

fn contents(kind: &str, random: &mut SeededRandom) -> Vec<u8> {
    let len = 1 + random.bits() % (300 << 10);
    let noise = (0..len).map(|_| random.bits().to_ne_bytes()[0]).collect();
    let version = match kind {
        "another version" => VERSION + 7,
        "torn" => VERSION,
        _ => return noise,
    };
    let numbers = [version, 1, 2, std::process::id(), 42, 0].map(u32::to_ne_bytes);
    [b"ripstopV", numbers.as_flattened(), &noise].concat()
}

#[test]
fn a_view_of_another_version_is_named_with_both_versions() {
    let process = HostileProcess::start("another version", 1);
    let (text, code) = process.report();
    let line = format!(
        "ripstop stuck: the view of process * cannot be read: the program has view layout {}, this command {VERSION}: build \
         both from one source",
        VERSION + 7
    );
    assert!(text.lines().any(|seen| fits(seen, &line)), "{text}");
    assert_eq!(code, Some(3), "{text}");
}

#[test]
#[expect(clippy::print_stdout, reason = "the seed helps to reproduce a failure")]
fn a_view_of_any_bytes_is_refused_with_a_reason() {
    let first = u64::from(std::process::id());
    println!("seeds from {first} on");
    for seed in first..first + 8 {
        for kind in ["torn", "random"] {
            let process = HostileProcess::start(kind, seed);
            let (text, code) = process.report();
            let reasons = [
                "cannot be read: it has no whole snapshot, or it changes all the time",
                "cannot be read: it does not begin as a view does",
                "cannot be read: it is too short",
            ];
            let is_told = reasons.iter().any(|reason| text.contains(reason));
            assert!(is_told, "{kind}, seed {seed}: {text}");
            assert_eq!(code, Some(3), "{kind}, seed {seed}: {text}");
        }
    }
}
