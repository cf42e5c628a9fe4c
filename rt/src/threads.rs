//! Threads of this process besides the calling one: whether the application has any, and whether they did anything.

use std::{fs, io};

/// Threads of the application at one time, by number, and how often each had been taken off a processor.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Others {
    asleep: Vec<(String, u64)>,
    /// Some thread was running, or nothing is known.
    busy: bool,
}

/// Beginnings of the names of this library's own threads, and of those that io_uring adds.
const OURS: [&str; 4] = ["ripstop-", "portals-", "verbs-", "iou-"];

impl Others {
    /// The threads as they are now.
    pub(crate) fn now() -> Self {
        Self::read().unwrap_or(Self {
            asleep: Vec::new(),
            busy: true,
        })
    }

    /// Returns true if the application has no other thread.
    pub(crate) fn are_none(&self) -> bool {
        !self.busy && self.asleep.is_empty()
    }

    /// Returns true if no other thread of the application has run since `before`.
    pub(crate) fn slept_since(&self, before: &Self) -> bool {
        !self.busy && self == before
    }

    fn read() -> io::Result<Self> {
        let me = rustix::thread::gettid().as_raw_nonzero().to_string();
        let mut others = Self {
            asleep: Vec::new(),
            busy: false,
        };
        for entry in fs::read_dir("/proc/self/task")? {
            let number = entry?.file_name().into_string().unwrap_or_default();
            if number == me {
                continue;
            }
            let Ok(status) = fs::read_to_string(format!("/proc/self/task/{number}/status")) else {
                others.busy = true; // it has just ended
                continue;
            };
            let name = field(&status, "Name:").unwrap_or_default();
            if OURS.iter().any(|ours| name.starts_with(ours)) {
                continue;
            }
            others.busy |= !field(&status, "State:").is_some_and(|state| state.starts_with('S'));
            others.asleep.push((number, switches(&status)));
        }
        others.asleep.sort_unstable();
        Ok(others)
    }
}

/// How often a thread has left its processor.
fn switches(status: &str) -> u64 {
    ["voluntary_ctxt_switches:", "nonvoluntary_ctxt_switches:"]
        .iter()
        .filter_map(|name| field(status, name)?.parse::<u64>().ok())
        .sum()
}

fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = status.lines();
    lines.find_map(|line| line.strip_prefix(name).map(str::trim))
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, thread};

    use super::{Others, field, switches};

    #[test]
    fn a_status_is_read_by_its_fields() {
        let status = "Name:\tmain\nState:\tS (sleeping)\nvoluntary_ctxt_switches:\t12\nnonvoluntary_ctxt_switches:\t3\n";
        assert_eq!(field(status, "Name:"), Some("main"));
        assert_eq!(field(status, "Pid:"), None);
        assert_eq!(switches(status), 15);
    }

    #[test]
    fn a_thread_that_runs_is_seen_to_have_run() {
        let (go, wait) = mpsc::channel::<()>();
        let sleeper = thread::Builder::new().name("sleeper".to_owned());
        let sleeper = sleeper.spawn(move || while wait.recv().is_ok() {});
        let sleeper = sleeper.expect("a thread");
        let before = Others::now();
        assert!(!before.are_none());
        // It hears of the first word some time, and is seen to run, or to have run.
        while Others::now().slept_since(&before) {
            go.send(()).expect("it listens");
            thread::yield_now();
        }
        drop(go);
        sleeper.join().expect("a good end");
    }

    #[test]
    fn threads_of_this_library_do_not_count() {
        for (name, counts) in [("ripstop-0", false), ("named", true)] {
            let (stop, stopped) = mpsc::channel::<()>();
            let (started, start) = mpsc::channel();
            let thread = thread::Builder::new().name(name.to_owned());
            let thread = thread.spawn(move || {
                let number = rustix::thread::gettid().as_raw_nonzero();
                started.send(number.to_string()).expect("the test listens");
                while stopped.recv().is_ok() {}
            });
            let number = start.recv().expect("a thread");
            let others = Others::now();
            let found = others.asleep.iter().any(|(other, _)| *other == number);
            assert_eq!(found, counts, "{name}");
            drop(stop);
            thread.expect("a thread").join().expect("a good end");
        }
    }
}
