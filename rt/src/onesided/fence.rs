//! Fences: all ranks open their ends, access each other, and close.

use std::{
    fmt,
    panic::Location,
    pin::Pin,
    sync::{Mutex, PoisonError},
    task::{Context, Poll, ready},
};

use super::{WindowEnd, WindowTarget};
use crate::{
    buffer::Wire,
    clock::machine_nanos,
    engine::{
        AwaitedFenceCounter, Engine, FenceMethod, FenceResult, WindowId, WindowWaiterSlot,
        differing_fences, fence_name,
    },
    error::{Error, ErrorKind, Result},
    executor::poll_proceed,
    shared::RuntimeShared,
    trace::WindowCall,
};

type FenceFuture = Pin<Box<dyn Future<Output = Result<()>> + Send>>;

/// State of fences by messages.
#[derive(Default)]
pub(super) struct MessageFence {
    /// Fence that is in flight, and whether it ends the epoch. The mutex is never locked: it only makes a window end
    /// shareable between threads.
    in_flight: Mutex<Option<(bool, FenceFuture)>>,
    /// True once no further fence can be passed.
    failed: bool,
}

/// A fence that this rank has reached. Resolves to this rank's end when all members have reached a fence of the same kind.
///
/// Dropping it cancels the wait only: the next fence continues with this one first.
// The type is small, because futures are moved around. What a fence needs that does not pass at once is in the window's end.
#[must_use = "the other members wait for what follows"]
pub struct FenceOp<'w, T: Wire> {
    /// `None` once the fence has ended.
    window_end: Option<&'w mut WindowEnd<T>>,
    at: &'static Location<'static>,
    /// True if the fence was passed at its call.
    is_passed: bool,
    /// True if the fence ends the epochs of all members.
    ending: bool,
}

/// What a fence in progress waits for, if it did not pass at its call.
#[derive(Default)]
pub(super) struct FenceWait {
    stage: FenceStage,
    /// Registration of the fence's future, if it had to wait.
    place: WindowWaiterSlot,
}

#[derive(Default)]
enum FenceStage {
    /// All members have come.
    #[default]
    Passed,
    /// In progress, by counters or by nothing but this rank's own operations. Holds the counter that is awaited, if one is.
    Rounds(FenceMethod, Option<AwaitedFenceCounter>),
    /// In progress. Holds when it began, if a trace records that.
    ByMessages(u64),
    /// This rank did not come to the fence.
    Refused(Box<Error>),
}

