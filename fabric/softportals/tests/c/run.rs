//! Compiles C programs against one family's header and runs them on the library of this package.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
};

/// A folder with compiled programs, and with the library under the names that linkers and loaders look for.
struct Bench {
    folder: PathBuf,
}

impl Bench {
    /// Returns `None` if there is no C compiler; with `CI=true` that is a failure.
    fn new(test: &str) -> Option<Self> {
        let works = Command::new("cc")
            .arg("--version")
            .stdout(Stdio::null())
            .status();
        if works.is_err() {
            assert!(
                env::var("CI").is_err(),
                "cc is missing: install a C compiler"
            );
            return None;
        }
        let name = format!("ripstop-{}-{test}-{}", super::FAMILY, std::process::id());
        let folder = env::temp_dir().join(name);
        fs::create_dir_all(&folder).expect("a folder for the programs");
        for name in ["libportals.so", "libportals.so.4"] {
            std::os::unix::fs::symlink(library(), folder.join(name))
                .expect("a link to the library");
        }
        Some(Self { folder })
    }

    fn compile(&self, program: &str) {
        let sources = sources();
        let status = Command::new("cc")
            .args(["-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-I"])
            .arg(sources.join(super::FAMILY))
            .arg(sources.join(format!("{program}.c")))
            .arg("-o")
            .arg(self.folder.join(program))
            .arg("-L")
            .arg(&self.folder)
            .arg("-lportals")
            .status();
        assert!(
            status.expect("cc runs").success(),
            "{program}.c does not compile"
        );
    }

    fn start(&self, program: &str, arguments: &[&str], settings: &[(&str, &str)]) -> Program {
        let child = Command::new(self.folder.join(program))
            .args(arguments)
            .env("LD_LIBRARY_PATH", &self.folder)
            .env(
                "RIPSTOP_PORTALS_NETWORK",
                self.folder.file_name().unwrap_or_default(),
            )
            .envs(settings.iter().copied())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        Program(Some(child.expect("the program starts")))
    }
}

/// A child process that is killed when the test ends.
struct Program(Option<Child>);

impl Program {
    /// Waits for the program, which must fail, and returns its standard error.
    fn fails(mut self) -> String {
        let child = self.0.take().expect("it is ended once");
        let output = child.wait_with_output().expect("the program ends");
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    fn ends_well(mut self) {
        let child = self.0.take().expect("it is ended once");
        let Output {
            status,
            stdout,
            stderr,
        } = child.wait_with_output().expect("the program ends");
        let said = String::from_utf8_lossy(&stdout);
        let complained = String::from_utf8_lossy(&stderr);
        assert!(
            status.success() && said.ends_with("ok\n"),
            "{status}: {said}{complained}"
        );
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            // The program may have ended already.
            let _killed = child.kill();
            let _ended = child.wait();
        }
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        // If this fails, the folder stays in a directory for temporary files.
        let _removed = fs::remove_dir_all(&self.folder);
    }
}

fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/c")
}

/// Returns the path of the package's library, which Cargo puts beside the test or one folder above.
fn library() -> PathBuf {
    let test = env::current_exe().expect("the test's own name");
    let name = format!("libportals_{}.so", super::FAMILY);
    let places = test
        .ancestors()
        .skip(1)
        .take(2)
        .map(|folder| folder.join(&name));
    let mut there = places.filter(|place| place.exists());
    there
        .next()
        .unwrap_or_else(|| panic!("{name} is not beside {}", test.display()))
}

#[test]
fn one_process_uses_every_function() {
    let Some(bench) = Bench::new("alone") else {
        return;
    };
    let text = fs::read_to_string(sources().join("alone.c")).expect("the program");
    for function in FUNCTIONS.split_whitespace() {
        assert!(text.contains(&format!("{function}(")), "{function}");
    }
    bench.compile("alone");
    for mode in MODES {
        bench.start("alone", &[], &[mode]).ends_well();
    }
}

#[test]
fn what_a_call_refuses_is_said_by_its_code() {
    let Some(bench) = Bench::new("refused") else {
        return;
    };
    bench.compile("refused");
    let host = host(1);
    let udp = [
        ("RIPSTOP_PORTALS_TRANSPORT", "udp"),
        ("RIPSTOP_PORTALS_HOST", &host[..]),
    ];
    for settings in [&[MODES[0]][..], &[MODES[1]][..], &udp[..]] {
        bench.start("refused", &[], settings).ends_well();
    }
}

#[test]
fn every_call_with_a_wrong_argument_is_refused() {
    let Some(bench) = Bench::new("invalid") else {
        return;
    };
    let text = fs::read_to_string(sources().join("invalid.c")).expect("the program");
    // `PtlHandleIsEqual` refuses no argument.
    let functions = FUNCTIONS.split_whitespace();
    for function in functions.filter(|name| *name != "PtlHandleIsEqual") {
        assert!(text.contains(&format!("{function}(")), "{function}");
    }
    bench.compile("invalid");
    for mode in MODES {
        bench.start("invalid", &[], &[mode]).ends_well();
    }
}

#[test]
fn operators_do_to_every_datatype_what_they_do_in_c() {
    let Some(bench) = Bench::new("operators") else {
        return;
    };
    bench.compile("operators");
    for mode in MODES {
        bench.start("operators", &[], &[mode]).ends_well();
    }
}

