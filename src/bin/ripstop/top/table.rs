//! A table of ranks as lines of text. Pure.

use super::rows::{JobRows, RankRow};

/// The room for a table: columns and lines.
#[derive(Clone, Copy, Debug)]
pub(super) struct TableRoom {
    pub(super) columns: usize,
    pub(super) lines: usize,
}

impl TableRoom {
    /// Room for everything, as in a file.
    pub(super) const UNBOUNDED: Self = Self {
        columns: usize::MAX,
        lines: usize::MAX,
    };
}

const HEAD: &str =
    " rank     pid state      cpu% ended/s sent/s recv/s unread  oldest operation in flight";

/// Columns before the last one.
const COLUMNS_BEFORE: usize = 60;

/// Lines above the ranks, and the one that says what is left out.
const LINES_ABOVE: usize = 2;
const LINES_BELOW: usize = 1;

/// Returns the table. If there is no room for all ranks, those whose operation has been in flight longest are shown.
pub(super) fn lines(job: &JobRows, room: TableRoom) -> Vec<String> {
    let mut shown: Vec<&RankRow> = job.ranks.iter().collect();
    let mut left_out = 0;
    if shown.len() > room.lines.saturating_sub(LINES_ABOVE) {
        let most = room.lines.saturating_sub(LINES_ABOVE + LINES_BELOW);
        shown.sort_by_key(|row| (std::cmp::Reverse(age(row)), row.rank));
        left_out = shown.len().saturating_sub(most);
        shown.truncate(most);
    }
    let mut lines = vec![title(job), HEAD.to_owned()];
    lines.extend(shown.into_iter().map(|row| line(row, room.columns)));
    if left_out > 0 {
        lines.push(format!(
            "{left_out} more ranks, whose operations began later: --once prints all"
        ));
    }
    lines.truncate(room.lines);
    for line in &mut lines {
        line.truncate(line.trim_end().len());
        if let Some((end, _)) = line.char_indices().nth(room.columns) {
            line.truncate(end);
        }
    }
    lines
}

fn title(job: &JobRows) -> String {
    let (found, size) = (job.ranks.len(), job.size);
    let ended: f64 = job
        .ranks
        .iter()
        .filter_map(|row| row.rates)
        .map(|rates| rates.ended)
        .sum();
    format!(
        "ripstop top: {}, {found} of {size} ranks on this machine, {ended:.0} operations ended per second",
        job.name
    )
}

fn line(row: &RankRow, columns: usize) -> String {
    let rate = |rate: Option<f64>| known(rate.map(|rate| format!("{rate:.0}")));
    format!(
        "{:>5} {:>7} {:<10} {:>4} {:>7} {:>6} {:>6} {:>6}  {}",
        row.rank,
        row.pid,
        row.state.name(),
        known(row.processor),
        rate(row.rates.map(|rates| rates.ended)),
        rate(row.rates.map(|rates| rates.sent)),
        rate(row.rates.map(|rates| rates.received)),
        known(row.unmatched),
        last_cell(row, columns.saturating_sub(COLUMNS_BEFORE))
    )
}

/// Returns the rank's oldest operation in words, or its age and line where there is no room for all. If the view cannot be read,
/// returns the reason.
fn last_cell(row: &RankRow, columns: usize) -> String {
    match &row.oldest {
        _ if !row.unreadable.is_empty() => row.unreadable.clone(),
        Some(oldest) => {
            let seconds = oldest.age_nanos as f64 / 1e9;
            let all = format!("{seconds:.1} s {}", oldest.words);
            if all.chars().count() <= columns || oldest.at.is_empty() {
                return all;
            }
            let age = format!("{seconds:.1} s ");
            let room = columns.saturating_sub(age.chars().count());
            age + &rear(&oldest.at, room)
        }
        None => String::new(),
    }
}

/// Returns the end of a text that is too long: of a source line, its number tells more than its folders.
fn rear(text: &str, columns: usize) -> String {
    match text.chars().count().checked_sub(columns) {
        None | Some(0) => text.to_owned(),
        Some(excess) => std::iter::once('…')
            .chain(text.chars().skip(excess + 1))
            .collect(),
    }
}

