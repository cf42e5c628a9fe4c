//! Making new communicators from existing ones: `split`, `dup` and `split_node`.

use std::panic::Location;

use super::{CollectiveCall, Comm, Min, agreement::CommSignature};
use crate::{
    contexts::ContextIds,
    error::{Error, Result, called_at},
    executor::BackgroundFuture,
    group::{CommRank, RankGroup},
    offload::CollectiveSignature,
};

impl Comm {
    /// Splits the ranks into communicators, one for each `color`; ranks that pass `None` get none. Collective.
    ///
    /// Ranks in the new communicator are ordered by `key`, and ranks with equal keys by their old rank.
    ///
    /// The call starts immediately and proceeds in the background until the runtime closes, even if its future is
    /// dropped. A new communicator that no task takes is dropped.
    ///
    /// # Errors
    /// A member failed or finished; a rank called another collective in its place (`Mismatch`). Later collectives on
    /// this communicator then fail with `Revoked`.
    #[track_caller]
    pub fn split(
        &self,
        color: Option<u32>,
        key: i32,
    ) -> impl Future<Output = Result<Option<Self>>> + Send + use<> {
        self.split_as("split", color, key)
    }

    #[track_caller]
    fn split_as(
        &self,
        name: &'static str,
        color: Option<u32>,
        key: i32,
    ) -> BackgroundFuture<Result<Option<Self>>> {
        let agreement = self.agreement();
        BackgroundFuture::new(async move {
            let (comm, call) = (&agreement.comm, agreement.call);
            let vote = CommSignature::new(CollectiveSignature::of(name));
            let made = comm.split_with(call, vote, color, key).await;
            comm.end_agreement(name, call, made)
        })
    }

    async fn split_with(
        &self,
        call: CollectiveCall,
        vote: CommSignature,
        color: Option<u32>,
        key: i32,
    ) -> Result<Option<Self>> {
        let ctx = self.agree_on_context(call, vote).await?;
        let all = self
            .gather_all(
                call,
                [
                    i64::from(color.is_some()),
                    color.map_or(0, i64::from),
                    i64::from(key),
                ],
            )
            .await?;
        let Some(color) = color else { return Ok(None) };
        let mine = |entry: &&(usize, [i64; 3])| entry.1[0] == 1 && entry.1[1] == i64::from(color);
        let mut members: Vec<_> = all
            .iter()
            .filter(mine)
            .map(|&(rank, [_, _, key])| (key, rank))
            .collect();
        members.sort_unstable();
        let world: Vec<_> = members
            .iter()
            .filter_map(|&(_, rank)| self.group().world_of(CommRank(rank)))
            .collect();
        let group = RankGroup::new(world);
        let rank = members
            .iter()
            .position(|(_, rank)| *rank == self.rank())
            .map(CommRank);
        let rank = rank.ok_or_else(|| {
            Error::argument(
                "split",
                "this rank's own entry came back changed".to_owned(),
            )
        })?;
        let shared = self.shared().clone();
        Ok(Some(Self::new(shared, ctx, rank, group, call.at)))
    }

    /// Makes a communicator of the same ranks in the same order, with separate messages. Collective. Like
    /// [`split`](Self::split), the call starts immediately and proceeds in the background.
    ///
    /// # Errors
    /// Same as [`split`](Self::split).
    #[track_caller]
    pub fn dup(&self) -> impl Future<Output = Result<Self>> + Send + use<> {
        self.start_dup("dup", CollectiveSignature::of("dup"))
    }

    /// Makes a [`dup`](Self::dup) that succeeds only if all ranks pass the same signature.
    #[track_caller]
    pub(crate) fn start_dup(
        &self,
        name: &'static str,
        signature: CollectiveSignature,
    ) -> BackgroundFuture<Result<Self>> {
        let agreement = self.agreement();
        BackgroundFuture::new(async move {
            let (comm, call) = (&agreement.comm, agreement.call);
            let agreed = comm
                .agree_on_context(call, CommSignature::new(signature))
                .await;
            let ctx = comm.end_agreement(name, call, agreed)?;
            let (shared, group) = (comm.shared().clone(), comm.group().clone());
            Ok(Self::new(
                shared,
                ctx,
                CommRank(comm.rank()),
                group,
                call.at,
            ))
        })
    }

