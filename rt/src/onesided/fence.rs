//! Fences: all ranks open their ends, access each other, and close.

use std::{
    future::poll_fn,
    panic::Location,
    pin::Pin,
    sync::{Mutex, PoisonError},
    task::Poll,
};

use super::{WindowEnd, WindowTarget, listener::WindowListener};
use crate::{
    buffer::Wire,
    engine::{Engine, FenceMethod, FencePoll, FenceResult},
    error::{ErrorKind, Result},
    executor::proceed,
};

type FenceFuture = Pin<Box<dyn Future<Output = Result<()>> + Send>>;

/// State of fences by messages.
#[derive(Default)]
pub(super) struct MessageFence {
    /// Fence that is in flight, and whether it ends the epoch. The mutex is never locked: it only makes a window end
    /// shareable between threads.
    under_way: Mutex<Option<(bool, FenceFuture)>>,
    /// True once no further fence can be passed.
    failed: bool,
}

/// A fence that this rank has reached.
#[derive(Debug)]
#[must_use = "the other members wait for what follows"]
pub struct FenceArrival {
    ending: bool,
    at: &'static Location<'static>,
    gates: FenceMethod,
    looked: FencePoll,
}

impl<T: Wire> WindowEnd<T> {
    /// Opens this end to all ranks.
    ///
    /// # Errors
    /// An exposure epoch is open.
    pub fn open_to_all(&mut self) -> Result<()> {
        if self.is_exposed() {
            return self.check_closed("fence");
        }
        self.is_open = true;
        let shared = self.comm.shared();
        shared.with(|engine| engine.core.windows().set_fence_epoch(self.id, true));
        Ok(())
    }

    /// Closes this end again, after a fence.
    pub fn close_to_all(&mut self) {
        self.is_open = false;
        let shared = self.comm.shared();
        shared.with(|engine| engine.core.windows().set_fence_epoch(self.id, false));
    }

    /// Reaches a fence. A fence that is `ending` ends the epochs of all members. The other members are notified
    /// immediately, unless operations of this rank are in flight or the driver has no counters.
    pub fn come_to_fence(&mut self, ending: bool, at: &'static Location<'static>) -> FenceArrival {
        self.is_gathered = false;
        let (gates, looked) = self.go_to_gate(ending);
        FenceArrival {
            ending,
            at,
            gates,
            looked,
        }
    }

    /// Waits until this rank has no operation in flight, and then until all members have reached a fence of the same
    /// kind. If an earlier fence was canceled, continues with that one first.
    ///
    /// # Errors
    /// A member failed; or `Mismatch`, if a member reached a fence of the other kind. Then all further fences of this
    /// window fail.
    pub async fn fence(&mut self, come: FenceArrival) -> Result<()> {
        proceed().await;
        let (ending, at) = (come.ending, come.at);
        if self.pass(come).await? == FenceMethod::None {
            self.agree(ending, at).await?;
        }
        self.is_gathered = !ending;
        Ok(())
    }

    fn go_to_gate(&self, ending: bool) -> (FenceMethod, FencePoll) {
        let id = self.id;
        self.comm.shared().with(|engine| {
            let gates = engine.begin_fence(id, ending);
            (gates, engine.advance_fence(id, gates))
        })
    }

    /// Passes the rounds of the fence, if the driver has counters.
    async fn pass(&self, come: FenceArrival) -> Result<FenceMethod> {
        let FenceArrival {
            ending,
            mut gates,
            looked,
            ..
        } = come;
        let mut first = Some(looked);
        let (id, shared) = (self.id, self.comm.shared());
        let mut listener = WindowListener::new(self);
        loop {
            let go_on = |engine: &mut Engine| engine.advance_fence(id, gates);
            let passed = poll_fn(|cx| {
                let looked = first.take().unwrap_or_else(|| shared.with(go_on));
                self.pass_soon(looked, go_on).map_or_else(
                    || {
                        let check = |engine: &mut Engine| go_on(engine).ok();
                        let watch = |engine: &mut Engine| engine.watch_fence(id);
                        listener.poll(cx, check, watch)
                    },
                    Poll::Ready,
                )
            });
            passed
                .await
                .map_err(|(rank, why)| self.error("fence", why, rank))?;
            match gates {
                FenceMethod::Counted | FenceMethod::None => return Ok(gates),
                FenceMethod::Earlier => {}
            }
            let (next, looked) = self.go_to_gate(ending);
            (gates, first) = (next, Some(looked));
        }
    }

    /// Continues from where the last look ended, as long as the awaited ranks arrive soon.
    fn pass_soon(
        &self,
        mut looked: FencePoll,
        go_on: impl Fn(&mut Engine) -> FencePoll,
    ) -> Option<FenceResult> {
        let shared = self.comm.shared();
        loop {
            let gate = match looked {
                Ok(passed) => return Some(passed),
                Err(gate) => gate?,
            };
            if !shared.arrives_soon(|| gate.is_open()) {
                return None;
            }
            looked = shared.with(&go_on);
        }
    }

    /// Passes the fence by messages. A canceled meeting keeps its place among the collectives, because other members
    /// may have reached it.
    async fn agree(&mut self, ending: bool, at: &'static Location<'static>) -> Result<()> {
        let Self {
            message_fence: meeting,
            comm,
            ..
        } = self;
        let MessageFence { under_way, failed } = meeting;
        let meeting = under_way.get_mut().unwrap_or_else(PoisonError::into_inner);
        if *failed {
            comm.agreement_at(at).fail_barrier();
            return Err(comm.error("fence", ErrorKind::Revoked, None, None));
        }
        loop {
            let (earlier, agreed) = meeting.get_or_insert_with(|| {
                let agreed = comm.agreement_at(at).barrier(ending.into());
                (ending, Box::pin(agreed) as FenceFuture)
            });
            let is_this = *earlier == ending;
            let agreed = agreed.as_mut().await;
            *meeting = None;
            *failed = agreed.is_err();
            agreed.map_err(|error| error.renamed("fence"))?;
            if is_this {
                return Ok(());
            }
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
            let sentence = format!("window {}: no fence epoch is open", self.id.sequence);
            return Err(self.comm.error(op, ErrorKind::Epoch(sentence), None, None));
        }
        let target = self.find_or_insert_target(op, "rank", rank)?;
        if target.mapped().is_none() {
            self.look(op, target)?;
        }
        Ok(target)
    }
}
