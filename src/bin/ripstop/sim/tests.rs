#![expect(clippy::print_stdout, reason = "figures are printed on request")]

use ripstop::sim::{Model, Report, SimManager, Simulation};

use super::{
    SimArgs,
    app_workload::AppWorkload,
    scenario::{RankFigures, ScenarioKind, ScenarioWork},
    simulate,
};

/// Runs one scenario. Returns the report, and what rank 0 found.
fn run(
    scenario: ScenarioKind,
    way: &'static str,
    ranks: u32,
    fabric: &str,
    size: usize,
) -> (Report<ripstop::Result<RankFigures>>, RankFigures) {
    let work = ScenarioWork {
        size,
        iters: 3,
        seed: 0,
        way,
        load: AppWorkload::default(),
    };
    let model = Model::preset(fabric).unwrap();
    let manager = SimManager::new(&model);
    // As the command does.
    let mut report = Simulation::new(ranks)
        .model(model)
        .set("RIPSTOP_COLLECTIVES", "messages")
        .run(|world| scenario.start(world, work, manager.clone()))
        .unwrap();
    let found = report.results.swap_remove(0).unwrap().unwrap();
    (report, found)
}

fn figure(found: &RankFigures, wanted: &str) -> f64 {
    let figure = found.iter().find(|(name, _, _)| *name == wanted);
    figure.unwrap_or_else(|| panic!("no {wanted}")).2
}

/// A debug build is about twenty times slower.
fn sizes(largest: u32) -> impl Iterator<Item = u32> {
    let largest = if cfg!(debug_assertions) {
        largest / 16
    } else {
        largest
    };
    (0..)
        .map(|power| 2 << (3 * power))
        .take_while(move |&ranks| ranks <= largest)
}

#[derive(clap::Parser)]
struct Cli {
    #[command(flatten)]
    args: SimArgs,
}

#[test]
fn what_two_ranks_do_is_not_asked_of_one() {
    for (name, least) in [("pingpong", 2), ("stream", 2), ("rate", 2), ("ring", 1)] {
        for (ranks, fits) in [("1", least == 1), ("1..4", least == 1), ("2..4", true)] {
            let words = ["sim", name, "--ranks", ranks];
            let cli = <Cli as clap::Parser>::try_parse_from(words).unwrap();
            let cases = cli.args.cases();
            assert_eq!(cases.is_ok(), fits, "{name} --ranks {ranks}");
            let why = cases.err().map_or_else(String::new, |why| why.to_string());
            assert!(
                fits || why.contains(name) && why.contains("--ranks"),
                "{why}"
            );
        }
    }
}

#[test]
fn seeds_go_up_to_the_largest_and_no_further() {
    let args = |seed: u64, runs: u64| {
        let (seed, runs) = (seed.to_string(), runs.to_string());
        let words = ["sim", "barrier", "--ranks", "2", "--iters", "1"];
        let words = words.into_iter().chain(["--seed", &seed, "--runs", &runs]);
        <Cli as clap::Parser>::try_parse_from(words).unwrap().args
    };
    for (seed, runs) in [(u64::MAX, 1), (u64::MAX - 1, 2), (0, 3)] {
        let args = args(seed, runs);
        let cases = args.cases().unwrap();
        let seeds: Vec<u64> = cases.iter().map(|case| case.seed).collect();
        assert_eq!(seeds, (0..runs).map(|run| seed + run).collect::<Vec<_>>());
        assert_eq!(seeds.len(), cases.count());
        assert!(simulate(&args).is_ok());
    }
    for (seed, runs) in [(u64::MAX, 2), (u64::MAX - 1, 5), (2, u64::MAX)] {
        let why = args(seed, runs).cases().unwrap_err().to_string();
        let options = format!("--seed {seed} --runs {runs}: ");
        assert!(why.starts_with(&options), "{why}");
    }
}

