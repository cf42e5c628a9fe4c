//! Builds `mpi.c` with the compiler that `MPICC` names, such as `mpicc`. Without that variable no MPI library is looked for, and
//! the program only says how to build it.

use std::{
    env,
    process::{Command, exit},
};

fn main() {
    println!("cargo::rerun-if-env-changed=MPICC");
    println!("cargo::rerun-if-changed=src/mpi.c");
    println!("cargo::rustc-check-cfg=cfg(mpi)");
    let (Ok(compiler), Ok(folder)) = (env::var("MPICC"), env::var("OUT_DIR")) else {
        return;
    };
    // MPI's compiler knows which libraries belong to it, so it also links.
    let library = format!("{folder}/libbeside_mpi.so");
    let words = [
        "-O2",
        "-Wall",
        "-Werror",
        "-shared",
        "-fPIC",
        "src/mpi.c",
        "-o",
    ];
    let built = Command::new(&compiler).args(words).arg(&library).status();
    match built {
        Ok(status) if status.success() => {}
        Ok(status) => fail(&format!("{compiler} ended with {status}")),
        Err(why) => fail(&format!("MPICC={compiler}: {why}")),
    }
    println!("cargo::rustc-cfg=mpi");
    println!("cargo::rustc-link-search=native={folder}");
    println!("cargo::rustc-link-lib=dylib=beside_mpi");
    println!("cargo::rustc-link-arg=-Wl,-rpath,{folder}");
}

fn fail(why: &str) -> ! {
    println!("cargo::error={why}");
    exit(1)
}
