//! The contestants: how each is found, built and started.

use std::collections::BTreeSet;
use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;

use super::figures::{CompareJob, OwnProgram};
use super::tcp_peers::{self, TcpPeers, TcpWay};
use super::{between_hosts, report, tcp, threads};
use crate::step::MEASURED_PROFILE;

/// One column of the comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Contestant {
    /// Debian's MPICH.
    Mpich,
    /// Debian's Open MPI.
    OpenMpi,
    /// Ripstop with default settings.
    Ours,
    /// Ripstop with `RIPSTOP_PROGRESS=inline`.
    OursInline,
    /// FFTW's own MPI layer, over Open MPI, because Debian builds it with that.
    Fftw,
    /// `line.c`: a bare cache line between two cores.
    Line,
    /// `sockets.c`: TCP without a library.
    Sockets,
    /// A plain `ssh HOST true` to each host of a job, all at once.
    PlainSsh,
    /// Debian's MPICH over TCP.
    MpichTcp,
    /// Debian's Open MPI over TCP, by its own transport.
    OpenMpiTcp,
    /// Debian's Open MPI over TCP, by UCX.
    OpenMpiUcx,
    /// Ripstop over TCP.
    OursTcp,
    /// Ripstop over TCP with `RIPSTOP_PROGRESS=inline`.
    OursTcpInline,
}

impl Contestant {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Mpich => "mpich",
            Self::OpenMpi => "openmpi",
            Self::Ours => "ours",
            Self::OursInline => "ours-inline",
            Self::Fftw => "fftw",
            Self::Line => "line",
            Self::Sockets => "sockets",
            Self::PlainSsh => "ssh",
            Self::MpichTcp => "mpich-tcp",
            Self::OpenMpiTcp => "openmpi-tcp",
            Self::OpenMpiUcx => "openmpi-ucx",
            Self::OursTcp => "ours-tcp",
            Self::OursTcpInline => "ours-tcp-inline",
        }
    }

    pub(super) const fn is_ours(self) -> bool {
        matches!(
            self,
            Self::Ours | Self::OursInline | Self::OursTcp | Self::OursTcpInline
        )
    }

    /// Returns the contestant for which the programs of this one are built.
    const fn library(self) -> Self {
        match self {
            Self::MpichTcp => Self::Mpich,
            Self::OpenMpiTcp | Self::OpenMpiUcx | Self::Fftw => Self::OpenMpi,
            _ => self,
        }
    }

    /// Returns true if the MPI library's compiler and launcher are there.
    pub(super) fn is_installed(self) -> bool {
        ["mpicc", "mpiexec"]
            .iter()
            .all(|program| on_path(&format!("{program}.{}", self.name())))
    }

    /// Returns the command of this contestant for a job; `None` if it takes no part in it.
    pub(super) fn command(self, job: &CompareJob, paths: &ComparePaths) -> Option<Command> {
        match self {
            Self::Line => Some(Command::new(paths.peer_program("line", self))),
            Self::Sockets => {
                let mut command = Command::new(paths.peer_program("sockets", self));
                command.args(&job.peer_args);
                if job.between_hosts {
                    command.args(between_hosts::SOCKETS);
                }
                Some(command)
            }
            Self::PlainSsh => Some(between_hosts::plain_ssh(job)),
            Self::Ours | Self::OursInline | Self::OursTcp | Self::OursTcpInline => {
                let mut command = our_command(job, paths);
                command.envs(self.our_settings().iter().copied());
                if job.between_hosts {
                    command.env("RIPSTOP_TCP_IFACE", between_hosts::INTERFACE);
                    if job.one_core {
                        // Ranks of other hosts have other processors as a rule, so it is worth spinning for them.
                        command.env("RIPSTOP_SPIN_US_MAX", "0");
                    }
                }
                if job.per_host > 1 {
                    command.env("RIPSTOP_FABRIC", "shm+tcp");
                }
                Some(command)
            }
            _ => self.peer_command(job, paths),
        }
    }

    const fn our_settings(self) -> &'static [(&'static str, &'static str)] {
        const INLINE: (&str, &str) = ("RIPSTOP_PROGRESS", "inline");
        const TCP: (&str, &str) = ("RIPSTOP_FABRIC", "tcp");
        const LOOPBACK: (&str, &str) = ("RIPSTOP_TCP_IFACE", tcp_peers::LOOPBACK);
        match self {
            Self::OursInline => &[INLINE],
            Self::OursTcp => &[TCP, LOOPBACK],
            Self::OursTcpInline => &[TCP, LOOPBACK, INLINE],
            _ => &[],
        }
    }

    fn peer_command(self, job: &CompareJob, paths: &ComparePaths) -> Option<Command> {
        let program = job.peer_program?;
        let library = self.library();
        let mut command = Command::new(format!("mpiexec.{}", library.name()));
        let bound = usize::try_from(job.ranks).is_ok_and(|ranks| ranks <= cores());
        match (library, bound) {
            (Self::Mpich, _) if job.between_hosts => between_hosts::use_hydra(&mut command, job),
            (_, _) if job.between_hosts => between_hosts::use_openmpi(&mut command, job),
            (Self::Mpich, true) => command.args(["-bind-to", "core"]),
            (Self::OpenMpi, true) => command.args(["--bind-to", "core"]),
            (Self::OpenMpi, false) => command.args(["--oversubscribe", "--bind-to", "none"]),
            _ => &mut command,
        };
        // Without these options, Open MPI refuses to start for root, as in a container.
        command
            .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
            .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
        if let Some(Ok(options)) = paths.tcp_way(self) {
            let interface = if job.between_hosts {
                between_hosts::INTERFACE
            } else {
                tcp_peers::LOOPBACK
            };
            options.apply(&mut command, interface, job.per_host > 1);
        }
        command.args(["-n", &job.ranks.to_string()]);
        if job.between_hosts {
            command.arg("sh").args(between_hosts::on_own_core(job));
        }
        command
            .arg(paths.peer_program(program, self))
            .args(&job.peer_args);
        Some(command)
    }
}

