//! The process manager of a simulated job, through which ranks learn each other's addresses.

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

use ripstop_fabric::sim::{Model, Server};

use super::time::now;
use crate::comm::Comm;

/// A server that takes one request at a time, as [`PmiModel`](ripstop_fabric::sim::PmiModel) says, and what the ranks of a node
/// tell each other without it. Clones are handles to the same one.
#[derive(Clone)]
pub struct Manager {
    state: Rc<RefCell<State>>,
    ranks_per_node: usize,
}

struct State {
    server: Server,
    requests: u64,
    events: BTreeMap<What, Event>,
    /// Ranks that come to nothing any more.
    gone: BTreeSet<usize>,
}

/// A rank that takes part in a job: see [`Manager::join`].
#[must_use = "who is not kept is not waited for"]
pub struct Member {
    manager: Manager,
    rank: usize,
    size: usize,
}

/// What ranks wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    /// All have come to the fence.
    Fence,
    /// All are where something begins.
    Gathering,
    /// The leader of this node knows all addresses.
    Node(usize),
}

/// Something that happens again and again.
#[derive(Default)]
struct Event {
    /// How often it has happened.
    times: u64,
    /// Who has come since.
    inside: BTreeSet<usize>,
    waiting: Vec<Waker>,
}

impl Manager {
    /// The manager of a job on this machine.
    #[must_use]
    pub fn new(model: &Model) -> Self {
        let state = State {
            server: Server::new(model.pmi.service_ns),
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

    /// Keep what this returns for as long as the rank runs: when it is dropped, the others do not wait for the rank any more. A
    /// simulation drops what a rank that was killed has.
    pub fn join(&self, world: &Comm) -> Member {
        Member {
            manager: self.clone(),
            rank: world.rank(),
            size: world.size(),
        }
    }

    /// Requests that all ranks have made so far.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.state.borrow().requests
    }

    /// Makes requests one after the other, to the answer of the last. Puts and gets are alike here.
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

    /// Asks to be told when all ranks have asked.
    pub async fn fence(&self, world: &Comm) {
        self.ask(world, 1).await;
        self.all_come(What::Fence, world).await;
    }

    /// Waits until all ranks have come, and asks nobody: what is measured after that begins everywhere at once.
    pub async fn gather(&self, world: &Comm) {
        self.all_come(What::Gathering, world).await;
    }

    async fn all_come(&self, what: What, world: &Comm) {
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

    /// What ranks do until they know each other: the leader of each node puts the address of its board, which its other ranks
    /// get; then its record of the node, and gets those of all nodes for the others. So there are three requests for each rank,
    /// one for each node, and one for each pair of nodes.
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
        let node = What::Node(rank / self.ranks_per_node);
        if leads {
            self.ask(world, size.div_ceil(self.ranks_per_node)).await;
            self.happen(node);
        }
        self.until(node, 1).await;
    }

    fn times(&self, what: What) -> u64 {
        let state = self.state.borrow();
        state.events.get(&what).map_or(0, |event| event.times)
    }

    fn happen(&self, what: What) {
        let woken = {
            let mut state = self.state.borrow_mut();
            let event = state.events.entry(what).or_default();
            event.times += 1;
            event.inside.clear();
            mem::take(&mut event.waiting)
        };
        woken.into_iter().for_each(Waker::wake);
    }

    /// Waits until something has happened so often.
    async fn until(&self, what: What, times: u64) {
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

impl Event {
    /// Whether everybody has come who still can. Who has come is not among those that are gone.
    fn has_all(&self, size: usize, gone: &BTreeSet<usize>) -> bool {
        !self.inside.is_empty() && self.inside.len() + gone.len() >= size
    }
}

impl Drop for Member {
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
        // Those of its node go on without the addresses, and find who is missing.
        if self.rank.is_multiple_of(self.manager.ranks_per_node) {
            due.push(What::Node(self.rank / self.manager.ranks_per_node));
        }
        due.into_iter().for_each(|what| self.manager.happen(what));
    }
}

impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Member")
            .field("rank", &self.rank)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Manager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Manager")
            .field("requests", &self.requests())
            .finish_non_exhaustive()
    }
}
