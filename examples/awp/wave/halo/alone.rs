//! One rank, whose neighbours in dimensions that wrap around are itself: copies, and no messages.

use ripstop::Result;

use super::{Epoch, Halo, Halos, Lane, lanes::lanes};
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
    /// For a domain that is the whole box.
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
    type Epoch<'a> = &'a mut Self;

    fn open(&mut self) -> Result<&mut Self> {
        Ok(self)
    }
}

impl<T: Real> Epoch<T> for &mut Alone<T> {
    async fn start(&mut self, _: &mut Stopwatch) -> Result<()> {
        Ok(())
    }

    fn send(&mut self, _: usize, _: &Field<T>) -> Result<()> {
        Ok(())
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
