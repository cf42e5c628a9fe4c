//! Making new communicators from existing ones: `split`, `dup` and `split_node`.

use std::panic::Location;

use super::{
    CollectiveCall, Comm, Min,
    agreement::{AgreedArguments, AgreementPlace, CommSignature},
};
use crate::{
    contexts::ContextIds,
    error::{Error, ErrorKind, Result, called_at},
    executor::BackgroundFuture,
    group::{CommRank, RankGroup},
};

/// A color or a key of a split: any integer of up to 64 bits, with or without a sign.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SplitNumber(i128);

/// What a rank asks of a split: its color, if it wants a communicator, and its key.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SplitRequest {
    pub(super) color: Option<SplitNumber>,
    pub(super) key: SplitNumber,
}

impl Comm {
    /// Splits the ranks into communicators, one for each `color`. Collective.
    ///
    /// Colors and keys are integers of any type of up to 64 bits, or `bool`. Ranks in the new communicator are ordered by
    /// `key`, and ranks with equal keys by their old rank. [`split_some`](Self::split_some) is for ranks that want no
    /// communicator.
    ///
    /// The call starts immediately and proceeds in the background until the runtime closes, even if its future is
    /// dropped. A new communicator that no task takes is dropped.
    ///
    /// Output: `Result<Comm>`.
    ///
    /// ```
    /// # let runtime = ripstop_rt::Runtime::init()?;
    /// # let world = runtime.world();
    /// # runtime.block_on(async {
    /// let columns = 4;
    /// let row = world.split(world.rank() / columns, world.rank()).await?;
    /// assert_eq!(row.rank(), world.rank() % columns);
    /// # Ok::<(), ripstop_rt::Error>(()) })?;
    /// # Ok::<(), ripstop_rt::Error>(())
    /// ```
    ///
    /// # Errors
    /// A color or key of more than 64 bits (`InvalidArgument`, and the other ranks get their communicators without this
    /// one); a member failed or finished; a rank called another collective in its place (`Mismatch`). Later collectives
    /// on this communicator then fail with `Revoked`.
    #[track_caller]
    pub fn split<C: TryInto<i128>, K: TryInto<i128>>(
        &self,
        color: C,
        key: K,
    ) -> impl Future<Output = Result<Self>> + Send + use<C, K> {
        let split = self.split_checked(SplitRequest::new(Some(color), key));
        async move {
            Ok(split
                .await?
                .expect("a rank with a color gets a communicator"))
        }
    }

    /// Like [`split`](Self::split), but ranks that pass `None` get no communicator. Ranks may call `split` and
    /// `split_some` together.
    ///
    /// Output: `Result<Option<Comm>>`.
    ///
    /// ```
    /// # let runtime = ripstop_rt::Runtime::init()?;
    /// # let world = runtime.world();
    /// # runtime.block_on(async {
    /// let writes = world.rank() % 8 == 0;
    /// if let Some(writers) = world.split_some(writes.then_some(0), 0).await? {
    ///     assert_eq!(writers.rank(), world.rank() / 8);
    /// }
    /// # Ok::<(), ripstop_rt::Error>(()) })?;
    /// # Ok::<(), ripstop_rt::Error>(())
    /// ```
    ///
    /// # Errors
    /// The call fails as [`split`](Self::split) does.
    #[track_caller]
    pub fn split_some<C: TryInto<i128>, K: TryInto<i128>>(
        &self,
        color: Option<C>,
        key: K,
    ) -> impl Future<Output = Result<Option<Self>>> + Send + use<C, K> {
        self.split_checked(SplitRequest::new(color, key))
    }

