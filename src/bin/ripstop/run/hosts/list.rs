//! Parses host lists: `--hosts a:2,b,n[0-3]:4`, and files with one host in a line.
//!
//! A list may come from a stranger, and its names become words of a command. So a name has few kinds of letters, and
//! never begins with a dash, which would make it an option.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv6Addr;

use super::{HOSTS_MAX, RANKS_MAX, ranges};

/// A host, and how many ranks it has places for.
///
/// A `ListedHost` proves that its name and user are safe as words of a command, also of a shell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ListedHost {
    pub(super) user: Option<String>,
    pub(super) name: String,
    pub(super) places: u32,
    /// The most ranks, also with `--oversubscribe`.
    pub(super) places_max: Option<u32>,
}

impl ListedHost {
    /// Returns a host, if `name` can be the name of one.
    pub(super) fn new(name: &str, places: u32) -> Result<Self, String> {
        check_name(name)?;
        Ok(Self {
            user: None,
            name: name.to_owned(),
            places: check_count(places, name)?,
            places_max: None,
        })
    }
}

/// Parses the value of `--hosts`.
pub(super) fn parse(list: &str) -> Result<Vec<ListedHost>, String> {
    let mut hosts = Vec::new();
    for item in ranges::split(list)? {
        if item.trim().is_empty() {
            return Err(format!("{list:?} names no host between two commas"));
        }
        hosts.extend(parse_item(item.trim())?);
        check_length(hosts.len())?;
    }
    merge(hosts)
}

/// Parses the bytes of a host file. The error names the line.
pub(super) fn parse_file(bytes: &[u8]) -> Result<Vec<ListedHost>, String> {
    if bytes.len() > FILE_MAX {
        return Err(format!("it is longer than {FILE_MAX} bytes"));
    }
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    let mut hosts = Vec::new();
    for (number, line) in (1..).zip(bytes.split(|&byte| byte == b'\n')) {
        let parsed = parse_line(line).map_err(|why| format!("line {number}: {why}"))?;
        hosts.extend(parsed);
        check_length(hosts.len()).map_err(|why| format!("line {number}: {why}"))?;
    }
    if hosts.is_empty() {
        return Err("it names no host".to_owned());
    }
    merge(hosts)
}

/// Returns the text of a line of a file, without its comment.
pub(super) fn line_text(line: &[u8]) -> Result<&str, String> {
    if line.len() > LINE_MAX {
        return Err(format!("it is longer than {LINE_MAX} bytes"));
    }
    let line = std::str::from_utf8(line).map_err(|_| "it is not UTF-8 text")?;
    Ok(line.split('#').next().unwrap_or(""))
}

fn parse_line(line: &[u8]) -> Result<Vec<ListedHost>, String> {
    let text = line_text(line)?;
    let mut words = text.split_ascii_whitespace();
    let Some(first) = words.next() else {
        return Ok(Vec::new());
    };
    if ranges::split(first)?.len() > 1 {
        return Err("a comma between hosts: write one host in a line".to_owned());
    }
    let mut hosts = parse_item(first)?;
    let mut known = BTreeSet::new();
    if places_of(first).is_some() {
        known.insert("slots");
    }
    if hosts.iter().any(|host| host.user.is_some()) {
        known.insert("user");
    }
    for word in words {
        let (name, value) = word
            .split_once('=')
            .ok_or_else(|| format!("{word:?} is neither slots=N, max_slots=N nor user=NAME"))?;
        let name = if name == "max-slots" {
            "max_slots"
        } else {
            name
        };
        if !known.insert(name) {
            return Err(match name {
                "user" => "the user is there twice".to_owned(),
                _ => format!("the number of {name} is there twice"),
            });
        }
        for host in &mut hosts {
            match name {
                "slots" => host.places = count(value, &host.name)?,
                "max_slots" => host.places_max = Some(count(value, &host.name)?),
                "user" => host.user = Some(check_user(value)?),
                _ => return Err(format!("{name:?} is neither slots, max_slots nor user")),
            }
        }
    }
    Ok(hosts)
}

/// Parses `[user@]name` of one host.
pub(super) fn parse_one(item: &str) -> Result<ListedHost, String> {
    if places_of(item).is_some() {
        let item = printable(item);
        return Err(format!(
            "{item} has a colon: write the host without places, and an IPv6 address in brackets, such as [fd00::1]"
        ));
    }
    let mut hosts = parse_item(item)?;
    match (hosts.pop(), hosts.is_empty()) {
        (Some(host), true) => Ok(host),
        _ => Err(format!("{} is not one host", printable(item))),
    }
}

