//! Random agreements, shrinks, revocations and departures on one communicator, while ranks fail at any moment. A rank that fails
//! loses some of what it had queued, and the others learn of its failure one after the other, at any later time.
#![expect(clippy::print_stdout, reason = "seeds are printed")]

use std::{collections::BTreeSet, ops::Range};

use ripstop_fabric::{driver::DownCause, random::SeededRandom};

use super::alone::{COMM, LoneSurvivor, lone_survivors, settle};
use crate::{
    engine::recovery::{AgreementId, FailureCursor},
    group::WorldRank,
    proto::agree::AgreeValue,
};

/// What all ranks call, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Agree,
    Shrink,
}

struct Member {
    rank: LoneSurvivor,
    failures: FailureCursor,
    /// Calls so far. A future that was dropped is `None`.
    calls: Vec<Option<AgreementId>>,
    /// What this rank brought to each of its calls of an agreement.
    brought: Vec<(bool, u32)>,
    /// True once this rank has dropped the communicator.
    left: bool,
}

/// What happens in a program besides calls.
#[derive(Clone, Copy)]
struct RandomEvents {
    fail: bool,
    leave: bool,
}

struct RandomFailures {
    random: SeededRandom,
    events: RandomEvents,
    plan: Vec<Call>,
    members: Vec<Member>,
    dead: BTreeSet<usize>,
    /// Failed ranks, each with a rank that has not been notified.
    news: Vec<(usize, usize)>,
    /// True if a rank that lives at the end knows that the communicator was revoked.
    is_revoked: bool,
}

impl RandomFailures {
    fn new(seed: u64, events: RandomEvents) -> Self {
        let mut random = SeededRandom::new(seed);
        let size = below(&mut random, 9) + 2;
        let plan: Vec<Call> = (0..=below(&mut random, 5))
            .map(|_| [Call::Agree, Call::Shrink][below(&mut random, 2)])
            .collect();
        println!("seed {seed}: {size} ranks call {plan:?}");
        let members = lone_survivors(u32::try_from(size).expect("few"));
        let members = members.into_iter().map(|mut rank| {
            rank.use_contexts(u32::try_from(below(&mut random, 4)).expect("few"));
            Member {
                failures: rank.follow_failures(),
                rank,
                calls: Vec::new(),
                brought: Vec::new(),
                left: false,
            }
        });
        Self {
            members: members.collect(),
            random,
            events,
            plan,
            dead: BTreeSet::new(),
            news: Vec::new(),
            is_revoked: false,
        }
    }

    fn below(&mut self, limit: usize) -> usize {
        below(&mut self.random, limit)
    }

    fn living(&self) -> Vec<usize> {
        let all = 0..self.members.len();
        all.filter(|rank| !self.dead.contains(rank)).collect()
    }

    fn any_living(&mut self) -> usize {
        let living = self.living();
        living[self.below(living.len())]
    }

    /// Lets something happen. Ranks fail, revoke and leave only where the program says so.
    fn act(&mut self) {
        let rank = self.any_living();
        match self.below(24) {
            0..=5 => self.call(rank),
            6 if self.events.fail => self.kill(rank),
            7 if self.events.leave => self.leave(rank),
            8 if self.events.fail => self.revoke(rank),
            9 => self.forget(rank),
            10..=12 => self.deliver_news(),
            _ => _ = self.members[rank].rank.turn(),
        }
    }

    fn call(&mut self, rank: usize) {
        let (flag, number) = (self.random.chance(0.7), self.below(100));
        let number = u32::try_from(number).expect("small");
        let member = &mut self.members[rank];
        let Some(call) = self.plan.get(member.calls.len()).filter(|_| !member.left) else {
            return;
        };
        let id = match call {
            Call::Agree => member.rank.agree(flag, number),
            Call::Shrink => member.rank.shrink(),
        };
        member.calls.push(Some(id));
        member.brought.push((flag, number));
    }

