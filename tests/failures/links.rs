//! Links between hosts that are cut, flap, or lose what is sent in one direction: what works again has lost nothing, and
//! everything else ends with an error that names the rank on the other side.
//!
//! Each of three hosts has a rank. The links are those of `cargo xtask hosts`, and the second host's is the one that fails. The
//! launcher reaches the hosts without them.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use futures::future::join_all;
use ripstop::{Collectives, Comm, Error, Result};

use crate::{
    content::content,
    hosts,
    job::{Job, pause},
    one_at_a_time,
    roles::{afterwards, failed, ready},
};

#[test]
#[ignore = "needs the links of hosts"]
fn a_link_that_is_cut_while_nothing_is_in_flight_ends_what_waits_on_either_side() {
    cut("idle", "pull");
}

#[test]
#[ignore = "needs the links of hosts"]
fn a_link_that_is_cut_with_data_in_flight_ends_what_waits_on_either_side() {
    cut("busy", "pull");
}

#[test]
#[ignore = "needs the links of hosts"]
fn an_idle_host_that_nothing_reaches_any_more_is_lost_and_loses_the_others() {
    cut("idle", "deaf");
}

#[test]
#[ignore = "needs the links of hosts"]
fn a_busy_host_that_nothing_reaches_any_more_is_lost_and_loses_the_others() {
    cut("busy", "deaf");
}

#[test]
#[ignore = "needs the links of hosts"]
fn an_idle_host_from_which_nothing_comes_any_more_is_lost_and_loses_the_others() {
    cut("idle", "mute");
}

#[test]
#[ignore = "needs the links of hosts"]
fn a_busy_host_from_which_nothing_comes_any_more_is_lost_and_loses_the_others() {
    cut("busy", "mute");
}

#[test]
#[ignore = "needs the links of hosts"]
fn a_host_that_long_packets_do_not_reach_is_lost_and_its_probes_do_not_help() {
    cut("one_way", "narrow");
}

#[test]
#[ignore = "needs the links of hosts"]
fn a_link_that_comes_back_again_and_again_loses_nothing() {
    let _turn = one_at_a_time();
    let mut job = Job::start("flapping", RANKS);
    job.all_ready();
    for _ in 0..3 {
        let link = FailedLink::new("pull");
        pause(Duration::from_millis(700));
        drop(link);
        pause(Duration::from_millis(300));
    }
    job.let_go(0);
    assert_eq!(job.end().0, []);
}

/// Spoils the link of rank 1 while ranks are idle or busy. All of them end well, because they expect the failure.
fn cut(role: &str, how: &str) {
    let _turn = one_at_a_time();
    let mut job = Job::start(role, RANKS);
    job.all_ready();
    let _link = FailedLink::new(how);
    let (bad, took) = job.end();
    println!(
        "{role}, {how}: all ranks had ended {} ms later",
        took.as_millis()
    );
    assert_eq!(bad, []);
    assert!(took < SILENCE + MACHINE, "{role}, {how}: {took:?}");
}

/// The link of the second host, until it is dropped.
struct FailedLink;

impl FailedLink {
    fn new(how: &str) -> Self {
        let bytes: &[&str] = if how == "narrow" { &["1280"] } else { &[] };
        hosts::run("cable", &[&[how, "h2"], bytes].concat());
        Self
    }
}

impl Drop for FailedLink {
    fn drop(&mut self) {
        hosts::run("cable", &["plug", "h2"]);
    }
}

/// What goes over the link when it fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkTraffic {
    /// Nothing: the ranks wait for messages that never come.
    Idle,
    BothWays,
    /// Long messages to the rank behind the link, which sends none.
    OneWay,
}

