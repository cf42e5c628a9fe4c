//! One step of the heat equation, for a plane and for the cells at a side.

use super::{
    domain::{BoxSide, HeatDim},
    field::HeatField,
    simd::{self, SimdRows},
};

/// The share of the difference to its neighbors that a cell takes over in a step. Below 1/6, where the scheme becomes unstable.
pub(super) const ALPHA: f64 = 0.1;

/// Updates all own cells of plane `z` of `v` from `u`.
pub(super) fn update_plane(u: &HeatField, v: &mut HeatField, z: usize) {
    let [_, count, len] = u.cells();
    let width = u.width();
    let rows = SimdRows {
        count,
        len,
        width,
        from: width + 1,
        to: width + 1,
    };
    simd::update_rows(v.plane_mut(z), around(u, z), rows);
}

/// Updates the own cells of `v` at `side`, which the neighbor there needs. They are computed once more with the rest, unless
/// they are a plane, which costs less than breaking the rows.
pub(super) fn update_face(u: &HeatField, v: &mut HeatField, side: BoxSide) {
    let (at, width) = (u.layer(side), u.width());
    let [planes, count, len] = u.cells();
    match side.dim {
        HeatDim::Z => update_plane(u, v, at),
        HeatDim::Y => {
            let (count, from) = (1, at * width + 1);
            let row = SimdRows {
                count,
                len,
                width,
                from,
                to: from,
            };
            for z in 1..=planes {
                simd::update_rows(v.plane_mut(z), around(u, z), row);
            }
        }
        _ => {
            let (len, from) = (1, width + at);
            let column = SimdRows {
                count,
                len,
                width,
                from,
                to: from,
            };
            for z in 1..=planes {
                update_column(v.plane_mut(z), around(u, z), column);
            }
        }
    }
}

/// Returns the new value of a cell. The order of the sum determines the result's bits.
#[inline(always)]
pub(super) fn cell(
    here: f64,
    [west, east]: [f64; 2],
    [north, south]: [f64; 2],
    [below, above]: [f64; 2],
) -> f64 {
    let sum = west + east + north + south + below + above;
    here + ALPHA * (sum - 6.0 * here)
}

fn update_column(out: &mut [f64], [below, here, above]: [&[f64]; 3], rows: SimdRows) {
    let width = rows.width;
    for row in 0..rows.count {
        let at = rows.from + row * width;
        let (in_row, in_plane) = (
            [here[at - 1], here[at + 1]],
            [here[at - width], here[at + width]],
        );
        out[rows.to + row * width] = cell(here[at], in_row, in_plane, [below[at], above[at]]);
    }
}

/// Returns the planes below, at and above `z`.
fn around(u: &HeatField, z: usize) -> [&[f64]; 3] {
    [u.plane(z - 1), u.plane(z), u.plane(z + 1)]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Computes with the plain loop, on every length up to three vectors and a rest.
    #[test]
    fn every_instruction_set_gives_the_bits_of_the_plain_loop() {
        for len in 2..=27 {
            let mut u = HeatField::new([2, 3, len]);
            for z in 0..4 {
                let value = |i: usize| {
                    (f64::from(u32::try_from(i).unwrap())
                        + 0.3 * f64::from(u32::try_from(z).unwrap()))
                    .sin()
                };
                u.plane_mut(z)
                    .iter_mut()
                    .enumerate()
                    .for_each(|(i, cell)| *cell = value(i));
            }
            let mut v = HeatField::new([2, 3, len]);
            update_plane(&u, &mut v, 1);
            let (width, planes) = (u.width(), around(&u, 1));
            for (y, row) in (1..).zip(v.rows(1)) {
                let mut column = [0.0];
                for (x, got) in (1..).zip(row) {
                    update_column(
                        &mut column,
                        planes,
                        SimdRows {
                            count: 1,
                            len: 1,
                            width,
                            from: y * width + x,
                            to: 0,
                        },
                    );
                    assert_eq!(
                        got.to_bits(),
                        column[0].to_bits(),
                        "cell {x} of row {y}, rows of {len}"
                    );
                }
            }
        }
    }
}
