#![expect(clippy::print_stdout, reason = "seeds are printed")]

use std::collections::{BTreeMap, BTreeSet};

use ripstop_fabric::random::SeededRandom;

use super::{DetectorFindings, FailureDetector, PINGS};
use crate::group::WorldRank;

const INTERVAL: u64 = 3_200;

fn set<const N: usize>(ranks: [u32; N]) -> BTreeSet<WorldRank> {
    BTreeSet::from(ranks.map(WorldRank))
}

/// A driver that does not count answers.
fn unanswered(_rank: WorldRank) -> u64 {
    0
}

/// Returns a detector that waits for these peers and has looked once, at time 0.
fn watching<const N: usize>(ranks: [u32; N]) -> (FailureDetector, BTreeSet<WorldRank>) {
    let (mut alive, waited) = (FailureDetector::new(INTERVAL), set(ranks));
    let first = alive.check_peers(0, &waited, unanswered);
    assert_eq!((first.to_ping.len(), first.failed.len()), (0, 0));
    ranks
        .iter()
        .for_each(|&rank| alive.handle_heard(WorldRank(rank), 0));
    (alive, waited)
}

#[test]
fn a_silent_peer_is_pinged_after_one_interval_and_failed_after_two() {
    let (mut alive, waited) = watching([3]);
    let mut pings = Vec::new();
    while let Some(now) = alive.next_check() {
        let found = alive.check_peers(now, &waited, unanswered);
        if !found.failed.is_empty() {
            assert_eq!((now, found.failed), (2 * INTERVAL, vec![WorldRank(3)]));
            break;
        }
        pings.push(now);
    }
    assert_eq!(pings.first(), Some(&INTERVAL));
    assert_eq!(pings.len(), PINGS as usize);
}

#[test]
fn an_answering_peer_is_pinged_once_in_an_interval() {
    let (mut alive, waited) = watching([1]);
    let mut pings = 0;
    while let Some(now) = alive.next_check().filter(|&now| now < 100 * INTERVAL) {
        let found = alive.check_peers(now, &waited, unanswered);
        assert_eq!(found.failed, []);
        if !found.to_ping.is_empty() {
            pings += 1;
            alive.handle_heard(WorldRank(1), now + 10);
        }
    }
    assert!((95..=100).contains(&pings), "{pings}");
}

#[test]
fn no_peer_is_pinged_while_this_rank_waits_for_none() {
    let mut alive = FailureDetector::new(INTERVAL);
    assert_eq!(alive.next_check(), None);
    alive.expect_wait(50);
    assert_eq!(alive.next_check(), Some(50 + INTERVAL));
    assert_eq!(
        alive.check_peers(50 + INTERVAL, &set([]), unanswered),
        DetectorFindings::default()
    );
    assert_eq!(alive.next_check(), None);
}

#[test]
fn a_wait_that_began_after_a_death_ends_within_two_intervals_too() {
    let mut alive = FailureDetector::new(INTERVAL);
    alive.expect_wait(1_000_000);
    let mut now = 1_000_000;
    while alive
        .check_peers(now, &set([9]), unanswered)
        .failed
        .is_empty()
    {
        now = alive.next_check().expect("a peer is waited for");
    }
    assert!(now <= 1_000_000 + 2 * INTERVAL, "{now}");
}

#[test]
fn our_own_absence_is_nobodys_silence() {
    let (mut alive, waited) = watching([1, 2]);
    let away = 50 * INTERVAL;
    let found = alive.check_peers(away, &waited, unanswered);
    assert_eq!(
        found,
        DetectorFindings {
            to_ping: vec![WorldRank(1), WorldRank(2)],
            ..DetectorFindings::default()
        }
    );
    alive.handle_heard(WorldRank(1), away + 1);
    let mut failed = Vec::new();
    while let Some(now) = alive.next_check().filter(|&now| now <= away + INTERVAL) {
        failed.extend(alive.check_peers(now, &waited, unanswered).failed);
    }
    assert_eq!(failed, [WorldRank(2)]);
}

