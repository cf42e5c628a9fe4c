//! The update of a cell, and the loops over cells.
//!
//! Every cell is computed by the same three functions, in any region. So the order of its sums, and its bits, do not depend on
//! how the box is split.

use super::{
    domain::{AwpDim, CellBox},
    field::AwpField,
    medium::ElasticMedium,
    real::WaveReal,
    simd::{self, SimdKernel},
    stencil::{SHEAR, STRETCH, StencilDifference, StressGroup, VELOCITY, XY, XZ, YZ},
};

/// Advances the velocities `components` by a time step. `factors` are Δt/(h ρ).
pub(super) fn velocities<T: WaveReal>(
    components: &[usize],
    velocity: &mut [AwpField<T>; 3],
    stress: &[AwpField<T>; 6],
    factors: &[AwpField<T>; 3],
    region: CellBox,
) {
    simd::run_widest(VelocityKernel {
        components,
        velocity,
        stress,
        factors,
        region,
    });
}

/// Advances the stresses of `groups` by a time step.
pub(super) fn stresses<T: WaveReal>(
    groups: &[StressGroup],
    stress: &mut [AwpField<T>; 6],
    velocity: &[AwpField<T>; 3],
    medium: &ElasticMedium<T>,
    region: CellBox,
) {
    simd::run_widest(StressKernel {
        groups,
        stress,
        velocity,
        medium,
        region,
    });
}

#[inline(always)]
fn velocity_cell<T: WaveReal>(here: T, factor: T, taps: [[T; 4]; 3]) -> T {
    let [x, y, z] = taps.map(difference);
    flushed(here + factor * (x + y + z), T::VELOCITY_LEAST)
}

#[inline(always)]
fn shear_cell<T: WaveReal>(here: T, factor: T, taps: [[T; 4]; 2]) -> T {
    let [first, second] = taps.map(difference);
    flushed(here + factor * (first + second), T::STRESS_LEAST)
}

/// Advances the three normal stresses, from λ + 2μ and 2μ.
#[inline(always)]
fn normal_cell<T: WaveReal>(here: [T; 3], [modulus, shear]: [T; 2], taps: [[T; 4]; 3]) -> [T; 3] {
    let [x, y, z] = taps.map(difference);
    let volume = modulus * (x + y + z);
    [
        flushed(here[0] + (volume - shear * (y + z)), T::STRESS_LEAST),
        flushed(here[1] + (volume - shear * (x + z)), T::STRESS_LEAST),
        flushed(here[2] + (volume - shear * (x + y)), T::STRESS_LEAST),
    ]
}

/// Returns the value, or zero if it is less than `least`. Ahead of a wave, values fall off until they are subnormal, and then
/// every operation on them takes a hundred cycles: most of a step.
#[inline(always)]
fn flushed<T: WaveReal>(value: T, least: T) -> T {
    if value < least && T::default() - least < value {
        T::default()
    } else {
        value
    }
}

/// Returns the derivative in the middle of four values, times their spacing.
#[inline(always)]
fn difference<T: WaveReal>([a, b, c, d]: [T; 4]) -> T {
    T::NEAR * (c - b) + T::FAR * (d - a)
}

struct VelocityKernel<'a, T> {
    components: &'a [usize],
    velocity: &'a mut [AwpField<T>; 3],
    stress: &'a [AwpField<T>; 6],
    factors: &'a [AwpField<T>; 3],
    region: CellBox,
}

impl<T: WaveReal> SimdKernel for VelocityKernel<'_, T> {
    #[inline(always)]
    fn run(self) {
        let len = self.region.edge(AwpDim::Z);
        for start in self.region.rows() {
            for &component in self.components {
                let taps = VELOCITY[component].map(|read| rows(self.stress, read, start, len));
                let factor = self.factors[component].row(start, len);
                let row = self.velocity[component].row_mut(start, len);
                velocity_row(row, factor, taps);
            }
        }
    }
}

struct StressKernel<'a, T> {
    groups: &'a [StressGroup],
    stress: &'a mut [AwpField<T>; 6],
    velocity: &'a [AwpField<T>; 3],
    medium: &'a ElasticMedium<T>,
    region: CellBox,
}