    fn kill(&mut self, rank: usize) {
        if self.dead.len() + 1 == self.members.len() {
            return;
        }
        for peer in 0..self.members.len() {
            if self.random.chance(0.5) {
                let peer = u32::try_from(peer).expect("few");
                self.members[rank].rank.lose_queue(peer);
            }
        }
        self.members[rank].rank.turn(); // sends what is not lost
        self.dead.insert(rank);
        self.news
            .extend(self.living().into_iter().map(|it| (rank, it)));
    }

    /// Revokes the communicator. Often, that is the last thing that a rank does.
    fn revoke(&mut self, rank: usize) {
        if !self.members[rank].left {
            self.members[rank].rank.revoke();
            if self.random.chance(0.5) {
                self.kill(rank);
            }
        }
    }

    fn leave(&mut self, rank: usize) {
        let member = &mut self.members[rank];
        if !member.left {
            member.left = true;
            member.rank.leave();
        }
    }

    fn forget(&mut self, rank: usize) {
        let calls = self.members[rank].calls.len();
        if calls > 0 {
            let nth = self.below(calls);
            if let Some(call) = self.members[rank].calls[nth].take() {
                self.members[rank].rank.forget(call);
            }
        }
    }

    fn deliver_news(&mut self) {
        if self.news.is_empty() {
            return;
        }
        let nth = self.below(self.news.len());
        let (dead, rank) = self.news.swap_remove(nth);
        let dead = WorldRank(u32::try_from(dead).expect("few"));
        let core = &mut self.members[rank].rank.core;
        core.lose(dead, DownCause::Failed);
    }

    /// Lets all living ranks make their calls, hear all news, and ask until no rank waits any more.
    fn finish(&mut self) {
        while !self.news.is_empty() {
            self.deliver_news();
        }
        let living = self.living();
        for &rank in &living {
            for _ in 0..self.plan.len() {
                self.call(rank);
            }
        }
        let is_over = |program: &mut Self| {
            settle(|| {
                let ranks = living.iter();
                ranks.fold(false, |before, &rank| {
                    before | program.members[rank].rank.turn()
                })
            });
            !living.iter().fold(false, |before, &rank| {
                before | program.members[rank].rank.ask()
            })
        };
        for _ in 0..10 * self.plan.len() {
            if is_over(self) {
                return;
            }
        }
        panic!("ranks wait although nothing is to come");
    }

    /// Returns the decisions of a rank, or `None` where it has dropped the future or made no call.
    fn decisions(&mut self, rank: usize) -> Vec<Option<AgreeValue>> {
        let Member { rank, calls, .. } = &mut self.members[rank];
        let decision = |call: &Option<AgreementId>| {
            let decided = rank.decision((*call)?).expect("it is decided");
            Some(decided.expect("no rank closes"))
        };
        calls.iter().map(decision).collect()
    }

    /// Checks what each living rank has been told.
    fn check(&mut self) {
        let living = self.living();
        let mut numbers = BTreeSet::new();
        let decisions: Vec<_> = living.iter().map(|&rank| self.decisions(rank)).collect();
        for nth in 0..self.plan.len() {
            let told = decisions.iter().filter_map(|all| all.get(nth)?.as_ref());
            let told: Vec<&AgreeValue> = told.collect();
            let Some(&first) = told.first() else { continue };
            assert!(told.iter().all(|value| *value == first), "{told:?}");
            for &rank in living.iter().filter(|&&rank| !self.members[rank].left) {
                assert!(!first.down.contains(rank), "{rank} is in {first:?}");
            }
            match self.plan[nth] {
                Call::Agree => self.check_agreed(nth, first),
                Call::Shrink => {
                    assert!(first.flag && numbers.insert(first.number), "{first:?}");
                    for &rank in living.iter().filter(|&&rank| !self.members[rank].left) {
                        let known = self.members[rank].rank.knows_context(first.number);
                        assert!(known, "{first:?} is new to rank {rank}");
                    }
                }
            }
        }
        self.check_news(&living);
    }

