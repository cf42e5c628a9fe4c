//! Queue pairs that a device takes down without a failed request, so that it reports only requests that were flushed. Devices do
//! so when a request of the peer has failed at this end, and soft-RoCE does when an answer is not the expected one.

use super::{FailureWatch, Ranks};
use crate::driver::{DownEvidence, WorldRank};

/// Takes the first rank's queue pair of a lane down, as its device would.
fn take_down(ranks: &mut Ranks, lane: usize) {
    let link = ranks.core(0).links.get_or_new(WorldRank(1));
    link.lanes[lane].qp.as_ref().unwrap().abandon();
}

#[test]
#[ignore = "needs four RDMA devices: run it in the virtual machine"]
fn a_queue_pair_that_goes_down_by_itself_is_left_and_the_other_lane_loses_no_message() {
    let mut ranks = Ranks::met();
    let home = ranks.core(0).links.get_or_new(WorldRank(1)).home;
    take_down(&mut ranks, home);
    (0..MESSAGES).for_each(|_| ranks.say(0, 1));
    ranks.until(|ranks| ranks.ears[1].messages.len() == 1 + MESSAGES);
    ranks.until(|ranks| ranks.counters.iter().all(|one| one.lanes_failed.get() == 1));
}

#[test]
#[ignore = "needs four RDMA devices: run it in the virtual machine"]
fn a_rank_whose_only_queue_pair_goes_down_by_itself_says_which_adapter_to_look_at() {
    let mut ranks = Ranks::with(2, |config| {
        let device = ["rxe0", "rxe2"][config.rank.0 as usize % 2];
        config.device = Some(device.to_owned());
    });
    ranks.say(0, 1);
    ranks.until(|ranks| ranks.ears[1].messages.len() == 1);
    take_down(&mut ranks, 0);
    ranks.say(0, 1);
    ranks.until_bad(&[0, 1]);
    ranks.until_bad(&[1, 0]);
    assert_eq!(ranks.ears[0].bad, ["WorldRank(1): Failed"]);
    assert_eq!(ranks.ears[1].bad, ["WorldRank(0): Failed"]);
    let DownEvidence::Reported(why) = ranks.all[0].evidence(WorldRank(1)) else {
        panic!("the adapter has reported it")
    };
    assert!(why.contains("the adapter rxe0 of this rank"), "{why}");
}

const MESSAGES: usize = 10;