/// Fences of this end. The other members are notified of each during the call, unless operations of this rank are in flight or
/// the driver has no counters.
impl<T: Wire> WindowEnd<T> {
    /// Opens this end to all ranks, and comes to a fence. The future fails if an exposure epoch is open.
    #[inline]
    pub fn open_by_fence(&mut self, at: &'static Location<'static>) -> FenceOp<'_, T> {
        if self.is_exposed()
            && let Err(refused) = self.check_closed("fence")
        {
            self.fence_wait.stage = FenceStage::Refused(Box::new(refused));
            return self.fence_op(false, false, at);
        }
        self.is_open = true;
        let opens = !self.is_open_to_itself;
        self.come_to_fence(opens, false, at)
    }

    /// Comes to a fence in an epoch of fences, which ends that epoch if it is `ending`.
    #[inline]
    pub fn fence(&mut self, ending: bool, at: &'static Location<'static>) -> FenceOp<'_, T> {
        self.come_to_fence(false, ending, at)
    }

    #[inline]
    fn come_to_fence(
        &mut self,
        opens: bool,
        ending: bool,
        at: &'static Location<'static>,
    ) -> FenceOp<'_, T> {
        self.is_gathered = false;
        let is_passed = self.passes_at_once() || {
            self.fence_wait.stage = self.go_to_gate(opens, ending, at);
            matches!(self.fence_wait.stage, FenceStage::Passed)
        };
        self.fence_op(is_passed, ending, at)
    }

    #[inline]
    fn fence_op(
        &mut self,
        is_passed: bool,
        ending: bool,
        at: &'static Location<'static>,
    ) -> FenceOp<'_, T> {
        FenceOp {
            window_end: Some(self),
            at,
            is_passed,
            ending,
        }
    }

    /// Returns true if a fence is passed as soon as this rank comes to it: this is the only rank, and none of its operations is
    /// in flight. The engine then has no part in it.
    #[inline]
    fn passes_at_once(&self) -> bool {
        let is_quiet = |target: &WindowTarget| target.counters.is_quiet();
        self.is_open_to_itself && self.targets.find(0).is_none_or(is_quiet)
    }

    #[inline(never)]
    fn go_to_gate(
        &mut self,
        opens: bool,
        ending: bool,
        at: &'static Location<'static>,
    ) -> FenceStage {
        let id = self.id;
        let place = &mut self.fence_wait.place;
        let (method, looked) = self.comm.shared().with(|engine| {
            // An earlier future was forgotten while it waited, and its caller's line would be shown for this fence.
            if place.is_taken() {
                engine.core.windows().forget_listener(id, place);
            }
            if opens {
                engine.core.windows().set_fence_epoch(id, true);
            }
            engine.core.p2p.common.trace_fence(id, ending, at);
            let method = engine.windows().begin_fence(id, ending);
            (method, engine.advance_fence(id, method))
        });
        self.is_open_to_itself |= opens && self.comm.size() == 1;
        match (method, looked) {
            (FenceMethod::Counted, Ok(Ok(()))) => FenceStage::Passed,
            (_, Err(awaited)) => FenceStage::Rounds(method, awaited),
            // The future looks again: it has the errors, and what follows.
            (_, Ok(_)) => FenceStage::Rounds(method, None),
        }
    }

    /// Closes this end again, after a fence or because it is no longer passive.
    ///
    /// The engine keeps the end of an only rank open: it refuses accesses of other ranks, and there are none.
    #[inline]
    pub fn close_to_all(&mut self) {
        self.is_open = false;
        if !self.is_open_to_itself {
            self.close_in_engine();
        }
    }

    #[inline(never)]
    fn close_in_engine(&self) {
        let shared = self.comm.shared();
        shared.with(|engine| engine.core.windows().set_fence_epoch(self.id, false));
    }

    /// Continues the rounds of a fence from where they were last seen.
    fn poll_rounds(
        &mut self,
        method: FenceMethod,
        at: &'static Location<'static>,
        cx: &Context<'_>,
    ) -> Poll<Result<()>> {
        let Self {
            fence_wait,
            comm,
            id,
            ..
        } = self;
        let polled = fence_wait.poll_rounds(comm.shared(), *id, (method, at), cx);
        polled.map_err(|(rank, why)| self.error("fence", why, rank))
    }

    /// Passes the fence by messages. A canceled meeting keeps its place among the collectives, because other members
    /// may have reached it.
    fn poll_messages(
        &mut self,
        ending: bool,
        at: &'static Location<'static>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<()>> {
        let Self {
            message_fence: meeting,
            comm,
            id,
            ..
        } = self;
        let MessageFence { in_flight, failed } = meeting;
        let meeting = in_flight.get_mut().unwrap_or_else(PoisonError::into_inner);
        if *failed {
            comm.agreement_at(fence_name(ending), Some(id.sequence), at)
                .fail_barrier();
            return Poll::Ready(Err(comm.error("fence", ErrorKind::Revoked, None, None)));
        }
        loop {
            let (earlier, agreed) = meeting.get_or_insert_with(|| {
                let agreed = comm
                    .agreement_at(fence_name(ending), Some(id.sequence), at)
                    .barrier(ending.into());
                (ending, Box::pin(agreed) as FenceFuture)
            });
            let own = *earlier;
            let is_this = own == ending;
            let agreed = ready!(agreed.as_mut().poll(cx));
            *meeting = None;
            *failed = agreed.is_err();
            agreed.map_err(|mut error| {
                // Nothing else that differs is without a description.
                if let ErrorKind::Mismatch { rank, calls, .. } = &mut error.kind {
                    let is_first = *rank == comm.rank();
                    calls.get_or_insert_with(|| {
                        let mut both = differing_fences(own, id.sequence);
                        if !is_first {
                            both.reverse();
                        }
                        both
                    });
                }
                error.renamed("fence")
            })?;
            if is_this {
                return Poll::Ready(Ok(()));
            }
        }
    }

    /// Returns the time if a trace needs it, and otherwise 0.
    fn trace_time(&self) -> u64 {
        if self.is_traced { machine_nanos() } else { 0 }
    }

    /// Records that this rank has waited for a fence by messages since that time.
    fn trace_message_fence(&self, began: u64, at: &'static Location<'static>) {
        if began > 0 {
            let call = WindowCall { op: "fence", at };
            let record = |engine: &mut Engine| {
                let place = WindowWaiterSlot::NONE;
                engine
                    .core
                    .windows()
                    .trace_wait(self.id, &place, call, began);
            };
            self.comm.shared().with(record);
        }
    }

    /// Returns a member's end until the next fence, even if that member has not introduced itself yet.
    ///
    /// # Errors
    /// The rank is out of range, or the elements of its window are of another type; `Epoch` if the last fence ended the
    /// epoch, or failed.
    #[inline]
    pub fn target(&self, op: &'static str, rank: usize) -> Result<&WindowTarget> {
        if !self.is_gathered {
            return Err(self.no_fence_epoch(op));
        }
        let target = self.find_or_insert_target(op, "rank", rank)?;
        if target.mapped().is_none() {
            self.look(op, target)?;
        }
        Ok(target)
    }

    #[cold]
    fn no_fence_epoch(&self, op: &'static str) -> Error {
        let sentence = format!("window {}: no fence epoch is open", self.id.sequence);
        self.comm.error(op, ErrorKind::Epoch(sentence), None, None)
    }
}

