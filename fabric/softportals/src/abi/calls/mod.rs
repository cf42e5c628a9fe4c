//! Implementation of the C functions, for all families.
//!
//! All return a code of their family. As in C, the caller promises valid pointers: input is readable, output is writable, and
//! arrays have the given length. Null is refused where the specification says so.
#![expect(
    unsafe_code,
    reason = "C callers give pointers to arguments and to places for results"
)]

mod events;
mod interface;
mod operations;
mod table;
mod text;

use std::sync::Arc;

pub use self::{
    events::{
        ct_alloc, ct_cancel, ct_free, ct_inc, ct_poll, ct_set, ct_wait, eq_alloc, eq_free, eq_poll,
        eq_take,
    },
    interface::{
        abort, adopt, atomic_sync, bundle, ends_to_dead, fini, get_id, get_map, get_uid,
        handle_is_equal, init, interrupts, n_fds, ni_fini, ni_handle, ni_init, ni_status,
        poll_events, poll_fds, set_map,
    },
    operations::{PtlMdOffset, PtlOperation, PtlTarget, start},
    table::{
        le_append, le_search, md_bind, md_release, me_append, me_search, pt_alloc, pt_disable,
        pt_enable, pt_free, unlink,
    },
    text::{describe, fail_names, text},
};
use super::{
    FamilyAbi, PtlCtEvent,
    convert::{PtlHandleKind, pack, unpack},
    library,
};
use crate::{
    counter::SoftCtValue,
    error::SoftError,
    interface::SoftInterface,
    process::{ProcessMemory, SoftNic},
    slab::GenerationalId,
};

type ProcessNic = Arc<SoftNic<ProcessMemory>>;

type ProcessInterface = SoftInterface<ProcessMemory>;

/// Returns the code for a result.
fn answer<P: FamilyAbi>(result: Result<(), SoftError>) -> i32 {
    match result {
        Ok(()) => 0,
        Err(error) => P::NUMBERS.code(error),
    }
}

/// Writes a result, if the caller provides a place for it.
unsafe fn give<T>(place: *mut T, value: T) {
    if !place.is_null() {
        // SAFETY: the pointer is not null, so it points to a place for a `T`.
        unsafe { place.write(value) };
    }
}

unsafe fn take<'a, T>(place: *const T, name: &'static str) -> Result<&'a T, SoftError> {
    // SAFETY: the pointer is null or points to a `T` of the caller.
    unsafe { place.as_ref() }.ok_or(SoftError::ArgInvalid(name))
}

fn wanted<T>(place: *mut T, name: &'static str) -> Result<*mut T, SoftError> {
    if place.is_null() {
        return Err(SoftError::ArgInvalid(name));
    }
    Ok(place)
}

/// Returns the interface of an object, and the object.
fn object<P: FamilyAbi>(
    kind: PtlHandleKind,
    handle: P::Handle,
    name: &'static str,
) -> Result<(u32, ProcessNic, GenerationalId), SoftError> {
    if !library::is_initialised() {
        return Err(SoftError::NoInit);
    }
    let (ni, id) = unpack(kind, P::bits(handle)).ok_or(SoftError::ArgInvalid(name))?;
    let nic = library::nic(ni).map_err(|error| match error {
        SoftError::NoInit => error,
        _ => SoftError::ArgInvalid(name),
    })?;
    Ok((ni, nic, id))
}

fn interface<P: FamilyAbi>(handle: P::Handle) -> Result<(u32, ProcessNic), SoftError> {
    object::<P>(PtlHandleKind::Ni, handle, "ni_handle").map(|(ni, nic, _)| (ni, nic))
}

fn handle<P: FamilyAbi>(kind: PtlHandleKind, ni: u32, id: GenerationalId) -> P::Handle {
    P::handle(pack(kind, ni, id))
}

const fn count_of(event: PtlCtEvent) -> SoftCtValue {
    SoftCtValue {
        success: event.success,
        failure: event.failure,
    }
}
