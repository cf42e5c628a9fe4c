//! The host's part in generic mode, as on the SeaStar: the adapter looks at nothing but who a packet is for.
//!
//! Headers, and the ends of messages, interrupt the host, which matches and tells; data in between waits until the host has said
//! where it goes, and is put there without it.

use std::{
    collections::VecDeque,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
};

use crate::event::Address;

/// Packets that the host has to look at.
#[derive(Debug, Default)]
pub(super) struct Host {
    inbox: Mutex<Inbox>,
    interrupt: Condvar,
    room: Condvar,
}

#[derive(Debug, Default)]
struct Inbox {
    packets: VecDeque<(Address, Vec<u8>)>,
    interrupts: u64,
    /// The host has been interrupted and has not seen that nothing is left.
    busy: bool,
    stop: bool,
}

impl Host {
    /// Gives the host a packet, or none at all of a peer that is gone, and interrupts it if it is not at work.
    pub(super) fn raise(&self, from: Address, packet: &[u8]) {
        let mut inbox = self.lock();
        inbox.packets.push_back((from, packet.to_vec()));
        if !std::mem::replace(&mut inbox.busy, true) {
            inbox.interrupts += 1;
            self.interrupt.notify_one();
        }
    }

    /// Whether the host is behind: then what comes has to queue up, to stay in order.
    pub(super) fn is_busy(&self) -> bool {
        self.lock().busy
    }

    /// Waits until the host has caught up, if it is far behind: what is not taken stays with its senders.
    pub(super) fn wait_for_room(&self) {
        let behind = |inbox: &mut Inbox| inbox.packets.len() >= BACKLOG_MAX && !inbox.stop;
        drop(self.room.wait_while(self.lock(), behind));
    }

    /// Waits until the host has nothing left to do.
    pub(super) fn wait_for_rest(&self) {
        let works = |inbox: &mut Inbox| inbox.busy && !inbox.stop;
        drop(self.room.wait_while(self.lock(), works));
    }

    pub(super) fn is_full(&self) -> bool {
        self.lock().packets.len() >= BACKLOG_MAX
    }

    /// The host's next packet; it sleeps until there is one. `None` at the end.
    pub(super) fn next(&self) -> Option<(Address, Vec<u8>)> {
        let mut inbox = self.lock();
        inbox.busy = !inbox.packets.is_empty();
        if !inbox.busy {
            self.room.notify_one();
        }
        let waits = |inbox: &mut Inbox| inbox.packets.is_empty() && !inbox.stop;
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

    fn lock(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Packets that wait for the host: a few megabytes at most, and more than one turn of the agent brings.
const BACKLOG_MAX: usize = 128;

#[cfg(test)]
mod tests {
    use super::{Address, Host};

    #[test]
    fn a_host_at_work_is_not_interrupted_again() {
        let (host, from) = (Host::default(), Address { nid: 1, pid: 2 });
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
