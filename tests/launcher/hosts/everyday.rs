//! What goes wrong, or only looks odd, on hosts every day: the job runs all the same, or says what is missing where.

use std::fs::{self, File};
use std::process::{Command, Stdio};

use super::{Folder, LIKE_SSH, role, script};
use crate::{Ended, GUARD, RIPSTOP, ended};

/// Checks that all of four ranks on two hosts have met.
#[track_caller]
fn all_have_met(job: &Ended) {
    job.with(0, &[]);
    assert_eq!(job.out.matches(" of 4 (pmi-1), node [").count(), 4);
}

/// Runs four ranks on two hosts, of which the second first runs these words of a shell.
#[track_caller]
fn works_behind(test: &str, words: &str) {
    let folder = Folder::new(test);
    let starter = folder.starter(&format!("if [ $host = h2 ]; then {words}\nfi\n{LIKE_SSH}"));
    all_have_met(&ended(role(&starter, "h1:2,h2:2", &[], "exchange")));
}

#[test]
fn a_host_without_a_home_or_a_place_for_files_takes_part() {
    works_behind(
        "homeless",
        "export HOME=/no/such/home TMPDIR=/no/such/tmp XDG_RUNTIME_DIR=/no/such/run",
    );
    works_behind("bare", "unset HOME USER LOGNAME SHELL LANG TMPDIR");
}

#[test]
fn a_starter_that_complains_without_end_holds_no_job() {
    works_behind("complains", "yes 'Warning: no locale' >&2 & sleep 0.1");
}

#[test]
fn a_host_whose_limit_of_open_files_is_too_low_is_named_before_any_rank_runs() {
    let folder = Folder::new("files");
    let starter = folder.starter(&format!("[ $host = h2 ] && ulimit -n 24\n{LIKE_SSH}"));
    let job = ended(script(&starter, "h1,h2:8", &[], "echo a rank runs"));
    let saying = ["host h2: the job needs ", " open files, the limit is 24"];
    job.with(125, &saying);
    assert_eq!(job.out, "");
}

#[test]
fn a_launcher_whose_input_and_output_are_closed_runs_its_job() {
    let folder = Folder::new("closed");
    let starter = folder.starter(LIKE_SSH);
    let leaves_a_file = "touch rank-$PMI_RANK; exec sleep 0";
    let plain = script(&starter, "h1,h2", &["--keep-going"], leaves_a_file);
    let mut command = Command::new("sh");
    command
        .args(["-c", "exec \"$@\" <&- >&- 2>&-", "sh"])
        .arg(plain.get_program())
        .args(plain.get_args())
        .current_dir(&folder.path);
    // The ranks of this script join no job.
    assert_eq!(ended(command).code, Some(2));
    for rank in ["rank-0", "rank-1"] {
        assert!(folder.path.join(rank).exists(), "{rank} has run");
    }
}

#[test]
fn input_without_end_that_no_rank_reads_holds_no_job() {
    let folder = Folder::new("endless");
    let starter = folder.starter(LIKE_SSH);
    let mut command = role(&starter, "h1:2,h2:2", &[], "exchange");
    command.stdin(File::open("/dev/zero").unwrap());
    all_have_met(&ended(command));
}

#[test]
fn two_jobs_run_on_the_same_hosts_at_once() {
    let folder = Folder::new("two-jobs");
    let starter = folder.starter(LIKE_SSH);
    let jobs = [(); 2].map(|()| {
        let mut command = role(&starter, "h1:2,h2:2", &[], "exchange");
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().unwrap()
    });
    for job in jobs {
        let output = job.wait_with_output().unwrap();
        let [out, err] =
            [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
        let code = output.status.code();
        all_have_met(&Ended { code, out, err });
    }
}

#[test]
fn a_machine_under_two_names_is_told_and_counts_as_two_hosts() {
    let folder = Folder::new("names");
    let starter = folder.starter(LIKE_SSH);
    let job = ended(role(&starter, "localhost:2,other:2", &[], "exchange"));
    all_have_met(&job);
    let told = job
        .err
        .matches(" are one machine, which counts as two nodes")
        .count();
    assert_eq!(told, 1, "{}", job.err);
}

#[test]
fn an_allocation_that_has_expired_is_told_in_the_words_of_its_manager() {
    let folder = Folder::new("expired");
    let words = "srun: error: Unable to confirm allocation for job 7: Invalid job id specified";
    folder.program("srun", &format!("#!/bin/sh\necho '{words}' >&2; exit 1"));
    let mut command = Command::new(RIPSTOP);
    command
        .args(["run", "--allocation"])
        .args(GUARD)
        .args(["--", "true"]);
    let path = format!(
        "{}:{}",
        folder.path.display(),
        std::env::var("PATH").unwrap()
    );
    command.env("PATH", path).stdin(Stdio::null());
    command
        .env("SLURM_JOB_NODELIST", "n[1-2]")
        .env("SLURM_TASKS_PER_NODE", "1(x2)");
    ended(command).with(125, &["n1", "n2", words]);
}

#[test]
fn arguments_and_folders_of_any_letters_reach_ranks_on_other_hosts() {
    let folder = Folder::new("letters");
    let starter = folder.starter(LIKE_SSH);
    let wdir = folder.path.join("a b'c\"d $HOME `id` ü\\n;#*");
    fs::create_dir(&wdir).unwrap();
    let argument = "two\nlines, $(id) 'x' \"y\" \\ * ü ~ -- ;";
    let options = ["--wdir", wdir.to_str().unwrap()];
    let mut command = script(&starter, "h1", &options, "pwd; printf %s \"$1\"");
    command.args(["sh", argument]);
    let job = ended(command);
    assert_eq!(
        job.out,
        format!("{}\n{argument}", wdir.display()),
        "{}",
        job.err
    );
}
