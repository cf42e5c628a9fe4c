//! Posted receives: memory lent to messages before they arrive.
//!
//! A waiting receive lends its buffer: the driver appends an entry for one message of that peer and tag, over a slot for the
//! header and the buffer. Such a message arrives without a copy. Its event is in the same queue as those of messages in slabs, so
//! all messages are passed on in the order in which they were sent.
//!
//! **The memory belongs to the adapter** until the event of the message is handled, or until the library has unlinked the entry,
//! which it refuses while a message is being delivered. If the entry is already unlinked, its message has arrived and the event
//! is in the queue. A library may reuse the handle of such an entry, so the old owner of a handle must not unlink the new entry.

use std::{collections::BTreeMap, io, sync::atomic::Ordering::Relaxed};

use super::{
    address::PortalsAddress,
    calls::{Me, PortalsCallError, PortalsLimits, PortalsNi},
    completion::PortalsCompletion,
    event::PortalsProcess,
    peer::PortalsPeerState,
    send_pool::HEADER_MAX,
    transport::PortalsTransport,
};
use crate::{
    driver::{CommandToken, LocalRange, TagBuffer},
    memory::MemoryRegion,
};

/// All posted receives.
#[derive(Debug)]
pub(super) struct PostedRecvTable {
    /// For each entry, a slot for the header and the list of its segments.
    places: MemoryRegion,
    entries: Vec<PostedRecvEntry>,
    free: Vec<u32>,
    room: u32,
    by_token: BTreeMap<u64, u32>,
    /// Entries by the library's handles.
    by_handle: BTreeMap<u64, u32>,
    /// Entries that were in use when they had to be unlinked.
    asked: Vec<u32>,
    /// True once events were lost, so the event of an unlinked entry may never come.
    blind: bool,
    ranks: BTreeMap<PortalsProcess, u32>,
}

#[derive(Debug)]
struct PostedRecvEntry {
    generation: u32,
    /// The posted receive, while the adapter has the memory.
    loan: Option<PostedRecv>,
}

#[derive(Clone, Copy, Debug)]
struct PostedRecv {
    offer: TagBuffer,
    /// Handle of the entry; `None` once the library has given it to another entry.
    handle: Option<Me>,
}

impl PostedRecvTable {
    /// Returns the bookkeeping for ranks with these addresses.
    ///
    /// # Errors
    /// Fails if there is no memory for it.
    pub(super) fn new(limits: &PortalsLimits, addresses: &[PortalsAddress]) -> io::Result<Self> {
        let room = room(limits);
        let processes = addresses.iter().map(|address| address.process);
        Ok(Self {
            places: MemoryRegion::vacant(room as usize * PLACE_LEN)?,
            entries: Vec::new(),
            free: Vec::new(),
            room,
            by_token: BTreeMap::new(),
            by_handle: BTreeMap::new(),
            asked: Vec::new(),
            blind: false,
            ranks: processes.zip(0..).collect(),
        })
    }

    /// Returns the rank of a process.
    pub(super) fn rank_of(&self, process: PortalsProcess) -> Option<u32> {
        self.ranks.get(&process).copied()
    }

    /// Returns true if withdrawn memory is not back yet.
    pub(super) const fn has_withdrawals(&self) -> bool {
        !self.asked.is_empty()
    }

    /// Notes that events were lost.
    pub(super) const fn lose_events(&mut self) {
        self.blind = true;
    }

    /// Posts memory for the next message of a peer with a tag. Returns true if the adapter has it.
    pub(super) fn post(
        &mut self,
        transport: &PortalsTransport,
        from: u32,
        offer: TagBuffer,
    ) -> bool {
        let is_up = transport.peer(from).state == PortalsPeerState::Up;
        let Some(bits) = transport.address.tagged_bits(offer.tag) else {
            return false;
        };
        if !is_up || offer.header_len > HEADER_MAX || offer.header_len == 0 {
            return false;
        }
        let Some(at) = self.take_place() else {
            return false;
        };
        let segments = self.write_segments(at, &offer);
        let user = self.entries[at as usize].user(at);
        let (resources, process) = (&transport.resources, transport.home(from).1);
        let pt = transport.address.tables.eager;
        let appended = (resources.ni).append_segments(pt, segments, SEGMENTS, process, bits, user);
        let Ok(me) = appended else {
            self.free.push(at);
            return false;
        };
        self.keep(at, offer, me);
        resources.counters.all.entries.add(1);
        resources.counters.lent.add(1);
        true
    }

    /// Withdraws a posted receive. Returns true if its memory is back.
    pub(super) fn withdraw(&mut self, transport: &PortalsTransport, token: CommandToken) -> bool {
        let Some(&at) = self.by_token.get(&token.0) else {
            let is_it = |told: &PortalsCompletion| matches!(told, PortalsCompletion::Returned(other) if *other == token);
            return !transport.completions.iter().any(is_it);
        };
        let is_back = self.unlink(&transport.resources.ni, at).is_some();
        if !is_back && !self.asked.contains(&at) {
            self.asked.push(at);
        }
        is_back
    }

    /// Retries withdrawals of memory that was in use.
    pub(super) fn retry_withdrawals(&mut self, transport: &mut PortalsTransport) {
        for at in self.asked.clone() {
            if let Some(offer) = self.unlink(&transport.resources.ni, at) {
                let returned = PortalsCompletion::Returned(offer.token);
                transport.completions.push_back(returned);
            }
        }
    }

