//! Names that say nothing about a site, in place of hosts, users, paths and addresses.

use std::{collections::BTreeMap, net::IpAddr};

/// Replaces names in texts. Equal names get equal pseudonyms, so that a report stays readable.
#[derive(Debug, Default)]
pub(super) struct SitePseudonyms {
    /// Words that are replaced wherever they stand alone, with the kind of each.
    known: BTreeMap<String, &'static str>,
    given: BTreeMap<String, String>,
    counts: BTreeMap<&'static str, u32>,
}

impl SitePseudonyms {
    /// Replaces this word in all texts. An empty word replaces nothing.
    pub(super) fn hide(&mut self, word: &str, kind: &'static str) {
        if !word.is_empty() {
            self.known.insert(word.to_owned(), kind);
        }
    }

    /// Returns the text with pseudonyms.
    pub(super) fn replace_in(&mut self, text: &str) -> String {
        let mut rest = text;
        let mut replaced = String::with_capacity(text.len());
        while let Some(start) = rest.find(is_of_name) {
            let (before, from) = rest.split_at(start);
            let end = from
                .find(|letter| !is_of_name(letter))
                .unwrap_or(from.len());
            let (word, after) = from.split_at(end);
            replaced += before;
            replaced += &self.replaced(word);
            rest = after;
        }
        replaced + rest
    }

    fn replaced(&mut self, word: &str) -> String {
        let name = word.trim_end_matches(['.', ':', '-']);
        let end = &word[name.len()..];
        let shown = match self.kind(name) {
            // The length of a subnet's prefix helps and gives nothing away.
            Some("address") => match name.split_once('/') {
                Some((address, prefix)) => {
                    format!("{}/{prefix}", self.pseudonym(address, "address"))
                }
                None => self.pseudonym(name, "address"),
            },
            Some(kind) => self.pseudonym(name, kind),
            // A name may stand before or behind another word, as in `user@host:port`. The rest is looked at as a whole first,
            // because it may be a path or an address.
            None => match name.find([':', '@', '/']) {
                Some(at) => {
                    let (first, rest) = name.split_at(at);
                    let (separator, rest) = rest.split_at(1);
                    self.replaced(first) + separator + &self.replaced(rest)
                }
                None => name.to_owned(),
            },
        };
        shown + end
    }

    fn kind(&self, name: &str) -> Option<&'static str> {
        if let Some(kind) = self.known.get(name) {
            return Some(kind);
        }
        if is_private_path(name) {
            return Some("path");
        }
        if is_address(name) {
            return Some("address");
        }
        is_guid(name).then_some("guid")
    }

    fn pseudonym(&mut self, name: &str, kind: &'static str) -> String {
        if let Some(given) = self.given.get(name) {
            return given.clone();
        }
        let count = self.counts.entry(kind).or_default();
        *count += 1;
        let pseudonym = format!("{kind}-{count}");
        self.given.insert(name.to_owned(), pseudonym.clone());
        pseudonym
    }
}

/// Returns true for letters that names, paths and addresses consist of.
fn is_of_name(letter: char) -> bool {
    letter.is_alphanumeric() || "._:/-~@%+".contains(letter)
}

/// Returns true for a path that is not the same on all machines.
fn is_private_path(name: &str) -> bool {
    let is_path = name.starts_with("~/") || (name.starts_with('/') && name.len() > 1);
    let is_in = |tops: &[&str]| tops.iter().any(|top| is_below(name, top));
    let is_public = PUBLIC.contains(&name) || is_in(&PUBLIC);
    is_path && (!is_public || is_in(&PRIVATE))
}

fn is_below(path: &str, top: &str) -> bool {
    path.strip_prefix(top)
        .is_some_and(|rest| rest.starts_with('/'))
}