fn known(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

fn age(row: &RankRow) -> u64 {
    row.oldest.as_ref().map_or(0, |oldest| oldest.age_nanos)
}

#[cfg(test)]
mod tests {
    use ripstop_rt::internal::view::report::RankState;

    use super::super::rows::{JobRows, OldestOperation, RankRates, RankRow};
    use super::*;

    fn job(ages_s: &[u64]) -> JobRows {
        let ranks = (0..).zip(ages_s).map(|(rank, &age)| RankRow {
            rank,
            pid: 4711 + rank,
            state: RankState::Waiting,
            processor: Some(3),
            rates: (age > 0).then_some(RankRates {
                ended: 1204.4,
                sent: 600.0,
                received: 604.0,
            }),
            in_flight: Some(1),
            unmatched: Some(0),
            oldest: (age > 0).then(|| OldestOperation {
                words: "recv from rank 1, tag 7, communicator 0, src/halo.rs:88".to_owned(),
                at: "src/halo.rs:88".to_owned(),
                age_nanos: age * 1_000_000_000,
            }),
            ..RankRow::default()
        });
        JobRows {
            name: "job of process 4711".to_owned(),
            size: 8,
            ranks: ranks.collect(),
        }
    }

    #[test]
    fn a_table_has_a_line_for_each_rank_below_the_names_of_its_columns() {
        let lines = lines(&job(&[4, 0]), TableRoom::UNBOUNDED);
        assert_eq!(
            lines,
            [
                "ripstop top: job of process 4711, 2 of 8 ranks on this machine, 1204 operations ended per second",
                HEAD,
                "    0    4711 waiting       3    1204    600    604      0  \
                 4.0 s recv from rank 1, tag 7, communicator 0, src/halo.rs:88",
                "    1    4712 waiting       3       -      -      -      0",
            ]
        );
        let ends = |line: &str, word: &str| line.find(word).unwrap() + word.len();
        assert_eq!(ends(HEAD, "ended/s"), ends(&lines[2], "1204"));
        assert_eq!(HEAD.find("oldest"), Some(COLUMNS_BEFORE));
        assert_eq!(lines[2].find("4.0 s"), Some(COLUMNS_BEFORE));
    }

    #[test]
    fn a_terminal_of_80_columns_shows_the_age_and_the_line_of_an_operation() {
        let room = TableRoom {
            columns: 80,
            lines: 24,
        };
        assert!(lines(&job(&[4]), room)[2].ends_with("0  4.0 s src/halo.rs:88"));
        let room = TableRoom {
            columns: 76,
            lines: 24,
        };
        assert!(lines(&job(&[4]), room)[2].ends_with("0  4.0 s …alo.rs:88"));
    }

    #[test]
    fn a_small_screen_shows_the_ranks_that_have_waited_longest() {
        let room = TableRoom {
            columns: 20,
            lines: 5,
        };
        let lines = lines(&job(&[1, 9, 0, 5]), room);
        let begins: Vec<&str> = lines.iter().map(|line| line.trim_start()).collect();
        assert_eq!(begins.len(), 5);
        assert!(
            begins[2].starts_with("1 ") && begins[3].starts_with("3 "),
            "{lines:?}"
        );
        assert!(begins[4].starts_with("2 more ranks"), "{lines:?}");
        assert!(
            lines.iter().all(|line| line.chars().count() <= 20),
            "{lines:?}"
        );
    }

    #[test]
    fn no_room_is_no_fault() {
        for lines_room in 0..4 {
            let room = TableRoom {
                columns: 0,
                lines: lines_room,
            };
            assert!(lines(&job(&[1, 2, 3]), room).len() <= lines_room);
        }
    }

    #[test]
    fn a_view_that_cannot_be_read_says_why_in_its_line() {
        let mut job = job(&[0]);
        job.ranks[0].unreadable = "the program has view layout 1".to_owned();
        assert!(lines(&job, TableRoom::UNBOUNDED)[2].ends_with("the program has view layout 1"));
    }
}
