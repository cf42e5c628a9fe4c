//! Every suite, on one device and with the devices between the ranks, and with either reactor. This is too long for the gate.

use super::table::{Suite, What};

/// A suite, with its name for `--only`.
pub(super) struct Whole {
    pub(super) name: &'static str,
    package: &'static str,
    what: What,
    runs: Runs,
    /// Arguments: tests that are left out because no device takes part in them, and options.
    args: &'static str,
    env: &'static str,
}

/// The combinations in which a suite runs.
#[derive(Clone, Copy)]
enum Runs {
    /// All four combinations.
    All,
    /// Both reactors; the suite chooses its devices itself.
    Reactors,
    /// No reactor, because drivers sleep without one: a run on each of these devices, with the filters of the claims made there.
    Drivers(&'static [(&'static str, &'static str)]),
}

/// One run of a suite.
#[derive(Clone, Debug)]
pub(super) struct Cell {
    /// The suite's name, with the filter that was asked for.
    pub(super) name: String,
    pub(super) devices: &'static str,
    pub(super) reactor: &'static str,
    pub(super) suite: Suite,
}

/// The suites that were asked for; empty means all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Wish {
    /// Suites by name, or `suite::filter`, where `filter` is passed to the test program.
    pub(super) only: Vec<String>,
    pub(super) devices: Option<String>,
    pub(super) reactor: Option<String>,
}

impl Whole {
    const fn new(name: &'static str, runs: Runs, args: &'static str, env: &'static str) -> Self {
        Self {
            name,
            package: "ripstop",
            what: What::Test(name),
            runs,
            args,
            env,
        }
    }

    const fn of_fabric(
        name: &'static str,
        what: What,
        runs: &'static [(&'static str, &'static str)],
    ) -> Self {
        Self {
            name,
            package: "ripstop-fabric",
            what,
            runs: Runs::Drivers(runs),
            args: "--include-ignored --test-threads 1",
            env: "",
        }
    }

    /// Returns a further suite of a test program, with a name of its own.
    const fn test_as(
        name: &'static str,
        test: &'static str,
        args: &'static str,
        env: &'static str,
    ) -> Self {
        Self {
            name,
            what: What::Test(test),
            ..Self::new(test, Runs::All, args, env)
        }
    }

    const fn example(name: &'static str, example: &'static str, args: &'static str) -> Self {
        Self {
            name,
            package: "ripstop",
            what: What::Example(example),
            runs: Runs::All,
            args,
            env: "",
        }
    }

    /// Returns the runs of the suite, or those of its tests whose names contain this filter.
    fn cells(&self, filter: Option<&str>) -> Vec<Cell> {
        let name = filter.map_or_else(
            || self.name.to_owned(),
            |filter| format!("{}::{filter}", self.name),
        );
        let cell = |devices, reactor, words: &str, env: String| Cell {
            name: name.clone(),
            devices,
            reactor,
            suite: Suite {
                package: self.package,
                what: self.what,
                args: joined(&[self.args, words]).into(),
                env: joined(&[&env, self.env]).into(),
            },
        };
        let all = filter.unwrap_or("");
        let mut cells = Vec::new();
        match self.runs {
            Runs::All => {
                for (devices, device) in DEVICES {
                    for reactor in REACTORS {
                        let env = format!("{VERBS} {device} RIPSTOP_REACTOR={reactor}");
                        cells.push(cell(devices, reactor, all, env));
                    }
                }
            }
            Runs::Reactors => {
                for reactor in REACTORS {
                    let env = format!("{PATIENT} RIPSTOP_REACTOR={reactor}");
                    cells.push(cell(OWN, reactor, all, env));
                }
            }
            Runs::Drivers(_) if filter.is_some() => cells.push(cell(OWN, "-", all, String::new())),
            Runs::Drivers(runs) => {
                let run = |(devices, words): &(&'static str, &str)| {
                    cell(devices, "-", words, String::new())
                };
                cells.extend(runs.iter().map(run));
            }
        }
        cells
    }
}