/// Waits or exchanges messages until the other side of the link has failed.
pub(crate) async fn until_cut(world: &Comm, traffic: LinkTraffic) -> Result<()> {
    let mut across = other_side(world);
    round(world, 0, &mut across.clone(), 1000).await;
    world.barrier().await?;
    ready();
    match traffic {
        LinkTraffic::BothWays => {
            for number in 1.. {
                round(world, number, &mut across, 300_000).await;
                if across.is_empty() {
                    break;
                }
            }
        }
        LinkTraffic::OneWay if world.rank() == CUT_OFF => {
            // Each peer sends what the network takes, whatever becomes of the others.
            join_all(across.iter().map(|&peer| receive_until_narrow(world, peer))).await;
        }
        LinkTraffic::OneWay => send_until_narrow(world).await,
        LinkTraffic::Idle => {
            let inboxes: Vec<_> = across
                .iter()
                .map(|&peer| (peer, world.recv::<u8>(peer, 9)))
                .collect();
            for (peer, inbox) in inboxes {
                assert_eq!(
                    failed(&inbox.await.expect_err("never sent").error.kind),
                    peer
                );
            }
        }
    }
    match world.rank() {
        CUT_OFF => Ok(()),
        _ => afterwards(world, CUT_OFF).await,
    }
}

/// All ranks exchange messages until the input of rank 0 ends.
pub(crate) async fn until_told(world: &Comm) -> Result<()> {
    let told = Arc::new(AtomicBool::new(false));
    if world.rank() == 0 {
        let told = Arc::clone(&told);
        thread::spawn(move || {
            std::io::stdin().lines().for_each(drop);
            told.store(true, Relaxed);
        });
    }
    let peers: BTreeSet<usize> = (0..world.size())
        .filter(|&rank| rank != world.rank())
        .collect();
    ready();
    for number in 0.. {
        let is_last = world.bcast(0, [u8::from(told.load(Relaxed))]).await?;
        let mut alive = peers.clone();
        round(world, number, &mut alive, 30_000).await;
        assert_eq!(alive, peers, "round {number}");
        if is_last == [1] {
            break;
        }
    }
    world.barrier().await
}

/// Sends to each peer and receives from it. Peers that have failed are taken away.
async fn round(world: &Comm, number: u64, peers: &mut BTreeSet<usize>, len: usize) {
    let message = |from: usize| content(number << 8 | from as u64, len);
    let in_flight: Vec<_> = peers
        .iter()
        .map(|&peer| {
            let inbox = world.recv::<u8>(peer, 1);
            (peer, inbox, world.send(peer, 1, message(world.rank())))
        })
        .collect();
    for (peer, inbox, sent) in in_flight {
        match inbox.await {
            Ok((got, _)) => assert!(got == message(peer), "round {number} of rank {peer}"),
            Err(gone) => {
                assert_eq!(failed(&gone.error.kind), peer);
                peers.remove(&peer);
            }
        }
        if let Err(gone) = sent.await {
            assert_eq!(failed(&gone.error.kind), peer);
            peers.remove(&peer);
        }
    }
}

/// Receives messages of a peer until it has failed, with an error that names the reason.
async fn receive_until_narrow(world: &Comm, peer: usize) {
    loop {
        if let Err(gone) = world.recv::<u8>(peer, 1).await {
            return check_narrow(&gone.error, peer);
        }
    }
}

/// Checks that an error names the peer that has failed, its host, and the reason.
fn check_narrow(error: &Error, peer: usize) {
    assert_eq!(failed(&error.kind), peer);
    let (text, host) = (error.to_string(), peer + 1);
    for part in [
        format!("rank {peer} on host h{host} failed: "),
        format!("rank {peer} (10."),
        "one MTU".to_owned(),
    ] {
        assert!(text.contains(&part), "{part} in {text}");
    }
}

/// Sends long messages over the link until the rank behind it has failed, with an error that names the reason.
async fn send_until_narrow(world: &Comm) {
    loop {
        if let Err(gone) = world.send(CUT_OFF, 1, vec![7_u8; 200_000]).await {
            return check_narrow(&gone.error, CUT_OFF);
        }
    }
}

/// Returns the ranks on the other side of the link that fails.
fn other_side(world: &Comm) -> BTreeSet<usize> {
    match world.rank() {
        CUT_OFF => (0..world.size()).filter(|&rank| rank != CUT_OFF).collect(),
        _ => BTreeSet::from([CUT_OFF]),
    }
}

/// The rank on the second host.
const CUT_OFF: usize = 1;

const RANKS: usize = 3;

/// How long a host may be silent: the least that the driver takes, which is more than twice what the roles set.
const SILENCE: Duration = Duration::from_secs(5);

/// Time for everything else on a machine that is busy. That is less than what a host may gain whose packets, which the kernel
/// sends again and again, were taken for life.
const MACHINE: Duration = Duration::from_secs(5);
