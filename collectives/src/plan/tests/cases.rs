//! Every algorithm of every collective, for a group of a given size.

use super::{Atom, Case, OperandOrder, Plan, RankMemory, Symbol};
use crate::plan::{
    AllGather, AllReduce, AllToAll, Barrier, Bcast, BlockPartition, EdgePairing, Gather,
    NeighborEdge, NodeLayout, RankLayout, Reduce, ReduceScatter, Scatter, UnfitPlan, exscan,
    neighbors, scan,
};

/// Calls `visit` with every case of a group of `size`.
pub(super) fn each(size: usize, visit: &mut dyn FnMut(Case)) {
    let maps = [
        NodeLayout::regular(size, 3),
        NodeLayout::new(&scattered(size)),
        NodeLayout::new(&uneven(size)),
    ];
    for (nodes, map) in maps.iter().zip(["regular", "scattered", "uneven"]) {
        Group { size, nodes, map }.each(visit);
    }
}

fn scattered(size: usize) -> Vec<usize> {
    (0..size).map(|rank| rank * 7 % 5 % size.min(4)).collect()
}

/// One rank on the first node, two on the second, and so on.
fn uneven(size: usize) -> Vec<usize> {
    let nodes = (0..size).flat_map(|node| vec![node; node + 1]);
    nodes.take(size).collect()
}

struct Group<'a> {
    size: usize,
    nodes: &'a NodeLayout,
    map: &'a str,
}