    /// Makes a communicator of the ranks that share this rank's node. Collective.
    ///
    /// # Errors
    /// Same as [`split`](Self::split).
    #[track_caller]
    pub fn split_node(&self) -> impl Future<Output = Result<Self>> + Send + use<> {
        let split = self.split_as("split_node", Some(self.shared().place.node.0), 0);
        called_at(Location::caller(), async move {
            let comm = split.await?;
            comm.ok_or_else(|| {
                Error::argument("split_node", "this rank's node has no ranks".to_owned())
            })
        })
    }

    /// Finds a context id that was never used on any rank.
    ///
    /// Each rank proposes one, and the greatest is taken if it is free on all ranks; otherwise the next round starts
    /// above it. Splits of overlapping communicators may run at the same time.
    async fn agree_on_context(&self, call: CollectiveCall, vote: CommSignature) -> Result<u32> {
        self.begin_agreement(call)?;
        let contexts = self.shared().contexts();
        let mut from = 2;
        loop {
            let proposed = contexts.propose(from);
            let agreed = self.elect_context(call, vote, proposed).await?;
            let free = contexts.accept(agreed, proposed);
            let [everywhere] = self.all_reduce_with(call, [u8::from(free)], Min).await?;
            if everywhere == 1 {
                return Ok(agreed);
            }
            from = ContextIds::after(agreed).ok_or_else(|| contexts_exhausted("split"))?;
        }
    }

    /// Returns the three numbers of every rank, each with its rank.
    async fn gather_all(
        &self,
        call: CollectiveCall,
        mine: [i64; 3],
    ) -> Result<Vec<(usize, [i64; 3])>> {
        let mut all = vec![mine; self.size()];
        if self.rank() == 0 {
            for (rank, entry) in all.iter_mut().enumerate().skip(1) {
                [*entry] = self.recv_whole(call, rank, [[0_i64; 3]]).await?;
            }
        } else {
            self.send_for(call, 0, [mine]).await?;
        }
        let all = self.bcast_with(call, 0, all).await?;
        Ok(all.into_iter().enumerate().collect())
    }
}

/// Returns the error for running out of context ids.
pub(super) fn contexts_exhausted(op: &'static str) -> Error {
    let why = "2^31 communicators were made, which is the limit: reuse communicators";
    Error::argument(op, why.to_owned())
}

#[cfg(test)]
mod tests {
    use crate::{
        comm::Comm,
        error::{Error, ErrorKind},
        sim::Simulation,
    };

    #[test]
    fn where_one_rank_has_no_number_left_all_are_told_and_go_on() {
        for odd in 0..3 {
            let made = move |world: Comm| async move {
                if world.rank() == odd {
                    world.shared().contexts().leave(2);
                }
                // The greatest proposal is taken.
                let (first, second) = (world.dup().await?, world.shrink().await?);
                assert!(first.id() > second.id() || second.id() == u32::MAX - 1);
                let [last, shrunk] = [world.shrink().await, world.dup().await];
                for refused in [last, shrunk] {
                    let kind = refused.expect_err("there is none").kind;
                    let (here, there) = (
                        matches!(kind, ErrorKind::InvalidArgument(_)),
                        matches!(kind, ErrorKind::Aborted { .. }),
                    );
                    assert!(here || there, "{kind}");
                }
                assert!(second.agree(true).await?, "the others are as they were");
                Ok::<(), Error>(())
            };
            let report = Simulation::new(3).run(made).expect("it ends");
            for result in report.results.into_iter().flatten() {
                result.expect("a good end");
            }
        }
    }
}
