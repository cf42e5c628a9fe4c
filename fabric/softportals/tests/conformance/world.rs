//! Interfaces that each have a vector as memory, with simulated wires between them.

use std::collections::VecDeque;

use ripstop_fabric::random::SeededRandom;
use ripstop_softportals::{
    AccessFault, AckRequest, AppMemory, CtId, EntryId, EntryList, EntryOptions, EqId, EventKind,
    FullEvent, InitiatorFilter, LibraryFamily, LibraryHabits, MdId, MdOffset, MdOptions,
    MemoryDescriptor, NiCommand, NiConfig, NiLimits, PacketLink, PhysicalId, RequestTarget,
    SoftCtValue, SoftInterface, SoftListEntry, SoftPacket, SoftPeer, SoftRegion, TableOptions,
};

/// Memory with addresses from 0 on.
#[derive(Debug)]
pub(crate) struct Ram(pub(crate) Vec<u8>);

impl AppMemory for Ram {
    fn read(&mut self, at: u64, into: &mut [u8]) -> Result<(), AccessFault> {
        let at = usize::try_from(at).map_err(|_| AccessFault)?;
        let from = self.0.get(at..).and_then(|rest| rest.get(..into.len()));
        into.copy_from_slice(from.ok_or(AccessFault)?);
        Ok(())
    }

    fn write(&mut self, at: u64, from: &[u8]) -> Result<(), AccessFault> {
        let at = usize::try_from(at).map_err(|_| AccessFault)?;
        let into = self
            .0
            .get_mut(at..)
            .and_then(|rest| rest.get_mut(..from.len()));
        into.ok_or(AccessFault)?.copy_from_slice(from);
        Ok(())
    }
}

pub(crate) type Node = SoftInterface<Ram>;

/// Interfaces `0..n`; the index is also the rank or the process id.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) nodes: Vec<Node>,
    /// Packets in flight, by sender and receiver.
    wires: Vec<Vec<VecDeque<Vec<u8>>>>,
    random: SeededRandom,
    logical: bool,
}

/// Output of one node: a queue to each node.
struct Out<'a>(&'a mut Vec<VecDeque<Vec<u8>>>);

impl PacketLink for Out<'_> {
    fn has_room(&mut self, peer: PhysicalId) -> bool {
        self.0
            .get(peer.pid as usize)
            .is_none_or(|wire| wire.len() < WIRE_LEN)
    }

    fn send(&mut self, peer: PhysicalId, packet: SoftPacket<'_>) {
        if let Some(wire) = self.0.get_mut(peer.pid as usize) {
            wire.push_back([packet.head, packet.payload].concat());
        }
    }
}

/// Maximum number of packets on a wire.
const WIRE_LEN: usize = 4;

pub(crate) const fn address(pid: u32) -> PhysicalId {
    PhysicalId { nid: 1, pid }
}

impl World {
    /// Returns two matching, logical interfaces.
    pub(crate) fn pair() -> Self {
        Self::of(2, |config| config)
    }

    pub(crate) fn of(nodes: u32, change: impl Fn(NiConfig) -> NiConfig) -> Self {
        let config = |pid| NiConfig {
            matching: true,
            logical: true,
            address: address(pid),
            uid: 100,
            limits: NiLimits::MOST,
            packet_max: PACKET_MAX,
            inline_max: None,
            counts_events: true,
            family: LibraryFamily::Sandia,
            habits: LibraryHabits::default(),
        };
        let configs: Vec<NiConfig> = (0..nodes).map(|pid| change(config(pid))).collect();
        let logical = configs.iter().all(|config| config.logical);
        let map: Vec<PhysicalId> = (0..nodes).map(address).collect();
        let node = |config: NiConfig| {
            let mut node = SoftInterface::new(config, Ram(vec![0; RAM_LEN]));
            if logical {
                node.set_map(&map).unwrap();
            }
            node
        };
        let wires = vec![vec![VecDeque::new(); nodes as usize]; nodes as usize];
        Self {
            nodes: configs.into_iter().map(node).collect(),
            wires,
            random: SeededRandom::new(1),
            logical,
        }
    }

    /// Moves packets until none is left. Pairs are served in random order, and keep their own order.
    pub(crate) fn run(&mut self) {
        while self.step() {}
    }

    pub(crate) fn step(&mut self) -> bool {
        let Some((from, to, packet)) = self.next_packet() else {
            return false;
        };
        self.nodes[to].handle(from, &packet);
        true
    }

