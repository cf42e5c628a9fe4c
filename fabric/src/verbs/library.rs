//! The C library, found at run time: a program that never asks for InfiniBand never opens it.
#![expect(unsafe_code, reason = "opens a C library and looks its functions up")]

use std::{
    ffi::{CStr, c_char, c_int, c_uint, c_void},
    io,
};

use super::abi::{
    IbvAh, IbvAhAttr, IbvAsyncEvent, IbvCompChannel, IbvContext, IbvCq, IbvDevice, IbvDeviceAttr,
    IbvGid, IbvMr, IbvPd, IbvPortAttr, IbvQp, IbvQpAttr, IbvQpInitAttr, IbvSrq, IbvSrqInitAttr,
};
use crate::c_library::CLibrary;

macro_rules! library {
    ($($symbol:ident($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// The functions of libibverbs that this driver calls.
        #[derive(Debug)]
        pub(super) struct VerbsLibrary {
            $(pub(super) $symbol: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl VerbsLibrary {
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
    get_device_list(*mut c_int) -> *mut *mut IbvDevice;
    free_device_list(*mut *mut IbvDevice);
    get_device_name(*mut IbvDevice) -> *const c_char;
    open_device(*mut IbvDevice) -> *mut IbvContext;
    close_device(*mut IbvContext) -> c_int;
    query_device(*mut IbvContext, *mut IbvDeviceAttr) -> c_int;
    query_port(*mut IbvContext, u8, *mut IbvPortAttr) -> c_int;
    query_gid(*mut IbvContext, u8, c_int, *mut IbvGid) -> c_int;
    alloc_pd(*mut IbvContext) -> *mut IbvPd;
    dealloc_pd(*mut IbvPd) -> c_int;
    reg_mr(*mut IbvPd, *mut c_void, usize, c_int) -> *mut IbvMr;
    reg_mr_iova(*mut IbvPd, *mut c_void, usize, u64, c_int) -> *mut IbvMr;
    dereg_mr(*mut IbvMr) -> c_int;
    create_comp_channel(*mut IbvContext) -> *mut IbvCompChannel;
    destroy_comp_channel(*mut IbvCompChannel) -> c_int;
    create_cq(*mut IbvContext, c_int, *mut c_void, *mut IbvCompChannel, c_int) -> *mut IbvCq;
    destroy_cq(*mut IbvCq) -> c_int;
    get_cq_event(*mut IbvCompChannel, *mut *mut IbvCq, *mut *mut c_void) -> c_int;
    ack_cq_events(*mut IbvCq, c_uint);
    create_srq(*mut IbvPd, *mut IbvSrqInitAttr) -> *mut IbvSrq;
    destroy_srq(*mut IbvSrq) -> c_int;
    create_qp(*mut IbvPd, *mut IbvQpInitAttr) -> *mut IbvQp;
    modify_qp(*mut IbvQp, *mut IbvQpAttr, c_int) -> c_int;
    destroy_qp(*mut IbvQp) -> c_int;
    create_ah(*mut IbvPd, *mut IbvAhAttr) -> *mut IbvAh;
    destroy_ah(*mut IbvAh) -> c_int;
    get_async_event(*mut IbvContext, *mut IbvAsyncEvent) -> c_int;
    ack_async_event(*mut IbvAsyncEvent);
    wc_status_str(c_int) -> *const c_char;
}

impl VerbsLibrary {
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
    use super::VerbsLibrary;

    #[test]
    fn a_missing_or_old_library_is_reported_with_the_package_to_install() {
        let missing = VerbsLibrary::open_as(c"libripstop-has-no-such.so.1").unwrap_err();
        let missing = missing.to_string();
        assert!(
            missing.contains("rdma-core") && missing.contains("libibverbs1"),
            "{missing}"
        );
        // A library that exists and has none of the functions.
        let old = VerbsLibrary::open_as(c"libc.so.6").unwrap_err().to_string();
        assert!(old.contains("ibv_") && old.contains("newer"), "{old}");
    }
}
