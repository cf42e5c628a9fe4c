//! Event queues and counters, and waiting for them.
#![expect(
    unsafe_code,
    reason = "C callers give pointers to arguments and to places for results"
)]
#![expect(
    clippy::missing_safety_doc,
    reason = "the promise of all of them is at the head of the parent module"
)]

use std::{sync::Arc, time::Duration};

use super::{
    super::{AbiNumbers, FamilyAbi, PtlCtEvent, convert::PtlHandleKind, library},
    ProcessInterface, ProcessNic, answer, count_of, give, handle, interface, object, wanted,
};
use crate::{
    counter::SoftCtValue,
    error::SoftError,
    event::DequeuedEvent,
    interface::{CtId, EqId, SoftInterface},
    process::wait_count_among,
    slab::GenerationalId,
};

/// `PtlEQAlloc`.
pub unsafe fn eq_alloc<P: FamilyAbi>(ni: P::Handle, count: u64, place: *mut P::Handle) -> i32 {
    let alloc = || {
        let (number, nic) = interface::<P>(ni)?;
        let place = wanted(place, "eq_handle")?;
        let EqId(id) = nic.call(|interface| interface.eq_alloc(count))?;
        // SAFETY: the pointer is not null, as checked.
        unsafe { give(place, handle::<P>(PtlHandleKind::Eq, number, id)) };
        Ok(())
    };
    answer::<P>(alloc())
}

/// `PtlEQFree`.
pub fn eq_free<P: FamilyAbi>(eq: P::Handle) -> i32 {
    let found = object::<P>(PtlHandleKind::Eq, eq, "eq_handle");
    answer::<P>(found.and_then(|(_, nic, id)| nic.call(|interface| interface.eq_free(EqId(id)))))
}

/// `PtlEQGet`, and `PtlEQWait` with a timeout of `None`.
pub unsafe fn eq_take<P: FamilyAbi>(
    eq: P::Handle,
    event: *mut P::Event,
    timeout: Option<Duration>,
) -> i32 {
    let taken = || {
        let (_, nic, id) = object::<P>(PtlHandleKind::Eq, eq, "eq_handle")?;
        wanted(event, "event")?;
        nic.wait_event(&[EqId(id)], timeout)
    };
    let taken = match (timeout, taken()) {
        // `PtlEQGet` does not wait, so there is no wait to abort.
        (Some(_), Err(SoftError::Aborted)) => Err(SoftError::EqEmpty),
        (Some(_), taken) => taken,
        (None, taken) => taken.map_err(of_wait),
    };
    // SAFETY: the pointer is not null, as checked.
    unsafe { give_event::<P>(taken, event, std::ptr::null_mut()) }
}

/// After `PtlAbort`, a new wait ends with the same code as the waits that `PtlAbort` ended, because the awaited object may be
/// freed by now.
fn of_wait(error: SoftError) -> SoftError {
    match error {
        SoftError::ArgInvalid(_) if library::is_aborted() => SoftError::Aborted,
        other => other,
    }
}

/// `PtlEQPoll`. As in the reference implementation, all queues must belong to one interface.
pub unsafe fn eq_poll<P: FamilyAbi>(
    queues: *const P::Handle,
    count: u32,
    timeout: P::Time,
    event: *mut P::Event,
    which: *mut u32,
) -> i32 {
    let taken = || {
        wanted(event, "event")?;
        index_place::<P>(which)?;
        // SAFETY: the caller promises an array of this length.
        let queues = unsafe { objects::<P>(PtlHandleKind::Eq, queues, count, "eq_handles") }?;
        let nic =
            common(&queues).ok_or(SoftError::ArgInvalid("eq_handles: of several interfaces"))?;
        let ids: Vec<EqId> = queues.iter().map(|(_, id)| EqId(*id)).collect();
        nic.wait_event(&ids, time::<P>(timeout))
    };
    // SAFETY: the pointer is not null, as checked.
    unsafe { give_event::<P>(taken().map_err(of_wait), event, which) }
}

unsafe fn give_event<P: FamilyAbi>(
    taken: Result<(DequeuedEvent, usize), SoftError>,
    event: *mut P::Event,
    which: *mut u32,
) -> i32 {
    let AbiNumbers { codes, .. } = P::NUMBERS;
    match taken {
        Err(error) => P::NUMBERS.code(error),
        Ok((taken, index)) => {
            // SAFETY: the caller's promise.
            unsafe { give(event, P::event(&taken.event)) };
            // SAFETY: the caller's promise.
            unsafe { give(which, u32::try_from(index).unwrap_or(u32::MAX)) };
            if taken.dropped { codes.eq_dropped } else { 0 }
        }
    }
}

fn index_place<P: FamilyAbi>(which: *mut u32) -> Result<(), SoftError> {
    if which.is_null() && !P::WHICH_IS_OPTIONAL {
        return Err(SoftError::ArgInvalid("which"));
    }
    Ok(())
}

/// Resolves handles of objects, which may belong to several interfaces.
unsafe fn objects<P: FamilyAbi>(
    kind: PtlHandleKind,
    handles: *const P::Handle,
    count: u32,
    name: &'static str,
) -> Result<Vec<(ProcessNic, GenerationalId)>, SoftError> {
    if !library::is_initialised() {
        return Err(SoftError::NoInit);
    }
    if handles.is_null() || count == 0 {
        return Err(SoftError::ArgInvalid(name));
    }
    // SAFETY: the caller promises an array of this length, and it is not null.
    let handles = unsafe { std::slice::from_raw_parts(handles, count as usize) };
    let objects = handles
        .iter()
        .map(|handle| object::<P>(kind, *handle, name).map(|(_, nic, id)| (nic, id)));
    objects.collect()
}

