//! Every suite, on one device and with the devices between the ranks, and with either reactor. This is too long for the gate.

use super::table::{SuiteKind, VmSuite};

/// A suite, with its name for `--only`.
pub(super) struct SuiteEntry {
    pub(super) name: &'static str,
    package: &'static str,
    what: SuiteKind,
    runs: SuiteCombinations,
    /// Arguments: tests that are left out because no device takes part in them, and options.
    args: &'static str,
    env: &'static str,
}

/// The combinations in which a suite runs.
#[derive(Clone, Copy)]
enum SuiteCombinations {
    /// All four combinations.
    All,
    /// Both reactors; the suite chooses its devices itself.
    Reactors,
    /// No reactor, because drivers sleep without one: a run on each of these devices, with the filters of the claims made there.
    Drivers(&'static [(&'static str, &'static str)]),
}

/// One run of a suite.
#[derive(Clone, Debug)]
pub(super) struct SuiteRun {
    /// The suite's name, with the filter that was asked for.
    pub(super) name: String,
    pub(super) devices: &'static str,
    pub(super) reactor: &'static str,
    pub(super) suite: VmSuite,
}

/// The suites that were asked for; empty means all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SuiteFilter {
    /// Suites by name, or `suite::filter`, where `filter` is passed to the test program.
    pub(super) only: Vec<String>,
    pub(super) devices: Option<String>,
    pub(super) reactor: Option<String>,
}

impl SuiteEntry {
    const fn new(
        name: &'static str,
        runs: SuiteCombinations,
        args: &'static str,
        env: &'static str,
    ) -> Self {
        Self {
            name,
            package: "ripstop",
            what: SuiteKind::Test(name),
            runs,
            args,
            env,
        }
    }

    const fn of_fabric(
        name: &'static str,
        what: SuiteKind,
        runs: &'static [(&'static str, &'static str)],
    ) -> Self {
        Self {
            name,
            package: "ripstop-fabric",
            what,
            runs: SuiteCombinations::Drivers(runs),
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
            what: SuiteKind::Test(test),
            ..Self::new(test, SuiteCombinations::All, args, env)
        }
    }

    const fn example(name: &'static str, example: &'static str, args: &'static str) -> Self {
        Self {
            name,
            package: "ripstop",
            what: SuiteKind::Example(example),
            runs: SuiteCombinations::All,
            args,
            env: "",
        }
    }

