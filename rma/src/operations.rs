//! The operations that an epoch allows, the same on all kinds of epochs.

use std::ops::Range;

use ripstop_rt::{
    Result,
    buffer::{NestedLayout, Wire},
    internal::onesided::{WindowEnd, WindowTarget},
};

/// Returns the blocks of a layout in the memory of `target`, in order, for a buffer of `len` elements. The
/// checks bound the time and memory of a wrong call.
pub(crate) fn blocks<T: Wire>(
    window_end: &WindowEnd<T>,
    op: &'static str,
    target: &WindowTarget,
    layout: &NestedLayout,
    len: usize,
) -> Result<Vec<Range<usize>>> {
    // The end of a layout is `usize::MAX` if no memory has all its elements.
    let has = target.elements(size_of::<T>()).min(usize::MAX - 1);
    let (all, rank) = (layout.len(), target.rank);
    let sentence = if all != len {
        format!("`layout` has {all} elements and `buf` has {len}: they must agree")
    } else if layout.overlaps() {
        format!(
            "`layout` is {layout:?}, in which blocks overlap: make each stride at least the extent of what it repeats"
        )
    } else if layout.end() > has {
        format!("`layout` is {layout:?}, which leaves the {has} elements of rank {rank}")
    } else {
        return Ok(layout.ranges());
    };
    let mut error = window_end.refusal(op, sentence);
    error.peer = Some(rank);
    Err(error)
}

