//! Cartesian grids.

use std::ops::Deref;

use super::Comm;
use crate::{
    error::{Error, Result},
    offload::Signature,
};

/// A communicator whose ranks form a grid. Rank order is row-major: the last dimension varies fastest, as in MPI.
///
/// It is a [`Comm`] of its own, with all of its methods.
#[derive(Clone, Debug)]
pub struct Cart {
    comm: Comm,
    dims: Vec<usize>,
    periodic: Vec<bool>,
    coords: Vec<usize>,
}

impl Comm {
    /// Arranges the ranks in a grid of `dims`, of which those that are `periodic` wrap around. Collective; ranks keep their
    /// numbers. [`Cart::dims_for`] finds balanced dimensions.
    ///
    /// # Errors
    /// `dims` and `periodic` differ in length, or the product of `dims` is not the size of the communicator
    /// (`InvalidArgument`); ranks have different ones, or call another collective (`Mismatch`); a member failed or finished.
    #[track_caller]
    pub fn cart(
        &self,
        dims: &[usize],
        periodic: &[bool],
    ) -> impl Future<Output = Result<Cart>> + Send {
        let wrong = self.wrong_grid(dims, periodic);
        let signature = grid_signature(dims, periodic);
        let (dims, periodic) = (dims.to_vec(), periodic.to_vec());
        let dup = self.dup_as("cart", signature);
        async move {
            // Also who knows better takes part: the others wait for it.
            let made = dup.await;
            if let Some(sentence) = wrong {
                return Err(Error::argument("cart", sentence));
            }
            let comm = made?;
            let coords = coords_of(comm.rank(), &dims);
            Ok(Cart {
                comm,
                dims,
                periodic,
                coords,
            })
        }
    }

    fn wrong_grid(&self, dims: &[usize], periodic: &[bool]) -> Option<String> {
        let product = dims
            .iter()
            .try_fold(1_usize, |product, &dim| product.checked_mul(dim));
        if product != Some(self.size()) {
            return Some(format!(
                "`dims` {dims:?} makes another number of ranks than the {} there are; see `Cart::dims_for`",
                self.size()
            ));
        }
        (dims.len() != periodic.len()).then(|| {
            format!(
                "`periodic` has {} entries for {} dimensions",
                periodic.len(),
                dims.len()
            )
        })
    }
}

fn grid_signature(dims: &[usize], periodic: &[bool]) -> Signature {
    let lens = [dims.len(), periodic.len()];
    let dims = lens.iter().chain(dims).map(|len| *len as u64);
    let wraps = periodic.iter().map(|wraps| u64::from(*wraps));
    dims.chain(wraps)
        .fold(Signature::of("cart"), Signature::with)
}

impl Cart {
    /// Splits `size` ranks over `n` dimensions as evenly as possible, the larger ones first.
    #[must_use]
    pub fn dims_for(size: usize, n: usize) -> Vec<usize> {
        let mut dims = vec![1; n];
        for factor in prime_factors(size).into_iter().rev() {
            if let Some(least) = dims.iter_mut().min() {
                *least *= factor;
            }
        }
        dims.sort_unstable_by(|a, b| b.cmp(a));
        dims
    }

    /// The grid's dimensions.
    #[must_use]
    pub fn dims(&self) -> &[usize] {
        &self.dims
    }

    /// This rank's place in the grid.
    #[must_use]
    pub fn coords(&self) -> &[usize] {
        &self.coords
    }

    /// The rank at `coords`, or `None` outside a dimension that does not wrap around.
    ///
    /// # Panics
    /// When there are not as many coordinates as dimensions.
    #[must_use]
    pub fn rank_at(&self, coords: &[isize]) -> Option<usize> {
        assert_eq!(
            coords.len(),
            self.dims.len(),
            "coordinates for a grid of {} dimensions",
            self.dims.len()
        );
        let mut rank = 0;
        for ((&at, &dim), &wraps) in coords.iter().zip(&self.dims).zip(&self.periodic) {
            let dim_signed = isize::try_from(dim).ok()?;
            let at = if wraps { at.rem_euclid(dim_signed) } else { at };
            let at = usize::try_from(at).ok().filter(|&at| at < dim)?;
            rank = rank * dim + at;
        }
        Some(rank)
    }

    /// Whom to receive from and whom to send to, to move data by `by` along `dim`: the neighbours on the far and the near
    /// side. `None` beyond an edge.
    ///
    /// # Panics
    /// When there is no such dimension.
    #[must_use]
    pub fn shift(&self, dim: usize, by: isize) -> (Option<usize>, Option<usize>) {
        assert!(
            dim < self.dims.len(),
            "`dim` is {dim} in a grid of {} dimensions",
            self.dims.len()
        );
        (
            self.neighbour(dim, by.checked_neg()),
            self.neighbour(dim, Some(by)),
        )
    }

    fn neighbour(&self, dim: usize, by: Option<isize>) -> Option<usize> {
        let mut coords: Vec<isize> = self
            .coords
            .iter()
            .map(|&at| isize::try_from(at).unwrap_or(isize::MAX))
            .collect();
        coords[dim] = coords[dim].checked_add(by?)?;
        self.rank_at(&coords)
    }
}

impl Deref for Cart {
    type Target = Comm;

    fn deref(&self) -> &Comm {
        &self.comm
    }
}

fn coords_of(mut rank: usize, dims: &[usize]) -> Vec<usize> {
    let mut coords = vec![0; dims.len()];
    for (at, &dim) in coords.iter_mut().zip(dims).rev() {
        *at = rank % dim;
        rank /= dim;
    }
    coords
}

/// Ascending.
fn prime_factors(mut n: usize) -> Vec<usize> {
    let mut factors = Vec::new();
    let mut p = 2;
    while p * p <= n {
        while n.is_multiple_of(p) {
            factors.push(p);
            n /= p;
        }
        p += 1;
    }
    if n > 1 {
        factors.push(n);
    }
    factors
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dimensions_are_balanced_and_multiply_to_the_size() {
        assert_eq!(Cart::dims_for(12, 2), [4, 3]);
        assert_eq!(Cart::dims_for(8, 3), [2, 2, 2]);
        assert_eq!(Cart::dims_for(7, 3), [7, 1, 1]);
        assert_eq!(Cart::dims_for(1, 3), [1, 1, 1]);
        for size in 1..500 {
            for n in 1..=4 {
                assert_eq!(Cart::dims_for(size, n).iter().product::<usize>(), size);
            }
        }
    }

    #[test]
    fn the_last_coordinate_varies_fastest() {
        assert_eq!(coords_of(5, &[2, 3]), [1, 2]);
        assert_eq!(coords_of(1, &[2, 3]), [0, 1]);
    }
}
