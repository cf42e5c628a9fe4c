//! Matched probes: messages that are taken out of the queue before they are received.

use std::panic::Location;

use super::{
    Comm, RecvOp, Source, Status, Tag,
    op::{self, StoredArrival},
};
use crate::{
    buffer::{RecvBuf, Wire},
    engine::BlockReader,
    error::{Error, ErrorKind, OpError, Result},
    ops::{MessageStatus, OpInfo},
    shared::RuntimeShared,
};

/// A probed message, reserved for its holder. Dropping it returns the message to its place in the queue.
///
/// While this value lives, no other receive gets the message, not even one of the same rank and tag: receive it by
/// [`recv`](Self::recv) or [`recv_into`](Self::recv_into) of this value, and not by [`Comm::recv`].
#[derive(Debug)]
#[must_use = "receive it; dropping it puts it back in the queue"]
pub struct Matched {
    comm: Comm,
    ctx: u32,
    landed: MessageStatus,
    /// True once the message was received or returned to the queue.
    gone: bool,
}

pub(super) async fn probe(comm: &Comm, info: Result<OpInfo>) -> Result<Matched> {
    let info = OpInfo {
        probe: true,
        ..info.map_err(|error| error.renamed("probe"))?
    };
    // Not the short way of receives: no message goes straight into a probe.
    let ticket = comm.shared().with(|engine| {
        let ticket = engine.core.p2p.common.ops.hold_recv(info, [0_u8; 0]);
        engine.post(ticket.op);
        ticket
    });
    let landed = RecvOp::new(comm, ticket).landed().await;
    let landed = landed.map_err(|error| Error::from(error).renamed("probe"))?;
    Ok(Matched {
        comm: comm.clone(),
        ctx: info.ctx,
        landed,
        gone: false,
    })
}

#[track_caller]
pub(super) fn try_probe(comm: &Comm, from: Source, tag: Tag) -> Result<Option<Matched>> {
    let ctx = comm.id();
    let info = comm.recv_info::<u8>(ctx, from, tag);
    let info = info.map_err(|error| error.renamed("try_probe"))?;
    comm.shared().turn();
    let found = comm.shared().with(|engine| {
        let found = engine.core.p2p.try_probe(&info);
        found
            .map(Ok)
            .or_else(|| engine.core.p2p.unmatchable_reason(&info.want()).map(Err))
    });
    let found = found.transpose();
    let found = found.map_err(|kind| op::error_of("try_probe", comm, &info, kind))?;
    Ok(found.map(|landed| Matched {
        comm: comm.clone(),
        ctx,
        landed,
        gone: false,
    }))
}

impl Matched {
    /// Returns a message that a receive on this communicator has got without its bytes.
    pub(super) fn of(StoredArrival { landed, comm }: StoredArrival) -> Self {
        let ctx = comm.id();
        Self {
            comm,
            ctx,
            landed,
            gone: false,
        }
    }

    /// Returns the bytes of the message, if it can be read in place.
    pub(super) fn read_in_place(&self) -> Option<BlockReader> {
        let shared = self.comm.shared();
        shared.with(|engine| engine.read_in_place(&self.landed))
    }

    /// Returns a receive that waits until the message is packed, and completes without the bytes. It has the message from now on.
    pub(super) fn await_packing<B: RecvBuf>(
        &mut self,
        at: &'static Location<'static>,
        block: &BlockReader,
        buf: B,
    ) -> RecvOp<B> {
        let info = OpInfo {
            at,
            ..self.op_info::<B::Elem>()
        };
        self.gone = true;
        let shared = self.comm.shared();
        let ticket = shared.with(|engine| engine.await_packing(info, &self.landed, block, buf));
        RecvOp::new(&self.comm, ticket)
    }

    /// Returns the runtime of the message.
    pub(super) fn shared(&self) -> &RuntimeShared {
        self.comm.shared()
    }

    /// Takes the message, which was read in place.
    pub(super) fn take_in_place(mut self) {
        self.gone = true;
        let shared = self.comm.shared();
        shared.with(|engine| engine.take_in_place(&self.landed));
    }

