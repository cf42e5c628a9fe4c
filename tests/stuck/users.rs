//! Ranks that this user may not look into, because they are of another user or not dumpable, and ranks in namespaces.

use std::{
    env,
    os::unix::process::CommandExt,
    process::{Command, Stdio},
};

use rustix::process::geteuid;

use crate::{AS_RANK, GUARD, RIPSTOP, StuckJob, now, place, roles::ROLE};

/// A user without rights, if the test is root's.
const OTHER: u32 = 65_534;

/// Returns the command `ripstop`, of a user without rights.
fn without_rights() -> Command {
    let mut command = Command::new(RIPSTOP);
    if geteuid().is_root() {
        command.uid(OTHER).gid(OTHER);
    }
    command.stdin(Stdio::null());
    command
}

fn stuck_without_rights(number: u32) -> (String, Option<i32>) {
    let output = without_rights()
        .args(["stuck", &number.to_string()])
        .output()
        .unwrap();
    let text = [output.stdout, output.stderr].concat();
    (
        String::from_utf8_lossy(&text).into_owned(),
        output.status.code(),
    )
}

#[test]
fn processes_of_another_user_are_counted_and_the_remedy_is_named() {
    // The job is root's if the test is. Otherwise, other processes of this machine are root's.
    let job = StuckJob::start(2, "idle");
    let number = if geteuid().is_root() {
        job.report(
            "verdict: rank 0: no operation in flight; it awaits something that is not communication",
            1,
        );
        job.pid()
    } else {
        1 << 30
    };
    let (text, code) = stuck_without_rights(number);
    let start =
        format!("no rank of a Ripstop job on this machine belongs to process or job {number} (");
    assert!(text.contains(&start), "{text}");
    let end = " processes of other users could not be searched; root sees them)";
    assert!(text.contains(end), "{text}");
    assert_eq!(code, Some(2), "{text}");
}

#[test]
fn a_rank_that_is_not_dumpable_is_not_said_to_have_ended() {
    let mut command = without_rights();
    command
        .args(["run", "-n", "2", "--"])
        .arg(env::current_exe().unwrap())
        .args(AS_RANK)
        .env(ROLE, "not_dumpable");
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let job = StuckJob(command.spawn().unwrap());
    let end = now() + GUARD;
    let text = loop {
        let (text, _) = stuck_without_rights(job.pid());
        let last = text.lines().last().unwrap_or_default();
        if last.starts_with("verdict: rank 0 waits for ") {
            break text;
        }
        assert!(now() < end, "{text}");
    };
    let at = place("recv from a rank that is not dumpable");
    assert!(text.contains(&at), "{text}");
    // Its view is readable if the launcher has opened it in time.
    let is_known = text.contains("rank 1 has sent ") || text.contains("rank 1 was not found");
    assert!(is_known && !text.contains("has ended"), "{text}");
}

/// Returns the first of these commands that this machine allows; the machines of CI allow the last one.
#[expect(clippy::print_stderr, reason = "a test that is skipped says so")]
fn allowed(commands: [&'static str; 2]) -> Option<&'static str> {
    let works = |command: &&str| {
        let done = Command::new("sh")
            .args(["-c", &format!("{command} true")])
            .output();
        done.is_ok_and(|done| done.status.success())
    };
    let found = commands.into_iter().find(works);
    if found.is_none() {
        assert!(
            env::var_os("CI").is_none(),
            "{commands:?} are forbidden here"
        );
        eprintln!("skipped: {commands:?} are forbidden here");
    }
    found
}

#[test]
fn ranks_in_pid_namespaces_of_their_own_are_found() {
    let commands = [
        "unshare -p -f --kill-child",
        "unshare -U -r -p -f --kill-child",
    ];
    let Some(unshare) = allowed(commands) else {
        return;
    };
    let own = env::current_exe().unwrap();
    let script = format!("exec {unshare} {} {}", own.display(), AS_RANK.join(" "));
    let mut command = Command::new(RIPSTOP);
    command.args(["run", "-n", "2", "--", "sh", "-c", &script]);
    command.env(ROLE, "recv_ring").stdin(Stdio::null());
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let job = StuckJob(command.spawn().unwrap());
    let at = place("ring recv");
    job.report(
        &format!(
            "verdict: deadlock: rank 0 receives from 1 ({at}) -> rank 1 receives from 0 ({at})"
        ),
        1,
    );
}