impl<T: WaveReal> SimdKernel for StressKernel<'_, T> {
    #[inline(always)]
    fn run(mut self) {
        for start in self.region.rows() {
            for group in self.groups {
                match group {
                    StressGroup::Normal => self.normal_row(start),
                    StressGroup::Xy => self.shear_row(XY, start),
                    StressGroup::Xz => self.shear_row(XZ, start),
                    StressGroup::Yz => self.shear_row(YZ, start),
                }
            }
        }
    }
}

impl<T: WaveReal> StressKernel<'_, T> {
    #[inline(always)]
    fn normal_row(&mut self, start: [usize; 3]) {
        let len = self.region.edge(AwpDim::Z);
        let taps = STRETCH.map(|read| rows(self.velocity, read, start, len));
        let factors = self.medium.normal.each_ref();
        let [modulus, shear] = factors.map(|field| field.row(start, len));
        let [xx, yy, zz, ..] = self.stress;
        let (xx, yy) = (xx.row_mut(start, len), yy.row_mut(start, len));
        let zz = zz.row_mut(start, len);
        normal_row(xx, yy, zz, [modulus, shear], taps);
    }

    #[inline(always)]
    fn shear_row(&mut self, component: usize, start: [usize; 3]) {
        let len = self.region.edge(AwpDim::Z);
        let taps = SHEAR[component - XY].map(|read| rows(self.velocity, read, start, len));
        let factor = self.medium.shear[component - XY].row(start, len);
        let row = self.stress[component].row_mut(start, len);
        shear_row(row, factor, taps);
    }
}

// The loops are separate functions that take their outputs as arguments, so the compiler knows that nothing else is written.

#[inline(always)]
fn velocity_row<T: WaveReal>(row: &mut [T], factor: &[T], taps: [[&[T]; 4]; 3]) {
    let len = row.len();
    let factor = &factor[..len];
    let taps = taps.map(|four| four.map(|tap| &tap[..len]));
    for z in 0..len {
        row[z] = velocity_cell(row[z], factor[z], taps.map(|four| pick(four, z)));
    }
}

#[inline(always)]
fn shear_row<T: WaveReal>(row: &mut [T], factor: &[T], taps: [[&[T]; 4]; 2]) {
    let len = row.len();
    let factor = &factor[..len];
    let taps = taps.map(|four| four.map(|tap| &tap[..len]));
    for z in 0..len {
        row[z] = shear_cell(row[z], factor[z], taps.map(|four| pick(four, z)));
    }
}

#[inline(always)]
fn normal_row<T: WaveReal>(
    xx: &mut [T],
    yy: &mut [T],
    zz: &mut [T],
    [modulus, shear]: [&[T]; 2],
    taps: [[&[T]; 4]; 3],
) {
    let len = xx.len();
    let (yy, zz) = (&mut yy[..len], &mut zz[..len]);
    let (modulus, shear) = (&modulus[..len], &shear[..len]);
    let taps = taps.map(|four| four.map(|tap| &tap[..len]));
    for z in 0..len {
        let here = [xx[z], yy[z], zz[z]];
        let taps = taps.map(|four| pick(four, z));
        [xx[z], yy[z], zz[z]] = normal_cell(here, [modulus[z], shear[z]], taps);
    }
}

/// Returns the four rows that a difference reads. They have one length, so that the loops need no bounds checks.
#[inline(always)]
fn rows<T: WaveReal>(
    fields: &[AwpField<T>],
    read: StencilDifference,
    start: [usize; 3],
    len: usize,
) -> [&[T]; 4] {
    let field = &fields[read.of];
    let stride = field.stride(read.dim);
    let first = field.at(start) - read.before * stride;
    [0, 1, 2, 3].map(|tap| &field.all()[first + tap * stride..][..len])
}

#[inline(always)]
fn pick<T: WaveReal>(rows: [&[T]; 4], z: usize) -> [T; 4] {
    [rows[0][z], rows[1][z], rows[2][z], rows[3][z]]
}
