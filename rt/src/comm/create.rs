//! Communicators that only their members make, and ranks as other communicators number them.

use std::{panic::Location, sync::Arc};

use super::{CollectiveCall, Comm, create_queue::CreatePlace};
use crate::{
    comm::split::contexts_exhausted,
    contexts::ContextIds,
    error::{Error, ErrorKind, Result},
    executor::BackgroundFuture,
    group::{CommRank, RankGroup, WorldRank},
    offload::CollectiveSignature,
};

/// Tags from here on are of messages by which members make a communicator. Collectives of the parent have these numbers
/// last of all.
const FIRST_CREATE_TAG: u32 = 3 << 30;

/// What members agree on: the greatest number; the least signature and its rank; the greatest signature and its rank; and
/// the member that was lost, if one was, as [`lost_word`] encodes it.
type MemberBallot = [u64; 6];

/// The members in ascending order, as a binomial tree.
struct MemberTree {
    comm: Comm,
    call: CollectiveCall,
    members: Vec<usize>,
    /// Index of this rank among the members.
    place: usize,
}

impl Comm {
    /// Makes a communicator of these ranks, in this order. Only they call this, with the same list; other ranks do nothing.
    ///
    /// Rank `i` of the new communicator is `ranks[i]`. Ranks that make several communicators of the same members make them in
    /// the same order, and each begins when the one before it has ended. Apart from that, the call has no place in the order
    /// of collectives or of other calls of `create`. It starts immediately and proceeds in the background, like
    /// [`split`](Self::split). O(log n) messages for each member.
    ///
    /// Output: `Result<Comm>`.
    ///
    /// ```
    /// # let runtime = ripstop_rt::Runtime::init()?;
    /// # let world = runtime.world();
    /// # runtime.block_on(async {
    /// let writers: Vec<usize> = (0..world.size()).step_by(8).collect();
    /// if writers.contains(&world.rank()) {
    ///     let writers = world.create(&writers).await?;
    ///     assert_eq!(writers.rank(), world.rank() / 8);
    /// }
    /// # Ok::<(), ripstop_rt::Error>(()) })?;
    /// # Ok::<(), ripstop_rt::Error>(())
    /// ```
    ///
    /// # Errors
    /// `InvalidArgument`, without waiting for other ranks: the list is empty, does not have this rank, has a rank twice, or
    /// has one that does not exist. `Mismatch`: members pass the same ranks in different orders. The future also fails if a
    /// member failed or finished, or if this communicator is revoked. The call waits for a member that does not call it, or that
    /// calls it with other ranks, until that member ends.
    #[track_caller]
    pub fn create(&self, ranks: &[usize]) -> impl Future<Output = Result<Self>> + Send + use<> {
        let at = Location::caller();
        // The call takes its place in the queue, because threads may poll the futures in another order.
        let checked = self.check_members(ranks).map(|members| {
            let key = (self.id(), signature(&members));
            let place = CreatePlace::last(Arc::clone(self.shared().contexts()), key);
            (members, place)
        });
        let (comm, ranks) = (self.clone(), ranks.to_vec());
        BackgroundFuture::new(async move {
            let made = match checked {
                Ok((members, place)) => {
                    place.turn().await;
                    comm.create_with(at, &ranks, members).await
                }
                Err(sentence) => {
                    Err(comm.error_here("create", ErrorKind::InvalidArgument(sentence)))
                }
            };
            made.map_err(|error| error.renamed("create").called_at(at))
        })
    }

    /// Returns the rank in `other` of the rank `rank` of this communicator. `None` if it is not a member there, or if this
    /// communicator has no such rank. O(log n).
    ///
    /// ```
    /// # let runtime = ripstop_rt::Runtime::init()?;
    /// # let world = runtime.world();
    /// # runtime.block_on(async {
    /// let node = world.split_node().await?;
    /// assert_eq!(node.translate(node.rank(), &world), Some(world.rank()));
    /// assert_eq!(world.translate(world.size(), &node), None);
    /// # Ok::<(), ripstop_rt::Error>(()) })?;
    /// # Ok::<(), ripstop_rt::Error>(())
    /// ```
    #[must_use]
    pub fn translate(&self, rank: usize, other: &Self) -> Option<usize> {
        if !Arc::ptr_eq(self.shared(), other.shared()) {
            return None; // the runtimes of one process may belong to different jobs
        }
        let world = self.group().world_of(CommRank(rank))?;
        other.group().local_of(world).map(|rank| rank.0)
    }

