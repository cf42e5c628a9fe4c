//! `ripstop doctor` and `ripstop info --topology` in jobs.

use std::process::Command;

use serde_json::Value;

use super::{RIPSTOP, ended, launcher};

#[test]
fn one_rank_of_each_node_reports_and_the_job_ends_well() {
    let mut command = launcher(2, &["--bind", "core"]);
    command.args(["--", RIPSTOP, "doctor", "--json", "processors", "launchers"]);
    let ended = ended(command);
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    let reports: Vec<&str> = ended.out.lines().collect();
    let [report] = reports[..] else {
        panic!("one report in {}", ended.out);
    };
    let report: Value = serde_json::from_str(report).unwrap();
    let checks = report["checks"].as_array().unwrap();
    let seen = |name: &str| {
        let mut all = checks.iter();
        all.find(|check| check["check"] == name).unwrap()["seen"].clone()
    };
    assert_eq!(
        seen("launchers.started_by"),
        "ripstop run has started this process"
    );
    assert!(
        checks
            .iter()
            .all(|check| check["check"] != "kernel.version")
    );
    assert!(seen("processors.allowed").is_string());
}

#[test]
fn a_report_compares_with_itself_and_other_input_is_refused() {
    let script = format!(
        "{RIPSTOP} doctor --json memory | tee /dev/stderr | {RIPSTOP} doctor --compare - --strict"
    );
    let mut command = Command::new("sh");
    command.args(["-c", &script]);
    let same = ended(command);
    assert_eq!(same.code, Some(0), "{} {}", same.out, same.err);
    assert!(same.out.starts_with("1 node"), "{}", same.out);
    let mut command = Command::new(RIPSTOP);
    command.args(["doctor", "--compare", "/dev/null"]);
    let empty = ended(command);
    assert_eq!(empty.code, Some(2), "{}", empty.err);
    assert!(empty.err.contains("no report was read"), "{}", empty.err);
}

#[test]
fn the_topology_of_a_job_shows_each_rank_on_its_own_processors() {
    let mut command = launcher(2, &["--bind", "core"]);
    command.args(["--", RIPSTOP, "info", "--topology", "--json"]);
    let ended = ended(command);
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    let report: Value = serde_json::from_str(ended.out.trim()).unwrap();
    let ranks = report["ranks"].as_array().unwrap();
    let numbers: Vec<&Value> = ranks.iter().map(|rank| &rank["rank"]).collect();
    assert_eq!(numbers, [0, 1]);
    // With one processor only, no rank is bound.
    let processors = |rank: usize| ranks[rank]["processors"].as_array().unwrap();
    if processors(0).len() == 1 && std::thread::available_parallelism().unwrap().get() > 1 {
        assert_ne!(processors(0), processors(1));
    }
}