    /// Splits, and fails here if the arguments are wrong. A rank with wrong arguments takes part too, because the others
    /// wait for it.
    #[track_caller]
    fn split_checked(
        &self,
        request: Result<SplitRequest, String>,
    ) -> impl Future<Output = Result<Option<Self>>> + Send + use<> {
        let error = |sentence| self.error_here("split", ErrorKind::InvalidArgument(sentence));
        let (request, wrong) = match request {
            Ok(request) => (request, None),
            Err(sentence) => (SplitRequest::default(), Some(error(sentence))),
        };
        let agreed = AgreedArguments::none("split");
        let split = self.split_as("split", agreed, request);
        let at = Location::caller();
        async move {
            let made = split.await?;
            wrong.map_or(Ok(made), |error| Err(error.called_at(at)))
        }
    }

    /// Splits under this name. All ranks must pass the same arguments.
    #[track_caller]
    pub(super) fn split_as(
        &self,
        name: &'static str,
        agreed: AgreedArguments,
        request: SplitRequest,
    ) -> BackgroundFuture<Result<Option<Self>>> {
        let agreement = AgreementPlace::begin(self, name, (None, agreed.words), Location::caller());
        BackgroundFuture::new(async move {
            let (comm, call) = (&agreement.comm, agreement.call);
            let vote = CommSignature::new(agreed.signature);
            let made = comm.split_with(call, vote, request).await;
            let ended = comm.end_agreement(name, call, made);
            comm.described(call, ended).await
        })
    }

