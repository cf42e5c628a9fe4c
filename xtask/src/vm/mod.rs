//! `cargo xtask vm`: runs a command on a machine with InfiniBand devices, which is made for the command and removed afterwards.
//!
//! The machine is Debian's kernel in QEMU, with soft-RoCE (`rdma_rxe`) devices on a virtual wire. It sees the files of this
//! machine under the same paths, so programs that were built here run there. Its writes are lost, except below shared folders.

use std::{io, path::Path, process::ExitCode};

pub(crate) use self::{
    bench::run as bench,
    suite::{
        all as test_all, run as test, run_beside as test_beside, run_self_check as test_itself,
    },
};
use self::{guest::VmGuest, image::VmImage, options::VmOptions};

mod bench;
mod clock;
mod command;
mod cpio;
mod emulator;
mod fetch;
mod guest;
mod image;
mod kernel;
mod modules;
mod options;
mod packages;
mod qemu;
mod suite;

/// Runs a command in the guest with the arguments that follow `vm`, and exits with its status.
///
/// # Errors
/// An argument is unknown, a package is not installed, or the guest did not start or died. The error says what to do.
pub(crate) fn run(root: &Path, args: &[String]) -> Result<ExitCode, String> {
    let Some(options) = VmOptions::parse(args)? else {
        println!("{}", options::HELP);
        return Ok(ExitCode::SUCCESS);
    };
    packages::require(&[])?;
    let image = VmImage::at(root)?;
    let status = VmGuest::start(&image, &options, io::stdout())?.status()?;
    Ok(ExitCode::from(status))
}