    /// Like [`Self::step`], but damages the packet with this probability.
    pub(crate) fn step_damaged(&mut self, random: &mut SeededRandom, probability: f64) -> bool {
        let Some((from, to, mut packet)) = self.next_packet() else {
            return false;
        };
        let times = match random.within(0..4) {
            _ if !random.chance(probability) => 1,
            0 => 0,
            1 => 2,
            2 => {
                packet.truncate(usize::try_from(random.within(0..packet.len() as u64)).unwrap());
                1
            }
            _ => {
                let at = usize::try_from(random.within(0..packet.len() as u64)).unwrap();
                packet[at] ^= 1 << random.within(0..8);
                1
            }
        };
        for _ in 0..times {
            self.nodes[to].handle(from, &packet);
        }
        true
    }

    fn next_packet(&mut self) -> Option<(PhysicalId, usize, Vec<u8>)> {
        for (node, wires) in self.nodes.iter_mut().zip(&mut self.wires) {
            node.transmit(&mut Out(wires));
        }
        let n = self.nodes.len();
        let busy: Vec<(usize, usize)> = (0..n * n)
            .map(|at| (at / n, at % n))
            .filter(|&(from, to)| !self.wires[from][to].is_empty())
            .collect();
        let at = usize::try_from(self.random.within(0..busy.len() as u64)).unwrap();
        let (from, to) = *busy.get(at)?;
        let packet = self.wires[from][to].pop_front()?;
        Some((address(u32::try_from(from).unwrap()), to, packet))
    }

    /// Returns the number of packets that a node sends in one call.
    pub(crate) fn transmit(&mut self, node: usize) -> usize {
        let wires = &mut self.wires[node];
        self.nodes[node].transmit(&mut Out(wires));
        wires.iter().map(VecDeque::len).sum()
    }

    pub(crate) fn shuffled(mut self, seed: u64) -> Self {
        self.random = SeededRandom::new(seed);
        self
    }

    pub(crate) fn peer(&self, node: u32) -> SoftPeer {
        if self.logical {
            SoftPeer::Rank(node)
        } else {
            SoftPeer::At(address(node))
        }
    }

    /// Puts `bytes` from node 0 to portal table entry 0 of node 1, with match bits 7, and delivers everything.
    pub(crate) fn put(&mut self, bytes: &[u8], ack: AckRequest) -> Initiator {
        let initiator = Initiator::new(&mut self.nodes[0]);
        self.put_again(&initiator, bytes, ack, 7, 0);
        initiator
    }

    pub(crate) fn put_again(
        &mut self,
        initiator: &Initiator,
        bytes: &[u8],
        ack: AckRequest,
        match_bits: u64,
        offset: u64,
    ) {
        let remote = RequestTarget {
            match_bits,
            offset,
            ..self.remote(1)
        };
        self.start_put(initiator, bytes, ack, remote);
        self.run();
    }

    /// Like [`put`](Self::put), but delivers only the first packet.
    pub(crate) fn begin_put(&mut self, bytes: &[u8], ack: AckRequest) -> Initiator {
        let initiator = Initiator::new(&mut self.nodes[0]);
        self.start_put(&initiator, bytes, ack, self.remote(1));
        assert!(self.step());
        initiator
    }

    fn start_put(
        &mut self,
        initiator: &Initiator,
        bytes: &[u8],
        ack: AckRequest,
        remote: RequestTarget,
    ) {
        let length = bytes.len() as u64;
        self.nodes[0].memory().write(INITIATOR_AT, bytes).unwrap();
        let command = NiCommand::Put(initiator.local(0), RequestTarget { length, ..remote }, ack);
        self.nodes[0].start(command).unwrap();
    }

    pub(crate) fn get(&mut self, initiator: &Initiator, length: u64, offset: u64) {
        let remote = RequestTarget {
            length,
            offset,
            ..self.remote(1)
        };
        self.nodes[0]
            .start(NiCommand::Get(initiator.local(0), remote))
            .unwrap();
        self.run();
    }

    /// Returns a target: portal table entry 0, match bits 7, no bytes.
    pub(crate) fn remote(&self, node: u32) -> RequestTarget {
        RequestTarget {
            peer: self.peer(node),
            pt_index: 0,
            match_bits: 7,
            offset: 0,
            length: 0,
            user_ptr: 0xabc,
            hdr_data: 0xdef,
        }
    }
}

/// A descriptor over the second half of a node's memory, with a queue and a counter for all its events.
#[derive(Debug)]
pub(crate) struct Initiator {
    pub(crate) md: MdId,
    pub(crate) eq: EqId,
    pub(crate) ct: CtId,
}

