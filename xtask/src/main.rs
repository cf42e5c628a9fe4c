//! The gate and the chores of the workspace: `cargo xtask help`.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a tool for people at a terminal"
)]

use std::{env, process::ExitCode};

use self::{step::StepRunner, test::launchers::MissingLauncher};

mod aarch64;
mod beside_mpi;
mod book;
mod calibrate;
mod ci;
mod compare;
mod examples;
mod hosts;
mod instructions;
mod loom;
mod package;
mod portals;
mod programs;
mod spread;
mod step;
mod test;
mod tidy;
mod vm;

const HELP: &str = "\
The gate and the chores of the workspace.

cargo xtask ci [--install]  everything that must hold before a change goes in, step by step
cargo xtask test            the tests of every day; `test --help` says what --all and --install add
cargo xtask portals         the everyday tests that run over the software Portals, with ranks as processes
cargo xtask tcp             tests that run over TCP on this machine, with ranks as processes
cargo xtask hosts --suite   jobs and tests over several hosts, which are namespaces of this machine
cargo xtask hosts -- COMMAND
                            run a command among such hosts, which ssh reaches; `hosts --help` says how
cargo xtask tidy            layers, unsafe files, dead files, long lines, leftovers, book, number of crates
cargo xtask book            build the book (installs mdbook under target/tools at first) and run its snippets
cargo xtask book figures    draw the figures of the book
cargo xtask book expand     write the chapters with their code, to read them without rendering: target/book-expanded
cargo xtask book links      check that what the book links to is there, and that each figure is shown
cargo xtask examples        run the examples on 1, 2 and 4 ranks
cargo xtask beside-mpi      the example that uses MPI and Ripstop in one process, with each MPI that is installed
cargo xtask package         the packages that a registry gets, and a program built from them; --verify also builds each alone
cargo xtask aarch64         compile everything for 64-bit ARM, and run the tests of what ranks share in an emulator
cargo xtask loom            the models of what threads share
cargo xtask bench compare   measure against MPICH and Open MPI; `bench compare --help` says how
cargo xtask bench plot      draw what `bench compare --json` has written; `bench plot --help` says how
cargo xtask bench instructions
                            instructions of a call, counted under valgrind, and their budgets; `bench instructions --help`
cargo xtask bench portals   messages over Portals against the layouts of other libraries; `bench portals --help` says how
cargo xtask vm -- COMMAND   run a command on a virtual machine with soft-RoCE devices; `vm --help` says how
cargo xtask vm-test         the tests that need InfiniBand devices, all in one virtual machine; `vm-test --help` says more
cargo xtask bench verbs     Ripstop over verbs beside perftest on the devices of a virtual machine; `bench verbs --help`
cargo xtask bench calibrate fit the simulator to this machine, and show what it predicts";

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    match dispatch(&words, &args) {
        Ok(status) => status,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch(words: &[&str], args: &[String]) -> Result<ExitCode, String> {
    if let ["vm", ..] = words {
        return vm::run(&step::root(), &args[1..]);
    }
    if let ["hosts", ..] = words {
        return hosts::run(&step::root(), &args[1..]);
    }
    chore(words, args).map(|()| ExitCode::SUCCESS)
}

fn chore(words: &[&str], args: &[String]) -> Result<(), String> {
    match words {
        [] | ["help" | "--help" | "-h"] => {
            println!("{HELP}");
            Ok(())
        }
        ["ci"] => StepRunner::run_all(ci::run),
        ["ci", "--install"] => StepRunner::run_all(ci::run_installing),
        ["test", options @ ..] => test::run(options),
        ["portals"] => StepRunner::run_all(test::portals::run),
        ["tcp"] => StepRunner::run_all(test::tcp::run),
        ["tidy"] => StepRunner::run_all(tidy::run),
        ["book"] => StepRunner::run_all(book::run),
        ["book", "figures"] => book::figures::draw(&step::root()),
        ["book", "expand"] => book::expand::run(&step::root()),
        ["book", "links"] => book::links::check(&step::root()),
        ["examples"] => StepRunner::run_all(examples::run),
        ["beside-mpi"] => {
            StepRunner::run_all(|gate| beside_mpi::run(gate, MissingLauncher::LeaveOut))
        }
        ["package"] => StepRunner::run_all(package::run),
        ["package", "--verify"] => StepRunner::run_all(package::run_verifying),
        ["aarch64"] => StepRunner::run_all(aarch64::run),
        ["loom"] => StepRunner::run_all(loom::run),
        ["vm-test"] => StepRunner::run_all(vm::test),
        ["vm-test", "--itself"] => StepRunner::run_all(vm::test_itself),
        ["vm-test", ..] => vm::test_all(&step::root(), &args[1..]),
        ["bench", "portals", ..] => portals::run(&step::root(), &args[2..]),
        ["bench", "instructions", ..] => instructions::run(&step::root(), &args[2..]),
        ["bench", "plot", words @ ..] => {
            print!("{}", book::figures::plot::run(words)?);
            Ok(())
        }
        ["bench", "compare", ..] => compare::run(&args[2..]),
        ["bench", "verbs", ..] => vm::bench(&step::root(), &args[2..]),
        ["bench", "calibrate", ..] => calibrate::run(&step::root(), &args[2..]),
        _ => Err(format!(
            "`cargo xtask {}` is unknown.\n\n{HELP}",
            words.join(" ")
        )),
    }
}
