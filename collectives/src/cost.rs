//! The cost of plans on a machine that a few numbers describe: LogGP (Alexandrov, Ionescu, Schauser, Scheiman 1995) inside and
//! between nodes.

use std::{
    cmp::Reverse,
    collections::{BTreeSet, BinaryHeap},
};

use crate::plan::{
    Plan, ProgramStepId, StepAction,
    check::{GroupStep, MessagePairs, PlanFault},
};

/// The cost of messages on one kind of link.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LogGP {
    /// L: time from one end to the other, in nanoseconds.
    pub latency_ns: f64,
    /// o: time of a rank for each message that it sends, and for each that it receives.
    pub overhead_ns: f64,
    /// g: least time between two messages.
    pub gap_ns: f64,
    /// G: time for each KiB of a message.
    pub ns_per_kib: f64,
}

/// Equal nodes with `per_node` ranks each, rank 0 to `per_node` − 1 on the first.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Machine {
    /// Links between ranks of one node.
    pub inside: LogGP,
    /// Links between nodes. The ranks of a node share one port, whose g and G these are.
    pub across: LogGP,
    /// Ranks on a node, at least 1.
    pub per_node: usize,
    /// Processors of a node, at least 1; more ranks share them.
    pub processors: usize,
    /// Longest message, in bytes, inside a node that costs next to nothing because its receiver finds it while polling
    /// collective slots. Such messages belong to a collective whose messages all leave at once. 0 if there are no such slots.
    pub slot_bytes: usize,
    /// The same limit for collectives that only move data: different data for each rank, or data in both directions.
    pub slot_moved_bytes: usize,
    /// A local copy.
    pub copy_ns_per_kib: f64,
    /// γ: a local reduction.
    pub reduce_ns_per_kib: f64,
}

impl LogGP {
    /// Returns how long a message keeps the link busy.
    pub(crate) fn busy_ns(&self, bytes: f64) -> f64 {
        self.gap_ns.max(self.transfer_ns(bytes))
    }

    pub(crate) fn transfer_ns(&self, bytes: f64) -> f64 {
        bytes / 1024.0 * self.ns_per_kib
    }
}

/// Returns how long the plans of a whole group take, in nanoseconds, if every step begins as soon as it may. Steps of one rank
/// that send, that receive and that compute each wait for their own kind, and messages between nodes for the port of the node.
/// The announcement of a receive buffer is not counted. Takes O(steps · log steps).
///
/// # Errors
/// A message without another end, or plans that never end.
///
/// # Panics
/// Panics if `plans` are not those of all ranks of one group, in order.
pub fn critical_path(
    plans: &[Plan],
    machine: &Machine,
    element_bytes: usize,
) -> Result<f64, PlanFault> {
    let mut run = Timeline::new(plans, machine, element_bytes)?;
    while let Some(Reverse((now, stage, at))) = run.due.pop() {
        let now_ns = f64::from_bits(now);
        match stage {
            StepStage::Ready => run.begin(at, now_ns),
            StepStage::Prepared => run.inject(at, now_ns),
            StepStage::Sent => run.prepare_next(at.rank, now_ns),
        }
    }
    let mut left = run.ranks.iter().enumerate().flat_map(|(rank, steps)| {
        let left = steps.iter().position(|step| step.missing > 0);
        left.map(|index| GroupStep {
            rank,
            step: ProgramStepId::new(index),
        })
    });
    left.next()
        .map_or(Ok(run.end_ns), |at| Err(PlanFault::Deadlock(at)))
}

struct Timeline<'a> {
    plans: &'a [Plan],
    machine: &'a Machine,
    pairs: MessagePairs,
    element_bytes: f64,
    ranks: Vec<Vec<PendingStep>>,
    engines: Vec<RankUnits>,
    /// Times at which each node's port is free, out and in.
    ports: Vec<[f64; 2]>,
    /// Events by time. The bits of non-negative numbers have the same order as the numbers.
    due: BinaryHeap<Reverse<(u64, StepStage, GroupStep)>>,
    end_ns: f64,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum StepStage {
    /// The step waits for nothing.
    Ready,
    /// A send needs its link now.
    Prepared,
    /// The rank may prepare its next send.
    Sent,
}

#[derive(Clone, Default)]
struct PendingStep {
    missing: usize,
    ready_ns: f64,
    waiting: Vec<ProgramStepId>,
}

/// The units of a rank that do one thing at a time.
#[derive(Clone, Default)]
struct RankUnits {
    sending: bool,
    sends: BTreeSet<ProgramStepId>,
    receive_free_ns: f64,
    compute_free_ns: f64,
}

impl<'a> Timeline<'a> {
    fn new(
        plans: &'a [Plan],
        machine: &'a Machine,
        element_bytes: usize,
    ) -> Result<Self, PlanFault> {
        let pending = |plan: &Plan| vec![PendingStep::default(); plan.len()];
        let mut timeline = Self {
            plans,
            machine,
            pairs: MessagePairs::of(plans)?,
            element_bytes: element_bytes as f64,
            ranks: plans.iter().map(pending).collect(),
            engines: vec![RankUnits::default(); plans.len()],
            ports: vec![[0.0; 2]; plans.len().div_ceil(machine.per_node)],
            due: BinaryHeap::new(),
            end_ns: 0.0,
        };
        let all = || {
            plans
                .iter()
                .enumerate()
                .flat_map(|(rank, plan)| plan.steps().map(move |step| (rank, step)))
        };
        for (rank, (step, action)) in all() {
            let after = plans[rank].after(step);
            for before in after {
                timeline.ranks[rank][before.index()].waiting.push(step);
            }
            let arrival = usize::from(matches!(action, StepAction::Recv { .. }));
            // A step also waits for the beginning, hence the 1.
            timeline.ranks[rank][step.index()].missing = 1 + after.len() + arrival;
        }
        for (rank, (step, _)) in all() {
            timeline.settle(GroupStep { rank, step }, 0.0);
        }
        Ok(timeline)
    }

