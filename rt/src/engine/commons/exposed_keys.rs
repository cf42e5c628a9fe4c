//! Keys to the memory of operations, for drivers that pin memory as long as a key to it is valid.
//!
//! A completed operation returns its buffer, and another buffer may soon be at the same address. So the keys are withdrawn in
//! the same turn, before the application can have the buffer.

use std::collections::BTreeMap;

use ripstop_fabric::{
    driver::{Driver, DriverCommand, LocalRange},
    memory::RemoteRegion,
};

use crate::{group::WorldRank, proto::wire::OpId};

/// Valid keys of operations, by operation and serial number. Empty if the driver pins nothing.
#[derive(Debug, Default)]
pub(in crate::engine) struct ExposedKeys {
    pins: bool,
    out: BTreeMap<(u64, u32), RemoteRegion>,
    serial: u32,
    /// Key in an offer that found no room at the driver, with the operation of the offer, by peer.
    kept: Option<Box<UnsentOfferKeys>>,
    /// Keys to withdraw.
    over: Vec<RemoteRegion>,
}

/// Boxed, because a rank hardly ever has any.
type UnsentOfferKeys = BTreeMap<WorldRank, (OpId, RemoteRegion)>;

impl ExposedKeys {
    pub(in crate::engine) fn new(pins: bool) -> Self {
        Self {
            pins,
            ..Self::default()
        }
    }

    /// Returns true if no key is to be withdrawn.
    pub(in crate::engine) fn is_settled(&self) -> bool {
        self.over.is_empty()
    }

    /// Marks the keys of a completed operation for withdrawal.
    #[inline]
    pub(in crate::engine) fn close(&mut self, op: OpId) {
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

    /// Keeps the key of an offer that found no room, because the offer will be retried.
    #[cold]
    pub(in crate::engine) fn keep(&mut self, op: OpId, to: WorldRank, key: RemoteRegion) {
        self.kept.get_or_insert_default().insert(to, (op, key));
    }

    /// Takes the key kept for this offer. Drops the key of another operation, which has ended then.
    fn take_kept(&mut self, op: OpId, to: WorldRank) -> Option<RemoteRegion> {
        let (of, key) = self.kept.as_mut()?.remove(&to)?;
        (of == op).then_some(key)
    }

    /// Marks a key for withdrawal.
    pub(in crate::engine) fn withdraw(&mut self, key: RemoteRegion) {
        self.over.push(key);
    }

    /// Gives a peer a key to a part of an operation's buffer. The key is valid while the operation is in flight.
    pub(in crate::engine) fn expose(
        &mut self,
        driver: &mut dyn Driver,
        op: OpId,
        to: WorldRank,
        range: LocalRange,
    ) -> Option<RemoteRegion> {
        let key = driver.expose_to(to, range)?;
        if self.pins {
            self.serial = self.serial.wrapping_add(1);
            self.out.insert((op.pack(), self.serial), key);
        }
        Some(key)
    }

    /// Does the same as [`expose`](Self::expose) for an offer, and reuses the key if the offer is retried.
    pub(in crate::engine) fn expose_once(
        &mut self,
        driver: &mut dyn Driver,
        op: OpId,
        to: WorldRank,
        range: LocalRange,
    ) -> Option<RemoteRegion> {
        let kept = self.take_kept(op, to);
        kept.or_else(|| self.expose(driver, op, to, range))
    }

    /// Withdraws the keys that are marked.
    #[inline]
    pub(in crate::engine) fn withdraw_all(&mut self, driver: &mut dyn Driver) {
        while let Some(key) = self.over.pop() {
            // The driver never refuses this command, because it needs no room.
            let _ = driver.post(DriverCommand::Withdraw { key });
        }
    }
}
