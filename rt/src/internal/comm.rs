//! What Ripstop's own crates ask of a communicator: [`CommInternals`].

use std::any::Any;

use crate::{
    Choices, Comm, Settings,
    buffer::{RecvBuf, SendBuf},
    comm::AgreedArguments,
    error::Result,
    executor::BackgroundFuture,
    offload::{
        CollectivePlace, CollectiveProgram, CollectiveSignature, CollectiveSpec, LocalCopy,
        ProgramOp,
    },
};

/// Methods of [`Comm`] for Ripstop's own crates.
pub trait CommInternals {
    /// Returns how many consecutive ranks share a node. Every node of this communicator has this many, except that the
    /// last may have fewer.
    ///
    /// Returns `size()` if the nodes are not known. Returns 1 if nodes have different numbers of ranks, or if the ranks
    /// of a node are not consecutive. The first call takes O(ranks) unless this is the world communicator.
    #[must_use]
    fn per_node(&self) -> usize;

    /// Returns the settings of this communicator's runtime.
    #[must_use]
    fn settings(&self) -> &Settings;

    /// Returns what this communicator's runtime selected at start, such as driver and protocols.
    #[must_use]
    fn choices(&self) -> &Choices;

    /// Returns the object that the collectives crate keeps in this communicator's runtime. The first call creates it.
    ///
    /// # Panics
    /// Panics if an object of another type is already attached.
    #[must_use]
    fn attached<T: Any + Default + Send + Sync>(&self) -> &T;

    /// Records the text of a collective signature. Errors show the text if ranks call different collectives.
    fn name_signature(&self, signature: CollectiveSignature, words: impl FnOnce() -> String);

    /// Makes a [`dup`](Comm::dup) that succeeds only if all ranks pass the same signature.
    #[track_caller]
    fn dup_as(
        &self,
        name: &'static str,
        signature: CollectiveSignature,
    ) -> BackgroundFuture<Result<Comm>>;

    /// Reserves a position in the order of this communicator's collectives, for a collective that begins later.
    ///
    /// The caller must begin a collective in it, because the other ranks wait for that collective.
    #[track_caller]
    fn reserve_collective(&self) -> CollectivePlace;

    /// Like [`reserve_collective`](Self::reserve_collective), for a collective that may begin late, after collectives with
    /// later positions.
    ///
    /// It uses no adapter task lists. These tell collectives apart only by the order in which they begin, so a late one would
    /// take messages of another collective. A runtime that is being closed waits for it.
    #[track_caller]
    fn promise_collective(&self) -> CollectivePlace;

    /// Runs a program as the next collective of this communicator. All ranks must begin collectives in the same order.
    ///
    /// Several collectives may be in flight. The input is read, and the output is read and filled. Both must be at
    /// least as long as the program says; an output vector gets exactly that length. Reports about a hanging job show
    /// the source line of this call.
    ///
    /// # Errors
    /// The future fails if:
    /// - a buffer is too short, the program is for another number of ranks, or a reducer is missing (`InvalidArgument` here,
    ///   `Aborted` on the other ranks);
    /// - a member failed or finished;
    /// - ranks called different collectives (`Mismatch`).
    ///
    /// Collectives begun later on this communicator then fail with `Revoked`.
    ///
    /// # Panics
    /// Polling the future panics if the reduction panicked, with the same payload.
    #[track_caller]
    fn run_program<I: SendBuf, O: RecvBuf>(
        &self,
        collective: CollectiveSpec,
        input: I,
        output: O,
    ) -> ProgramOp<I, O>;

    /// Like [`run_program`](Self::run_program), in a position reserved earlier.
    fn run_program_in<I: SendBuf, O: RecvBuf>(
        &self,
        place: CollectivePlace,
        collective: CollectiveSpec,
        input: I,
        output: O,
    ) -> ProgramOp<I, O>;