impl Group<'_> {
    fn each(&self, visit: &mut dyn FnMut(Case)) {
        self.barriers(visit);
        self.bcasts(visit);
        self.all_reduces(visit);
        self.all_to_alls(visit);
        if self.map != "regular" {
            return;
        }
        self.rooted(visit);
        self.all_gathers(visit);
        self.reduce_scatters(visit);
        self.scans(visit);
        self.neighborhoods(visit);
    }

    /// Returns the plans of all ranks, if the algorithm fits. Only the node-aware algorithms use the map, so the others run
    /// only with the first map.
    fn plans(
        &self,
        name: &str,
        plan: impl Fn(&RankLayout<'_>) -> Result<Plan, UnfitPlan>,
    ) -> Option<Vec<Plan>> {
        if self.map != "regular" && !name.starts_with("leaders") {
            return None;
        }
        let place = |rank| RankLayout::new(rank, self.size).on(self.nodes);
        (0..self.size).map(|rank| plan(&place(rank)).ok()).collect()
    }

    fn roots(&self) -> Vec<usize> {
        let mut roots = vec![0, self.size / 2, self.size - 1];
        roots.dedup();
        roots
    }

    /// Returns lengths that leave parts empty, and lengths that do not; fewer if they take long.
    fn lens(&self) -> Vec<usize> {
        match self.size {
            ..25 => vec![0, 1, self.size - 1, 2 * self.size + 3],
            _ => vec![self.size + 3],
        }
    }

    fn lg(&self) -> usize {
        self.size.next_power_of_two().ilog2() as usize
    }

    /// Returns blocks of one length, and of many.
    fn layouts(&self) -> [(BlockPartition, &'static str); 3] {
        let counts: Vec<usize> = (0..self.size)
            .map(|rank| [2, 0, 1, 3, 0, 0, 1][rank % 7])
            .collect();
        let mut one = vec![0; self.size];
        one[self.size / 3] = 4;
        [
            (BlockPartition::each(2), "each"),
            (BlockPartition::counts(&counts), "ragged"),
            (BlockPartition::counts(&one), "one"),
        ]
    }

    fn barriers(&self, visit: &mut dyn FnMut(Case)) {
        for algorithm in Barrier::ALL
            .iter()
            .copied()
            .chain([1, 2, 3].map(|arity| Barrier::Kary { arity }))
        {
            let Some(plans) = self.plans(algorithm.name(), |place| algorithm.plan(place)) else {
                continue;
            };
            let most = match algorithm {
                Barrier::Dissemination => 2 * self.lg(),
                Barrier::Binomial => 2 * self.lg() + 1,
                Barrier::Kary { arity } => 2 * arity + 3,
                Barrier::Flat => 2 * self.size,
                _ => 2 * self.nodes.count() + 2 * self.size,
            };
            visit(Case {
                barrier: true,
                ..self.case(
                    &format!("barrier {algorithm}"),
                    plans,
                    |_, _| None,
                    0,
                    0,
                    (most, 0),
                )
            });
        }
    }

    fn bcasts(&self, visit: &mut dyn FnMut(Case)) {
        let more = [
            Bcast::Chain { segments: 1 },
            Bcast::Chain { segments: 3 },
            Bcast::Kary { arity: 2 },
        ];
        for algorithm in Bcast::ALL.iter().copied().chain(more) {
            for (root, len) in self
                .roots()
                .into_iter()
                .flat_map(|root| self.lens().into_iter().map(move |len| (root, len)))
            {
                let Some(plans) =
                    self.plans(algorithm.name(), |place| algorithm.plan(place, root, len))
                else {
                    continue;
                };
                let most = match algorithm {
                    Bcast::Binomial => self.lg() + 1,
                    Bcast::Kary { arity } => arity + 1,
                    Bcast::Chain { segments } => 2 * segments,
                    Bcast::ScatterRing => 2 * self.size + self.lg(),
                    _ => 2 * self.lg() + 3,
                };
                let label = format!("bcast {algorithm} from {root}, {len}");
                let mut case = self.case(
                    &label,
                    plans,
                    |_, i| Some(vec![(root, i)]),
                    0,
                    len,
                    (most, 0),
                );
                for (rank, memory) in case.memory.iter_mut().enumerate() {
                    memory.output = if rank == root {
                        atoms(rank, len)
                    } else {
                        vec![None; len]
                    };
                }
                visit(case);
            }
        }
    }

    fn all_reduces(&self, visit: &mut dyn FnMut(Case)) {
        for (algorithm, order) in with_orders(AllReduce::ALL) {
            for len in self.lens() {
                let Some(plans) =
                    self.plans(algorithm.name(), |place| algorithm.plan(place, len, order))
                else {
                    continue;
                };
                let most = match algorithm {
                    AllReduce::Ring => 5 * self.size,
                    AllReduce::Flat => 3 * self.size,
                    _ => 6 * self.lg() + 8,
                };
                let scratch = match algorithm {
                    AllReduce::Ring => 2 * len.div_ceil(self.size),
                    AllReduce::Rabenseifner if self.size.is_power_of_two() => len + 1,
                    AllReduce::LeadersDoubling | AllReduce::LeadersRabenseifner => 4 * len,
                    AllReduce::Flat => self.size * len,
                    _ => 2 * len,
                };
                let label = format!("all_reduce {algorithm} {order:?}, {len}");
                let all = |_, i| Some(self.all(i));
                let mut case = self.case(&label, plans, all, 0, len, (most, scratch));
                case.order = order;
                case.in_place();
                visit(case);
            }
        }
    }

    fn all_to_alls(&self, visit: &mut dyn FnMut(Case)) {
        let few = [
            AllToAll::Pairwise { window: 1 },
            AllToAll::Xor { window: 3 },
        ];
        for algorithm in AllToAll::ALL.iter().copied().chain(few) {
            for ragged in [false, true] {
                let count =
                    |from: usize, to: usize| if ragged { (3 * from + 5 * to) % 4 } else { 2 };
                let blocks = |counts: Vec<usize>| {
                    if ragged {
                        BlockPartition::counts(&counts)
                    } else {
                        BlockPartition::each(2)
                    }
                };
                let sends = |rank| blocks((0..self.size).map(|to| count(rank, to)).collect());
                let recvs = |rank| blocks((0..self.size).map(|from| count(from, rank)).collect());
                let plan = |place: &RankLayout<'_>| {
                    algorithm.plan(place, &sends(place.rank()), &recvs(place.rank()))
                };
                let Some(plans) = self.plans(algorithm.name(), plan) else {
                    continue;
                };
                let node = (0..self.nodes.count())
                    .map(|node| self.nodes.members(node).len())
                    .max()
                    .unwrap();
                let bounds = match algorithm {
                    AllToAll::Bruck => (3 * self.lg() + 4, 4 * self.size),
                    AllToAll::Leaders => (2 * self.size + 2 * node + 4, 2 * node * self.size * 2),
                    _ => (2 * self.size - 1, 0),
                };
                let label = format!("all_to_all {algorithm}, ragged {ragged}, {}", self.map);
                let mut case = self.case(&label, plans, |_, _| None, 0, 0, bounds);
                for rank in 0..self.size {
                    case.memory[rank].input = atoms(rank, sends(rank).start(self.size));
                    case.memory[rank].output = vec![None; recvs(rank).start(self.size)];
                    let block = |from: usize| {
                        (0..count(from, rank)).map(move |i| (from, sends(from).start(rank) + i))
                    };
                    let wanted = (0..self.size).flat_map(block);
                    case.wanted[rank] = wanted.map(|atom| Some(Symbol::from([atom]))).collect();
                }
                visit(case);
            }
        }
    }

    fn rooted(&self, visit: &mut dyn FnMut(Case)) {
        for root in self.roots() {
            for (blocks, layout) in self.layouts() {
                self.gathers(root, &blocks, layout, visit);
                self.scatters(root, &blocks, layout, visit);
            }
            self.reduces(root, visit);
        }
    }

    fn gathers(
        &self,
        root: usize,
        blocks: &BlockPartition,
        layout: &str,
        visit: &mut dyn FnMut(Case),
    ) {
        let all = blocks.start(self.size);
        for algorithm in Gather::ALL
            .iter()
            .copied()
            .chain([Gather::Linear { window: 2 }])
        {
            let plans = self
                .plans(algorithm.name(), |place| {
                    algorithm.plan(place, root, blocks)
                })
                .unwrap();
            let bounds = match algorithm {
                Gather::Binomial => (self.lg() + 2, all),
                Gather::Linear { .. } => (self.size, 0),
            };
            let label = format!("gather {algorithm} to {root}, {layout}");
            let wanted = |rank, i| (rank == root).then(|| vec![self.owner(blocks, i)]);
            let mut case = self.case(&label, plans, wanted, 0, all, bounds);
            case.inputs(|rank| blocks.len(rank));
            visit(case);
        }
    }

    fn scatters(
        &self,
        root: usize,
        blocks: &BlockPartition,
        layout: &str,
        visit: &mut dyn FnMut(Case),
    ) {
        let all = blocks.start(self.size);
        for algorithm in Scatter::ALL
            .iter()
            .copied()
            .chain([Scatter::Linear { window: 2 }])
        {
            let plans = self
                .plans(algorithm.name(), |place| {
                    algorithm.plan(place, root, blocks)
                })
                .unwrap();
            let bounds = match algorithm {
                Scatter::Binomial => (self.lg() + 2, all),
                Scatter::Linear { .. } => (self.size, 0),
            };
            let label = format!("scatter {algorithm} from {root}, {layout}");
            let mut case = self.case(&label, plans, |_, _| None, 0, 0, bounds);
            case.inputs(|rank| if rank == root { all } else { 0 });
            case.outputs(
                |rank, i| Some(vec![(root, blocks.start(rank) + i)]),
                |rank| blocks.len(rank),
            );
            visit(case);
        }
    }

    fn reduces(&self, root: usize, visit: &mut dyn FnMut(Case)) {
        for algorithm in Reduce::ALL.iter().copied() {
            for len in self.lens() {
                let plan = |place: &RankLayout<'_>| {
                    algorithm.plan(place, root, len, OperandOrder::RankOrder)
                };
                let plans = self.plans(algorithm.name(), plan).unwrap();
                let label = format!("reduce {algorithm} to {root}, {len}");
                let wanted = |rank, i| (rank == root).then(|| self.all(i));
                let bounds = (5 * self.lg() + 4, 3 * len);
                let mut case = self.case(&label, plans, wanted, len, len, bounds);
                case.order = OperandOrder::RankOrder;
                visit(case);
            }
        }
    }

    fn all_gathers(&self, visit: &mut dyn FnMut(Case)) {
        for algorithm in AllGather::ALL.iter().copied() {
            for (blocks, layout) in self.layouts() {
                let plans = self
                    .plans(algorithm.name(), |place| algorithm.plan(place, &blocks))
                    .unwrap();
                let most = match algorithm {
                    AllGather::Ring => 2 * self.size - 1,
                    AllGather::RecursiveDoubling => 2 * self.lg() + 3,
                    AllGather::Bruck => 4 * self.lg() + 1,
                };
                let all = blocks.start(self.size);
                let label = format!("all_gather {algorithm}, {layout}");
                let wanted = |_, i| Some(vec![self.owner(&blocks, i)]);
                let mut case = self.case(&label, plans, wanted, 0, all, (most, 0));
                case.inputs(|rank| blocks.len(rank));
                visit(case);
            }
        }
    }

    fn reduce_scatters(&self, visit: &mut dyn FnMut(Case)) {
        let few = [
            ReduceScatter::Pairwise { window: 1 },
            ReduceScatter::Pairwise { window: 64 },
        ];
        let all_of = [ReduceScatter::ALL, &few].concat();
        for (algorithm, order) in with_orders(&all_of) {
            for (blocks, layout) in self.layouts() {
                let plan = |place: &RankLayout<'_>| algorithm.plan(place, &blocks, order);
                let Some(plans) = self.plans(algorithm.name(), plan) else {
                    continue;
                };
                let all = blocks.start(self.size);
                let longest = blocks.longest(self.size);
                let bounds = match algorithm {
                    ReduceScatter::RecursiveHalving => (3 * self.lg() + 5, 3 * all),
                    ReduceScatter::Pairwise { window } => (3 * self.size, window * longest),
                    ReduceScatter::Ring => (3 * self.size, 2 * longest),
                    ReduceScatter::ReduceAndScatter => (4 * self.lg() + 5, 4 * all),
                };
                let label = format!("reduce_scatter {algorithm} {order:?}, {layout}");
                let mut case = self.case(&label, plans, |_, _| None, all, 0, bounds);
                case.order = order;
                case.outputs(
                    |rank, i| Some(self.all(blocks.start(rank) + i)),
                    |rank| blocks.len(rank),
                );
                visit(case);
            }
        }
    }

    fn scans(&self, visit: &mut dyn FnMut(Case)) {
        for len in self.lens() {
            let bounds = (3 * self.lg() + 4, 2 * len);
            let plans = self.plans("scan", |place| Ok(scan(place, len))).unwrap();
            let upto = |rank: usize, i| Some((0..=rank).map(|rank| (rank, i)).collect());
            let mut case = self.case(&format!("scan, {len}"), plans, upto, 0, len, bounds);
            case.order = OperandOrder::RankOrder;
            case.in_place();
            visit(case);
            let plans = self
                .plans("exscan", |place| Ok(exscan(place, len)))
                .unwrap();
            let before =
                |rank: usize, i| (rank > 0).then(|| (0..rank).map(|rank| (rank, i)).collect());
            let mut case = self.case(&format!("exscan, {len}"), plans, before, len, len, bounds);
            case.order = OperandOrder::RankOrder;
            visit(case);
        }
    }

    /// A periodic ring, an open one, and a graph in which every rank sends to the ranks 1, 3 and again 3 ahead.
    fn neighborhoods(&self, visit: &mut dyn FnMut(Case)) {
        let size = self.size;
        let ring = |rank: usize, distance: usize| Some((rank + size + distance) % size);
        let open = |rank: usize, distance: usize| {
            (rank + distance)
                .checked_sub(size)
                .filter(|rank| *rank < size)
        };
        type Ends<'a> = &'a dyn Fn(usize, usize) -> Option<usize>;
        for (ends, label) in [(&ring as Ends<'_>, "ring"), (&open, "open")] {
            let both = |rank| [edge(0, ends(rank, size - 1)), edge(1, ends(rank, size + 1))];
            let plan = |place: &RankLayout<'_>| {
                Ok(neighbors(
                    place,
                    &both(place.rank()),
                    &both(place.rank()),
                    EdgePairing::Grid,
                ))
            };
            let plans = self.plans(label, plan).unwrap();
            // Block 0 comes from the rank below, where it was block 1.
            let wanted = |rank: usize, i: usize| {
                let from = both(rank)[i / 2].rank?;
                Some(vec![(from, 2 - i / 2 * 2 + i % 2)])
            };
            visit(self.case(&format!("neighbors {label}"), plans, wanted, 4, 4, (4, 0)));
        }
        let steps = [1, 3, 3];
        let to = |rank: usize| [0, 1, 2].map(|i| edge(i, Some((rank + steps[i]) % size)));
        let from =
            |rank: usize| [0, 1, 2].map(|i| edge(i, Some((rank + 3 * size - steps[i]) % size)));
        let plan = |place: &RankLayout<'_>| {
            Ok(neighbors(
                place,
                &to(place.rank()),
                &from(place.rank()),
                EdgePairing::Graph,
            ))
        };
        let wanted = |rank: usize, i: usize| Some(vec![(from(rank)[i / 2].rank?, i)]);
        let plans = self.plans("graph", plan).unwrap();
        visit(self.case("neighbors graph", plans, wanted, 6, 6, (6, 0)));
        self.web(visit);
    }

    /// A graph with none, one or two edges between any two ranks, which each rank names in an order of its own.
    fn web(&self, visit: &mut dyn FnMut(Case)) {
        let size = self.size;
        // The peers of a rank: the ranks that it sends to, or those that it receives from.
        let peers = |rank: usize, sends: bool| -> Vec<usize> {
            let edges = |peer: usize| {
                let (from, to) = if sends { (rank, peer) } else { (peer, rank) };
                (from + 2 * to) % 4 % 3
            };
            let named = (0..size).flat_map(|peer| vec![peer; edges(peer)]);
            let mut named: Vec<(usize, usize)> = named.enumerate().collect();
            named.sort_by_key(|(nth, peer)| (7 * rank + 5 * nth + 3 * peer) % 11);
            named.into_iter().map(|(_, peer)| peer).collect()
        };
        let edges = |rank: usize, sends: bool| -> Vec<NeighborEdge> {
            let peers = peers(rank, sends).into_iter().enumerate();
            peers.map(|(i, peer)| edge(i, Some(peer))).collect()
        };
        let plan = |place: &RankLayout<'_>| {
            let [to, from] = [true, false].map(|sends| edges(place.rank(), sends));
            Ok(neighbors(place, &to, &from, EdgePairing::Graph))
        };
        let plans = self.plans("web", plan).unwrap();
        let mut case = self.case("neighbors web", plans, |_, _| None, 0, 0, (4 * size, 0));
        case.inputs(|rank| 2 * peers(rank, true).len());
        let sources: Vec<_> = (0..size).map(|rank| peers(rank, false)).collect();
        let wanted = |rank: usize, i: usize| {
            let (before, from) = (&sources[rank][..i / 2], sources[rank][i / 2]);
            let nth = before.iter().filter(|peer| **peer == from).count();
            let mut sends = peers(from, true).into_iter().zip(0..);
            let (_, block) = sends.by_ref().filter(|(to, _)| *to == rank).nth(nth)?;
            Some(vec![(from, 2 * block + i % 2)])
        };
        case.outputs(wanted, |rank| 2 * sources[rank].len());
        visit(case);
    }

    /// Returns element `i` of all ranks, in order.
    fn all(&self, i: usize) -> Vec<Atom> {
        (0..self.size).map(|rank| (rank, i)).collect()
    }

    /// Returns the rank and index of the element at `i` when blocks are gathered.
    fn owner(&self, blocks: &BlockPartition, i: usize) -> Atom {
        let owner = (0..self.size)
            .find(|rank| i < blocks.start(rank + 1))
            .unwrap();
        (owner, i - blocks.start(owner))
    }

    fn case(
        &self,
        label: &str,
        plans: Vec<Plan>,
        wanted: impl Fn(usize, usize) -> Option<Vec<Atom>>,
        input: usize,
        output: usize,
        bounds: (usize, usize),
    ) -> Case {
        let memory = |rank| RankMemory::new(atoms(rank, input), Vec::new());
        let mut case = Case {
            label: label.to_owned(),
            plans,
            memory: (0..self.size).map(memory).collect(),
            wanted: vec![Vec::new(); self.size],
            order: OperandOrder::Any,
            bounds,
            barrier: false,
        };
        case.outputs(wanted, |_| output);
        case
    }
}

