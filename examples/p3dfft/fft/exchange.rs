//! How blocks travel from every rank to every rank.

use std::pin::Pin;

use ripstop::{Collectives, Comm, RecvOp, Result, SendOp, buffer::RegBuf};

use super::real::Real;

/// The ways to transpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// A collective, awaited where it is started.
    Blocking,
    /// Messages, which progress when the computing rank tests them, a few times in every stage.
    Host,
    /// A collective, which progresses by itself in the runtime.
    Offload,
}

/// A buffer that consists of one block for each rank.
#[derive(Debug)]
pub(super) struct Blocks<'a, T: Real> {
    pub(super) buf: RegBuf<T>,
    pub(super) counts: &'a [usize],
}

/// A future that returns both buffers.
type Exchanged<T> = Result<(RegBuf<T>, RegBuf<T>)>;

/// Starts an exchange. Block `r` of `send` becomes this rank's block of `recv` on rank `r`.
pub(super) fn start<T: Real>(
    comm: &Comm,
    mode: Mode,
    send: Blocks<'_, T>,
    recv: Blocks<'_, T>,
) -> Pin<Box<dyn Future<Output = Exchanged<T>>>> {
    if mode == Mode::Host {
        return Box::pin(pairwise(comm, send, recv));
    }
    let exchange = comm.all_to_all_v_into(send.buf, send.counts, recv.buf, recv.counts);
    Box::pin(async { Ok(exchange.await?) })
}

/// Starts a message to and from every other rank.
fn pairwise<T: Real>(
    comm: &Comm,
    send: Blocks<'_, T>,
    recv: Blocks<'_, T>,
) -> impl Future<Output = Exchanged<T>> + use<T> {
    let mut incoming = Vec::new();
    for (from, block) in recv.buf.split_into(recv.counts).into_iter().enumerate() {
        incoming.push(if block.is_empty() {
            Incoming::Nothing(block)
        } else {
            Incoming::Message(comm.recv_into(from, TAG, block))
        });
    }
    let mut outgoing = Vec::new();
    for (to, block) in send.buf.split_into(send.counts).into_iter().enumerate() {
        outgoing.push(if block.is_empty() {
            Outgoing::Nothing(block)
        } else {
            Outgoing::Message(comm.send(to, TAG, block))
        });
    }
    async move {
        let mut received = None;
        for block in incoming {
            let block = match block {
                Incoming::Nothing(block) => block,
                Incoming::Message(recv) => recv.await?.0,
            };
            received = Some(joined(received, block));
        }
        let mut sent = None;
        for block in outgoing {
            let block = match block {
                Outgoing::Nothing(block) => block,
                Outgoing::Message(send) => send.await?,
            };
            sent = Some(joined(sent, block));
        }
        Ok(sent.zip(received).expect("at least one rank"))
    }
}

enum Incoming<T: Real> {
    Nothing(RegBuf<T>),
    Message(RecvOp<RegBuf<T>>),
}

enum Outgoing<T: Real> {
    Nothing(RegBuf<T>),
    Message(SendOp<RegBuf<T>>),
}

/// Returns blocks that were split, in their order.
fn joined<T: Real>(before: Option<RegBuf<T>>, block: RegBuf<T>) -> RegBuf<T> {
    match before {
        None => block,
        Some(before) => before
            .join(block)
            .expect("blocks that were split from one buffer"),
    }
}

/// Tag of all messages. Those of successive transposes are received in the order in which they are sent.
const TAG: u32 = 30;