    /// Makes a turn, and returns an error if the sender is down. Its call is at `at`.
    pub(super) fn sender_error<T: Wire>(&self, at: &'static Location<'static>) -> Option<Error> {
        let shared = self.comm.shared();
        shared.turn();
        let kind = shared.with(|engine| {
            let common = &engine.core.p2p.common;
            common.unreachable(self.landed.source)
        })?;
        let info = OpInfo {
            at,
            ..self.op_info::<T>()
        };
        Some(op::error_of("recv", &self.comm, &info, kind))
    }

    /// Returns the rank of the sender.
    #[must_use]
    pub fn source(&self) -> usize {
        self.status().source
    }

    /// Returns the tag of the message.
    #[must_use]
    pub fn tag(&self) -> u32 {
        self.landed.tag
    }

    /// Returns the length of the message in bytes. The element type is checked by the receive.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.landed.bytes
    }

    /// Receives the message into `buf`.
    ///
    /// Output: `Result<(B, Status), OpError<B>>`.
    ///
    /// ```
    /// # use ripstop_rt::{sim::Simulation, Comm, Error, Source, Tag};
    /// # let report = Simulation::new(2).run(|world: Comm| async move {
    /// world.send(1 - world.rank(), 3, [1.5, 2.5]).detach();
    /// let message = world.probe(Source::Any, Tag::Any).await?;
    /// let room = vec![0.0; message.bytes() / size_of::<f64>()];
    /// let (numbers, status) = message.recv_into(room).await?;
    /// assert_eq!((&numbers[..], status.tag), (&[1.5, 2.5][..], 3));
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    ///
    /// # Errors
    /// The call fails as `Comm::recv_into` does. A message that does not fit returns to its place in the queue.
    #[track_caller]
    pub fn recv_into<B: RecvBuf>(self, buf: B) -> RecvOp<B> {
        self.recv_into_at(Location::caller(), buf)
    }

    pub(super) fn recv_into_at<B: RecvBuf>(
        mut self,
        at: &'static Location<'static>,
        buf: B,
    ) -> RecvOp<B> {
        let info = OpInfo {
            at,
            ..self.op_info::<B::Elem>()
        };
        if let Some(fault) = buf.fault() {
            let kind = ErrorKind::unusable_buffer(fault);
            let error = op::error_of("recv", &self.comm, &info, kind);
            return RecvOp::failed(OpError { error, buf });
        }
        self.gone = true;
        let ticket = self.comm.shared().with(|engine| {
            let ticket = engine.core.p2p.common.ops.hold_recv(info, buf);
            engine.recv_probed(ticket.op, &self.landed);
            ticket
        });
        RecvOp::new(&self.comm, ticket)
    }

    /// Receives the message into a new vector.
    ///
    /// Output: `Result<(Vec<T>, Status), OpError<Vec<T>>>`.
    ///
    /// ```
    /// # use ripstop_rt::{sim::Simulation, Comm, Error, Source, Tag};
    /// # let report = Simulation::new(2).run(|world: Comm| async move {
    /// let other = 1 - world.rank();
    /// world.send(other, 3, [1.5, 2.5]).detach();
    /// let message = world.probe(Source::Any, Tag::Any).await?;
    /// match message.tag() {
    ///     3 => assert_eq!(message.recv::<f64>().await?.0, [1.5, 2.5]),
    ///     tag => panic!("an order with tag {tag} from rank {}", message.source()),
    /// }
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    ///
    /// # Errors
    /// The call fails as `Comm::recv` does.
    #[track_caller]
    pub fn recv<T: Wire>(mut self) -> RecvOp<Vec<T>> {
        self.gone = true;
        let info = self.op_info::<T>();
        let ticket = self.comm.shared().with(|engine| {
            let ticket = engine.core.p2p.common.ops.hold_growing::<T>(info);
            engine.recv_probed(ticket.op, &self.landed);
            ticket
        });
        RecvOp::new(&self.comm, ticket)
    }

    #[track_caller]
    fn op_info<T: Wire>(&self) -> OpInfo {
        let MessageStatus { source, tag, .. } = self.landed;
        let (sig, elem) = (T::SIG.0, size_of::<T>());
        OpInfo {
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
