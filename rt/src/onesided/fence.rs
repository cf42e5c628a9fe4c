//! Fences: everybody opens, everybody accesses, everybody closes.

use std::{
    future::poll_fn,
    panic::Location,
    pin::Pin,
    sync::{Mutex, PoisonError},
    task::Poll,
};

use super::{Port, Target, listener::Listener};
use crate::{
    buffer::Wire,
    engine::{Engine, Gates, Looked, Passed},
    error::{ErrorKind, Result},
    executor::proceed,
};

type Agreed = Pin<Box<dyn Future<Output = Result<()>> + Send>>;

/// Fences by messages.
#[derive(Default)]
pub(super) struct Meeting {
    /// One that is not over, and whether it ends the epoch. The lock is never taken: it makes a port one that threads may share.
    under_way: Mutex<Option<(bool, Agreed)>>,
    /// None is passed any more.
    failed: bool,
}

/// A fence that this rank has come to.
#[derive(Debug)]
#[must_use = "the other members wait for what follows"]
pub struct Come {
    ending: bool,
    at: &'static Location<'static>,
    gates: Gates,
    looked: Looked,
}

impl<T: Wire> Port<T> {
    /// Opens this end to everybody.
    ///
    /// # Errors
    /// An exposure that is open.
    pub fn open_to_all(&mut self) -> Result<()> {
        if self.is_exposed() {
            return self.check_closed("fence");
        }
        self.is_open = true;
        let shared = self.comm.shared();
        shared.with(|engine| engine.core.gather(self.id, true));
        Ok(())
    }

    /// Closes it again: after a fence.
    pub fn close_to_all(&mut self) {
        self.is_open = false;
        let shared = self.comm.shared();
        shared.with(|engine| engine.core.gather(self.id, false));
    }

    /// Comes to a fence: one that is `ending` ends the epochs of all members. The others hear of it at once, unless operations of
    /// this rank are in flight, or the driver has no counters.
    pub fn come_to_fence(&mut self, ending: bool, at: &'static Location<'static>) -> Come {
        self.is_gathered = false;
        let (gates, looked) = self.go_to_gate(ending);
        Come {
            ending,
            at,
            gates,
            looked,
        }
    }

    /// Waits until nothing of ours is under way, and then for all members to come to a fence of the same kind. One that was given
    /// up is gone on with first.
    ///
    /// # Errors
    /// A member failed, or `Mismatch`: one came to a fence of the other kind. Then all fences of this window fail from now on.
    pub async fn fence(&mut self, come: Come) -> Result<()> {
        proceed().await;
        let (ending, at) = (come.ending, come.at);
        if self.pass(come).await? == Gates::None {
            self.agree(ending, at).await?;
        }
        self.is_gathered = !ending;
        Ok(())
    }

    fn go_to_gate(&self, ending: bool) -> (Gates, Looked) {
        let id = self.id;
        self.comm.shared().with(|engine| {
            let gates = engine.begin_fence(id, ending);
            (gates, engine.go_through(id, gates))
        })
    }

    /// As far as there are gates.
    async fn pass(&self, come: Come) -> Result<Gates> {
        let Come {
            ending,
            mut gates,
            looked,
            ..
        } = come;
        let mut first = Some(looked);
        let (id, shared) = (self.id, self.comm.shared());
        let mut listener = Listener::new(self);
        loop {
            let go_on = |engine: &mut Engine| engine.go_through(id, gates);
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
                Gates::Counted | Gates::None => return Ok(gates),
                Gates::Earlier => {}
            }
            let (next, looked) = self.go_to_gate(ending);
            (gates, first) = (next, Some(looked));
        }
    }

    /// Goes on from where a look has ended, for as long as those who are waited for come soon.
    fn pass_soon(
        &self,
        mut looked: Looked,
        go_on: impl Fn(&mut Engine) -> Looked,
    ) -> Option<Passed> {
        let shared = self.comm.shared();
        loop {
            let gate = match looked {
                Ok(passed) => return Some(passed),
                Err(gate) => gate?,
            };
            if !shared.comes_soon(|| gate.is_open()) {
                return None;
            }
            looked = shared.with(&go_on);
        }
    }

    /// By messages. A meeting that was given up keeps its place among the collectives, and the others may have come to it.
    async fn agree(&mut self, ending: bool, at: &'static Location<'static>) -> Result<()> {
        let Self { meeting, comm, .. } = self;
        let Meeting { under_way, failed } = meeting;
        let meeting = under_way.get_mut().unwrap_or_else(PoisonError::into_inner);
        if *failed {
            comm.agreement_at(at).meet_in_vain();
            return Err(comm.error("fence", ErrorKind::Revoked, None, None));
        }
        loop {
            let (earlier, agreed) = meeting.get_or_insert_with(|| {
                let agreed = comm.agreement_at(at).meet(ending.into());
                (ending, Box::pin(agreed) as Agreed)
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

    /// A member's end, until the next fence, also if it has not introduced itself yet.
    ///
    /// # Errors
    /// A rank that is out of range, a window whose elements are of another type there; `Epoch` when the last fence ended the
    /// epoch, or failed.
    #[inline]
    pub fn target(&self, op: &'static str, rank: usize) -> Result<&Target> {
        if !self.is_gathered {
            let sentence = format!("window {}: no fence epoch is open", self.id.tag);
            return Err(self.comm.error(op, ErrorKind::Epoch(sentence), None, None));
        }
        let target = self.meet(op, "rank", rank)?;
        if target.mapped().is_none() {
            self.look(op, target)?;
        }
        Ok(target)
    }
}
