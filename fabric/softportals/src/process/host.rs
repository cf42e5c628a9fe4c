//! Host side in generic mode, modeled on the SeaStar adapter, which only looks at the destination of a packet.
//!
//! Headers and ends of messages interrupt the host, which matches and posts events. Data in between waits until the host has
//! decided where it goes, and is then delivered without the host.

use std::{
    collections::VecDeque,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
};

use crate::event::PhysicalId;

/// Packets for the host.
#[derive(Debug, Default)]
pub(super) struct HostPacketQueue {
    inbox: Mutex<HostQueueState>,
    interrupt: Condvar,
    room: Condvar,
}

#[derive(Debug, Default)]
struct HostQueueState {
    packets: VecDeque<(PhysicalId, Vec<u8>)>,
    interrupts: u64,
    /// True from an interrupt until the host has found the queue empty.
    busy: bool,
    stop: bool,
}

impl HostPacketQueue {
    /// Queues a packet for the host, and interrupts the host if it is idle. An empty packet means that the peer is lost.
    pub(super) fn raise(&self, from: PhysicalId, packet: &[u8]) {
        let mut inbox = self.lock();
        inbox.packets.push_back((from, packet.to_vec()));
        if !std::mem::replace(&mut inbox.busy, true) {
            inbox.interrupts += 1;
            self.interrupt.notify_one();
        }
    }

    /// Returns true if the host has queued work. Later packets must then queue behind it, to stay in order.
    pub(super) fn is_busy(&self) -> bool {
        self.lock().busy
    }

    /// Waits while the backlog is full. Packets not taken meanwhile stay with their senders.
    pub(super) fn wait_for_room(&self) {
        let behind = |inbox: &mut HostQueueState| inbox.packets.len() >= BACKLOG_MAX && !inbox.stop;
        drop(self.room.wait_while(self.lock(), behind));
    }

    /// Waits until the host is idle.
    pub(super) fn wait_for_rest(&self) {
        let works = |inbox: &mut HostQueueState| inbox.busy && !inbox.stop;
        drop(self.room.wait_while(self.lock(), works));
    }

    pub(super) fn is_full(&self) -> bool {
        self.lock().packets.len() >= BACKLOG_MAX
    }

    /// Returns the host's next packet, and sleeps until there is one. Returns `None` after [`Self::stop`].
    pub(super) fn next(&self) -> Option<(PhysicalId, Vec<u8>)> {
        let mut inbox = self.lock();
        inbox.busy = !inbox.packets.is_empty();
        if !inbox.busy {
            self.room.notify_one();
        }
        let waits = |inbox: &mut HostQueueState| inbox.packets.is_empty() && !inbox.stop;
        let waited = self.interrupt.wait_while(inbox, waits);
        let mut inbox = waited.unwrap_or_else(PoisonError::into_inner);
        if inbox.packets.len() >= BACKLOG_MAX {
            self.room.notify_one();
        }
        inbox.packets.pop_front()
    }

    pub(super) fn interrupts(&self) -> u64 {
        self.lock().interrupts
    }

    pub(super) fn stop(&self) {
        self.lock().stop = true;
        self.interrupt.notify_all();
        self.room.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, HostQueueState> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Packets queued for the host: at most a few megabytes, and more than one turn of the agent takes.
const BACKLOG_MAX: usize = 128;

#[cfg(test)]
mod tests {
    use super::{HostPacketQueue, PhysicalId};

    #[test]
    fn a_host_at_work_is_not_interrupted_again() {
        let (host, from) = (HostPacketQueue::default(), PhysicalId { nid: 1, pid: 2 });
        host.raise(from, b"one");
        host.raise(from, b"two");
        assert_eq!(host.interrupts(), 1);
        assert_eq!(host.next(), Some((from, b"one".to_vec())));
        host.raise(from, b"six");
        assert_eq!(host.next(), Some((from, b"two".to_vec())));
        assert_eq!(host.next(), Some((from, b"six".to_vec())));
        assert!(host.is_busy(), "it has not seen yet that nothing is left");
        host.stop();
        assert_eq!(host.next(), None);
        assert!(!host.is_busy());
        host.raise(from, b"late");
        assert_eq!(host.interrupts(), 2);
    }
}
