//! Ranks of several nodes that name no fabric: they choose a network. The nodes are parts of this machine.

use std::{
    io::Write,
    process::{Command, Stdio},
};

use ripstop::{ErrorKind, Runtime};
use ripstop_rt::boot::Boot;
use rustix::process::{Signal, getpid, kill_process};

use crate::{
    ended, launcher, role,
    roles::{AS_RANK, ROLE},
    spaces::talk_with_all,
};

/// Four ranks on nodes of so many, where nothing but TCP can be used.
fn on_nodes_of(shm_ranks: u32, options: &[&str], role_name: &str) -> Command {
    spread(role(4, options, role_name), shm_ranks)
}

/// Puts so many ranks of a job on each node, where nothing but TCP can be used.
fn spread(mut command: Command, shm_ranks: u32) -> Command {
    command
        .env_remove("RIPSTOP_FABRIC")
        .env("RIPSTOP_SHM_RANKS", shm_ranks.to_string())
        .env("RIPSTOP_VERBS_DEVICE", "nothing0")
        .env("RIPSTOP_PORTALS_LIBRARY", "/nowhere/libportals.so");
    command
}

#[test]
fn ranks_of_several_nodes_talk_over_tcp_without_a_setting() {
    for shm_ranks in [1, 2, 3] {
        for reactor in ["auto", "epoll"] {
            let mut command = on_nodes_of(shm_ranks, &[], NETWORKED);
            command.env("RIPSTOP_REACTOR", reactor);
            let job = ended(command);
            job.with(0, &[]);
            for rank in 0..4 {
                job.says_once(&format!(
                    "rank {rank} has talked over shm+tcp: some ranks do not share memory"
                ));
            }
        }
    }
}

#[test]
fn the_first_rank_prints_the_choice_if_asked_to() {
    let chosen = "ripstop: rank 0: info: shm+tcp: some ranks do not share memory";
    for (filter, lines) in [
        ("info", 1),
        ("warn", 0),
        ("off", 0),
        ("ripstop::fabric=info,warn", 1),
        ("ripstop::boot=info,warn", 0),
    ] {
        let mut command = on_nodes_of(2, &[], NETWORKED);
        command.env("RIPSTOP_LOG", filter);
        let job = ended(command);
        job.with(0, &[]);
        assert_eq!(job.err.matches(chosen).count(), lines, "{}", job.err);
    }
}

#[test]
fn a_filter_of_events_that_is_none_is_an_error_that_names_the_variable() {
    let mut command = on_nodes_of(2, &[], NETWORKED);
    command.env("RIPSTOP_LOG", "ripstop::fabrik=debug");
    let job = ended(command);
    let said = "RIPSTOP_LOG=ripstop::fabrik=debug is out of range: it may be off | error | warn";
    assert!(job.err.contains(said), "{}", job.err);
}

#[test]
fn an_adapter_that_was_asked_for_and_cannot_be_used_is_told_without_a_setting() {
    let job = ended(on_nodes_of(2, &[], NETWORKED));
    job.with(
        0,
        &["ripstop: rank 0: warning: verbs is not offered to the job: "],
    );
}

#[test]
fn ranks_of_one_node_open_no_network() {
    let mut command = on_nodes_of(4, &[], NETWORKED);
    command.env("RIPSTOP_TCP_IFACE", "nothing0");
    let job = ended(command);
    job.with(0, &[]);
    for rank in 0..4 {
        job.says_once(&format!(
            "rank {rank} has talked over shm: all ranks share memory"
        ));
    }
}

#[test]
fn ranks_without_a_network_hear_why_each_one_cannot_be_used() {
    let mut command = on_nodes_of(2, &[], NETWORKED);
    command.env("RIPSTOP_TCP_IFACE", "nothing0");
    let job = ended(command);
    job.with(
        9,
        &[
            "no network is offered by all of them",
            "verbs: not by rank",
            "portals: not by rank",
            "/nowhere/libportals.so",
            "RIPSTOP_TCP_IFACE names nothing0",
            "ripstop info --fabrics",
        ],
    );
}

