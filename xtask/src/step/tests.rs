use super::{CommandLine, LongStep, StepLane, StepOutput, StepRunner, TestTally, root};

#[test]
fn counts_are_read_from_the_lines_of_cargo_test() {
    let mut tally = TestTally::default();
    tally.add("test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 7 filtered out; finished in 0.10s");
    tally.add("test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out");
    tally.add("test a_line_about_12_passed ... ok");
    assert_eq!(
        tally,
        TestTally {
            passed: 4,
            failed: 2,
            ignored: 1
        }
    );
}

#[test]
fn a_task_prints_as_a_shell_would_take_it() {
    let task = CommandLine::cargo(&["test", "a b"]).with("RUSTFLAGS", "--cfg loom");
    assert_eq!(task.to_string(), "RUSTFLAGS='--cfg loom' cargo test 'a b'");
}

fn alone() -> StepRunner {
    StepRunner {
        root: root(),
        tally: TestTally::default(),
        done: Vec::new(),
        lane: StepLane::Alone,
        output: StepOutput::Printed,
    }
}

/// Runs a long step with this outcome beside others with theirs; returns the gate afterwards.
fn beside(
    long: Result<(), String>,
    others: Result<(), String>,
) -> (Result<(), String>, StepRunner) {
    let mut gate = alone();
    let work = |tally: &mut TestTally| {
        tally.passed += 3;
        (long, "what it printed".to_owned())
    };
    let long = LongStep {
        name: "long",
        repeat: "again",
        work: Box::new(work),
    };
    let outcome = gate.run_beside(long, |gate| {
        let task = gate.fitted(&CommandLine::cargo(&["test"])).to_string();
        let fitted = "CARGO_BUILD_JOBS=1 RUST_TEST_THREADS=2 nice -n 5 cargo test";
        assert_eq!(task, fitted);
        others
    });
    (outcome, gate)
}

#[test]
fn steps_beside_each_other_are_both_carried_to_their_ends_and_counted() {
    let (outcome, gate) = beside(Ok(()), Ok(()));
    outcome.unwrap();
    assert_eq!((gate.tally.passed, gate.done.len()), (3, 1));
    assert_eq!(
        gate.lane,
        StepLane::Alone,
        "what follows has all processors"
    );
    let sad = || Err("sad".to_owned());
    assert!(
        beside(sad(), Ok(()))
            .0
            .unwrap_err()
            .contains("To repeat: again")
    );
    assert_eq!(beside(Ok(()), sad()).0.unwrap_err(), "sad");
    let both = beside(sad(), sad()).0.unwrap_err();
    assert!(
        both.contains("FAILED: long") && both.ends_with("\nsad"),
        "{both}"
    );
}

/// Runs a script as a step that is a run of tests, behind others, and returns the outcome, the counts and the gate.
fn behind(script: &str) -> (Result<(), String>, String, StepRunner) {
    let mut gate = alone();
    let mut printed = String::new();
    let task = CommandLine::new("sh", &["-c", script]);
    let outcome = gate.run_behind(
        |lane| {
            let outcome = lane.run_tests("script", &task);
            if let StepOutput::Kept(kept) = &lane.output {
                printed.clone_from(kept);
            }
            outcome
        },
        |gate| gate.run("other", &CommandLine::new("true", &[])),
    );
    (outcome, printed, gate)
}

#[test]
fn a_step_behind_others_is_counted_and_its_output_and_errors_are_kept() {
    let script = "echo one; echo two >&2; echo 'test result: ok. 3 passed; 0 filtered out'";
    let (outcome, printed, gate) = behind(script);
    outcome.unwrap();
    assert!(
        printed.starts_with("\n==> script: CARGO_BUILD_JOBS=2"),
        "{printed}"
    );
    assert!(printed.contains("\none\ntwo\ntest result"), "{printed}");
    assert_eq!((gate.tally.passed, gate.done.len()), (3, 2));
    assert_eq!(gate.lane, StepLane::Alone);
}

#[test]
fn a_step_behind_others_that_fails_says_which_and_how_to_repeat_it() {
    let (outcome, _, gate) = behind("exit 7");
    let why = outcome.unwrap_err();
    assert!(why.contains("FAILED: script, after"), "{why}");
    assert!(why.contains("nice -n 15 sh -c 'exit 7'"), "{why}");
    assert_eq!(gate.done.len(), 2, "the other step ran to its end");
}
