//! The keyboard of a terminal, which `script` provides, as the input of rank 0.

use std::{
    io::Write,
    process::{Command, Output, Stdio},
};

use crate::{RIPSTOP, meeting::is_installed};

/// Types `typed` into a terminal in which `ripstop run` runs with these words, and returns what the terminal shows.
fn typed_into(typed: &str, words: &str) -> Option<String> {
    if !is_installed("script", "bsdutils") {
        return None;
    }
    let mut command = Command::new("script");
    command.args(["-qec", &format!("\"$RIPSTOP\" run --timeout 60 {words}")]);
    command
        .arg("/dev/null")
        .env("RIPSTOP", RIPSTOP)
        .env("SHELL", "/bin/sh");
    let mut terminal = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut keyboard = terminal.stdin.take().unwrap();
    keyboard.write_all(typed.as_bytes()).unwrap();
    drop(keyboard); // `script` then types Ctrl-D.
    let Output { status, stdout, .. } = terminal.wait_with_output().unwrap();
    let shown = String::from_utf8_lossy(&stdout).into_owned();
    assert!(status.success(), "{status}: {shown}");
    Some(shown)
}

#[test]
fn rank_0_reads_what_is_typed_until_its_end() {
    let Some(shown) = typed_into("first\nsecond\n", "-n 1 tr a-z A-Z") else {
        return;
    };
    assert!(shown.contains("FIRST\r\nSECOND\r\n"), "{shown:?}");
}

#[test]
fn rank_0_of_a_job_over_hosts_reads_what_is_typed() {
    let words = "--hosts localhost:2 --host-timeout 60 -n 1 tr a-z A-Z : -n 1 cat";
    let Some(shown) = typed_into("first\nsecond\n", &format!("{words} || true")) else {
        return;
    };
    assert!(shown.contains("FIRST\r\nSECOND\r\n"), "{shown:?}");
}

#[test]
fn no_other_rank_reads_the_keyboard_and_a_rank_that_reads_nothing_ends() {
    // The job has two ranks of which neither joins, which is an error, so the shell takes it back.
    let script = "'if [ $PMI_RANK = 1 ]; then read line; echo \"rank 1 got [$line]\"; fi'";
    let Some(shown) = typed_into("typed\n", &format!("-n 2 sh -c {script} || true")) else {
        return;
    };
    assert!(shown.contains("rank 1 got []"), "{shown:?}");
}
