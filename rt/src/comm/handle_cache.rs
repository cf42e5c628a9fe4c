//! Cache of communicator handles that completed operations no longer need, for reuse by the next operations.
//!
//! A future keeps a handle of its communicator. Counting that handle takes an atomic instruction at start and another
//! one at the end, which is a tenth of the cost of receiving a short message. So a thread in `block_on` keeps the
//! handles of futures that completed there, for one communicator at a time, and gives them to later futures.
//!
//! The cached handles are dropped when the application drops its last handle on that thread, and when `block_on`
//! returns. So the cache does not delay the end of a communicator, with one exception: if the last handle is dropped on
//! another thread. That happens, for example, when the agent completes a ragged collective that the application does
//! not await.
//!
//! The records of short collective calls that had to wait, each with its program, are cached in the same way: a few are kept
//! while handles are cached.
#![expect(
    unsafe_code,
    reason = "keeps the counts of handles without the handles, which makes a cached one as cheap as a number"
)]

use std::{
    cell::{Cell, RefCell},
    mem::{self, ManuallyDrop},
    ptr,
    sync::Arc,
};

use super::{Comm, CommInner};
use crate::{engine::RunCall, executor, offload::CollectiveProgram};

/// Maximum number of cached handles. Each takes an atomic instruction when the cache is emptied.
const SPARE_MAX: usize = 256;

/// Maximum number of cached calls: different collectives in an inner loop, or collectives in flight at a time.
const CALLS_MAX: usize = 8;

type CachedCalls = Vec<Box<RunCall>>;

/// Handles of one communicator. All of them are equal, so a pointer and their number are enough.
struct SpareHandles {
    /// The communicator, as [`Arc::as_ptr`] gives it: of the handles, or of those that were here last and
    /// may have ended since. Null while this thread is not in `block_on`.
    inner: Cell<*const CommInner>,
    /// Number of handles that were forgotten here, each of which is still counted by the `Arc`.
    count: Cell<usize>,
}

thread_local! {
    // The thread never drops these, so access needs no check for destruction. Both are empty after the last `block_on`
    // has returned.
    static SPARE: SpareHandles = const {
        SpareHandles { inner: Cell::new(ptr::null()), count: Cell::new(0) }
    };
    static CALLS: RefCell<ManuallyDrop<CachedCalls>> = const { RefCell::new(ManuallyDrop::new(Vec::new())) };
}

impl SpareHandles {
    /// Returns true if the handles belong to this communicator, or there are none and the last ones did.
    #[inline]
    fn are_of(&self, comm: &Comm) -> bool {
        ptr::eq(self.inner.get(), Arc::as_ptr(&comm.inner))
    }

    /// Returns true if `comm` and the cached handles are the only handles.
    #[inline]
    fn are_last(&self, comm: &Comm) -> bool {
        Arc::strong_count(&comm.inner) == self.count.get() + 1
    }

    #[inline]
    fn pop(&self) -> Option<Comm> {
        let left = self.count.get().checked_sub(1)?;
        self.count.set(left);
        // SAFETY: the pointer came from the `Arc` of a handle that was forgotten when it was counted. That count was not
        // given back yet.
        let inner = unsafe { Arc::from_raw(self.inner.get()) };
        Some(Comm { inner })
    }
}

/// Returns a handle of `comm`: a cached one if possible, otherwise a clone.
#[inline]
pub(super) fn clone_handle(comm: &Comm) -> Comm {
    let spare = SPARE.with(|spare| spare.are_of(comm).then(|| spare.pop()));
    spare.flatten().unwrap_or_else(|| clone_other(comm))
}

#[cold]
#[inline(never)]
fn clone_other(comm: &Comm) -> Comm {
    comm.clone()
}

/// Caches a handle that a future no longer needs.
#[inline]
pub(super) fn cache_handle(comm: Comm) {
    // The handle stays outside of this closure, which is short enough to be inlined.
    let is_kept = SPARE.with(|spare| {
        let count = spare.count.get();
        if !spare.are_of(&comm) || count >= SPARE_MAX || spare.are_last(&comm) {
            return false;
        }
        // The last handles may have ended since, and this communicator may have taken their place in memory.
        spare.inner.set(Arc::as_ptr(&comm.inner));
        spare.count.set(count + 1);
        true
    });
    if is_kept {
        mem::forget(comm); // it is counted
    } else {
        keep_other(comm);
    }
}

/// Returns the allocation for a call of this program: one that an earlier call has left, or a new one.
#[inline(never)]
pub(super) fn call_allocation(program: &Arc<CollectiveProgram>) -> Box<RunCall> {
    let spare = CALLS.with(|spare| {
        let spare = &mut *spare.try_borrow_mut().ok()?;
        let at = spare
            .iter()
            .rposition(|kept| Arc::ptr_eq(&kept.program, program))?;
        Some(spare.swap_remove(at))
    });
    spare.unwrap_or_else(|| room_for(program))
}

