//! The output of ranks, on its way through the launcher.

use std::{
    fs::File,
    io::Read,
    process::{Command, Stdio},
};

use crate::{Ended, ended, ends_at_limit, role, shell};

#[test]
fn labels_begin_every_line_and_lines_stay_whole() {
    let script = "for i in 1 2 3 4 5 6 7 8; do printf part; echo ' of a line'; done; echo complaint >&2; printf end";
    let mut job = ended(shell(3, &["--label"], script));
    for rank in 0..3 {
        let mine: Vec<&str> = job
            .out
            .lines()
            .filter_map(|line| line.strip_prefix(&format!("[{rank}] ")))
            .collect();
        let expected: Vec<&str> = ["part of a line"; 8].into_iter().chain(["end"]).collect();
        assert_eq!(mine, expected, "rank {rank}");
        assert!(job.err.contains(&format!("[{rank}] complaint\n")));
    }
    job.out.retain(|letter| letter == '\n');
    assert_eq!(job.out.len(), 27);
}

#[test]
fn what_a_rank_leaves_behind_does_not_hold_the_launcher() {
    let writer = "for nth in 1 2 3 4; do yes & done; \
                  until grep -q 'wchar: [1-9].....' /proc/$!/io; do :; done; [ $PMI_RANK = 0 ] && exit 0";
    let jobs = [
        (1, "60", writer.to_owned(), 0),
        (2, "1.5", format!("{writer}; exec sleep 60"), 124),
    ];
    for (ranks, limit, script, code) in jobs {
        let inner = shell(ranks, &["--label", "--timeout", limit], &script);
        // A held rank does not check its own time limit, as it does not handle signals.
        let mut command = Command::new("timeout");
        command.args(["-s", "KILL", "90"]).arg(inner.get_program());
        command.args(inner.get_args()).stdout(Stdio::null());
        let status = command.stderr(Stdio::null()).status().unwrap();
        assert_eq!(status.code(), Some(code), "{ranks} ranks");
    }
}

#[test]
fn a_reader_that_pauses_holds_the_ranks_and_not_the_launcher() {
    ends_at_limit(&["1.5", "30"], "ranks 0 and 1", |limit| {
        let inner = shell(2, &[&["--label"], limit].concat(), "exec yes");
        let mut command = Command::new("timeout");
        command.args(["-s", "KILL", "90"]).arg(inner.get_program());
        command.args(inner.get_args()).stdout(Stdio::piped());
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let unread = child.stdout.take();
        let job = child.wait_with_output().unwrap();
        drop(unread);
        Ended::of(job)
    });
}

#[test]
fn a_slow_reader_gets_all() {
    let script = "i=0; while [ $i -lt 20000 ]; do echo $i; i=$((i+1)); done";
    let mut child = shell(2, &["--label"], script)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut out = child.stdout.take().unwrap();
    let mut all = Vec::new();
    let mut some = [0; 100];
    while let count @ 1.. = out.read(&mut some).unwrap() {
        all.extend_from_slice(&some[..count]);
    }
    assert_eq!(child.wait().unwrap().code(), Some(2), "no program of ours");
    let all = String::from_utf8(all).unwrap();
    for rank in 0..2 {
        let label = format!("[{rank}] ");
        let mine = all.lines().filter_map(|line| line.strip_prefix(&label));
        assert!(
            mine.eq((0..20_000).map(|nth| nth.to_string())),
            "rank {rank}"
        );
    }
}

#[test]
fn output_that_no_disk_has_room_for_is_said_to_be_lost() {
    let mut command = shell(2, &["--label"], "echo much; exec sleep 60");
    let full = File::options().write(true).open("/dev/full").unwrap();
    let job = command.stdout(full).stderr(Stdio::piped()).spawn();
    let job = job.unwrap().wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&job.stderr);
    assert_eq!(job.status.code(), Some(1), "{said}");
    assert!(said.contains("cannot be written: No space left"), "{said}");
}

#[test]
fn the_message_of_a_panic_comes_before_the_end_of_the_job() {
    for options in [&[][..], &["--label"]] {
        let job = ended(role(2, options, "panic"));
        job.with(101, &["the grid has a hole", "rank 1 (pid "]);
        assert!(
            job.err.find("the grid has a hole") < job.err.find("ripstop: rank 1"),
            "{}",
            job.err
        );
    }
}