    /// Returns the runs of the suite, or those of its tests whose names contain this filter.
    fn cells(&self, filter: Option<&str>) -> Vec<SuiteRun> {
        let name = filter.map_or_else(
            || self.name.to_owned(),
            |filter| format!("{}::{filter}", self.name),
        );
        let cell = |devices, reactor, words: &str, env: String| SuiteRun {
            name: name.clone(),
            devices,
            reactor,
            suite: VmSuite {
                package: self.package,
                kind: self.what,
                args: joined(&[self.args, words]).into(),
                env: joined(&[&env, self.env]).into(),
            },
        };
        let all = filter.unwrap_or("");
        let mut cells = Vec::new();
        match self.runs {
            SuiteCombinations::All => {
                for (devices, device) in DEVICES {
                    for reactor in REACTORS {
                        let env = format!("{VERBS} {device} RIPSTOP_REACTOR={reactor}");
                        cells.push(cell(devices, reactor, all, env));
                    }
                }
            }
            SuiteCombinations::Reactors => {
                for reactor in REACTORS {
                    let env = format!("{PATIENT} RIPSTOP_REACTOR={reactor}");
                    cells.push(cell(OWN, reactor, all, env));
                }
            }
            SuiteCombinations::Drivers(_) if filter.is_some() => {
                cells.push(cell(OWN, "-", all, String::new()))
            }
            SuiteCombinations::Drivers(runs) => {
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
pub(super) fn select_runs(wish: &SuiteFilter) -> Result<Vec<SuiteRun>, String> {
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
const ALL: [SuiteEntry; 30] = [
    SuiteEntry::of_fabric("library", SuiteKind::Library, &[(OWN, "verbs::")]),
    SuiteEntry::of_fabric(
        "drivers",
        SuiteKind::Test("conformance"),
        &[
            ("one", "on_verbs::"),
            (
                "across",
                "on_verbs_across on_verbs_by_datagrams on_verbs_at_once on_verbs_with_few",
            ),
        ],
    ),
    SuiteEntry::of_fabric(
        "lanes",
        SuiteKind::Test("conformance"),
        &[(OWN, "on_verbs_by_two on_verbs_by_four")],
    ),
    SuiteEntry::of_fabric(
        "verbs",
        SuiteKind::Test("conformance"),
        &[(
            OWN,
            "verbs:: --skip on_verbs --skip cables:: --skip lanes:: --skip _lists::",
        )],
    ),
    SuiteEntry::of_fabric(
        "torn",
        SuiteKind::Test("conformance"),
        &[(
            OWN,
            "verbs::lanes verbs::torn_lists verbs::cables verbs::waking_lists",
        )],
    ),
    SuiteEntry::new("messages", SuiteCombinations::All, "", ""),
    SuiteEntry::new("scope", SuiteCombinations::All, "", ""),
    SuiteEntry::new("communicators", SuiteCombinations::All, "", ""),
    SuiteEntry::new("operations", SuiteCombinations::All, "", ""),
    SuiteEntry::new("errors", SuiteCombinations::All, "", ""),
    SuiteEntry::new("tokio", SuiteCombinations::All, "", ""),
    SuiteEntry::new("sharing", SuiteCombinations::All, "", ""),
    SuiteEntry::new(
        "windows",
        SuiteCombinations::All,
        "--skip graphs:: --skip ends:: --skip more_pieces_come",
        "",
    ),
    SuiteEntry::new(
        "collectives",
        SuiteCombinations::All,
        // Rails of Portals are cut there, and not cables.
        "--skip nodes:: --skip simulated:: --skip torn::",
        "KILLS=3",
    ),
    SuiteEntry::new("programs", SuiteCombinations::All, "--skip simulator", ""),
    SuiteEntry::new("faults", SuiteCombinations::All, "", ""),
    SuiteEntry::new(
        "failures",
        SuiteCombinations::All,
        "",
        "RIPSTOP_DETECT_MS=500 KILLS=3",
    ),
    SuiteEntry::new("recovery", SuiteCombinations::All, "", ""),
    SuiteEntry::new(
        "cables",
        SuiteCombinations::Reactors,
        "--include-ignored",
        "RIPSTOP_DETECT_MS=10000",
    ),
    SuiteEntry::new("halo", SuiteCombinations::All, "", ""),
    SuiteEntry::new("awp", SuiteCombinations::All, "--test-threads 1", "CASES=1"),
    SuiteEntry::new(
        "p3dfft",
        SuiteCombinations::All,
        "--test-threads 1 --skip simulated",
        "CASES=1",
    ),
    SuiteEntry::example("example-halo", "halo", "--n 16 --steps 20"),
    SuiteEntry::example("example-awp", "awp", "--n 12 --steps 4 --check"),
    SuiteEntry::example(
        "example-p3dfft",
        "p3dfft",
        "--n 8 --vars 1 --iters 1 --check",
    ),
    SuiteEntry::example("example-hello", "hello", ""),
    SuiteEntry::example("example-ring", "ring", ""),
    SuiteEntry::new(
        "loopback",
        SuiteCombinations::All,
        "--include-ignored --test-threads 1",
        "",
    ),
    SuiteEntry::test_as("loopback-messages", "messages", "", LOOPBACK),
    SuiteEntry::test_as(
        "loopback-collectives",
        "collectives",
        "forms:: results::",
        LOOPBACK,
    ),
];

#[cfg(test)]
mod tests {
    use super::{SuiteFilter, SuiteRun, select_runs};

    fn only(words: &[&str]) -> SuiteFilter {
        SuiteFilter {
            only: words.iter().map(ToString::to_string).collect(),
            ..SuiteFilter::default()
        }
    }

    fn runs(cells: &[SuiteRun]) -> Vec<String> {
        let run = |cell: &SuiteRun| format!("{} {} {}", cell.name, cell.devices, cell.reactor);
        cells.iter().map(run).collect()
    }

    #[test]
    fn a_suite_runs_on_either_devices_with_either_reactor() {
        let cells = select_runs(&only(&["messages"])).unwrap();
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
        let wish = SuiteFilter {
            devices: Some("one".to_owned()),
            reactor: Some("epoll".to_owned()),
            ..only(&["windows::pscw", "scope"])
        };
        let cells = select_runs(&wish).unwrap();
        assert_eq!(runs(&cells), ["windows::pscw one epoll", "scope one epoll"]);
        assert!(cells[0].suite.args.ends_with(" pscw"));
        let wish = SuiteFilter {
            reactor: Some("epoll".to_owned()),
            ..only(&["library"])
        };
        assert!(select_runs(&wish).is_err(), "drivers have no reactor");
    }

    #[test]
    fn a_filter_takes_the_place_of_a_drivers_own() {
        let cells = select_runs(&only(&["verbs::no_wake_up_is_lost"])).unwrap();
        assert_eq!(runs(&cells), ["verbs::no_wake_up_is_lost own -"]);
        assert_eq!(
            cells[0].suite.args,
            "--include-ignored --test-threads 1 no_wake_up_is_lost"
        );
    }

    #[test]
    fn an_unknown_suite_is_named() {
        assert!(
            select_runs(&only(&["message"]))
                .unwrap_err()
                .contains("message:")
        );
    }

    #[test]
    fn every_run_has_a_title_of_its_own() {
        let cells = select_runs(&SuiteFilter::default()).unwrap();
        let mut titles: Vec<String> = cells.iter().map(|cell| cell.suite.title()).collect();
        titles.sort();
        titles.dedup();
        assert_eq!(titles.len(), cells.len());
    }
}