    /// Does the next collective of a communicator of one rank, which completes at its call.
    ///
    /// # Errors
    /// The collective must be begun in this place by [`begin_alone`](Self::begin_alone) or
    /// [`run_program_in`](Self::run_program_in), which has the errors.
    #[track_caller]
    fn try_alone<I: SendBuf, O: RecvBuf>(
        &self,
        copy: LocalCopy,
        input: &I,
        output: &mut O,
    ) -> Result<(), CollectivePlace>;

    /// Begins a collective that [`try_alone`](Self::try_alone) could not do, which has this name.
    fn begin_alone<I: SendBuf, O: RecvBuf>(
        &self,
        place: CollectivePlace,
        work: (&'static str, LocalCopy),
        input: I,
        output: O,
    ) -> ProgramOp<I, O>;

    /// Fails a collective that this rank cannot begin because an argument is wrong. The error is `InvalidArgument` with
    /// `sentence` here, and `Aborted` on the other ranks.
    fn refuse_program<I: SendBuf, O: RecvBuf>(
        &self,
        place: CollectivePlace,
        name: &'static str,
        sentence: String,
        input: I,
        output: O,
    ) -> ProgramOp<I, O>;
}

impl CommInternals for Comm {
    fn per_node(&self) -> usize {
        let nodes = self.shared().place.per_node;
        nodes.map_or_else(
            || self.size(),
            |per_node| self.group().consecutive_per_node(per_node),
        )
    }

    fn settings(&self) -> &Settings {
        &self.shared().settings
    }

    fn choices(&self) -> &Choices {
        &self.shared().choices
    }

    fn attached<T: Any + Default + Send + Sync>(&self) -> &T {
        let kept = self.shared().attached.get_or_init(|| Box::<T>::default());
        let found = kept.downcast_ref();
        found.expect("one type is kept, that of the collectives")
    }

    #[cold]
    fn name_signature(&self, signature: CollectiveSignature, words: impl FnOnce() -> String) {
        let sig = signature.0.0;
        self.shared().with(|engine| {
            engine
                .core
                .collectives()
                .disagreements()
                .name_signature(sig, words)
        });
    }

    #[track_caller]
    fn dup_as(
        &self,
        name: &'static str,
        signature: CollectiveSignature,
    ) -> BackgroundFuture<Result<Comm>> {
        let words = String::new();
        self.start_dup(name, AgreedArguments { signature, words })
    }

    #[track_caller]
    fn reserve_collective(&self) -> CollectivePlace {
        CollectivePlace::reserve(self)
    }

    #[track_caller]
    fn promise_collective(&self) -> CollectivePlace {
        CollectivePlace::promise(self)
    }

    #[track_caller]
    fn run_program<I: SendBuf, O: RecvBuf>(
        &self,
        collective: CollectiveSpec,
        input: I,
        output: O,
    ) -> ProgramOp<I, O> {
        self.run_program_in(self.reserve_collective(), collective, input, output)
    }

    #[inline(always)]
    fn run_program_in<I: SendBuf, O: RecvBuf>(
        &self,
        place: CollectivePlace,
        collective: CollectiveSpec,
        input: I,
        output: O,
    ) -> ProgramOp<I, O> {
        self.begin_program(place, collective, None, input, output)
    }

    #[inline(always)]
    #[track_caller]
    fn try_alone<I: SendBuf, O: RecvBuf>(
        &self,
        copy: LocalCopy,
        input: &I,
        output: &mut O,
    ) -> Result<(), CollectivePlace> {
        Self::try_alone(self, copy, input, output)
    }

    fn begin_alone<I: SendBuf, O: RecvBuf>(
        &self,
        place: CollectivePlace,
        work: (&'static str, LocalCopy),
        input: I,
        output: O,
    ) -> ProgramOp<I, O> {
        Self::begin_alone(self, place, work, input, output)
    }

    #[cold]
    fn refuse_program<I: SendBuf, O: RecvBuf>(
        &self,
        place: CollectivePlace,
        name: &'static str,
        sentence: String,
        input: I,
        output: O,
    ) -> ProgramOp<I, O> {
        let nothing = CollectiveProgram::empty(self.rank(), self.size());
        let collective = CollectiveSpec::plain(name, nothing);
        self.begin_program(place, collective, Some(sentence), input, output)
    }
}
