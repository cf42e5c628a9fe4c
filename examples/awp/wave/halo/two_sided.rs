//! Messages: a receive and a send for every component, neighbor and step.

use std::mem;

use ripstop::{Channel, ChannelRecv, Comm, Result, SendOp};

use super::{
    GhostExchange, GhostSender, LaneEnd, OpenExchange, StepExchanges,
    lanes::{LANES_MAX, lanes},
};
use crate::wave::{
    clock::AwpStopwatch,
    domain::AwpDomain,
    field::AwpField,
    real::WaveReal,
    stencil::{ExchangedLayers, GhostWidths},
};

/// Exchange by messages. Buffers are made once; operations take them and return them with the results.
#[derive(Debug)]
pub(crate) struct TwoSidedExchange<T: WaveReal> {
    incoming: Vec<MessageLane<T, ChannelRecv<Vec<T>>>>,
    outgoing: Vec<MessageLane<T, SendOp<Vec<T>>>>,
    poison: bool,
}

/// The lanes and buffers to or from a neighbor.
#[derive(Debug)]
pub(crate) struct MessageLane<T: WaveReal, Op> {
    component: usize,
    end: LaneEnd,
    channel: Channel<T>,
    buffer: Vec<T>,
    flight: Option<Op>,
}

impl<T: WaveReal> TwoSidedExchange<T> {
    /// Makes the exchange with the neighbors of a rank of `comm`. With `poison`, values are NaN until they are received.
    ///
    /// # Errors
    /// `comm` has fewer ranks than `domain` has parts.
    pub(crate) fn halos(
        comm: &Comm,
        domain: &AwpDomain,
        layers: &ExchangedLayers,
        poison: bool,
    ) -> Result<StepExchanges<Self>> {
        let of = |ghosts: &[GhostWidths], tag: u32| -> Result<Self> {
            let mut halo = Self {
                incoming: Vec::new(),
                outgoing: Vec::new(),
                poison,
            };
            for lane in lanes(domain, ghosts) {
                let tag = tag + lane.number;
                if let Some(from) = lane.from {
                    halo.incoming
                        .push(MessageLane::new(comm, lane.component, from, tag)?);
                }
                if let Some(to) = lane.to {
                    halo.outgoing
                        .push(MessageLane::new(comm, lane.component, to, tag)?);
                }
            }
            Ok(halo)
        };
        Ok(StepExchanges {
            velocity: of(&layers.velocity, 0)?,
            stress: of(&layers.stress, LANES_MAX)?,
        })
    }
}

impl<T: WaveReal, Op> MessageLane<T, Op> {
    fn new(comm: &Comm, component: usize, end: LaneEnd, tag: u32) -> Result<Self> {
        Ok(Self {
            component,
            end,
            channel: comm.channel(end.peer, tag)?,
            buffer: vec![T::default(); end.region.len()],
            flight: None,
        })
    }
}

impl<T: WaveReal> GhostExchange<T> for TwoSidedExchange<T> {
    type Open<'a> = &'a mut Self;

    fn open(&mut self) -> Result<&mut Self> {
        for way in &mut self.incoming {
            if self.poison {
                way.buffer.fill(T::NAN);
            }
            let buffer = mem::take(&mut way.buffer);
            way.flight = Some(way.channel.recv_into(buffer));
        }
        Ok(self)
    }
    async fn close(self) -> Result<()> {
        Ok(())
    }
}

impl<T: WaveReal> OpenExchange<T> for &mut TwoSidedExchange<T> {
    type Outgoing<'o>
        = MessageLaneSender<'o, T>
    where
        Self: 'o;

    async fn start(&mut self, _: &mut AwpStopwatch) -> Result<MessageLaneSender<'_, T>> {
        Ok(MessageLaneSender(&mut self.outgoing))
    }

    async fn finish(self, fields: &mut [AwpField<T>], watch: &mut AwpStopwatch) -> Result<()> {
        for way in &mut self.incoming {
            let Some(recv) = way.flight.take() else {
                continue;
            };
            (way.buffer, _) = watch.waiting(recv).await?;
            fields[way.component].unpack(way.end.region, &way.buffer);
        }
        Ok(())
    }
}

/// The sending side, by messages to the neighbors.
#[derive(Debug)]
pub(crate) struct MessageLaneSender<'o, T: WaveReal>(&'o mut [MessageLane<T, SendOp<Vec<T>>>]);

impl<T: WaveReal> GhostSender<T> for MessageLaneSender<'_, T> {
    fn send(&mut self, component: usize, field: &AwpField<T>) {
        let ways = self.0.iter_mut();
        for way in ways.filter(|way| way.component == component) {
            field.pack(way.end.region, &mut way.buffer);
            let buffer = mem::take(&mut way.buffer);
            way.flight = Some(way.channel.send(buffer));
        }
    }

    async fn complete(self, watch: &mut AwpStopwatch) -> Result<()> {
        for way in self.0 {
            let Some(send) = way.flight.take() else {
                continue;
            };
            way.buffer = watch.waiting(send).await?;
        }
        Ok(())
    }
}
