//! What a helper is told before it starts ranks: everything that does not fit into its constant command line.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::time::Duration;

use super::RANKS_MAX;
use super::frame::payload::{PayloadReader, PayloadWriter};
use crate::run::CpuBinding;

/// The ranks of one host, and what all ranks of the job have in common.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::run) struct NodeSetup {
    /// Number of ranks of the job.
    pub(in crate::run) size: u32,
    /// The ranks of this host, in ascending order; at least one.
    pub(in crate::run) ranks: Vec<u32>,
    /// Name of the key space of PMI.
    pub(in crate::run) space: String,
    /// The value of `PMI_process_mapping`.
    pub(in crate::run) mapping: String,
    pub(in crate::run) binding: Option<CpuBinding>,
    /// The CPUs of each of `ranks`, in ascending order; none for a rank that is bound to no CPUs in particular. The list is
    /// empty if that is so for all ranks, and then `binding` decides.
    pub(in crate::run) cpus: Vec<Vec<u32>>,
    /// Time after which a silent launcher is considered gone.
    pub(in crate::run) patience: Duration,
    pub(in crate::run) directory: PathBuf,
    /// The programs of the job, in the order of their ranks. The first one has rank 0.
    pub(in crate::run) programs: Vec<HostProgram>,
    pub(in crate::run) environment: Vec<(OsString, OsString)>,
}

/// A program of a job over hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::run) struct HostProgram {
    /// The lowest rank that runs it. The ranks up to the first of the next program run it too.
    pub(in crate::run) first: u32,
    /// The program as the user named it.
    pub(in crate::run) program: OsString,
    pub(in crate::run) arguments: Vec<OsString>,
}

impl NodeSetup {
    /// Returns the index of the program that a rank runs.
    pub(in crate::run) fn program_of(&self, rank: u32) -> usize {
        let begun = self
            .programs
            .partition_point(|program| program.first <= rank);
        begun - 1 // The first program has rank 0.
    }

    pub(in crate::run) fn encode(&self) -> Vec<u8> {
        let mut bytes = PayloadWriter::default();
        bytes.number(self.size);
        let ranks = PayloadWriter::default();
        let ranks = self.ranks.iter().fold(ranks, |mut ranks, &rank| {
            ranks.number(rank);
            ranks
        });
        bytes.text(&ranks.bytes);
        let mut cpus = PayloadWriter::default();
        for of_rank in &self.cpus {
            cpus.number(u32::try_from(of_rank.len()).unwrap_or(u32::MAX));
            of_rank.iter().for_each(|&cpu| cpus.number(cpu));
        }
        bytes.text(&cpus.bytes);
        bytes.text(self.space.as_bytes());
        bytes.text(self.mapping.as_bytes());
        bytes.byte(match self.binding {
            None => 0,
            Some(CpuBinding::Core) => 1,
            Some(CpuBinding::None) => 2,
        });
        bytes.number(u32::try_from(self.patience.as_millis()).unwrap_or(u32::MAX));
        bytes.text(self.directory.as_os_str().as_bytes());
        bytes.number(u32::try_from(self.programs.len()).unwrap_or(u32::MAX));
        for program in &self.programs {
            program.encode_into(&mut bytes);
        }
        for (name, value) in &self.environment {
            bytes.text(name.as_bytes());
            bytes.text(value.as_bytes());
        }
        bytes.bytes
    }

    /// Returns the setup in `bytes`, or `None` if they are not a valid setup.
    pub(in crate::run) fn parse(bytes: &[u8]) -> Option<Self> {
        let mut bytes = PayloadReader::new(bytes);
        let size = bytes.number()?;
        let ranks = PayloadReader::new(bytes.text()?).list(PayloadReader::number)?;
        let cpus = PayloadReader::new(bytes.text()?).list(|bytes| {
            let count = bytes.number()?;
            (0..count)
                .map(|_| bytes.number())
                .collect::<Option<Vec<_>>>()
        })?;
        let in_order = ranks.is_sorted_by(|first, second| first < second);
        let last = *ranks.last()?;
        let is_bound = cpus.is_empty() || cpus.len() == ranks.len();
        if size > RANKS_MAX || !in_order || last >= size || !is_bound {
            return None;
        }
        Some(Self {
            size,
            ranks,
            cpus,
            space: bytes.string()?,
            mapping: bytes.string()?,
            binding: match bytes.byte()? {
                0 => None,
                1 => Some(CpuBinding::Core),
                2 => Some(CpuBinding::None),
                _ => return None,
            },
            patience: Duration::from_millis(u64::from(bytes.number()?)),
            directory: os(bytes.text()?).into(),
            programs: {
                let count = bytes.number()?;
                let programs = (0..count).map(|_| HostProgram::parse_from(&mut bytes));
                let programs: Vec<HostProgram> = programs.collect::<Option<_>>()?;
                let in_order = programs.is_sorted_by(|one, next| one.first < next.first);
                let has_all = programs.first().is_some_and(|first| first.first == 0);
                (in_order && has_all).then_some(programs)?
            },
            environment: bytes.list(|bytes| Some((os(bytes.text()?), os(bytes.text()?))))?,
        })
    }
}

impl HostProgram {
    fn encode_into(&self, bytes: &mut PayloadWriter) {
        bytes.number(self.first);
        bytes.text(self.program.as_bytes());
        bytes.number(u32::try_from(self.arguments.len()).unwrap_or(u32::MAX));
        let arguments = self.arguments.iter();
        arguments.for_each(|argument| bytes.text(argument.as_bytes()));
    }

