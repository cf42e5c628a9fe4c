//! Records of a slot: parts of a snapshot, each as bytes of one length, with its texts behind all records.

use bytemuck::{Pod, Zeroable};

use super::{
    super::snapshot::{
        PublishedComm, PublishedLock, PublishedPeer, PublishedWait, StoredGroup, WaitKind,
    },
    count, take_text,
};

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct WaitRecord {
    id: u64,
    sig: u64,
    bytes: u64,
    since: u64,
    kind: u32,
    comm: u32,
    peer: u32,
    tag: u32,
    flags: u32,
    name_len: u32,
    at_len: u32,
    zero: u32,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct CommRecord {
    members: u64,
    comm: u32,
    size: u32,
    next: u32,
    last_len: u32,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct StoredRecord {
    sig: u64,
    count: u64,
    bytes: u64,
    source: u32,
    comm: u32,
    tag: u32,
    name_len: u32,
    is_probed: u32,
    zero: u32,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct PeerRecord {
    rank: u32,
    sent: u32,
    received: u32,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct LockRecord {
    comm: u32,
    window: u32,
    holder: u32,
}

const HAS_PEER: u32 = 1;
const HAS_TAG: u32 = 2;
const AWAITED: u32 = 4;

impl WaitRecord {
    pub(super) fn of(wait: &PublishedWait) -> Self {
        let flag = |is_set, flag| if is_set { flag } else { 0 };
        Self {
            id: wait.id,
            sig: wait.sig,
            bytes: wait.bytes,
            since: wait.since,
            kind: wait.kind as u32,
            comm: wait.comm,
            peer: wait.peer.unwrap_or(0),
            tag: wait.tag.unwrap_or(0),
            flags: flag(wait.peer.is_some(), HAS_PEER)
                | flag(wait.tag.is_some(), HAS_TAG)
                | flag(wait.is_awaited, AWAITED),
            name_len: count(wait.name.len()),
            at_len: count(wait.at.len()),
            zero: 0,
        }
    }

    pub(super) fn wait(&self, text: &mut &[u8]) -> Option<PublishedWait> {
        Some(PublishedWait {
            kind: WaitKind::of_code(self.kind)?,
            id: self.id,
            comm: self.comm,
            peer: (self.flags & HAS_PEER != 0).then_some(self.peer),
            tag: (self.flags & HAS_TAG != 0).then_some(self.tag),
            sig: self.sig,
            bytes: self.bytes,
            is_awaited: self.flags & AWAITED != 0,
            since: self.since,
            name: take_text(text, self.name_len)?,
            at: take_text(text, self.at_len)?,
        })
    }
}

impl CommRecord {
    pub(super) fn of(comm: &PublishedComm) -> Self {
        Self {
            members: comm.members,
            comm: comm.comm,
            size: comm.size,
            next: comm.next,
            last_len: count(comm.last.len()),
        }
    }

    pub(super) fn comm(&self, text: &mut &[u8]) -> Option<PublishedComm> {
        Some(PublishedComm {
            comm: self.comm,
            size: self.size,
            members: self.members,
            next: self.next,
            last: take_text(text, self.last_len)?,
        })
    }
}

impl StoredRecord {
    pub(super) fn of(group: &StoredGroup) -> Self {
        Self {
            sig: group.sig,
            count: group.count,
            bytes: group.bytes,
            source: group.source,
            comm: group.comm,
            tag: group.tag,
            name_len: count(group.name.len()),
            is_probed: group.is_probed.into(),
            zero: 0,
        }
    }

    pub(super) fn group(&self, text: &mut &[u8]) -> Option<StoredGroup> {
        Some(StoredGroup {
            is_probed: self.is_probed != 0,
            source: self.source,
            comm: self.comm,
            tag: self.tag,
            sig: self.sig,
            count: self.count,
            bytes: self.bytes,
            name: take_text(text, self.name_len)?,
        })
    }
}

impl PeerRecord {
    pub(super) const fn of(peer: &PublishedPeer) -> Self {
        let &PublishedPeer {
            rank,
            sent,
            received,
        } = peer;
        Self {
            rank,
            sent,
            received,
        }
    }

    pub(super) const fn peer(self) -> PublishedPeer {
        let Self {
            rank,
            sent,
            received,
        } = self;
        PublishedPeer {
            rank,
            sent,
            received,
        }
    }
}

impl LockRecord {
    pub(super) const fn of(lock: &PublishedLock) -> Self {
        let &PublishedLock {
            comm,
            window,
            holder,
        } = lock;
        Self {
            comm,
            window,
            holder,
        }
    }

    pub(super) const fn lock(self) -> PublishedLock {
        let Self {
            comm,
            window,
            holder,
        } = self;
        PublishedLock {
            comm,
            window,
            holder,
        }
    }
}
