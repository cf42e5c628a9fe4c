//! Portal tables, list entries and memory descriptors.
#![expect(
    unsafe_code,
    reason = "C callers give pointers to arguments and to places for results"
)]
#![expect(
    clippy::missing_safety_doc,
    reason = "the promise of all of them is at the head of the parent module"
)]

use std::ffi::c_void;

use super::{
    super::{
        FamilyAbi, PtlMd, PtlMe,
        convert::{self, PtlHandleKind},
    },
    ProcessInterface, ProcessNic, answer, give, handle, interface, object, take, wanted,
};
use crate::{
    error::SoftError,
    event::EntryList,
    interface::{EntryId, MdId, SearchMode},
};

/// `PtlPTAlloc`.
pub unsafe fn pt_alloc<P: FamilyAbi>(
    ni: P::Handle,
    options: u32,
    eq: P::Handle,
    index: u32,
    place: *mut u32,
) -> i32 {
    let alloc = || {
        let (number, nic) = interface::<P>(ni)?;
        let place = wanted(place, "pt_index")?;
        let options = P::NUMBERS.parse_table_options(options)?;
        let eq = convert::eq::<P>(eq, number)?;
        let index = (index != PT_ANY).then_some(index);
        let index = nic.call(|interface| interface.pt_alloc(options, eq, index))?;
        // SAFETY: the pointer is not null, as checked.
        unsafe { give(place, index) };
        Ok(())
    };
    answer::<P>(alloc())
}

/// `PtlPTFree`.
pub fn pt_free<P: FamilyAbi>(ni: P::Handle, index: u32) -> i32 {
    on_interface::<P>(ni, |interface| interface.pt_free(index))
}

/// `PtlPTDisable`: returns when no message is being delivered to the portal table entry.
pub fn pt_disable<P: FamilyAbi>(ni: P::Handle, index: u32) -> i32 {
    answer::<P>(interface::<P>(ni).and_then(|(_, nic)| nic.disable_pt(index)))
}

/// `PtlPTEnable`.
pub fn pt_enable<P: FamilyAbi>(ni: P::Handle, index: u32) -> i32 {
    on_interface::<P>(ni, |interface| interface.pt_enable(index))
}

fn on_interface<P: FamilyAbi>(
    ni: P::Handle,
    call: impl FnOnce(&mut ProcessInterface) -> Result<(), SoftError>,
) -> i32 {
    answer::<P>(interface::<P>(ni).and_then(|(_, nic)| nic.call(call)))
}

/// `PtlMDBind`.
pub unsafe fn md_bind<P: FamilyAbi>(
    ni: P::Handle,
    md: *const PtlMd<P::Handle>,
    place: *mut P::Handle,
) -> i32 {
    let bind = || {
        let (number, nic) = interface::<P>(ni)?;
        let place = wanted(place, "md_handle")?;
        // SAFETY: the pointer is null or points to the caller's descriptor.
        let md = unsafe { take(md, "md") }?;
        // SAFETY: a list of segments is as long as it says.
        let md = unsafe { convert::md::<P>(md, number) }?;
        let MdId(id) = nic.call(|interface| interface.md_bind(md))?;
        // SAFETY: the pointer is not null, as checked.
        unsafe { give(place, handle::<P>(PtlHandleKind::Md, number, id)) };
        Ok(())
    };
    answer::<P>(bind())
}

/// `PtlMDRelease`.
pub fn md_release<P: FamilyAbi>(md: P::Handle) -> i32 {
    let found = object::<P>(PtlHandleKind::Md, md, "md_handle");
    answer::<P>(
        found.and_then(|(_, nic, id)| nic.release(|interface| interface.md_release(MdId(id)))),
    )
}

/// `PtlMEAppend`.
pub unsafe fn me_append<P: FamilyAbi>(
    ni: P::Handle,
    index: u32,
    me: *const PtlMe<P::Handle>,
    list: P::Small,
    user_ptr: *mut c_void,
    place: *mut P::Handle,
) -> i32 {
    // SAFETY: the pointer is null or points to the caller's entry.
    let me = unsafe { me.as_ref() };
    // SAFETY: the caller's promises.
    answer::<P>(unsafe { append::<P>(ni, index, me, true, list.into(), user_ptr, place) })
}