/// A peer of the random test: when it receives and answers.
struct Peer {
    dies: u64,
    pauses: BTreeMap<u64, u64>,
}

impl Peer {
    /// Returns when the peer answers a ping that arrives at `at`.
    fn answers(&self, at: u64) -> Option<u64> {
        let pause = self.pauses.range(..=at).next_back();
        let at = pause.map_or(at, |(_, &end)| at.max(end));
        (at < self.dies).then_some(at)
    }

    fn random(random: &mut SeededRandom, end: u64) -> Self {
        let mut pauses = BTreeMap::new();
        let mut at = 0;
        while at < end {
            at += random.within(1..4 * INTERVAL);
            let until = at + random.within(1..INTERVAL - 4 * TRIP - SLACK);
            pauses.insert(at, until);
            at = until;
        }
        let dies = if random.chance(0.5) {
            random.within(0..end)
        } else {
            u64::MAX
        };
        Self { dies, pauses }
    }
}

const TRIP: u64 = 20;
/// After this time, a lost ping has been repeated often enough.
const SLACK: u64 = INTERVAL / 2;

#[test]
fn the_dead_are_found_in_time_and_the_paused_are_spared_although_a_third_of_all_is_lost() {
    for seed in 0..40 {
        println!("seed {seed}");
        let mut random = SeededRandom::new(seed);
        let end = 200 * INTERVAL;
        let peers: Vec<Peer> = (0..8).map(|_| Peer::random(&mut random, end)).collect();
        let mut waited: BTreeSet<_> = (0..8).map(WorldRank).collect();
        let mut answers: BTreeSet<(u64, WorldRank)> = BTreeSet::new();
        let mut alive = FailureDetector::new(INTERVAL);
        alive.expect_wait(0);
        while let Some(now) = alive.next_check().filter(|&now| now < end) {
            while let Some(&(at, rank)) = answers.first().filter(|&&(at, _)| at <= now) {
                answers.pop_first();
                alive.handle_heard(rank, at);
            }
            let found = alive.check_peers(now, &waited, unanswered);
            for rank in found.failed {
                let died = peers[rank.0 as usize].dies;
                assert!(died < now, "rank {rank} was wronged at {now}");
                assert!(
                    now <= died + 2 * INTERVAL + 2 * TRIP,
                    "rank {rank} died at {died}, known at {now}"
                );
                waited.remove(&rank);
            }
            for rank in found.to_ping {
                let answer = peers[rank.0 as usize].answers(now + TRIP);
                if let Some(at) = answer.filter(|_| !random.chance(0.51)) {
                    answers.insert((at + TRIP, rank));
                }
            }
        }
        let missed = waited
            .iter()
            .filter(|&&rank| peers[rank.0 as usize].dies < end - 3 * INTERVAL);
        assert_eq!(missed.count(), 0);
    }
}

#[test]
fn whose_adapter_answers_has_not_failed_until_two_intervals_after_its_last_answer() {
    let (mut alive, waited) = watching([5]);
    let (mut answers, mut now) = (0, 0);
    while now < 100 * INTERVAL {
        now = alive.next_check().expect("a peer is waited for");
        let found = alive.check_peers(now, &waited, |_| answers);
        assert_eq!(found.failed, []);
        answers += u64::from(!found.to_ping.is_empty());
    }
    let died = now;
    loop {
        now = alive.next_check().expect("a peer is waited for");
        if !alive
            .check_peers(now, &waited, |_| answers)
            .failed
            .is_empty()
        {
            break;
        }
    }
    assert!(now <= died + 2 * INTERVAL, "{now}, died {died}");
}

