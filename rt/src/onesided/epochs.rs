//! Epochs: letting others in, and going to others.

use std::{
    future::poll_fn,
    panic::Location,
    task::{Context, Poll, ready},
    time::Duration,
};

use super::{Port, Target};
use crate::{
    buffer::Wire,
    engine::{Engine, Gates},
    error::{Error, ErrorKind, Result},
};

/// Letting others in.
impl<T: Wire> Port<T> {
    /// Opens this end to these ranks. Waits for nobody.
    ///
    /// # Errors
    /// A rank that is out of range or named twice; an exposure that is open.
    pub fn post(&mut self, origins: &[usize]) -> Result<()> {
        self.check_closed("post")?;
        let world = self.worlds("post", "origins", origins)?;
        self.comm.shared().with(|engine| {
            for &origin in &world {
                engine.post_window(self.id, origin);
            }
            engine.flush();
        });
        self.open_to = world;
        Ok(())
    }

    /// Closes this end when all have completed their accesses, or will never. It is closed also after an error.
    ///
    /// # Errors
    /// An origin that failed, finished or freed the window before it had completed.
    pub fn poll_closed(&mut self, cx: &Context<'_>) -> Poll<Result<()>> {
        let (id, origins) = (self.id, &self.open_to);
        let check = |engine: &mut Engine| {
            let mut failed = None;
            for &origin in origins {
                if let Err(why) = engine.core.has_completed(id, origin)? {
                    failed.get_or_insert((origin, why));
                }
            }
            for &origin in origins.iter().filter(|_| failed.is_some()) {
                engine.core.give_up_origin(id, origin);
            }
            Some(failed)
        };
        let watch = |engine: &mut Engine| engine.watch_completed(id, origins);
        let over = ready!(self.comm.shared().poll_window(id, cx.waker(), check, watch));
        self.open_to.clear();
        Poll::Ready(match over {
            None => Ok(()),
            Some((origin, why)) => Err(self.error("wait", why, origin)),
        })
    }

    /// Whether [`poll_closed`](Self::poll_closed) would not wait.
    #[must_use]
    pub fn is_over(&self) -> bool {
        let over = |engine: &mut Engine| {
            let mut origins = self.open_to.iter();
            origins.all(|&origin| engine.core.has_completed(self.id, origin).is_some())
        };
        self.comm.shared().with(over)
    }
}

/// Fences.
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
        shared.with(|engine| engine.core.open_to_all(self.id, true));
        Ok(())
    }

    /// Closes it again: after a fence.
    pub fn close_to_all(&mut self) {
        self.is_open = false;
        let shared = self.comm.shared();
        shared.with(|engine| engine.core.open_to_all(self.id, false));
    }

    /// Waits until nothing of ours is under way, and then for all members to come to a fence of the same kind: one that is
    /// `ending` ends their epochs. One that was given up is gone on with first.
    ///
    /// # Errors
    /// A member failed, or `Mismatch`: one came to a fence of the other kind. Then all fences of this window fail from now on.
    pub async fn fence(&self, ending: bool) -> Result<()> {
        let (id, shared) = (self.id, self.comm.shared());
        loop {
            let gates = shared.with(|engine| engine.begin_fence(id, ending));
            let check = |engine: &mut Engine| {
                if !engine.core.is_all_quiet(id) {
                    return None;
                }
                match gates {
                    Gates::Counted | Gates::Earlier => engine.pass_fence(id),
                    Gates::None => Some(Ok(())),
                }
            };
            let passed = poll_fn(|cx| {
                shared.poll_window(id, cx.waker(), check, |engine| engine.watch_fence(id))
            });
            passed
                .await
                .map_err(|(rank, why)| self.error("fence", why, rank))?;
            match gates {
                Gates::Counted => return Ok(()),
                Gates::Earlier => {}
                Gates::None => return self.agree(ending).await,
            }
        }
    }

    async fn agree(&self, ending: bool) -> Result<()> {
        let agreed = self.comm.meet(ending.into()).await;
        agreed.map_err(|error| error.renamed("fence"))
    }

    /// A member's memory, also if it has not introduced itself yet.
    ///
    /// # Errors
    /// A rank that is out of range.
    pub fn target(&self, op: &'static str, rank: usize) -> Result<Target> {
        let world = self.comm.peer(op, "rank", rank)?;
        let far = self.comm.shared().with(|engine| engine.far(self.id, world));
        let unknown = Target {
            rank,
            world,
            len: None,
            mapped: None,
        };
        Ok(far.map_or(unknown, |far| Target::new(rank, world, far)))
    }

    /// An error of an argument.
    #[must_use]
    pub fn refusal(&self, op: &'static str, sentence: String) -> Error {
        self.comm
            .error(op, ErrorKind::InvalidArgument(sentence), None, None)
    }
}

