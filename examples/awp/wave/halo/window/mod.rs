//! Windows: every lane has a place in the window of the rank whose ghosts it fills, and the neighbor puts into it.

mod fence;
mod pscw;

use std::mem;

use ripstop::{
    Comm, Result, Window,
    rma::{Access, Fence, RemoteOp},
};

pub(crate) use self::{fence::FenceExchange, pscw::PscwExchange};
use super::{GhostSender, LaneEnd, lanes::lanes};
use crate::wave::{
    clock::AwpStopwatch, domain::AwpDomain, field::AwpField, real::WaveReal, stencil::GhostWidths,
};

/// A window for the ghosts of some components, and the lanes in it.
#[derive(Debug)]
struct GhostWindow<T: WaveReal> {
    window: Window<T>,
    incoming: Vec<IncomingLane>,
    outgoing: Vec<OutgoingLane<T>>,
    poison: bool,
}

/// The incoming end of a lane.
#[derive(Clone, Copy, Debug)]
struct IncomingLane {
    number: u32,
    component: usize,
    from: LaneEnd,
    /// Index of the lane's first element in the window.
    at: usize,
}

/// The outgoing end of a lane.
#[derive(Debug)]
struct OutgoingLane<T: WaveReal> {
    component: usize,
    to: LaneEnd,
    /// Index of the first element in the neighbor's window.
    at: usize,
    buffer: Vec<T>,
    flight: Option<RemoteOp<Vec<T>>>,
}

impl<T: WaveReal> GhostWindow<T> {
    async fn new(
        comm: &Comm,
        domain: &AwpDomain,
        ghosts: &[GhostWidths],
        poison: bool,
    ) -> Result<Self> {
        let incoming = places(domain, ghosts);
        let len = incoming.iter().map(|place| place.from.region.len()).sum();
        let lanes = lanes(domain, ghosts).into_iter();
        let outgoing = lanes.filter_map(|lane| {
            let to = lane.to?;
            let theirs = places(&domain.of(to.peer), ghosts);
            let place = theirs.iter().find(|place| place.number == lane.number)?;
            Some(OutgoingLane {
                component: lane.component,
                to,
                at: place.at,
                buffer: vec![T::default(); to.region.len()],
                flight: None,
            })
        });
        Ok(Self {
            window: Window::allocate(comm, len).await?,
            incoming,
            outgoing: outgoing.collect(),
            poison,
        })
    }

    /// Copies ghosts out of the window; no neighbor may be putting.
    fn spoil(&mut self) {
        if self.poison {
            self.window.local_mut().fill(T::NAN);
        }
    }
}

/// Returns the lanes of a rank's window, one after the other. Every rank can compute those of every other.
fn places(domain: &AwpDomain, ghosts: &[GhostWidths]) -> Vec<IncomingLane> {
    let mut end = 0;
    let incoming = lanes(domain, ghosts).into_iter();
    let places = incoming.filter_map(|lane| {
        let from = lane.from?;
        let at = end;
        end += from.region.len();
        Some(IncomingLane {
            number: lane.number,
            component: lane.component,
            from,
            at,
        })
    });
    places.collect()
}

/// Copies arrived data to the ghosts.
fn unpack<T: WaveReal>(incoming: &[IncomingLane], memory: &[T], fields: &mut [AwpField<T>]) {
    for place in incoming {
        let region = place.from.region;
        fields[place.component].unpack(region, &memory[place.at..][..region.len()]);
    }
}

/// An epoch in which other ranks' windows may be written.
trait PutEpoch<T: WaveReal> {
    fn put(&self, rank: usize, at: usize, buffer: Vec<T>) -> RemoteOp<Vec<T>>;

    async fn end(self) -> Result<()>;
}

impl<T: WaveReal> PutEpoch<T> for Access<'_, T> {
    fn put(&self, rank: usize, at: usize, buffer: Vec<T>) -> RemoteOp<Vec<T>> {
        self.put(rank, at, buffer)
    }

    async fn end(self) -> Result<()> {
        self.complete().await
    }
}

impl<T: WaveReal> PutEpoch<T> for Fence<'_, T> {
    fn put(&self, rank: usize, at: usize, buffer: Vec<T>) -> RemoteOp<Vec<T>> {
        self.put(rank, at, buffer)
    }

    async fn end(self) -> Result<()> {
        self.end().await.map(|_| ())
    }
}

/// The sending side, by puts to the neighbors.
#[derive(Debug)]
pub(crate) struct PutLaneSender<'o, T: WaveReal, E> {
    epoch: E,
    outgoing: &'o mut [OutgoingLane<T>],
}

impl<T: WaveReal, E: PutEpoch<T>> GhostSender<T> for PutLaneSender<'_, T, E> {
    fn send(&mut self, component: usize, field: &AwpField<T>) {
        let puts = self.outgoing.iter_mut();
        for put in puts.filter(|put| put.component == component) {
            field.pack(put.to.region, &mut put.buffer);
            let buffer = mem::take(&mut put.buffer);
            put.flight = Some(self.epoch.put(put.to.peer, put.at, buffer));
        }
    }

    async fn complete(self, watch: &mut AwpStopwatch) -> Result<()> {
        for put in self.outgoing {
            if let Some(flight) = put.flight.take() {
                put.buffer = watch.waiting(flight).await?;
            }
        }
        watch.waiting(self.epoch.end()).await
    }
}
