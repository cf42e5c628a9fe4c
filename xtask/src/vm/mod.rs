//! `cargo xtask vm`: runs a command on a machine with InfiniBand devices, which is made for it and gone afterwards.
//!
//! The machine is Debian's kernel in QEMU, with soft-RoCE (`rdma_rxe`) devices on a virtual wire. It sees the files of this
//! machine where they are, so what was built here runs there; what it writes is lost, except below shared folders.

use std::{env, path::Path, process::ExitCode};

use self::{guest::Guest, image::Image, options::Options};

mod clock;
mod command;
mod cpio;
mod fetch;
mod guest;
mod image;
mod kernel;
mod modules;
mod options;
mod packages;
mod qemu;

/// Runs a command in the guest with the arguments that follow `vm`, and ends as it ended.
///
/// # Errors
/// A sentence saying what to do: an unknown argument, a package that is not installed, a guest that did not start or died.
pub(crate) fn run(root: &Path, args: &[String]) -> Result<ExitCode, String> {
    let Some(options) = Options::parse(args)? else {
        println!("{}", options::HELP);
        return Ok(ExitCode::SUCCESS);
    };
    let status = status_of(root, &options)?;
    Ok(ExitCode::from(status))
}

/// The exit status of the command.
pub(crate) fn status_of(root: &Path, options: &Options) -> Result<u8, String> {
    if env::consts::ARCH != "x86_64" {
        return Err(format!(
            "the guest is an x86_64 machine, this one is {}; run it on an x86_64 machine",
            env::consts::ARCH
        ));
    }
    packages::require()?;
    let image = Image::at(root)?;
    Guest::start(&image, options)?.status()
}
