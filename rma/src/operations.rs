//! What an epoch allows: the same operations on all kinds of epochs.

/// The operations, as methods of an epoch that has a `port` and finds a `target`.
macro_rules! operations {
    ($epoch:ident) => {
        /// What the epoch allows. Each operation starts when it is called; the buffer comes back with its future.
        impl<T: Wire> $epoch<'_, T> {
            /// Writes `buf` to the memory of `rank`, from its element `at` on.
            ///
            /// # Errors
            /// Of the future: a rank that this epoch does not access, elements that the target does not have, a target that
            /// failed or finished. All carry the buffer.
            #[inline]
            pub fn put<B: ripstop_rt::buffer::SendBuf<Elem = T>>(
                &self,
                rank: usize,
                at: usize,
                buf: B,
            ) -> $crate::RemoteOp<B> {
                match self.target("put", rank) {
                    Ok(target) => self.port.put(&target, at, buf),
                    Err(error) => $crate::RemoteOp::failed(ripstop_rt::OpError { error, buf }),
                }
            }

            /// Fills `buf` from the memory of `rank`, from its element `at` on. An empty vector is filled to its capacity.
            ///
            /// # Errors
            /// As [`put`](Self::put).
            #[inline]
            pub fn get<B: ripstop_rt::buffer::RecvBuf<Elem = T>>(
                &self,
                rank: usize,
                at: usize,
                buf: B,
            ) -> $crate::RemoteOp<B> {
                match self.target("get", rank) {
                    Ok(target) => self.port.get(&target, at, buf),
                    Err(error) => $crate::RemoteOp::failed(ripstop_rt::OpError { error, buf }),
                }
            }
        }
    };
}

pub(crate) use operations;
