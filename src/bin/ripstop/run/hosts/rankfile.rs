//! Parses rank files, which say for each rank on which host it runs, and on which CPUs: `rank 3=node1 0-3`.

use std::collections::{BTreeMap, btree_map::Entry};

use rustix::thread::CpuSet;

use super::list::{self, ListedHost};
use super::{RANKS_MAX, ranges};

/// The ranks of a job as a file places them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RankFile {
    /// Hosts in the order in which the file first names them.
    pub(super) hosts: Vec<ListedHost>,
    /// Index of each rank's host.
    pub(super) host_of: Vec<usize>,
    /// CPUs of each rank, in ascending order. Empty if the file names none.
    pub(super) cpus: Vec<Vec<u32>>,
}

/// A line of a file: these ranks run there.
struct RankLine {
    number: u32,
    host: ListedHost,
    cpus: Vec<u32>,
}

/// Parses the bytes of a rank file. The error names the line.
pub(super) fn parse(bytes: &[u8]) -> Result<RankFile, String> {
    if bytes.len() > list::FILE_MAX {
        return Err(format!("it is longer than {} bytes", list::FILE_MAX));
    }
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    let mut lines = BTreeMap::new();
    for (number, line) in (1..).zip(bytes.split(|&byte| byte == b'\n')) {
        let parsed = parse_line(line).map_err(|why| format!("line {number}: {why}"))?;
        let Some((ranks, host, cpus)) = parsed else {
            continue;
        };
        for rank in ranks {
            let (host, cpus) = (host.clone(), cpus.clone());
            let line = RankLine { number, host, cpus };
            if let Some(before) = lines.insert(rank, line) {
                let before = before.number;
                return Err(format!(
                    "line {number}: rank {rank} is in line {before} already: give each rank one line"
                ));
            }
        }
    }
    arrange(lines)
}

/// Puts the ranks in order, and checks that none is missing.
fn arrange(lines: BTreeMap<u32, RankLine>) -> Result<RankFile, String> {
    let Some((&last, line)) = lines.last_key_value() else {
        return Err("it places no rank: write lines such as `rank 0=node1`".to_owned());
    };
    let number = line.number;
    if let Some(missing) = (0..last).find(|rank| !lines.contains_key(rank)) {
        return Err(format!(
            "line {number} places rank {last}, and no line places rank {missing}: ranks are numbered from 0 without gaps"
        ));
    }
    let mut by_line: Vec<&RankLine> = lines.values().collect();
    by_line.sort_by_key(|line| line.number);
    let mut file = RankFile::default();
    let mut known = BTreeMap::new();
    for line in by_line {
        if let Entry::Vacant(unknown) = known.entry(key(&line.host)) {
            unknown.insert(file.hosts.len());
            file.hosts.push(line.host.clone());
        }
    }
    list::check_length(file.hosts.len())?;
    for line in lines.into_values() {
        file.host_of.push(known[&key(&line.host)]);
        file.cpus.push(line.cpus);
    }
    Ok(file)
}

/// Returns what a host is known by. Upper and lower case are the same host.
fn key(host: &ListedHost) -> (Option<String>, String) {
    (host.user.clone(), host.name.to_ascii_lowercase())
}

type ParsedLine = (std::ops::RangeInclusive<u32>, ListedHost, Vec<u32>);

/// Parses `rank N=HOST [CPUS]` or `rank N-M=HOST`. Returns `None` for a line without words.
fn parse_line(line: &[u8]) -> Result<Option<ParsedLine>, String> {
    let text = list::line_text(line)?;
    let words: Vec<&str> = text.split_ascii_whitespace().collect();
    let (place, cpus) = match words.as_slice() {
        [] => return Ok(None),
        ["rank", place] => (place, None),
        ["rank", place, cpus] => (place, Some(*cpus)),
        ["rank", ..] => {
            return Err(format!(
                "it has more words than `{FORM}`: write CPUs without blanks"
            ));
        }
        [first, ..] => {
            let first = list::printable(first);
            return Err(format!("it begins with {first}: write `{FORM}`"));
        }
    };
    let (ranks, host) = place
        .split_once('=')
        .ok_or_else(|| format!("{} has no `=`: write `{FORM}`", list::printable(place)))?;
    let ranks = parse_ranks(ranks)?;
    let host = list::parse_one(host)?;
    let cpus = cpus.map_or(Ok(Vec::new()), parse_cpus)?;
    if !cpus.is_empty() && ranks.start() != ranks.end() {
        return Err(
            "several ranks cannot have the same CPUs: write a line for each rank".to_owned(),
        );
    }
    Ok(Some((ranks, host, cpus)))
}

fn parse_ranks(text: &str) -> Result<std::ops::RangeInclusive<u32>, String> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let last_rank = RANKS_MAX - 1;
    let number = |text: &str| ranges::number(text).ok().filter(|&rank| rank <= last_rank);
    match (number(first), number(last)) {
        (Some(first), Some(last)) if first <= last => Ok(first..=last),
        _ => Err(format!(
            "{} is neither a rank nor a range of ranks: write 0 to {last_rank}, or a range such as 4-7",
            list::printable(text)
        )),
    }
}

