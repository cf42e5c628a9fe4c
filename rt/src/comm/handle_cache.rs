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

/// Maximum number of cached handles: futures of short messages that are typically alive at the same time.
const SPARE_MAX: usize = 256;

/// Maximum number of cached calls: different collectives in an inner loop, or collectives in flight at a time.
const CALLS_MAX: usize = 8;

type CachedCalls = Vec<Box<RunCall>>;

// The cached handles belong to one communicator. All of them are equal, so a pointer and their number are enough. Each of both is
// a cell of its own, because access to such a cell is one instruction, and access to a struct is a call.
//
// The thread never drops these, so access needs no check for destruction. All are empty after the last `block_on` has returned.
thread_local! {
    /// The communicator, as [`Arc::as_ptr`] gives it: of the handles, or of those that were here last and
    /// may have ended since. Null while this thread is not in `block_on`.
    static SPARE_OF: Cell<*const CommInner> = const { Cell::new(ptr::null()) };
    /// Number of handles that were forgotten here, each of which is still counted by the `Arc`.
    static SPARE_COUNT: Cell<usize> = const { Cell::new(0) };
    static CALLS: RefCell<ManuallyDrop<CachedCalls>> = const { RefCell::new(ManuallyDrop::new(Vec::new())) };
}

/// Returns true if the cached handles belong to this communicator, or there are none and the last ones did.
#[inline(always)]
fn are_of(comm: &Comm) -> bool {
    ptr::eq(SPARE_OF.get(), Arc::as_ptr(&comm.inner))
}

/// Returns true if `comm` and the cached handles are the only handles.
#[inline(always)]
fn are_last(comm: &Comm) -> bool {
    Arc::strong_count(&comm.inner) == SPARE_COUNT.get() + 1
}

/// Gives back the count of one handle, if there is one. Then the caller has that handle.
#[inline(always)]
fn give_back() -> bool {
    let count = SPARE_COUNT.get();
    if count == 0 {
        return false;
    }
    SPARE_COUNT.set(count - 1);
    true
}

fn pop() -> Option<Comm> {
    if !give_back() {
        return None;
    }
    // SAFETY: the pointer came from the `Arc` of a handle that was forgotten when it was counted. That count was just given back.
    let inner = unsafe { Arc::from_raw(SPARE_OF.get()) };
    Some(Comm { inner })
}

/// Returns a handle of `comm`: a cached one if possible, otherwise a clone.
#[inline(always)]
pub(super) fn clone_handle(comm: &Comm) -> Comm {
    if !(are_of(comm) && give_back()) {
        return comm.clone();
    }
    // SAFETY: a handle of this communicator was forgotten when it was counted. That count was just given back.
    let inner = unsafe { Arc::from_raw(Arc::as_ptr(&comm.inner)) };
    Comm { inner }
}

/// Caches a handle that a future no longer needs.
#[inline(always)]
pub(super) fn cache_handle(comm: Comm) {
    let count = SPARE_COUNT.get();
    if !are_of(&comm) || count >= SPARE_MAX || are_last(&comm) {
        return keep_other(comm);
    }
    SPARE_COUNT.set(count + 1);
    mem::forget(comm); // it is counted
}

/// Returns the allocation for a call of this program: one that an earlier call has left, or a new one.
#[inline]
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
#[inline]
pub(super) fn cache_call(mut call: Box<RunCall>) {
    let has_handles = SPARE_COUNT.get() > 0;
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
    if may && !are_of(&comm) {
        clear();
        SPARE_OF.set(Arc::as_ptr(&comm.inner));
        SPARE_COUNT.set(1);
        mem::forget(comm); // it is counted
    }
}

/// Called when a handle is about to be dropped: clears the cache if its handles would be the last ones.
pub(super) fn release(comm: &Comm) {
    if are_of(comm) && are_last(comm) {
        clear();
    }
}

/// Drops the cached handles of this thread.
pub(super) fn clear() {
    // Handles are dropped one at a time, because dropping the last handle ends its communicator, which may call into this
    // cache.
    while let Some(spare) = pop() {
        drop(spare);
    }
    SPARE_OF.set(ptr::null());
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
    use crate::{
        Runtime,
        offload::{BufferLens, ProgramBuilder},
    };

    fn spares() -> usize {
        SPARE_COUNT.get()
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
    fn a_call_is_kept_only_beside_handles_and_not_after_block_on() {
        let program = Arc::new(ProgramBuilder::new::<u8>(1, BufferLens::default()).finish());
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