    /// Ends the posted receive that an event names. Returns its buffer, and the header that has arrived.
    pub(super) fn take_arrived(&mut self, user: u64) -> Option<(TagBuffer, [u8; HEADER_MAX])> {
        let at = self.named(user)?;
        let offer = self.end(at)?;
        let mut header = [0; HEADER_MAX];
        let place = at as usize * PLACE_LEN;
        self.places.read(place, &mut header[..offer.header_len]);
        Some((offer, header))
    }

    fn take_place(&mut self) -> Option<u32> {
        if let Some(at) = self.free.pop() {
            return Some(at);
        }
        let at = u32::try_from(self.entries.len()).ok()?;
        if at == self.room {
            return None;
        }
        self.entries.push(PostedRecvEntry {
            generation: 0,
            loan: None,
        });
        Some(at)
    }

    /// Writes the list of an entry's segments, and returns its location.
    fn write_segments(&self, at: u32, offer: &TagBuffer) -> LocalRange {
        let place = at as usize * PLACE_LEN;
        let header = self.places.range().slice(place, offer.header_len);
        let segments = place + HEADER_MAX;
        for (nth, range) in [header, offer.into].into_iter().enumerate() {
            let start = range.start().as_ptr().expose_provenance() as u64;
            let word = |at: usize| self.places.atomic_u64(segments + 16 * nth + at);
            word(0).store(start, Relaxed);
            word(8).store(range.len() as u64, Relaxed);
        }
        self.places.range().slice(segments, SEGMENTS_LEN)
    }

    fn keep(&mut self, at: u32, offer: TagBuffer, me: Me) {
        if let Some(other) = self.by_handle.insert(me.0, at)
            && let Some(loan) = &mut self.entries[other as usize].loan
        {
            loan.handle = None;
        }
        self.by_token.insert(offer.token.0, at);
        self.entries[at as usize].loan = Some(PostedRecv {
            offer,
            handle: Some(me),
        });
    }

    /// Ends a posted receive, because the adapter no longer has the memory.
    fn end(&mut self, at: u32) -> Option<TagBuffer> {
        let entry = self.entries.get_mut(at as usize)?;
        let PostedRecv { offer, handle } = entry.loan.take()?;
        entry.generation = entry.generation.wrapping_add(1) & GENERATIONS;
        self.free.push(at);
        self.by_token.remove(&offer.token.0);
        if let Some(Me(handle)) = handle {
            self.by_handle.remove(&handle);
        }
        self.asked.retain(|asked| *asked != at);
        Some(offer)
    }

    /// Returns the entry that an event names.
    fn named(&self, user: u64) -> Option<u32> {
        let at = u32::try_from(user & u64::from(u32::MAX)).ok()?;
        let entry = self.entries.get(at as usize)?;
        (entry.user(at) == user).then_some(at)
    }

    /// Takes an entry back, if the library unlinks it.
    fn unlink(&mut self, ni: &PortalsNi, at: u32) -> Option<TagBuffer> {
        let loan = self.entries[at as usize].loan?;
        let is_back = match loan.handle.map(|me| ni.unlink(me)) {
            Some(Ok(())) => true,
            Some(Err(PortalsCallError::InUse | PortalsCallError::Transient(_))) => false,
            // The library does not know the handle: the message has arrived, and its event ends the posted receive, unless events
            // were lost.
            Some(Err(PortalsCallError::Permanent(_))) | None => self.blind,
        };
        is_back.then(|| self.end(at)).flatten()
    }
}

impl PostedRecvEntry {
    fn user(&self, at: u32) -> u64 {
        LENT | u64::from(self.generation) << 32 | u64::from(at)
    }
}

/// Returns true if an event belongs to a posted receive.
pub(super) const fn is_posted_recv(user: u64) -> bool {
    user & LENT != 0
}

/// Returns the shortest body whose tag the adapter should match, if it can.
///
/// The adapter cannot match if the library accesses memory after its entry is unlinked, or if operations to dead processes never
/// complete. With several rails, a message might arrive by another rail than the one with its entry.
pub(super) fn tagged_len_min(ni: &PortalsNi, wanted: Option<usize>, rails: usize) -> Option<usize> {
    let whole = ni.async_progress && ni.ends_to_dead && ni.wire.damaged_lens.is_none();
    let one = rails == 1;
    let fits = u64::from(ni.limits.max_iovecs) >= SEGMENTS && room(&ni.limits) > 0;
    wanted
        .filter(|_| whole && one && fits)
        .map(|least| least.max(1))
}

/// Returns the maximum number of posted receives, which leaves most entries of the library for other purposes.
fn room(limits: &PortalsLimits) -> u32 {
    let list = limits.max_list_size / 2;
    (limits.max_entries / 4).min(list).min(ROOM_MAX)
}

/// Limit on posted receives, because the list of entries is searched for each message.
const ROOM_MAX: u32 = 1024;
/// Flag in the user pointer of posted receives; slabs use small numbers.
const LENT: u64 = 1 << 63;
const GENERATIONS: u32 = u32::MAX >> 1;
/// Segments of an entry: header and body.
const SEGMENTS: u64 = 2;
const SEGMENTS_LEN: usize = 32;
/// Bytes of a slot: a header, and the list of segments.
const PLACE_LEN: usize = HEADER_MAX + SEGMENTS_LEN;
