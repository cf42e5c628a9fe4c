//! The exchange of faces with the neighbors.

use std::mem;

use ripstop::{Cart, Channel, RecvOp, Result, SendOp};

use super::{
    clock::HeatStopwatch,
    domain::{BoxSide, HeatDim, SIDES},
    field::{self, HeatField},
};

/// The neighbors, and the operations in flight to and from them. Buffers are made once; operations take them and return them
/// with the results.
#[derive(Debug, Default)]
pub(crate) struct HeatExchange {
    links: [Option<NeighborLink>; 6],
    poison: bool,
}

/// The buffers and operations of one neighbor.
#[derive(Debug)]
struct NeighborLink {
    channel: Channel<f64>,
    /// Packed faces; a z side has none.
    out: Vec<f64>,
    inbox: Vec<f64>,
    flight: Option<ExchangeOps>,
}

/// The send and the receive of one exchange.
#[derive(Debug)]
struct ExchangeOps {
    send: SendOp<Vec<f64>>,
    recv: RecvOp<Vec<f64>>,
}

impl HeatExchange {
    /// Makes an exchange with the neighbors in `cart`, for boxes of `cells`.
    ///
    /// # Errors
    /// None for a grid of this job's ranks.
    pub(crate) fn new(cart: &Cart, cells: [usize; 3]) -> Result<Self> {
        let mut exchange = Self::default();
        for side in SIDES {
            let (low, high) = cart.shift(side.dim, 1);
            let Some(peer) = (if side.high { high } else { low }) else {
                continue;
            };
            let face = || vec![0.0; field::face_len(cells, side)];
            let link = NeighborLink {
                channel: cart.channel(peer, TAGS[side.dim])?,
                out: face(),
                inbox: face(),
                flight: None,
            };
            exchange.links[side.index()] = Some(link);
        }
        Ok(exchange)
    }

    /// Makes an exchange without neighbors.
    pub(crate) fn none() -> Self {
        Self::default()
    }

    /// Fills ghosts with NaN before every exchange, so that a missing value shows in every result that depends on it.
    pub(crate) fn poisoned(self) -> Self {
        Self {
            poison: true,
            ..self
        }
    }

    /// Returns true if there is a neighbor at `side`.
    pub(super) fn has(&self, side: BoxSide) -> bool {
        self.links[side.index()].is_some()
    }

    /// Returns the buffer for the data sent across `side`, if there is a neighbor: a packed face, or for z an empty one,
    /// because the plane of the field itself is sent.
    pub(super) fn face_mut(&mut self, side: BoxSide) -> Option<&mut [f64]> {
        self.links[side.index()]
            .as_mut()
            .map(|link| &mut link.out[..])
    }

    /// Starts the exchange across `side`; sides are started in the order of `SIDES_TO_START`. Until [`finish`](Self::finish)
    /// the planes that z neighbors exchange are missing from the field.
    pub(super) fn start(&mut self, side: BoxSide, field: &mut HeatField) {
        let Some(link) = &mut self.links[side.index()] else {
            return;
        };
        if self.poison {
            link.poison(side, field);
        }
        let (out, inbox) = link.buffers(side, field);
        let (out, inbox) = (mem::take(out), mem::take(inbox));
        let recv = link.channel.recv_into(inbox);
        let send = link.channel.send(out);
        link.flight = Some(ExchangeOps { send, recv });
    }

    /// Waits for all started operations, and stores the received data: first the planes of z, because the other faces reach
    /// into them.
    ///
    /// # Errors
    /// A neighbor failed or finished.
    pub(super) async fn finish(
        &mut self,
        field: &mut HeatField,
        watch: &mut HeatStopwatch,
    ) -> Result<()> {
        for (side, link) in SIDES.into_iter().zip(&mut self.links) {
            let Some(link) = link else { continue };
            let Some(ExchangeOps { send, recv }) = link.flight.take() else {
                continue;
            };
            let (received, _) = watch.waiting(recv).await?;
            let sent = watch.waiting(send).await?;
            let (out, inbox) = link.buffers(side, field);
            (*out, *inbox) = (sent, received);
            field.unpack(side, &link.inbox);
        }
        Ok(())
    }
}

impl NeighborLink {
    /// Returns the send and receive buffers: planes of the field for z, packed faces for the others.
    fn buffers<'a>(
        &'a mut self,
        side: BoxSide,
        field: &'a mut HeatField,
    ) -> (&'a mut Vec<f64>, &'a mut Vec<f64>) {
        if side.dim == HeatDim::Z {
            let end = usize::from(side.high);
            (&mut field.faces[end], &mut field.ghosts[end])
        } else {
            (&mut self.out, &mut self.inbox)
        }
    }

    fn poison(&mut self, side: BoxSide, field: &mut HeatField) {
        self.buffers(side, field).1.fill(f64::NAN);
        field.unpack(side, &self.inbox);
    }
}

const TAGS: [u32; 3] = [10, 11, 12];