fn our_command(job: &CompareJob, paths: &ComparePaths) -> Command {
    if job.between_hosts {
        return our_command_between_hosts(job, paths);
    }
    let mut command = if job.one_core {
        let mut command = Command::new("taskset");
        command.args(["-c", "0"]).arg(&paths.ripstop);
        command
    } else {
        Command::new(&paths.ripstop)
    };
    command.args(["run", "-n", &job.ranks.to_string(), "--bind", job.bind()]);
    command.args(job.our_launch);
    match job.ours {
        OwnProgram::Perf => command.arg(&paths.ripstop).args(["--", "perf"]),
        OwnProgram::Example(name) => command.arg(paths.example(name)).arg("--"),
    };
    command.args(&job.our_args);
    command
}

fn our_command_between_hosts(job: &CompareJob, paths: &ComparePaths) -> Command {
    let mut command = Command::new(&paths.ripstop);
    command.args([
        "run",
        "--hosts",
        &between_hosts::hosts(job),
        "--bind",
        "none",
    ]);
    command
        .args(job.our_launch)
        .args(["sh", "--"])
        .args(between_hosts::on_own_core(job));
    match job.ours {
        OwnProgram::Perf => command.arg(&paths.ripstop).arg("perf"),
        OwnProgram::Example(name) => command.arg(paths.example(name)),
    };
    command.args(&job.our_args);
    command
}

/// Paths of sources, built peers and Ripstop's own binaries.
#[derive(Debug)]
pub(super) struct ComparePaths {
    workspace: PathBuf,
    sources: PathBuf,
    built: PathBuf,
    optimized: PathBuf,
    ripstop: PathBuf,
    /// Found when the first contestant asks, because it starts programs of the libraries.
    tcp: LazyLock<TcpPeers>,
}

