//! Jobs over several hosts: which hosts, how a helper is started on each, and what the launcher and its helpers say.
//!
//! **Processes.** The launcher starts one *starter* for each host (`ssh`, `srun`, any command), and the starter runs one
//! *helper* there: this same program, as `ripstop node 1`. On its own host the launcher runs the helper without a starter.
//! The helper starts the ranks of its host, each as `ripstop run` starts ranks on one machine.
//!
//! **Channel.** The starter's standard input and output are the only connection between launcher and helper. No process
//! connects back, listens at a port, or resolves the launcher's name. The command line of a helper is constant; everything
//! else, also the environment, goes through the channel.
//!
//! **Ownership.** The launcher owns the job: how it ends and why, the exit code, the output, and rank 0's input. A helper
//! owns the processes of its host. It decides nothing, except that it ends them all if the launcher is silent or gone.
//!
//! **What a rank sees** is what it sees on one machine: PMI-1 at a socket, which the helper serves. Only `PMI_RANK` and
//! `PMI_SIZE` count over all hosts, and `PMI_process_mapping` has several nodes.
//!
//! | file | what |
//! |---|---|
//! | `list` | pure: host lists of the command line and of files |
//! | `ranges` | pure: `n[0-3,7]` |
//! | `rankfile` | pure: files that say for each rank where it runs, and on which CPUs |
//! | `allocation` | pure: the hosts that Slurm, PBS or LSF gave this job |
//! | `placement` | pure: which rank runs on which host, and `PMI_process_mapping` |
//! | `starter` | pure: the command that starts a helper on a host |
//! | `frame` | pure: what launcher and helper say, as frames of bytes |
//! | `setup` | pure: what a helper is told before it starts ranks |
//! | `choice` | the options about hosts, and what follows from them |
//! | `link` | the channel to one host |
//! | `errors` | what its starter says on standard error |
//! | `set` | all hosts of a job |
//! | `start` | the start of a job: all helpers first, then the ranks |
//! | `serve` | a job that runs: frames of helpers, lost hosts, and the end |
//! | `relay` | input of rank 0 |
//! | `observed` | pure: what the ranks of a host wait for, as bytes |
//! | `reports` | reports about ranks that wait in vain |
//!
//! The helper's own code is in [`node`](super::node).

mod allocation;
mod choice;
mod errors;
pub(super) mod frame;
mod link;
mod list;
#[cfg(test)]
mod model;
pub(super) mod observed;
mod placement;
mod ranges;
mod rankfile;
mod relay;
mod reports;
mod serve;
mod set;
pub(super) mod setup;
mod start;
mod starter;

use std::time::Duration;

pub(super) use choice::{HostArgs, HostPlan};
pub(super) use set::HostSet;
pub(super) use starter::PROTOCOL;

/// The most hosts of a job: each costs the launcher three descriptors and a starter.
const HOSTS_MAX: usize = 1024;

/// The most ranks of a job: as many as a large node may carry. On one machine, each costs the launcher a socket and, with
/// `--label`, two pipes.
pub(super) const RANKS_MAX: u32 = 8192;

/// What a launcher and its helpers must have in common: frames of another version may mean something else.
pub(super) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Time between two signs of life.
pub(super) const BEAT: Duration = Duration::from_secs(1);

/// Input of rank 0 that is on its way, in bytes.
pub(super) const INPUT_WINDOW: usize = 64 << 10;

/// Returns how much output of each rank and stream may be on its way in a job of this size, in bytes. The launcher may have to
/// hold the windows of all ranks, so many ranks have shorter ones.
pub(super) fn output_window(size: u32) -> usize {
    let share = OUTPUT_MAX / size.max(1) as usize;
    share.clamp(WINDOW_MIN, WINDOW_MAX)
}

/// A page: with less, the headers of frames would count.
const WINDOW_MIN: usize = 4 << 10;
const WINDOW_MAX: usize = 256 << 10;

/// Output of each stream that is on its way, in bytes; twice as much for the largest jobs.
const OUTPUT_MAX: usize = 16 << 20;

/// The exit code of a job that cannot be started, or that lost a host.
pub(super) const START_FAILED: u8 = 125;

/// Returns the name of a host without anything that would need quotes.
fn plain(name: &str) -> String {
    let plain = name.chars().filter(|letter| list::is_plain(*letter));
    plain.take(NAME_SHOWN).collect()
}

const NAME_SHOWN: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_windows_of_all_ranks_have_a_bound() {
        for size in [0, 1, 64, 512, 4096, RANKS_MAX] {
            let window = output_window(size);
            assert!((WINDOW_MIN..=WINDOW_MAX).contains(&window), "{size}");
            assert!(window * size as usize <= 2 * OUTPUT_MAX, "{size}");
        }
    }
}
