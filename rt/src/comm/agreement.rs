//! Checks that all ranks make the same communicator, before any rank gets it.

use std::{
    future::poll_fn,
    panic::Location,
    task::{Context, Poll},
};

use super::{CollectiveCall, Comm, program::REPORT_MAX};
use crate::{
    engine::{CreationCall, Engine},
    error::{Error, ErrorKind, Result},
    executor,
    group::CommRank,
    offload::CollectiveSignature,
    proto::collective_id::CollectiveId,
};

/// What all ranks must pass alike to a call that makes a communicator.
pub(crate) struct AgreedArguments {
    /// Signature of the call with these arguments.
    pub(crate) signature: CollectiveSignature,
    /// The arguments as errors describe them, if there are any.
    pub(crate) words: String,
}

impl AgreedArguments {
    /// Returns those of a call that has none.
    pub(super) fn none(name: &str) -> Self {
        Self {
            signature: CollectiveSignature::of(name),
            words: String::new(),
        }
    }
}

/// Signature of the communicator that a rank makes.
#[derive(Clone, Copy, Debug)]
pub(super) struct CommSignature(u64);

/// Proposed context id; the least signature and its rank; the greatest signature and its rank.
type ContextBallot = [u64; 5];

impl CommSignature {
    pub(super) const fn new(signature: CollectiveSignature) -> Self {
        Self(signature.0.0)
    }

    fn ballot(self, proposed: u32, rank: usize) -> ContextBallot {
        let (sig, rank) = (self.0, rank as u64);
        [proposed.into(), sig, rank, sig, rank]
    }
}

/// Merges two ballots. Of equal signatures the lower rank counts, so all ranks name the same two.
fn count(one: ContextBallot, other: ContextBallot) -> ContextBallot {
    let least = if other[1] < one[1] { other } else { one };
    let greatest = if other[3] > one[3] { other } else { one };
    [
        one[0].max(other[0]),
        least[1],
        least[2],
        greatest[3],
        greatest[4],
    ]
}

/// A position in the order of collectives where this rank agrees with others. It is active from the call on, not only
/// while it is awaited: see [`agrees_before`](crate::engine::CollectivePart::agrees_before).
#[must_use = "it ends when it is dropped"]
pub(crate) struct AgreementPlace {
    pub(super) comm: Comm,
    pub(super) call: CollectiveCall,
}

impl AgreementPlace {
    /// Takes the next position in the order of collectives of `comm`. The call may be about a window with this number, and is
    /// described by these arguments.
    pub(super) fn begin(
        comm: &Comm,
        name: &'static str,
        (window, arguments): (Option<u32>, String),
        at: &'static Location<'static>,
    ) -> Self {
        let call = CollectiveCall {
            at,
            ..comm.next_collective()
        };
        let comm = comm.clone();
        let agreement = Self { comm, call };
        let id = agreement.id();
        let call = CreationCall {
            id,
            name,
            window,
            arguments,
            at,
        };
        let shared = agreement.comm.shared();
        shared.with(|engine| engine.core.collectives().record_creation(call));
        agreement
    }

    fn id(&self) -> CollectiveId {
        self.comm.collective_id(self.call)
    }
}

impl Drop for AgreementPlace {
    fn drop(&mut self) {
        let (id, shared) = (self.id(), self.comm.shared());
        shared.with(|engine| engine.core.record_creation_end(id));
    }
}

impl Comm {
    fn collective_id(&self, call: CollectiveCall) -> CollectiveId {
        CollectiveId::new(self.id() + 1, call.tag)
    }

    /// Returns the greatest proposed context id, if all ranks make the same communicator.
    pub(super) async fn elect_context(
        &self,
        call: CollectiveCall,
        vote: CommSignature,
        proposed: u32,
    ) -> Result<u32> {
        let ballot = vote.ballot(proposed, self.rank());
        let [counted] = self.all_reduce_with(call, [ballot], count).await?;
        let [agreed, least, one, greatest, other] = counted;
        if least == greatest {
            return Ok(u32::try_from(agreed).unwrap_or(u32::MAX));
        }
        let rank_of = |rank: u64| usize::try_from(rank).unwrap_or(usize::MAX);
        let (rank, other, calls) = (rank_of(one), rank_of(other), None);
        Err(self.error_here("split", ErrorKind::Mismatch { rank, other, calls }))
    }

