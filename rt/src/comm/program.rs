//! Futures of collectives that the engine carries out as programs: [`ProgramOp`].

use std::{
    fmt,
    mem::{self, ManuallyDrop},
    panic::{Location, resume_unwind},
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use super::{CollectiveCall, Comm, handle_cache};
use crate::{
    buffer::{RecvBuf, SendBuf, Wire},
    engine::{
        BorrowedCall, Engine, EngineCore, ExecutionRequest, RunOutcome, RunTicket, SingleRoundPoll,
        SingleRoundProgress, SingleRoundRun,
    },
    error::{ErrorKind, OpError},
    executor::{self, poll_proceed},
    group::CommRank,
    offload::CollectiveSpec,
    ops::{BufferArea, OpFailure, ProgramBuffers},
    proto::collective_id::CollectiveId,
};

/// A collective in flight. The call that made it has already started the collective, which proceeds whether or not it
/// is polled.
///
/// It completes when neither this rank nor a peer needs its two buffers any more, and returns the buffers, also with an
/// error.
/// Dropping it detaches it: the collective goes on, so that the other ranks complete, and the buffers are dropped
/// afterwards. A runtime that is being closed waits for it.
#[must_use = "await it, or call `detach`"]
pub struct ProgramOp<I: SendBuf, O: RecvBuf> {
    /// `None` once the buffers have been returned.
    stage: Option<ProgramStage<I, O>>,
}

/// The buffers, also with an error.
type ProgramOutcome<I, O> = Result<(I, O), OpError<(I, O)>>;

enum ProgramStage<I: SendBuf, O: RecvBuf> {
    /// The collective completed at its call. The buffers are taken out alone, because a flight, which is much longer, would be
    /// moved with the stage.
    Filled(Option<(I, O)>),
    /// A collective that did not complete at its call. `take_flight` moves the flight out, and the drop of the future drops one
    /// that is left. Drop code that the compiler makes would be copied into every program that waits for a collective.
    Flight(ManuallyDrop<CollectiveFlight<I, O>>),
}

struct CollectiveFlight<I: SendBuf, O: RecvBuf> {
    name: &'static str,
    state: CollectiveState<I, O>,
    comm: Comm,
    /// True if the collective makes progress only when this future is polled.
    hosted: bool,
}

enum CollectiveState<I, O> {
    SingleRound(SingleRoundRun<I, O>),
    Run(RunTicket<I, O>),
    /// Temporary state during the change from `SingleRound` to `Run`.
    Between,
    /// Two ranks called different collectives. The error waits for both to report their calls.
    Disagrees(Box<MismatchedCall<I, O>>),
}

struct MismatchedCall<I, O> {
    failure: OpFailure,
    buffers: (I, O),
    /// Time limit for the reports, because these ranks may have failed or be busy computing.
    limit: Pin<Box<dyn Future<Output = ()> + Send>>,
}

/// Maximum time that a mismatch error waits for ranks to report their calls.
pub(super) const REPORT_MAX: Duration = Duration::from_secs(1);

/// A reserved position in the order of a communicator's collectives, with the source line that reserved it.
#[must_use = "the other ranks wait for the collective that begins in it"]
#[derive(Debug)]
pub struct CollectivePlace {
    pub(super) call: CollectiveCall,
    /// True if the collective may begin late, after collectives with later positions. It then uses no task lists.
    waits: bool,
    promise: Option<ReservationGuard>,
}

impl CollectivePlace {
    /// Returns the next position, for a collective that begins before any with a later position.
    #[inline]
    #[track_caller]
    pub(crate) fn reserve(comm: &Comm) -> Self {
        Self::of(comm.next_collective())
    }

    /// Returns the place of a call that begins before any with a later position.
    pub(super) const fn of(call: CollectiveCall) -> Self {
        Self {
            call,
            waits: false,
            promise: None,
        }
    }

    /// Returns the next position, for a collective that may begin after collectives with later positions.
    #[track_caller]
    pub(crate) fn promise(comm: &Comm) -> Self {
        Self {
            call: comm.next_collective(),
            waits: true,
            promise: ReservationGuard::new(comm),
        }
    }

    /// Returns the same position, reserved by another source line.
    pub fn called_at(self, at: &'static Location<'static>) -> Self {
        let call = CollectiveCall { at, ..self.call };
        Self { call, ..self }
    }
}

/// Makes a closing runtime wait for a collective that is reserved but not yet begun.
#[derive(Debug)]
struct ReservationGuard(Comm);

impl ReservationGuard {
    /// Returns `None` if the runtime is already closing.
    fn new(comm: &Comm) -> Option<Self> {
        let promised = comm.shared().with(|engine| engine.core.promise());
        promised.then(|| Self(comm.clone()))
    }
}

impl Drop for ReservationGuard {
    fn drop(&mut self) {
        let shared = self.0.shared();
        shared.with(|engine| engine.core.end_promise());
    }
}

impl Comm {
    /// Returns true if this process can reach the memory of all members directly. Then an adapter, even if there is
    /// one, would only copy more slowly.
    fn is_among_neighbors(&self) -> bool {
        let (group, neighbors) = (self.group(), &self.shared().place.neighbors);
        group.len() <= neighbors.len()
            && group
                .members()
                .all(|rank| neighbors.binary_search(&rank).is_ok())
    }

    /// Begins a collective in its reserved position. `refused` is the reason if this rank must not run it.
    ///
    /// The call itself sends what can go by collective slots, and looks once for what has arrived. Only if something is missing,
    /// a record of the call is made and kept with the future.
    #[inline(always)]
    pub(crate) fn begin_program<I: SendBuf, O: RecvBuf>(
        &self,
        CollectivePlace {
            call: CollectiveCall { tag, at },
            waits,
            promise,
        }: CollectivePlace,
        collective: CollectiveSpec,
        refused: Option<String>,
        input: I,
        output: O,
    ) -> ProgramOp<I, O> {
        let (name, program) = (collective.name, &collective.program);
        let executor = self.shared().settings.collectives;
        let is_all_near = || self.is_among_neighbors();
        let request = ExecutionRequest::of(executor, program.is_short(), waits, is_all_near);
        let by_lists = request == ExecutionRequest::TaskLists;
        let mut buffers = ProgramBuffers::new(input, output, program, by_lists);
        let id = CollectiveId::new(self.id() + 1, tag);
        let (mut found, mut progress) = (SingleRoundPoll::Fallback, SingleRoundProgress::default());
        if refused.is_none() {
            let call = BorrowedCall {
                id,
                sig: collective.signature.0.0,
                at,
                group: self.group(),
                program,
                reducer: collective.reducer.as_ref(),
                request,
            };
            found = self.begin_single_round(&call, buffers.areas(), &mut progress);
        }
        if progress.has_ended() {
            let (input, output) = buffers.into_filled(program.lens().output);
            return ProgramOp::completed(input, output);
        }
        let mut call = handle_cache::call_allocation(program);
        (call.ctx, call.tag, call.sig) = (id.context, id.sequence, collective.signature.0.0);
        call.at = at;
        if !call.group.is_same_as(self.group()) {
            call.group = self.group().clone();
        }
        (call.reducer, call.refused) = (collective.reducer, refused);
        (call.request, call.with_block_events) = (request, collective.with_block_events);
        let mut op = ProgramOp {
            stage: Some(ProgramStage::Flight(ManuallyDrop::new(CollectiveFlight {
                name,
                state: CollectiveState::SingleRound(SingleRoundRun::new(call, buffers, progress)),
                comm: handle_cache::clone_handle(self),
                hosted: request == ExecutionRequest::Polled,
            }))),
        };
        let is_all_sent = found == SingleRoundPoll::Done;
        if !is_all_sent && let Some(flight) = op.flight_mut() {
            flight.run();
        }
        drop(promise); // the promise must live until here
        op
    }

    /// Sends everything that can go by collective slots, then looks once for what has arrived. The buffers are at these places.
    ///
    /// A rank that is ahead of its receivers waits a moment for them, because sending messages to the slower ranks would cost
    /// both sides more.
    #[inline(never)]
    fn begin_single_round(
        &self,
        call: &BorrowedCall<'_>,
        areas: [BufferArea; 2],
        progress: &mut SingleRoundProgress,
    ) -> SingleRoundPoll {
        let shared = self.shared();
        shared.poll_condition(|engine| {
            engine
                .collectives()
                .begin_single_round(call, areas, progress)
        })
    }
}

impl<I: SendBuf, O: RecvBuf> ProgramOp<I, O> {
    /// Makes the future of a collective that completed at its call.
    #[inline(always)]
    pub const fn completed(input: I, output: O) -> Self {
        let stage = Some(ProgramStage::Filled(Some((input, output))));
        Self { stage }
    }

    /// Returns the flight of a collective that did not complete at its call, until the buffers are returned.
    #[inline(always)]
    fn flight_mut(&mut self) -> Option<&mut CollectiveFlight<I, O>> {
        match &mut self.stage {
            Some(ProgramStage::Flight(flight)) => Some(flight),
            _ => None,
        }
    }

    #[inline(always)]
    fn flight(&self) -> Option<&CollectiveFlight<I, O>> {
        match &self.stage {
            Some(ProgramStage::Flight(flight)) => Some(flight),
            _ => None,
        }
    }

    /// Returns the buffers of a collective that completed at its call. Returns `None` if it did not, or if the buffers have been
    /// returned already. Then [`poll_flight`](Self::poll_flight) goes on.
    #[inline(always)]
    pub fn poll_filled(&mut self, cx: &Context<'_>) -> Poll<Option<(I, O)>> {
        ready!(poll_proceed(cx));
        let Some(ProgramStage::Filled(filled)) = &mut self.stage else {
            return Poll::Ready(None);
        };
        let filled = filled.take();
        self.stage = None;
        Poll::Ready(filled)
    }

    /// Polls a collective that did not complete at its call.
    pub fn poll_flight(&mut self, cx: &mut Context<'_>) -> Poll<ProgramOutcome<I, O>> {
        poll_flight(&mut self.stage, cx)
    }

    /// Lets the collective complete in the background. Same as dropping it.
    pub fn detach(self) {}

    /// Returns true if awaiting this would not wait.
    pub fn is_done(&self) -> bool {
        self.flight().is_none_or(|flight| {
            let shared = flight.comm.shared();
            flight.has_ended()
                || shared.test_condition(|engine| match &flight.state {
                    CollectiveState::SingleRound(single_round) => {
                        engine.collectives().is_single_round_done(single_round)
                    }
                    CollectiveState::Run(ticket) => {
                        engine.core.p2p.common.is_done(ticket.buffers.op)
                    }
                    CollectiveState::Between | CollectiveState::Disagrees(_) => true,
                })
        })
    }

    /// Makes the collective record its completed receives, for [`poll_block_event`](Self::poll_block_event).
    pub fn record_block_events(&mut self) {
        if let Some(flight) = self.flight_mut()
            && !flight.has_ended()
        {
            flight.with_run(|engine, ticket| engine.collectives().record_block_events(ticket));
        }
    }

    /// Polls for the next completed receive step, in completion order. Returns the sender's rank and a copy of the
    /// received elements.
    ///
    /// Returns `None` when the program has completed; blocks not reported by then are in the output. Each receive is
    /// reported at most once, and only while no other step works on its bytes.
    pub fn poll_block_event<T: Wire>(
        &mut self,
        cx: &Context<'_>,
    ) -> Poll<Option<(CommRank, Vec<T>)>> {
        ready!(poll_proceed(cx));
        let Some(flight) = self.flight_mut().filter(|flight| !flight.has_ended()) else {
            return Poll::Ready(None);
        };
        flight.poll_by(|flight| {
            flight.with_run(|engine, ticket| {
                engine
                    .core
                    .collectives()
                    .poll_block_event(ticket, cx.waker())
            })
        })
    }
}

impl<I: SendBuf, O: RecvBuf> Future for ProgramOp<I, O> {
    type Output = ProgramOutcome<I, O>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(filled) = ready!(self.poll_filled(cx)) {
            return Poll::Ready(Ok(filled));
        }
        self.poll_flight(cx)
    }
}

