//! Cartesian grids of ranks.

use std::{ops::Deref, panic::Location, sync::Arc};

use super::{Comm, agreement::AgreedArguments, split::SplitRequest};
use crate::{
    error::{ErrorKind, Result},
    offload::CollectiveSignature,
};

/// A communicator whose ranks form a grid. Ranks are in row-major order: the last dimension varies fastest, as in MPI.
///
/// Dereferences to its own [`Comm`], so it has all methods of a communicator.
#[derive(Clone, Debug)]
pub struct Cart {
    comm: Comm,
    dims: Vec<usize>,
    periodic: Vec<bool>,
    coords: Vec<usize>,
}

impl Comm {
    /// Arranges the ranks in a grid with the dimensions `dims`; the `periodic` dimensions wrap around. Collective.
    ///
    /// Ranks keep their numbers. [`Cart::dims_for`] finds balanced dimensions. Like [`split`](Self::split), the call
    /// starts immediately and proceeds in the background.
    ///
    /// Output: `Result<Cart>`.
    ///
    /// ```
    /// # use ripstop_rt::{sim::Simulation, Comm, Error};
    /// # let report = Simulation::new(6).run(|world: Comm| async move {
    /// let grid = world.cart(&[2, 3], &[false, true]).await?;
    /// assert_eq!(grid.coords(), [grid.rank() / 3, grid.rank() % 3]);
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    ///
    /// # Errors
    /// `dims` and `periodic` differ in length, or the product of `dims` is not the size of the communicator
    /// (`InvalidArgument`); ranks pass different grids, or call another collective (`Mismatch`); a member failed or
    /// finished.
    #[track_caller]
    pub fn cart(
        &self,
        dims: &[usize],
        periodic: &[bool],
    ) -> impl Future<Output = Result<Cart>> + Send + use<> {
        let wrong = self.wrong_grid(dims, periodic);
        let agreed = AgreedArguments {
            signature: grid_signature(dims, periodic),
            words: format!("dims {dims:?}, periodic {periodic:?}"),
        };
        let (dims, periodic) = (dims.to_vec(), periodic.to_vec());
        let dup = self.start_dup("cart", agreed);
        let at = Location::caller();
        let error = |sentence| self.error_here("cart", ErrorKind::InvalidArgument(sentence));
        let wrong = wrong.map(|sentence| error(sentence).called_at(at));
        async move {
            // A rank with wrong arguments takes part too, because the others wait for it.
            let made = dup.await;
            if let Some(error) = wrong {
                return Err(error);
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
                "`dims` {dims:?} does not make a grid of {} ranks: see `Cart::dims_for`",
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

fn grid_signature(dims: &[usize], periodic: &[bool]) -> CollectiveSignature {
    let lens = [dims.len(), periodic.len()];
    let dims = lens.iter().chain(dims).map(|len| *len as u64);
    let wraps = periodic.iter().map(|wraps| u64::from(*wraps));
    dims.chain(wraps)
        .fold(CollectiveSignature::of("cart"), CollectiveSignature::with)
}

fn sub_signature(keep: &[bool]) -> CollectiveSignature {
    let words = keep.iter().map(|&keep| u64::from(keep));
    words.fold(
        CollectiveSignature::of("sub").with(keep.len() as u64),
        CollectiveSignature::with,
    )
}

impl Cart {
    /// Names the communicator, like [`Comm::named`].
    #[must_use]
    pub fn named(self, name: impl Into<Arc<str>>) -> Self {
        let comm = self.comm.named(name);
        Self { comm, ..self }
    }

    /// Splits `size` ranks over `n` dimensions as evenly as possible, the larger ones first. The largest dimension is
    /// as small as possible, then the second largest, and so on.
    ///
    /// ```
    /// # use ripstop_rt::Cart;
    /// assert_eq!(Cart::dims_for(12, 2), [4, 3]);
    /// assert_eq!(Cart::dims_for(64, 3), [4, 4, 4]);
    /// assert_eq!(Cart::dims_for(7, 2), [7, 1]);
    /// ```
    #[must_use]
    pub fn dims_for(size: usize, n: usize) -> Vec<usize> {
        let divisors = divisors(size);
        let place = |of: usize| divisors.partition_point(|&divisor| divisor < of);
        let mut largest = vec![divisors.clone()];
        // A number of this size has at most this many prime factors, so all further dimensions are 1.
        let more = n.min(size.max(2).ilog2() as usize).saturating_sub(1);
        for _ in 0..more {
            let fewer = largest.last().expect("that of one dimension");
            let of = |&size: &usize| least_largest(&divisors, size, |rest| fewer[place(rest)]);
            largest.push(divisors.iter().map(of).collect());
        }
        let mut rest = size;
        let mut dims = vec![1; n];
        for (dim, largest) in dims.iter_mut().zip(largest.iter().rev()) {
            *dim = largest[place(rest)];
            rest /= *dim;
        }
        dims
    }

    /// Returns the dimensions of the grid.
    #[must_use]
    pub fn dims(&self) -> &[usize] {
        &self.dims
    }

    /// Returns for each dimension whether it wraps around.
    ///
    /// ```
    /// # let runtime = ripstop_rt::Runtime::init()?;
    /// # let world = runtime.world();
    /// # runtime.block_on(async {
    /// let grid = world.cart(&[1, 1], &[true, false]).await?;
    /// assert_eq!((grid.dims(), grid.periodic()), (&[1, 1][..], &[true, false][..]));
    /// # Ok::<(), ripstop_rt::Error>(()) })?;
    /// # Ok::<(), ripstop_rt::Error>(())
    /// ```
    #[must_use]
    pub fn periodic(&self) -> &[bool] {
        &self.periodic
    }

    /// Returns the coordinates of this rank.
    ///
    /// ```
    /// # use ripstop_rt::{sim::Simulation, Comm, Error};
    /// # let report = Simulation::new(6).run(|world: Comm| async move {
    /// let grid = world.cart(&[2, 3], &[false; 2]).await?; // two rows of three ranks
    /// let [row, column] = grid.coords() else { unreachable!("the grid has two dimensions") };
    /// assert_eq!(row * 3 + column, grid.rank());
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    #[must_use]
    pub fn coords(&self) -> &[usize] {
        &self.coords
    }

    /// Returns the coordinates of a rank.
    ///
    /// ```
    /// # let runtime = ripstop_rt::Runtime::init()?;
    /// # let world = runtime.world();
    /// # runtime.block_on(async {
    /// let grid = world.cart(&[1, 1], &[false; 2]).await?;
    /// assert_eq!(grid.coords_of(grid.rank()), grid.coords());
    /// # Ok::<(), ripstop_rt::Error>(()) })?;
    /// # Ok::<(), ripstop_rt::Error>(())
    /// ```
    ///
    /// # Panics
    /// Panics if there is no such rank.
    #[must_use]
    #[track_caller]
    pub fn coords_of(&self, rank: usize) -> Vec<usize> {
        let size = self.size();
        assert!(
            rank < size,
            "`rank` is {rank}, and the grid has ranks 0..{size}"
        );
        coords_of(rank, &self.dims)
    }

    /// Returns the rank at `coords`, or `None` outside a dimension that does not wrap around.
    ///
    /// ```
    /// # use ripstop_rt::{sim::Simulation, Comm, Error};
    /// # let report = Simulation::new(4).run(|world: Comm| async move {
    /// let grid = world.cart(&[2, 2], &[false, true]).await?;
    /// assert_eq!(grid.rank_at(&[1, 0]), Some(2));
    /// assert_eq!(grid.rank_at(&[0, -1]), Some(1)); // this dimension wraps around
    /// assert_eq!(grid.rank_at(&[-1, 0]), None); // this one does not
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    ///
    /// # Panics
    /// Panics if the number of coordinates is not the number of dimensions.
    #[must_use]
    #[track_caller]
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

    /// Returns the rank to receive from and the rank to send to, in this order, if data move by `by` along `dim`. For 1,
    /// these are the rank one down and the rank one up. A rank beyond an edge is `None`.
    ///
    /// ```
    /// # use ripstop_rt::{sim::Simulation, Comm, Error};
    /// # let report = Simulation::new(3).run(|world: Comm| async move {
    /// let line = world.cart(&[3], &[false]).await?;
    /// let (below, above) = line.shift(0, 1);
    /// // The ends of the line have no neighbor there, and send to and receive from `None`.
    /// let inbox = line.recv::<usize>(below, 7);
    /// line.send(above, 7, [line.rank()]).await?;
    /// let received = inbox.await?.0;
    /// assert_eq!(received, if line.rank() == 0 { vec![] } else { vec![line.rank() - 1] });
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    ///
    /// # Panics
    /// Panics if there is no such dimension.
    #[must_use]
    #[track_caller]
    pub fn shift(&self, dim: usize, by: isize) -> (Option<usize>, Option<usize>) {
        assert!(
            dim < self.dims.len(),
            "`dim` is {dim} in a grid of {} dimensions",
            self.dims.len()
        );
        (
            self.neighbor(dim, by.checked_neg()),
            self.neighbor(dim, Some(by)),
        )
    }

    /// Returns the ranks one down and one up in each dimension, in this order. Each rank is there once, and this rank is not.
    ///
    /// These are the ranks that a halo exchange has to do with, as [`Window::post`] takes them. [`shift`](Self::shift) says
    /// which of them is on which side.
    ///
    /// ```
    /// # let runtime = ripstop_rt::Runtime::init()?;
    /// # let world = runtime.world();
    /// # runtime.block_on(async {
    /// let grid = world.cart(&[1, 1], &[true; 2]).await?;
    /// assert!(grid.neighbors().is_empty()); // it is its own neighbor on all sides
    /// # Ok::<(), ripstop_rt::Error>(()) })?;
    /// # Ok::<(), ripstop_rt::Error>(())
    /// ```
    ///
    /// [`Window::post`]: https://docs.rs/ripstop/latest/ripstop/struct.Window.html#method.post
    #[must_use]
    pub fn neighbors(&self) -> Vec<usize> {
        let mut neighbors = Vec::with_capacity(2 * self.dims.len());
        for dim in 0..self.dims.len() {
            let (down, up) = self.shift(dim, 1);
            for rank in [down, up].into_iter().flatten() {
                if rank != self.rank() && !neighbors.contains(&rank) {
                    neighbors.push(rank);
                }
            }
        }
        neighbors
    }

    /// Splits the grid into grids of fewer dimensions: those that are true in `keep`. Collective.
    ///
    /// Ranks whose other coordinates are equal are together. The new grids have the kept dimensions in their order, and
    /// wrap around as before. Like [`split`](Comm::split), the call starts immediately and proceeds in the background.
    ///
    /// Output: `Result<Cart>`.
    ///
    /// ```
    /// # let runtime = ripstop_rt::Runtime::init()?;
    /// # let world = runtime.world();
    /// # runtime.block_on(async {
    /// let grid = world.cart(&[1, 1], &[false, true]).await?;
    /// let (row, column) = (grid.sub(&[false, true]).await?, grid.sub(&[true, false]).await?);
    /// assert_eq!((row.size(), row.periodic()), (grid.dims()[1], &[true][..]));
    /// assert_eq!(column.rank(), grid.coords()[0]);
    /// # Ok::<(), ripstop_rt::Error>(()) })?;
    /// # Ok::<(), ripstop_rt::Error>(())
    /// ```
    ///
    /// # Errors
    /// `keep` has not one entry for each dimension (`InvalidArgument`); ranks pass different ones, or call another
    /// collective (`Mismatch`); a member failed or finished.
    #[track_caller]
    pub fn sub(&self, keep: &[bool]) -> impl Future<Output = Result<Self>> + Send + use<> {
        let at = Location::caller();
        let (entries, dims) = (keep.len(), self.dims.len());
        let sentence = format!("`keep` has {entries} entries for {dims} dimensions");
        let wrong = (entries != dims).then(|| {
            let error = self.error_here("sub", ErrorKind::InvalidArgument(sentence));
            error.called_at(at)
        });
        let is_kept = |dim: usize| keep.get(dim).is_some_and(|&keep| keep);
        let number = |kept: bool| {
            let mine = (0..dims).filter(|&dim| is_kept(dim) == kept);
            mine.fold(0, |rank, dim| rank * self.dims[dim] + self.coords[dim])
        };
        let request = SplitRequest::new(Some(number(false)), number(true));
        let request = request.expect("ranks have fewer than 64 bits");
        let agreed = AgreedArguments {
            signature: sub_signature(keep),
            words: format!("keep {keep:?}"),
        };
        let made = self.split_as("sub", agreed, request);
        let kept: Vec<usize> = (0..dims).filter(|&dim| is_kept(dim)).collect();
        let dims: Vec<usize> = kept.iter().map(|&dim| self.dims[dim]).collect();
        let periodic = kept.iter().map(|&dim| self.periodic[dim]).collect();
        async move {
            // A rank with wrong arguments takes part too, because the others wait for it.
            let made = made.await;
            if let Some(error) = wrong {
                return Err(error);
            }
            let comm = made?.expect("a rank with a color gets a communicator");
            let coords = coords_of(comm.rank(), &dims);
            Ok(Self {
                comm,
                dims,
                periodic,
                coords,
            })
        }
    }

    fn neighbor(&self, dim: usize, by: Option<isize>) -> Option<usize> {
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

/// Returns the smallest possible largest dimension for a split of `size`. `of_rest` returns the same number
/// for the ranks that one dimension leaves to the others.
fn least_largest(divisors: &[usize], size: usize, of_rest: impl Fn(usize) -> usize) -> usize {
    let firsts = divisors.iter().filter(|&&first| size.is_multiple_of(first));
    let largest = firsts.map(|&first| first.max(of_rest(size / first)));
    largest.min().unwrap_or(size)
}

/// Returns the divisors of `n` in ascending order. Treats 0 as 1.
fn divisors(n: usize) -> Vec<usize> {
    let n = n.max(1);
    let low: Vec<_> = (1..=n.isqrt()).filter(|&d| n.is_multiple_of(d)).collect();
    let high = low.iter().rev().map(|&d| n / d).filter(|&d| d > n.isqrt());
    low.iter().copied().chain(high).collect()
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
    fn no_split_is_more_even() {
        assert_eq!(Cart::dims_for(72, 2), [9, 8]);
        assert_eq!(Cart::dims_for(288, 2), [18, 16]);
        for size in 1..=500 {
            assert_eq!(Cart::dims_for(size, 1), [size]);
            for n in 2..=4 {
                let best = splits(size, n, size).min();
                assert_eq!(Some(Cart::dims_for(size, n)), best, "{size} over {n}");
            }
        }
    }

    /// Returns all splits into non-increasing factors of at most `most`.
    fn splits(size: usize, n: usize, most: usize) -> Box<dyn Iterator<Item = Vec<usize>>> {
        if n == 0 {
            return Box::new((size == 1).then(Vec::new).into_iter());
        }
        let firsts = (1..=most).filter(move |&first| size.is_multiple_of(first));
        Box::new(firsts.flat_map(move |first| {
            let rests = splits(size / first, n - 1, first);
            rests.map(move |rest| [vec![first], rest].concat())
        }))
    }

    #[test]
    fn many_ranks_are_split_over_many_dimensions_at_once() {
        assert_eq!(Cart::dims_for(1 << 20, 20), [2; 20]);
        assert_eq!(Cart::dims_for(1 << 20, 3), [128, 128, 64]);
        // This number has 240 divisors, the maximum for numbers up to 2^20.
        assert_eq!(Cart::dims_for(720_720, 3), [91, 90, 88]);
        assert_eq!(Cart::dims_for(720_720, 10_000).len(), 10_000);
        assert_eq!(Cart::dims_for(1_048_573, 2), [1_048_573, 1]);
        assert_eq!(Cart::dims_for(0, 2), [1, 1]);
        assert_eq!(Cart::dims_for(6, 0), [0; 0]);
    }

    #[test]
    fn the_last_coordinate_varies_fastest() {
        assert_eq!(coords_of(5, &[2, 3]), [1, 2]);
        assert_eq!(coords_of(1, &[2, 3]), [0, 1]);
    }
}
