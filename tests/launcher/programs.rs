//! Several programs in one job.

use std::process::{Command, Stdio};

use crate::{
    Ended, RIPSTOP, ended,
    roles::{AS_RANK, ROLE},
};

/// Runs `ripstop run` with these words, of which `SELF` stands for this program as a rank.
fn run(words: &[&str]) -> Ended {
    let mut command = Command::new(RIPSTOP);
    command.arg("run").stdin(Stdio::null());
    command.args(["--timeout", "60"]).env(ROLE, "exchange");
    for word in words {
        match *word {
            "SELF" => command.arg(std::env::current_exe().unwrap()).args(AS_RANK),
            word => command.arg(word),
        };
    }
    ended(command)
}

#[test]
fn ranks_of_several_programs_are_one_job() {
    // The second program is another one, and becomes this one.
    let second = "echo \"second has rank $PMI_RANK\"; exec \"$@\"";
    let job = run(&[
        "-n", "1", "SELF", ":", "-n", "2", "sh", "-c", second, "sh", "SELF", ":", "-np", "1", "--",
        "SELF",
    ]);
    job.with(0, &[]);
    for rank in 0..4 {
        job.says_once(&format!("rank {rank} of 4"));
    }
    job.says_once("second has rank 1");
    job.says_once("second has rank 2");
    assert_eq!(job.out.matches("second has").count(), 2, "{}", job.out);
}

#[test]
fn a_colon_that_no_number_of_ranks_follows_is_an_argument() {
    let job = run(&[
        "-n",
        "1",
        "sh",
        "-c",
        "echo \"$*\"",
        "sh",
        "a",
        ":",
        "b",
        ":",
    ]);
    job.with(0, &[]).says_once("a : b :");
}

#[test]
fn a_program_that_cannot_be_started_is_named_before_any_rank_runs() {
    let begun = ["-n", "1", "sh", "-c", "echo begun", ":"];
    for (words, saying) in [
        (
            &["-n", "2", "no-such-program"][..],
            "no program no-such-program in PATH",
        ),
        (&["-n", "2"], "nothing to run"),
        (&["-n", "0", "sh"], "0"),
        (&["-n", "x", "sh"], "invalid value 'x'"),
        (
            &["-n", "8192", "true"],
            "all programs together have 8193 ranks: at most 8192",
        ),
        (
            &["-n", "1", "--label", "true"],
            "options of the job stand before its first program",
        ),
    ] {
        let job = run(&[&begun, words].concat());
        job.with(2, &[saying]);
        assert_eq!(job.out, "", "{words:?}");
    }
    let job = run(&["--hosts", "a,b", "true", ":", "-n", "1", "true"]);
    job.with(2, &["the first of several programs has no number of ranks"]);
}

#[test]
fn programs_that_never_join_are_named_together() {
    let job = run(&["-n", "1", "true", ":", "-n", "1", "sleep", "0"]);
    job.with(2, &["'true : sleep' never joined the job"]);
}
