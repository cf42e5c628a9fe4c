//! What the system says of a process or a thread.

use std::fs;

use rustix::param::clock_ticks_per_second;

use super::report::ProcessState;

/// What `/proc/PID/stat` says of a process or a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(
    clippy::exhaustive_structs,
    reason = "the command is of the same version"
)]
pub struct ProcessStat {
    /// A letter: `R` runs, `S` sleeps, `D` sleeps and cannot be interrupted, `T` is stopped, `Z` has ended.
    pub state: u8,
    /// Process id of the parent.
    pub parent: u32,
    /// Processor time, in ticks.
    pub ticks: u64,
    /// Time of the start, in ticks. It tells apart two processes with the same number.
    pub started: u64,
}

impl ProcessStat {
    /// Reads what the system says of a process.
    #[must_use]
    pub fn of(pid: u32) -> Option<Self> {
        Self::parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    /// Reads what the system says of a thread of this process.
    #[must_use]
    pub(crate) fn of_thread(thread: i32) -> Option<Self> {
        Self::parse(&fs::read_to_string(format!("/proc/self/task/{thread}/stat")).ok()?)
    }

    /// Returns this with the state of a thread of process `pid` instead, if there is such a thread.
    pub(super) fn with_state_of(self, pid: u32, thread: u32) -> Self {
        let stat = fs::read_to_string(format!("/proc/{pid}/task/{thread}/stat"));
        let state = stat.ok().and_then(|stat| Some(Self::parse(&stat)?.state));
        Self {
            state: state.unwrap_or(self.state),
            ..self
        }
    }

    fn parse(stat: &str) -> Option<Self> {
        // The name of the program, in parentheses, may hold anything.
        let (_, fields) = stat.rsplit_once(')')?;
        let fields: Vec<&str> = fields.split_ascii_whitespace().collect();
        let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
        Some(Self {
            state: *fields.first()?.as_bytes().first()?,
            parent: u32::try_from(number(1)?).ok()?,
            ticks: number(11)? + number(12)?,
            started: number(19)?,
        })
    }

    /// Returns the state of the process, with its share of a processor since `earlier`, `between` nanoseconds ago.
    #[must_use]
    pub fn process_state(
        self,
        earlier: Option<Self>,
        between: u64,
        sleeps_in: String,
    ) -> ProcessState {
        match self.state {
            b'T' | b't' => ProcessState::Stopped,
            b'D' if earlier.is_some_and(|earlier| earlier.state == b'D') => {
                ProcessState::InKernel {
                    function: sleeps_in,
                }
            }
            _ => {
                let ticks = earlier.map_or(0, |earlier| self.ticks.saturating_sub(earlier.ticks));
                let nanos = ticks.saturating_mul(1_000_000_000 / clock_ticks_per_second().max(1));
                let percent = nanos.saturating_mul(100).checked_div(between).unwrap_or(0);
                ProcessState::Alive {
                    percent: u32::try_from(percent).unwrap_or(u32::MAX),
                    sleeps_in,
                    is_running: self.state == b'R'
                        && earlier.is_some_and(|earlier| earlier.state == b'R'),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{ProcessStat, ProcessState};

    #[test]
    fn a_process_may_have_any_name() {
        let stat = "7 (a) R 1 (b)) T 5 1 1 0 -1 0 1 2 3 4 60 40 0 0 20 0 1 0 777 1 2";
        let stat = ProcessStat::parse(stat).unwrap();
        assert_eq!(
            (stat.state, stat.parent, stat.ticks, stat.started),
            (b'T', 5, 100, 777)
        );
        assert_eq!(
            stat.process_state(None, 0, String::new()),
            ProcessState::Stopped
        );
        for broken in [
            "",
            "7 (a",
            "7 (a) R",
            "7 (a) R x 1 1 0 -1 0 1 2 3 4 60 40 0 0 20 0 1 0 777",
        ] {
            assert_eq!(ProcessStat::parse(broken), None, "{broken}");
        }
    }

    #[test]
    fn processor_time_is_a_share_of_the_time_between_the_looks() {
        let before = ProcessStat {
            state: b'D',
            parent: 1,
            ticks: 100,
            started: 7,
        };
        let ticks = before.ticks + rustix::param::clock_ticks_per_second() / 2;
        let after = ProcessStat {
            state: b'R',
            ticks,
            ..before
        };
        let state = after.process_state(Some(before), 1_000_000_000, String::new());
        assert!(
            matches!(state, ProcessState::Alive { percent: 50, .. }),
            "{state:?}"
        );
        let state = before.process_state(Some(before), 1, "nfs_wait".to_owned());
        assert!(matches!(state, ProcessState::InKernel { .. }), "{state:?}");
        // On a busy machine, a thread that never sleeps may get no processor.
        let ready = ProcessStat {
            state: b'R',
            ..before
        };
        for (earlier, expected) in [(ready, true), (before, false)] {
            let state = ready.process_state(Some(earlier), 1_000_000_000, String::new());
            let is_so =
                matches!(state, ProcessState::Alive { is_running, .. } if is_running == expected);
            assert!(is_so, "{earlier:?} {state:?}");
        }
    }
}
