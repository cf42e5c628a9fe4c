//! Hosts that cannot take part: each is named with the reason, and no rank has run anywhere.

use super::{Folder, LIKE_SSH, on_hosts, script};
use crate::ended;

/// Host `good` works, and host `bad` does what `bad` says.
#[track_caller]
fn refused(test: &str, bad: &str, code: i32, saying: &[&str]) {
    let folder = Folder::new(test);
    let starter = folder.starter(&format!("if [ $host = bad ]; then {bad}\nfi\n{LIKE_SSH}"));
    let job = ended(script(&starter, "good,bad", &[], "echo a rank runs"));
    job.with(code, saying);
    assert_eq!(job.out, "", "{test}");
}

#[test]
fn a_starter_that_fails_is_told_with_its_last_words() {
    refused(
        "refused",
        "echo 'Permission denied (publickey).' >&2; exit 255",
        125,
        &[
            "host bad: no helper there: ",
            "starter exited with code 255: Permission denied (publickey).",
        ],
    );
    refused(
        "missing",
        "exec /no/such/ripstop node 1",
        125,
        &[
            "starter exited with code 127: ",
            "; every host must have this command under the same path",
        ],
    );
    refused(
        "ends",
        "exit 0",
        125,
        &["host bad: no helper there: ", " exited with code 0"],
    );
    refused(
        "dies",
        "kill -9 $$",
        125,
        &["host bad: ", " was killed by signal 9 (SIGKILL)"],
    );
    refused(
        "closes",
        "exec >&- 2>&-; exec sleep 60",
        125,
        &["host bad: no helper there: ", " closed its output"],
    );
}

#[test]
fn a_starter_that_passes_no_input_on_is_told_so() {
    let why = "error: the launcher cannot be heard: what starts this command must pass its standard input on";
    refused(
        "null",
        "exec \"$@\" </dev/null",
        125,
        &["host bad: no helper there: ", why],
    );
    refused(
        "empty",
        ": | \"$@\"; exit",
        125,
        &["host bad: the connection ended: ", why],
    );
}

#[test]
fn a_starter_that_takes_too_long_ends_with_the_time_limit() {
    let folder = Folder::new("slow");
    let bad = "printf \"user@$host's password: \" >&2; exec sleep 60";
    let starter = folder.starter(&format!("if [ $host = bad ]; then {bad}\nfi\n{LIKE_SSH}"));
    let job = ended(script(
        &starter,
        "good,bad",
        &["--timeout", "3"],
        "echo a rank runs",
    ));
    job.with(
        124,
        &[
            "time limit of 3 s reached before all hosts were ready; ",
            "host bad: ",
        ],
    );
    assert_eq!(job.out, "");
}

#[test]
fn a_starter_that_only_talks_is_not_listened_to_for_ever() {
    refused(
        "talks",
        "exec yes",
        125,
        &[
            "host bad: its starter printed ",
            " bytes, and no helper answered",
        ],
    );
    let greets = "head -c 60000 /dev/zero; echo; echo to you >&2";
    let folder = Folder::new("greets");
    let starter = folder.starter(&format!("{greets}\n{LIKE_SSH}"));
    let job = ended(script(&starter, "h1,h2", &[], "echo $PMI_RANK"));
    // The ranks of this script join no job, which is an error of its own.
    job.with(2, &["h1: to you\n", "h2: to you\n", "never joined the job"]);
    assert!(
        job.out == "0\n1\n" || job.out == "1\n0\n",
        "{}{}",
        job.out,
        job.err
    );
}

#[test]
fn a_helper_that_says_something_else_is_refused() {
    let mark = r"printf '\000ripstop node 1\000'";
    let hello = r"printf '\001\011\000\000\000\001\000\000\0000\000\000\000\000'";
    refused(
        "version",
        &format!("{mark}; {hello}; exec cat >/dev/null"),
        125,
        &["host bad: its helper has version \"0\" of ripstop"],
    );
    let long = r"printf '\001\001\000\001\000'";
    refused(
        "long",
        &format!("{mark}; {long}; exec cat >/dev/null"),
        125,
        &["host bad: its helper sent a frame of 65537 bytes"],
    );
    refused(
        "other",
        "exec $1 node 99",
        125,
        &[
            "host bad: no helper there: ",
            "the launcher speaks protocol 99",
        ],
    );
}

/// Host `good` works, and the helper of host `bad` acts as told.
#[track_caller]
fn faked(test: &str, acts: &str, code: i32, saying: &[&str]) {
    let folder = Folder::new(test);
    let starter = folder.starter_of_fake(acts);
    ended(script(&starter, "good,bad", &[], "exec sleep 60")).with(code, saying);
}

#[test]
fn a_helper_that_refuses_decides_only_among_the_codes_for_that() {
    let why = ["host bad: it does not want to"];
    for (given, code) in [(0, 125), (1, 125), (255, 125), (126, 126), (127, 127)] {
        let acts = format!("hello refused:{given} await-end");
        faked("refuses", &acts, code, &why);
    }
}

#[test]
fn a_helper_that_leaves_before_the_ranks_are_started_cannot_take_part() {
    let why = ["host bad: its helper left before it was asked to"];
    faked("bye", "bye await-end", 125, &why);
    faked("hello-bye", "hello bye await-end", 125, &why);
}

#[test]
fn a_helper_that_lies_about_ranks_is_given_up() {
    faked(
        "early",
        "hello ended:1 await-end",
        125,
        &["host bad: its helper speaks of rank 1, which does not run there"],
    );
    faked(
        "lies",
        "hello ready await-start started:1 ended:0 await-end",
        125,
        &["host bad is lost with rank 1: its helper speaks of rank 0, which does not run there"],
    );
}

#[test]
fn hosts_with_the_same_reason_are_told_together() {
    let folder = Folder::new("together");
    let starter = folder.starter("echo \"connect to host $host: No route to host\" >&2; exit 255");
    let job = ended(script(&starter, "n[1-30]", &[], "echo a rank runs"));
    // The launcher does not wait for all failures, so their number depends on the machine.
    job.with(
        125,
        &[
            "error: hosts n",
            ": no helper there: ",
            "connect to host %h: No route to host",
        ],
    );
    assert_eq!(job.err.lines().count(), 1, "{}", job.err);
}

#[test]
fn a_job_that_one_host_cannot_start_runs_nowhere() {
    let folder = Folder::new("program");
    let hides = "[ $host = bad ] && PATH=/none; exec \"$@\"";
    let starter = folder.starter(hides);
    let run = |options: &[&str], words: &[&str]| {
        let mut command = on_hosts(&starter, "good,bad", options);
        command.arg("--").args(words);
        ended(command)
    };
    run(&[], &["no-such-program"]).with(
        127,
        &["hosts good and bad: no program no-such-program in PATH"],
    );
    run(&[], &["/etc/passwd"]).with(126, &["/etc/passwd is not executable"]);
    run(&[], &["/no/such"]).with(127, &["cannot run /no/such: No such file"]);
    let script = folder.program("script", "#! /no/such/interpreter -x");
    run(&[], &[&script]).with(
        127,
        &[
            "hosts good and bad: interpreter of ",
            "cannot run /no/such/interpreter: No such file",
        ],
    );
    run(&["--env", "PATH=/none"], &["true"]).with(127, &["no program true in PATH"]);
    run(&["--wdir", "/no/such"], &["true"]).with(125, &["directory /no/such: No such file"]);
    let missing = on_hosts("/no/such/starter", "a,b", &["true"]);
    ended(missing).with(
        125,
        &["hosts a and b: cannot start /no/such/starter: No such file"],
    );
}
