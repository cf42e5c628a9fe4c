//! The tests that need InfiniBand devices, all in one guest.

use std::{
    env,
    io::{self, Write},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use serde_json::Value;

use crate::step::{Gate, Tally};

use super::{guest::Guest, image::Image, options::Options, packages};

/// A step of the gate: builds the test programs here, starts one guest, runs all of them in it.
///
/// Where the guest cannot be had the step is left out and says why; with `CI` set that is a failure.
pub(crate) fn run(gate: &mut Gate) -> Result<(), String> {
    let bed = packages::require(&packages::FOR_TESTS).and_then(|()| Image::at(&gate.root));
    let image = match bed {
        Ok(image) => image,
        Err(why) if env::var_os("CI").is_none() => {
            println!("\n==> {NAME}: LEFT OUT: {why}");
            return Ok(());
        }
        Err(why) => return Err(why),
    };
    gate.counted(NAME, "cargo xtask vm-test", |root, tally| {
        let programs = build(root)?;
        let (status, output) = in_guest(&image, &script(&programs))?;
        count(&programs, &output, tally)?;
        match status {
            0 => Ok(()),
            _ => Err(format!("status {status} in the guest")),
        }
    })
}

/// A test program, what of it runs in the guest, and with what.
#[derive(Clone, Copy, Debug)]
struct Suite {
    package: &'static str,
    /// A test by its name; `None` for the tests inside the library.
    test: Option<&'static str>,
    /// Runs only what has this in its name; empty for all.
    filter: &'static str,
    /// Variables, as a shell takes them.
    env: &'static str,
}

/// A suite that was built.
#[derive(Debug)]
struct Program {
    suite: Suite,
    file: PathBuf,
    /// Where cargo would run it: where its package is.
    folder: PathBuf,
}

impl Suite {
    fn title(&self) -> String {
        let what = self.test.unwrap_or("the library");
        format!("{} {what} {} {}", self.package, self.env, self.filter)
            .trim_end()
            .to_owned()
    }

    /// The program, if this is cargo's message that it was built.
    fn built(&self, message: &Value) -> Option<Program> {
        let target = &message["target"];
        let library = self.package.replace('-', "_");
        let (kind, name) = match self.test {
            Some(test) => ("test", test),
            None => ("lib", library.as_str()),
        };
        let fits = message["profile"]["test"] == true
            && target["kind"].as_array()?.iter().any(|of| of == kind)
            && target["name"] == name;
        let manifest = Path::new(message["manifest_path"].as_str()?);
        let file = message["executable"].as_str()?;
        fits.then(|| Program {
            suite: *self,
            file: file.into(),
            folder: manifest.parent().unwrap_or(manifest).to_owned(),
        })
    }
}

fn build(root: &Path) -> Result<Vec<Program>, String> {
    if SUITES.is_empty() {
        return Ok(Vec::new());
    }
    let mut cargo = Command::new("cargo");
    cargo.args([
        "test",
        "--no-run",
        "--all-features",
        "--message-format=json",
    ]);
    for suite in SUITES {
        cargo.args(["-p", suite.package]);
        match suite.test {
            Some(test) => cargo.args(["--test", test]),
            None => cargo.arg("--lib"),
        };
    }
    let output = cargo
        .current_dir(root)
        .stderr(Stdio::inherit())
        .output()
        .map_err(|why| format!("`cargo` does not start: {why}"))?;
    if !output.status.success() {
        return Err("the test programs do not build".to_owned());
    }
    let messages: Vec<Value> = String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect();
    let program = |suite: &Suite| {
        let program = messages.iter().find_map(|message| suite.built(message));
        program.ok_or_else(|| format!("cargo built no {}", suite.title()))
    };
    SUITES.iter().map(program).collect()
}

/// A script that runs everything, so that one failure hides no other, and ends with the last bad status.
fn script(programs: &[Program]) -> String {
    let runs = programs.iter().map(|program| {
        let Suite { filter, env, .. } = program.suite;
        let (folder, file) = (program.folder.display(), program.file.display());
        let title = program.suite.title();
        format!(
            "cd '{folder}' && run '{title}' env RIPSTOP_VERBS_REQUIRED=1 {env} '{file}' {filter}\n"
        )
    });
    let begin = [BEGIN, include_str!("guest/check.sh")].map(str::to_owned);
    let end = ["exit $status\n".to_owned()];
    begin.into_iter().chain(runs).chain(end).collect()
}

/// The script's status and what it printed.
fn in_guest(image: &Image, script: &str) -> Result<(u8, String), String> {
    let options = Options {
        timeout: LIMIT,
        command: ["sh", "-c", script].map(str::to_owned).to_vec(),
        ..Options::default()
    };
    let kept = Kept::default();
    let status = Guest::start(image, &options, kept.clone())?.status()?;
    let bytes = kept.0.lock().unwrap_or_else(PoisonError::into_inner);
    Ok((status, String::from_utf8_lossy(&bytes).into_owned()))
}

/// Adds up the tests of all programs. A program that ran none is an error: a filter that fits nothing must not pass.
fn count(programs: &[Program], output: &str, tally: &mut Tally) -> Result<(), String> {
    for Program { suite, .. } in programs {
        let title = suite.title();
        let printed = part(output, &title).ok_or_else(|| format!("{title}: did not run"))?;
        let mut own = Tally::default();
        printed
            .lines()
            // Ranks that are processes run the same program with all other tests filtered out.
            .filter(|line| !suite.filter.is_empty() || line.contains(" 0 filtered out"))
            .for_each(|line| own.add(line));
        if own.passed == 0 {
            return Err(format!("{title}: no test passed"));
        }
        tally.join(own);
    }
    Ok(())
}

/// What was printed between the head of this title and the next.
fn part<'a>(output: &'a str, title: &str) -> Option<&'a str> {
    let (_, rest) = output.split_once(&format!("== {title}\n"))?;
    Some(rest.split_once("\n== ").map_or(rest, |(part, _)| part))
}