/// Returns true for an address of a host, with or without a prefix length or a port. Loopback is the same everywhere.
fn is_address(name: &str) -> bool {
    let address = name.split('/').next().unwrap_or(name);
    let without_port = || address.rsplit_once(':').and_then(|(ip, _)| ip.parse().ok());
    let ip: Option<IpAddr> = address.parse().ok().or_else(without_port);
    ip.is_some_and(|ip| !ip.is_loopback() && !ip.is_unspecified())
}

/// Returns true for a number that identifies an adapter: groups of hexadecimal digits, or a long run of them.
fn is_guid(name: &str) -> bool {
    let is_hex = |part: &str| part.bytes().all(|byte| byte.is_ascii_hexdigit());
    let groups: Vec<&str> = name.split(':').collect();
    let is_grouped = groups.len() >= 4
        && groups
            .iter()
            .all(|group| matches!(group.len(), 2 | 4) && is_hex(group));
    let digits = name.strip_prefix("0x").unwrap_or(name);
    is_grouped || (digits.len() >= 12 && is_hex(digits))
}

/// Directories whose content has the same names on all machines.
const PUBLIC: [&str; 9] = [
    "/proc", "/sys", "/dev", "/etc", "/usr", "/lib", "/lib64", "/bin", "/tmp",
];

/// Directories below these whose content users or sites name.
const PRIVATE: [&str; 3] = ["/tmp", "/dev/shm", "/usr/local"];

#[cfg(test)]
mod tests {
    use super::SitePseudonyms;

    #[test]
    fn names_of_a_site_are_replaced_and_equal_ones_alike() {
        let mut pseudonyms = SitePseudonyms::default();
        pseudonyms.hide("login07", "host");
        pseudonyms.hide("ada", "user");
        pseudonyms.hide("", "host");
        for (text, expected) in [
            ("login07: all is well", "host-1: all is well"),
            ("login077 and ada.", "login077 and user-1."),
            (
                "eth0 (10.1.2.3/24), lo (127.0.0.1/8)",
                "eth0 (address-1/24), lo (127.0.0.1/8)",
            ),
            ("at 10.1.2.3:4000", "at address-2"),
            ("10.1.2.3 again", "address-1 again"),
            ("fd00::17/64 and ::1", "address-3/64 and ::1"),
            (
                "LIB=/scratch/ada/lib.so, /proc/self",
                "LIB=path-1, /proc/self",
            ),
            ("aa:bb:cc:dd:ee:ff 0002:c903:00a1:b2c3", "guid-1 guid-2"),
            ("0x0002c90300a1b2c3", "guid-3"),
            (
                "Linux 6.18.44-fc, 8 MiB, 1/2 at 12:30",
                "Linux 6.18.44-fc, 8 MiB, 1/2 at 12:30",
            ),
            ("über ~/code", "über path-2"),
        ] {
            assert_eq!(pseudonyms.replace_in(text), expected);
        }
    }

    #[test]
    fn names_beside_other_words_and_below_shared_directories_are_replaced() {
        for (text, expected) in [
            ("/tmp/ada/x", "path-1"),
            ("/dev/shm/ada, /dev/shm", "path-1, /dev/shm"),
            (
                "/usr/local/site/lib.so /usr/lib/x.so",
                "path-1 /usr/lib/x.so",
            ),
            ("/tmp is full", "/tmp is full"),
            ("login07:4000", "host-1:4000"),
            ("ada@login07", "user-1@host-1"),
            ("ada@login07:/scratch/x", "user-1@host-1:path-1"),
            ("why:/scratch/ada", "why:path-1"),
            ("/usr/lib:/scratch/ada", "/usr/lib:path-1"),
            ("target/ada/x", "target/user-1/x"),
            ("port:10.1.2.3", "port:address-1"),
            ("tcp:fd00::17", "tcp:address-1"),
            ("::1, 127.0.0.1:4000, 12:30", "::1, 127.0.0.1:4000, 12:30"),
        ] {
            let mut pseudonyms = SitePseudonyms::default();
            pseudonyms.hide("login07", "host");
            pseudonyms.hide("ada", "user");
            assert_eq!(pseudonyms.replace_in(text), expected);
        }
    }
}
