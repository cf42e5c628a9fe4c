//! C libraries, opened on demand: a program that uses none of them needs none installed.
#![expect(unsafe_code, reason = "opens a C library and looks its functions up")]

use std::{
    ffi::{CStr, CString, c_void},
    ptr::NonNull,
};

/// An open library. It is never closed, because that is not safe once it has started threads.
#[derive(Clone, Copy, Debug)]
pub struct CLibrary(NonNull<c_void>);

impl CLibrary {
    /// Opens a library by its name or path. If it is open already, that one is used.
    ///
    /// # Errors
    /// The loader's message.
    ///
    /// # Safety
    /// The library's initialization code may run in this process, so the caller must trust it.
    pub unsafe fn open(name: &CStr) -> Result<Self, String> {
        // SAFETY: the name ends with a zero; the caller trusts the code that is run.
        let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        NonNull::new(library).map(Self).ok_or_else(last_error)
    }

    /// Returns the address of the function of this name, if the library has one.
    #[must_use]
    pub fn symbol(self, name: &str) -> Option<NonNull<c_void>> {
        let name = CString::new(name).ok()?;
        // SAFETY: the library is open, and the name ends with a zero.
        NonNull::new(unsafe { libc::dlsym(self.0.as_ptr(), name.as_ptr()) })
    }
}

fn last_error() -> String {
    // SAFETY: returns a string with this thread's last error, or null.
    let words = unsafe { libc::dlerror() };
    // SAFETY: the text is valid until the next call in this thread.
    let words = (!words.is_null()).then(|| unsafe { CStr::from_ptr(words) });
    words.map_or_else(
        || "the loader gave no reason".to_owned(),
        |words| words.to_string_lossy().into_owned(),
    )
}