    /// Returns the members in ascending order, or what is wrong with the list.
    fn check_members(&self, ranks: &[usize]) -> Result<Vec<usize>, String> {
        let size = self.size();
        if let Some(rank) = ranks.iter().find(|&&rank| rank >= size) {
            return Err(format!(
                "`ranks` has rank {rank}, and there are ranks 0..{size}"
            ));
        }
        let mut members = ranks.to_vec();
        members.sort_unstable();
        if let Some(twice) = members.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(format!("`ranks` has rank {} twice", twice[0]));
        }
        let rank = self.rank();
        if members.binary_search(&rank).is_err() {
            let sentence = format!("`ranks` is {ranks:?}, without this rank {rank}");
            return Err(format!("{sentence}: only members make the communicator"));
        }
        Ok(members)
    }

    async fn create_with(
        &self,
        at: &'static Location<'static>,
        ranks: &[usize],
        members: Vec<usize>,
    ) -> Result<Self> {
        let tag = create_tag(&members);
        let place = members.iter().position(|&rank| rank == self.rank());
        let tree = MemberTree {
            comm: self.clone(),
            call: CollectiveCall { tag, at },
            members,
            place: place.expect("checked"),
        };
        let ctx = tree.agree_on_context(signature(ranks)).await?;
        let world = ranks.iter().map(|&rank| CommRank(rank));
        let world: Vec<WorldRank> = world
            .filter_map(|rank| self.group().world_of(rank))
            .collect();
        let rank = ranks.iter().position(|&rank| rank == self.rank());
        let rank = CommRank(rank.expect("checked"));
        let shared = self.shared().clone();
        Ok(Self::new(shared, ctx, rank, RankGroup::new(world), at))
    }
}

/// Returns the signature of a list of ranks.
fn signature(ranks: &[usize]) -> u64 {
    let ranks = ranks.iter().map(|&rank| rank as u64);
    let start = CollectiveSignature::of("create").with(ranks.len() as u64);
    ranks.fold(start, CollectiveSignature::with).0.0
}

/// Returns the tag of the members' messages. Two creations of different members may be in flight at the same time, and end
/// in any order, so they need different tags. These are equal with a chance of 1 in 2^30, and then the creations may fail.
fn create_tag(members: &[usize]) -> u32 {
    let [.., a, b, c, d] = signature(members).to_be_bytes();
    FIRST_CREATE_TAG | u32::from_be_bytes([a, b, c, d])
}

impl MemberTree {
    /// Finds a context id that was never used on any member, as splits do: see [`ContextIds`].
    async fn agree_on_context(&self, list: u64) -> Result<u32> {
        let contexts = self.comm.shared().contexts();
        let (mut from, mut distances) = (2, list);
        loop {
            let proposed = contexts.propose(from);
            let agreed = self.agree(proposed.into(), list).await?;
            let agreed = u32::try_from(agreed).unwrap_or(u32::MAX);
            let taken = !contexts.accept(agreed, proposed);
            if self.agree(taken.into(), list).await? == 0 {
                return Ok(agreed);
            }
            let next = ContextIds::after(agreed).ok_or_else(|| contexts_exhausted("create"))?;
            // Creations of overlapping members that go on in step would take each other's numbers again and again. So each goes
            // on at another distance.
            let [distance, ..] = distances.to_le_bytes();
            from = next.saturating_add(2 * u32::from(distance));
            distances = distances.rotate_right(8);
        }
    }

    /// Returns the greatest number of all members, if all have the same list. If a member was lost, all get an error.
    async fn agree(&self, number: u64, list: u64) -> Result<u64> {
        let rank = self.comm.rank() as u64;
        let mine = [number, list, rank, list, rank, 0];
        let (gathered, lost) = self.gather(mine).await;
        let (counted, lost) = self.pass_up(gathered, lost).await;
        self.pass_down(counted);
        if let Some(error) = lost {
            return Err(error);
        }
        let [greatest, least, one, most, other, gone] = counted;
        if gone != 0 {
            return Err(self.lost_error(gone));
        }
        if least != most {
            let rank_of = |rank: u64| usize::try_from(rank).unwrap_or(usize::MAX);
            let (rank, other, calls) = (rank_of(one), rank_of(other), None);
            let mismatch = ErrorKind::Mismatch { rank, other, calls };
            return Err(self.comm.error_here("create", mismatch));
        }
        Ok(greatest)
    }

