//! Start-up: ranks tell each other how they can be reached, through the process manager's server, which the model's `pmi` is.
//!
//! It takes requests one at a time, so what counts is how many there are (spec P10).

use ripstop::{
    Collectives, Comm, Max, Result,
    sim::{self, Manager},
};

use super::scenario::{Figures, Work, found};

/// How addresses are exchanged: of each pair by itself; in a record of each rank, read by all or by a few; as Ripstop does, in a
/// record of each node, read by the nodes.
pub(super) const WAYS: &[&str] = &["pairs", "ranks", "few", "nodes"];

/// Until every rank knows all addresses that it needs.
pub(super) async fn start_up(world: Comm, work: Work, manager: Manager) -> Result<Figures> {
    let (rank, size) = (world.rank(), world.size());
    match work.way {
        // As MVAPICH2 2.3.7 does: an address in two parts, and for each part a key of each pair.
        "pairs" => {
            for _ in 0..2 * (size - 1) {
                manager.ask(&world, 1).await;
                manager.fence(&world).await;
                manager.ask(&world, 1).await;
            }
            manager.fence(&world).await;
        }
        "nodes" => manager.start(&world).await,
        way => {
            let others = if way == "few" {
                FEW.min(size - 1)
            } else {
                size - 1
            };
            manager.ask(&world, 1).await;
            manager.fence(&world).await;
            manager.ask(&world, others).await;
            manager.fence(&world).await;
        }
    }
    let mine = sim::now(&world).as_secs_f64() * 1e6;
    let [last] = world.all_reduce([mine], Max).await?;
    let mut figures = found(rank, "start_us", "start µs", last);
    let requests = manager.requests() as f64;
    figures.extend(found(rank, "requests", "requests", requests));
    Ok(figures)
}

/// Neighbours in a three-dimensional stencil.
const FEW: usize = 6;