/// Returns the runs that were asked for, in the order of the table.
///
/// # Errors
/// A sentence naming a suite that is unknown.
pub(super) fn chosen(wish: &Wish) -> Result<Vec<Cell>, String> {
    let mut cells = Vec::new();
    for word in &wish.only {
        let (name, filter) = match word.split_once("::") {
            Some((name, filter)) => (name, Some(filter)),
            None => (word.as_str(), None),
        };
        let suite = ALL.iter().find(|suite| suite.name == name);
        let suite = suite.ok_or_else(|| format!("--only {word}: give some of {}", names()))?;
        cells.extend(suite.cells(filter));
    }
    if wish.only.is_empty() {
        cells.extend(ALL.iter().flat_map(|suite| suite.cells(None)));
    }
    let fits = |wished: &Option<String>, is: &str| wished.as_ref().is_none_or(|one| one == is);
    cells.retain(|cell| fits(&wish.devices, cell.devices) && fits(&wish.reactor, cell.reactor));
    if cells.is_empty() {
        return Err("no suite has such a run".to_owned());
    }
    Ok(cells)
}

/// Returns the names of all suites.
pub(super) fn names() -> String {
    ALL.map(|suite| suite.name).join(", ")
}

fn joined(words: &[&str]) -> String {
    let words = words.iter().filter(|word| !word.is_empty());
    words.copied().collect::<Vec<_>>().join(" ")
}

const REACTORS: [&str; 2] = ["uring", "epoll"];

/// Devices: all ranks on one device, which loops back internally; or each on its own device, which ranks take in turn.
const DEVICES: [(&str, &str); 2] = [("one", "RIPSTOP_VERBS_DEVICE=rxe0"), ("across", "")];

/// Name of the devices of a suite that chooses them itself.
const OWN: &str = "own";

/// A rank may wait long for one of the guest's processors, so it must not be declared dead too early.
const PATIENT: &str = "RIPSTOP_DETECT_MS=20000";
const VERBS: &str = "RIPSTOP_FABRIC=verbs RIPSTOP_DETECT_MS=20000";
/// Two nodes of two ranks each, which let the adapter copy long messages.
const LOOPBACK: &str = "RIPSTOP_FABRIC=shm+verbs RIPSTOP_LOOPBACK=on";

/// All suites. They skip tests whose ranks are simulated, because no device takes part in them.
const ALL: [Whole; 30] = [
    Whole::of_fabric("library", What::Library, &[(OWN, "verbs::")]),
    Whole::of_fabric(
        "drivers",
        What::Test("conformance"),
        &[
            ("one", "on_verbs::"),
            (
                "across",
                "on_verbs_across on_verbs_by_parcels on_verbs_at_once on_verbs_with_few",
            ),
        ],
    ),
    Whole::of_fabric(
        "lanes",
        What::Test("conformance"),
        &[(OWN, "on_verbs_by_two on_verbs_by_four")],
    ),
    Whole::of_fabric(
        "verbs",
        What::Test("conformance"),
        &[(
            OWN,
            "verbs:: --skip on_verbs --skip cables:: --skip lanes:: --skip _lists::",
        )],
    ),
    Whole::of_fabric(
        "torn",
        What::Test("conformance"),
        &[(
            OWN,
            "verbs::lanes verbs::torn_lists verbs::cables verbs::waking_lists",
        )],
    ),
    Whole::new("messages", Runs::All, "", ""),
    Whole::new("scope", Runs::All, "", ""),
    Whole::new("communicators", Runs::All, "", ""),
    Whole::new("operations", Runs::All, "", ""),
    Whole::new("errors", Runs::All, "", ""),
    Whole::new("tokio", Runs::All, "", ""),
    Whole::new("sharing", Runs::All, "", ""),
    Whole::new(
        "windows",
        Runs::All,
        "--skip graphs:: --skip ends:: --skip more_pieces_come",
        "",
    ),
    Whole::new(
        "collectives",
        Runs::All,
        // Rails of Portals are cut there, and not cables.
        "--skip nodes:: --skip simulated:: --skip torn::",
        "KILLS=3",
    ),
    Whole::new("programs", Runs::All, "--skip simulator", ""),
    Whole::new("faults", Runs::All, "", ""),
    Whole::new("failures", Runs::All, "", "RIPSTOP_DETECT_MS=500 KILLS=3"),
    Whole::new("recovery", Runs::All, "", ""),
    Whole::new(
        "cables",
        Runs::Reactors,
        "--include-ignored",
        "RIPSTOP_DETECT_MS=10000",
    ),
    Whole::new("halo", Runs::All, "", ""),
    Whole::new("awp", Runs::All, "--test-threads 1", "CASES=1"),
    Whole::new(
        "p3dfft",
        Runs::All,
        "--test-threads 1 --skip simulated",
        "CASES=1",
    ),
    Whole::example("example-halo", "halo", "--n 16 --steps 20"),
    Whole::example("example-awp", "awp", "--n 12 --steps 4 --check"),
    Whole::example(
        "example-p3dfft",
        "p3dfft",
        "--n 8 --vars 1 --iters 1 --check",
    ),
    Whole::example("example-hello", "hello", ""),
    Whole::example("example-ring", "ring", ""),
    Whole::new(
        "loopback",
        Runs::All,
        "--include-ignored --test-threads 1",
        "",
    ),
    Whole::test_as("loopback-messages", "messages", "", LOOPBACK),
    Whole::test_as(
        "loopback-collectives",
        "collectives",
        "forms:: results::",
        LOOPBACK,
    ),
];

