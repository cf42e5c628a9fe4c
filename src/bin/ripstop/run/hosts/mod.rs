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
//! | `allocation` | pure: the hosts that Slurm, PBS or LSF gave this job |
//! | `placement` | pure: which rank runs on which host, and `PMI_process_mapping` |
//! | `starter` | pure: the command that starts a helper on a host |
//! | `frame` | pure: what launcher and helper say, as frames of bytes |
//! | `setup` | pure: what a helper is told before it starts ranks |
//! | `choice` | the options about hosts, and what follows from them |

mod allocation;
mod choice;
#[expect(
    dead_code,
    reason = "the launcher and its helpers use it from the next change on"
)]
mod frame;
mod list;
mod placement;
mod ranges;
#[expect(
    dead_code,
    reason = "the launcher and its helpers use it from the next change on"
)]
mod setup;
mod starter;

pub(super) use choice::{HostArgs, HostPlan};

/// The most hosts of a job: each costs the launcher three descriptors and a starter.
const HOSTS_MAX: usize = 1024;

/// The most ranks of a job.
const RANKS_MAX: u32 = 8192;
