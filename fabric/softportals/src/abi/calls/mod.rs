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
    operations::{From, Operation, To, start},
    table::{
        le_append, le_search, md_bind, md_release, me_append, me_search, pt_alloc, pt_disable,
        pt_enable, pt_free, unlink,
    },
    text::{describe, fail_names, text},
};
use super::{
    CtEvent, Profile,
    convert::{Kind, pack, unpack},
    library,
};
use crate::{
    counter::Count,
    error::Error,
    interface::Interface,
    process::{Nic, ProcessMemory},
    slab::Id,
};

type Port = Arc<Nic<ProcessMemory>>;

type Face = Interface<ProcessMemory>;

/// Returns the code for a result.
fn answer<P: Profile>(result: Result<(), Error>) -> i32 {
    match result {
        Ok(()) => 0,
        Err(error) => P::NUMBERS.code(error),
    }
}

/// Writes a result, if the caller provides a place for it.
unsafe fn give<T>(place: *mut T, value: T) {
    if !place.is_null() {
        // SAFETY: not null, and so a place for a `T`.
        unsafe { place.write(value) };
    }
}

unsafe fn take<'a, T>(place: *const T, name: &'static str) -> Result<&'a T, Error> {
    // SAFETY: null, or a `T` of the caller.
    unsafe { place.as_ref() }.ok_or(Error::ArgInvalid(name))
}

fn wanted<T>(place: *mut T, name: &'static str) -> Result<*mut T, Error> {
    if place.is_null() {
        return Err(Error::ArgInvalid(name));
    }
    Ok(place)
}

/// Returns the interface of an object, and the object.
fn object<P: Profile>(
    kind: Kind,
    handle: P::Handle,
    name: &'static str,
) -> Result<(u32, Port, Id), Error> {
    if !library::is_initialised() {
        return Err(Error::NoInit);
    }
    let (ni, id) = unpack(kind, P::bits(handle)).ok_or(Error::ArgInvalid(name))?;
    let nic = library::nic(ni).map_err(|error| match error {
        Error::NoInit => error,
        _ => Error::ArgInvalid(name),
    })?;
    Ok((ni, nic, id))
}

fn interface<P: Profile>(handle: P::Handle) -> Result<(u32, Port), Error> {
    object::<P>(Kind::Ni, handle, "ni_handle").map(|(ni, nic, _)| (ni, nic))
}

fn handle<P: Profile>(kind: Kind, ni: u32, id: Id) -> P::Handle {
    P::handle(pack(kind, ni, id))
}

const fn count_of(event: CtEvent) -> Count {
    Count {
        success: event.success,
        failure: event.failure,
    }
}
