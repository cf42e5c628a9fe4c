//! The command `ripstop-baselines`, as one process that no launcher started.

use std::{
    env,
    process::{Command, Output},
};

fn baselines(words: &[&str], variables: &[(&str, &str)]) -> Output {
    let test = env::current_exe().expect("the test's own name");
    let mut places = test.ancestors().skip(1).take(2);
    let library = places.find_map(|dir| {
        let library = dir.join("libportals_sandia42.so");
        library.exists().then_some(library)
    });
    let mut command = Command::new(env!("CARGO_BIN_EXE_ripstop-baselines"));
    command
        .args(words)
        .env(
            "RIPSTOP_PORTALS_LIBRARY",
            library.expect("cargo puts the library beside the test"),
        )
        .envs(variables.iter().copied());
    command.output().expect("the command starts")
}

/// The rank joins its job over the baseline, before the measurement counts the ranks.
#[test]
fn a_measurement_alone_is_refused_with_the_ranks_that_it_needs() {
    for baseline in ["pscom", "mpc"] {
        let output = baselines(&[baseline, "latency"], &[]);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{errors}");
        assert!(errors.contains("needs 2 ranks"), "{errors}");
    }
}

#[test]
fn variables_of_pscom_act_on_its_baseline_only() {
    let wrong = [("PSP_PORTALS_BUFFER_SIZE", "1")];
    let pscom = baselines(&["pscom", "latency"], &wrong);
    let errors = String::from_utf8_lossy(&pscom.stderr);
    assert!(
        errors.contains("PSP_PORTALS_BUFFER_SIZE=1") && errors.contains("256..=1048576"),
        "{errors}"
    );
    let mpc = baselines(&["mpc", "latency"], &wrong);
    let errors = String::from_utf8_lossy(&mpc.stderr);
    assert!(errors.contains("needs 2 ranks"), "{errors}");
}

#[test]
fn each_variable_is_listed_with_its_range() {
    for words in [&["variables"][..], &["variables", "--json"]] {
        let output = baselines(words, &[]);
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(
            text.contains("PSP_PORTALS_RECVQ_SIZE") && text.contains("1..=4096 buffers"),
            "{text}"
        );
    }
}
