//! Where a process and the other ranks of its node can find each other to share memory.
//!
//! Ranks in containers of one host share memory if one can ask the other for its descriptors (see `handover`): under `/proc`, in
//! a network namespace that both are in, or in a directory that both have. Without any of these, they are like ranks of
//! different nodes, whatever their launcher says.

use std::{
    fmt,
    fs::Metadata,
    hash::{DefaultHasher, Hash, Hasher},
    os::unix::fs::MetadataExt,
};

use super::{
    handover::socket_folders,
    namespaces::{self, ProcessNamespaces},
};

/// The places at which a process can meet others: numbers that are equal where the places are the same.
///
/// As text, it is at most 60 characters long, without spaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeetingPlaces {
    /// The process's namespaces, if others in them can open its descriptors under `/proc`.
    processes: Option<u32>,
    /// Network namespace and folders, at most [`SOCKETS_MAX`].
    sockets: Vec<u32>,
}

impl MeetingPlaces {
    /// Returns the places of this process.
    #[must_use]
    pub fn own() -> Self {
        let kernel = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let ProcessNamespaces { user, pid } = ProcessNamespaces::own();
        let is_open = user != 0 && pid != 0 && namespaces::is_dumpable();
        let place = |found: Metadata| digest((&kernel, found.dev(), found.ino()));
        let network = std::fs::metadata("/proc/self/ns/net").into_iter();
        let folders = socket_folders().filter_map(|folder| std::fs::metadata(folder).ok());
        Self {
            processes: is_open.then(|| digest((&kernel, user, pid))),
            sockets: network
                .chain(folders)
                .take(SOCKETS_MAX)
                .map(place)
                .collect(),
        }
    }

    /// Returns the places of this process if it is in namespaces of its own. Processes in the system's initial namespaces find
    /// each other in any case.
    #[must_use]
    pub fn of_contained_process() -> Option<Self> {
        (!ProcessNamespaces::own().are_first()).then(Self::own)
    }

    /// Parses the text of a value. Returns `None` for other text.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (processes, sockets) = text.split_once('-')?;
        let number = |digits: &str| u32::from_str_radix(digits, 16).ok();
        let processes = match processes {
            "" => None,
            digits => Some(number(digits)?),
        };
        let sockets: Vec<u32> = match sockets {
            "" => Vec::new(),
            list => list.split('.').map(number).collect::<Option<_>>()?,
        };
        (sockets.len() <= SOCKETS_MAX).then_some(Self { processes, sockets })
    }

    /// Returns true if processes that have these places can share memory.
    #[must_use]
    pub fn meet(&self, other: &Self) -> bool {
        let in_proc = self.processes.is_some() && self.processes == other.processes;
        in_proc || self.sockets.iter().any(|one| other.sockets.contains(one))
    }
}

impl fmt::Display for MeetingPlaces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(processes) = self.processes {
            write!(f, "{processes:x}")?;
        }
        f.write_str("-")?;
        for (nth, place) in self.sockets.iter().enumerate() {
            let dot = if nth == 0 { "" } else { "." };
            write!(f, "{dot}{place:x}")?;
        }
        Ok(())
    }
}

/// Shortens what names a place, so that many ranks can publish theirs. All ranks run the same build, so they get the same
/// numbers.
fn digest(place: impl Hash) -> u32 {
    let mut hasher = DefaultHasher::new();
    place.hash(&mut hasher);
    let [low, high] =
        [0, 32].map(|shift| u32::try_from(hasher.finish() >> shift & u64::from(u32::MAX)));
    low.unwrap_or_default() ^ high.unwrap_or_default()
}

/// The network namespace, and three folders.
const SOCKETS_MAX: usize = 4;

#[cfg(test)]
mod tests {
    use super::MeetingPlaces;

    #[test]
    fn a_process_meets_itself_through_its_text() {
        let own = MeetingPlaces::own();
        let text = own.to_string();
        assert!(text.len() <= 60 && !text.contains(' '), "{text}");
        let read = MeetingPlaces::parse(&text).unwrap();
        assert_eq!(read, own);
        assert!(own.meet(&read));
    }

    #[test]
    fn one_common_place_is_enough() {
        let places = |text| MeetingPlaces::parse(text).unwrap();
        let one = places("a-1.2.3");
        for (other, meet) in [
            ("a-", true),
            ("a-4.5", true),
            ("b-9.3", true),
            ("-2", true),
            ("b-4.5", false),
            ("-a", false),
            ("-", false),
        ] {
            let other = places(other);
            assert_eq!(
                (one.meet(&other), other.meet(&one)),
                (meet, meet),
                "{other}"
            );
        }
        assert!(
            !places("-").meet(&places("-")),
            "nothing is no common place"
        );
    }

    #[test]
    fn other_text_is_refused() {
        for text in ["", "a", "g-1", "1-x", "1-2.", "1-1.2.3.4.5", "123456789-"] {
            assert_eq!(MeetingPlaces::parse(text), None, "{text}");
        }
    }
}
