//! The ends of the box: a layer that absorbs waves, and a surface that is free to move.

use super::{
    domain::{AwpDim, AwpDomain, CellBox, GHOSTS},
    field::AwpField,
    medium::ElasticMedium,
    real::WaveReal,
    stencil::{XZ, YZ, ZZ},
};

/// A sponge: cells near the ends lose a part of their value in each step, more the nearer they are.
#[derive(Debug)]
pub(super) struct SpongeLayer<T> {
    /// The remaining share in each layer, along each dimension.
    left: [Vec<T>; 3],
}

impl<T: WaveReal> SpongeLayer<T> {
    /// Makes a sponge of `width` cells at each end that is neither periodic nor a free surface.
    pub(super) fn new(domain: &AwpDomain, width: usize, free_surface: bool) -> Self {
        let left = [AwpDim::X, AwpDim::Y, AwpDim::Z].map(|dim| {
            let (cells, before) = (domain.global[dim], domain.before[dim]);
            let of_cell = |cell: usize| {
                let above_is_open = !(free_surface && dim == AwpDim::Z);
                let below = part_left(cell, width);
                let above = if above_is_open {
                    part_left(cells - 1 - cell, width)
                } else {
                    1.0
                };
                T::of(below * above)
            };
            let own = (before..before + domain.cells[dim]).map(of_cell);
            let ghosts = [T::ONE; GHOSTS];
            if domain.periodic[dim] {
                vec![T::ONE; domain.cells[dim] + 2 * GHOSTS]
            } else {
                ghosts.into_iter().chain(own).chain(ghosts).collect()
            }
        });
        Self { left }
    }

    /// Damps a region. Rows that lose nothing are left alone: a factor of one changes no bit.
    pub(super) fn damp(&self, field: &mut AwpField<T>, region: CellBox) {
        let [x_left, y_left, z_left] = &self.left;
        let z_left = &z_left[region.range(AwpDim::Z)];
        let z_loses = z_left.iter().any(|&left| left != T::ONE);
        for start in region.rows() {
            let row_left = x_left[start[AwpDim::X]] * y_left[start[AwpDim::Y]];
            if row_left == T::ONE && !z_loses {
                continue;
            }
            let row = field.row_mut(start, z_left.len());
            for (cell, &left) in row.iter_mut().zip(z_left) {
                *cell = *cell * (row_left * left);
            }
        }
    }
}

/// Returns the share that remains after a step, `distance` cells from the end (Cerjan et al. 1985).
fn part_left(distance: usize, width: usize) -> f64 {
    if distance >= width {
        return 1.0;
    }
    let (distance, width) = (float(distance), float(width));
    let alpha = (-OUTERMOST_LEFT.ln()).sqrt() / width;
    (-(alpha * (width - distance)).powi(2)).exp()
}

/// The highest layer of w, xz and yz lies on the surface; zz lies half a cell below.
///
/// Above it are images: those of the stresses make the traction zero, and those of the velocities are consistent with that.
#[derive(Clone, Copy, Debug)]
pub(super) struct FreeSurface {
    /// The highest layer.
    top: usize,
}

impl FreeSurface {
    /// Returns the surface over this rank's cells, if it is there.
    pub(super) fn over(domain: &AwpDomain) -> Option<Self> {
        let top = GHOSTS + domain.cells[AwpDim::Z] - 1;
        domain.is_open_end(AwpDim::Z, true).then_some(Self { top })
    }

    /// Makes the shear traction vanish.
    pub(super) fn hold_at_zero<T: WaveReal>(
        &self,
        component: usize,
        field: &mut AwpField<T>,
        region: CellBox,
    ) {
        if [XZ, YZ].contains(&component) && region.range(AwpDim::Z).contains(&self.top) {
            field.fill(region.with(AwpDim::Z, self.top..self.top + 1), T::default());
        }
    }

    /// Sets the stresses above to the negative of those below.
    pub(super) fn mirror_stresses<T: WaveReal>(&self, stress: &mut [AwpField<T>; 6], own: CellBox) {
        let (zero, top) = (T::default(), self.top);
        for [x, y, _] in own.with(AwpDim::Z, top..top + 1).rows() {
            let mut mirror = |of: usize, from: usize, to: usize| {
                let value = stress[of].get([x, y, from]);
                stress[of].set([x, y, to], zero - value);
            };
            mirror(ZZ, top, top + 1);
            mirror(ZZ, top - 1, top + 2);
            mirror(XZ, top - 1, top + 1);
            mirror(YZ, top - 1, top + 1);
        }
    }

    /// Sets the velocities above so that the shear strain at the surface vanishes, and with it, to second order, the normal
    /// stress.
    ///
    /// Also writes columns of u above, and of v below this rank's in x and y. The neighbor has them, but need not send them.
    pub(super) fn continue_velocities<T: WaveReal>(
        &self,
        velocity: &mut [AwpField<T>; 3],
        medium: &ElasticMedium<T>,
        own: CellBox,
    ) {
        let (top, above) = (self.top, self.top + 1);
        let surface = own.with(AwpDim::Z, top..above);
        let [u, v, w] = velocity;
        for [x, y, z] in surface.with(AwpDim::X, own.start[0]..own.end[0] + 1).rows() {
            let slope = w.get([x, y, z]) - w.get([x - 1, y, z]);
            u.set([x, y, above], u.get([x, y, z]) - slope);
        }
        for [x, y, z] in surface.with(AwpDim::Y, own.start[1] - 1..own.end[1]).rows() {
            let slope = w.get([x, y + 1, z]) - w.get([x, y, z]);
            v.set([x, y, above], v.get([x, y, z]) - slope);
        }
        for [x, y, z] in surface.rows() {
            let spread = |z: usize| {
                let in_x = u.get([x + 1, y, z]) - u.get([x, y, z]);
                in_x + (v.get([x, y, z]) - v.get([x, y - 1, z]))
            };
            let [modulus, shear] = medium
                .normal
                .each_ref()
                .map(|field| field.get([x, y, z]).wide());
            let ratio = T::of((modulus - shear) / modulus);
            let below = w.get([x, y, z - 1]);
            w.set([x, y, above], below - ratio * (spread(z) + spread(above)));
        }
    }
}

/// The share that the outermost layer keeps in a step.
const OUTERMOST_LEFT: f64 = 0.92;

fn float(n: usize) -> f64 {
    n as f64
}
