//! `ripstop run` with a list of hosts.

use std::process::Command;

use crate::{Ended, RIPSTOP, ended};

fn hosts(words: &[&str]) -> Ended {
    let mut command = Command::new(RIPSTOP);
    command.arg("run").args(words);
    command.env_remove("RIPSTOP_START_WITH");
    ended(command)
}

#[test]
fn the_plan_of_a_job_is_printed_and_nothing_runs() {
    let list = ["--hosts", "h1:2,localhost,h[2-3]:2"];
    let plan = |more: &[&str]| hosts(&[&list, more, &["--print-hosts"]].concat());
    let starter = ["--start-with", "no-such-starter --in %h"];
    let all = plan(&starter);
    all.with(0, &[]);
    let expected = format!(
        "ranks: 7, hosts: 4\n\
         h1: ranks 0 and 1: no-such-starter --in h1 {RIPSTOP} node 1\n\
         localhost: rank 2: {RIPSTOP} node 1\n\
         h2: ranks 3 and 4: no-such-starter --in h2 {RIPSTOP} node 1\n\
         h3: ranks 5 and 6: no-such-starter --in h3 {RIPSTOP} node 1\n"
    );
    assert_eq!(all.out, expected);
    let few = plan(&["-n", "4", "--per-host", "3"]);
    assert!(few.out.contains("h1: ranks 0-2: ssh "), "{}", few.out);
    assert!(few.out.contains("localhost: rank 3: "), "{}", few.out);
    let over = plan(&["-n", "8"]);
    over.with(
        2,
        &["8 ranks on hosts with places for 7", "--oversubscribe"],
    );
    let over = plan(&["-n", "8", "--oversubscribe"]);
    assert!(over.out.contains("h1: ranks 0, 1 and 7: "), "{}", over.out);
}

#[test]
fn a_bad_list_is_a_mistake_in_the_command_line() {
    for (words, why) in [
        (["--hosts", "-oProxyCommand=x"], "begins with a dash"),
        (["--hosts", "$(reboot)"], "the name of a host consists of"),
        (["--hostfile", "-"], "belongs to rank 0"),
        (
            ["--hostfile", "/no/such/file"],
            "--hostfile /no/such/file: ",
        ),
        (["-n", "2"], "--hostfile <FILE>"),
    ] {
        let job = hosts(&[&words[..], &["--per-host", "1", "--print-hosts"]].concat());
        job.with(2, &[why]);
        assert_eq!(job.out, "", "{words:?}");
    }
}