/// `PtlLEAppend`.
pub unsafe fn le_append<P: FamilyAbi>(
    ni: P::Handle,
    index: u32,
    le: *const P::Le,
    list: P::Small,
    user_ptr: *mut c_void,
    place: *mut P::Handle,
) -> i32 {
    // SAFETY: the pointer is null or points to the caller's entry.
    let me = unsafe { le.as_ref() }.map(P::me);
    // SAFETY: the caller's promises.
    answer::<P>(unsafe { append::<P>(ni, index, me.as_ref(), false, list.into(), user_ptr, place) })
}

unsafe fn append<P: FamilyAbi>(
    ni: P::Handle,
    index: u32,
    me: Option<&PtlMe<P::Handle>>,
    matching: bool,
    list: u32,
    user_ptr: *mut c_void,
    place: *mut P::Handle,
) -> Result<(), SoftError> {
    let (number, nic) = interface::<P>(ni)?;
    let place = wanted(place, "me_handle")?;
    let list = match list {
        0 => EntryList::Priority,
        1 => EntryList::Overflow,
        _ => return Err(SoftError::ArgInvalid("ptl_list")),
    };
    // SAFETY: the caller's promise.
    let entry = unsafe { entry_for::<P>(number, &nic, me, matching) }?;
    let user_ptr = user_ptr.expose_provenance() as u64;
    let EntryId(id) = nic.call(|interface| interface.append(index, entry, list, user_ptr))?;
    // SAFETY: the pointer is not null, as checked.
    unsafe { give(place, handle::<P>(PtlHandleKind::Entry, number, id)) };
    Ok(())
}

/// Converts an entry for an interface of the right kind.
unsafe fn entry_for<P: FamilyAbi>(
    number: u32,
    nic: &ProcessNic,
    me: Option<&PtlMe<P::Handle>>,
    matching: bool,
) -> Result<crate::interface::SoftListEntry, SoftError> {
    let me = me.ok_or(SoftError::ArgInvalid("me"))?;
    let config = nic.call(|interface| *interface.config());
    if config.matching != matching && !P::ENTRIES_ARE_ALIKE {
        return Err(SoftError::ArgInvalid(
            "ni_handle: match list entries and matching interfaces belong together",
        ));
    }
    // SAFETY: the caller's promise: a list of segments is as long as it says.
    unsafe { convert::entry::<P>(me, number, &config) }
}

/// `PtlMEUnlink` and `PtlLEUnlink`.
pub fn unlink<P: FamilyAbi>(entry: P::Handle) -> i32 {
    let found = object::<P>(PtlHandleKind::Entry, entry, "me_handle");
    answer::<P>(
        found.and_then(|(_, nic, id)| nic.release(|interface| interface.unlink(EntryId(id)))),
    )
}

/// `PtlMESearch`.
pub unsafe fn me_search<P: FamilyAbi>(
    ni: P::Handle,
    index: u32,
    me: *const PtlMe<P::Handle>,
    mode: P::Small,
    user_ptr: *mut c_void,
) -> i32 {
    // SAFETY: the pointer is null or points to the caller's entry.
    let me = unsafe { me.as_ref() };
    // SAFETY: the caller's promises.
    answer::<P>(unsafe { search::<P>(ni, index, me, true, mode.into(), user_ptr) })
}

/// `PtlLESearch`.
pub unsafe fn le_search<P: FamilyAbi>(
    ni: P::Handle,
    index: u32,
    le: *const P::Le,
    mode: P::Small,
    user_ptr: *mut c_void,
) -> i32 {
    // SAFETY: the pointer is null or points to the caller's entry.
    let me = unsafe { le.as_ref() }.map(P::me);
    // SAFETY: the caller's promises.
    answer::<P>(unsafe { search::<P>(ni, index, me.as_ref(), false, mode.into(), user_ptr) })
}

unsafe fn search<P: FamilyAbi>(
    ni: P::Handle,
    index: u32,
    me: Option<&PtlMe<P::Handle>>,
    matching: bool,
    mode: u32,
    user_ptr: *mut c_void,
) -> Result<(), SoftError> {
    let (number, nic) = interface::<P>(ni)?;
    let mode = match mode {
        0 => SearchMode::Only,
        1 => SearchMode::Delete,
        _ => return Err(SoftError::ArgInvalid("ptl_search_op")),
    };
    // SAFETY: the caller's promise.
    let entry = unsafe { entry_for::<P>(number, &nic, me, matching) }?;
    let user_ptr = user_ptr.expose_provenance() as u64;
    nic.call(|interface| interface.search(index, entry, mode, user_ptr))
}

const PT_ANY: u32 = u32::MAX;