impl ComparePaths {
    pub(super) fn find(workspace: &Path) -> Self {
        let target =
            env::var_os("CARGO_TARGET_DIR").map_or_else(|| workspace.join("target"), PathBuf::from);
        // Absolute paths, because contestants are started in another folder than the shell that set a relative one.
        let target = std::path::absolute(&target).unwrap_or(target);
        let optimized = target.join(MEASURED_PROFILE);
        Self {
            workspace: workspace.to_owned(),
            sources: workspace.join("benches/compare"),
            built: target.join("compare"),
            ripstop: optimized.join("ripstop"),
            optimized,
            tcp: LazyLock::new(TcpPeers::find),
        }
    }

    /// Returns how a contestant uses TCP by an MPI library; `None` if it is none of those.
    pub(super) fn tcp_way(&self, who: Contestant) -> Option<&TcpWay> {
        match who {
            Contestant::MpichTcp | Contestant::OpenMpiTcp | Contestant::OpenMpiUcx => {
                self.tcp.of(who)
            }
            _ => None,
        }
    }

    fn peer_program(&self, program: &str, who: Contestant) -> PathBuf {
        self.built
            .join(format!("{program}-{}", who.library().name()))
    }

    fn example(&self, name: &str) -> PathBuf {
        self.optimized.join("examples").join(name)
    }

    /// Describes what is missing for a contestant in a job.
    pub(super) fn not_built(&self, who: Contestant, job: &CompareJob) -> Option<String> {
        if let Some(Err(reason)) = self.tcp_way(who) {
            return Some(reason.clone());
        }
        match who {
            _ if who.is_ours() => self.ours_not_built(job),
            Contestant::Fftw if !self.peer_program(FFTW, who).exists() => {
                Some("not built: apt-get install libfftw3-dev libfftw3-mpi-dev".to_owned())
            }
            _ => {
                let (program, library) = peer_program_of(job, who)?;
                let is_missing = !self.peer_program(program, library).exists();
                let name = library.name();
                is_missing.then(|| {
                    format!("not built yet: {program}.c for {name}; a comparison without --built compiles it")
                })
            }
        }
    }

    fn ours_not_built(&self, job: &CompareJob) -> Option<String> {
        match job.ours.example() {
            Some(name) if !self.example(name).exists() => {
                Some(format!("not built yet: example {name}"))
            }
            _ if !self.ripstop.exists() => Some("not built yet: the ripstop command".to_owned()),
            _ => None,
        }
    }
}

/// Returns the number of cores that this process may use.
pub(super) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Returns an error with the command to install the peers if they are missing. Nothing is ever installed here.
///
/// Jobs over TCP do without a library that is missing, and say so in the table.
pub(super) fn require_peers(jobs: &[CompareJob]) -> Result<(), String> {
    let mut needed = vec!["cc"];
    if jobs.iter().any(|job| job.group != tcp::GROUP) {
        needed.extend([
            "mpicc.mpich",
            "mpiexec.mpich",
            "mpicc.openmpi",
            "mpiexec.openmpi",
        ]);
    }
    let missing: Vec<_> = needed
        .into_iter()
        .filter(|program| !on_path(program))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(format!(
        "the comparison needs Debian's MPICH and Open MPI; not found: {}. Install them with\n\n    \
         apt-get install gcc mpich libmpich-dev openmpi-bin libopenmpi-dev\n",
        missing.join(", ")
    ))
}

