//! Short tests that move data: between two processors, and between two ranks on this machine.

use std::{
    path::Path,
    process::{Command, Stdio},
    sync::atomic::{
        AtomicU32,
        Ordering::{Acquire, Release},
    },
    thread,
};

use rustix::thread::{CpuSet, sched_setaffinity};
use serde_json::Value;

use super::finding::CheckFinding;
use crate::{
    perf::clock::now,
    system_files::{SystemFiles, allowed_processors},
};

/// Runs all tests, which takes one or two seconds.
pub(super) fn run(files: &dyn SystemFiles) -> Vec<CheckFinding> {
    let program =
        std::env::current_exe().map_err(|why| format!("this program is not known: {why}"));
    let ping = |fabric: &str| program.clone().and_then(|program| ping(&program, fabric));
    let siblings = program.clone().and_then(|program| single_copy(&program));
    vec![
        line_time(&allowed_processors(files)),
        ping_finding("active.shm", "over shared memory", ping("shm")),
        ping_finding("active.tcp", "over TCP within this machine", ping("tcp")),
        siblings_finding(siblings),
    ]
}

/// Measures how long a cache line takes from one processor to another.
fn line_time(allowed: &[u32]) -> CheckFinding {
    const CHECK: &str = "active.line_time";
    let [first, .., last] = *allowed else {
        return CheckFinding::skip(CHECK, "there are no two processors");
    };
    match line_nanos(first, last) {
        Some(nanos) => CheckFinding::ok(
            CHECK,
            format!("a cache line takes {nanos} ns from processor {first} to {last}"),
        )
        .varying(),
        None => CheckFinding::note(
            CHECK,
            format!("the threads on processors {first} and {last} did not run at the same time"),
            "ranks on these processors would wait for each other just as long",
            "look at `top`; run the test again on an idle machine",
        )
        .varying(),
    }
}

/// Returns the median of some measurements, or nothing if the two threads never met.
fn line_nanos(first: u32, last: u32) -> Option<u64> {
    let mut times: Vec<u64> = (0..LINE_SAMPLES)
        .filter_map(|_| line_sample(first, last))
        .collect();
    times.sort_unstable();
    times.get(times.len() / 2).copied()
}

/// Passes a counter back and forth, and returns the time of one way.
fn line_sample(first: u32, last: u32) -> Option<u64> {
    let counter = AtomicU32::new(0);
    let end = now() + LINE_LIMIT_NS;
    // One side waits for even values and the other one for odd values, and both give up at the same time.
    let side = |cpu: u32, parity: u32| {
        bind(cpu);
        let mut start = None;
        for turn in (parity..LINE_TURNS).step_by(2) {
            while counter.load(Acquire) != turn {
                if now() > end {
                    return None;
                }
                std::hint::spin_loop();
            }
            // The first turns warm up.
            if turn >= LINE_TURNS / 4 {
                start = start.or_else(|| Some((turn, now())));
            }
            counter.store(turn + 1, Release);
        }
        start.map(|(turn, start)| (now() - start) / u64::from(LINE_TURNS - turn))
    };
    thread::scope(|scope| {
        let other = scope.spawn(|| side(last, 1));
        let own = scope.spawn(|| side(first, 0));
        own.join().ok()?.and(other.join().ok()?)
    })
}

