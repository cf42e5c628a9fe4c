//! Calls of the application that need the driver: ends of windows open and close, and exposures and accesses begin and end.

use std::{collections::BTreeMap, sync::atomic::AtomicU32};

use bytemuck::Zeroable;
use ripstop_fabric::{driver::Driver, memory::RemoteRegion};

use super::{
    MappedEnd, PeerEndMemory, UpdateLock, WindowAccessGuard, WindowEndState, WindowExtent,
    WindowId, WindowPart, WindowTable, counter_pairs::LocalCounterPair, pieces::WindowPieces,
    update_queue::NOBODY,
};
use crate::{
    group::{RankGroup, WorldRank},
    proto::wire::{HeaderBase, WindowHelloHeader, WireKind},
};

/// Windows with the driver, which maps memory, watches counters and carries updates.
pub(crate) struct WindowProgress<'a> {
    pub(in crate::engine) driver: &'a mut dyn Driver,
    pub(in crate::engine) part: WindowPart<'a>,
}

impl WindowProgress<'_> {
    /// Opens an end, and returns the lock of its numbers if it has one.
    pub(crate) fn open_window(&mut self, id: WindowId, extent: WindowExtent) -> Option<UpdateLock> {
        let Self { driver, part } = self;
        let me = part.common.me;
        let is_mapped = driver.mapped_memory().is_some();
        let (key, update_lock) = match &extent {
            WindowExtent::Fixed(memory) => {
                let lock = is_mapped.then(|| memory.update_lock(me)).flatten();
                let len = match lock {
                    Some(_) => UpdateLock::key_len(memory.start, memory.len),
                    None => memory.len,
                };
                let range = crate::buffer::range_of(&memory.region, memory.start, len);
                (driver.expose(range), lock)
            }
            WindowExtent::OnNode(memory) => {
                let range = crate::buffer::range_of(&memory.region, memory.start, memory.len);
                let node = driver.node_memory();
                (node.and_then(|node| node.expose_on_node(range)), None)
            }
            WindowExtent::Growing(_) => (None, None),
        };
        let on_node = matches!(extent, WindowExtent::OnNode(_));
        let access_guard = WindowAccessGuard::default();
        if let Some(key) = key
            && let Some(guards) = driver.guarded_memory()
        {
            guards.guard(key, access_guard.keeper());
        }
        let (sig, pieces) = WindowPieces::new(extent);
        let group = part.common.members(id.context).cloned();
        let end = WindowEndState {
            group: group.unwrap_or(RankGroup::First(0)),
            sig,
            pieces,
            on_node,
            key: key.unwrap_or_else(RemoteRegion::zeroed),
            peer_ends: BTreeMap::new(),
            listeners: BTreeMap::new(),
            fences: None,
            in_fence_epoch: false,
            access_guard,
            update_lock: update_lock.clone(),
            held_up_by: AtomicU32::new(NOBODY),
            closed: false,
        };
        part.windows.ends.insert(id, end);
        update_lock
    }

    /// Closes this end, because the application no longer holds it. Completes the accesses that are still open. The end is freed
    /// once nothing is in flight, and neighbors that come later are notified that it is gone.
    pub(in crate::engine) fn close_window(&mut self, id: WindowId) {
        let Some(end) = self.part.windows.ends.get_mut(&id) else {
            return;
        };
        end.closed = true;
        for peer_end in end.peer_ends.values_mut() {
            peer_end.completing |= peer_end.counters.is_accessing();
        }
        let peers: Vec<WorldRank> = end.peer_ends.keys().copied().collect();
        for rank in peers {
            self.part.end_access(id, rank);
        }
        self.part.free_idle_window(id);
        self.unwatch(id);
    }

    /// Sends this end's greeting to a neighbor, unless it was sent before.
    pub(crate) fn greet(&mut self, id: WindowId, rank: WorldRank) {
        let Self { driver, part } = self;
        let WindowTable { ends, pool, .. } = &mut **part.windows;
        let Some(end) = ends.get_mut(&id) else {
            return;
        };
        let hello = WindowHelloHeader {
            base: HeaderBase::new(WireKind::WindowHello),
            ctx: id.context,
            tag: id.sequence,
            sig: end.sig.0,
            len: end.pieces.extent(),
            key: end.key,
        };
        let peer_end = end.peer_end(rank);
        if std::mem::replace(&mut peer_end.greeted, true) || part.common.peers.down(rank).is_some()
        {
            return;
        }
        if let Some((ours, keys)) = LocalCounterPair::new(pool, &mut **driver) {
            peer_end.counters.set_local_pair(ours);
            // The keys are sent before the greeting, so that a neighbor that has been greeted can count.
            part.common
                .peers
                .control(rank, &id.keys_header(WireKind::CounterKeys, keys));
        }
        part.common.peers.control(rank, &hello);
    }

    /// Opens this end to an origin once more. Returns immediately.
    pub(crate) fn post_window(&mut self, id: WindowId, origin: WorldRank) {
        self.greet(id, origin);
        self.reach_counters(id, origin);
        if let Some(peer_end) = self.part.windows.peer_end(id, origin) {
            peer_end.counters.add_post();
            self.part.notify_posted(id, origin);
        }
    }

    /// Returns a neighbor's memory, or `None` until the neighbor has introduced itself. Maps its counters and its memory, where
    /// that is possible, at the first use.
    pub(crate) fn peer_memory(&mut self, id: WindowId, rank: WorldRank) -> Option<PeerEndMemory> {
        self.reach_counters(id, rank);
        let Self { driver, part } = self;
        let me = part.common.me;
        let end = part.windows.ends.get_mut(&id)?;
        let on_node = end.on_node;
        let peer_memory = end.peer_end(rank).memory.as_mut()?;
        if peer_memory.mapped.is_none()
            && peer_memory.key.len > 0
            && peer_memory.key.len >= peer_memory.len
        {
            let key = peer_memory.key;
            let reached = if on_node {
                let node = driver.node_memory();
                node.and_then(|node| node.reach_on_node(rank, key))
            } else {
                let memory = driver.mapped_memory();
                memory.and_then(|memory| memory.reach(rank, key))
            };
            peer_memory.mapped =
                reached.map(|(region, start)| MappedEnd::new(region, start, peer_memory, me));
        }
        Some(peer_memory.clone())
    }

    /// Ends an access as soon as none of its operations is in flight, and then notifies the target.
    pub(in crate::engine) fn complete_window(&mut self, id: WindowId, target: WorldRank) {
        let peer_end = self.part.windows.peer_end(id, target);
        if let Some(peer_end) = peer_end.filter(|peer_end| peer_end.counters.is_accessing()) {
            peer_end.completing = true;
        }
        self.reach_counters(id, target);
        self.part.end_access(id, target);
    }
}