/// Polls a collective that did not complete at its call.
fn poll_flight<I: SendBuf, O: RecvBuf>(
    place: &mut Option<ProgramStage<I, O>>,
    cx: &mut Context<'_>,
) -> Poll<ProgramOutcome<I, O>> {
    let Some(ProgramStage::Flight(flight)) = place else {
        panic!("a collective was polled after it had completed")
    };
    if flight.is_single_round_over() {
        let flight = take_flight(place);
        let CollectiveState::SingleRound(single_round) = flight.state else {
            unreachable!("just seen")
        };
        let (filled, call) = single_round.into_filled();
        handle_cache::cache_handle(flight.comm);
        handle_cache::cache_call(call);
        return Poll::Ready(Ok(filled));
    }
    let Some(ProgramStage::Flight(flight)) = place else {
        unreachable!("just seen")
    };
    if let CollectiveState::Disagrees(_) = &flight.state {
        return poll_mismatch(place, cx);
    }
    let polled = flight.poll_by(|flight| flight.poll(cx));
    let (outcome, input, output, panic) = ready!(polled);
    let mut flight = take_flight(place);
    if let Some(panic) = panic {
        resume_unwind(panic);
    }
    match outcome {
        Ok(_) => {
            handle_cache::cache_handle(flight.comm);
            Poll::Ready(Ok((input, output)))
        }
        Err(failure) => {
            flight.state = CollectiveState::Disagrees(Box::new(MismatchedCall {
                limit: Box::pin(executor::sleep(flight.comm.shared(), REPORT_MAX, None)),
                failure: *failure,
                buffers: (input, output),
            }));
            *place = Some(ProgramStage::Flight(ManuallyDrop::new(flight)));
            poll_mismatch(place, cx)
        }
    }
}