    /// Counts the ballots of the members below this one. A member that is lost is noted in the ballot, so all learn of it.
    async fn gather(&self, mine: MemberBallot) -> (MemberBallot, Option<Error>) {
        let (mut counted, mut lost) = (mine, None);
        for child in self.children() {
            let heard = self.comm.recv_whole(self.call, child, [0; 6]).await;
            match heard {
                Ok(theirs) => counted = count(counted, theirs),
                Err(failed) => {
                    counted[5] = counted[5].max(lost_word(child, &failed.error.kind));
                    lost.get_or_insert(failed.error);
                }
            }
        }
        (counted, lost)
    }

    /// Sends the ballot toward the first member, and returns the count of all members.
    async fn pass_up(
        &self,
        mut counted: MemberBallot,
        lost: Option<Error>,
    ) -> (MemberBallot, Option<Error>) {
        let Some(parent) = self.parent() else {
            return (counted, lost);
        };
        let answer = match self.comm.send_for(self.call, parent, counted).await {
            Ok(_) => self.comm.recv_whole(self.call, parent, counted).await,
            Err(failed) => Err(failed),
        };
        match answer {
            Ok(all) => (all, lost),
            Err(failed) => {
                counted[5] = counted[5].max(lost_word(parent, &failed.error.kind));
                (counted, lost.or(Some(failed.error)))
            }
        }
    }

    /// Sends the count to the members below this one. A member that cannot be reached is lost, and finds that out itself.
    fn pass_down(&self, counted: MemberBallot) {
        for child in self.children() {
            self.comm.send_for(self.call, child, counted).detach();
        }
    }

    /// Returns the distance to the parent: the lowest set bit of the place. The first member has none within the size.
    fn reach(&self) -> usize {
        match self.place {
            0 => self.members.len().next_power_of_two(),
            place => 1 << place.trailing_zeros(),
        }
    }

    fn parent(&self) -> Option<usize> {
        let place = self.place.checked_sub(self.reach());
        place
            .filter(|_| self.place > 0)
            .map(|place| self.members[place])
    }

    fn children(&self) -> impl Iterator<Item = usize> + '_ {
        let bits = (0..usize::BITS).map(|bit| 1_usize << bit);
        let bits = bits.take_while(|&bit| bit < self.reach());
        bits.filter_map(|bit| self.members.get(self.place + bit).copied())
    }

    /// Returns the error for a member that another one has lost.
    fn lost_error(&self, word: u64) -> Error {
        let rank = usize::try_from(word >> 2).unwrap_or(usize::MAX);
        let kind = match word & 3 {
            FAILED => {
                let world = self.comm.group().world_of(CommRank(rank));
                let world = world.map_or(usize::MAX, |world| world.0 as usize);
                return self
                    .comm
                    .error("create", ErrorKind::peer_failed(world), None, None);
            }
            FINISHED => ErrorKind::PeerFinished { rank },
            _ => ErrorKind::Aborted { rank },
        };
        self.comm.error_here("create", kind)
    }
}

/// Merges two ballots. Of equal signatures the lower rank counts, so all members name the same two.
fn count(one: MemberBallot, other: MemberBallot) -> MemberBallot {
    let least = if (other[1], other[2]) < (one[1], one[2]) {
        other
    } else {
        one
    };
    let greatest = if other[3] > one[3] { other } else { one };
    [
        one[0].max(other[0]),
        least[1],
        least[2],
        greatest[3],
        greatest[4],
        one[5].max(other[5]),
    ]
}

/// Encodes a member that was lost, and why. Never 0.
fn lost_word(rank: usize, why: &ErrorKind) -> u64 {
    let why = match why {
        ErrorKind::PeerFailed { .. } => FAILED,
        ErrorKind::PeerFinished { .. } => FINISHED,
        _ => GAVE_UP,
    };
    ((rank as u64) << 2) | why
}

const FAILED: u64 = 1;
const FINISHED: u64 = 2;
const GAVE_UP: u64 = 3;

#[cfg(test)]
mod tests {
    use crate::{
        comm::Comm,
        error::{Error, ErrorKind},
        sim::Simulation,
    };

