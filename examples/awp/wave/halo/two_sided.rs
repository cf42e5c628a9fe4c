//! Messages: a receive and a send for every component, neighbor and step.

use std::mem;

use ripstop::{Channel, Comm, RecvOp, Result, SendOp};

use super::{
    End, Halo, Halos, Open, Outgoing,
    lanes::{LANES_MAX, lanes},
};
use crate::wave::{
    clock::Stopwatch,
    domain::Domain,
    field::Field,
    real::Real,
    stencil::{Ghosts, Layers},
};

/// Exchange by messages. Buffers are made once; operations take them and return them with the results.
#[derive(Debug)]
pub(crate) struct TwoSided<T: Real> {
    incoming: Vec<Way<T, RecvOp<Vec<T>>>>,
    outgoing: Vec<Way<T, SendOp<Vec<T>>>>,
    poison: bool,
}

/// The lanes and buffers to or from a neighbor.
#[derive(Debug)]
pub(crate) struct Way<T: Real, Op> {
    component: usize,
    end: End,
    channel: Channel<T>,
    buffer: Vec<T>,
    flight: Option<Op>,
}

impl<T: Real> TwoSided<T> {
    /// Makes the exchange with the neighbors of a rank of `comm`. With `poison`, values are NaN until they are received.
    ///
    /// # Errors
    /// `comm` has fewer ranks than `domain` has parts.
    pub(crate) fn halos(
        comm: &Comm,
        domain: &Domain,
        layers: &Layers,
        poison: bool,
    ) -> Result<Halos<Self>> {
        let of = |ghosts: &[Ghosts], tag: u32| -> Result<Self> {
            let mut halo = Self {
                incoming: Vec::new(),
                outgoing: Vec::new(),
                poison,
            };
            for lane in lanes(domain, ghosts) {
                let tag = tag + lane.number;
                if let Some(from) = lane.from {
                    halo.incoming
                        .push(Way::new(comm, lane.component, from, tag)?);
                }
                if let Some(to) = lane.to {
                    halo.outgoing.push(Way::new(comm, lane.component, to, tag)?);
                }
            }
            Ok(halo)
        };
        Ok(Halos {
            velocity: of(&layers.velocity, 0)?,
            stress: of(&layers.stress, LANES_MAX)?,
        })
    }
}

impl<T: Real, Op> Way<T, Op> {
    fn new(comm: &Comm, component: usize, end: End, tag: u32) -> Result<Self> {
        Ok(Self {
            component,
            end,
            channel: comm.channel(end.peer, tag)?,
            buffer: vec![T::default(); end.region.len()],
            flight: None,
        })
    }
}

impl<T: Real> Halo<T> for TwoSided<T> {
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

impl<T: Real> Open<T> for &mut TwoSided<T> {
    type Outgoing<'o>
        = Sends<'o, T>
    where
        Self: 'o;

    async fn start(&mut self, _: &mut Stopwatch) -> Result<Sends<'_, T>> {
        Ok(Sends(&mut self.outgoing))
    }

    async fn finish(self, fields: &mut [Field<T>], watch: &mut Stopwatch) -> Result<()> {
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
pub(crate) struct Sends<'o, T: Real>(&'o mut [Way<T, SendOp<Vec<T>>>]);

impl<T: Real> Outgoing<T> for Sends<'_, T> {
    fn send(&mut self, component: usize, field: &Field<T>) {
        let ways = self.0.iter_mut();
        for way in ways.filter(|way| way.component == component) {
            field.pack(way.end.region, &mut way.buffer);
            let buffer = mem::take(&mut way.buffer);
            way.flight = Some(way.channel.send(buffer));
        }
    }

    async fn complete(self, watch: &mut Stopwatch) -> Result<()> {
        for way in self.0 {
            let Some(send) = way.flight.take() else {
                continue;
            };
            way.buffer = watch.waiting(send).await?;
        }
        Ok(())
    }
}
