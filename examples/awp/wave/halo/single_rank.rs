//! One rank, which is its own neighbor in dimensions that wrap around: copies, and no messages.

use ripstop::Result;

use super::{Halo, Halos, Lane, Open, Outgoing, lanes::lanes};
use crate::wave::{
    clock::Stopwatch,
    domain::Domain,
    field::Field,
    real::Real,
    stencil::{Ghosts, Layers},
};

/// The exchange of a box that is not split.
#[derive(Debug)]
pub(crate) struct Alone<T> {
    lanes: Vec<Lane>,
    packed: Vec<T>,
}

impl<T: Real> Alone<T> {
    /// Makes the exchange of a domain that is the whole box.
    pub(crate) fn halos(domain: &Domain, layers: &Layers) -> Halos<Self> {
        let of = |ghosts: &[Ghosts]| Self {
            lanes: lanes(domain, ghosts),
            packed: Vec::new(),
        };
        Halos {
            velocity: of(&layers.velocity),
            stress: of(&layers.stress),
        }
    }
}

impl<T: Real> Halo<T> for Alone<T> {
    type Open<'a> = &'a mut Self;

    fn open(&mut self) -> Result<&mut Self> {
        Ok(self)
    }
    async fn close(self) -> Result<()> {
        Ok(())
    }
}

impl<T: Real> Open<T> for &mut Alone<T> {
    type Outgoing<'o>
        = Nothing
    where
        Self: 'o;

    async fn start(&mut self, _: &mut Stopwatch) -> Result<Nothing> {
        Ok(Nothing)
    }

    async fn finish(self, fields: &mut [Field<T>], _: &mut Stopwatch) -> Result<()> {
        for lane in &self.lanes {
            let (Some(from), Some(to)) = (lane.from, lane.to) else {
                continue;
            };
            let field = &mut fields[lane.component];
            self.packed.resize(to.region.len(), T::default());
            field.pack(to.region, &mut self.packed);
            field.unpack(from.region, &self.packed);
        }
        Ok(())
    }
}

/// The sending side of a rank without neighbors.
#[derive(Debug)]
pub(crate) struct Nothing;

impl<T: Real> Outgoing<T> for Nothing {
    fn send(&mut self, _: usize, _: &Field<T>) {}

    async fn complete(self, _: &mut Stopwatch) -> Result<()> {
        Ok(())
    }
}