/// Parses `[user@]name[:places]`, where the name may have ranges.
fn parse_item(item: &str) -> Result<Vec<ListedHost>, String> {
    let places = places_of(item);
    let host = match places {
        Some(places) => &item[..item.len() - places.len() - 1],
        None => item,
    };
    let (user, pattern) = match host.split_once('@') {
        Some((user, pattern)) => (Some(check_user(user)?), pattern),
        None => (None, host),
    };
    let places = places.map_or(Ok(1), |places| count(places, host))?;
    let names = match ipv6(pattern) {
        Some(address) => vec![address],
        None if pattern.contains(':') => return Err(colons(item)),
        None => ranges::expand(pattern)?,
    };
    let hosts = names.into_iter().map(|name| {
        let host = ListedHost::new(&name, places)?;
        Ok(ListedHost {
            user: user.clone(),
            ..host
        })
    });
    hosts.collect()
}

/// Returns the text after the last colon that is not part of an IPv6 address in brackets.
fn places_of(item: &str) -> Option<&str> {
    let behind = item.rfind(']').map_or(0, |at| at + 1);
    item[behind..].rsplit_once(':').map(|(_, places)| places)
}

fn ipv6(pattern: &str) -> Option<String> {
    let inner = pattern.strip_prefix('[')?.strip_suffix(']')?;
    let address: Ipv6Addr = inner.parse().ok()?;
    Some(address.to_string())
}

fn colons(item: &str) -> String {
    let item = printable(item);
    format!(
        "{item} has a colon too many: write HOST:PLACES, and an IPv6 address in brackets, such as [fd00::1]:4"
    )
}

fn count(text: &str, host: &str) -> Result<u32, String> {
    let count = if text.bytes().all(|byte| byte.is_ascii_digit()) {
        text.parse().ok()
    } else {
        None
    };
    let places = count.ok_or_else(|| {
        let (text, host) = (printable(text), printable(host));
        format!("{text} is no number of ranks for {host}: write 1 to {RANKS_MAX}")
    });
    check_count(places?, host)
}

fn check_count(places: u32, host: &str) -> Result<u32, String> {
    if (1..=RANKS_MAX).contains(&places) {
        return Ok(places);
    }
    let host = printable(host);
    Err(format!(
        "{host} cannot have places for {places} ranks: write 1 to {RANKS_MAX}"
    ))
}

fn check_name(name: &str) -> Result<(), String> {
    let shown = printable(name);
    if name.parse::<Ipv6Addr>().is_ok() {
        return Ok(());
    }
    if name.is_empty() {
        return Err("a host has no name".to_owned());
    }
    if name.len() > NAME_MAX {
        return Err(format!("the host {shown} has more than {NAME_MAX} letters"));
    }
    if name.starts_with('-') {
        return Err(format!(
            "{shown} begins with a dash: that is an option and not a host"
        ));
    }
    match name.chars().find(|&letter| !is_plain(letter)) {
        None => Ok(()),
        Some(letter) => Err(format!(
            "{shown} has a {letter:?}: the name of a host consists of A-Z a-z 0-9 . _ -"
        )),
    }
}

fn check_user(user: &str) -> Result<String, String> {
    let fits = (1..=USER_MAX).contains(&user.len());
    if fits && !user.starts_with('-') && user.chars().all(is_plain) {
        return Ok(user.to_owned());
    }
    let user = printable(user);
    Err(format!(
        "{user} is no name of a user: it consists of 1 to {USER_MAX} letters A-Z a-z 0-9 . _ - and begins with no dash"
    ))
}

pub(super) fn is_plain(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || ['.', '_', '-'].contains(&letter)
}

pub(super) fn check_length(hosts: usize) -> Result<(), String> {
    if hosts > HOSTS_MAX {
        return Err(format!("more than {HOSTS_MAX} hosts"));
    }
    Ok(())
}

/// Adds up the places of a host that is listed more than once. Upper and lower case are the same host.
pub(super) fn merge(hosts: Vec<ListedHost>) -> Result<Vec<ListedHost>, String> {
    let mut merged: Vec<ListedHost> = Vec::new();
    let mut at = BTreeMap::new();
    for host in hosts {
        let key = (host.user.clone(), host.name.to_ascii_lowercase());
        match at.get(&key) {
            None => {
                at.insert(key, merged.len());
                merged.push(host);
            }
            Some(&at) => {
                let known: &mut ListedHost = &mut merged[at];
                known.places = check_count(known.places + host.places, &host.name)?;
                known.places_max = known.places_max.or(host.places_max);
            }
        }
    }
    Ok(merged)
}

pub(super) fn printable(text: &str) -> String {
    let shown: String = text.chars().take(SHOWN_MAX).collect();
    format!("{shown:?}")
}

