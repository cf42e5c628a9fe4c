//! The operations that an epoch allows, the same on all kinds of epochs.

use std::{iter, ops::Range};

use ripstop_rt::buffer::NestedLayout;

/// Returns the blocks of a layout, in order, for a buffer of `len` elements. If `len` does not fit the layout, returns one
/// block of the layout's whole length, which is refused for that. This bounds the time and memory of a wrong call.
pub(crate) fn blocks(layout: &NestedLayout, len: usize) -> Vec<Range<usize>> {
    let all = layout.len();
    if all != len || all == 0 {
        return iter::once(0..all).collect();
    }
    if layout.end() == usize::MAX {
        return iter::once(usize::MAX - all..usize::MAX).collect();
    }
    layout.ranges()
}

/// Implements the operations as methods of an epoch that has a `window_end` and lends a `target`.
macro_rules! operations {
    ($epoch:ident) => {
        /// Puts and gets. Each starts when it is called; its future returns the buffer.
        impl<T: Wire> $epoch<'_, T> {
            /// Writes `buf` to the memory of `rank`, from its element `at` on.
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
            /// # Errors
            /// Returns the errors of [`put`](Self::put); and a layout with more or fewer elements than `buf`.
            #[track_caller]
            pub fn put_strided<B: ripstop_rt::buffer::SendBuf<Elem = T>>(
                &self,
                rank: usize,
                layout: impl Into<ripstop_rt::buffer::NestedLayout>,
                buf: B,
            ) -> $crate::RemoteOp<B> {
                let blocks = $crate::operations::blocks(&layout.into(), buf.elems().len());
                self.put_indexed(rank, &blocks, buf)
            }

            /// Fills `buf` from the elements of a layout in the memory of `rank`.
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
                let blocks = $crate::operations::blocks(
                    &layout.into(),
                    ripstop_rt::internal::room(&mut buf),
                );
                self.get_indexed(rank, &blocks, buf)
            }

            /// Writes `buf`, one block after the other, to these ranges of the elements of `rank`.
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
            /// The operators are those of reductions: `Sum`, `Product`, `Min` and `Max`, and for integers `BitAnd`, `BitOr` and
            /// `BitXor`. Besides, [`Replace`]($crate::Replace) writes atomically, and [`NoOp`]($crate::NoOp) changes nothing.
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

            /// Adds to one element of `rank`, and returns its earlier value.
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
