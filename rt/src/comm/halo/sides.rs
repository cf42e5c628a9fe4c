//! The neighbors of a block of an array, and the layers that go to them and come from them.

use std::ops::Range;

use crate::{
    buffer::{Layout, NestedLayout},
    comm::Cart,
};

/// One neighbor: its rank, the tags of the messages to and from it, and the layers in this rank's array.
pub(super) struct HaloSide {
    pub(super) peer: usize,
    pub(super) send_tag: u32,
    pub(super) recv_tag: u32,
    /// Own layers that are the neighbor's ghosts.
    pub(super) layers: NestedLayout,
    /// Ghosts that are the neighbor's layers.
    pub(super) ghosts: NestedLayout,
}

/// The steps to a neighbor in each dimension of the grid: -1, 0 or 1.
type GridSteps = Vec<isize>;

/// Returns a sentence if a block of `shape`, with ghosts of `width` on both sides, cannot be exchanged on `cart`.
pub(super) fn wrong_block(
    cart: &Cart,
    shape: &[usize],
    width: usize,
    corners: bool,
) -> Option<String> {
    let dims = cart.dims().len();
    if dims > DIMS_MAX {
        return Some(format!(
            "`cart` has {dims} dimensions, and a halo at most {DIMS_MAX}"
        ));
    }
    let exchanged = (0..dims).filter(|&dim| is_exchanged(cart, dim)).count();
    if corners && exchanged > CORNER_DIMS_MAX {
        return Some(format!(
            "`cart` has neighbors in {exchanged} dimensions, and a halo with corners exchanges at most {CORNER_DIMS_MAX}: \
             each of them multiplies the number of neighbors by up to 3"
        ));
    }
    if shape.len() < dims {
        return Some(format!(
            "`shape` {shape:?} has fewer dimensions than the grid {:?}",
            cart.dims()
        ));
    }
    let elements = shape
        .iter()
        .try_fold(1_usize, |all, &len| all.checked_mul(len));
    if elements.is_none() {
        return Some(format!(
            "`shape` {shape:?} has more than usize::MAX elements"
        ));
    }
    (0..dims).find_map(|dim| {
        let Some(own) = width.checked_mul(2).and_then(|ghosts| shape[dim].checked_sub(ghosts)) else {
            return Some(format!(
                "`shape` {shape:?} has no room in dimension {dim} for the ghosts of `width` {width} at both ends, which it \
                 includes"
            ));
        };
        (is_exchanged(cart, dim) && own < width).then(|| {
            format!(
                "`width` {width} is more than the {own} own layers of `shape` {shape:?} in dimension {dim}: give each rank \
                 at least {width} layers, or split that dimension over fewer ranks"
            )
        })
    })
}

/// Returns the neighbors that exist: across faces only, or also across edges and corners. The block has passed
/// [`wrong_block`].
///
/// They are in the order of [`number`], so their messages arrive in the reverse order at ranks that send in this one: the number
/// of the opposite direction is the less the greater the number is.
pub(super) fn sides(cart: &Cart, shape: &[usize], width: usize, corners: bool) -> Vec<HaloSide> {
    let mut all_steps = all_steps(cart, corners);
    all_steps.sort_by_key(number);
    let side = |steps: &GridSteps| {
        let opposite: GridSteps = steps.iter().map(|step| -step).collect();
        let region = |of_step: fn(isize, usize, usize) -> Range<usize>| {
            let ranges = shape
                .iter()
                .enumerate()
                .map(|(dim, &len)| match steps.get(dim) {
                    Some(&step) => of_step(step, len, width),
                    // A dimension that the grid does not have: values of one cell.
                    None => 0..len,
                });
            Layout::subarray(shape, &ranges.collect::<Vec<_>>())
        };
        Some(HaloSide {
            peer: neighbor(cart, steps)?,
            send_tag: number(steps),
            recv_tag: number(&opposite),
            layers: region(layers),
            ghosts: region(ghosts),
        })
    };
    all_steps.iter().filter_map(side).collect()
}

/// Returns the indices of the own layers for the neighbor in the direction of `step`, in a dimension of `len` elements.
fn layers(step: isize, len: usize, width: usize) -> Range<usize> {
    match step {
        0 => width..len - width,
        ..0 => width..2 * width,
        _ => len - 2 * width..len - width,
    }
}

/// Returns the indices of the ghosts in the direction of `step`.
fn ghosts(step: isize, len: usize, width: usize) -> Range<usize> {
    match step {
        0 => width..len - width,
        ..0 => 0..width,
        _ => len - width..len,
    }
}

/// Returns the steps to all neighbors that may exist, in the same order on all ranks.
fn all_steps(cart: &Cart, corners: bool) -> Vec<GridSteps> {
    let dims = cart.dims().len();
    let mut all = vec![vec![0; dims]];
    for dim in 0..dims {
        let mut further = Vec::new();
        for by in [-1, 1] {
            if neighbor(cart, &one_step(dims, dim, by)).is_none() {
                continue;
            }
            let from = if corners { &all[..] } else { &all[..1] };
            further.extend(from.iter().map(|steps| {
                let mut steps = steps.clone();
                steps[dim] = by;
                steps
            }));
        }
        all.extend(further);
    }
    all.remove(0);
    all
}

/// Returns true if this rank has a neighbor in dimension `dim`. That is so for all ranks of the grid or for none.
fn is_exchanged(cart: &Cart, dim: usize) -> bool {
    let dims = cart.dims().len();
    [-1, 1]
        .into_iter()
        .any(|by| neighbor(cart, &one_step(dims, dim, by)).is_some())
}

fn one_step(dims: usize, dim: usize, by: isize) -> GridSteps {
    let mut steps = vec![0; dims];
    steps[dim] = by;
    steps
}

fn neighbor(cart: &Cart, steps: &GridSteps) -> Option<usize> {
    let coords = cart.coords().iter().zip(steps);
    let coords = coords.map(|(&at, step)| isize::try_from(at).ok()?.checked_add(*step));
    cart.rank_at(&coords.collect::<Option<Vec<_>>>()?)
}

/// Returns the number of a direction, which is the tag of the messages sent that way. Two neighbors that are the same rank, as
/// in a periodic dimension of 2, are told apart by it.
fn number(steps: &GridSteps) -> u32 {
    steps.iter().fold(0, |number, step| {
        3 * number
            + match step {
                ..0 => 0,
                0 => 1,
                _ => 2,
            }
    })
}

/// The most dimensions: with more, the number of a direction would not fit a tag.
const DIMS_MAX: usize = 20;

/// The most dimensions with neighbors if corners are exchanged too: that makes up to 728 neighbors.
const CORNER_DIMS_MAX: usize = 6;
