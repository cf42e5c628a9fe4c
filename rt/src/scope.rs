//! Scoped operations on borrowed buffers: the scope blocks its thread until all operations in it have ended.
//!
//! A future must not borrow a buffer: if the future is forgotten, the network goes on writing to memory that its owner
//! uses again. A function that returns only when no operation is in flight cannot be forgotten; [`std::thread::scope`]
//! is built on the same idea.
#![expect(
    unsafe_code,
    reason = "an operation owns its buffer; here it owns a pointer to what the scope keeps borrowed"
)]

use std::{
    fmt,
    marker::PhantomData,
    mem::{self, MaybeUninit},
    panic::{self, AssertUnwindSafe},
    process,
    ptr::NonNull,
    slice,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use crate::{
    buffer::{RecvBuf, SendBuf, Wire},
    comm::{Comm, RecvOp, SendOp, Source, Status, Tag},
    error::Result,
    executor,
    runtime_handle::RuntimeHandle,
};

/// Scope in which operations may borrow their buffers. Made by [`RuntimeHandle::scope`].
pub struct Scope<'s, 'env: 's> {
    ops: Mutex<Vec<Option<Box<dyn ScopedOp>>>>,
    // Invariant in both lifetimes, like `std::thread::Scope`: neither lifetime may be shortened or extended.
    scope: PhantomData<&'s mut &'s ()>,
    env: PhantomData<&'env mut &'env ()>,
}

/// An operation on a borrowed buffer. If the caller does not wait for it, the end of the scope does.
#[must_use = "`wait` gives its status; the end of the scope waits too, and panics when it failed"]
pub struct Pending<'s> {
    ops: &'s Mutex<Vec<Option<Box<dyn ScopedOp>>>>,
    nth: usize,
}

impl RuntimeHandle {
    /// Calls `f` with a scope in which sends and receives borrow their buffers without a copy. Returns when all these
    /// operations have ended.
    ///
    /// This call blocks the thread, and the runtime continues meanwhile. If `f` panics, the scope cancels its receives,
    /// and also the sends that their peers have not begun to receive.
    ///
    /// # Panics
    /// Panics if `f` panics, or if an operation failed on which the program did not call [`Pending::wait`].
    ///
    /// ```no_run
    /// # fn both(runtime: &ripstop_rt::Runtime) -> ripstop_rt::Result<()> {
    /// let world = runtime.world();
    /// let (other, mine) = (1 - world.rank(), [1.0f64; 4]);
    /// let mut theirs = [0.0f64; 4];
    /// runtime.scope(|s| {
    ///     let arrives = s.recv(&world, other, 7, &mut theirs);
    ///     let leaves = s.send(&world, other, 7, &mine);
    ///     leaves.wait()?;
    ///     arrives.wait()
    /// })?;
    /// # Ok(()) }
    /// ```
    pub fn scope<'env, R>(&self, f: impl for<'s> FnOnce(&'s Scope<'s, 'env>) -> R) -> R {
        let scope = Scope {
            ops: Mutex::default(),
            scope: PhantomData,
            env: PhantomData,
        };
        let result = panic::catch_unwind(AssertUnwindSafe(|| f(&scope)));
        let failure = scope.end(result.is_err());
        match (result, failure) {
            (Err(panic), _) => panic::resume_unwind(panic),
            (Ok(_), Err(error)) => {
                panic!("{error}; the scope ended without a `wait` for this operation")
            }
            (Ok(result), Ok(())) => result,
        }
    }
}

impl<'s> Scope<'s, '_> {
    /// Sends like [`Comm::send`], from elements that stay borrowed until the scope ends.
    ///
    /// ```no_run
    /// # fn faces(world: &ripstop_rt::Comm) -> ripstop_rt::Result<()> {
    /// let field = vec![0.5; 1000]; // stays here
    /// let (first, last) = (&field[..10], &field[990..]);
    /// world.scope(|s| {
    ///     let sends = [s.send(world, 1, 0, first), s.send(world, 2, 0, last)];
    ///     sends.into_iter().try_for_each(|send| send.wait().map(drop))
    /// })?;
    /// # Ok(()) }
    /// ```
    #[track_caller]
    pub fn send<T: Wire>(
        &'s self,
        comm: &Comm,
        to: impl Into<Option<usize>>,
        tag: u32,
        buf: &'s [T],
    ) -> Pending<'s> {
        let len = buf.len();
        // SAFETY: `buf` stays borrowed for as long as the scope, which ends after the operation; a send does not write.
        let lent = unsafe { BorrowedBuf::new(NonNull::from(buf)) };
        let status = Status {
            source: comm.rank(),
            tag,
            len,
        };
        self.keep(Box::new(ScopedSend {
            op: comm.send(to, tag, lent),
            comm: comm.clone(),
            status,
        }))
    }

    /// Receives like [`Comm::recv_into`], into elements that stay borrowed until the scope ends.
    ///
    /// ```no_run
    /// # fn ghosts(world: &ripstop_rt::Comm, field: &mut [f64]) -> ripstop_rt::Result<()> {
    /// let (low, rest) = field.split_at_mut(10);
    /// let high = rest.last_chunk_mut::<10>().expect("the field is longer");
    /// world.scope(|s| {
    ///     let receives = [s.recv(world, 1, 0, low), s.recv(world, 2, 0, high)];
    ///     receives.into_iter().try_for_each(|receive| receive.wait().map(drop))
    /// })?; // both are filled
    /// # Ok(()) }
    /// ```
    #[track_caller]
    pub fn recv<T: Wire>(
        &'s self,
        comm: &Comm,
        from: impl Into<Source>,
        tag: impl Into<Tag>,
        buf: &'s mut [T],
    ) -> Pending<'s> {
        // SAFETY: `buf` stays exclusively borrowed for as long as the scope, which ends after the operation.
        let lent = unsafe { BorrowedBuf::new(NonNull::from(buf)) };
        self.keep(Box::new(ScopedRecv {
            op: comm.recv_into(from, tag, lent),
            comm: comm.clone(),
        }))
    }

    fn keep(&'s self, op: Box<dyn ScopedOp>) -> Pending<'s> {
        let mut ops = self.ops.lock().unwrap_or_else(PoisonError::into_inner);
        ops.push(Some(op));
        Pending {
            ops: &self.ops,
            nth: ops.len() - 1,
        }
    }

    /// Waits for all operations that the program has not waited for, and returns the first failure among them.
    ///
    /// `at_once` cancels what can still be canceled.
    fn end(&self, at_once: bool) -> Result<()> {
        let ops = mem::take(&mut *self.ops.lock().unwrap_or_else(PoisonError::into_inner));
        let mut ops: Vec<_> = ops.into_iter().flatten().collect();
        let stays = UnwindAbort;
        if at_once {
            ops = ops.into_iter().map(|op| op.hurry()).collect();
        }
        let ends: Vec<_> = ops.into_iter().map(|op| op.wait()).collect();
        mem::forget(stays);
        ends.into_iter().try_for_each(|end| end.map(drop))
    }
}

