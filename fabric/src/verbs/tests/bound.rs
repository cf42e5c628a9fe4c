//! Connections of queue pairs that both have made before they knew each other.

use std::{sync::Arc, time::Duration};

use super::Ranks;
use crate::verbs::{doors::Doors, mesh::Mesh};

/// For each rank a queue pair for each other one, and what it tells of them.
fn made(ranks: &mut Ranks) -> (Vec<Mesh>, Vec<Option<Doors>>) {
    let others = u32::try_from(ranks.all.len() - 1).unwrap();
    let made = (0..ranks.all.len()).map(|rank| {
        let core = ranks.core(rank);
        let sends = core.outbox.lanes.iter().map(|sends| Arc::clone(&sends.cq));
        let sends: Vec<_> = sends.collect();
        let mesh = Mesh::new(&core.rails, &sends, &core.ports, others).unwrap();
        let doors = mesh.doors.clone();
        (mesh, Some(doors))
    });
    made.unzip()
}

/// The device of the one that has bound its own would wait for a minute.
#[test]
#[ignore = "needs four RDMA devices: run it in the virtual machine"]
fn who_cannot_bind_what_the_other_has_bound_asks_and_is_heard() {
    for unable in [0, 1] {
        let mut ranks = Ranks::with(2, |config| config.patience = Duration::from_secs(60));
        let (meshes, doors) = made(&mut ranks);
        for (rank, mesh) in meshes.into_iter().enumerate() {
            let core = ranks.core(rank);
            let unlike = |rail: &mut crate::verbs::rail::Rail| rail.own.ethernet ^= rank == unable;
            core.rails.iter_mut().for_each(unlike);
            core.connect_all(Some(mesh), &doors);
            core.rails.iter_mut().for_each(unlike);
        }
        ranks.say(0, 1);
        ranks.say(1, 0);
        ranks.until(|ranks| ranks.ears.iter().all(|ears| ears.messages.len() == 1));
    }
}