impl Case {
    fn outputs(
        &mut self,
        wanted: impl Fn(usize, usize) -> Option<Vec<Atom>>,
        len: impl Fn(usize) -> usize,
    ) {
        for (rank, all) in self.wanted.iter_mut().enumerate() {
            let symbol = |i| wanted(rank, i).map(Symbol::from);
            *all = (0..len(rank)).map(symbol).collect();
            self.memory[rank].output = vec![None; len(rank)];
        }
    }

    fn inputs(&mut self, len: impl Fn(usize) -> usize) {
        for (rank, memory) in self.memory.iter_mut().enumerate() {
            memory.input = atoms(rank, len(rank));
        }
    }

    fn in_place(&mut self) {
        for (rank, memory) in self.memory.iter_mut().enumerate() {
            memory.output = atoms(rank, memory.output.len());
        }
    }
}

fn atoms(rank: usize, len: usize) -> Vec<Option<Symbol>> {
    (0..len).map(|i| Some(Symbol::from([(rank, i)]))).collect()
}

const fn edge(i: usize, rank: Option<usize>) -> NeighborEdge {
    NeighborEdge {
        rank,
        start: 2 * i,
        len: 2,
    }
}

/// Each algorithm with each order that it keeps. Those that do not fit are left out later.
fn with_orders<A: Copy>(algorithms: &[A]) -> impl Iterator<Item = (A, OperandOrder)> {
    let orders = |algorithm: &A| {
        [
            (*algorithm, OperandOrder::Any),
            (*algorithm, OperandOrder::RankOrder),
        ]
    };
    algorithms
        .iter()
        .flat_map(orders)
        .collect::<Vec<_>>()
        .into_iter()
}