    /// Notes that one of the things that a step waits for has completed.
    fn settle(&mut self, at: GroupStep, at_ns: f64) {
        let GroupStep { rank, step } = at;
        let pending = &mut self.ranks[rank][step.index()];
        pending.ready_ns = pending.ready_ns.max(at_ns);
        pending.missing -= 1;
        if pending.missing == 0 {
            let ready_ns = pending.ready_ns;
            self.later(ready_ns, StepStage::Ready, at);
        }
    }

    fn later(&mut self, at_ns: f64, stage: StepStage, at: GroupStep) {
        self.due.push(Reverse((at_ns.to_bits(), stage, at)));
    }

    fn begin(&mut self, at: GroupStep, now_ns: f64) {
        let GroupStep { rank, step } = at;
        let work =
            |len: usize, ns_per_kib: f64| len as f64 * self.element_bytes / 1024.0 * ns_per_kib;
        let end_ns = match *self.plans[rank].action(step) {
            StepAction::Send { .. } => {
                self.engines[rank].sends.insert(step);
                if !self.engines[rank].sending {
                    self.prepare_next(rank, now_ns);
                }
                return;
            }
            StepAction::Recv { from, into } => self.receive(rank, from.0, into.len, now_ns),
            StepAction::Copy { into, .. } => {
                self.compute(rank, work(into.len, self.machine.copy_ns_per_kib), now_ns)
            }
            StepAction::Reduce { into, .. } => {
                self.compute(rank, work(into.len, self.machine.reduce_ns_per_kib), now_ns)
            }
            StepAction::Join => now_ns,
        };
        self.over(at, end_ns);
    }

    fn over(&mut self, at: GroupStep, end_ns: f64) {
        let GroupStep { rank, step } = at;
        self.end_ns = self.end_ns.max(end_ns);
        for next in std::mem::take(&mut self.ranks[rank][step.index()].waiting) {
            self.settle(GroupStep { rank, step: next }, end_ns);
        }
    }

    fn prepare_next(&mut self, rank: usize, now_ns: f64) {
        let next = self.engines[rank].sends.pop_first();
        self.engines[rank].sending = next.is_some();
        if let Some(step) = next {
            let at = GroupStep { rank, step };
            let (link, _) = self.link(rank, self.to(at).0);
            self.later(now_ns + link.overhead_ns, StepStage::Prepared, at);
        }
    }

    fn inject(&mut self, at: GroupStep, now_ns: f64) {
        let (to, bytes) = self.to(at);
        let (link, port) = self.link(at.rank, to);
        let start_ns = port.map_or(now_ns, |node| now_ns.max(self.ports[node][0]));
        let end_ns = start_ns + link.busy_ns(bytes);
        if let Some(node) = port {
            self.ports[node][0] = end_ns;
        }
        let recv = self.pairs.other(at).expect("all messages are paired");
        self.settle(recv, start_ns + link.transfer_ns(bytes) + link.latency_ns);
        self.over(at, end_ns);
        self.later(end_ns, StepStage::Sent, at);
    }

    fn receive(&mut self, rank: usize, from: usize, len: usize, now_ns: f64) -> f64 {
        let (link, port) = self.link(rank, from);
        let transfer_ns = link.transfer_ns(len as f64 * self.element_bytes);
        let mut landed_ns = now_ns;
        if let Some(node) = port {
            landed_ns = landed_ns.max(self.ports[node][1] + transfer_ns);
            self.ports[node][1] = landed_ns;
        }
        let free_ns = &mut self.engines[rank].receive_free_ns;
        *free_ns = landed_ns.max(*free_ns + transfer_ns) + link.overhead_ns;
        *free_ns
    }

    fn compute(&mut self, rank: usize, work_ns: f64, now_ns: f64) -> f64 {
        let free_ns = &mut self.engines[rank].compute_free_ns;
        *free_ns = now_ns.max(*free_ns) + work_ns;
        *free_ns
    }

    /// Returns the destination of a send, and its bytes.
    fn to(&self, at: GroupStep) -> (usize, f64) {
        let GroupStep { rank, step } = at;
        match *self.plans[rank].action(step) {
            StepAction::Send { to, from } => (to.0, from.len as f64 * self.element_bytes),
            _ => unreachable!("only sends are prepared"),
        }
    }

    /// Returns the link between two ranks, and the first rank's node if the link leaves it.
    fn link(&self, rank: usize, other: usize) -> (LogGP, Option<usize>) {
        let node = rank / self.machine.per_node;
        if node == other / self.machine.per_node {
            (self.machine.inside, None)
        } else {
            (self.machine.across, Some(node))
        }
    }
}