impl<'w, T: Wire> Future for FenceOp<'w, T> {
    type Output = Result<&'w mut WindowEnd<T>>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if !self.is_passed {
            return self.poll_slowly(cx);
        }
        ready!(poll_proceed(cx));
        Poll::Ready(Ok(self.pass()))
    }
}

impl<'w, T: Wire> FenceOp<'w, T> {
    /// Polls a fence that waits for this rank's operations, or for other members.
    #[inline(never)]
    fn poll_slowly(&mut self, cx: &mut Context<'_>) -> Poll<Result<&'w mut WindowEnd<T>>> {
        ready!(poll_proceed(cx));
        ready!(self.poll_stages(cx)).map_err(|error| error.called_at(self.at))?;
        self.leave_wait();
        Poll::Ready(Ok(self.pass()))
    }

    /// Ends this fence, which all members have reached.
    #[inline]
    fn pass(&mut self) -> &'w mut WindowEnd<T> {
        let ended = self.window_end.take();
        let window_end = ended.expect("a fence was polled after it had ended");
        window_end.is_gathered = !self.ending;
        if self.ending {
            window_end.close_to_all();
        }
        window_end
    }

    /// Takes back the registration of this future, if there is one.
    #[cold]
    #[inline(never)]
    fn leave_wait(&mut self) {
        if let Some(window_end) = self.window_end.as_deref_mut()
            && window_end.fence_wait.place.is_taken()
        {
            let WindowEnd {
                fence_wait,
                comm,
                id,
                ..
            } = window_end;
            let forget = |engine: &mut Engine| {
                engine
                    .core
                    .windows()
                    .forget_listener(*id, &mut fence_wait.place)
            };
            comm.shared().with(forget);
        }
    }

    /// Waits until this rank has no operation in flight, and then until all members have reached a fence of the same kind. If an
    /// earlier fence was canceled, continues with that one first.
    fn poll_stages(&mut self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        let window_end = self.window_end.as_deref_mut();
        let window_end = window_end.expect("a fence was polled after it had ended");
        loop {
            window_end.fence_wait.stage = match &window_end.fence_wait.stage {
                FenceStage::Passed => return Poll::Ready(Ok(())),
                FenceStage::Refused(refused) => return Poll::Ready(Err((**refused).clone())),
                &FenceStage::ByMessages(began) => {
                    ready!(window_end.poll_messages(self.ending, self.at, cx))?;
                    window_end.trace_message_fence(began, self.at);
                    FenceStage::Passed
                }
                &FenceStage::Rounds(method, _) => {
                    ready!(window_end.poll_rounds(method, self.at, cx))?;
                    match method {
                        FenceMethod::Counted => FenceStage::Passed,
                        FenceMethod::None => FenceStage::ByMessages(window_end.trace_time()),
                        FenceMethod::Earlier => window_end.go_to_gate(false, self.ending, self.at),
                    }
                }
            };
        }
    }
}

impl FenceWait {
    /// Continues rounds as long as the awaited ranks arrive soon. Waits then.
    fn poll_rounds(
        &mut self,
        shared: &RuntimeShared,
        id: WindowId,
        (method, at): (FenceMethod, &'static Location<'static>),
        cx: &Context<'_>,
    ) -> Poll<FenceResult> {
        let advance = |engine: &mut Engine| engine.advance_fence(id, method);
        let mut looked = match &mut self.stage {
            FenceStage::Rounds(_, awaited) if awaited.is_some() => Err(awaited.take()),
            _ => shared.with(advance),
        };
        loop {
            match looked {
                Ok(passed) => return Poll::Ready(passed),
                Err(Some(counter)) if shared.arrives_soon(|| counter.is_open()) => {
                    looked = shared.with(advance);
                }
                Err(_) => break,
            }
        }
        let check = |engine: &mut Engine| advance(engine).ok();
        let watch = |engine: &mut Engine| engine.watch_fence(id);
        let call = WindowCall { op: "fence", at };
        shared.poll_window(id, &mut self.place, cx.waker(), Some(call), check, watch)
    }
}

impl<T: Wire> Drop for FenceOp<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        if self.window_end.is_some() {
            self.leave_wait();
        }
    }
}

impl<T: Wire> fmt::Debug for FenceOp<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FenceOp")
            .field("ending", &self.ending)
            .field("passed", &self.is_passed)
            .finish()
    }
}