#[test]
fn the_death_of_a_rank_is_heard_over_a_network_that_was_chosen() {
    let job = ended(on_nodes_of(2, &["--keep-going"], BEREAVED));
    for rank in [0, 2, 3] {
        job.says_once(&format!("rank {rank} outlived rank 1 over shm+tcp"));
    }
}

/// Arguments of `sh` before those of a program that starts with these descriptors closed.
fn closed(descriptors: &str) -> [String; 3] {
    let script = format!("exec \"$@\" {descriptors}");
    ["-c".to_owned(), script, "sh".to_owned()]
}

#[test]
fn ranks_that_start_without_standard_descriptors_talk_over_tcp() {
    for (descriptors, is_heard) in [("<&- 2>&-", true), ("<&- >&- 2>&-", false)] {
        let mut command = launcher(4, &[]);
        command.args(["--", "sh"]).args(closed(descriptors));
        command.arg(std::env::current_exe().unwrap()).args(AS_RANK);
        command.env(ROLE, NETWORKED);
        let job = ended(spread(command, 1));
        job.with(0, &[]);
        for rank in (0..4).filter(|_| is_heard) {
            job.says_once(&format!("rank {rank} has talked over shm+tcp: "));
        }
    }
}

#[test]
fn a_launcher_that_starts_without_standard_descriptors_runs_its_job() {
    let plain = on_nodes_of(1, &[], NETWORKED);
    for (descriptors, is_heard) in [("<&- 2>&-", true), ("<&- >&- 2>&-", false)] {
        let mut command = Command::new("sh");
        command
            .args(closed(descriptors))
            .arg(plain.get_program())
            .args(plain.get_args())
            .stdin(Stdio::null());
        for (name, value) in plain.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        let job = ended(command);
        job.with(0, &[]);
        for rank in (0..4).filter(|_| is_heard) {
            job.says_once(&format!("rank {rank} has talked over shm+tcp: "));
        }
    }
}

pub(crate) const NETWORKED: &str = "networked";
pub(crate) const BEREAVED: &str = "bereaved";

/// What the ranks of these tests do.
pub(crate) fn play(role: &str, boot: Boot) {
    let rank = boot.rank;
    let runtime = match Runtime::builder().boot(boot).init() {
        Ok(runtime) => runtime,
        Err(error) => {
            let _closed = writeln!(std::io::stderr(), "{error}");
            std::process::exit(9)
        }
    };
    let choices = runtime.choices();
    if role == NETWORKED {
        runtime.block_on(talk_with_all(&runtime.world()));
        say(&format!(
            "rank {rank} has talked over {}\n",
            choices.fabric_why
        ));
        runtime.close().unwrap();
    } else {
        outlive(&runtime);
        say(&format!(
            "rank {rank} outlived rank 1 over {}\n",
            choices.fabric
        ));
    }
}

/// Rank 1 is killed when all have heard from it.
fn outlive(runtime: &Runtime) {
    let world = runtime.world();
    runtime.block_on(async {
        if world.rank() == 1 {
            for peer in [0, 2, 3] {
                world.send(peer, 1, [1_u8]).await.unwrap();
                world.recv::<u8>(peer, 2).await.unwrap();
            }
            kill_process(getpid(), Signal::KILL).unwrap();
        }
        world.recv::<u8>(1, 1).await.unwrap();
        world.send(1, 2, [1_u8]).await.unwrap();
        let gone = world.recv::<u8>(1, 3).await.unwrap_err();
        let failed = matches!(gone.error.kind, ErrorKind::PeerFailed { rank: 1, .. });
        assert!(failed, "{}", gone.error);
    });
}

fn say(line: &str) {
    std::io::stdout().write_all(line.as_bytes()).unwrap();
}