    /// Takes the next position in the order of collectives for an agreement in the function `name`, perhaps about a window with
    /// this number.
    #[track_caller]
    pub(crate) fn agreement(&self, name: &'static str, window: Option<u32>) -> AgreementPlace {
        self.agreement_at(name, window, Location::caller())
    }

    /// Like [`agreement`](Self::agreement), for a call from the source line `at`.
    pub(crate) fn agreement_at(
        &self,
        name: &'static str,
        window: Option<u32>,
        at: &'static Location<'static>,
    ) -> AgreementPlace {
        AgreementPlace::begin(self, name, (window, String::new()), at)
    }

    /// Begins the agreement. Fails if a rank that waits for this one in another collective has already asked.
    pub(super) fn begin_agreement(&self, call: CollectiveCall) -> Result<()> {
        let id = self.collective_id(call);
        let stranger = self
            .shared()
            .with(|engine| engine.core.collectives().check_creation(id));
        let kind = stranger.map_or(Ok(()), Err);
        kind.map_err(|kind| self.error("split", kind, None, None))
    }

    /// Ends the agreement: if this rank could not make a communicator, notifies the others, which may wait for it. A
    /// rank that could make one may find out only now that another rank called another collective before.
    pub(super) fn end_agreement<T>(
        &self,
        name: &'static str,
        call: CollectiveCall,
        made: Result<T>,
    ) -> Result<T> {
        let id = self.collective_id(call);
        let made = made.and_then(|made| {
            let why = self
                .shared()
                .with(|engine| engine.collectives().end_creation(id));
            why.map_or(Ok(made), |kind| Err(self.error(name, kind, None, None)))
        });
        made.map_err(|mut error| {
            // A rank that ends a collective may leave then, and messages still in flight report only that. So prefer
            // the recorded reason of the revocation.
            let may_hide = matches!(
                error.kind,
                ErrorKind::Revoked | ErrorKind::PeerFinished { .. }
            );
            let known = |engine: &mut Engine| engine.core.collectives().why_revoked(id);
            if may_hide && let Some(kind) = self.shared().with(known) {
                error = self.error(name, kind, None, None);
            }
            // A closing runtime notifies its peers itself.
            if !matches!(error.kind, ErrorKind::Closed) {
                let kind = self.in_world(&error.kind);
                self.shared()
                    .with(|engine| engine.abort_creation(id, &kind));
            }
            error.renamed(name).called_at(call.at)
        })
    }

    /// Returns the error that two ranks disagree, if the error of a receive of an agreement shows that: the receive has found a
    /// message of another type, which only another collective sends in the same place, or the peer has answered that it completed
    /// another collective. Notifies the other ranks.
    pub(super) fn as_mismatch(&self, call: CollectiveCall, mut error: Error) -> Error {
        let kind = match (&error.kind, error.peer) {
            (ErrorKind::TypeMismatch { .. }, Some(other)) => {
                let (rank, calls) = (self.rank(), None);
                self.in_world(&ErrorKind::Mismatch { rank, other, calls })
            }
            (ErrorKind::Mismatch { .. }, _) => self.in_world(&error.kind),
            _ => return error,
        };
        let id = self.collective_id(call);
        self.shared()
            .with(|engine| engine.abort_creation(id, &kind));
        set_disagreement(self, &mut error, kind);
        error
    }

    /// Adds what two ranks have called to the error that they disagree. Waits until they have said it, or for a short time.
    pub(super) async fn described<T>(&self, call: CollectiveCall, ended: Result<T>) -> Result<T> {
        let mut error = match ended {
            Err(error) if self.is_recorded(call, &error) => error,
            ended => return ended,
        };
        let mut limit = Box::pin(executor::sleep(self.shared(), REPORT_MAX, None));
        poll_fn(|cx| match self.poll_descriptions(cx) {
            Poll::Ready(()) => Poll::Ready(()),
            Poll::Pending => limit.as_mut().poll(cx),
        })
        .await;
        if let Some(kind) = self.described_mismatch() {
            set_disagreement(self, &mut error, kind);
        }
        Err(error)
    }