#[test]
fn runs_are_made_as_they_come() {
    let words = ["sim", "ialltoall", "--ranks", "2..4", "--runs"];
    let words = words.into_iter().chain(["18446744073709551615"]);
    let cli = <Cli as clap::Parser>::try_parse_from(words).unwrap();
    let cases = cli.args.cases().unwrap();
    assert_eq!(cases.count(), usize::MAX);
    let ways = cli.args.scenario.ways();
    let seeds = cases.iter().step_by(ways.len()).map(|case| case.seed);
    assert_eq!(seeds.take(3).collect::<Vec<_>>(), [0, 1, 2]);
}

#[test]
fn an_all_to_all_by_adapters_bears_a_killed_rank_and_what_it_does_not_bear_is_replayed() {
    let outcome = |option: &str, value: &str| {
        let words = ["sim", "ialltoall", "--ranks", "8", "--size", "4096"];
        let way = ["--way", "offload-32", option, value];
        let words = words.iter().chain(&way);
        let cli = <Cli as clap::Parser>::try_parse_from(words).unwrap();
        simulate(&cli.args)
    };
    for at in ["1us", "2us", "3us"] {
        let borne = outcome("--faults", &format!("kill=3@{at}"));
        assert!(borne.is_ok(), "{at}: {borne:?}");
    }
    let refused = outcome("--set", "RIPSTOP_EAGER_MAX=much");
    let why = refused.unwrap_err().to_string();
    assert!(why.contains("\nreplay: ripstop sim"), "{why}");
    assert!(why.contains("--way offload-32"), "{why}");
}

#[test]
fn collectives_take_about_what_the_model_of_their_algorithm_says() {
    let auto = |scenario| (scenario, "");
    for (case, size, largest) in [
        (auto(ScenarioKind::Barrier), 0, 16_384),
        (auto(ScenarioKind::Allreduce), 8, 16_384),
        (auto(ScenarioKind::Allreduce), 4096, 1024),
        ((ScenarioKind::Alltoall, "auto"), 8, 1024),
        ((ScenarioKind::Alltoall, "bruck"), 1, 8192),
        ((ScenarioKind::Alltoall, "pairwise"), 8, 1024),
        // Between those lengths, messages are copied at both ends, which the model leaves out.
        ((ScenarioKind::Alltoall, "pairwise"), 65_536, 64),
    ] {
        for ranks in sizes(largest) {
            let (scenario, way) = case;
            let (_, found) = run(scenario, way, ranks, "bxi", size);
            let (each, model) = (figure(&found, "each_us"), figure(&found, "model_us"));
            println!("{case:?}, {size} bytes, {ranks} ranks: {each:.1} µs, model {model:.1} µs");
            let ratio = each / model;
            assert!(
                (0.6..1.7).contains(&ratio),
                "{case:?}, {ranks} ranks: {ratio:.2}"
            );
        }
    }
}

#[test]
fn the_model_beside_an_allreduce_is_that_of_the_algorithm_that_is_set() {
    let model = |algorithm| {
        let work = ScenarioWork {
            size: 4096,
            iters: 3,
            seed: 0,
            way: "",
            load: AppWorkload::default(),
        };
        let fabric = Model::preset("bxi").unwrap();
        let manager = SimManager::new(&fabric);
        let mut report = Simulation::new(16)
            .model(fabric)
            .set("RIPSTOP_COLLECTIVES", "messages")
            .set("RIPSTOP_ALLREDUCE", algorithm)
            .run(|world| ScenarioKind::Allreduce.start(world, work, manager.clone()))
            .unwrap();
        let found = report.results.swap_remove(0).unwrap().unwrap();
        let (each, model) = (figure(&found, "each_us"), figure(&found, "model_us"));
        assert!(
            (0.6..1.7).contains(&(each / model)),
            "{algorithm}: {each} µs, model {model} µs"
        );
        model
    };
    let (auto, ring) = (model("auto"), model("ring"));
    assert!(ring > 1.5 * auto, "{auto} µs, {ring} µs in a ring");
}

