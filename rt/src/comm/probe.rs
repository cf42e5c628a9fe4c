//! Matched probes.

use std::panic::Location;

use super::{Comm, RecvOp, Source, Status, Tag, op};
use crate::{
    buffer::{RecvBuf, Wire},
    error::{Error, Result},
    ops::{About, Landed},
};

/// A message that was probed and belongs to the holder. Dropping it puts it back in its place in the queue.
#[derive(Debug)]
#[must_use = "receive it; dropping it puts it back in the queue"]
pub struct Matched {
    comm: Comm,
    ctx: u32,
    landed: Landed,
    /// Received or put back.
    gone: bool,
}

pub(super) async fn probe(comm: &Comm, about: Result<About>) -> Result<Matched> {
    let about = About {
        probe: true,
        ..about.map_err(|error| error.renamed("probe"))?
    };
    let landed = comm.start_recv(about, [0_u8; 0]).landed().await;
    let landed = landed.map_err(|error| Error::from(error).renamed("probe"))?;
    Ok(Matched {
        comm: comm.clone(),
        ctx: about.ctx,
        landed,
        gone: false,
    })
}

#[track_caller]
pub(super) fn try_probe(comm: &Comm, from: Source, tag: Tag) -> Result<Option<Matched>> {
    let ctx = comm.id();
    let about = comm.about_recv::<u8>(ctx, from, tag);
    let about = about.map_err(|error| error.renamed("try_probe"))?;
    comm.shared().turn();
    let found = comm.shared().with(|engine| {
        let found = engine.core.try_probe(&about);
        found
            .map(Ok)
            .or_else(|| engine.core.hopeless(&about.want()).map(Err))
    });
    let found = found.transpose();
    let found = found.map_err(|kind| op::error_of("try_probe", comm, &about, kind))?;
    Ok(found.map(|landed| Matched {
        comm: comm.clone(),
        ctx,
        landed,
        gone: false,
    }))
}

impl Matched {
    /// Its sender's rank.
    #[must_use]
    pub fn source(&self) -> usize {
        self.status().source
    }

    /// Its tag.
    #[must_use]
    pub fn tag(&self) -> u32 {
        self.landed.tag
    }

    /// Its length in bytes; its type is checked when it is received.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.landed.bytes
    }

    /// Receives it into `buf`.
    ///
    /// # Errors
    /// As `Comm::recv_into`; a message that does not fit goes back to its place in the queue.
    #[track_caller]
    pub fn recv_into<B: RecvBuf>(mut self, buf: B) -> RecvOp<B> {
        self.gone = true;
        let about = self.about::<B::Elem>();
        let ticket = self.comm.shared().with(|engine| {
            let ticket = engine.core.ops.hold_recv(about, buf);
            engine.recv_probed(ticket.op, &self.landed);
            ticket
        });
        RecvOp::new(&self.comm, ticket)
    }

    /// Receives it into a new vector.
    ///
    /// # Errors
    /// As `Comm::recv`.
    #[track_caller]
    pub fn recv<T: Wire>(mut self) -> RecvOp<Vec<T>> {
        self.gone = true;
        let about = self.about::<T>();
        let ticket = self.comm.shared().with(|engine| {
            let ticket = engine.core.ops.hold_growing::<T>(about);
            engine.recv_probed(ticket.op, &self.landed);
            ticket
        });
        RecvOp::new(&self.comm, ticket)
    }

    #[track_caller]
    fn about<T: Wire>(&self) -> About {
        let Landed { source, tag, .. } = self.landed;
        let (sig, elem) = (T::SIG.0, size_of::<T>());
        About {
            ctx: self.ctx,
            peer: Some(source),
            tag: Some(tag),
            sig,
            elem,
            synchronous: false,
            probe: false,
            at: Location::caller(),
        }
    }

    fn status(&self) -> Status {
        op::status_of::<u8>(&self.comm, &self.landed)
    }
}

impl Drop for Matched {
    fn drop(&mut self) {
        if !self.gone {
            self.comm
                .shared()
                .with(|engine| engine.return_probed(&self.landed));
        }
    }
}
