#![expect(clippy::print_stdout, reason = "figures are printed on request")]

use std::{cell::RefCell, collections::BTreeMap};

use ripstop::sim::{Model, SimManager, Simulation, Stats};

use super::super::{
    app_workload::AppWorkload,
    connection_setup::{NodeThreads, WAYS},
    scenario::{RankFigures, ScenarioKind, ScenarioWork},
};

/// Runs a job on `qdr`.
#[derive(Clone, Copy)]
struct Job {
    scenario: ScenarioKind,
    ranks: u32,
    per_node: u32,
    size: usize,
    iters: u64,
    /// Threads of a node that make queue pairs.
    threads: u32,
    queue_pairs_max: u32,
}

impl Job {
    const fn new(scenario: ScenarioKind, ranks: u32, per_node: u32) -> Self {
        Self {
            scenario,
            ranks,
            per_node,
            size: 8,
            iters: 10,
            threads: 8,
            queue_pairs_max: u32::MAX,
        }
    }

    fn model(self) -> Model {
        let mut model = Model::preset("qdr").unwrap();
        model.node.ranks = self.per_node;
        model
    }

    fn simulation(self) -> Simulation {
        Simulation::new(self.ranks)
            .model(self.model())
            .queue_pairs_max(self.queue_pairs_max)
            .set("RIPSTOP_COLLECTIVES", "messages")
    }

    fn resolve_way(self, way: &'static str) -> &'static str {
        self.scenario.resolve_way(&self.simulation(), way)
    }

    /// Returns what rank 0 found.
    fn run(self, way: &'static str) -> (Stats, RankFigures) {
        let node = NodeThreads {
            ranks: self.per_node,
            threads: self.threads,
        };
        let manager = SimManager::new(&self.model());
        let (job, way) = (self.simulation(), self.resolve_way(way));
        let work = ScenarioWork {
            size: self.size,
            iters: self.iters,
            seed: 0,
            way,
            load: AppWorkload::default(),
        };
        let mut report = self
            .scenario
            .configure_job(job, way, node)
            .run(|world| self.scenario.start(world, work, manager.clone()))
            .unwrap();
        (
            report.stats,
            report.results.swap_remove(0).unwrap().unwrap(),
        )
    }

    fn figure(self, way: &'static str, wanted: &str) -> f64 {
        let (_, found) = self.run(way);
        let value = figure(&found, wanted);
        println!(
            "{:?} of {} ranks, {way}: {wanted} {value:.3}",
            self.scenario, self.ranks
        );
        value
    }
}

/// Figures of a job in many ways. A way runs once, however many of its figures are wanted, and by whichever of its names.
struct JobFigures {
    job: Job,
    found: RefCell<BTreeMap<&'static str, RankFigures>>,
}

impl JobFigures {
    const fn of(job: Job) -> Self {
        let found = RefCell::new(BTreeMap::new());
        Self { job, found }
    }

    fn get(&self, way: &'static str, wanted: &str) -> f64 {
        let real = self.job.resolve_way(way);
        let mut found = self.found.borrow_mut();
        let value = figure(
            found.entry(real).or_insert_with(|| self.job.run(real).1),
            wanted,
        );
        println!(
            "{:?} of {} ranks, {way}, which is {real}: {wanted} {value:.3}",
            self.job.scenario, self.job.ranks
        );
        value
    }
}

fn figure(found: &RankFigures, wanted: &str) -> f64 {
    let figure = found.iter().find(|(name, _, _)| *name == wanted);
    figure.unwrap_or_else(|| panic!("no {wanted}")).2
}

#[test]
fn a_first_iteration_is_slow_where_pairs_must_be_connected_and_nowhere_else() {
    for (scenario, size) in [
        (ScenarioKind::FirstAlltoall, 8),
        (ScenarioKind::FirstAlltoall, 1024),
        (ScenarioKind::FirstAllreduce, 8),
        (ScenarioKind::FirstBcast, 8),
    ] {
        let job = Job {
            size,
            ..Job::new(scenario, 64, 4)
        };
        let steady = job.figure("node", "steady_us");
        let first = |way| job.figure(way, "first_us") / steady;
        assert!(first("node") <= 1.1);
        assert!(first("auto") <= 2.5, "the goal is 5");
        assert!(first("naive") > 100.0);
    }
}

#[test]
fn connecting_with_all_at_once_is_faster_than_with_one_after_the_other() {
    let job = Job::new(ScenarioKind::FirstAlltoall, 64, 1);
    let (naive, bulk) = (
        job.figure("naive", "first_us"),
        job.figure("on-demand", "first_us"),
    );
    // From then on the adapter is the limit.
    assert!(naive >= 3.9 * bulk, "{naive} and {bulk}");
}

#[test]
fn what_the_library_chooses_is_within_a_tenth_of_the_best_way_for_a_stencil() {
    let figures = JobFigures::of(Job::new(ScenarioKind::SevenPoint, 64, 8));
    let total = |way| figures.get(way, "total_ms");
    let best = WAYS.iter().map(|way| total(way)).fold(f64::MAX, f64::min);
    for way in ["auto", "verbs"] {
        assert!(total(way) <= 1.1 * best, "{way}");
    }
    assert!(total("pairs") >= 10.0 * total("auto"));
}

#[test]
fn the_driver_goes_by_datagrams_where_few_speak_or_there_are_too_few_queue_pairs() {
    let settled = |scenario: ScenarioKind, queue_pairs| {
        let mut model = Model::preset("qdr").unwrap();
        model.node.ranks = 8;
        let job = Simulation::new(64).model(model);
        let job = job.queue_pairs_max(queue_pairs);
        ["auto", "verbs", "naive"].map(|way| scenario.resolve_way(&job, way))
    };
    let all = u32::MAX;
    assert_eq!(settled(ScenarioKind::Ft, all), ["hybrid", "node", "naive"]);
    assert_eq!(settled(ScenarioKind::SevenPoint, all)[1], "hybrid");
    assert_eq!(settled(ScenarioKind::Startup, all)[1], "node");
    assert_eq!(
        settled(ScenarioKind::Ft, 8 * 62),
        ["hybrid", "hybrid", "naive"]
    );
}

#[test]
fn one_iteration_more_than_the_first_is_a_steady_one() {
    for scenario in [ScenarioKind::SevenPoint, ScenarioKind::FirstAllreduce] {
        let job = Job {
            iters: 1,
            ..Job::new(scenario, 8, 2)
        };
        let (first, steady) = (
            job.figure("naive", "first_us"),
            job.figure("naive", "steady_us"),
        );
        assert!(steady > 0.0 && steady < first, "{first} and {steady}");
    }
}

#[test]
#[cfg_attr(
    debug_assertions,
    ignore = "a grid of 512 MiB: `cargo xtask test --all` has an optimised build for it"
)]
fn a_transform_does_not_wait_for_its_connections() {
    // Blocks of 2 KB. With fewer ranks, blocks are longer and are fetched through queue pairs.
    let figures = JobFigures::of(Job {
        iters: 3,
        ..Job::new(ScenarioKind::Ft, 512, 16)
    });
    let rate = |way| figures.get(way, "gflop_per_s_in_all");
    let auto = rate("auto");
    assert!(auto >= 1.31 * rate("naive"));
    assert!(auto >= 0.9 * rate("node"));
    // After the start, no way is faster than the one that the driver chooses.
    let steady = |way| figures.get(way, "gflop_per_s");
    let best = WAYS.iter().map(|way| steady(way)).fold(0.0, f64::max);
    assert!(steady("verbs") >= 0.9 * best);
}