pub(super) fn on_path(program: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// Compiles the C programs of these jobs, each with the compiler of the peer that runs it, if that is installed.
pub(super) fn build_peers(paths: &ComparePaths, jobs: &[CompareJob]) -> Result<(), String> {
    std::fs::create_dir_all(&paths.built)
        .map_err(|error| format!("cannot create {}: {error}", paths.built.display()))?;
    for (program, who) in programs_of(jobs) {
        let compiler = match who {
            Contestant::Line | Contestant::Sockets => "cc".to_owned(),
            _ if who.is_installed() => format!("mpicc.{}", who.name()),
            _ => continue,
        };
        if program != FFTW {
            let libraries: &[&str] = if program == threads::PROGRAM {
                &["-pthread"]
            } else {
                &[]
            };
            compile(&compiler, program, who, paths, libraries)?;
            continue;
        }
        // Without FFTW, only one comparison is missing, and its row says what to install.
        let libraries = ["-lfftw3_mpi", "-lfftw3"];
        match compile(&compiler, program, who, paths, &libraries) {
            Err(message) if !message.contains("fftw3-mpi.h") => report::print_note(&message),
            _ => {}
        }
    }
    Ok(())
}

/// Returns the C programs of these jobs, each with the contestant for which it is compiled.
fn programs_of(jobs: &[CompareJob]) -> BTreeSet<(&'static str, Contestant)> {
    let programs = jobs.iter().flat_map(|job| {
        let contestants = job.contestants.iter();
        contestants.filter_map(move |&who| peer_program_of(job, who))
    });
    programs.collect()
}

/// Returns the C program that a contestant runs in a job, and the contestant for which it is compiled; `None` if it runs none.
fn peer_program_of(job: &CompareJob, who: Contestant) -> Option<(&'static str, Contestant)> {
    match who {
        Contestant::Line => Some(("line", who)),
        Contestant::Sockets => Some(("sockets", who)),
        Contestant::PlainSsh => None,
        _ if who.is_ours() => None,
        _ => Some((job.peer_program?, who.library())),
    }
}

/// The program that is linked with FFTW.
const FFTW: &str = "fftw";

/// Options that are the same for all. No `-march`, because rustc builds for the baseline of the architecture too.
///
/// The last option silences a false alarm that MPICH's `MPI_STATUSES_IGNORE`, an invented address, provokes.
const C_FLAGS: [&str; 6] = [
    "-std=c11",
    "-D_GNU_SOURCE",
    "-O3",
    "-Wall",
    "-Wextra",
    "-Wno-stringop-overflow",
];

fn compile(
    compiler: &str,
    program: &str,
    who: Contestant,
    paths: &ComparePaths,
    libraries: &[&str],
) -> Result<(), String> {
    let source = paths.sources.join(format!("{program}.c"));
    let output = Command::new(compiler)
        .args(C_FLAGS)
        .arg(&source)
        .arg("-o")
        .arg(paths.peer_program(program, who))
        .args(libraries)
        .arg("-lm")
        .output()
        .map_err(|error| format!("cannot start {compiler}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let message = String::from_utf8_lossy(&output.stderr);
    Err(format!(
        "{compiler} does not compile {}:\n{message}",
        source.display()
    ))
}

/// Builds the command, and the examples that these jobs run. An error is the reason why Ripstop has no figures.
pub(super) fn build_ours(paths: &ComparePaths, jobs: &[CompareJob]) -> Result<(), String> {
    let examples: BTreeSet<_> = jobs.iter().filter_map(|job| job.ours.example()).collect();
    let examples = examples.iter().flat_map(|name| ["--example", name]);
    let words = [
        "build",
        "--profile",
        MEASURED_PROFILE,
        "--package",
        "ripstop",
        "--features",
        "cli,examples",
        "--bins",
    ];
    let words: Vec<&str> = words.into_iter().chain(examples).collect();
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .current_dir(&paths.workspace)
        .args(&words)
        .arg("--quiet")
        .stdin(Stdio::null())
        .status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(_) => Err(format!("not built yet: `cargo {}` fails", words.join(" "))),
        Err(error) => Err(format!("not built yet: cannot start cargo: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::{Contestant, FFTW, programs_of};
    use crate::compare::figures::job_catalog;

    #[test]
    fn only_the_programs_that_the_chosen_rows_need_are_compiled() {
        let of = |only: &str| programs_of(&job_catalog(&[only.to_owned()], &[], true).unwrap());
        let tcp = of("tcp");
        for needed in [
            ("sockets", Contestant::Sockets),
            ("p2p", Contestant::Mpich),
            ("startup", Contestant::OpenMpi),
        ] {
            assert!(tcp.contains(&needed), "{needed:?}");
        }
        assert!(tcp.iter().all(|(program, _)| *program != FFTW));
        let p3dfft = of("p3dfft");
        assert_eq!(p3dfft, [(FFTW, Contestant::OpenMpi)].into());
    }
}