    fn parse_from(bytes: &mut PayloadReader<'_>) -> Option<Self> {
        Some(Self {
            first: bytes.number()?,
            program: os(bytes.text()?),
            arguments: {
                let count = bytes.number()?;
                let arguments = (0..count).map(|_| bytes.text().map(os));
                arguments.collect::<Option<_>>()?
            },
        })
    }
}

/// Returns true for a variable that every rank of a job gets from the launcher. The others belong to a host, a login, or to
/// the job of another launcher.
pub(in crate::run) fn is_passed_on(name: &OsStr) -> bool {
    let is_own = is_own(name);
    let name = name.as_bytes();
    let is_bound = HOST_BOUND.iter().any(|bound| name == bound.as_bytes());
    let of_others = FOREIGN
        .iter()
        .any(|prefix| name.starts_with(prefix.as_bytes()));
    !is_own && !is_bound && !of_others
}

/// Returns true for a variable that a rank has from its own host.
pub(in crate::run) fn is_own(name: &OsStr) -> bool {
    OWN.iter().any(|own| name == *own)
}

fn os(bytes: &[u8]) -> OsString {
    OsString::from_vec(bytes.to_vec())
}

/// The longest setup that a helper accepts, in bytes. Linux allows 6 MiB of arguments and environment.
pub(in crate::run) const SETUP_MAX: usize = 8 << 20;

const HOST_BOUND: &[&str] = &["DISPLAY", "PWD", "OLDPWD", "SHLVL", "_", "WINDOWID"];

const OWN: &[&str] = &[
    "HOSTNAME",
    "HOST",
    "TMPDIR",
    "KRB5CCNAME",
    "XDG_RUNTIME_DIR",
];

const FOREIGN: &[&str] = &[
    "SSH_",
    "XDG_",
    "DBUS_",
    "SLURM_",
    "PBS_",
    "LSB_",
    "PE_",
    "FLUX_",
    "PALS_",
    "PMI_",
    "PMIX_",
    "OMPI_",
    "MPI_LOCAL",
    "MV2_COMM_WORLD_",
    "RIPSTOP_LAUNCHER",
];

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::{any, prop_assert_eq, proptest};

    use super::*;

    fn setup(words: Vec<Vec<u8>>) -> NodeSetup {
        let words: Vec<OsString> = words.into_iter().map(OsString::from_vec).collect();
        NodeSetup {
            size: 9,
            ranks: vec![2, 3, 7],
            space: "s".to_owned(),
            mapping: "(vector,(0,1,9))".to_owned(),
            binding: Some(CpuBinding::Core),
            cpus: vec![vec![0, 5], vec![], vec![1023]],
            patience: Duration::from_secs(10),
            directory: "/".into(),
            environment: words
                .iter()
                .map(|word| (word.clone(), "x".into()))
                .collect(),
            programs: vec![program(0, words.clone()), program(3, words)],
        }
    }

    fn program(first: u32, arguments: Vec<OsString>) -> HostProgram {
        HostProgram {
            first,
            program: "sh".into(),
            arguments,
        }
    }

    #[test]
    fn a_rank_runs_the_last_program_that_begins_before_it() {
        let mut setup = setup(vec![]);
        let programs: Vec<_> = (0..5).map(|rank| setup.program_of(rank)).collect();
        assert_eq!(programs, [0, 0, 0, 1, 1]);
        for firsts in [vec![], vec![1], vec![0, 3, 3], vec![0, 3, 2]] {
            setup.programs = firsts.iter().map(|&at| program(at, vec![])).collect();
            assert_eq!(NodeSetup::parse(&setup.encode()), None, "{firsts:?}");
        }
    }

    #[test]
    fn ranks_that_cannot_be_are_refused() {
        for (size, ranks) in [
            (9, vec![]),
            (9, vec![9]),
            (9, vec![3, 2]),
            (9, vec![2, 2]),
            (9000, vec![0]),
        ] {
            let wrong = NodeSetup {
                size,
                cpus: vec![Vec::new(); ranks.len()],
                ranks,
                ..setup(vec![])
            };
            assert_eq!(NodeSetup::parse(&wrong.encode()), None, "{wrong:?}");
        }
    }

    #[test]
    fn variables_of_a_host_or_of_another_launcher_stay_behind() {
        for name in [
            "PATH",
            "HOME",
            "OMP_NUM_THREADS",
            "RIPSTOP_FABRIC",
            "PMINFO",
        ] {
            assert!(is_passed_on(OsStr::new(name)), "{name}");
        }
        for name in [
            "HOSTNAME",
            "SSH_AUTH_SOCK",
            "SLURM_PROCID",
            "PALS_RANKID",
            "PMI_RANK",
            "TMPDIR",
            "_",
        ] {
            assert!(!is_passed_on(OsStr::new(name)), "{name}");
        }
    }

    proptest! {
        #[test]
        fn a_setup_comes_back_whole_or_not_at_all(words in vec(vec(any::<u8>(), 0..9), 0..5), at in any::<usize>()) {
            let setup = setup(words);
            let bytes = setup.encode();
            prop_assert_eq!(NodeSetup::parse(&bytes), Some(setup));
            let cut = NodeSetup::parse(&bytes[..at % bytes.len()]);
            prop_assert_eq!(cut.filter(|cut| cut.encode() == bytes), None);
        }

        #[test]
        fn any_bytes_are_parsed_or_refused(mut bytes in vec(any::<u8>(), 0..99), at in any::<usize>(), to in any::<u8>()) {
            let _ = NodeSetup::parse(&bytes);
            bytes = setup(vec![bytes]).encode();
            let length = bytes.len();
            bytes[at % length] = to;
            let _ = NodeSetup::parse(&bytes);
        }
    }
}
