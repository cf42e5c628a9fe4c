//! Borrowed buffers, where a thread blocks until all operations on them have ended.
//!
//! A future cannot borrow safely: it can be forgotten, and the fabric would go on writing to memory that its owner has back.
//! A function that returns only when nothing is under way cannot be forgotten, as [`std::thread::scope`] shows.
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
    runtime::Runtime,
};

/// Where operations may borrow. Made by [`Runtime::scope`].
pub struct Scope<'s, 'env: 's> {
    ops: Mutex<Vec<Option<Box<dyn Ending>>>>,
    // Invariant in both, as the scopes of threads are: neither lifetime may be shortened or stretched.
    scope: PhantomData<&'s mut &'s ()>,
    env: PhantomData<&'env mut &'env ()>,
}

/// An operation on a borrowed buffer. Who does not wait for it leaves that to the end of the scope.
#[must_use = "`wait` gives its status; the end of the scope waits too, and panics when it failed"]
pub struct Pending<'s> {
    ops: &'s Mutex<Vec<Option<Box<dyn Ending>>>>,
    nth: usize,
}

impl Runtime {
    /// Calls `f` with a scope in which sends and receives borrow their buffers, without a copy, and returns when all of them
    /// have ended.
    ///
    /// It blocks this thread; the runtime goes on meanwhile. When `f` panics, receives are taken back and sends that nobody has
    /// begun to receive are too.
    ///
    /// # Panics
    /// When `f` does, or when an operation failed that nobody called [`Pending::wait`] for.
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
            (Ok(_), Err(error)) => panic!("{error}; nobody waited for it in the scope"),
            (Ok(result), Ok(())) => result,
        }
    }
}

impl<'s> Scope<'s, '_> {
    /// As [`Comm::send`], from elements that stay borrowed until the scope ends.
    #[track_caller]
    pub fn send<T: Wire>(&'s self, comm: &Comm, to: usize, tag: u32, buf: &'s [T]) -> Pending<'s> {
        let len = buf.len();
        // SAFETY: `buf` stays borrowed for as long as the scope, which ends after the operation; a send does not write.
        let lent = unsafe { Lent::new(NonNull::from(buf)) };
        let status = Status {
            source: comm.rank(),
            tag,
            len,
        };
        self.keep(Box::new(Sending {
            op: comm.send(to, tag, lent),
            comm: comm.clone(),
            status,
        }))
    }

    /// As [`Comm::recv_into`], into elements that stay borrowed until the scope ends.
    #[track_caller]
    pub fn recv<T: Wire>(
        &'s self,
        comm: &Comm,
        from: impl Into<Source>,
        tag: impl Into<Tag>,
        buf: &'s mut [T],
    ) -> Pending<'s> {
        // SAFETY: `buf` stays borrowed for as long as the scope, which ends after the operation, and by nobody else.
        let lent = unsafe { Lent::new(NonNull::from(buf)) };
        self.keep(Box::new(Receiving {
            op: comm.recv_into(from, tag, lent),
            comm: comm.clone(),
        }))
    }

    fn keep(&'s self, op: Box<dyn Ending>) -> Pending<'s> {
        let mut ops = self.ops.lock().unwrap_or_else(PoisonError::into_inner);
        ops.push(Some(op));
        Pending {
            ops: &self.ops,
            nth: ops.len() - 1,
        }
    }

    /// The first failure of what nobody has waited for.
    fn end(&self, at_once: bool) -> Result<()> {
        let ops = mem::take(&mut *self.ops.lock().unwrap_or_else(PoisonError::into_inner));
        let mut ops: Vec<_> = ops.into_iter().flatten().collect();
        let stays = Stays;
        if at_once {
            ops = ops.into_iter().map(|op| op.hurry()).collect();
        }
        let ends: Vec<_> = ops.into_iter().map(|op| op.wait()).collect();
        mem::forget(stays);
        ends.into_iter().try_for_each(|end| end.map(drop))
    }
}

impl Pending<'_> {
    /// Blocks until the operation has ended. A send's status names this rank as the source.
    ///
    /// # Errors
    /// As the operation's future.
    pub fn wait(self) -> Result<Status> {
        let mut ops = self.ops.lock().unwrap_or_else(PoisonError::into_inner);
        let op = ops[self.nth].take().expect("waited for once");
        drop(ops);
        let stays = Stays;
        let end = op.wait();
        mem::forget(stays);
        end
    }
}

/// Unwinding from a wait would give a buffer back that the fabric still writes to. No wait panics; if one does, that is a
/// mistake in the runtime, and this is the only way left to keep the promise.
struct Stays;

impl Drop for Stays {
    fn drop(&mut self) {
        process::abort();
    }
}

/// An operation, whatever its elements are.
trait Ending: Send {
    /// Has it end soon, one way or the other.
    fn hurry(self: Box<Self>) -> Box<dyn Ending>;

    fn wait(self: Box<Self>) -> Result<Status>;
}

struct Sending<T: Wire> {
    op: SendOp<Lent<T>>,
    comm: Comm,
    status: Status,
}

struct Receiving<T: Wire> {
    op: RecvOp<Lent<T>>,
    comm: Comm,
}

impl<T: Wire> Ending for Sending<T> {
    fn hurry(mut self: Box<Self>) -> Box<dyn Ending> {
        self.op = self.op.timeout(Duration::ZERO);
        self
    }

    fn wait(self: Box<Self>) -> Result<Status> {
        executor::block_on(self.comm.shared(), self.op)?;
        Ok(self.status)
    }
}

impl<T: Wire> Ending for Receiving<T> {
    fn hurry(mut self: Box<Self>) -> Box<dyn Ending> {
        self.op = self.op.timeout(Duration::ZERO);
        self
    }

    fn wait(self: Box<Self>) -> Result<Status> {
        let (_, status) = executor::block_on(self.comm.shared(), self.op)?;
        Ok(status)
    }
}

/// Borrowed elements as an operation owns them.
struct Lent<T> {
    elems: NonNull<[T]>,
}

impl<T: Wire> Lent<T> {
    /// # Safety
    /// Until the operation that gets it has ended, the elements stay where they are, nobody writes them, and if the operation is
    /// a receive nobody else reads them.
    unsafe fn new(elems: NonNull<[T]>) -> Self {
        Self { elems }
    }
}

// SAFETY: it stands for a `&[T]` or `&mut [T]`, which may go to other threads because elements may.
unsafe impl<T: Wire> Send for Lent<T> {}

impl<T: Wire> SendBuf for Lent<T> {
    type Elem = T;

    fn elems(&self) -> &[T] {
        // SAFETY: who made it promised that they are there and that nobody writes them.
        unsafe { self.elems.as_ref() }
    }
}

// SAFETY: always what was lent.
unsafe impl<T: Wire> RecvBuf for Lent<T> {
    unsafe fn spare(&mut self) -> &mut [MaybeUninit<T>] {
        let (start, len) = (self.elems.cast().as_ptr(), self.elems.len());
        // SAFETY: who made it for a receive promised that nobody else uses them; the caller leaves none without a value.
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
