//! Ranks that meet under a launcher, ours and MPICH's, and ranks that do not come.

use std::process::{Command, Stdio};

use crate::{
    Ended, ended, launcher, role,
    roles::{AS_RANK, ROLE},
};

#[test]
fn ranks_exchange_under_our_launcher() {
    let job = ended(role(4, &[], "exchange"));
    job.with(0, &[]);
    for rank in 0..4 {
        assert!(
            job.out
                .contains(&format!("rank {rank} of 4 (pmi-1), node [0, 1, 2, 3]")),
            "{}",
            job.out
        );
    }
}

#[test]
fn ranks_exchange_under_mpich() {
    exchange_under("mpiexec.hydra", "mpich", "pmi-1");
}

#[test]
fn ranks_exchange_under_open_mpi() {
    exchange_under("orterun", "openmpi-bin", "pmix");
}

/// Under another launcher, alone and with ours above it.
fn exchange_under(name: &str, package: &str, found: &str) {
    if !is_installed(name, package) {
        return;
    }
    let alone = Command::new(name);
    let mut below_ours = launcher(1, &[]);
    below_ours.args(["--", name]);
    for mut command in [alone, below_ours] {
        command.args(options_of(name)).args(["-n", "4"]);
        let job = exchanging(command);
        job.with(0, &[]);
        for rank in 0..4 {
            job.says_once(&format!("rank {rank} of 4 ({found}), node [0, 1, 2, 3]"));
        }
    }
}

/// The variables of both launchers are set, in either order.
#[test]
fn ranks_belong_to_the_inner_of_two_launchers() {
    let [hydra, orte] = ["mpiexec.hydra", "orterun"];
    if !(is_installed(hydra, "mpich") && is_installed(orte, "openmpi-bin")) {
        return;
    }
    for (outer, inner, found) in [(orte, hydra, "pmi-1"), (hydra, orte, "pmix")] {
        let mut command = Command::new(outer);
        command.args(options_of(outer)).args(["-n", "1", inner]);
        command.args(options_of(inner)).args(["-n", "2"]);
        let job = exchanging(command);
        job.with(0, &[]);
        for rank in 0..2 {
            job.says_once(&format!("rank {rank} of 2 ({found}), node [0, 1]"));
        }
    }
    // A rank alone below two ranks, of which only variables are left.
    let mut command = Command::new(hydra);
    command.args(["-n", "2", orte]);
    command.args(options_of(orte)).args(["-n", "1"]);
    let job = exchanging(command);
    job.with(9, &["PMI_SIZE=2 says that", "RIPSTOP_BOOT=singleton"]);
}

/// Lets the ranks that `command` starts exchange messages.
fn exchanging(mut command: Command) -> Ended {
    let as_root = ["OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"];
    command.envs(as_root.map(|variable| (variable, "1")));
    command
        .arg(std::env::current_exe().unwrap())
        .args(AS_RANK)
        .env(ROLE, "exchange")
        .stdin(Stdio::null());
    ended(command)
}

pub(crate) fn is_installed(name: &str, package: &str) -> bool {
    let found = Command::new(name).arg("--version").output();
    if let Err(error) = &found {
        assert!(
            std::env::var_os("CI").is_none(),
            "{name}: {error}; CI installs {package}"
        );
        skipped(&format!("{name} not installed"));
    }
    found.is_ok()
}

/// What a container needs.
pub(crate) fn options_of(name: &str) -> &'static [&'static str] {
    if name == "orterun" {
        &["--oversubscribe"]
    } else {
        &[]
    }
}

#[test]
fn a_rank_alone_is_one_rank_unless_another_launcher_started_several() {
    let alone = |variables: &[(&str, &str)]| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(AS_RANK)
            .env(ROLE, "exchange")
            .envs(variables.iter().copied());
        for name in ["SLURM_NTASKS", "PMI_FD"] {
            command.env_remove(name);
        }
        ended(command)
    };
    assert!(
        alone(&[])
            .with(0, &[])
            .out
            .contains("rank 0 of 1 (singleton), node [0]")
    );
    alone(&[("OMPI_COMM_WORLD_SIZE", "2")]).with(
        9,
        &[
            "OMPI_COMM_WORLD_SIZE=2",
            "ripstop run -n 2",
            "mpiexec.hydra -n 2",
        ],
    );
}

#[test]
fn a_rank_that_leaves_while_others_wait_ends_the_job() {
    for (name, how) in [
        ("finalize-early", "finalized"),
        ("exit-early", "exited with code 0"),
    ] {
        let job = ended(role(3, &[], name));
        job.with(
            1,
            &[&format!(
                "rank 1 {how}, and ranks 0 and 2 would wait for it in a fence forever"
            )],
        );
    }
}

#[test]
fn with_keep_going_the_survivors_meet_in_their_fences() {
    let job = ended(role(3, &["--keep-going"], "die-then-fence"));
    job.with(137, &["rank 1 (pid ", "(SIGKILL)"]);
    assert_eq!(job.out.matches("survived").count(), 2, "{}", job.out);
}

/// The rank is lost before it is on its node's board, which only a time limit detects. The maker of the board gives up, and the
/// third rank hears of both.
#[test]
fn with_keep_going_a_survivor_does_not_wait_for_a_rank_that_never_came() {
    let mut command = role(3, &["--keep-going"], "die-before-arrival");
    command.env("RIPSTOP_BOOT_TIMEOUT", "15");
    let job = ended(command);
    let late = "1 of the 2 other ranks of this node have attached to its board";
    job.with(137, &["rank 1 (pid ", "(SIGKILL)", late]);
    assert!(job.out.contains("rank 2 heard of both\n"), "{}", job.err);
}

#[expect(clippy::print_stderr, reason = "a test that is skipped says so")]
pub(crate) fn skipped(why: &str) {
    eprintln!("skipped: {why}");
}