/// Passes output on, and keeps it.
#[derive(Clone, Debug, Default)]
struct Kept(Arc<Mutex<Vec<u8>>>);

impl Write for Kept {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = io::stdout().write(bytes)?;
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.extend_from_slice(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stdout().flush()
    }
}

const NAME: &str = "tests with InfiniBand devices";

const BEGIN: &str = "\
status=0
run() {
    echo \"== $1\"
    shift
    timeout 600 \"$@\" 2>&1 || { status=$?; echo \"ended with status $status\"; }
}
";

/// What runs in the guest after a look at the guest itself.
const SUITES: &[Suite] = &[];

/// Emulated, tests that compute take ten times as long as here.
const LIMIT: Duration = Duration::from_secs(1800);

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{Program, Suite, Tally, count, script};

    const MESSAGES: Suite = Suite {
        package: "ripstop",
        test: Some("messages"),
        filter: "",
        env: "RIPSTOP_FABRIC=verbs",
    };
    const VERBS: Suite = Suite {
        package: "ripstop-fabric",
        test: None,
        filter: "verbs::",
        env: "",
    };

    fn programs() -> Vec<Program> {
        [MESSAGES, VERBS]
            .map(|suite| Program {
                suite,
                file: "/t/program".into(),
                folder: "/w".into(),
            })
            .into()
    }

    #[test]
    fn a_program_is_found_among_cargos_messages() {
        let message = |kind: &str, name: &str, test: bool| {
            json!({"reason": "compiler-artifact", "executable": "/t/x", "manifest_path": "/w/Cargo.toml",
                "profile": {"test": test}, "target": {"kind": [kind], "name": name}})
        };
        let built = MESSAGES.built(&message("test", "messages", true)).unwrap();
        assert_eq!((built.file, built.folder), ("/t/x".into(), "/w".into()));
        assert!(
            VERBS
                .built(&message("lib", "ripstop_fabric", true))
                .is_some()
        );
        assert!(
            VERBS
                .built(&message("lib", "ripstop_fabric", false))
                .is_none()
        );
        assert!(VERBS.built(&message("test", "messages", true)).is_none());
        assert!(VERBS.built(&json!({"reason": "build-finished"})).is_none());
    }

    #[test]
    fn every_program_runs_with_its_environment_and_its_filter() {
        let script = script(&programs());
        for line in [
            "cd '/w' && run 'ripstop messages RIPSTOP_FABRIC=verbs' env RIPSTOP_VERBS_REQUIRED=1 ",
            "REQUIRED=1 RIPSTOP_FABRIC=verbs '/t/program' \n",
            "run 'ripstop-fabric the library  verbs::' env RIPSTOP_VERBS_REQUIRED=1  '/t/program' verbs::\n",
            "exit $status\n",
        ] {
            assert!(script.contains(line), "{script}");
        }
    }

    #[test]
    fn a_program_that_ran_no_test_does_not_pass() {
        let good = "== ripstop messages RIPSTOP_FABRIC=verbs\n\
            test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out\n\
            test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 2 filtered out\n\
            == ripstop-fabric the library  verbs::\n\
            test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 9 filtered out\n";
        let mut tally = Tally::default();
        count(&programs(), good, &mut tally).unwrap();
        assert_eq!(tally.passed, 5);
        for bad in [
            good.replace("2 passed", "0 passed"),
            good.replace("== ripstop-fabric", "= "),
        ] {
            let why = count(&programs(), &bad, &mut Tally::default()).unwrap_err();
            assert!(why.contains("ripstop-fabric"), "{why}");
        }
    }
}