#[test]
fn neighbors_do_not_notice_that_a_node_has_too_few_queue_pairs_for_all_pairs() {
    let all = Job::new(ScenarioKind::SevenPoint, 128, 8);
    let few = Job {
        queue_pairs_max: 24 * 8,
        ..all
    };
    for way in ["on-demand", "hybrid"] {
        let slowdown = few.figure(way, "total_ms") / all.figure(way, "total_ms");
        assert!(slowdown <= 1.2, "{way}: {slowdown:.2}");
    }
    // If all ranks communicate with all, they take turns, or need none.
    let few = Job {
        scenario: ScenarioKind::FirstAlltoall,
        queue_pairs_max: 4 * 8,
        ..all
    };
    assert!(few.run("naive").0.evictions > 0);
    assert!(few.figure("hybrid", "ratio") <= 1.1);
}

#[test]
fn a_record_for_each_node_leaves_the_process_manager_little_to_do() {
    let start = |ranks, per_node| Job::new(ScenarioKind::Startup, ranks, per_node);
    let job = start(128, 16);
    let (pairs, node) = (job.run("pairs").1, job.run("node").1);
    let ratio = figure(&pairs, "exchange_us") / figure(&node, "exchange_us");
    let whole = figure(&pairs, "start_us") / figure(&node, "start_us");
    let share = figure(&node, "exchange");
    println!("exchange {ratio:.0} times, start {whole:.1} times as fast; {share:.1} % of it");
    assert!(ratio >= 20.0 && whole >= 2.5 && share < 20.0);
    let naive = job.figure("naive", "exchange_us");
    assert!(figure(&node, "exchange_us") <= naive);
}

#[test]
fn threads_that_help_make_queue_pairs_save_what_the_adapter_lets_them() {
    let making = |threads| {
        let job = Job {
            threads,
            ..Job::new(ScenarioKind::Startup, 64, 1)
        };
        job.figure("node", "making_us")
    };
    let one = making(1);
    assert!(making(2) <= 0.51 * one);
    for threads in [8, 16] {
        let saved = 1.0 - making(threads) / one;
        assert!(saved >= 0.74, "{saved}");
    }
}

#[test]
fn a_start_takes_the_managers_time_for_each_of_its_requests() {
    let (ranks, service_us) = (112_u32, 10.0);
    let all = f64::from(ranks);
    for (way, requests) in [
        ("pairs", all * (6.0 * (all - 1.0) + 1.0)),
        ("ranges", all * (3.0 + all - 1.0)),
        ("naive", all * (3.0 + 6.0)),
        ("hybrid", all * 3.0 + 2.0 + 2.0 * 2.0),
    ] {
        let (_, found) = Job::new(ScenarioKind::Startup, ranks, 56).run(way);
        assert!((figure(&found, "requests") - requests).abs() < 0.5, "{way}");
        let ratio = figure(&found, "exchange_us") / (requests * service_us);
        // A rank that waits for an answer leaves the manager idle at times.
        assert!((0.99..1.05).contains(&ratio), "{way}: {ratio:.3}");
    }
}