/// Reuses an allocation whose call has been taken out, if there is any.
#[cold]
fn room_for(program: &Arc<CollectiveProgram>) -> Box<RunCall> {
    let program = Arc::clone(program);
    let left = CALLS.with(|spare| {
        let spare = &mut *spare.try_borrow_mut().ok()?;
        let at = spare.iter().position(|kept| kept.is_left())?;
        Some(spare.swap_remove(at))
    });
    match left {
        Some(mut room) => {
            room.program = program;
            room
        }
        None => Box::new(RunCall::of(program)),
    }
}

/// Caches the allocation of a call that a collective no longer needs.
#[inline(never)]
pub(super) fn cache_call(mut call: Box<RunCall>) {
    let has_handles = SPARE.with(|spare| spare.count.get() > 0);
    call.reducer = None;
    let unkept = CALLS.with(|spare| match &mut spare.try_borrow_mut() {
        Ok(spare) if has_handles => {
            let oldest = (spare.len() == CALLS_MAX).then(|| spare.remove(0));
            spare.push(call);
            oldest
        }
        _ => Some(call),
    });
    drop(unkept);
}

/// Replaces the cached handles of another communicator, if there are any, by this handle.
#[cold]
#[inline(never)]
fn keep_other(comm: Comm) {
    let may = executor::drives(comm.shared()) && Arc::strong_count(&comm.inner) > 1;
    if may && !SPARE.with(|spare| spare.are_of(&comm)) {
        clear();
        SPARE.with(|spare| {
            spare.inner.set(Arc::as_ptr(&comm.inner));
            spare.count.set(1);
        });
        mem::forget(comm); // it is counted
    }
}

/// Called when a handle is about to be dropped: clears the cache if its handles would be the last ones.
pub(super) fn release(comm: &Comm) {
    let are_last = |spare: &SpareHandles| spare.are_of(comm) && spare.are_last(comm);
    if SPARE.with(are_last) {
        clear();
    }
}

/// Drops the cached handles of this thread.
pub(super) fn clear() {
    // Handles are dropped one at a time, because dropping the last handle ends its communicator, which may call into this
    // cache.
    while let Some(spare) = SPARE.with(SpareHandles::pop) {
        drop(spare);
    }
    SPARE.with(|spare| spare.inner.set(ptr::null()));
}

/// Clears all caches, like [`clear`], when this thread leaves `block_on`.
pub(crate) fn clear_all() {
    clear();
    let calls = CALLS.with(|spare| mem::take(&mut **spare.borrow_mut()));
    drop(calls);
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::Runtime;

    fn spares() -> usize {
        SPARE.with(|spare| spare.count.get())
    }

    /// Sends one message from this rank to itself, which leaves a handle in the cache.
    async fn use_once(comm: &Comm) {
        let receive = comm.recv_into(0, 1, [0_u8; 1]);
        comm.send(0, 1, [7_u8; 1]).await.expect("this rank lives");
        assert_eq!(receive.await.expect("this rank lives").0, [7]);
    }

    #[test]
    fn a_communicator_ends_with_its_last_handle_whatever_is_spare() {
        let runtime = Runtime::builder().init().unwrap();
        let world = runtime.world();
        runtime.block_on(async {
            let comm = world.dup().await.expect("this rank lives");
            let inner = Arc::downgrade(&comm.inner);
            use_once(&comm).await;
            assert!(spares() > 0);
            let unfinished = comm.recv_into(0, 2, [0_u8; 1]);
            drop(comm);
            assert!(inner.upgrade().is_some());
            drop(unfinished);
            assert!(inner.upgrade().is_none());
        });
    }

    #[test]
    fn block_on_leaves_no_spares_and_one_communicator_has_them_at_a_time() {
        let runtime = Runtime::builder().init().unwrap();
        let world = runtime.world();
        let spare_handles = Arc::strong_count(&world.inner);
        runtime.block_on(async {
            let comm = world.dup().await.expect("this rank lives");
            use_once(&world).await;
            assert_eq!(Arc::strong_count(&world.inner), spare_handles + spares());
            use_once(&comm).await;
            assert_eq!(Arc::strong_count(&world.inner), spare_handles);
        });
        assert_eq!(spares(), 0);
    }

    #[test]
    fn a_burst_of_receives_leaves_a_bounded_number_of_spares() {
        let runtime = Runtime::builder().init().unwrap();
        let world = runtime.world();
        runtime.block_on(async {
            let posted = (0..2 * SPARE_MAX).map(|_| world.recv_into(0, 1, [0_u8; 1]));
            for receive in posted.collect::<Vec<_>>() {
                world.send(0, 1, [7_u8; 1]).await.expect("this rank lives");
                receive.await.expect("this rank lives");
            }
            assert_eq!(spares(), SPARE_MAX);
        });
    }

    #[test]
    fn a_call_is_kept_only_beside_handles_and_not_after_block_on() {
        let program = Arc::new(CollectiveProgram::empty(0, 1));
        cache_call(call_allocation(&program));
        assert_eq!(Arc::strong_count(&program), 1);
        let runtime = Runtime::builder().init().unwrap();
        let world = runtime.world();
        runtime.block_on(async {
            use_once(&world).await;
            cache_call(call_allocation(&program));
            let again = call_allocation(&program);
            assert_eq!(Arc::strong_count(&program), 2);
            cache_call(again);
        });
        assert_eq!(Arc::strong_count(&program), 1);
    }
}
