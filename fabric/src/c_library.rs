//! C libraries, opened when somebody asks for them: a program that never does needs none of them.
#![expect(unsafe_code, reason = "opens a C library and looks its functions up")]

use std::{
    ffi::{CStr, CString, c_void},
    ptr::NonNull,
};

/// A library that is open, and stays so: closing one that has started threads is not safe.
#[derive(Clone, Copy, Debug)]
pub struct CLibrary(NonNull<c_void>);

impl CLibrary {
    /// Opens a library by its name or path, or finds it opened.
    ///
    /// # Errors
    /// What the loader says.
    ///
    /// # Safety
    /// The library's own start-up code may be run in this process.
    pub unsafe fn open(name: &CStr) -> Result<Self, String> {
        // SAFETY: a string that ends with a zero; the caller trusts what is run.
        let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        NonNull::new(library).map(Self).ok_or_else(last_error)
    }

    /// Where the function of this name is, if the library has one.
    #[must_use]
    pub fn symbol(self, name: &str) -> Option<NonNull<c_void>> {
        let name = CString::new(name).ok()?;
        // SAFETY: the library is open, and a string that ends with a zero.
        NonNull::new(unsafe { libc::dlsym(self.0.as_ptr(), name.as_ptr()) })
    }
}

fn last_error() -> String {
    // SAFETY: gives a string of this thread's last error, or null.
    let words = unsafe { libc::dlerror() };
    // SAFETY: valid until the next call in this thread.
    let words = (!words.is_null()).then(|| unsafe { CStr::from_ptr(words) });
    words.map_or_else(
        || "the loader does not say why".to_owned(),
        |words| words.to_string_lossy().into_owned(),
    )
}
