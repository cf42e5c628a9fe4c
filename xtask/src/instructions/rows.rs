//! The rows of the table: what is called, and how many instructions it may take.

/// A kind of call whose instructions are counted.
#[derive(Debug)]
pub(super) struct CountedRow {
    /// The name in `--only`, in the file of budgets, and for the programs that make the calls.
    pub(super) name: &'static str,
    /// What one call is.
    pub(super) title: &'static str,
    /// What Ripstop wants to reach.
    pub(super) target: Option<u32>,
    /// What Debian's MPICH 4.0 and Open MPI 4.1 take for the same, measured once with `--peers`.
    pub(super) theirs: [Option<u32>; 2],
}

const fn row(
    name: &'static str,
    title: &'static str,
    target: Option<u32>,
    theirs: [Option<u32>; 2],
) -> CountedRow {
    CountedRow {
        name,
        title,
        target,
        theirs,
    }
}

/// The rows, in the order of the table.
pub(super) const ROWS: [CountedRow; 25] = [
    row(
        "message",
        "message to oneself, 8 B: recv_into, send, wait for both",
        Some(500),
        [Some(1037), Some(1207)],
    ),
    row("channel", "the same by a channel", Some(250), [None; 2]),
    row("send_copy", "the same by send_copy", Some(500), [None; 2]),
    row(
        "wildcard",
        "the same, received from any rank with any tag",
        None,
        [None; 2],
    ),
    row(
        "probe",
        "the same, probed and then received",
        None,
        [None; 2],
    ),
    row("bcast", "bcast of 8 B", Some(120), [Some(129), Some(125)]),
    row("barrier", "barrier", Some(70), [Some(120), Some(73)]),
    row(
        "all_reduce",
        "all_reduce of 8 B",
        Some(250),
        [Some(524), Some(271)],
    ),
    row(
        "plan",
        "run of a planned all_to_all of 8 B",
        Some(200),
        [None; 2],
    ),
    row("fence", "fence, put of 8 B, end", Some(400), [None; 2]),
    row(
        "put",
        "put of 8 B and flush, in a passive epoch",
        None,
        [None; 2],
    ),
    row(
        "fetch_add",
        "fetch_add, in a passive epoch",
        None,
        [None; 2],
    ),
    row(
        "accumulate",
        "accumulate of 512 numbers of 8 B, in a passive epoch",
        None,
        [None; 2],
    ),
    row(
        "pscw",
        "post, start, put of 8 B, complete, wait",
        None,
        [None; 2],
    ),
    row(
        "ping_pong",
        "two ranks: 8 B there and back, without waiting",
        None,
        [None; 2],
    ),
    row(
        "pair_channel",
        "two ranks: 8 B there and back by a channel, without waiting",
        None,
        [None; 2],
    ),
    row(
        "stream_recv",
        "two ranks: 8 B received, in windows of 64 posted receives",
        None,
        [None; 2],
    ),
    row(
        "stream_send",
        "two ranks: 8 B sent, in windows of 64 posted receives",
        None,
        [None; 2],
    ),
    row(
        "rendezvous",
        "two ranks: 64 KiB sent and 64 KiB received",
        None,
        [None; 2],
    ),
    row(
        "pair_barrier",
        "two ranks: barrier, the other rank came first",
        None,
        [None; 2],
    ),
    row(
        "pair_bcast",
        "two ranks: bcast of 8 B, each rank is the root of half",
        None,
        [None; 2],
    ),
    row(
        "pair_all_reduce",
        "two ranks: all_reduce of 8 B, the other rank came first",
        None,
        [None; 2],
    ),
    row(
        "pair_all_to_all",
        "two ranks: all_to_all_into of 8 B blocks, the other rank came first",
        None,
        [None; 2],
    ),
    row(
        "tcp_message",
        "two ranks over TCP: 8 B there and back",
        None,
        [None; 2],
    ),
    row(
        "tcp_long",
        "two ranks over TCP: 64 KiB there and back",
        None,
        [None; 2],
    ),
];

/// Returns the rows with these names, or all without any.
///
/// # Errors
/// There is no row of a name.
pub(super) fn chosen(names: &[String]) -> Result<Vec<&'static CountedRow>, String> {
    let known = |name: &&String| ROWS.iter().any(|row| row.name == *name);
    if let Some(unknown) = names.iter().find(|name| !known(name)) {
        let all: Vec<&str> = ROWS.iter().map(|row| row.name).collect();
        return Err(format!(
            "--only {unknown}: there is no such row; the rows are {}",
            all.join(", ")
        ));
    }
    let wanted = |row: &&CountedRow| names.is_empty() || names.iter().any(|name| name == row.name);
    Ok(ROWS.iter().filter(wanted).collect())
}

#[cfg(test)]
mod tests {
    use super::{ROWS, chosen};

    #[test]
    fn rows_are_chosen_by_name_and_an_unknown_name_is_told() {
        assert_eq!(chosen(&[]).unwrap().len(), ROWS.len());
        let some = chosen(&["put".to_owned(), "message".to_owned()]).unwrap();
        let names: Vec<_> = some.iter().map(|row| row.name).collect();
        assert_eq!(names, ["message", "put"]);
        let why = chosen(&["pit".to_owned()]).unwrap_err();
        assert!(why.contains("pit") && why.contains("fetch_add"), "{why}");
    }
}
