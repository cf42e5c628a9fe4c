//! Revocations among ranks of which some have dropped the communicator before they learned of it.

use ripstop_fabric::driver::DownCause;

use super::alone::{COMM, LoneSurvivor, lone_survivors, settle};
use crate::group::{RankGroup, WorldRank};

const SIZE: u32 = 8;

/// The ranks that rank 0 notifies at first: those at distances of powers of two.
const NEXT_TO_0: [usize; 5] = [1, 2, 4, 6, 7];

fn knows(rank: &LoneSurvivor) -> bool {
    rank.core.common.is_void(COMM)
}

/// Gives a rank a handle of another communicator of all ranks.
fn join(rank: &mut LoneSurvivor, ctx: u32) {
    rank.core.common.groups.join(ctx, &RankGroup::First(SIZE));
}

fn run(ranks: &mut [LoneSurvivor]) {
    settle(|| {
        ranks
            .iter_mut()
            .fold(false, |before, rank| before | rank.turn())
    });
}

#[test]
fn ranks_hear_of_a_revocation_although_all_that_would_notify_them_have_left() {
    let mut ranks = lone_survivors(SIZE);
    NEXT_TO_0.iter().for_each(|&rank| ranks[rank].leave());
    ranks[0].revoke();
    ranks[0].leave();
    run(&mut ranks);
    assert!(knows(&ranks[3]) && knows(&ranks[5]));
    let knowing = NEXT_TO_0.iter().filter(|&&rank| knows(&ranks[rank]));
    assert_eq!(
        knowing.count(),
        0,
        "a rank that has left has nothing to end"
    );
    assert!(ranks.iter().all(|rank| rank.core.common.refused == 0));
}

#[test]
fn ranks_hear_that_the_world_is_revoked_although_all_others_have_no_handle_of_it() {
    let (world, mut ranks) = (0, lone_survivors(SIZE));
    [0, 3, 5]
        .iter()
        .for_each(|&rank| join(&mut ranks[rank], world));
    ranks[0].revoke_context(world);
    run(&mut ranks);
    let knows = |rank: usize| ranks[rank].core.common.is_void(world);
    assert!(knows(3) && knows(5));
}

#[test]
fn a_rank_that_has_left_passes_a_revocation_on_when_one_fails_that_it_had_notified() {
    let mut ranks = lone_survivors(SIZE);
    // Rank 0 notifies these, and they lose what they would send.
    ranks[0].revoke();
    ranks[0].leave();
    ranks[0].turn();
    for rank in NEXT_TO_0 {
        let dead = WorldRank(u32::try_from(rank).expect("few"));
        for living in [0, 3, 5] {
            ranks[living].core.lose(dead, DownCause::Failed);
        }
    }
    settle(|| {
        [0, 3, 5]
            .iter()
            .fold(false, |before, &rank| before | ranks[rank].turn())
    });
    assert!(knows(&ranks[3]) && knows(&ranks[5]));
}

#[test]
fn a_rank_that_has_revoked_many_communicators_still_passes_the_first_one_on() {
    let mut ranks = lone_survivors(SIZE);
    let (first, many) = (4, 300);
    [0, 3, 5]
        .iter()
        .for_each(|&rank| join(&mut ranks[rank], first));
    ranks[0].revoke_context(first);
    for ctx in (first + 2..).step_by(2).take(many) {
        join(&mut ranks[0], ctx);
        ranks[0].revoke_context(ctx);
    }
    run(&mut ranks);
    let knows = |rank: usize| ranks[rank].core.common.is_void(first);
    assert!(knows(3) && knows(5));
}

#[test]
fn a_rank_that_revokes_and_leaves_answers_nothing_so_that_few_messages_are_sent() {
    let mut ranks = lone_survivors(SIZE);
    for rank in &mut ranks {
        rank.revoke();
        rank.leave();
    }
    run(&mut ranks);
    assert!(ranks.iter().all(knows));
    assert!(ranks.iter().all(|rank| rank.core.common.refused == 0));
}