    /// Runs on simulated ranks, which must all end well.
    fn run<F: Future<Output = Result<(), Error>> + 'static>(
        ranks: u32,
        rank: impl Fn(Comm) -> F + 'static,
    ) {
        let report = Simulation::new(ranks).run(rank).expect("it ends");
        for result in report.results.into_iter().flatten() {
            result.expect("a good end");
        }
    }

    #[test]
    fn members_alone_make_a_communicator_in_the_order_of_their_list() {
        for size in 1..10 {
            for step in 1..4 {
                run(size, move |world| async move {
                    let members = (0..world.size()).rev().step_by(step).collect::<Vec<_>>();
                    if let Some(at) = members.iter().position(|&rank| rank == world.rank()) {
                        let (first, second) = (world.create(&members), world.create(&members));
                        let (second, first) = (second.await?, first.await?);
                        assert_ne!(first.id(), second.id());
                        assert_eq!((first.rank(), first.size()), (at, members.len()));
                        for (rank, &member) in members.iter().enumerate() {
                            assert_eq!(first.translate(rank, &world), Some(member));
                            assert_eq!(world.translate(member, &second), Some(rank));
                        }
                        assert!(second.agree(true).await?, "it has an order of collectives");
                    }
                    Ok(())
                });
            }
        }
    }

    #[test]
    fn creations_of_different_members_end_in_any_order() {
        run(3, |world| async move {
            let (all, two) = ([0, 1, 2], [1, 0]);
            if world.rank() == 2 {
                // The other two have made theirs before this rank begins.
                world.recv::<u8>(0, 1).await?;
                world.recv::<u8>(1, 1).await?;
                let whole = world.create(&all).await?;
                assert!(whole.agree(true).await?);
                return Ok(());
            }
            let whole = world.create(&all);
            let part = world.create(&two).await?;
            assert_eq!(part.rank(), 1 - world.rank());
            world.send(2, 1, [0_u8]).await?;
            let whole = whole.await?;
            assert_eq!((whole.rank(), whole.size()), (world.rank(), 3));
            assert!(whole.agree(true).await? && part.agree(true).await?);
            Ok(())
        });
    }

    #[test]
    fn creations_of_different_members_begin_in_any_order() {
        run(3, |world| async move {
            let me = world.rank();
            let sets: [&[usize]; 3] = [&[0, 1], &[1, 2], &[2, 0]];
            let turned = (0..3).map(|place| sets[(place + me) % 3]);
            let mine = turned.filter(|set| set.contains(&me));
            let in_flight: Vec<_> = mine.map(|set| (set, world.create(set))).collect();
            for (set, made) in in_flight.into_iter().rev() {
                let made = made.await?;
                assert_eq!(set[made.rank()], me);
                assert!(made.id() < 4000, "a few rounds are enough: {made:?}");
            }
            Ok(())
        });
    }

    #[test]
    fn creations_of_the_same_members_in_flight_follow_each_other() {
        run(3, |world| async move {
            let orders: [&[usize]; 3] = [&[0, 1, 2], &[2, 0, 1], &[1, 2, 0]];
            let lists: Vec<_> = (0..12).map(|number| orders[number % 3]).collect();
            if world.rank() == 2 {
                world.recv::<u8>(0, 1).await?; // the others have begun all
            }
            let in_flight: Vec<_> = lists.iter().map(|list| world.create(list)).collect();
            if world.rank() == 0 {
                world.send(2, 1, [0_u8]).await?;
            }
            for (list, made) in lists.iter().zip(in_flight) {
                let made = made.await?;
                assert_eq!(list[made.rank()], world.rank());
                assert!(made.agree(true).await?);
            }
            Ok(())
        });
    }

    #[test]
    fn members_that_pass_different_orders_are_told_both() {
        run(4, |world| async move {
            let list: &[usize] = if world.rank() == 2 {
                &[0, 2, 1, 3]
            } else {
                &[0, 1, 2, 3]
            };
            let error = world.create(list).await.expect_err("the orders differ");
            assert!(
                matches!(
                    error.kind,
                    ErrorKind::Mismatch {
                        rank: 0,
                        other: 2,
                        ..
                    } | ErrorKind::Mismatch {
                        rank: 2,
                        other: 0,
                        ..
                    }
                ),
                "{error}"
            );
            let whole = world.create(&[0, 1, 2, 3]).await?;
            assert!(whole.agree(true).await?);
            Ok(())
        });
    }

    #[test]
    fn a_wrong_list_is_refused_without_the_other_ranks() {
        run(3, |world| async move {
            if world.rank() == 0 {
                for (list, words) in [
                    (&[][..], "without this rank 0"),
                    (&[1, 2], "without this rank 0"),
                    (&[0, 3], "has rank 3, and there are ranks 0..3"),
                    (&[0, 1, 0], "has rank 0 twice"),
                ] {
                    let error = world.create(list).await.expect_err("a wrong list");
                    assert!(
                        matches!(error.kind, ErrorKind::InvalidArgument(_)),
                        "{error}"
                    );
                    assert!(error.to_string().contains(words), "{error}");
                }
            }
            Ok(())
        });
    }
}