    async fn split_with(
        &self,
        call: CollectiveCall,
        vote: CommSignature,
        mine: SplitRequest,
    ) -> Result<Option<Self>> {
        let ctx = self.agree_on_context(call, vote).await?;
        let all = self.gather_all(call, mine.to_words()).await?;
        if mine.color.is_none() {
            return Ok(None);
        }
        let requests = all
            .iter()
            .map(|&(rank, words)| (rank, SplitRequest::of_words(words)));
        let mut members: Vec<_> = requests
            .filter(|(_, request)| request.color == mine.color)
            .map(|(rank, request)| (request.key, rank))
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
    /// Output: `Result<Comm>`.
    ///
    /// ```
    /// # use ripstop_rt::{sim::Simulation, Comm, Error};
    /// # let report = Simulation::new(2).run(|world: Comm| async move {
    /// // A library has messages of its own, whatever tags its caller uses.
    /// let library = world.dup().await?.named("solver");
    /// let other = 1 - library.rank();
    /// let inbox = library.recv::<usize>(other, 0);
    /// library.send(other, 0, [library.rank()]).await?;
    /// assert_eq!(inbox.await?.0, [other]);
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    ///
    /// # Errors
    /// The call fails as [`split`](Self::split) does.
    #[track_caller]
    pub fn dup(&self) -> impl Future<Output = Result<Self>> + Send + use<> {
        self.start_dup("dup", AgreedArguments::none("dup"))
    }

    /// Makes a [`dup`](Self::dup) that succeeds only if all ranks pass the same arguments.
    #[track_caller]
    pub(crate) fn start_dup(
        &self,
        name: &'static str,
        agreed: AgreedArguments,
    ) -> BackgroundFuture<Result<Self>> {
        let agreement = AgreementPlace::begin(self, name, (None, agreed.words), Location::caller());
        BackgroundFuture::new(async move {
            let (comm, call) = (&agreement.comm, agreement.call);
            let agreed = comm
                .agree_on_context(call, CommSignature::new(agreed.signature))
                .await;
            let ended = comm.end_agreement(name, call, agreed);
            let ctx = comm.described(call, ended).await?;
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
    /// Output: `Result<Comm>`.
    ///
    /// ```
    /// # use ripstop_rt::{sim::Simulation, Comm, Error};
    /// # let report = Simulation::new(4).run(|world: Comm| async move {
    /// let node = world.split_node().await?;
    /// println!("rank {} is rank {} of {} on its node", world.rank(), node.rank(), node.size());
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    ///
    /// # Errors
    /// The call fails as [`split`](Self::split) does.
    #[track_caller]
    pub fn split_node(&self) -> impl Future<Output = Result<Self>> + Send + use<> {
        let node = SplitRequest {
            color: Some(SplitNumber(self.shared().place.node.0.into())),
            key: SplitNumber(0),
        };
        let agreed = AgreedArguments::none("split_node");
        let split = self.split_as("split_node", agreed, node);
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

impl SplitNumber {
    /// Returns the number, or a sentence that names the argument.
    fn new(name: &str, number: impl TryInto<i128>) -> Result<Self, String> {
        let number = number.try_into().ok();
        let number = number.filter(|n| i64::try_from(*n).is_ok() || u64::try_from(*n).is_ok());
        number.map(Self).ok_or_else(|| {
            format!("`{name}` has more than 64 bits: number the parts by smaller ones")
        })
    }

    fn is_negative(self) -> bool {
        self.0 < 0
    }

    /// Returns the lower 64 bits, which with the sign are the whole number.
    fn bits(self) -> i64 {
        #[expect(clippy::cast_possible_truncation, reason = "the lower bits are meant")]
        let bits = self.0 as i64;
        bits
    }

    fn of_bits(bits: i64, is_negative: bool) -> Self {
        if is_negative {
            Self(bits.into())
        } else {
            Self(bits.cast_unsigned().into())
        }
    }
}

impl SplitRequest {
    /// Returns the request of these arguments, or a sentence about a wrong one.
    pub(super) fn new(
        color: Option<impl TryInto<i128>>,
        key: impl TryInto<i128>,
    ) -> Result<Self, String> {
        let color = color.map(|color| SplitNumber::new("color", color));
        Ok(Self {
            color: color.transpose()?,
            key: SplitNumber::new("key", key)?,
        })
    }

    /// Returns what other ranks get: three flags, and the bits of the color and the key.
    fn to_words(self) -> [i64; 3] {
        let color = self.color.unwrap_or_default();
        let flags = [
            self.color.is_some(),
            color.is_negative(),
            self.key.is_negative(),
        ];
        let flags = flags
            .iter()
            .rev()
            .fold(0, |word, &flag| 2 * word + i64::from(flag));
        [flags, color.bits(), self.key.bits()]
    }

    fn of_words([flags, color, key]: [i64; 3]) -> Self {
        let color = SplitNumber::of_bits(color, flags & 2 != 0);
        Self {
            color: (flags & 1 != 0).then_some(color),
            key: SplitNumber::of_bits(key, flags & 4 != 0),
        }
    }
}

/// Returns the error for running out of context ids.
pub(super) fn contexts_exhausted(op: &'static str) -> Error {
    let why = "2^31 communicators were made, which is the limit: reuse communicators";
    Error::argument(op, why.to_owned())
}

#[cfg(test)]
mod tests {
    use super::SplitRequest;
    use crate::{
        comm::Comm,
        error::{Error, ErrorKind},
        sim::Simulation,
    };

    #[test]
    fn colors_and_keys_are_integers_of_up_to_64_bits() {
        let ends = [i128::from(i64::MIN), -1, 0, 1, i128::from(u64::MAX)];
        for (color, key) in ends.iter().flat_map(|color| ends.map(|key| (*color, key))) {
            let request = SplitRequest::new(Some(color), key).expect("64 bits");
            let back = SplitRequest::of_words(request.to_words());
            assert_eq!((back.color, back.key), (request.color, request.key));
        }
        let none = SplitRequest::new(None::<bool>, -3_i8).expect("no color");
        assert!(SplitRequest::of_words(none.to_words()).color.is_none());
        let wide = [i128::from(u64::MAX) + 1, i128::from(i64::MIN) - 1];
        for number in wide {
            let said = SplitRequest::new(Some(0), number).expect_err("65 bits");
            assert!(said.contains("`key`"), "{said}");
            assert!(SplitRequest::new(Some(number), 0).is_err());
        }
        assert!(SplitRequest::new(Some(u128::MAX), 0).is_err());
    }

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
                    let kind = refused.expect_err("there is none").into_kind();
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
