//! The process manager of a simulated job, through which ranks exchange their addresses.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    fmt,
    future::poll_fn,
    mem,
    rc::Rc,
    task::{Poll, Waker},
    time::Duration,
};

use ripstop_fabric::sim::{FifoServer, Model};

use super::time::now;
use crate::comm::Comm;

/// A server that handles one request at a time, with the costs of [`PmiModel`](ripstop_fabric::sim::PmiModel). Also
/// models what the ranks of a node exchange without the server. Clones are handles of the same manager.
#[derive(Clone)]
pub struct SimManager {
    state: Rc<RefCell<ManagerState>>,
    ranks_per_node: usize,
}

struct ManagerState {
    server: FifoServer,
    requests: u64,
    events: BTreeMap<ManagerEvent, RepeatedEvent>,
    /// Ranks that have left or failed, and take part in no further event.
    gone: BTreeSet<usize>,
}

/// Guard of a rank that takes part in a job: see [`SimManager::join`].
#[must_use = "if it is dropped, the job does not wait for the rank"]
pub struct SimMember {
    manager: SimManager,
    rank: usize,
    size: usize,
}

/// An event that ranks wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ManagerEvent {
    /// All ranks have reached the fence.
    Fence,
    /// All ranks have reached the start of a measurement.
    Gathering,
    /// The leader of this node knows all addresses.
    Node(usize),
}

/// An event that happens repeatedly.
#[derive(Default)]
struct RepeatedEvent {
    /// Number of times that the event has happened.
    times: u64,
    /// Ranks that have arrived since it last happened.
    inside: BTreeSet<usize>,
    waiting: Vec<Waker>,
}

impl SimManager {
    /// Creates the manager of a job on this machine.
    #[must_use]
    pub fn new(model: &Model) -> Self {
        let state = ManagerState {
            server: FifoServer::new(model.pmi.service_ns),
            requests: 0,
            events: BTreeMap::new(),
            gone: BTreeSet::new(),
        };
        let ranks_per_node = usize::try_from(model.node.ranks).unwrap_or(usize::MAX);
        Self {
            state: Rc::new(RefCell::new(state)),
            ranks_per_node,
        }
    }

    /// Makes this rank take part. Keep the returned guard for as long as the rank runs: once it is dropped, the others
    /// no longer wait for this rank. A simulation drops the guard of a killed rank.
    pub fn join(&self, world: &Comm) -> SimMember {
        SimMember {
            manager: self.clone(),
            rank: world.rank(),
            size: world.size(),
        }
    }

    /// Returns the number of requests that all ranks have made so far.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.state.borrow().requests
    }

    /// Makes `requests` requests one after the other, and waits for the last answer. Puts and gets cost the same here.
    pub async fn ask(&self, world: &Comm, requests: usize) {
        for _ in 0..requests {
            let asked = u64::try_from(now(world).as_nanos()).unwrap_or(u64::MAX);
            let answered = {
                let mut state = self.state.borrow_mut();
                state.requests += 1;
                state.server.serve(asked)
            };
            world.sleep(Duration::from_nanos(answered - asked)).await;
        }
    }

    /// Sends a request, and waits until all ranks have sent one.
    pub async fn fence(&self, world: &Comm) {
        self.ask(world, 1).await;
        self.all_come(ManagerEvent::Fence, world).await;
    }

    /// Waits until all ranks have arrived, without a request. A measurement after this begins at the same time on all
    /// ranks.
    pub async fn gather(&self, world: &Comm) {
        self.all_come(ManagerEvent::Gathering, world).await;
    }

    async fn all_come(&self, what: ManagerEvent, world: &Comm) {
        let before = self.times(what);
        let is_last = {
            let state = &mut *self.state.borrow_mut();
            let event = state.events.entry(what).or_default();
            event.inside.insert(world.rank());
            event.has_all(world.size(), &state.gone)
        };
        if is_last {
            self.happen(what);
        }
        self.until(what, before + 1).await;
    }

    /// Does what ranks do at the start of a job until they know each other's addresses.
    ///
    /// The leader of each node puts the address of its board, which the node's other ranks get. Then the leader puts
    /// its record of the node, and gets the records of all nodes for the other ranks. This takes three requests per
    /// rank, one per node, and one per pair of nodes.
    pub async fn start(&self, world: &Comm) {
        let (rank, size) = (world.rank(), world.size());
        let leads = rank.is_multiple_of(self.ranks_per_node);
        self.ask(world, usize::from(leads)).await;
        self.fence(world).await;
        if size <= self.ranks_per_node {
            return self.ask(world, usize::from(!leads)).await;
        }
        self.ask(world, 1).await;
        self.fence(world).await;
        let node = ManagerEvent::Node(rank / self.ranks_per_node);
        if leads {
            self.ask(world, size.div_ceil(self.ranks_per_node)).await;
            self.happen(node);
        }
        self.until(node, 1).await;
    }

    fn times(&self, what: ManagerEvent) -> u64 {
        let state = self.state.borrow();
        state.events.get(&what).map_or(0, |event| event.times)
    }

    fn happen(&self, what: ManagerEvent) {
        let woken = {
            let mut state = self.state.borrow_mut();
            let event = state.events.entry(what).or_default();
            event.times += 1;
            event.inside.clear();
            mem::take(&mut event.waiting)
        };
        woken.into_iter().for_each(Waker::wake);
    }

    /// Waits until an event has happened `times` times.
    async fn until(&self, what: ManagerEvent, times: u64) {
        poll_fn(|cx| {
            let mut state = self.state.borrow_mut();
            let event = state.events.entry(what).or_default();
            if event.times >= times {
                return Poll::Ready(());
            }
            event.waiting.push(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

impl RepeatedEvent {
    /// Returns true if all ranks that still can have arrived. A rank that has arrived is never in `gone`.
    fn has_all(&self, size: usize, gone: &BTreeSet<usize>) -> bool {
        !self.inside.is_empty() && self.inside.len() + gone.len() >= size
    }
}

impl Drop for SimMember {
    fn drop(&mut self) {
        let mut due = Vec::new();
        {
            let state = &mut *self.manager.state.borrow_mut();
            state.gone.insert(self.rank);
            for (what, event) in &mut state.events {
                event.inside.remove(&self.rank);
                if event.has_all(self.size, &state.gone) {
                    due.push(*what);
                }
            }
        }
        // The other ranks of its node go on without the addresses, and find out which rank is missing.
        if self.rank.is_multiple_of(self.manager.ranks_per_node) {
            due.push(ManagerEvent::Node(self.rank / self.manager.ranks_per_node));
        }
        due.into_iter().for_each(|what| self.manager.happen(what));
    }
}

impl fmt::Debug for SimMember {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimMember")
            .field("rank", &self.rank)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for SimManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimManager")
            .field("requests", &self.requests())
            .finish_non_exhaustive()
    }
}
