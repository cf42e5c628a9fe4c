//! Keys that are out to the memory of operations, where a driver pins that as long as they are.
//!
//! An operation that is complete gives its buffer away, and at that address there may be another one soon: so the key is
//! withdrawn in the same turn, before anybody can have the buffer.

use std::collections::BTreeMap;

use ripstop_fabric::{
    driver::{Command, LocalRange, Peer},
    memory::RemoteRegion,
};

use super::Engine;
use crate::proto::wire::OpId;

/// The keys of operations, in the order in which each was given out. Empty where drivers pin nothing.
#[derive(Debug, Default)]
pub(super) struct Exposed {
    pins: bool,
    out: BTreeMap<(u64, u32), RemoteRegion>,
    serial: u32,
    /// By peer: the key in an offer to it that finds no room at the driver, and whose that is.
    kept: Option<Box<Kept>>,
    /// To be withdrawn.
    over: Vec<RemoteRegion>,
}

/// In a box, as hardly a rank ever has any.
type Kept = BTreeMap<u32, (OpId, RemoteRegion)>;

impl Exposed {
    pub(super) fn new(pins: bool) -> Self {
        Self {
            pins,
            ..Self::default()
        }
    }

    /// An operation is complete.
    #[inline]
    pub(super) fn close(&mut self, op: OpId) {
        if !self.out.is_empty() {
            self.close_all_of(op.pack());
        }
    }

    fn close_all_of(&mut self, op: u64) {
        while let Some((&at, &key)) = self.out.range((op, 0)..=(op, u32::MAX)).next() {
            self.out.remove(&at);
            self.over.push(key);
        }
    }

    /// An offer with this key finds no room; it is made again.
    #[cold]
    pub(super) fn keep(&mut self, op: OpId, to: u32, key: RemoteRegion) {
        self.kept.get_or_insert_default().insert(to, (op, key));
    }

    /// The key that was kept for the same offer. If its operation has ended, it is nobody's any more.
    fn take_kept(&mut self, op: OpId, to: u32) -> Option<RemoteRegion> {
        let (of, key) = self.kept.as_mut()?.remove(&to)?;
        (of == op).then_some(key)
    }

    /// A key is needed no more.
    pub(super) fn withdraw(&mut self, key: RemoteRegion) {
        self.over.push(key);
    }
}

impl Engine {
    /// A peer's key to a part of an operation's buffer, for as long as the operation is under way.
    pub(super) fn expose(&mut self, op: OpId, to: u32, range: LocalRange) -> Option<RemoteRegion> {
        let key = self.driver.expose_to(Peer(to), range)?;
        let exposed = &mut self.core.exposed;
        if exposed.pins {
            exposed.serial = exposed.serial.wrapping_add(1);
            exposed.out.insert((op.pack(), exposed.serial), key);
        }
        Some(key)
    }

    /// As [`expose`](Self::expose), for an offer, which may be made several times.
    pub(super) fn expose_once(
        &mut self,
        op: OpId,
        to: u32,
        range: LocalRange,
    ) -> Option<RemoteRegion> {
        let kept = self.core.exposed.take_kept(op, to);
        kept.or_else(|| self.expose(op, to, range))
    }

    #[inline]
    pub(super) fn withdraw_keys(&mut self) {
        while let Some(key) = self.core.exposed.over.pop() {
            // Always taken: it needs no room.
            let _ = self.driver.post(Command::Withdraw { key });
        }
    }
}
