//! The rock.

use super::{
    domain::{AwpDomain, GHOSTS},
    field::AwpField,
    real::WaveReal,
};

/// Speeds of the two kinds of waves in m/s, density in kg/m³.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct RockProperties {
    pub(crate) vp: f64,
    pub(crate) vs: f64,
    pub(crate) density: f64,
}

/// The layers of rock in the box.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum RockModel {
    Uniform(RockProperties),
    /// Sediment in the upper eighth, granite down to one half, and harder rock below.
    Layered,
}

/// The factors of the kernels, in every cell.
#[derive(Debug)]
pub(crate) struct ElasticMedium<T> {
    /// Δt/(h ρ) at the positions of u, v and w.
    pub(super) velocity: [AwpField<T>; 3],
    /// Δt/h times λ + 2μ and 2μ, at the positions of the normal stresses.
    pub(super) normal: [AwpField<T>; 2],
    /// Δt μ/h at the positions of xy, xz and yz.
    pub(super) shear: [AwpField<T>; 3],
}

impl RockProperties {
    pub(crate) const GRANITE: Self = Self {
        vp: 4800.0,
        vs: 2800.0,
        density: 2500.0,
    };
    const SEDIMENT: Self = Self {
        vp: 2600.0,
        vs: 1300.0,
        density: 2200.0,
    };
    const BASEMENT: Self = Self {
        vp: 6200.0,
        vs: 3600.0,
        density: 2750.0,
    };

    /// Returns μ, in Pa.
    pub(crate) fn mu(&self) -> f64 {
        self.density * self.vs * self.vs
    }

    /// Returns λ, in Pa.
    pub(crate) fn lambda(&self) -> f64 {
        self.density * self.vp * self.vp - 2.0 * self.mu()
    }
}

impl RockModel {
    /// Returns every rock in the medium.
    fn rocks(&self) -> Vec<RockProperties> {
        match *self {
            Self::Uniform(rock) => vec![rock],
            Self::Layered => vec![
                RockProperties::SEDIMENT,
                RockProperties::GRANITE,
                RockProperties::BASEMENT,
            ],
        }
    }

    /// Returns the largest speed in the medium.
    pub(crate) fn vp_max(&self) -> f64 {
        let speeds = self.rocks().into_iter().map(|rock| rock.vp);
        speeds.fold(0.0, f64::max)
    }

    /// Returns the largest ρ vp, the stress that goes with a velocity, in Pa s/m.
    pub(super) fn impedance(&self) -> f64 {
        let each = self.rocks().into_iter().map(|rock| rock.density * rock.vp);
        each.fold(0.0, f64::max)
    }

    /// Returns the smallest speed in the medium.
    pub(crate) fn vs_min(&self) -> f64 {
        let speeds = self.rocks().into_iter().map(|rock| rock.vs);
        speeds.fold(f64::INFINITY, f64::min)
    }

    /// Returns the rock at layer `z` of `layers`, the last of which is at the top.
    fn rock(&self, z: usize, layers: usize) -> RockProperties {
        match *self {
            Self::Uniform(rock) => rock,
            Self::Layered if 8 * z >= 7 * layers => RockProperties::SEDIMENT,
            Self::Layered if 2 * z >= layers => RockProperties::GRANITE,
            Self::Layered => RockProperties::BASEMENT,
        }
    }
}

impl<T: WaveReal> ElasticMedium<T> {
    /// Computes the factors for steps of `step` = Δt/h, in s/m.
    pub(super) fn new(domain: &AwpDomain, model: RockModel, step: f64) -> Self {
        let nodes = RockNodes { domain, model };
        let mut medium = Self {
            velocity: [(); 3].map(|()| AwpField::new(domain)),
            normal: [(); 2].map(|()| AwpField::new(domain)),
            shear: [(); 3].map(|()| AwpField::new(domain)),
        };
        let own = domain.own();
        for [x, y, start] in own.rows() {
            for z in start..own.end[2] {
                let cell = [x, y, z];
                for (i, field) in medium.velocity.iter_mut().enumerate() {
                    field.set(cell, T::of(step / nodes.density(cell, AROUND_VELOCITY[i])));
                }
                for (i, field) in medium.shear.iter_mut().enumerate() {
                    let mu = nodes.harmonic(cell, &AROUND_SHEAR[i], RockProperties::mu);
                    field.set(cell, T::of(step * mu));
                }
                let lambda = nodes.harmonic(cell, &AROUND_NORMAL, RockProperties::lambda);
                let mu = nodes.harmonic(cell, &AROUND_NORMAL, RockProperties::mu);
                medium.normal[0].set(cell, T::of(step * (lambda + 2.0 * mu)));
                medium.normal[1].set(cell, T::of(step * 2.0 * mu));
            }
        }
        medium
    }
}

/// The rock is given at nodes half a cell away from the normal stresses, at (−½, +½, +½). Around each quantity, the values of
/// the nodes are averaged.
struct RockNodes<'a> {
    domain: &'a AwpDomain,
    model: RockModel,
}

/// Offsets from a cell to the nodes around it.
type NodeOffset = [isize; 3];

impl RockNodes<'_> {
    fn density(&self, cell: [usize; 3], around: [NodeOffset; 4]) -> f64 {
        around
            .map(|offset| self.rock(cell, offset).density)
            .into_iter()
            .sum::<f64>()
            / 4.0
    }

    fn harmonic(
        &self,
        cell: [usize; 3],
        around: &[NodeOffset],
        of: fn(&RockProperties) -> f64,
    ) -> f64 {
        let inverses = around
            .iter()
            .map(|&offset| 1.0 / of(&self.rock(cell, offset)));
        let (count, sum) = inverses.fold((0.0, 0.0), |(count, sum), inverse| {
            (count + 1.0, sum + inverse)
        });
        count / sum
    }

    /// Beyond an end of the box, the values at the end are used.
    fn rock(&self, cell: [usize; 3], offset: NodeOffset) -> RockProperties {
        let z = self.domain.before[2] + cell[2] - GHOSTS;
        let layers = self.domain.global[2];
        let node = match z.checked_add_signed(offset[2]) {
            Some(node) if node < layers => node,
            Some(_) if self.domain.periodic[2] => 0,
            None if self.domain.periodic[2] => layers - 1,
            _ => z,
        };
        self.model.rock(node, layers)
    }
}

const AROUND_VELOCITY: [[NodeOffset; 4]; 3] = [
    [[0, 0, 0], [0, -1, 0], [0, 0, -1], [0, -1, -1]],
    [[0, 0, 0], [1, 0, 0], [0, 0, -1], [1, 0, -1]],
    [[0, 0, 0], [1, 0, 0], [0, -1, 0], [1, -1, 0]],
];

const AROUND_SHEAR: [[NodeOffset; 2]; 3] = [
    [[0, 0, 0], [0, 0, -1]],
    [[0, 0, 0], [0, -1, 0]],
    [[0, 0, 0], [1, 0, 0]],
];

const AROUND_NORMAL: [NodeOffset; 8] = [
    [0, 0, 0],
    [1, 0, 0],
    [0, -1, 0],
    [0, 0, -1],
    [1, -1, 0],
    [1, 0, -1],
    [0, -1, -1],
    [1, -1, -1],
];
