//! Names of the ranks' hosts, for errors about these ranks. They travel with the ranks' addresses, and are never resolved.

use std::{fmt, sync::OnceLock};

use ripstop_fabric::{offers::RECORD_MAX, shm::Board};

use super::BootError;
use crate::group::WorldRank;

/// A host name, or nothing if the host has none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct HostName(Box<str>);

/// The host of each rank of a job. Nothing is known before the addresses of all ranks have arrived, or if none are exchanged
/// because all ranks share memory.
#[derive(Debug, Default)]
pub(crate) struct JobHosts(OnceLock<Vec<HostName>>);

impl HostName {
    /// Returns the name of this host.
    pub(crate) fn own() -> Self {
        let system = rustix::system::uname();
        Self::from_system(system.nodename().to_bytes())
    }

    /// Bytes that could spoil a terminal or a log are shown as `?`, and a long name is cut.
    fn from_system(name: &[u8]) -> Self {
        let shown = name.iter().take(HOST_MAX).map(|byte| match byte {
            byte if byte.is_ascii_graphic() => char::from(*byte),
            _ => '?',
        });
        Self(shown.collect())
    }

    /// Returns what a rank on this host publishes: the host, and behind it the rank's address.
    ///
    /// | bytes | meaning |
    /// |---|---|
    /// | 1 | format |
    /// | 1, n | length of the name, at most 64, and the name |
    /// | the rest | address |
    pub(crate) fn with_address(&self, address: &[u8]) -> Vec<u8> {
        let len = u8::try_from(self.0.len()).unwrap_or(u8::MAX);
        [&[FORMAT, len], self.0.as_bytes(), address].concat()
    }

    /// Splits what a rank has published. Returns `None` for anything that [`with_address`](Self::with_address) does not return.
    fn split(published: &[u8]) -> Option<(Self, &[u8])> {
        let (&[FORMAT, len], rest) = published.split_first_chunk()? else {
            return None;
        };
        let (bytes, address) = rest.split_at_checked(len.into())?;
        let name = Self::from_system(bytes);
        (name.0.as_bytes() == bytes && !address.is_empty()).then_some((name, address))
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl JobHosts {
    /// Keeps the hosts of all ranks of the job, and returns the ranks' addresses. `published` is in rank order.
    ///
    /// # Errors
    /// A rank has published something else.
    pub(crate) fn take_names(&self, published: &[Vec<u8>]) -> Result<Vec<Vec<u8>>, BootError> {
        let ranks = (0..).zip(published).map(|(rank, bytes)| {
            let unreadable = BootError::Unreadable { rank };
            HostName::split(bytes).ok_or(unreadable)
        });
        let (hosts, addresses) = ranks
            .map(|split| split.map(|(host, address)| (host, address.to_vec())))
            .collect::<Result<(Vec<_>, Vec<_>), _>>()?;
        // The exchange is made once.
        let _ = self.0.set(hosts);
        Ok(addresses)
    }

    /// Returns the name of a rank's host, if it is known.
    pub(crate) fn of(&self, WorldRank(rank): WorldRank) -> Option<String> {
        let host = self.0.get()?.get(rank as usize)?;
        (!host.0.is_empty()).then(|| host.to_string())
    }

    /// Returns what errors call a rank: its number, and its host if that is known.
    pub(crate) fn called(&self, rank: WorldRank) -> String {
        let host = self.of(rank);
        let host = host.map_or_else(String::new, |host| format!(" on host {host}"));
        format!("rank {rank}{host}")
    }
}

/// Most bytes of a name. No name of a Linux host is longer.
const HOST_MAX: usize = 64;
/// What a rank of another build publishes most likely has another first byte.
const FORMAT: u8 = 0xb1;
/// Most bytes that a rank publishes beside its address.
const HOST_LEN_MAX: usize = 2 + HOST_MAX;

const _: () = assert!(
    HOST_LEN_MAX + RECORD_MAX <= Board::NOTE_MAX,
    "a note on the board has room for a host and for the addresses in all networks"
);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{FORMAT, HOST_LEN_MAX, HOST_MAX, HostName, JobHosts};
    use crate::group::WorldRank;

    #[test]
    fn a_name_is_shown_without_what_could_spoil_a_terminal() {
        let shown = |name: &[u8]| HostName::from_system(name).to_string();
        assert_eq!(shown(b"node-17.cluster"), "node-17.cluster");
        assert_eq!(shown(b"a\x1b[31m b\n\xff"), "a?[31m?b??");
        assert_eq!(shown(&[b'x'; 300]), "x".repeat(HOST_MAX));
    }

    #[test]
    fn the_hosts_of_all_ranks_are_known_after_the_exchange() {
        let published = [&b"h1"[..], &[b'y'; HOST_MAX], b""]
            .map(|name| HostName::from_system(name).with_address(b"address"));
        assert_eq!(published[1].len(), HOST_LEN_MAX + 7);
        let hosts = JobHosts::default();
        assert_eq!(hosts.of(WorldRank(0)), None);
        let addresses = hosts.take_names(&published).unwrap();
        assert_eq!(addresses, [b"address"; 3].map(|address| address.to_vec()));
        let known = [0, 1, 2, 3].map(|rank| hosts.of(WorldRank(rank)));
        let [first, second] = ["h1".to_owned(), "y".repeat(HOST_MAX)];
        assert_eq!(known, [Some(first), Some(second), None, None]);
        assert_eq!(hosts.called(WorldRank(0)), "rank 0 on host h1");
        assert_eq!(hosts.called(WorldRank(2)), "rank 2");
    }

    #[test]
    fn what_no_rank_publishes_is_refused_with_the_rank() {
        let good = HostName::from_system(b"h1").with_address(b"a");
        for bad in [
            &b""[..],
            &[FORMAT],
            &[FORMAT ^ 1, 2, b'h', b'1', b'a'],
            &[FORMAT, 2, b'h', b'1'],
            &[FORMAT, 3, b'h', b'1'],
            &[FORMAT, 2, b'h', 0x1b, b'a'],
            &[&[FORMAT, 65][..], &[b'x'; 66]].concat(),
        ] {
            let published = [good.clone(), bad.to_vec()];
            let why = JobHosts::default().take_names(&published).unwrap_err();
            assert!(why.to_string().contains("rank 1 "), "{why}");
        }
    }

    proptest! {
        #[test]
        fn hostile_bytes_are_refused_or_a_plain_name(bytes in prop::collection::vec(any::<u8>(), 0..90), begun in any::<bool>()) {
            let bytes = if begun { [&[FORMAT][..], &bytes].concat() } else { bytes };
            if let Some((host, address)) = HostName::split(&bytes) {
                prop_assert_eq!(host.with_address(address), bytes);
                prop_assert!(host.to_string().bytes().all(|byte| byte.is_ascii_graphic()));
            }
        }
    }
}
