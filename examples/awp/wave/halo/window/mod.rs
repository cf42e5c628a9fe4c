//! Windows: every lane has a place in the window of the rank whose ghosts it fills, and the neighbor puts into it.

mod fence;
mod pscw;

use std::mem;

use ripstop::{Access, Comm, Fence, RemoteOp, Result, Window};

pub(crate) use self::{fence::Fenced, pscw::Posted};
use super::{End, Outgoing, lanes::lanes};
use crate::wave::{clock::Stopwatch, domain::Domain, field::Field, real::Real, stencil::Ghosts};

/// A window for the ghosts of some components, and the lanes in it.
#[derive(Debug)]
struct Shared<T: Real> {
    window: Window<T>,
    incoming: Vec<Place>,
    outgoing: Vec<Put<T>>,
    poison: bool,
}

/// The incoming end of a lane.
#[derive(Clone, Copy, Debug)]
struct Place {
    number: u32,
    component: usize,
    from: End,
    /// Index of its first element in the window.
    at: usize,
}

/// The outgoing end of a lane.
#[derive(Debug)]
struct Put<T: Real> {
    component: usize,
    to: End,
    /// Index of the first element in the neighbor's window.
    at: usize,
    buffer: Vec<T>,
    flight: Option<RemoteOp<Vec<T>>>,
}

impl<T: Real> Shared<T> {
    async fn new(comm: &Comm, domain: &Domain, ghosts: &[Ghosts], poison: bool) -> Result<Self> {
        let incoming = places(domain, ghosts);
        let len = incoming.iter().map(|place| place.from.region.len()).sum();
        let lanes = lanes(domain, ghosts).into_iter();
        let outgoing = lanes.filter_map(|lane| {
            let to = lane.to?;
            let theirs = places(&domain.of(to.peer), ghosts);
            let place = theirs.iter().find(|place| place.number == lane.number)?;
            Some(Put {
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
fn places(domain: &Domain, ghosts: &[Ghosts]) -> Vec<Place> {
    let mut end = 0;
    let incoming = lanes(domain, ghosts).into_iter();
    let places = incoming.filter_map(|lane| {
        let from = lane.from?;
        let at = end;
        end += from.region.len();
        Some(Place {
            number: lane.number,
            component: lane.component,
            from,
            at,
        })
    });
    places.collect()
}

/// Copies arrived data to the ghosts.
fn unpack<T: Real>(incoming: &[Place], memory: &[T], fields: &mut [Field<T>]) {
    for place in incoming {
        let region = place.from.region;
        fields[place.component].unpack(region, &memory[place.at..][..region.len()]);
    }
}

/// An epoch in which other ranks' windows may be written.
trait Epoch<T: Real> {
    fn put(&self, rank: usize, at: usize, buffer: Vec<T>) -> RemoteOp<Vec<T>>;

    async fn end(self) -> Result<()>;
}

impl<T: Real> Epoch<T> for Access<'_, T> {
    fn put(&self, rank: usize, at: usize, buffer: Vec<T>) -> RemoteOp<Vec<T>> {
        self.put(rank, at, buffer)
    }

    async fn end(self) -> Result<()> {
        self.complete().await
    }
}

impl<T: Real> Epoch<T> for Fence<'_, T> {
    fn put(&self, rank: usize, at: usize, buffer: Vec<T>) -> RemoteOp<Vec<T>> {
        self.put(rank, at, buffer)
    }

    async fn end(self) -> Result<()> {
        self.end().await.map(|_| ())
    }
}

/// The sending side, by puts to the neighbors.
#[derive(Debug)]
pub(crate) struct Puts<'o, T: Real, E> {
    epoch: E,
    outgoing: &'o mut [Put<T>],
}

impl<T: Real, E: Epoch<T>> Outgoing<T> for Puts<'_, T, E> {
    fn send(&mut self, component: usize, field: &Field<T>) {
        let puts = self.outgoing.iter_mut();
        for put in puts.filter(|put| put.component == component) {
            field.pack(put.to.region, &mut put.buffer);
            let buffer = mem::take(&mut put.buffer);
            put.flight = Some(self.epoch.put(put.to.peer, put.at, buffer));
        }
    }

    async fn complete(self, watch: &mut Stopwatch) -> Result<()> {
        for put in self.outgoing {
            if let Some(flight) = put.flight.take() {
                put.buffer = watch.waiting(flight).await?;
            }
        }
        watch.waiting(self.epoch.end()).await
    }
}
