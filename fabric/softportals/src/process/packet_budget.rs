//! Limit on the packets sent while the lock is held once.
//!
//! A peer that reads as fast as this process writes always has room. A long message to it would otherwise keep all callers out
//! until its end, and delay answers to probes.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use crate::{
    event::PhysicalId,
    interface::{PacketLink, SoftPacket},
};

#[derive(Debug)]
pub(super) struct PacketBudget {
    packets_left: u32,
    /// True if the limit was reached while packets were left to send.
    pub(super) is_over: bool,
}

impl Default for PacketBudget {
    fn default() -> Self {
        Self {
            packets_left: PACKETS_MAX,
            is_over: false,
        }
    }
}

impl PacketBudget {
    /// Returns a link that stops at the limit, or earlier if another thread waits for the lock.
    pub(super) fn over<'a, L>(
        &'a mut self,
        link: &'a mut L,
        kept_waiting: &'a AtomicU32,
    ) -> BudgetedLink<'a, L> {
        BudgetedLink {
            spell: self,
            link,
            kept_waiting,
        }
    }
}

#[derive(Debug)]
pub(super) struct BudgetedLink<'a, L> {
    spell: &'a mut PacketBudget,
    link: &'a mut L,
    kept_waiting: &'a AtomicU32,
}

impl<L: PacketLink> PacketLink for BudgetedLink<'_, L> {
    fn has_room(&mut self, peer: PhysicalId) -> bool {
        let has_begun = self.spell.packets_left < PACKETS_MAX;
        if self.spell.packets_left == 0 || has_begun && self.kept_waiting.load(Relaxed) > 0 {
            self.spell.is_over = true;
            return false;
        }
        self.link.has_room(peer)
    }

    fn send(&mut self, peer: PhysicalId, packet: SoftPacket<'_>) {
        self.spell.packets_left -= 1;
        self.link.send(peer, packet);
    }
}

/// Packets received, and packets sent, while the lock is held once. Callers get the lock in between.
pub(super) const PACKETS_MAX: u32 = 64;

#[cfg(test)]
mod tests {
    use super::{AtomicU32, PACKETS_MAX, PacketBudget, PacketLink, PhysicalId, SoftPacket};

    /// A peer that reads as fast as this process writes.
    #[derive(Default)]
    struct Fast(u32);

    impl PacketLink for Fast {
        fn has_room(&mut self, _peer: PhysicalId) -> bool {
            true
        }

        fn send(&mut self, _peer: PhysicalId, _packet: SoftPacket<'_>) {
            self.0 += 1;
        }
    }

    const PEER: PhysicalId = PhysicalId { nid: 1, pid: 2 };
    const PACKET: SoftPacket<'_> = SoftPacket {
        head: &[],
        payload: &[],
    };

    /// Returns how many of `count` packets are sent on one budget.
    fn leave(count: u32, kept_waiting: u32) -> (u32, bool) {
        let (mut spell, mut fast) = (PacketBudget::default(), Fast::default());
        let kept_waiting = AtomicU32::new(kept_waiting);
        for _ in 0..count {
            let mut way = spell.over(&mut fast, &kept_waiting);
            if !way.has_room(PEER) {
                break;
            }
            way.send(PEER, PACKET);
        }
        (fast.0, spell.is_over)
    }

    #[test]
    fn a_peer_that_always_has_room_gets_so_many_packets_and_then_others_have_their_turn() {
        assert_eq!(leave(PACKETS_MAX, 0), (PACKETS_MAX, false));
        assert_eq!(leave(u32::MAX, 0), (PACKETS_MAX, true));
    }

    #[test]
    fn a_waiting_caller_waits_for_one_packet() {
        assert_eq!(
            leave(1, 1),
            (1, false),
            "it goes on, or two would stop each other"
        );
        assert_eq!(leave(u32::MAX, 1), (1, true));
    }
}