    /// Checks that the value is made of all values of ranks that take part, and of nothing but values of ranks.
    fn check_agreed(&self, nth: usize, told: &AgreeValue) {
        let brought = |rank: usize| self.members[rank].brought.get(nth).copied();
        let all: Vec<_> = (0..self.members.len()).filter_map(brought).collect();
        assert!(told.flag || all.iter().any(|(flag, _)| !flag), "{told:?}");
        assert!(all.iter().any(|(_, number)| *number == told.number));
        let takes_part = |rank: &usize| !told.down.contains(*rank);
        let parts = (0..self.members.len()).filter(takes_part);
        for (flag, number) in parts.filter_map(brought) {
            assert!(flag >= told.flag && number <= told.number, "{told:?}");
        }
    }

    /// Checks that each living rank has heard of each failure once, and, if it has not left, of a revocation of which any other
    /// living rank knows.
    fn check_news(&mut self, living: &[usize]) {
        let knows = |rank: &usize| self.members[*rank].rank.core.common.is_void(COMM);
        let (knowing, others): (Vec<_>, Vec<_>) = living.iter().partition(|rank| knows(rank));
        self.is_revoked = !knowing.is_empty();
        let has_left = |rank: &&usize| self.members[**rank].left;
        assert!(
            !self.is_revoked || others.iter().all(has_left),
            "{others:?} do not know"
        );
        for &rank in living {
            let Member {
                rank: survivor,
                failures,
                ..
            } = &mut self.members[rank];
            let mut heard = Vec::new();
            while let Some(failed) = survivor.next_failure(failures) {
                heard.push(failed.0);
            }
            heard.sort_unstable();
            assert!(heard.iter().eq(&self.dead), "rank {rank}: {heard:?}");
            // In programs in which ranks leave, ranks refuse some headers. This test does not show which.
            let refused = survivor.core.common.refused;
            assert!(refused == 0 || self.events.leave, "refused by rank {rank}");
            assert!(!survivor.core.common.peers.any_to_flush());
        }
    }
}

fn below(random: &mut SeededRandom, limit: usize) -> usize {
    let limit = u64::try_from(limit).expect("small");
    usize::try_from(random.within(0..limit)).expect("small")
}

/// Runs a program for each seed. Returns how many ranks failed and left, how many futures were dropped, and how many
/// communicators were revoked.
fn run(seeds: Range<u64>, events: RandomEvents) -> [usize; 4] {
    let mut seen = [0; 4];
    for seed in seeds {
        let mut program = RandomFailures::new(seed, events);
        for _ in 0..program.random.within(20..150) {
            program.act();
        }
        program.finish();
        program.check();
        let members = &program.members;
        seen[0] += program.dead.len();
        seen[1] += members.iter().filter(|member| member.left).count();
        let calls = members.iter().flat_map(|member| &member.calls);
        seen[2] += calls.filter(|call| call.is_none()).count();
        seen[3] += usize::from(program.is_revoked);
    }
    seen
}

#[test]
fn survivors_agree_shrink_and_hear_of_failures_whichever_ranks_fail() {
    let events = RandomEvents {
        fail: true,
        leave: false,
    };
    let [failed, left, dropped, revoked] = run(0..400, events);
    assert!(failed > 400 && left == 0 && dropped > 100 && revoked > 50);
}

#[test]
fn ranks_that_fail_and_ranks_that_leave_keep_no_other_rank_waiting() {
    let events = RandomEvents {
        fail: true,
        leave: true,
    };
    let [failed, left, dropped, revoked] = run(400..1200, events);
    assert!(failed > 800 && left > 800 && dropped > 200 && revoked > 50);
}

#[test]
fn all_ranks_agree_where_none_fails() {
    let events = RandomEvents {
        fail: false,
        leave: false,
    };
    assert_eq!(run(1200..1300, events)[..2], [0, 0]);
}