/// Moves the flight out, which the caller has seen.
fn take_flight<I: SendBuf, O: RecvBuf>(
    place: &mut Option<ProgramStage<I, O>>,
) -> CollectiveFlight<I, O> {
    let Some(ProgramStage::Flight(flight)) = place.take() else {
        unreachable!("just seen")
    };
    ManuallyDrop::into_inner(flight)
}

/// Returns the error, once the ranks that disagree have reported their calls or the time limit has passed.
#[cold]
fn poll_mismatch<I: SendBuf, O: RecvBuf>(
    place: &mut Option<ProgramStage<I, O>>,
    cx: &mut Context<'_>,
) -> Poll<ProgramOutcome<I, O>> {
    if let Some(ProgramStage::Flight(flight)) = place
        && let CollectiveFlight { state, comm, .. } = &mut **flight
        && let CollectiveState::Disagrees(mismatch) = state
        && let ErrorKind::Mismatch { .. } = &mismatch.failure.kind
        && comm.poll_descriptions(cx).is_pending()
    {
        ready!(mismatch.limit.as_mut().poll(cx));
    }
    let CollectiveFlight {
        name,
        state: CollectiveState::Disagrees(mismatch),
        comm,
        ..
    } = take_flight(place)
    else {
        unreachable!("just seen")
    };
    let MismatchedCall {
        mut failure,
        buffers: buf,
        ..
    } = *mismatch;
    if let ErrorKind::Mismatch { .. } = failure.kind
        && let Some(kind) = comm.described_mismatch()
    {
        failure.kind = kind;
    }
    let error = comm.error(name, failure.kind, None, None);
    let error = error.called_at(failure.info.at);
    Poll::Ready(Err(OpError { error, buf }))
}

