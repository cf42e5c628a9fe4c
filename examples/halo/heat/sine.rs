//! The sine mode and its exact decay.

use std::f64::consts::PI;

use super::{
    domain::{HeatDim, HeatDomain},
    field::HeatField,
    stencil::ALPHA,
};

/// Sets the own cells to the mode of half a wave in each dimension.
pub(super) fn start(domain: &HeatDomain, u: &mut HeatField) {
    let [in_z, in_y, in_x] = [HeatDim::Z, HeatDim::Y, HeatDim::X].map(|dim| values(domain, dim));
    for (z, in_z) in (1..).zip(in_z) {
        for (row, in_y) in u.rows_mut(z).zip(&in_y) {
            row.iter_mut()
                .zip(&in_x)
                .for_each(|(cell, in_x)| *cell = in_x * in_y * in_z);
        }
    }
}

/// Returns the largest difference from the exact mode after `steps`; NaN if any cell is NaN.
pub(super) fn error(domain: &HeatDomain, u: &HeatField, steps: usize) -> f64 {
    let [in_z, in_y, in_x] = [HeatDim::Z, HeatDim::Y, HeatDim::X].map(|dim| values(domain, dim));
    let scale = scale(domain, steps);
    let mut worst: f64 = 0.0;
    for (z, in_z) in (1..).zip(in_z) {
        for (row, in_y) in u.rows(z).zip(&in_y) {
            for (cell, in_x) in row.iter().zip(&in_x) {
                let off = (cell - scale * in_x * in_y * in_z).abs();
                worst = if off > worst || off.is_nan() {
                    off
                } else {
                    worst
                };
            }
        }
    }
    worst
}

/// Returns the bound of rounding in [`error`]: a few last places per step, of the remaining mode.
pub(super) fn tolerance(domain: &HeatDomain, steps: usize) -> f64 {
    f64::EPSILON * (float(steps) + 8.0) * scale(domain, steps) + f64::MIN_POSITIVE
}

/// Returns the share of the mode that remains after `steps`.
fn scale(domain: &HeatDomain, steps: usize) -> f64 {
    let decay = |dim: usize| 2.0 * ALPHA * (PI / float(domain.global[dim] + 1)).cos();
    let factor = 1.0 - 6.0 * ALPHA + decay(HeatDim::Z) + decay(HeatDim::Y) + decay(HeatDim::X);
    factor.powf(float(steps))
}

/// Returns the mode at the own cells of a dimension.
fn values(domain: &HeatDomain, dim: usize) -> Vec<f64> {
    let at = |i: usize| (PI * float(domain.before[dim] + i) / float(domain.global[dim] + 1)).sin();
    (1..=domain.cells[dim]).map(at).collect()
}

/// Numbers of cells and steps are far below 2^53.
fn float(n: usize) -> f64 {
    n as f64
}
