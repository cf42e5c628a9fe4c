#![expect(clippy::print_stdout, reason = "figures are for who asks")]

use ripstop::sim::{Manager, Model, Report, Simulation};

use super::{
    load::Load,
    scenario::{Figures, Scenario, Work},
};

/// One scenario. Returns the report, and what rank 0 found.
fn run(
    (scenario, way): (Scenario, &'static str),
    (ranks, fabric): (u32, &str),
    size: usize,
) -> (Report<ripstop::Result<Figures>>, Figures) {
    let work = Work {
        size,
        iters: 3,
        seed: 0,
        way,
        load: Load::default(),
    };
    let mut model = Model::preset(fabric).unwrap();
    if scenario == Scenario::Startup {
        model.node.ranks = 56;
    }
    let manager = Manager::new(&model);
    // The models are those of messages; by lists of an adapter the same algorithms take another time.
    let mut report = Simulation::new(ranks)
        .model(model)
        .set("RIPSTOP_COLLECTIVES", "messages")
        .run(|world| scenario.start(world, work, manager.clone()))
        .unwrap();
    let found = report.results.swap_remove(0).unwrap().unwrap();
    (report, found)
}

fn figure(found: &Figures, wanted: &str) -> f64 {
    let figure = found.iter().find(|(name, _, _)| *name == wanted);
    figure.unwrap_or_else(|| panic!("no {wanted}")).2
}

/// A debug build is some twenty times as slow.
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

#[test]
fn collectives_take_about_what_the_model_of_their_algorithm_says() {
    let auto = |scenario| (scenario, "");
    for (case, size, largest) in [
        (auto(Scenario::Barrier), 0, 16_384),
        (auto(Scenario::Allreduce), 8, 16_384),
        (auto(Scenario::Allreduce), 4096, 1024),
        ((Scenario::Alltoall, "auto"), 8, 1024),
        ((Scenario::Alltoall, "bruck"), 1, 8192),
        ((Scenario::Alltoall, "pairwise"), 8, 1024),
        // Between those, messages are copied at both ends, which the model leaves out.
        ((Scenario::Alltoall, "pairwise"), 65_536, 64),
    ] {
        for ranks in sizes(largest) {
            let (_, found) = run(case, (ranks, "bxi"), size);
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
fn memory_for_a_barrier_and_an_allreduce_grows_with_the_logarithm_of_the_ranks() {
    for scenario in [Scenario::Barrier, Scenario::Allreduce] {
        let each = |ranks: u32| {
            let (report, _) = run((scenario, ""), (ranks, "bxi"), 8);
            report.memory.bytes / u64::from(ranks)
        };
        // Up to 16 ranks everybody tells everybody.
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

#[test]
fn ranks_that_are_connected_ahead_have_no_slow_first_iteration() {
    for (scenario, limit) in [
        (Scenario::FirstAlltoall, 1.1),
        (Scenario::FirstAllreduce, 1.15),
        (Scenario::FirstBcast, 1.3),
    ] {
        let first = |way| figure(&run((scenario, way), (64, "qdr"), 8).1, "first_us");
        let (_, ahead) = run((scenario, "ahead"), (64, "qdr"), 8);
        let ratio = figure(&ahead, "ratio");
        println!("{scenario:?}: {ratio:.2} of a steady one");
        assert!(ratio <= limit, "{scenario:?}: {ratio:.2}");
        assert!(first("on-demand") > 100.0 * first("ahead"));
    }
    let first = |way| {
        figure(
            &run((Scenario::FirstAlltoall, way), (64, "qdr"), 8).1,
            "first_us",
        )
    };
    let (stepwise, on_demand) = (first("stepwise"), first("on-demand"));
    println!("first all-to-all: {stepwise:.0} µs in steps, {on_demand:.0} µs as chosen");
    assert!(stepwise > 4.0 * on_demand, "{stepwise} and {on_demand}");
}

#[test]
#[cfg_attr(
    debug_assertions,
    ignore = "a grid of 512 MiB: `cargo xtask test` has an optimised build for it"
)]
fn a_transform_whose_ranks_are_connected_ahead_is_faster_than_one_that_connects_in_steps() {
    let rate = |way| figure(&run((Scenario::Ft, way), (64, "qdr"), 0).1, "gflop_per_s");
    let (stepwise, ahead) = (rate("stepwise"), rate("ahead"));
    println!("{stepwise:.0} and {ahead:.0} GFLOP/s");
    assert!(ahead >= 1.2 * stepwise, "{ahead} of {stepwise}");
}

#[test]
fn a_start_takes_the_managers_time_for_each_of_its_requests() {
    let (ranks, service_us) = (112_u32, 10.0);
    let all = f64::from(ranks);
    for (way, requests) in [
        ("pairs", all * (6.0 * (all - 1.0) + 1.0)),
        ("ranks", all * (3.0 + all - 1.0)),
        ("few", all * (3.0 + 6.0)),
        ("nodes", all * 3.0 + 2.0 + 2.0 * 2.0),
    ] {
        let (_, found) = run((Scenario::Startup, way), (ranks, "qdr"), 8);
        assert!((figure(&found, "requests") - requests).abs() < 0.5, "{way}");
        let ratio = figure(&found, "start_us") / (requests * service_us);
        // A rank that waits for an answer leaves the manager idle at times.
        assert!((0.99..1.05).contains(&ratio), "{way}: {ratio:.3}");
    }
}

/// 64 ranks, 8 on a node, of an application on `fabric`.
fn application(scenario: Scenario, way: &'static str, fabric: &str, load: Load) -> Figures {
    let mut model = Model::preset(fabric).unwrap();
    model.node.ranks = 8;
    let has_agent = scenario.has_agent(way);
    (model.host.agent, model.host.steals) = (has_agent, has_agent);
    let work = Work {
        size: 0,
        iters: 2,
        seed: 0,
        way,
        load,
    };
    let manager = Manager::new(&model);
    let mut simulation = Simulation::new(64).model(model).lengths_only();
    if scenario.goes_by_messages(way) {
        simulation = simulation.set("RIPSTOP_COLLECTIVES", "messages");
    }
    let mut report = simulation
        .run(|world| scenario.start(world, work, manager.clone()))
        .unwrap();
    report.results.swap_remove(0).unwrap().unwrap()
}

#[test]
fn puts_that_start_before_the_inner_cells_are_computed_are_hidden_and_messages_are_not() {
    let load = Load {
        edge: Some(32),
        slower: 20.0,
        ..Load::default()
    };
    let figures = |way, name| figure(&application(Scenario::Awp, way, "sdr", load), name);
    let exposed = ["two-sided", "pscw-split", "pscw-needed"].map(|way| figures(way, "exposed"));
    println!("{exposed:.2?} % of a step exposed");
    assert!(exposed[0] > 3.0, "{exposed:?}");
    assert!(exposed[1] < 1.0 && exposed[2] < 1.0, "{exposed:?}");
    let packed = |way| figures(way, "pack_us");
    let ratio = packed("pscw-needed") / packed("pscw-split");
    assert!((0.49..0.51).contains(&ratio), "{ratio} of all layers");
}

#[test]
fn a_transform_that_goes_on_by_itself_saves_what_a_blocking_one_waits() {
    let load = Load {
        edge: Some(256),
        slower: 14.0,
        ..Load::default()
    };
    let found = |way| application(Scenario::P3dfft, way, "qdr", load);
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
