//! The C library, found at run time: a program that never asks for InfiniBand never opens it.
#![expect(unsafe_code, reason = "opens a C library and looks its functions up")]

use std::{
    ffi::{CStr, c_char, c_int, c_uint, c_void},
    io,
};

use super::abi::{
    Ah, AhAttributes, AsyncEvent, Channel, Context, Cq, Device, DeviceAttributes, Gid, Mr, Pd,
    PortAttributes, Qp, QpAttributes, QpInit, Srq, SrqInit,
};
use crate::c_library::CLibrary;

macro_rules! library {
    ($($symbol:ident($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// The functions of libibverbs that this driver calls.
        #[derive(Debug)]
        pub(super) struct Library {
            $(pub(super) $symbol: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl Library {
            fn look_up(library: CLibrary) -> io::Result<Self> {
                Ok(Self {
                    $($symbol: {
                        let name = concat!("ibv_", stringify!($symbol));
                        let found = library.symbol(name).ok_or_else(|| lacks(name))?;
                        // SAFETY: the function of this name has had this type since it has been in the library.
                        unsafe {
                            std::mem::transmute::<
                                *mut c_void,
                                unsafe extern "C" fn($($argument),*) $(-> $result)?,
                            >(found.as_ptr())
                        }
                    },)*
                })
            }
        }
    };
}

library! {
    get_device_list(*mut c_int) -> *mut *mut Device;
    free_device_list(*mut *mut Device);
    get_device_name(*mut Device) -> *const c_char;
    open_device(*mut Device) -> *mut Context;
    close_device(*mut Context) -> c_int;
    query_device(*mut Context, *mut DeviceAttributes) -> c_int;
    query_port(*mut Context, u8, *mut PortAttributes) -> c_int;
    query_gid(*mut Context, u8, c_int, *mut Gid) -> c_int;
    alloc_pd(*mut Context) -> *mut Pd;
    dealloc_pd(*mut Pd) -> c_int;
    reg_mr(*mut Pd, *mut c_void, usize, c_int) -> *mut Mr;
    reg_mr_iova(*mut Pd, *mut c_void, usize, u64, c_int) -> *mut Mr;
    dereg_mr(*mut Mr) -> c_int;
    create_comp_channel(*mut Context) -> *mut Channel;
    destroy_comp_channel(*mut Channel) -> c_int;
    create_cq(*mut Context, c_int, *mut c_void, *mut Channel, c_int) -> *mut Cq;
    destroy_cq(*mut Cq) -> c_int;
    get_cq_event(*mut Channel, *mut *mut Cq, *mut *mut c_void) -> c_int;
    ack_cq_events(*mut Cq, c_uint);
    create_srq(*mut Pd, *mut SrqInit) -> *mut Srq;
    destroy_srq(*mut Srq) -> c_int;
    create_qp(*mut Pd, *mut QpInit) -> *mut Qp;
    modify_qp(*mut Qp, *mut QpAttributes, c_int) -> c_int;
    destroy_qp(*mut Qp) -> c_int;
    create_ah(*mut Pd, *mut AhAttributes) -> *mut Ah;
    destroy_ah(*mut Ah) -> c_int;
    get_async_event(*mut Context, *mut AsyncEvent) -> c_int;
    ack_async_event(*mut AsyncEvent);
    wc_status_str(c_int) -> *const c_char;
}

impl Library {
    /// Opens the library, or finds it opened.
    ///
    /// # Errors
    /// The library is missing, or an old one lacks a function. The text says what to install.
    pub(super) fn open() -> io::Result<Self> {
        Self::open_as(NAME)
    }

    fn open_as(name: &CStr) -> io::Result<Self> {
        // SAFETY: the library's own start-up code is as trusted as the library.
        let library = unsafe { CLibrary::open(name) }.map_err(|why| {
            let why = format!(
                "InfiniBand verbs: {why}: install rdma-core (Debian: libibverbs1 and ibverbs-providers), or choose another fabric"
            );
            io::Error::new(io::ErrorKind::NotFound, why)
        })?;
        Self::look_up(library)
    }

    /// Returns the text for a completion's status.
    pub(super) fn status(&self, status: c_int) -> String {
        // SAFETY: the function takes any number and gives a string that lives forever.
        let words = unsafe { (self.wc_status_str)(status) };
        // SAFETY: as above.
        let words = (!words.is_null()).then(|| unsafe { CStr::from_ptr(words) });
        words.map_or_else(
            || format!("status {status}"),
            |words| words.to_string_lossy().into_owned(),
        )
    }
}

fn lacks(name: &str) -> io::Error {
    let why = format!("InfiniBand verbs: {NAME:?} has no {name}: install a newer rdma-core");
    io::Error::new(io::ErrorKind::Unsupported, why)
}

const NAME: &CStr = c"libibverbs.so.1";

#[cfg(test)]
mod tests {
    use super::Library;

    #[test]
    fn who_has_no_library_or_an_old_one_hears_what_to_install() {
        let missing = Library::open_as(c"libripstop-has-no-such.so.1").unwrap_err();
        let missing = missing.to_string();
        assert!(
            missing.contains("rdma-core") && missing.contains("libibverbs1"),
            "{missing}"
        );
        // A library that exists and has none of the functions.
        let old = Library::open_as(c"libc.so.6").unwrap_err().to_string();
        assert!(old.contains("ibv_") && old.contains("newer"), "{old}");
    }
}