#[test]
fn a_peer_that_is_waited_for_beside_others_has_two_intervals_too() {
    let mut alive = FailureDetector::new(INTERVAL);
    let (mut now, mut since, mut waited) = (0, None, set([1]));
    alive.expect_wait(now);
    // Rank 1 is pinged often at the end of its silence. In the middle of that, this rank begins to wait for rank 2.
    loop {
        now = alive.next_check().expect("a peer is waited for");
        let found = alive.check_peers(now, &waited, unanswered);
        if found.failed.contains(&WorldRank(2)) {
            break;
        }
        if since.is_none() && now > INTERVAL + INTERVAL / 2 {
            since = Some(now);
            waited.insert(WorldRank(2));
        }
        found.failed.iter().for_each(|rank| _ = waited.remove(rank));
    }
    let since = since.expect("it is");
    assert!(
        (since + 2 * INTERVAL..=since + 2 * INTERVAL + INTERVAL / 16).contains(&now),
        "waited for since {since}, failed at {now}"
    );
}

#[test]
fn silence_counts_only_while_this_rank_looks() {
    let (mut alive, waited) = watching([1]);
    // Whenever this rank is about to judge, the operating system does not schedule it for a while.
    for _ in 0..100 {
        let now = alive.next_check().expect("a peer is waited for") + INTERVAL / 8;
        assert!(alive.is_due(now, true));
        assert_eq!(alive.check_peers(now, &waited, unanswered).failed, []);
    }
    let found = loop {
        let now = alive.next_check().expect("a peer is waited for");
        let found = alive.check_peers(now, &waited, unanswered);
        if !found.failed.is_empty() {
            break found;
        }
    };
    assert_eq!((found.failed, found.seen), (vec![WorldRank(1)], vec![]));
}

#[test]
fn nothing_is_judged_before_all_that_has_come_is_heard_but_not_for_ever() {
    let (mut alive, _) = watching([1]);
    let due = alive.next_check().expect("a peer is waited for");
    let mut now = due;
    while !alive.is_due(now, false) {
        assert!(now <= due + 2 * INTERVAL, "never judged");
        now += INTERVAL / 100;
    }
    assert!(now > due + INTERVAL, "{now}, due {due}");
    let (mut alive, _) = watching([1]);
    assert!(alive.is_due(due, true));
}

#[test]
fn a_peer_that_another_rank_reported_dead_is_pinged_at_once_and_must_answer_early() {
    for answers in [false, true] {
        let (mut alive, waited) = watching([1, 2]);
        alive.suspect(WorldRank(1), 10);
        assert_eq!(alive.next_check(), Some(10));
        assert_eq!(
            alive.check_peers(10, &waited, unanswered).to_ping,
            [WorldRank(1)]
        );
        if answers {
            alive.handle_heard(WorldRank(1), 20);
        }
        let mut failed = None;
        while let Some(now) = alive.next_check().filter(|&now| now < INTERVAL) {
            let found = alive.check_peers(now, &waited, unanswered);
            if !found.failed.is_empty() {
                assert_eq!(
                    (&found.failed, &found.seen),
                    (&vec![WorldRank(1)], &vec![WorldRank(1)])
                );
                failed = Some(now);
                break;
            }
        }
        let expected = (!answers).then_some(10 + INTERVAL / super::SUSPECT_FRACTION);
        assert_eq!(failed, expected);
    }
}

#[test]
fn a_doubt_about_a_peer_that_is_not_waited_for_is_kept_until_it_is_or_until_it_speaks() {
    for speaks in [false, true] {
        let mut alive = FailureDetector::new(INTERVAL);
        alive.suspect(WorldRank(7), 0);
        assert_eq!(alive.next_check(), None, "nothing is waited for");
        if speaks {
            alive.handle_heard(WorldRank(7), 1);
        }
        alive.expect_wait(5);
        let mut now = alive.next_check().expect("a peer is waited for");
        while alive
            .check_peers(now, &set([7]), unanswered)
            .failed
            .is_empty()
        {
            now = alive.next_check().expect("a peer is waited for");
        }
        let limit = if speaks {
            INTERVAL
        } else {
            INTERVAL / super::SUSPECT_FRACTION
        };
        assert_eq!(now, 5 + INTERVAL + limit);
    }
}
