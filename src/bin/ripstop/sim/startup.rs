//! Start-up: ranks tell each other how they can be reached, through the process manager's server, which the model's `pmi` is.
//!
//! It takes requests one at a time, so what counts is how many there are (spec P10).

use std::{
    cell::RefCell,
    future::poll_fn,
    mem,
    rc::Rc,
    task::{Poll, Waker},
    time::Duration,
};

use ripstop::{
    Comm, Result,
    fabric::sim::{Model, Server},
    sim,
};

use super::scenario::{Figures, Work, found};

/// How addresses are exchanged: of each pair by itself; in a record of each rank, read by all or by a few; in a record of each
/// node, read by the nodes.
pub(super) const WAYS: &[&str] = &["pairs", "ranks", "few", "nodes"];

/// The process manager of one job.
#[derive(Clone, Debug)]
pub(super) struct Manager(Rc<RefCell<State>>);

#[derive(Debug)]
struct State {
    server: Server,
    requests: u64,
    /// Ranks that are in the barrier, and how many barriers are over.
    inside: usize,
    over: u64,
    waiting: Vec<Waker>,
}

impl Manager {
    pub(super) fn new(model: &Model) -> Self {
        Self(Rc::new(RefCell::new(State {
            server: Server::new(model.pmi.service_ns),
            requests: 0,
            inside: 0,
            over: 0,
            waiting: Vec::new(),
        })))
    }

    /// Requests one after the other, to the answer of the last: puts and gets are alike here.
    async fn ask(&self, world: &Comm, requests: usize) {
        for _ in 0..requests {
            let now = sim::now(world);
            let asked = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
            let answered = {
                let mut state = self.0.borrow_mut();
                state.requests += 1;
                state.server.serve(asked)
            };
            world.sleep(Duration::from_nanos(answered - asked)).await;
        }
    }

    async fn barrier(&self, world: &Comm) {
        self.ask(world, 1).await;
        let (mine, woken) = self.0.borrow_mut().enter(world.size());
        woken.into_iter().for_each(Waker::wake);
        poll_fn(|cx| {
            let mut state = self.0.borrow_mut();
            if state.over > mine {
                return Poll::Ready(());
            }
            state.waiting.push(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

impl State {
    /// A rank comes to the barrier. Returns which one it is, and who is to be woken if that was the last rank.
    fn enter(&mut self, ranks: usize) -> (u64, Vec<Waker>) {
        let mine = self.over;
        self.inside += 1;
        if self.inside < ranks {
            return (mine, Vec::new());
        }
        self.inside = 0;
        self.over += 1;
        (mine, mem::take(&mut self.waiting))
    }
}

/// Until every rank knows all addresses that it needs.
pub(super) async fn start_up(world: Comm, work: Work, manager: Manager) -> Result<Figures> {
    let (rank, size) = (world.rank(), world.size());
    match work.way {
        // As MVAPICH2 2.3.7 does: an address in two parts, and for each part a key of each pair.
        "pairs" => {
            for _ in 0..2 * (size - 1) {
                manager.ask(&world, 1).await;
                manager.barrier(&world).await;
                manager.ask(&world, 1).await;
            }
        }
        "nodes" => {
            let leads = usize::from(rank.is_multiple_of(RANKS_PER_NODE));
            manager.ask(&world, leads).await;
            manager.barrier(&world).await;
            let others = size.div_ceil(RANKS_PER_NODE) - 1;
            manager.ask(&world, leads * others).await;
        }
        way => {
            let others = if way == "few" {
                FEW.min(size - 1)
            } else {
                size - 1
            };
            manager.ask(&world, 1).await;
            manager.barrier(&world).await;
            manager.ask(&world, others).await;
        }
    }
    manager.barrier(&world).await;
    let mut figures = found(
        rank,
        "start_us",
        "start µs",
        sim::now(&world).as_secs_f64() * 1e6,
    );
    let requests = manager.0.borrow().requests as f64;
    figures.extend(found(rank, "requests", "requests", requests));
    Ok(figures)
}

/// As on the machines of today; leaders and their ranks speak through shared memory, which costs nothing here.
const RANKS_PER_NODE: usize = 56;
/// Neighbours in a three-dimensional stencil.
const FEW: usize = 6;
