use std::sync::Barrier;

use proptest::prelude::{any, proptest};

use super::*;

fn environment(variables: &[(&str, &str)]) -> Environment {
    variables.iter().copied().collect()
}

fn refusal(variables: &[(&str, &str)]) -> String {
    discover(&environment(variables)).unwrap_err().to_string()
}

#[test]
fn alone_means_one_rank_that_keeps_the_rules_of_an_exchange() {
    let mut boot = discover(&Environment::default()).unwrap();
    assert_eq!(
        (boot.rank, boot.size, boot.found, boot.node.leader()),
        (0, 1, "singleton", 0)
    );
    boot.exchange.put("a", "1").unwrap();
    assert_eq!(
        boot.exchange.get(0, "a").unwrap(),
        None,
        "not before the fence"
    );
    boot.exchange.fence().unwrap();
    assert_eq!(boot.exchange.get(0, "a").unwrap().as_deref(), Some("1"));
    boot.exchange.finalize().unwrap();
    boot.exchange.finalize().unwrap();
    assert!(matches!(boot.exchange.fence(), Err(BootError::Over)));
}

#[test]
fn a_job_that_would_fall_apart_into_single_ranks_is_an_error_with_the_command() {
    let open_mpi = refusal(&[("OMPI_COMM_WORLD_SIZE", "4"), ("PMIX_RANK", "0")]);
    assert!(
        open_mpi.contains("OMPI_COMM_WORLD_SIZE=4") && open_mpi.contains("mpiexec.hydra -n 4"),
        "{open_mpi}"
    );
    assert!(open_mpi.contains("ripstop run -n 4"), "{open_mpi}");
    let slurm = refusal(&[("SLURM_NTASKS", "8"), ("SLURM_PROCID", "0")]);
    assert!(slurm.contains("srun --mpi=pmi2 -n 8"), "{slurm}");
    let lost = refusal(&[("PMI_SIZE", "2"), ("PMI_RANK", "0")]);
    assert!(lost.contains("PMI_FD is not set"), "{lost}");
    assert!(refusal(&[("PMIX_RANK", "3")]).contains("PMIX_RANK=3"));
}

#[test]
fn ranks_of_flux_and_pals_that_cannot_join_are_told_how_these_start_ranks() {
    let flux = refusal(&[("FLUX_JOB_SIZE", "4"), ("FLUX_TASK_RANK", "0")]);
    assert!(flux.contains("flux run -o pmi=simple -n 4"), "{flux}");
    let pals = refusal(&[("PALS_RANKID", "2")]);
    assert!(pals.contains("mpiexec --pmi=pmix -n N"), "{pals}");
    let path = std::env::temp_dir().join(format!("ripstop-pals-{}", std::process::id()));
    let mut file = [0; 84];
    file[..4].copy_from_slice(&5_i32.to_ne_bytes());
    file[80..].copy_from_slice(&6_i32.to_ne_bytes());
    std::fs::write(&path, file).unwrap();
    let first = refusal(&[
        ("PALS_RANKID", "0"),
        ("PALS_APINFO", path.to_str().unwrap()),
    ]);
    std::fs::remove_file(&path).unwrap();
    assert!(first.contains("mpiexec --pmi=pmix -n 6"), "{first}");
}

#[test]
fn a_rank_of_pals_joins_by_pmix() {
    let of_pals = [
        ("PALS_RANKID", "1"),
        ("PMI_RANK", "1"),
        ("PMI_SIZE", "2"),
        ("PMIX_NAMESPACE", "job"),
        ("PMIX_RANK", "1"),
    ];
    let of = |variables: &[(&str, &str)]| LauncherProtocol::of(&environment(variables));
    assert_eq!(of(&of_pals), LauncherProtocol::Pmix);
    assert_eq!(of(&of_pals[..3]), LauncherProtocol::None);
}

#[test]
fn a_connection_of_pmi_1_that_is_closed_leaves_the_ranks_to_pmix() {
    let pmix = [("PMIX_NAMESPACE", "job"), ("PMIX_RANK", "0")];
    let closed = [("PMI_FD", "1000000"), ("PMI_RANK", "1"), ("PMI_SIZE", "2")];
    let of = |variables: &[(&str, &str)]| LauncherProtocol::of(&environment(variables));
    assert_eq!(of(&[&pmix[..], &closed].concat()), LauncherProtocol::Pmix);
    assert_eq!(
        of(&closed),
        LauncherProtocol::Pmi1,
        "to say what is wrong with it"
    );
    assert_eq!(of(&pmix[1..]), LauncherProtocol::None);
}

#[test]
fn a_job_of_one_rank_is_checked_by_what_ranks_of_others_have_not_by_allocations() {
    let check = |variables: &[(&str, &str)]| environment(variables).check_job_of_one("pmix");
    let lost = check(&[("PMI_FD", "6"), ("PMI_SIZE", "2")]).unwrap_err();
    let said = lost.to_string();
    assert!(matches!(lost, BootError::WrongLauncher { .. }), "{said}");
    assert!(
        said.contains("PMI_SIZE=2") && said.contains("pmix reports one rank"),
        "{said}"
    );
    let step = [("SLURM_NTASKS", "8"), ("SLURM_PROCID", "1")];
    assert!(check(&step).is_ok(), "one rank of eight possible ones");
    assert!(check(&[("PMI_SIZE", "1"), ("PMIX_RANK", "0")]).is_ok());
}