/// Returns the interface of all objects, if they share one.
fn common<T>(objects: &[(ProcessNic, T)]) -> Option<&ProcessNic> {
    let (first, _) = objects.first()?;
    let all = objects.iter().all(|(nic, _)| Arc::ptr_eq(nic, first));
    all.then_some(first)
}

/// Converts a timeout. All ones, of any width, means no limit.
fn time<P: FamilyAbi>(time: P::Time) -> Option<Duration> {
    let millis: u64 = time.into();
    let forever = if size_of::<P::Time>() == 4 {
        u64::from(u32::MAX)
    } else {
        u64::MAX
    };
    (millis != forever).then(|| Duration::from_millis(millis))
}

/// `PtlCTAlloc`.
pub unsafe fn ct_alloc<P: FamilyAbi>(ni: P::Handle, place: *mut P::Handle) -> i32 {
    let alloc = || {
        let (number, nic) = interface::<P>(ni)?;
        let place = wanted(place, "ct_handle")?;
        let CtId(id) = nic.call(SoftInterface::ct_alloc)?;
        // SAFETY: the pointer is not null, as checked.
        unsafe { give(place, handle::<P>(PtlHandleKind::Ct, number, id)) };
        Ok(())
    };
    answer::<P>(alloc())
}

fn on_counter<P: FamilyAbi>(
    ct: P::Handle,
    call: impl FnOnce(&mut ProcessInterface, CtId) -> Result<(), SoftError>,
) -> i32 {
    let found = object::<P>(PtlHandleKind::Ct, ct, "ct_handle");
    answer::<P>(found.and_then(|(_, nic, id)| nic.call(|interface| call(interface, CtId(id)))))
}

/// `PtlCTFree`.
pub fn ct_free<P: FamilyAbi>(ct: P::Handle) -> i32 {
    on_counter::<P>(ct, |interface, ct| interface.ct_free(ct))
}

/// `PtlCTCancelTriggered`.
pub fn ct_cancel<P: FamilyAbi>(ct: P::Handle) -> i32 {
    on_counter::<P>(ct, |interface, ct| interface.ct_cancel_triggered(ct))
}

/// `PtlCTSet`.
pub fn ct_set<P: FamilyAbi>(ct: P::Handle, value: PtlCtEvent) -> i32 {
    on_counter::<P>(ct, |interface, ct| interface.ct_set(ct, count_of(value)))
}

/// `PtlCTInc`.
pub fn ct_inc<P: FamilyAbi>(ct: P::Handle, by: PtlCtEvent) -> i32 {
    on_counter::<P>(ct, |interface, ct| interface.ct_inc(ct, count_of(by)))
}

/// `PtlCTGet`, and `PtlCTWait` with a threshold above 0.
pub unsafe fn ct_wait<P: FamilyAbi>(ct: P::Handle, threshold: u64, event: *mut PtlCtEvent) -> i32 {
    let waited = || {
        let (_, nic, id) = object::<P>(PtlHandleKind::Ct, ct, "ct_handle")?;
        let event = wanted(event, "event")?;
        let (count, _) = nic.wait_count(&[(CtId(id), threshold)], None)?;
        // SAFETY: the pointer is not null, as checked.
        unsafe { give(event, event_of(count)) };
        Ok(())
    };
    answer::<P>(waited().map_err(|error| if threshold > 0 { of_wait(error) } else { error }))
}

/// `PtlCTPoll`.
pub unsafe fn ct_poll<P: FamilyAbi>(
    counters: *const P::Handle,
    thresholds: *const u64,
    count: u32,
    timeout: P::Time,
    event: *mut PtlCtEvent,
    which: *mut u32,
) -> i32 {
    let polled = || {
        let event = wanted(event, "event")?;
        index_place::<P>(which)?;
        // SAFETY: the caller promises an array of this length.
        let counters = unsafe { objects::<P>(PtlHandleKind::Ct, counters, count, "ct_handles") }?;
        if thresholds.is_null() {
            return Err(SoftError::ArgInvalid("tests"));
        }
        // SAFETY: the caller promises an array of this length, and it is not null.
        let thresholds = unsafe { std::slice::from_raw_parts(thresholds, count as usize) };
        let timeout = time::<P>(timeout);
        let awaited = counters.iter().zip(thresholds.iter().copied());
        let (reached, index) = if let Some(nic) = common(&counters) {
            let awaited: Vec<_> = awaited.map(|((_, id), test)| (CtId(*id), test)).collect();
            nic.wait_count(&awaited, timeout)
        } else {
            let awaited = awaited.map(|((nic, id), test)| (Arc::clone(nic), CtId(*id), test));
            wait_count_among(&awaited.collect::<Vec<_>>(), timeout)
        }?;
        // SAFETY: the pointer is not null, as checked.
        unsafe { give(event, event_of(reached)) };
        // SAFETY: the pointer is null or points to a place for an index.
        unsafe { give(which, u32::try_from(index).unwrap_or(u32::MAX)) };
        Ok(())
    };
    answer::<P>(polled().map_err(of_wait))
}

const fn event_of(count: SoftCtValue) -> PtlCtEvent {
    PtlCtEvent {
        success: count.success,
        failure: count.failure,
    }
}