#[test]
fn the_command_runs_by_messages_what_stands_beside_their_model_unless_it_is_told_otherwise() {
    let each_and_model = |set: &[&str]| {
        let words = ["sim", "alltoall", "--preset", "bxi", "--ranks", "16"];
        let more = ["--size", "65536", "--iters", "3"];
        let words = words.iter().chain(&more).chain(set);
        let args = <Cli as clap::Parser>::try_parse_from(words).unwrap().args;
        let case = args
            .cases()
            .unwrap()
            .iter()
            .find(|case| case.way == "pairwise");
        let simulation = args.simulation().unwrap().ranks(16);
        let (_, found) = args.once(simulation, case.unwrap()).unwrap();
        ["each_us", "model_us"].map(|name| figure(&found, name))
    };
    let [each, model] = each_and_model(&[]);
    assert!(
        (0.6..1.7).contains(&(each / model)),
        "{each} µs, model {model} µs"
    );
    let [messages, _] = each_and_model(&["--set", "RIPSTOP_COLLECTIVES=messages"]);
    let [lists, _] = each_and_model(&["--set", "RIPSTOP_COLLECTIVES=lists"]);
    println!("{each} µs, by messages {messages} µs, by lists {lists} µs");
    assert!(
        each == messages && each != lists,
        "{each} µs, by lists {lists} µs"
    );
}

#[test]
fn memory_for_a_barrier_and_an_allreduce_grows_with_the_logarithm_of_the_ranks() {
    for scenario in [ScenarioKind::Barrier, ScenarioKind::Allreduce] {
        let each = |ranks: u32| {
            let (report, _) = run(scenario, "", ranks, "bxi", 8);
            report.memory.bytes / u64::from(ranks)
        };
        // Up to 16 ranks, every rank signals every other rank.
        let mut known = each(128);
        for ranks in sizes(16_384).filter(|&ranks| ranks > 128) {
            let now = each(ranks);
            println!("{scenario:?}: {now} bytes for each of {ranks} ranks");
            // Eight times the ranks are three more partners in either direction.
            let partners = (now - known) / 6;
            assert!(partners <= 600, "{partners} bytes for each new partner");
            known = now;
        }
    }
}

/// Runs an application with 64 ranks, 8 on a node, on `fabric`. Returns what rank 0 found.
fn application(
    scenario: ScenarioKind,
    way: &'static str,
    fabric: &str,
    load: AppWorkload,
) -> RankFigures {
    let mut model = Model::preset(fabric).unwrap();
    model.node.ranks = 8;
    let mut report = application_on(model, 64, scenario, way, load);
    report.results.swap_remove(0).unwrap().unwrap()
}

fn application_on(
    mut model: Model,
    ranks: u32,
    scenario: ScenarioKind,
    way: &'static str,
    load: AppWorkload,
) -> Report<ripstop::Result<RankFigures>> {
    let has_agent = scenario.has_agent(way);
    (model.host.agent, model.host.steals) = (has_agent, has_agent);
    let work = ScenarioWork {
        size: 0,
        iters: 2,
        seed: 0,
        way,
        load,
    };
    let manager = SimManager::new(&model);
    let mut simulation = Simulation::new(ranks).model(model).lengths_only();
    if scenario.goes_by_messages(way) {
        simulation = simulation.set("RIPSTOP_COLLECTIVES", "messages");
    }
    simulation
        .run(|world| scenario.start(world, work, manager.clone()))
        .unwrap()
}

/// Ways of two applications over TCP, where no adapter carries out collectives.
const OVER_TCP: [(ScenarioKind, &str, usize); 4] = [
    (ScenarioKind::Awp, "two-sided", 32),
    (ScenarioKind::Awp, "pscw-split", 32),
    (ScenarioKind::P3dfft, "blocking", 64),
    (ScenarioKind::P3dfft, "host-0", 64),
];

