//! How blocks travel from every rank to every rank.

use std::pin::Pin;

use ripstop::{Collectives, Comm, RecvOp, Result, SendOp, buffer::RegBuf};

use super::real::FftReal;

/// The ways to transpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TransposeMode {
    /// A collective, awaited where it is started.
    Blocking,
    /// Messages, which progress when the computing rank tests them, a few times in every stage.
    Host,
    /// A collective, which progresses by itself in the runtime.
    Offload,
}

/// A buffer that consists of one block for each rank.
#[derive(Debug)]
pub(super) struct RankBlocks<'a, T: FftReal> {
    pub(super) buf: RegBuf<T>,
    pub(super) counts: &'a [usize],
}

/// A future that returns both buffers.
type ExchangedBlocks<T> = Result<(RegBuf<T>, RegBuf<T>)>;

/// Starts an exchange. Block `r` of `send` becomes this rank's block of `recv` on rank `r`.
pub(super) fn start<T: FftReal>(
    comm: &Comm,
    mode: TransposeMode,
    send: RankBlocks<'_, T>,
    recv: RankBlocks<'_, T>,
) -> Pin<Box<dyn Future<Output = ExchangedBlocks<T>>>> {
    if mode == TransposeMode::Host {
        return Box::pin(pairwise(comm, send, recv));
    }
    let exchange = comm.all_to_all_v_into(send.buf, send.counts, recv.buf, recv.counts);
    Box::pin(async { Ok(exchange.await?) })
}

/// Starts a message to and from every other rank.
fn pairwise<T: FftReal>(
    comm: &Comm,
    send: RankBlocks<'_, T>,
    recv: RankBlocks<'_, T>,
) -> impl Future<Output = ExchangedBlocks<T>> + use<T> {
    let mut incoming = Vec::new();
    for (from, block) in recv.buf.split_into(recv.counts).into_iter().enumerate() {
        incoming.push(if block.is_empty() {
            IncomingBlock::Nothing(block)
        } else {
            IncomingBlock::Message(comm.recv_into(from, TAG, block))
        });
    }
    let mut outgoing = Vec::new();
    for (to, block) in send.buf.split_into(send.counts).into_iter().enumerate() {
        outgoing.push(if block.is_empty() {
            OutgoingBlock::Nothing(block)
        } else {
            OutgoingBlock::Message(comm.send(to, TAG, block))
        });
    }
    async move {
        let mut received = None;
        for block in incoming {
            let block = match block {
                IncomingBlock::Nothing(block) => block,
                IncomingBlock::Message(recv) => recv.await?.0,
            };
            received = Some(joined(received, block));
        }
        let mut sent = None;
        for block in outgoing {
            let block = match block {
                OutgoingBlock::Nothing(block) => block,
                OutgoingBlock::Message(send) => send.await?,
            };
            sent = Some(joined(sent, block));
        }
        Ok(sent.zip(received).expect("at least one rank"))
    }
}

enum IncomingBlock<T: FftReal> {
    Nothing(RegBuf<T>),
    Message(RecvOp<RegBuf<T>>),
}

enum OutgoingBlock<T: FftReal> {
    Nothing(RegBuf<T>),
    Message(SendOp<RegBuf<T>>),
}

/// Returns blocks that were split, in their order.
fn joined<T: FftReal>(before: Option<RegBuf<T>>, block: RegBuf<T>) -> RegBuf<T> {
    match before {
        None => block,
        Some(before) => before
            .join(block)
            .expect("blocks that were split from one buffer"),
    }
}

/// Tag of all messages. Messages of successive transposes are received in the order in which they are sent.
const TAG: u32 = 30;