impl Pending<'_> {
    /// Blocks until the operation has ended. The status of a send names this rank as the source.
    ///
    /// # Errors
    /// The errors of the operation's future.
    pub fn wait(self) -> Result<Status> {
        let mut ops = self.ops.lock().unwrap_or_else(PoisonError::into_inner);
        let op = ops[self.nth].take().expect("waited for once");
        drop(ops);
        let stays = UnwindAbort;
        let end = op.wait();
        mem::forget(stays);
        end
    }
}

/// Guard that aborts the process if a wait unwinds.
///
/// Unwinding would return a buffer to its owner while the network still writes to it. No wait panics unless the runtime
/// has a bug, and then aborting is the only way left to keep the promise.
struct UnwindAbort;

impl Drop for UnwindAbort {
    fn drop(&mut self) {
        process::abort();
    }
}

/// A pending operation of any element type.
trait ScopedOp: Send {
    /// Makes the operation end soon, with success or with an error.
    fn hurry(self: Box<Self>) -> Box<dyn ScopedOp>;
    /// Blocks until the operation has ended.
    fn wait(self: Box<Self>) -> Result<Status>;
}

struct ScopedSend<T: Wire> {
    op: SendOp<BorrowedBuf<T>>,
    comm: Comm,
    status: Status,
}

struct ScopedRecv<T: Wire> {
    op: RecvOp<BorrowedBuf<T>>,
    comm: Comm,
}

impl<T: Wire> ScopedOp for ScopedSend<T> {
    fn hurry(mut self: Box<Self>) -> Box<dyn ScopedOp> {
        self.op = self.op.timeout(Duration::ZERO);
        self
    }

    fn wait(self: Box<Self>) -> Result<Status> {
        executor::block_on(self.comm.shared(), self.op)?;
        Ok(self.status)
    }
}

impl<T: Wire> ScopedOp for ScopedRecv<T> {
    fn hurry(mut self: Box<Self>) -> Box<dyn ScopedOp> {
        self.op = self.op.timeout(Duration::ZERO);
        self
    }

    fn wait(self: Box<Self>) -> Result<Status> {
        let (_, status) = executor::block_on(self.comm.shared(), self.op)?;
        Ok(status)
    }
}

/// Pointer to borrowed elements, in the form of a buffer that an operation owns.
struct BorrowedBuf<T> {
    elems: NonNull<[T]>,
}

impl<T: Wire> BorrowedBuf<T> {
    /// # Safety
    /// Until the operation that owns this buffer has ended, the elements stay at their address and are not written by
    /// other code. If the operation is a receive, other code does not read them either.
    unsafe fn new(elems: NonNull<[T]>) -> Self {
        Self { elems }
    }
}

// SAFETY: this type stands for a `&[T]` or `&mut [T]`, which may be sent to other threads because `T` is `Send` and
// `Sync`.
unsafe impl<T: Wire> Send for BorrowedBuf<T> {}

impl<T: Wire> SendBuf for BorrowedBuf<T> {
    type Elem = T;

    fn elems(&self) -> &[T] {
        // SAFETY: the caller of `new` promised that the elements stay there and are not written by other code.
        unsafe { self.elems.as_ref() }
    }
}

// SAFETY: `spare` always returns the same borrowed memory.
unsafe impl<T: Wire> RecvBuf for BorrowedBuf<T> {
    unsafe fn spare(&mut self) -> &mut [MaybeUninit<T>] {
        let (start, len) = (self.elems.cast().as_ptr(), self.elems.len());
        // SAFETY: the caller of `new` promised for a receive that no other code uses the elements, and the caller of
        // `spare` leaves every element initialized.
        unsafe { slice::from_raw_parts_mut(start, len) }
    }

    unsafe fn set_filled(&mut self, _: usize) {}
}

impl fmt::Debug for Scope<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scope").finish_non_exhaustive()
    }
}

impl fmt::Debug for Pending<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending").finish_non_exhaustive()
    }
}