#[cfg(test)]
mod tests {
    use super::{Cell, Wish, chosen};

    fn only(words: &[&str]) -> Wish {
        Wish {
            only: words.iter().map(ToString::to_string).collect(),
            ..Wish::default()
        }
    }

    fn runs(cells: &[Cell]) -> Vec<String> {
        let run = |cell: &Cell| format!("{} {} {}", cell.name, cell.devices, cell.reactor);
        cells.iter().map(run).collect()
    }

    #[test]
    fn a_suite_runs_on_either_devices_with_either_reactor() {
        let cells = chosen(&only(&["messages"])).unwrap();
        let expected = [
            "messages one uring",
            "messages one epoll",
            "messages across uring",
            "messages across epoll",
        ];
        assert_eq!(runs(&cells), expected);
        assert!(
            cells[1]
                .suite
                .env
                .contains("DEVICE=rxe0 RIPSTOP_REACTOR=epoll")
        );
        assert!(!cells[2].suite.env.contains("DEVICE"));
    }

    #[test]
    fn a_wish_leaves_what_it_names() {
        let wish = Wish {
            devices: Some("one".to_owned()),
            reactor: Some("epoll".to_owned()),
            ..only(&["windows::pscw", "scope"])
        };
        let cells = chosen(&wish).unwrap();
        assert_eq!(runs(&cells), ["windows::pscw one epoll", "scope one epoll"]);
        assert!(cells[0].suite.args.ends_with(" pscw"));
        let wish = Wish {
            reactor: Some("epoll".to_owned()),
            ..only(&["library"])
        };
        assert!(chosen(&wish).is_err(), "drivers have no reactor");
    }

    #[test]
    fn a_filter_takes_the_place_of_a_drivers_own() {
        let cells = chosen(&only(&["verbs::no_wake_up_is_lost"])).unwrap();
        assert_eq!(runs(&cells), ["verbs::no_wake_up_is_lost own -"]);
        assert_eq!(
            cells[0].suite.args,
            "--include-ignored --test-threads 1 no_wake_up_is_lost"
        );
    }

    #[test]
    fn an_unknown_suite_is_named() {
        assert!(
            chosen(&only(&["message"]))
                .unwrap_err()
                .contains("message:")
        );
    }

    #[test]
    fn every_run_has_a_title_of_its_own() {
        let cells = chosen(&Wish::default()).unwrap();
        let mut titles: Vec<String> = cells.iter().map(|cell| cell.suite.title()).collect();
        titles.sort();
        titles.dedup();
        assert_eq!(titles.len(), cells.len());
    }
}
