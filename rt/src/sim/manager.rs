//! The process manager of a simulated job, through which ranks learn each other's addresses.

use std::{
    cell::RefCell,
    collections::BTreeMap,
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
    inside: usize,
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
        };
        let ranks_per_node = usize::try_from(model.node.ranks).unwrap_or(usize::MAX);
        Self {
            state: Rc::new(RefCell::new(state)),
            ranks_per_node,
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
            let mut state = self.state.borrow_mut();
            let event = state.events.entry(what).or_default();
            event.inside = (event.inside + 1) % world.size();
            event.inside == 0
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

impl fmt::Debug for Manager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Manager")
            .field("requests", &self.requests())
            .finish_non_exhaustive()
    }
}
