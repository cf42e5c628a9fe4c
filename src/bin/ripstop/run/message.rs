//! Messages of the launcher itself, on standard error, each labeled with the launcher's name.

use crate::stderr_lines;

/// Prints one line.
pub(super) fn print_line(text: &str) {
    stderr_lines::print_line(NAME, text);
}

/// Returns the line that [`print_line`] prints.
pub(super) fn line(text: &str) -> String {
    stderr_lines::line(NAME, text)
}

/// Formats ranks: `rank 3`, `ranks 0 and 2`, `ranks 0-5, 7 and 9`. Runs of three or more are shortened.
pub(super) fn ranks(ranks: &[u32]) -> String {
    listed(ranks, ["rank", "ranks"])
}

/// Formats CPUs in the same way.
pub(super) fn cpus(cpus: &[u32]) -> String {
    listed(cpus, ["CPU", "CPUs"])
}

fn listed(numbers: &[u32], [one, many]: [&str; 2]) -> String {
    let runs = runs(numbers);
    let noun = if numbers.len() == 1 { one } else { many };
    match runs.as_slice() {
        [] => format!("no {many}"),
        [only] => format!("{noun} {only}"),
        [most @ .., last] => format!("{noun} {} and {last}", most.join(", ")),
    }
}

/// Names the `running` of `size` ranks that are not affected, with the matching form of `go`; `None` if there are none.
pub(super) fn unaffected_ranks(running: usize, size: u32) -> Option<(String, &'static str)> {
    match running {
        0 => None,
        _ if u32::try_from(running) == Ok(size) => Some(("all ranks".to_owned(), "go")),
        1 => Some(("the other rank".to_owned(), "goes")),
        _ => Some((format!("the other {running} ranks"), "go")),
    }
}

fn runs(ranks: &[u32]) -> Vec<String> {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for &rank in ranks {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == rank => *last = rank,
            _ => runs.push((rank, rank)),
        }
    }
    let words = runs
        .into_iter()
        .flat_map(|(first, last)| match last - first {
            0 => vec![first.to_string()],
            1 => vec![first.to_string(), last.to_string()],
            _ => vec![format!("{first}-{last}")],
        });
    words.collect()
}

const NAME: &str = "ripstop";

#[cfg(test)]
mod tests {
    #[test]
    fn ranks_are_listed_as_one_would_say_them() {
        assert_eq!(super::ranks(&[3]), "rank 3");
        assert_eq!(super::ranks(&[0, 2]), "ranks 0 and 2");
        assert_eq!(super::ranks(&[0, 1]), "ranks 0 and 1");
        assert_eq!(super::ranks(&[0, 1, 2, 3]), "ranks 0-3");
        assert_eq!(super::ranks(&[0, 1, 2, 5, 7, 8]), "ranks 0-2, 5, 7 and 8");
        assert_eq!(super::ranks(&[]), "no ranks");
    }
}