/// Going to others.
impl<T: Wire> Port<T> {
    /// World ranks of these targets.
    ///
    /// # Errors
    /// A rank that is out of range or named twice.
    pub fn begin_start(&self, targets: &[usize]) -> Result<Starting<'_, T>> {
        let world = self.worlds("start", "targets", targets)?;
        self.comm.shared().with(|engine| {
            for &target in &world {
                engine.greet(self.id, target);
                engine.core.want_target(self.id, target);
            }
            engine.flush();
        });
        Ok(Starting {
            port: self,
            ranks: targets.to_vec(),
            world,
        })
    }

    /// Ends the access to these targets as soon as no operation on them is under way, without waiting for that.
    pub fn complete(&self, targets: &[Target]) {
        self.comm.shared().with(|engine| {
            for target in targets {
                engine.complete_window(self.id, target.world);
            }
        });
    }

    /// Whether the access to these targets has ended.
    ///
    /// # Errors
    /// A target that failed or finished.
    pub fn poll_completed(&self, targets: &[Target], cx: &Context<'_>) -> Poll<Result<()>> {
        let id = self.id;
        let check = |engine: &mut Engine| {
            let mut failed = None;
            for target in targets {
                if let Err(why) = engine.core.has_ended(id, target.world)? {
                    failed.get_or_insert((target.world, why));
                }
            }
            Some(failed)
        };
        let ended = ready!(
            self.comm
                .shared()
                .poll_window(id, cx.waker(), check, |_| ())
        );
        Poll::Ready(match ended {
            None => Ok(()),
            Some((target, why)) => Err(self.error("complete", why, target)),
        })
    }
}

/// Waits for targets to post. Dropping it takes that back: nothing has been started.
#[derive(Debug)]
pub struct Starting<'p, T: Wire> {
    port: &'p Port<T>,
    ranks: Vec<usize>,
    world: Vec<u32>,
}

impl<'p, T: Wire> Starting<'p, T> {
    /// The targets, when all have posted.
    ///
    /// # Errors
    /// A target that failed, finished or freed the window, or that is being accessed already. Nothing has been started then.
    pub fn poll(&mut self, cx: &Context<'_>) -> Poll<Result<Vec<Target>>> {
        let id = self.port.id;
        let shared = self.port.comm.shared();
        let check = |engine: &mut Engine| engine.start_window(id, &self.world);
        let watch = |engine: &mut Engine| engine.watch_posted(id, &self.world);
        let started = ready!(shared.poll_window(id, cx.waker(), check, watch));
        let fars = match started {
            Ok(fars) => fars,
            Err((target, why)) => return Poll::Ready(Err(self.port.error("start", why, target))),
        };
        let targets = self.ranks.iter().zip(&self.world).zip(fars);
        Poll::Ready(Ok(targets
            .map(|((&rank, &world), far)| Target::new(rank, world, far))
            .collect()))
    }

    /// The error of who waited for so long.
    #[must_use]
    pub fn gave_up(&self, after: Duration, at: &'static Location<'static>) -> Error {
        let port = self.port;
        let posted = |world: u32| {
            let shared = port.comm.shared();
            shared.with(|engine| engine.core.has_posted(port.id, world))
        };
        let window = port.id.tag;
        match self.world.iter().find(|&&world| !posted(world)) {
            Some(&world) => {
                port.error("start", ErrorKind::NeverPosted { window, after, at }, world)
            }
            None => port.comm.error("start", ErrorKind::TimedOut, None, None), // they have posted just now
        }
    }
}

impl<T: Wire> Drop for Starting<'_, T> {
    fn drop(&mut self) {
        self.port.comm.shared().with(|engine| {
            for &target in &self.world {
                engine.core.unwant_target(self.port.id, target);
            }
        });
    }
}
