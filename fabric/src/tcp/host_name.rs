//! Name of a rank's host, for the errors of its peers. It travels with the rank's address, and is never resolved.

use std::fmt;

/// A host name, or nothing if the host has none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct HostName(String);

impl HostName {
    /// Returns the name of this host. Characters that no host name has are left out.
    pub(super) fn own() -> Self {
        let system = rustix::system::uname();
        Self::from_system(system.nodename().to_bytes())
    }

    fn from_system(name: &[u8]) -> Self {
        let kept = name.iter().filter(|byte| is_allowed(**byte));
        Self(kept.map(|byte| char::from(*byte)).take(HOST_MAX).collect())
    }

    /// Reads a name. Returns none for bytes that no [`as_bytes`](Self::as_bytes) returns, so errors and logs show nothing else.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let name = Self::from_system(bytes);
        (name.as_bytes() == bytes).then_some(name)
    }

    /// Returns the name as bytes, at most [`HOST_MAX`].
    pub(super) const fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl fmt::Display for HostName {
    /// Writes the name behind that of a rank, as ` on host h2`. Writes nothing if there is no name.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return Ok(());
        }
        write!(f, " on host {}", self.0)
    }
}

const fn is_allowed(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_')
}

/// Most bytes of a name. No name of a Linux host is longer.
pub(super) const HOST_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{HOST_MAX, HostName};

    #[test]
    fn a_name_is_shown_without_what_no_name_has() {
        let shown = |name: &str| HostName::from_system(name.as_bytes()).to_string();
        assert_eq!(shown("node-17.cluster"), " on host node-17.cluster");
        assert_eq!(shown("a\u{1b}[31m b\n"), " on host a31mb");
        assert_eq!(shown(""), "");
        assert_eq!(
            HostName::from_system(&[b'x'; 300]).as_bytes().len(),
            HOST_MAX
        );
    }

    proptest! {
        #[test]
        fn hostile_bytes_are_a_plain_name_or_none(bytes in prop::collection::vec(any::<u8>(), 0..=HOST_MAX + 1)) {
            if let Some(name) = HostName::decode(&bytes) {
                prop_assert_eq!(name.as_bytes(), bytes);
                prop_assert!(name.to_string().bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic()));
            }
        }
    }
}
