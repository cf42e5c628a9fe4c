//! Programs look for the library under this name, whatever its file is called.

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libportals.so.4");
}
