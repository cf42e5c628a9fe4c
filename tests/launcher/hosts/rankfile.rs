//! Jobs whose ranks are placed by a file.

use std::{fs, process::Command};

use super::{Folder, LIKE_SSH};
use crate::{
    Ended, GUARD, RIPSTOP, ended,
    roles::{AS_RANK, ROLE},
};

/// Runs `ripstop run` with a rank file of this text.
fn placed(folder: &Folder, text: &str, words: &[&str]) -> Ended {
    let path = folder.path.join("ranks");
    fs::write(&path, text).unwrap();
    let starter = folder.starter(LIKE_SSH);
    let mut command = Command::new(RIPSTOP);
    command.arg("run").args(GUARD).arg("--rankfile").arg(path);
    command.args(["--start-with", &starter]).args(words);
    command.env(ROLE, "exchange");
    ended(command)
}

#[test]
fn ranks_run_where_their_lines_say() {
    let folder = Folder::new("rankfile");
    let own = std::env::current_exe().unwrap().display().to_string();
    let program = [&["--", own.as_str()][..], &AS_RANK].concat();
    let job = placed(
        &folder,
        "rank 2=h1\nrank 0-1=h2 # fast\nrank 3=h1\n",
        &program,
    );
    job.with(0, &[]);
    for (rank, node) in [(0, "[0, 1]"), (1, "[0, 1]"), (2, "[2, 3]"), (3, "[2, 3]")] {
        job.says_once(&format!("rank {rank} of 4 (pmi-1), node {node}"));
    }
}

#[test]
fn a_rank_is_bound_to_the_cpus_of_its_line() {
    let own = fs::read_to_string("/proc/self/status").unwrap();
    let own = own
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))
        .unwrap();
    let first = own.trim().split([',', '-']).next().unwrap();
    let folder = Folder::new("rankfile-cpus");
    let says = ["--", "grep", "Cpus_allowed_list", "/proc/self/status"];
    let job = placed(&folder, &format!("rank 0=h1 {first}"), &says);
    assert_eq!(
        job.out.trim(),
        format!("Cpus_allowed_list:\t{first}"),
        "{}",
        job.err
    );
    let job = placed(
        &folder,
        "rank 0=h1\nrank 1=h2 1023",
        &["--", "echo", "a rank runs"],
    );
    job.with(
        125,
        &["host h2: rank 1 cannot be bound to CPU 1023: this host allows CPU"],
    );
    assert_eq!(job.out, "");
}

#[test]
fn the_plan_of_a_file_is_printed_with_its_cpus() {
    let folder = Folder::new("rankfile-plan");
    let text = "rank 0=h1 0-3\nrank 1=h1\nrank 2=h1 4,6\nrank 3-4=h2\n";
    let plan = placed(&folder, text, &["--print-hosts"]);
    let plan = plan.with(0, &[]);
    for line in [
        "ranks: 5, hosts: 2\n",
        "\nh1: rank 0 on CPUs 0-3, rank 1, rank 2 on CPUs 4 and 6: ",
        "\nh2: ranks 3 and 4: ",
    ] {
        assert!(plan.out.contains(line), "{line:?}: {}", plan.out);
    }
}

#[test]
fn a_bad_file_is_a_mistake_in_the_command_line() {
    let folder = Folder::new("rankfile-bad");
    for (text, words, why) in [
        (
            "rank 0=a\n0=b",
            &[][..],
            "ranks: line 2: it begins with \"0=b\": write `rank N=HOST [CPUS]`",
        ),
        (
            "rank 0=a\nrank 0=b",
            &[],
            "line 2: rank 0 is in line 1 already",
        ),
        ("rank 1=a", &[], "no line places rank 0"),
        ("rank 0=a", &["-n", "2"], "it places 1 ranks, and -n says 2"),
        (
            "rank 0=a 0",
            &["--bind", "core"],
            "--bind and CPUs in the rank file exclude each other",
        ),
        ("rank 0=a", &["--per-host", "1"], "cannot be used with"),
    ] {
        let job = placed(&folder, text, &[words, &["echo", "a rank runs"]].concat());
        job.with(2, &[why]);
        assert_eq!(job.out, "", "{text}");
    }
}