/// Parses CPUs such as `0-3,8`.
fn parse_cpus(text: &str) -> Result<Vec<u32>, String> {
    let most = CpuSet::MAX_CPU - 1;
    let refusal = || {
        format!(
            "{} is no list of CPUs: write numbers from 0 to {most} and ranges, such as 0-3,8",
            list::printable(text)
        )
    };
    let mut cpus = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let number = |text: &str| {
            ranges::number(text)
                .ok()
                .filter(|&cpu| cpu as usize <= most)
        };
        match (number(first), number(last)) {
            (Some(first), Some(last)) if first <= last => cpus.extend(first..=last),
            _ => return Err(refusal()),
        }
        if cpus.len() > CpuSet::MAX_CPU {
            return Err(refusal());
        }
    }
    cpus.sort_unstable();
    cpus.dedup();
    Ok(cpus)
}

const FORM: &str = "rank N=HOST [CPUS]";

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop_assert, prop_assert_eq, proptest};

    use super::*;

    fn shown(file: &str) -> Result<String, String> {
        let file = parse(file.as_bytes())?;
        let ranks = file.host_of.iter().zip(&file.cpus).map(|(&host, cpus)| {
            let cpus: Vec<String> = cpus.iter().map(u32::to_string).collect();
            format!("{}[{}]", file.hosts[host].name, cpus.join(","))
        });
        Ok(ranks.collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn each_rank_has_the_host_and_the_cpus_of_its_line() {
        for (file, ranks) in [
            ("rank 0=a", "a[]"),
            ("rank 1=b\nrank 0=a", "a[] b[]"),
            (
                "# all\n\nrank 0-2=a # here\r\n\trank  3=me@A 4,0-1\n",
                "a[] a[] a[] A[0,1,4]",
            ),
            ("\u{feff}rank 0=[fd00::1] 7", "fd00::1[7]"),
        ] {
            assert_eq!(shown(file).as_deref(), Ok(ranks), "{file}");
        }
        let file = parse(b"rank 2=a\nrank 1=b\nrank 0=A").unwrap();
        let names: Vec<&str> = file.hosts.iter().map(|host| host.name.as_str()).collect();
        assert_eq!((names, file.host_of), (vec!["a", "b"], vec![0, 1, 0]));
    }

    #[test]
    fn bad_files_are_refused_with_the_line_and_what_to_write() {
        for (file, why) in [
            ("", "places no rank: write lines such as"),
            ("# nothing", "places no rank"),
            (
                "0=a",
                "line 1: it begins with \"0=a\": write `rank N=HOST [CPUS]`",
            ),
            ("rank 0=a\nrank 0=b", "line 2: rank 0 is in line 1 already"),
            (
                "rank 0=a\nrank 2=b",
                "line 2 places rank 2, and no line places rank 1",
            ),
            ("rank 0", "line 1: \"0\" has no `=`"),
            (
                "rank x=a",
                "line 1: \"x\" is neither a rank nor a range of ranks",
            ),
            ("rank 8192=a", "write 0 to 8191"),
            ("rank 3-1=a", "\"3-1\" is neither"),
            ("rank +1=a", "\"+1\" is neither"),
            ("rank 0=", "line 1: a host has no name"),
            ("rank 0=a:2", "line 1: "),
            ("rank 0=n[0-1]", "line 1: "),
            ("rank 0=-oProxyCommand=x", "begins with a dash"),
            ("rank 0=$(reboot)", "the name of a host consists of"),
            (
                "rank 0=a slot=1",
                "line 1: \"slot=1\" is no list of CPUs: write numbers from 0 to 1023",
            ),
            ("rank 0=a 1024", "no list of CPUs"),
            ("rank 0=a 3-1", "no list of CPUs"),
            ("rank 0=a 1,,2", "no list of CPUs"),
            (
                "rank 0=a 1, 2",
                "more words than `rank N=HOST [CPUS]`: write CPUs without blanks",
            ),
            ("rank 0-1=a 1", "write a line for each rank"),
        ] {
            let refused = shown(file).unwrap_err();
            assert!(refused.contains(why), "{file:?}: {refused}");
        }
        assert!(parse(b"rank 0=a\xff").unwrap_err().contains("not UTF-8"));
        assert!(parse(&vec![b'\n'; list::FILE_MAX + 1]).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            let _ = parse(&bytes);
        }

        #[test]
        fn any_lines_are_parsed_or_refused(text in "(rank [0-9x-]{0,3}=?[a-c@:]{0,3} ?[0-9,-]{0,6}\n){0,4}") {
            if let Ok(file) = parse(text.as_bytes()) {
                prop_assert_eq!(file.host_of.len(), file.cpus.len());
                prop_assert!(file.host_of.iter().all(|&host| host < file.hosts.len()));
            }
        }
    }
}