#[test]
fn two_processes_exchange_messages_of_many_sizes() {
    let Some(bench) = Bench::new("pair") else {
        return;
    };
    bench.compile("pair");
    for mode in MODES {
        let programs = ["0", "1"].map(|rank| bench.start("pair", &[rank], &[mode]));
        programs.into_iter().for_each(Program::ends_well);
    }
}

#[test]
fn two_processes_exchange_them_over_a_network_that_loses_some() {
    let Some(bench) = Bench::new("weather") else {
        return;
    };
    bench.compile("pair");
    let faults = "drop=0.002,duplicate=0.01,reorder=0.005,exhaust=0.002,seed=5";
    let host = host(0);
    let settings = [
        ("RIPSTOP_PORTALS_FAULTS", faults),
        ("RIPSTOP_PORTALS_HOST", &host[..]),
    ];
    let programs = ["0", "1"].map(|rank| bench.start("pair", &[rank], &settings));
    programs.into_iter().for_each(Program::ends_well);
}

#[test]
fn a_token_travels_by_itself_through_many_processes() {
    let Some(bench) = Bench::new("ring") else {
        return;
    };
    bench.compile("ring");
    let host = host(0);
    let udp = [
        ("RIPSTOP_PORTALS_TRANSPORT", "udp"),
        ("RIPSTOP_PORTALS_HOST", &host[..]),
    ];
    for settings in [&[MODES[0]][..], &[MODES[1]][..], &udp[..]] {
        // Start the ranks in reverse: the order must not matter.
        let ranks = ["4", "3", "2", "1", "0"];
        let programs = ranks.map(|rank| bench.start("ring", &[rank, "5"], settings));
        programs.into_iter().for_each(Program::ends_well);
    }
}

#[test]
fn a_wrong_setting_is_named() {
    let Some(bench) = Bench::new("wrong") else {
        return;
    };
    bench.compile("pair");
    let program = bench.start("pair", &["0"], &[("RIPSTOP_PORTALS_RATE", "fast")]);
    let said = program.fails();
    assert!(
        said.contains("RIPSTOP_PORTALS_RATE=fast: expected bytes per second"),
        "{said}"
    );
}

/// Returns an address in 127/8 for this process and test, so that runs and tests in parallel do not collide. Process ids have at
/// most 22 bits, so each gets its own addresses.
fn host(test: u8) -> String {
    let [_, a, b, c] = std::process::id().to_be_bytes();
    format!("127.{}.{b}.{}", a | 1 | test << 6, c | 1)
}

#[test]
fn the_library_has_the_name_that_programs_ask_for() {
    let bytes = fs::read(library()).expect("the library");
    let name = b"\0libportals.so.4\0";
    assert!(bytes.windows(name.len()).any(|window| window == name));
}

#[test]
fn every_function_of_the_family_is_exported_and_none_of_another() {
    let bytes = fs::read(library()).expect("the library");
    let exported = |name: &str| {
        let name = format!("\0{name}\0");
        bytes
            .windows(name.len())
            .any(|window| window == name.as_bytes())
    };
    let common = FUNCTIONS.split_whitespace().chain(EXTENSIONS);
    let missing: Vec<&str> = common.filter(|name| !exported(name)).collect();
    assert!(missing.is_empty(), "{missing:?}");
    for name in ["PtlAbort", "PtlToStr", "PtlEvToStr", "PtlFailTypeSize"] {
        assert_eq!(exported(name), super::FAMILY == "portails4", "{name}");
    }
}

/// Functions of both families.
const FUNCTIONS: &str = "
    PtlInit PtlFini PtlAtomicSync PtlNIInit PtlNIFini PtlNIStatus PtlNIHandle PtlSetMap PtlGetMap PtlPTAlloc PtlPTFree
    PtlPTDisable PtlPTEnable PtlGetUid PtlGetId PtlGetPhysId PtlMDBind PtlMDRelease PtlLEAppend PtlMEAppend PtlLEUnlink
    PtlMEUnlink PtlLESearch PtlMESearch PtlEQAlloc PtlEQFree PtlEQGet PtlEQWait PtlEQPoll PtlCTAlloc PtlCTFree
    PtlCTCancelTriggered PtlCTGet PtlCTWait PtlCTPoll PtlCTSet PtlCTInc PtlPut PtlGet PtlAtomic PtlFetchAtomic PtlSwap
    PtlTriggeredPut PtlTriggeredGet PtlTriggeredAtomic PtlTriggeredFetchAtomic PtlTriggeredSwap PtlTriggeredCTInc
    PtlTriggeredCTSet PtlStartBundle PtlEndBundle PtlHandleIsEqual";

/// Functions that only BXI and this library have.
const EXTENSIONS: [&str; 5] = [
    "PtlNFDs",
    "PtlPollFDs",
    "PtlPollEvents",
    "RipstopPortalsAbi",
    "RipstopPortalsInterrupts",
];

const MODES: [(&str, &str); 2] = [
    ("RIPSTOP_PORTALS_MODE", "offload"),
    ("RIPSTOP_PORTALS_MODE", "generic"),
];
