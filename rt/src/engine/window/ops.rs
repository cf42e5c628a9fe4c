//! Puts and gets of windows that the driver carries out.

use ripstop_fabric::driver::{Down, Failure};

use super::{Core, Engine, WindowId};
use crate::{
    buffer::{RecvBuf, SendBuf},
    engine::{Wanted, send::down_kind},
    error::ErrorKind,
    ops::{About, Landed, Ticket},
    proto::wire::OpId,
};

/// An operation that waits for its target's greeting.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stashed {
    pub(super) op: OpId,
    way: Way,
    /// Where it begins in the target's memory, in bytes.
    at: u64,
}

#[derive(Clone, Copy, Debug)]
enum Way {
    Put,
    Get,
}

impl Engine {
    /// Writes `buf` to a neighbour's memory, `at` bytes from its start.
    pub(crate) fn put_window<B: SendBuf>(&mut self, about: About, at: u64, buf: B) -> Ticket<B> {
        let ticket = self.core.ops.hold_put(about, buf);
        self.core.begin_remote(
            &about,
            Stashed {
                op: ticket.op,
                way: Way::Put,
                at,
            },
        );
        self.flush();
        ticket
    }

    /// Reads a neighbour's memory, `at` bytes from its start, into `buf`.
    pub(crate) fn get_window<B: RecvBuf>(&mut self, about: About, at: u64, buf: B) -> Ticket<B> {
        let ticket = self.core.ops.hold_get(about, buf);
        self.core.begin_remote(
            &about,
            Stashed {
                op: ticket.op,
                way: Way::Get,
                at,
            },
        );
        self.flush();
        ticket
    }
}

impl Core {
    fn begin_remote(&mut self, about: &About, stashed: Stashed) {
        let (id, rank) = (window_of(about), about.peer.unwrap_or_default());
        let down = self.peers.down(rank);
        let why = match (self.ended, down) {
            (true, _) => Some(ErrorKind::Closed),
            (_, Some(down)) => Some(down_kind(rank, down)),
            _ => None,
        };
        let Some(near) = self.windows.near(id, rank) else {
            return self.land(stashed.op, Err(ErrorKind::Closed));
        };
        near.under_way += 1;
        if let Some(why) = why {
            return self.remote_over(stashed.op, Err(why));
        }
        if near.far.is_some() {
            return self.launch(id, rank, stashed);
        }
        near.stash.push(stashed);
        if !near.greeted {
            self.wanted.push(Wanted::Greet { id, rank });
        }
    }

    /// Hands an operation to the driver.
    pub(super) fn launch(&mut self, id: WindowId, rank: u32, stashed: Stashed) {
        let Stashed { op, way, at } = stashed;
        let len = self.ops.live(op).area.len as u64;
        let near = self.windows.near(id, rank);
        let Some(far) = near.and_then(|near| near.far.as_ref()) else {
            return;
        };
        let Some(key) = far.key.slice(at, len).filter(|_| far.len <= far.key.len) else {
            let why = ErrorKind::InvalidArgument(format!(
                "{len} bytes at byte {at}: rank {rank} has {} bytes in window {}",
                far.len, id.tag
            ));
            return self.remote_over(op, Err(why));
        };
        if len == 0 {
            return self.remote_over(op, Ok(Landed::sent(0)));
        }
        self.wanted.push(match way {
            Way::Put => Wanted::Put { op, key, at: 0 },
            Way::Get => Wanted::Get { op, key, at: 0 },
        });
    }

    /// An operation on a window is over.
    pub(in crate::engine) fn remote_over(&mut self, op: OpId, outcome: Result<Landed, ErrorKind>) {
        let about = self.ops.live(op).about;
        self.land(op, outcome);
        let (id, rank) = (window_of(&about), about.peer.unwrap_or_default());
        if let Some(near) = self.windows.near(id, rank) {
            near.under_way -= 1;
            if near.under_way == 0 {
                self.end_access(id, rank);
                self.stir_window(id);
            }
        }
    }

    /// The driver gave an operation up.
    pub(in crate::engine) fn remote_failed(&mut self, op: OpId, target: u32, why: Failure) {
        let down = self.peers.down(target);
        let kind = match (why, down) {
            (_, Some(down)) => down_kind(target, down),
            (Failure::PeerDown, None) => down_kind(target, Down::Failed),
            (Failure::Transport(error), None) => ErrorKind::Transport(error),
            // The range was inside of what the target had announced.
            _ => ErrorKind::NoWindow {
                window: self.ops.live(op).about.tag.unwrap_or_default(),
            },
        };
        self.remote_over(op, Err(kind));
    }
}

fn window_of(about: &About) -> WindowId {
    WindowId {
        ctx: about.ctx,
        tag: about.tag.unwrap_or_default(),
    }
}
