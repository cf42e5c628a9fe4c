//! Lines by which a rank tells the test how far it is.

use std::{fs, process, sync::OnceLock};

/// What a rank tells the test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RankReport {
    /// The test may begin.
    Ready { rank: usize, place: RankPlace },
    /// Everything went well, and the runtime is closed.
    Ended { rank: usize },
}

/// Where a rank runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RankPlace {
    pub(crate) host: String,
    /// Process id, as the host sees it.
    pub(crate) pid: u32,
}

impl RankReport {
    /// Prints that this rank is ready.
    pub(crate) fn print_ready() {
        let host = fs::read_to_string("/proc/sys/kernel/hostname").expect("Linux has it");
        println!(
            "{MARK} {} ready {} {}",
            own_rank(),
            host.trim(),
            process::id()
        );
    }

    /// Prints that this rank ends well.
    pub(crate) fn print_ended() {
        println!("{MARK} {} ended", own_rank());
    }

    /// Finds a report in a line, which the program's test harness may have begun.
    pub(crate) fn parse(line: &str) -> Option<Self> {
        let (_, report) = line.split_once(MARK)?;
        let words: Vec<&str> = report.split_whitespace().collect();
        let rank = words.first()?.parse().ok()?;
        match words[1..] {
            ["ready", host, pid] => {
                let (host, pid) = (host.to_owned(), pid.parse().ok()?);
                let place = RankPlace { host, pid };
                Some(Self::Ready { rank, place })
            }
            ["ended"] => Some(Self::Ended { rank }),
            _ => None,
        }
    }
}

/// Remembers the rank of this process for its reports.
pub(crate) fn set_own_rank(rank: usize) {
    OWN_RANK.set(rank).expect("a process is one rank");
}

fn own_rank() -> usize {
    *OWN_RANK.get().expect("set before the first report")
}

static OWN_RANK: OnceLock<usize> = OnceLock::new();

const MARK: &str = "failures: rank";
