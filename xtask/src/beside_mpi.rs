//! The example that uses an MPI library and Ripstop in the same processes, built and run with each MPI of this machine.

use std::env;

use crate::{
    programs,
    step::{CommandLine, StepRunner, target_dir},
    test::launchers::{self, MissingLauncher},
};

/// An MPI library.
struct MpiOfExample {
    name: &'static str,
    compiler: &'static str,
    launcher: &'static str,
    /// Options of the launcher, for more ranks than processors.
    options: &'static [&'static str],
}

const LIBRARIES: [MpiOfExample; 2] = [
    MpiOfExample {
        name: "MPICH",
        compiler: COMPILERS[0].0,
        launcher: "mpirun.mpich",
        options: &[],
    },
    MpiOfExample {
        name: "Open MPI",
        compiler: COMPILERS[1].0,
        launcher: "mpirun.openmpi",
        options: &["--oversubscribe"],
    },
];

/// The compilers of the libraries, and Debian's packages with them and the launchers.
pub(crate) const COMPILERS: [(&str, &str); 2] = [
    ("mpicc.mpich", "mpich libmpich-dev"),
    ("mpicc.openmpi", "openmpi-bin libopenmpi-dev"),
];

/// Builds and runs the example with each MPI.
///
/// # Errors
/// A run failed; or a library is missing and cannot be installed, or must not be missing.
pub(crate) fn run(gate: &mut StepRunner, missing: MissingLauncher) -> Result<(), String> {
    launchers::prepare(gate, missing, &COMPILERS)?;
    LIBRARIES.iter().try_for_each(|library| {
        let (compiler, name) = (library.compiler, library.name);
        match programs::find(compiler) {
            Some(_) => library.run(gate),
            None if env::var_os("CI").is_some() => Err(format!(
                "{compiler} is missing, and with CI set the example beside {name} is not left out"
            )),
            None => Ok(()), // It was named above.
        }
    })
}

impl MpiOfExample {
    fn run(&self, gate: &mut StepRunner) -> Result<(), String> {
        let name = self.name;
        let build = CommandLine::cargo(&["build", "--quiet", "-p", "beside_mpi"]);
        let build = build.with("MPICC", self.compiler);
        gate.run(&format!("building the example beside {name}"), &build)?;
        let program = target_dir(&gate.root).join("debug/beside_mpi");
        let program = program.display().to_string();
        for (ranks, order) in [("1", "mpi-between"), ("2", "mpi-first"), ("4", "mpi-last")] {
            let step = format!("example beside {name}, {ranks} ranks, {order}");
            let words = [self.options, &["-n", ranks, &program, order]].concat();
            let command = CommandLine::new(self.launcher, &words);
            let command = command.with("OMPI_ALLOW_RUN_AS_ROOT", "1");
            gate.run(&step, &command.with("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"))?;
        }
        Ok(())
    }
}
