//! The errors of bad arguments.

use ripstop::sim::{Model, Simulation};

#[track_caller]
fn refused(simulation: Simulation, words: &[&str]) {
    let error = simulation
        .run(|_| async {})
        .map(|report| report.time)
        .unwrap_err()
        .to_string();
    for word in words {
        assert!(error.contains(word), "`{word}` is not in: {error}");
    }
}

#[test]
fn bad_arguments_are_named() {
    refused(Simulation::new(0), &["ranks"]);
    refused(Simulation::new(u32::MAX), &["ranks", "memory"]);
    refused(Simulation::new(2).fabric("bxy"), &["bxy", "bxi", "seastar"]);
    refused(Simulation::new(2).faults("drip=0.3"), &["drip", "drop"]);
    refused(Simulation::new(2).faults("drop=1.5"), &["drop", "1.5"]);
    refused(Simulation::new(4).faults("kill=4@1ms"), &["kill", "4"]);
    refused(Simulation::new(4).faults("kill-rail=9@1ms"), &["rail", "9"]);
    refused(
        Simulation::new(2).set("RIPSTOP_EAGER_MIN", "1"),
        &["RIPSTOP_EAGER_MIN"],
    );
}

#[test]
fn a_model_with_an_unknown_field_names_it() {
    let error = Model::from_toml("base = \"bxi\"\n[nic]\nrals = 2\n").unwrap_err();
    assert!(error.to_string().contains("rals"), "{error}");
}