impl Initiator {
    pub(crate) fn new(node: &mut Node) -> Self {
        Self::with(node, MdOptions::NONE)
    }

    pub(crate) fn with(node: &mut Node, options: MdOptions) -> Self {
        let all = MdOptions::EVENT_CT_SEND | MdOptions::EVENT_CT_REPLY | MdOptions::EVENT_CT_ACK;
        let (eq, ct) = (node.eq_alloc(64).unwrap(), node.ct_alloc().unwrap());
        let md = MemoryDescriptor {
            region: SoftRegion::flat(INITIATOR_AT, RAM_LEN as u64 - INITIATOR_AT),
            options: options | all,
            eq: Some(eq),
            ct: Some(ct),
        };
        let md = node.md_bind(md).unwrap();
        Self { md, eq, ct }
    }

    pub(crate) const fn local(&self, offset: u64) -> MdOffset {
        MdOffset {
            md: self.md,
            offset,
        }
    }
}

/// A portal table entry with a queue.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) pt: u32,
    pub(crate) eq: EqId,
}

impl Target {
    /// Allocates portal table entry 0 with a queue of 64 events.
    pub(crate) fn new(node: &mut Node) -> Self {
        Self::with(node, TableOptions::NONE, 64)
    }

    pub(crate) fn with(node: &mut Node, options: TableOptions, events: u64) -> Self {
        let eq = node.eq_alloc(events).unwrap();
        let pt = node.pt_alloc(options, Some(eq), None).unwrap();
        Self { pt, eq }
    }

    pub(crate) fn append(
        &self,
        node: &mut Node,
        entry: SoftListEntry,
        list: EntryList,
        user_ptr: u64,
    ) -> EntryId {
        node.append(self.pt, entry, list, user_ptr).unwrap()
    }

    /// Appends memory `at..at + len` to the overflow list.
    pub(crate) fn overflow(
        &self,
        node: &mut Node,
        at: u64,
        len: u64,
        more: EntryOptions,
    ) -> EntryId {
        let options = EntryOptions::OP_PUT | EntryOptions::OP_GET | QUIET;
        let slab = SoftListEntry {
            ignore_bits: u64::MAX,
            options: options | EntryOptions::MANAGE_LOCAL | more,
            ..entry(at, len)
        };
        self.append(node, slab, EntryList::Overflow, OVERFLOW)
    }
}

/// Returns an entry over memory `at..at + len` that matches bits 7 of any source, for puts and gets.
pub(crate) fn entry(at: u64, len: u64) -> SoftListEntry {
    SoftListEntry {
        region: SoftRegion::flat(at, len),
        ct: None,
        uid: None,
        options: EntryOptions::OP_PUT | EntryOptions::OP_GET | QUIET,
        source: InitiatorFilter::Any,
        match_bits: 7,
        ignore_bits: 0,
        min_free: 0,
    }
}

pub(crate) fn once(at: u64, len: u64) -> SoftListEntry {
    with(entry(at, len), EntryOptions::USE_ONCE)
}

pub(crate) fn with(entry: SoftListEntry, more: EntryOptions) -> SoftListEntry {
    SoftListEntry {
        options: entry.options | more,
        ..entry
    }
}

/// Takes all events of a queue, and returns their kinds.
pub(crate) fn kinds(node: &mut Node, eq: EqId) -> Vec<EventKind> {
    events(node, eq).iter().map(|event| event.kind).collect()
}

pub(crate) fn events(node: &mut Node, eq: EqId) -> Vec<FullEvent> {
    std::iter::from_fn(|| node.eq_get(eq).ok())
        .map(|taken| {
            assert!(!taken.dropped, "an event was dropped before {taken:?}");
            taken.event
        })
        .collect()
}

pub(crate) fn count(node: &Node, ct: CtId) -> (u64, u64) {
    let SoftCtValue { success, failure } = node.ct_get(ct).unwrap();
    (success, failure)
}

pub(crate) fn bytes(node: &mut Node, at: u64, len: usize) -> Vec<u8> {
    let mut out = vec![0; len];
    node.memory().read(at, &mut out).unwrap();
    out
}

/// Every append posts a LINK event, so they are enabled only in tests of LINK.
const QUIET: EntryOptions = EntryOptions::EVENT_LINK_DISABLE;
/// User pointer of entries of the overflow list.
pub(crate) const OVERFLOW: u64 = 999;
pub(crate) const RAM_LEN: usize = 1 << 17;
/// Start of the initiator's memory; targets use the memory below.
pub(crate) const INITIATOR_AT: u64 = 1 << 16;
pub(crate) const PACKET_MAX: usize = 2048;
