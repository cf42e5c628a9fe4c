//! What this process or its host has too little of: descriptors, ports, or memory of the kernel. That says nothing about a peer,
//! so what has failed is tried again.

use std::io;

use super::core::TcpCore;
use crate::timer::RetryTimer;

/// Peers for whose bytes the kernel had no memory.
#[derive(Debug, Default)]
pub(super) struct ShortSends {
    ranks: Vec<u32>,
}

impl ShortSends {
    /// Has the bytes for a peer sent again after a pause. No event reports when the kernel has memory again.
    pub(super) fn add(&mut self, rank: u32, timer: &mut RetryTimer) {
        if !self.ranks.contains(&rank) {
            self.ranks.push(rank);
        }
        let set = timer.set_if_earlier(timer.now().saturating_add(SEND_PAUSE));
        debug_assert!(set.is_ok(), "{set:?}");
    }
}

impl TcpCore {
    /// Sends again what the kernel had no memory for. Returns when to try once more, if it still has none.
    pub(super) fn retry_short_sends(&mut self, now: u64) -> Option<u64> {
        for rank in std::mem::take(&mut self.short_sends.ranks) {
            let connection = self.peers[rank as usize].connection.as_ref();
            if let Some(connection) = connection
                && let Some(entry) = self.sockets.get_mut(connection.socket)
            {
                entry.writable = entry.broken.is_none();
            }
            self.flush(rank);
        }
        let is_short = !self.short_sends.ranks.is_empty();
        is_short.then(|| now.saturating_add(SEND_PAUSE))
    }
}

/// Returns true if a call has failed for lack of descriptors, ports or memory.
pub(super) fn is_shortage(why: &io::Error) -> bool {
    shortage_advice(why).is_some()
}

/// Returns what to do against a shortage of this host or process, to be added to its error; `None` for another error.
pub(super) fn shortage_advice(why: &io::Error) -> Option<&'static str> {
    Some(match why.raw_os_error()? {
        libc::EMFILE => ": raise the limit of open files of this rank (`ulimit -n`)",
        libc::ENFILE => ": raise `fs.file-max` of this host",
        libc::EADDRNOTAVAIL => {
            ": this host has no free port for connections, or no address of this family; widen \
             `net.ipv4.ip_local_port_range`, or look at `ip address`"
        }
        libc::ENOSPC => ": raise `fs.epoll.max_user_watches` of this host",
        libc::ENOBUFS | libc::ENOMEM => {
            ": the kernel of this host lacks memory; run fewer ranks there, or raise `net.ipv4.tcp_mem`"
        }
        _ => return None,
    })
}

/// Time until bytes are sent again for which the kernel had no memory, in picoseconds.
const SEND_PAUSE: u64 = 10_000_000_000;