impl<I: SendBuf, O: RecvBuf> CollectiveFlight<I, O> {
    /// Returns true if a single-round collective has received everything that it waits for. Polls if that is not known yet.
    #[inline]
    fn is_single_round_over(&mut self) -> bool {
        let CollectiveState::SingleRound(single_round) = &mut self.state else {
            return false;
        };
        if single_round.has_ended() {
            return true;
        }
        let shared = self.comm.shared();
        shared.poll_condition(|engine| engine.collectives().poll_single_round(single_round))
            == SingleRoundPoll::Done
    }

    /// Returns true if the collective is known to have ended, without polling.
    const fn has_ended(&self) -> bool {
        match &self.state {
            CollectiveState::SingleRound(single_round) => single_round.has_ended(),
            CollectiveState::Disagrees(_) => true,
            CollectiveState::Run(_) | CollectiveState::Between => false,
        }
    }

    /// Hands a single-round collective over to the engine, which tracks it from here on.
    fn run(&mut self) -> (&RunTicket<I, O>, &Comm) {
        if let CollectiveState::SingleRound(_) = &self.state
            && let CollectiveState::SingleRound(single_round) =
                mem::replace(&mut self.state, CollectiveState::Between)
        {
            let shared = self.comm.shared();
            let (ticket, room) = shared.with(|engine| engine.convert_to_run(single_round));
            self.state = CollectiveState::Run(ticket);
            handle_cache::cache_call(room);
        }
        match &self.state {
            CollectiveState::Run(ticket) => (ticket, &self.comm),
            _ => unreachable!("made just now"),
        }
    }

