//! What a runtime is made of.

use std::sync::Arc;

use ripstop_fabric::{
    counters::DriverStats,
    driver::{Driver, SLOT_MESSAGE_MAX},
    shm::Board,
};

use super::processors;
use crate::{
    boot::Boot,
    clock::Clock,
    engine::{Engine, EngineSetup},
    group::WorldRank,
    offload::MOVED_MAX,
    reactor::SleepBackend,
    settings::{Rendezvous, Settings},
    shared::{Choices, RankPlacement, RuntimeParts, SleepMode},
    topology::JobTopology,
};

/// Makes the parts of a runtime from what a rank has learned of its job.
pub(super) fn assemble(
    boot: &Boot,
    board: Board,
    settings: Settings,
    counters: Arc<DriverStats>,
    backend: Box<dyn SleepBackend>,
    [fabric_why, reactor_why]: [String; 2],
    mut driver: Box<dyn Driver>,
) -> RuntimeParts {
    let JobTopology {
        paths,
        cost,
        cost_inside,
        leader,
        neighbors,
        per_node,
    } = JobTopology::of(&mut *driver, boot, &settings);
    let processors = processors::online();
    let (shared, round_ns) = processors::sharing(boot.node.ranks.len(), boot.size, processors);
    let has_named_slots = driver.named_slots().is_some();
    let in_slots = |bytes: usize| {
        u32::try_from(bytes)
            .ok()
            .filter(|_| has_named_slots)
            .unwrap_or(0)
    };
    let within_node = driver.caps_to(WorldRank(boot.rank)).clone();
    let choices = Choices {
        boot: boot.found,
        fabric: driver.caps().name,
        fabric_why,
        reactor: backend.name(),
        reactor_why,
        paths: paths.to_string(),
        single_copy: within_node.any_memory,
        by_processor: within_node.by_processor,
        cost,
        cost_inside,
        round_ns,
        processors: shared,
        slot_bytes: in_slots(SLOT_MESSAGE_MAX),
        slot_moved_bytes: in_slots(MOVED_MAX),
    };
    let (on_node, mine) = (boot.node.ranks.len(), processors::own());
    let crowded = processors::is_crowded(on_node, mine, processors);
    let setup = EngineSetup {
        rank: WorldRank(boot.rank),
        size: boot.size,
        paths,
        store: settings.store(),
        may_split_long: !crowded
            && driver.caps().by_processor
            && settings.rendezvous == Rendezvous::Auto,
        seed: u64::from(boot.rank),
        detect: settings.detect_ns(),
    };
    board.publish_cpu(boot.on_node());
    let place = RankPlacement {
        rank: WorldRank(boot.rank),
        size: boot.size,
        node: leader,
        board: Some((board, boot.on_node())),
        crowded,
        processors: processors::of_threads(on_node, mine, processors),
        per_node,
        neighbors: neighbors.into(),
    };
    RuntimeParts {
        engine: Engine::new(driver, setup),
        sleeps: SleepMode::In(backend),
        clock: Clock::system(),
        place,
        settings: Arc::new(settings),
        counters,
        choices: Arc::new(choices),
        link: None,
        reporter: None,
        view: None,
    }
}