    /// Returns true if the error is about the disagreement that is recorded for this communicator, and not about another one.
    fn is_recorded(&self, call: CollectiveCall, error: &Error) -> bool {
        let ErrorKind::Mismatch { rank, other, .. } = self.in_world(&error.kind) else {
            return false;
        };
        let id = self.collective_id(call);
        self.shared().with(|engine| {
            let mut collectives = engine.core.collectives();
            collectives.disagreements().is_recorded(id, [rank, other])
        })
    }

    /// Waits for what two ranks that disagree on this communicator have called.
    pub(super) fn poll_descriptions(&self, cx: &Context<'_>) -> Poll<()> {
        let ctx = self.id() + 1;
        self.shared().with(|engine| {
            let mut collectives = engine.core.collectives();
            let mut disagreements = collectives.disagreements();
            disagreements.poll_descriptions(ctx, cx.waker())
        })
    }

    /// Returns the error of two ranks that disagree on this communicator, with ranks of the world, and with what they have called
    /// as far as that is known.
    pub(super) fn described_mismatch(&self) -> Option<ErrorKind> {
        let ctx = self.id() + 1;
        let known = self.shared().with(|engine| {
            let mut collectives = engine.core.collectives();
            collectives.disagreements().disagreement(ctx)
        });
        let (ranks, calls) = known?;
        let [rank, other] = ranks.map(|rank| rank.0 as usize);
        Some(ErrorKind::Mismatch { rank, other, calls })
    }

    /// Returns this error with world ranks, without the details that other ranks do not need.
    fn in_world(&self, kind: &ErrorKind) -> ErrorKind {
        let world = |rank: &usize| {
            let world = self.group().world_of(CommRank(*rank));
            world.map_or(usize::MAX, |rank| rank.0 as usize)
        };
        match kind {
            ErrorKind::PeerFailed { rank, .. } => ErrorKind::peer_failed(world(rank)),
            ErrorKind::PeerFinished { rank } => ErrorKind::PeerFinished { rank: world(rank) },
            ErrorKind::Aborted { rank } => ErrorKind::Aborted { rank: world(rank) },
            ErrorKind::Mismatch { rank, other, .. } => ErrorKind::Mismatch {
                rank: world(rank),
                other: world(other),
                calls: None,
            },
            _ => ErrorKind::Cancelled,
        }
    }
}

/// Replaces what an error says by a disagreement of two ranks of the world. No message is to blame for that.
fn set_disagreement(comm: &Comm, error: &mut Error, kind: ErrorKind) {
    let named = comm.error("barrier", kind, None, None);
    error.note.clone_from(&named.note);
    error.kind = named.into_kind();
    (error.peer, error.tag) = (None, None);
}

#[cfg(test)]
mod tests {
    use super::{CollectiveSignature, CommSignature, count};

    #[test]
    fn the_count_names_the_same_two_ranks_in_any_tree() {
        let sigs = ["dup", "split", "dup", "cart", "split"];
        let ballots: Vec<_> = (0..5)
            .map(|rank| {
                CommSignature::new(CollectiveSignature::of(sigs[rank]))
                    .ballot(10 - 2 * u32::try_from(rank).unwrap(), rank)
            })
            .collect();
        let row = ballots.iter().copied().reduce(count).unwrap();
        let pairs = count(
            count(ballots[0], ballots[1]),
            count(count(ballots[2], ballots[3]), ballots[4]),
        );
        assert_eq!(row, pairs);
        assert_eq!(row[0], 10);
        assert!(row[1] < row[3] && row[2] != row[4], "{row:?}");
        let same = count(ballots[0], ballots[2]);
        assert_eq!((same[1], same[2]), (same[3], 0));
    }
}