/// The longest name of a host in the domain name system.
const NAME_MAX: usize = 253;
const USER_MAX: usize = 64;
const LINE_MAX: usize = 4096;
pub(super) const FILE_MAX: usize = 1 << 20;
const SHOWN_MAX: usize = 60;

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop_assert, proptest};

    use super::*;

    fn shown(hosts: &[ListedHost]) -> String {
        let shown = hosts.iter().map(|host| {
            let user = host.user.as_ref().map(|user| format!("{user}@"));
            let most = host.places_max.map(|most| format!("<={most}"));
            let (user, most) = (user.unwrap_or_default(), most.unwrap_or_default());
            format!("{user}{}:{}{most}", host.name, host.places)
        });
        shown.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn a_list_has_names_places_users_and_ranges() {
        for (list, hosts) in [
            ("a", "a:1"),
            ("a:2,b", "a:2 b:1"),
            ("n[0-2]:4,login1", "n0:4 n1:4 n2:4 login1:1"),
            ("me@a:2", "me@a:2"),
            ("[fd00::1]:4,[fd00::2]", "fd00::1:4 fd00::2:1"),
            ("10.0.0.1:3", "10.0.0.1:3"),
            ("a:2,b,A:3", "a:5 b:1"),
            ("a , b", "a:1 b:1"),
        ] {
            assert_eq!(shown(&parse(list).unwrap()), hosts, "{list}");
        }
    }

    #[test]
    fn a_file_has_what_is_found_in_files() {
        let file = b"\xef\xbb\xbf# the rack\r\n\r\na slots=2 max_slots=4\r\n\tb:3 \t# slow\nc user=me\nme@d\nn[0-1] slots=2\na";
        let hosts = parse_file(file).unwrap();
        assert_eq!(shown(&hosts), "a:3<=4 b:3 me@c:1 me@d:1 n0:2 n1:2");
    }

    #[test]
    fn bad_lists_are_refused_with_the_reason() {
        let long = "x".repeat(254);
        for (list, why) in [
            ("", "names no host"),
            ("a,,b", "names no host"),
            ("a:0", "places for 0 ranks"),
            ("a:-1", "is no number of ranks"),
            ("a:1000000000", "places for 1000000000"),
            ("a:99999999999", "is no number of ranks"),
            ("a:2x", "is no number of ranks"),
            ("a:", "is no number of ranks"),
            ("a:2:3", "a colon too many"),
            ("fd00::1", "IPv6 address in brackets"),
            ("-v", "begins with a dash"),
            ("-oProxyCommand=touch", "begins with a dash"),
            ("-oProxyCommand=x:2", "begins with a dash"),
            ("n[-o]", "is no number of a range"),
            ("a b", "' '"),
            ("a;reboot", "';'"),
            ("$(reboot)", "'$'"),
            ("a\0", "'\\0'"),
            ("räck", "'ä'"),
            ("-o@a", "is no name of a user"),
            ("@a", "is no name of a user"),
            ("me@", "no name"),
            ("a:8000,a:8000", "places for 16000"),
            (&long, "more than 253 letters"),
        ] {
            let refused = parse(list).unwrap_err();
            assert!(refused.contains(why), "{list:?}: {refused}");
        }
    }

    #[test]
    fn bad_files_are_refused_with_the_line() {
        let long = "x".repeat(5000);
        for (file, why) in [
            ("", "names no host"),
            ("# only\n# comments\n", "names no host"),
            (
                "a\nb slots=2 slots=3",
                "line 2: the number of slots is there twice",
            ),
            ("a:2 slots=3", "line 1: the number of slots is there twice"),
            ("me@a user=me", "the user is there twice"),
            ("a,b", "one host in a line"),
            ("a cpus=3", "is neither slots"),
            ("a 3", "is neither slots"),
            ("a slots=none", "is no number of ranks"),
            (&long, "longer than 4096 bytes"),
        ] {
            let refused = parse_file(file.as_bytes()).unwrap_err();
            assert!(refused.contains(why), "{file:?}: {refused}");
        }
        assert!(
            parse_file(b"a\n\xff\n")
                .unwrap_err()
                .contains("line 2: it is not UTF-8")
        );
        let many: String = (0..1025).map(|host| format!("n{host}\n")).collect();
        assert!(
            parse_file(many.as_bytes())
                .unwrap_err()
                .contains("line 1025: more than 1024")
        );
        assert!(parse_file(&vec![b'\n'; FILE_MAX + 1]).is_err());
    }

    proptest! {
        #[test]
        fn what_is_accepted_is_safe_in_a_command(list in "[a-c:,@\\[\\]0-9=$; \"'-]{0,20}", noise in any::<String>()) {
            for list in [list, noise] {
                let hosts = parse(&list).into_iter().chain(parse_file(list.as_bytes())).flatten();
                for host in hosts {
                    let user = host.user.unwrap_or_default();
                    prop_assert!(!host.name.starts_with('-') && !user.starts_with('-'));
                    let safe = |letter| is_plain(letter) || letter == ':';
                    prop_assert!(!host.name.is_empty() && host.name.chars().all(safe));
                    prop_assert!(user.chars().all(is_plain) && (1..=RANKS_MAX).contains(&host.places));
                }
            }
        }
    }
}