/// Runs an application on `fabric`, whose network loses one of `one_of` segments. Returns its time in ms, the segments that
/// came again, and the digest.
fn over_tcp(
    fabric: &str,
    ranks: u32,
    (scenario, way, edge): (ScenarioKind, &'static str, usize),
    one_of: Option<u32>,
) -> (f64, u64, u64) {
    let mut model = Model::preset(fabric).unwrap();
    model.node.ranks = (ranks / 2).min(8);
    model.network.loss_ppb = one_of.map_or(0, |one_of| 1_000_000_000 / one_of);
    let load = AppWorkload {
        edge: Some(edge),
        ..AppWorkload::default()
    };
    let report = application_on(model, ranks, scenario, way, load);
    for (rank, result) in report.results.iter().enumerate() {
        let ended = matches!(result, Some(Ok(_)));
        assert!(ended, "{way}, rank {rank} of {ranks}: {result:?}");
    }
    let ms = report.time.as_secs_f64() * 1e3;
    (ms, report.stats.retransmissions, report.digest)
}

#[test]
fn applications_of_any_size_end_on_an_ethernet_that_loses_segments_and_lose_only_time() {
    // A debug build is about twenty times slower.
    let largest = if cfg!(debug_assertions) { 32 } else { 512 };
    let sizes = [2, 8, 32, 128, 512].into_iter();
    for ranks in sizes.take_while(|ranks| *ranks <= largest) {
        let (mut again, mut late) = (0, 0.0);
        for case in OVER_TCP {
            let (plain, none, _) = over_tcp("ethernet", ranks, case, None);
            let (lossy, some, _) = over_tcp("ethernet", ranks, case, Some(1000));
            println!("{ranks} ranks, {case:?}: {plain:.2} ms, {lossy:.2} ms with {some} losses");
            assert_eq!(none, 0, "{ranks}, {case:?}");
            again += some;
            late += lossy - plain;
        }
        // Few segments lose nothing, and what a computation hides costs nothing.
        let costs = again > 0 && late > 0.0;
        assert!(
            ranks < 32 || costs,
            "{ranks} ranks: {again} losses, {late} ms"
        );
    }
}

#[test]
fn a_faster_ethernet_is_faster_and_its_losses_are_repeated_by_the_seed() {
    let case = OVER_TCP[2];
    let time = |fabric| over_tcp(fabric, 16, case, None).0;
    let times = ["ethernet", "ethernet-25", "ethernet-100"].map(time);
    assert!(times[0] > times[1] && times[1] > times[2], "{times:?}");
    let lossy = || over_tcp("ethernet-25", 16, case, Some(100));
    let (once, twice) = (lossy(), lossy());
    assert!(once == twice && once.1 > 0, "{once:?}, {twice:?}");
}

#[test]
fn chunks_are_cut_as_the_example_cuts_them() {
    let busiest = |way, chunks| {
        let load = AppWorkload {
            edge: Some(64),
            pieces: [1, chunks],
            ..AppWorkload::default()
        };
        figure(
            &application(ScenarioKind::P3dfft, way, "qdr", load),
            "busy_us",
        )
    };
    // Eight planes of a rank are cut into at most eight chunks, or into three of two and three planes.
    let whole = busiest("host-0", 1);
    for (way, chunks) in [("host-0", 3), ("host-0", 64), ("blocking", 64)] {
        let cut = busiest(way, chunks);
        assert!(
            (cut / whole - 1.0).abs() < 1e-3,
            "{way}, {chunks}: {cut} µs of {whole}"
        );
    }
}

#[test]
fn puts_that_start_before_the_inner_cells_are_computed_are_hidden_and_messages_are_not() {
    let load = AppWorkload {
        edge: Some(32),
        slower: 20.0,
        ..AppWorkload::default()
    };
    let figures = |way, name| figure(&application(ScenarioKind::Awp, way, "sdr", load), name);
    let exposed = ["two-sided", "pscw-split", "pscw-needed"].map(|way| figures(way, "exposed"));
    println!("{exposed:.2?} % of a step exposed");
    assert!(exposed[0] > 3.0, "{exposed:?}");
    // Data that stays within a node is copied by its processors.
    let most = exposed[0] / 2.0;
    assert!(exposed[1] < most && exposed[2] < most, "{exposed:?}");
    let packed = |way| figures(way, "pack_us");
    let ratio = packed("pscw-needed") / packed("pscw-split");
    assert!((0.49..0.51).contains(&ratio), "{ratio} of all layers");
}

#[test]
fn a_transform_that_goes_on_by_itself_saves_what_a_blocking_one_waits() {
    let load = AppWorkload {
        edge: Some(256),
        slower: 14.0,
        ..AppWorkload::default()
    };
    let found = |way| application(ScenarioKind::P3dfft, way, "qdr", load);
    let [blocking, rounds, offload] = ["blocking", "rounds-0", "offload"].map(found);
    let time = |of| figure(of, "step_us");
    let saved = 100.0 * (1.0 - time(&offload) / time(&blocking));
    let bound = figure(&blocking, "bound");
    let ratio = time(&rounds) / time(&offload);
    println!("{saved:.1} % saved, {bound:.1} % is the bound; {ratio:.3} times as long in rounds");
    assert!(
        saved > bound - 2.0 && saved < bound + 0.5,
        "{saved} of {bound}"
    );
    assert!(ratio > 1.05, "{ratio}");
}

#[test]
fn ranks_that_start_through_the_manager_begin_when_it_has_answered_all() {
    let mut model = Model::preset("qdr").unwrap();
    model.node.ranks = 8;
    let service_us = model.pmi.service_ns as f64 / 1000.0;
    for (ranks, requests) in [(1, 2.0), (8, 16.0), (32, 32.0 * 3.0 + 4.0 + 16.0)] {
        let job = Simulation::new(ranks).model(model.clone());
        let begun = async |world| ripstop::sim::now(&world).as_secs_f64() * 1e6;
        let last = |job: Simulation| {
            let report = job.run(begun).unwrap();
            report.results.into_iter().flatten().fold(0.0, f64::max)
        };
        assert!(last(job.clone()) < 1.0, "known from the start");
        let ratio = last(job.from_start()) / (requests * service_us);
        assert!((0.7..1.2).contains(&ratio), "{ranks} ranks: {ratio:.3}");
    }
}

#[test]
fn ranks_that_gather_do_not_wait_for_one_that_was_killed() {
    let mut model = Model::preset("qdr").unwrap();
    model.node.ranks = 2;
    for scenario in [
        ScenarioKind::FirstAlltoall,
        ScenarioKind::FirstAllreduce,
        ScenarioKind::FirstBcast,
        ScenarioKind::SevenPoint,
        ScenarioKind::Startup,
    ] {
        for (way, at) in ["node", "on-demand"]
            .into_iter()
            .flat_map(|way| [1, 100, 400, 1000, 1900].map(|at| (way, at)))
        {
            let work = ScenarioWork {
                size: 8,
                iters: 3,
                seed: 0,
                way,
                load: AppWorkload::default(),
            };
            let manager = SimManager::new(&model);
            let job = Simulation::new(8)
                .model(model.clone())
                .faults(&format!("kill=2@{at}us"));
            let report = job.run(|world| scenario.start(world, work, manager.clone()));
            let report = report.unwrap_or_else(|error| panic!("{way}, {at} us: {error}"));
            let mut failed = report.results.into_iter().flatten().filter_map(Result::err);
            let other = failed.find(|error| !scenario.tolerates(error));
            assert!(other.is_none(), "{way}, {at} us: {other:?}");
        }
    }
    for at in [1, 100, 200, 300, 400] {
        let job = Simulation::new(8).model(model.clone()).from_start();
        let report = job.faults(&format!("kill=2@{at}us")).run(async |_| ());
        let through = report.unwrap().results.into_iter().flatten();
        assert_eq!(through.count(), 7, "at {at} us");
    }
}