    fn with_run<R>(&mut self, work: impl FnOnce(&mut Engine, &RunTicket<I, O>) -> R) -> R {
        let (ticket, comm) = self.run();
        comm.shared().with(|engine| work(engine, ticket))
    }

    #[inline]
    fn poll(&mut self, cx: &Context<'_>) -> Poll<RunOutcome<I, O>> {
        let (ticket, comm) = self.run();
        let take = |core: &mut EngineCore| core.collectives().take_run(ticket);
        comm.shared().poll(ticket.buffers.op, cx.waker(), take)
    }

    /// Calls `poll`. If the collective progresses only when polled, carries it on first.
    #[inline]
    fn poll_by<R>(&mut self, mut poll: impl FnMut(&mut Self) -> Poll<R>) -> Poll<R> {
        if !self.hosted {
            return poll(self);
        }
        loop {
            self.with_run(Engine::carry_on);
            let polled = poll(self);
            // Events during `poll` have woken no task, so loop if there were any.
            if polled.is_ready()
                || !self.with_run(|engine, ticket| engine.core.collectives().has_new_events(ticket))
            {
                return polled;
            }
        }
    }
}

impl<I: SendBuf, O: RecvBuf> Drop for ProgramOp<I, O> {
    #[inline]
    fn drop(&mut self) {
        if let Some(ProgramStage::Flight(_)) = &self.stage {
            self.drop_flight();
        }
    }
}

impl<I: SendBuf, O: RecvBuf> ProgramOp<I, O> {
    #[inline(never)]
    fn drop_flight(&mut self) {
        take_flight(&mut self.stage).detach();
    }
}

impl<I: SendBuf, O: RecvBuf> CollectiveFlight<I, O> {
    /// Lets the collective complete in the background. The rest of the flight is dropped, also if that panics.
    fn detach(mut self) {
        if let CollectiveState::Disagrees(mismatch) = &self.state {
            let info = &mismatch.failure.info;
            self.comm
                .shared()
                .with(|engine| engine.core.collectives().forget_outcome(info));
        }
        if !self.is_single_round_over()
            // The collective does not exist any more if a panic interrupted the change from `SingleRound` to `Run`.
            && !matches!(self.state, CollectiveState::Between | CollectiveState::Disagrees(_))
        {
            self.with_run(|engine, ticket| {
                engine.core.collectives().detach_run(ticket);
                engine.flush();
            });
        }
    }
}

// The buffers are moved, never pinned.
impl<I: SendBuf, O: RecvBuf> Unpin for ProgramOp<I, O> {}

impl<I: SendBuf, O: RecvBuf> fmt::Debug for ProgramOp<I, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProgramOp")
            .field("name", &self.flight().map(|flight| flight.name))
            .field("done", &self.is_done())
            .finish()
    }
}