/// Implements the operations as methods of an epoch that has a `window_end` and lends a `target`.
macro_rules! operations {
    ($epoch:ident) => {
        /// Puts and gets. Each starts when it is called; its future returns the buffer.
        impl<T: Wire> $epoch<'_, T> {
            /// Writes `buf` to the memory of `rank`, from its element `at` on.
            ///
            /// Output: `Result<B, OpError<B>>`.
            ///
            /// ```
            /// # use ripstop_rma::Window;
            /// # let runtime = ripstop_rt::Runtime::init()?;
            /// # let world = runtime.world();
            /// # runtime.block_on(async {
            /// let mut window = Window::<f64>::allocate(&world, 4).await?;
            /// let epoch = window.fence().await?;
            /// let buf = epoch.put(0, 2, vec![1.5, 2.5]).await?; // the buffer is free again
            /// assert_eq!(buf, [1.5, 2.5]);
            /// assert_eq!(epoch.end().await?[..], [0.0, 0.0, 1.5, 2.5]); // and now the target has the data
            /// # Ok::<(), ripstop_rt::Error>(()) })?;
            /// # Ok::<(), ripstop_rt::Error>(())
            /// ```
            ///
            /// # Errors
            /// The future fails for a rank that this epoch does not access, elements that the target does not have, and a
            /// target that failed or finished. Each error carries the buffer.
            #[inline]
            #[track_caller]
            pub fn put<B: ripstop_rt::buffer::SendBuf<Elem = T>>(
                &self,
                rank: usize,
                at: usize,
                buf: B,
            ) -> $crate::RemoteOp<B> {
                match self.target("put", rank) {
                    Ok(target) => self.window_end().put(target, at, buf),
                    Err(error) => {
                        ripstop_rt::internal::failed_op(ripstop_rt::OpError { error, buf })
                    }
                }
            }

            /// Fills `buf` from the memory of `rank`, from its element `at` on. An empty vector is filled to its capacity.
            ///
            /// Output: `Result<B, OpError<B>>`.
            ///
            /// ```
            /// # use ripstop_rma::Window;
            /// # let runtime = ripstop_rt::Runtime::init()?;
            /// # let world = runtime.world();
            /// # runtime.block_on(async {
            /// let mut window = Window::from_vec(&world, vec![5, 6, 7]).await?;
            /// let epoch = window.fence().await?;
            /// let last_two = epoch.get(0, 1, [0; 2]).await?;
            /// assert_eq!(last_two, [6, 7]);
            /// # Ok::<(), ripstop_rt::Error>(()) })?;
            /// # Ok::<(), ripstop_rt::Error>(())
            /// ```
            ///
            /// # Errors
            /// Returns the errors of [`put`](Self::put).
            #[inline]
            #[track_caller]
            pub fn get<B: ripstop_rt::buffer::RecvBuf<Elem = T>>(
                &self,
                rank: usize,
                at: usize,
                buf: B,
            ) -> $crate::RemoteOp<B> {
                match self.target("get", rank) {
                    Ok(target) => self.window_end().get(target, at, buf),
                    Err(error) => {
                        ripstop_rt::internal::failed_op(ripstop_rt::OpError { error, buf })
                    }
                }
            }

            /// Writes `buf` to the elements of a layout in the memory of `rank`, for example a column of a matrix or a face of
            /// an array. Use [`BufExt::strided`](ripstop_rt::buffer::BufExt::strided) for a buffer whose elements lie at a
            /// distance on this side.
            ///
            /// ```
            /// # use ripstop_rma::Window;
            /// # use ripstop_rt::buffer::Layout;
            /// # let runtime = ripstop_rt::Runtime::init()?;
            /// # let world = runtime.world();
            /// # runtime.block_on(async {
            /// let mut window = Window::<f64>::allocate(&world, 12).await?;
            /// let epoch = window.fence().await?;
            /// let column = Layout { offset: 1, block: 1, stride: 4, count: 3 }; // of 3 rows of 4
            /// epoch.put_strided(0, column, [7.0, 8.0, 9.0]).await?;
            /// let elements = epoch.end().await?;
            /// assert_eq!(elements[..6], [0.0, 7.0, 0.0, 0.0, 0.0, 8.0]);
            /// # Ok::<(), ripstop_rt::Error>(()) })?;
            /// # Ok::<(), ripstop_rt::Error>(())
            /// ```
            ///
            /// # Errors
            /// Returns the errors of [`put`](Self::put); and a layout with more or fewer elements than `buf`, or whose blocks
            /// overlap.
            #[track_caller]
            pub fn put_strided<B: ripstop_rt::buffer::SendBuf<Elem = T>>(
                &self,
                rank: usize,
                layout: impl Into<ripstop_rt::buffer::NestedLayout>,
                buf: B,
            ) -> $crate::RemoteOp<B> {
                if buf.fault().is_some() {
                    return self.put_indexed(rank, &[], buf); // which says what is wrong with the buffer
                }
                let (layout, len) = (layout.into(), buf.elems().len());
                let blocks = self.target("put", rank).and_then(|target| {
                    $crate::operations::blocks(self.window_end(), "put", target, &layout, len)
                });
                match blocks {
                    Ok(blocks) => self.put_indexed(rank, &blocks, buf),
                    Err(error) => {
                        ripstop_rt::internal::failed_op(ripstop_rt::OpError { error, buf })
                    }
                }
            }

            /// Fills `buf` from the elements of a layout in the memory of `rank`.
            ///
            /// Output: `Result<B, OpError<B>>`.
            ///
            /// ```
            /// # use ripstop_rma::Window;
            /// # use ripstop_rt::buffer::Layout;
            /// # let runtime = ripstop_rt::Runtime::init()?;
            /// # let world = runtime.world();
            /// # runtime.block_on(async {
            /// let mut window = Window::from_vec(&world, (0..12).collect()).await?;
            /// let epoch = window.fence().await?;
            /// let column = Layout { offset: 1, block: 1, stride: 4, count: 3 }; // of 3 rows of 4
            /// assert_eq!(epoch.get_strided(0, column, [0; 3]).await?, [1, 5, 9]);
            /// # Ok::<(), ripstop_rt::Error>(()) })?;
            /// # Ok::<(), ripstop_rt::Error>(())
            /// ```
            ///
            /// # Errors
            /// Returns the errors of [`put_strided`](Self::put_strided).
            #[track_caller]
            pub fn get_strided<B: ripstop_rt::buffer::RecvBuf<Elem = T>>(
                &self,
                rank: usize,
                layout: impl Into<ripstop_rt::buffer::NestedLayout>,
                mut buf: B,
            ) -> $crate::RemoteOp<B> {
                if buf.fault().is_some() {
                    return self.get_indexed(rank, &[], buf); // which says what is wrong with the buffer
                }
                let (layout, len) = (layout.into(), ripstop_rt::internal::room(&mut buf));
                let blocks = self.target("get", rank).and_then(|target| {
                    $crate::operations::blocks(self.window_end(), "get", target, &layout, len)
                });
                match blocks {
                    Ok(blocks) => self.get_indexed(rank, &blocks, buf),
                    Err(error) => {
                        ripstop_rt::internal::failed_op(ripstop_rt::OpError { error, buf })
                    }
                }
            }

            /// Writes `buf`, one block after the other, to these ranges of the elements of `rank`.
            ///
            /// ```
            /// # use ripstop_rma::Window;
            /// # let runtime = ripstop_rt::Runtime::init()?;
            /// # let world = runtime.world();
            /// # runtime.block_on(async {
            /// let mut window = Window::<f64>::allocate(&world, 12).await?;
            /// let epoch = window.fence().await?;
            /// epoch.put_indexed(0, &[10..12, 0..1], [4.0, 5.0, 6.0]).await?;
            /// let elements = epoch.end().await?;
            /// assert_eq!((elements[0], &elements[10..]), (6.0, &[4.0, 5.0][..]));
            /// # Ok::<(), ripstop_rt::Error>(()) })?;
            /// # Ok::<(), ripstop_rt::Error>(())
            /// ```
            ///
            /// # Errors
            /// Returns the errors of [`put`](Self::put); and blocks that together are longer or shorter than `buf`.
            #[track_caller]
            pub fn put_indexed<B: ripstop_rt::buffer::SendBuf<Elem = T>>(
                &self,
                rank: usize,
                blocks: &[std::ops::Range<usize>],
                buf: B,
            ) -> $crate::RemoteOp<B> {
                match self.target("put", rank) {
                    Ok(target) => self.window_end().put_blocks(target, blocks, buf),
                    Err(error) => {
                        ripstop_rt::internal::failed_op(ripstop_rt::OpError { error, buf })
                    }
                }
            }

            /// Fills `buf`, one block after the other, from these ranges of the elements of `rank`.
            ///
            /// Output: `Result<B, OpError<B>>`.
            ///
            /// ```
            /// # use ripstop_rma::Window;
            /// # let runtime = ripstop_rt::Runtime::init()?;
            /// # let world = runtime.world();
            /// # runtime.block_on(async {
            /// let mut window = Window::from_vec(&world, (0..12).collect()).await?;
            /// let epoch = window.fence().await?;
            /// assert_eq!(epoch.get_indexed(0, &[10..12, 0..1], [0; 3]).await?, [10, 11, 0]);
            /// # Ok::<(), ripstop_rt::Error>(()) })?;
            /// # Ok::<(), ripstop_rt::Error>(())
            /// ```
            ///
            /// # Errors
            /// Returns the errors of [`put_indexed`](Self::put_indexed).
            #[track_caller]
            pub fn get_indexed<B: ripstop_rt::buffer::RecvBuf<Elem = T>>(
                &self,
                rank: usize,
                blocks: &[std::ops::Range<usize>],
                buf: B,
            ) -> $crate::RemoteOp<B> {
                match self.target("get", rank) {
                    Ok(target) => self.window_end().get_blocks(target, blocks, buf),
                    Err(error) => {
                        ripstop_rt::internal::failed_op(ripstop_rt::OpError { error, buf })
                    }
                }
            }
        }

        /// Atomic updates of numbers. Each element is updated atomically.
        impl<T: $crate::Element> $epoch<'_, T> {
            /// Combines each element of `buf` with one of `rank`, from its element `at` on.
            ///
            /// The operators are those of reductions: `Sum`, `Product`, `Min` and `Max`, for integers also `BitAnd`, `BitOr` and
            /// `BitXor`, and for elements of type [`Located`](ripstop_rt::Located) `MinLoc` and `MaxLoc` instead. Besides,
            /// [`Replace`]($crate::Replace) writes atomically, and [`NoOp`]($crate::NoOp) changes nothing.
            /// [`Element`]($crate::Element) says which types are updated where.
            ///
            /// O(elements). Ranks that map the memory agree on one of two ways at its first update, if the window has
            /// allocated it: if that has fewer than 16 elements, every update of each element is an atomic instruction, and
            /// otherwise every update takes a lock and combines all its elements by vector instructions. So keep counters and
            /// long vectors in different windows.
            ///
            /// ```
            /// # use ripstop_rma::Window;
            /// # use ripstop_rt::Sum;
            /// # let runtime = ripstop_rt::Runtime::init()?;
            /// # let world = runtime.world();
            /// # runtime.block_on(async {
            /// let mut window = Window::<u64>::allocate(&world, 2).await?;
            /// let epoch = window.fence().await?;
            /// epoch.accumulate(0, 0, [1, 2], Sum).await?;
            /// epoch.accumulate(0, 0, [1, 2], Sum).await?;
            /// assert_eq!(epoch.end().await?[..], [2, 4]);
            /// # Ok::<(), ripstop_rt::Error>(()) })?;
            /// # Ok::<(), ripstop_rt::Error>(())
            /// ```
            ///
            /// # Errors
            /// Returns the errors of [`put`](Self::put); and a bitwise combination of floating-point numbers.
            #[track_caller]
            pub fn accumulate<B: ripstop_rt::buffer::SendBuf<Elem = T>>(
                &self,
                rank: usize,
                at: usize,
                buf: B,
                combine: impl Into<$crate::Combine>,
            ) -> $crate::RemoteOp<B> {
                match self.target("accumulate", rank) {
                    Ok(target) => self
                        .window_end()
                        .accumulate(target, at, buf, combine.into()),
                    Err(error) => {
                        ripstop_rt::internal::failed_op(ripstop_rt::OpError { error, buf })
                    }
                }
            }

            /// Like [`accumulate`](Self::accumulate); `buf` returns with the earlier elements of `rank`.
            ///
            /// ```
            /// # use ripstop_rma::Window;
            /// # use ripstop_rt::Max;
            /// # let runtime = ripstop_rt::Runtime::init()?;
            /// # let world = runtime.world();
            /// # runtime.block_on(async {
            /// let mut window = Window::<u64>::allocate(&world, 2).await?;
            /// let epoch = window.fence().await?;
            /// epoch.put(0, 0, [3, 9]).await?;
            /// let before = epoch.get_accumulate(0, 0, [5, 5], Max).await?;
            /// assert_eq!(before, [3, 9]);
            /// assert_eq!(epoch.end().await?[..], [5, 9]);
            /// # Ok::<(), ripstop_rt::Error>(()) })?;
            /// # Ok::<(), ripstop_rt::Error>(())
            /// ```
            ///
            /// # Errors
            /// Returns the errors of [`accumulate`](Self::accumulate).
            #[track_caller]
            pub fn get_accumulate<B: ripstop_rt::buffer::RecvBuf<Elem = T>>(
                &self,
                rank: usize,
                at: usize,
                buf: B,
                combine: impl Into<$crate::Combine>,
            ) -> $crate::RemoteOp<B> {
                match self.target("get_accumulate", rank) {
                    Ok(target) => self
                        .window_end()
                        .get_accumulate(target, at, buf, combine.into()),
                    Err(error) => {
                        ripstop_rt::internal::failed_op(ripstop_rt::OpError { error, buf })
                    }
                }
            }

            /// Combines each element of `buf` with one of the elements of a layout in the memory of `rank`, for example a face
            /// of an array. The operators are those of [`accumulate`](Self::accumulate).
            ///
            /// ```
            /// # use ripstop_rma::Window;
            /// # use ripstop_rt::{Sum, buffer::Layout};
            /// # let runtime = ripstop_rt::Runtime::init()?;
            /// # let world = runtime.world();
            /// # runtime.block_on(async {
            /// let mut window = Window::<f64>::allocate(&world, 12).await?;
            /// let epoch = window.fence().await?;
            /// let column = Layout { offset: 1, block: 1, stride: 4, count: 3 }; // of 3 rows of 4
            /// epoch.accumulate_strided(0, column, [7.0, 8.0, 9.0], Sum).await?;
            /// epoch.accumulate_strided(0, column, [0.5, 0.5, 0.5], Sum).await?;
            /// let elements = epoch.end().await?;
            /// assert_eq!(elements[..6], [0.0, 7.5, 0.0, 0.0, 0.0, 8.5]);
            /// # Ok::<(), ripstop_rt::Error>(()) })?;
            /// # Ok::<(), ripstop_rt::Error>(())
            /// ```
            ///
            /// # Errors
            /// Returns the errors of [`accumulate`](Self::accumulate) and of [`put_strided`](Self::put_strided).
            #[track_caller]
            pub fn accumulate_strided<B: ripstop_rt::buffer::SendBuf<Elem = T>>(
                &self,
                rank: usize,
                layout: impl Into<ripstop_rt::buffer::NestedLayout>,
                buf: B,
                combine: impl Into<$crate::Combine>,
            ) -> $crate::RemoteOp<B> {
                if buf.fault().is_some() {
                    return self.accumulate(rank, 0, buf, combine); // which says what is wrong with the buffer
                }
                let (layout, len) = (layout.into(), buf.elems().len());
                let op = "accumulate";
                let target = self.target(op, rank).and_then(|target| {
                    let blocks =
                        $crate::operations::blocks(self.window_end(), op, target, &layout, len)?;
                    Ok((target, blocks))
                });
                match target {
                    Ok((target, blocks)) => {
                        let end = self.window_end();
                        end.accumulate_blocks(target, &blocks, buf, combine.into())
                    }
                    Err(error) => {
                        ripstop_rt::internal::failed_op(ripstop_rt::OpError { error, buf })
                    }
                }
            }

            /// Like [`accumulate_strided`](Self::accumulate_strided); `buf` returns with the earlier elements of `rank`.
            ///
            /// Output: `Result<B, OpError<B>>`.
            ///
            /// ```
            /// # use ripstop_rma::Window;
            /// # use ripstop_rt::{Sum, buffer::Layout};
            /// # let runtime = ripstop_rt::Runtime::init()?;
            /// # let world = runtime.world();
            /// # runtime.block_on(async {
            /// let mut window = Window::from_vec(&world, (0..12).collect()).await?;
            /// let epoch = window.fence().await?;
            /// let column = Layout { offset: 1, block: 1, stride: 4, count: 3 }; // of 3 rows of 4
            /// let before = epoch.get_accumulate_strided(0, column, [100; 3], Sum).await?;
            /// assert_eq!(before, [1, 5, 9]);
            /// assert_eq!(epoch.end().await?[..6], [0, 101, 2, 3, 4, 105]);
            /// # Ok::<(), ripstop_rt::Error>(()) })?;
            /// # Ok::<(), ripstop_rt::Error>(())
            /// ```
            ///
            /// # Errors
            /// Returns the errors of [`accumulate_strided`](Self::accumulate_strided).
            #[track_caller]
            pub fn get_accumulate_strided<B: ripstop_rt::buffer::RecvBuf<Elem = T>>(
                &self,
                rank: usize,
                layout: impl Into<ripstop_rt::buffer::NestedLayout>,
                buf: B,
                combine: impl Into<$crate::Combine>,
            ) -> $crate::RemoteOp<B> {
                if buf.fault().is_some() {
                    return self.get_accumulate(rank, 0, buf, combine); // which says what is wrong with the buffer
                }
                let (layout, len) = (layout.into(), buf.elems().len());
                let op = "get_accumulate";
                let target = self.target(op, rank).and_then(|target| {
                    let blocks =
                        $crate::operations::blocks(self.window_end(), op, target, &layout, len)?;
                    Ok((target, blocks))
                });
                match target {
                    Ok((target, blocks)) => {
                        let end = self.window_end();
                        end.get_accumulate_blocks(target, &blocks, buf, combine.into())
                    }
                    Err(error) => {
                        ripstop_rt::internal::failed_op(ripstop_rt::OpError { error, buf })
                    }
                }
            }

            /// Adds to one element of `rank`, and returns its earlier value.
            ///
            /// ```
            /// # use ripstop_rma::Window;
            /// # let runtime = ripstop_rt::Runtime::init()?;
            /// # let world = runtime.world();
            /// # runtime.block_on(async {
            /// let mut window = Window::<u64>::allocate(&world, 2).await?;
            /// let epoch = window.fence().await?;
            /// let ticket = epoch.fetch_add(0, 0, 1).await?;
            /// assert_eq!((ticket, epoch.fetch_add(0, 0, 1).await?), (0, 1));
            /// # Ok::<(), ripstop_rt::Error>(()) })?;
            /// # Ok::<(), ripstop_rt::Error>(())
            /// ```
            ///
            /// # Errors
            /// Returns the errors of [`put`](Self::put).
            #[inline]
            #[track_caller]
            pub fn fetch_add(&self, rank: usize, at: usize, value: T) -> $crate::Fetching<T> {
                self.fetch_op(rank, at, value, $crate::Combine::Sum)
            }

            /// Combines one element of `rank` with `value`, and returns its earlier value.
            ///
            /// Output: `Result<T>`.
            ///
            /// ```
            /// # use ripstop_rma::Window;
            /// # use ripstop_rma::NoOp;
            /// # use ripstop_rt::Max;
            /// # let runtime = ripstop_rt::Runtime::init()?;
            /// # let world = runtime.world();
            /// # runtime.block_on(async {
            /// let mut window = Window::<u64>::allocate(&world, 1).await?;
            /// let epoch = window.fence().await?;
            /// assert_eq!(epoch.fetch_op(0, 0, 7, Max).await?, 0); // it was 0, and is 7
            /// assert_eq!(epoch.fetch_op(0, 0, 0, NoOp).await?, 7); // an atomic read
            /// # Ok::<(), ripstop_rt::Error>(()) })?;
            /// # Ok::<(), ripstop_rt::Error>(())
            /// ```
            ///
            /// # Errors
            /// Returns the errors of [`accumulate`](Self::accumulate).
            #[inline]
            #[track_caller]
            pub fn fetch_op(
                &self,
                rank: usize,
                at: usize,
                value: T,
                combine: impl Into<$crate::Combine>,
            ) -> $crate::Fetching<T> {
                match self.target("fetch_op", rank) {
                    Ok(target) => self
                        .window_end()
                        .fetch_op(target, at, value, combine.into()),
                    Err(error) => ripstop_rt::internal::failed_fetch(error),
                }
            }

            /// Writes `new` to one element of `rank` if its bits equal those of `expected`; returns its earlier value.
            ///
            /// ```
            /// # use ripstop_rma::Window;
            /// # let runtime = ripstop_rt::Runtime::init()?;
            /// # let world = runtime.world();
            /// # runtime.block_on(async {
            /// let mut window = Window::<u64>::allocate(&world, 2).await?;
            /// let epoch = window.fence().await?;
            /// assert_eq!(epoch.compare_exchange(0, 0, 0, 5).await?, 0); // it was 0, and is 5
            /// assert_eq!(epoch.compare_exchange(0, 0, 0, 6).await?, 5); // it is 5 still
            /// # Ok::<(), ripstop_rt::Error>(()) })?;
            /// # Ok::<(), ripstop_rt::Error>(())
            /// ```
            ///
            /// # Errors
            /// Returns the errors of [`put`](Self::put).
            #[inline]
            #[track_caller]
            pub fn compare_exchange(
                &self,
                rank: usize,
                at: usize,
                expected: T,
                new: T,
            ) -> $crate::Fetching<T> {
                match self.target("compare_exchange", rank) {
                    Ok(target) => self
                        .window_end()
                        .compare_exchange(target, at, expected, new),
                    Err(error) => ripstop_rt::internal::failed_fetch(error),
                }
            }
        }
    };
}

pub(crate) use operations;