/// Binds this thread. If that is refused, the threads are measured where they run.
fn bind(cpu: u32) {
    let cpu = cpu as usize;
    if cpu >= CpuSet::MAX_CPU {
        return; // A set has no place for it.
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    let _refused = sched_setaffinity(None, &set);
}

/// Returns the median time of a short message between two ranks that are processes, in microseconds.
fn ping(program: &Path, fabric: &str) -> Result<f64, String> {
    let words = ["perf", "latency", "--size", "8", "--iters", "500", "--json"];
    let answer = job(program, fabric, &words)?;
    let median = answer.get("median_us").and_then(Value::as_f64);
    median.ok_or_else(|| format!("the measurement has no time: {answer}"))
}

fn ping_finding(check: &str, how: &str, measured: Result<f64, String>) -> CheckFinding {
    match measured {
        Ok(micros) => CheckFinding::ok(
            check,
            format!("8 bytes take {micros:.2} microseconds one way between two ranks {how}"),
        )
        .varying(),
        Err(why) => CheckFinding::fail(
            check,
            format!("two ranks cannot talk {how}: {why}"),
            "a job on this machine ends with the same error",
            "do what the error says; the checks above may name the cause",
        ),
    }
}

/// Returns true if a rank may copy from its sibling's memory, or the reason why not.
fn single_copy(program: &Path) -> Result<Result<(), String>, String> {
    let answer = job(program, "shm", &["info", "--json"])?;
    let reason = answer.get("single_copy_why_not").and_then(Value::as_str);
    match answer.get("single_copy").and_then(Value::as_bool) {
        Some(true) => Ok(Ok(())),
        Some(false) => Ok(Err(reason.unwrap_or("without a reason").to_owned())),
        None => Err(format!("the report has no word about copies: {answer}")),
    }
}

fn siblings_finding(found: Result<Result<(), String>, String>) -> CheckFinding {
    const CHECK: &str = "active.copying";
    match found {
        Ok(Ok(())) => CheckFinding::ok(CHECK, "two ranks copy from each other's memory"),
        Ok(Err(why)) => CheckFinding::warn(
            CHECK,
            format!("two ranks cannot copy from each other's memory: {why}"),
            "long messages between ranks of one node are copied twice",
            "see copying.single",
        ),
        Err(why) => CheckFinding::skip(CHECK, why),
    }
}

/// Runs a command of this program as a job of two ranks, and returns the first JSON value that it prints.
fn job(program: &Path, fabric: &str, words: &[&str]) -> Result<Value, String> {
    let output = Command::new(program)
        .args(["run", "-n", "2", "--timeout", "5", "--"])
        .arg(program)
        .args(words)
        .env("RIPSTOP_FABRIC", fabric)
        .stdin(Stdio::null())
        .output()
        .map_err(|why| format!("{}: {why}", program.display()))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        let first = errors.lines().next().unwrap_or("without a message");
        return Err(format!("{first} ({})", output.status));
    }
    let mut values = serde_json::Deserializer::from_slice(&output.stdout).into_iter();
    match values.next() {
        Some(Ok(value)) => Ok(value),
        _ => Err("the job printed no report".to_owned()),
    }
}

const LINE_SAMPLES: usize = 9;

/// Turns of one measurement: some tens of microseconds to milliseconds.
const LINE_TURNS: u32 = 4000;

/// Long enough for two threads to be scheduled on a busy machine.
const LINE_LIMIT_NS: u64 = 40_000_000;

#[cfg(test)]
mod tests {
    use super::{bind, line_time, ping_finding, siblings_finding};
    use crate::doctor::finding::CheckState::{Fail, Ok as Fine, Skip, Warn};

    #[test]
    fn a_job_that_fails_is_a_failure_and_two_copies_a_warning() {
        assert_eq!(ping_finding("a.b", "", Ok(1.0)).state, Fine);
        assert_eq!(ping_finding("a.b", "", Err("no".to_owned())).state, Fail);
        for (found, expected) in [
            (Ok(Ok(())), Fine),
            (Ok(Err("seccomp".to_owned())), Warn),
            (Err("no job".to_owned()), Skip),
        ] {
            assert_eq!(siblings_finding(found).state, expected);
        }
    }

    #[test]
    fn a_processor_beyond_a_set_is_not_bound_to() {
        bind(1 << 10);
        bind(u32::MAX);
    }

    #[test]
    fn one_processor_has_no_line_time() {
        assert_eq!(line_time(&[3]).state, Skip);
        assert_eq!(line_time(&[]).state, Skip);
    }
}