#[test]
fn a_job_of_one_rank_is_no_contradiction_and_neither_is_an_explicit_wish() {
    assert_eq!(
        discover(&environment(&[
            ("OMPI_COMM_WORLD_SIZE", "1"),
            ("PMIX_RANK", "0")
        ]))
        .unwrap()
        .size,
        1
    );
    assert_eq!(
        discover(&environment(&[
            ("SLURM_NTASKS", "8"),
            ("RIPSTOP_BOOT", "singleton")
        ]))
        .unwrap()
        .size,
        1
    );
    assert_eq!(
        discover(&environment(&[("PMI_SIZE", ""), ("SLURM_NTASKS", "many")]))
            .unwrap()
            .size,
        1
    );
}

#[test]
fn a_bad_variable_is_named_with_its_value_and_its_range() {
    assert!(
        refusal(&[("RIPSTOP_BOOT", "pmi3")])
            .starts_with("RIPSTOP_BOOT=pmi3: expected auto, pmi1, pmix or singleton")
    );
    assert!(refusal(&[("RIPSTOP_BOOT", "pmi1")]).starts_with("PMI_FD=: expected"));
    assert!(refusal(&[("PMI_FD", "x")]).starts_with("PMI_FD=x: expected a number"));
    let bad_rank = refusal(&[("PMI_FD", "3"), ("PMI_RANK", "4"), ("PMI_SIZE", "4")]);
    assert!(
        bad_rank.starts_with("PMI_RANK=4: expected a number from 0 to 3"),
        "{bad_rank}"
    );
    assert!(
        refusal(&[("PMI_FD", "3"), ("PMI_RANK", "0"), ("PMI_SIZE", "0")]).starts_with("PMI_SIZE=0")
    );
}

#[test]
fn keys_and_values_have_the_same_limits_everywhere() {
    let mut job = threads(1).remove(0);
    let mut alone = singleton::boot();
    for exchange in [&mut job.exchange, &mut alone.exchange] {
        for key in ["", "a b", "a=b", "ä", &"k".repeat(49)] {
            assert!(
                matches!(exchange.put(key, "v"), Err(BootError::Key { .. })),
                "{key}"
            );
            assert!(
                matches!(exchange.get(0, key), Err(BootError::Key { .. })),
                "{key}"
            );
        }
        for value in ["a b", "a\n", "ü", &"v".repeat(VALUE_MAX + 1)] {
            assert!(matches!(
                exchange.put("k", value),
                Err(BootError::Value { .. })
            ));
        }
    }
}

#[test]
fn threads_exchange_what_they_put_before_the_fence() {
    let together = Barrier::new(4);
    std::thread::scope(|scope| {
        for mut boot in threads(4) {
            let together = &together;
            scope.spawn(move || {
                assert_eq!(boot.node.ranks, [0, 1, 2, 3]);
                for round in 0..50 {
                    boot.exchange
                        .put(
                            &format!("a{}", boot.rank),
                            &format!("{round}.{}", boot.rank),
                        )
                        .unwrap();
                    boot.exchange.fence().unwrap();
                    let next = (boot.rank + 1) % boot.size;
                    let value = boot
                        .exchange
                        .get(next, &format!("a{next}"))
                        .unwrap()
                        .unwrap();
                    assert_eq!(value, format!("{round}.{next}"));
                    boot.exchange.fence().unwrap();
                }
                together.wait();
                boot.exchange.finalize().unwrap();
            });
        }
    });
}

#[test]
fn a_thread_that_leaves_fails_the_fence_of_the_others() {
    let mut boots = threads(3);
    drop(boots.remove(1));
    // Three fences for three ranks: the ranks whose fence failed do not count in a later one.
    for boot in [0, 1, 0] {
        let error = boots[boot].exchange.fence().unwrap_err();
        assert!(matches!(error, BootError::RankGone { rank: 1 }), "{error}");
    }
}

#[test]
fn a_thread_that_aborts_wakes_those_in_the_fence() {
    let mut boots = threads(2);
    let mut second = boots.remove(1);
    let mut first = boots.remove(0);
    let waiting = std::thread::spawn(move || first.exchange.fence().unwrap_err());
    second.exchange.abort(3, "no grid");
    let error = waiting.join().unwrap();
    assert_eq!(
        error.to_string(),
        "rank 1 ended the job with code 3: no grid"
    );
}

proptest! {
    #[test]
    fn no_environment_panics(name in 0_usize..5, value in "[ -~]{0,12}", size in "-?[0-9]{0,12}", fd in any::<bool>()) {
        let names = ["PMI_RANK", "OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "RIPSTOP_BOOT", "RIPSTOP_BOOT_TIMEOUT"];
        // A number that is certainly not an open descriptor. Open ones belong to tests that run at the same time.
        let fd = if fd { "1000000" } else { "" };
        let _ = discover(&environment(&[("PMI_RANK", "0"), (names[name], &value), ("PMI_SIZE", &size), ("PMI_FD", fd)]));
    }
}

#[test]
fn ranks_of_one_host_are_a_node() {
    let hosts = ["a", "b", "a", "a"].map(str::to_owned);
    let of = |ranks: &[u32]| Node {
        ranks: ranks.to_vec(),
        each: None,
        most: 3,
    };
    assert_eq!(Node::of_hosts(2, &hosts), of(&[0, 2, 3]));
    assert_eq!(Node::of_hosts(1, &hosts), of(&[1]));
    assert_eq!(Node::of_hosts(4, &hosts), of(&[4]));
}
