//! Hosts that have vanished while data for them is in flight. Keepalive notices the others.
//!
//! A peer that is stopped or does not read is alive, however long that takes: its host still acknowledges data, and probes once
//! there is no room for data.

use super::{
    core::TcpCore,
    socket_calls::{HostLife, host_life},
};
use crate::{driver::DownCause, timer::picoseconds};

impl TcpCore {
    /// Has the connections looked at from time to time.
    pub(super) fn watch_silence(&mut self) {
        if self.silence_due.is_none() {
            let at = self.timer.now().saturating_add(self.silence_pause());
            self.silence_due = Some(at);
            self.wake_at(at);
        }
    }

    /// Reports the peers whose hosts have acknowledged nothing for too long. Returns when to look again.
    pub(super) fn lose_silent_peers(&mut self, now: u64) -> Option<u64> {
        if self.silence_due? > now {
            return self.silence_due;
        }
        let limit = self.silence_limit();
        let (mut lost, mut connected) = (Vec::new(), false);
        for (rank, peer) in (0..).zip(&mut self.peers) {
            let Some(connection) = &mut peer.connection else {
                continue;
            };
            connected = true;
            let entry = self.sockets.get(connection.socket);
            // A broken socket is noticed by its events.
            let Some(Ok(life)) = entry.and_then(|entry| Some(host_life(entry.fd.as_ref()?))) else {
                continue;
            };
            connection.silent_since = silent_since(connection.silent_since, life, now);
            if is_too_long(connection.silent_since, now, limit) {
                lost.push(rank);
            }
        }
        for rank in lost {
            let text = format!(
                "the host of rank {rank} has acknowledged nothing over TCP for {} s",
                limit / 1_000_000_000_000
            );
            self.lose(rank, DownCause::Failed, text);
        }
        let pause = self.silence_pause();
        self.silence_due = connected.then(|| now.saturating_add(pause));
        self.silence_due
    }

    fn silence_limit(&self) -> u64 {
        picoseconds(self.limit).max(LIMIT_LEAST)
    }

    fn silence_pause(&self) -> u64 {
        self.silence_limit() / LOOKS
    }
}

/// Returns since when a host is known to be silent. An acknowledgment after that time is life, and so is it to owe none.
fn silent_since(known: Option<u64>, life: HostLife, now: u64) -> Option<u64> {
    let heard = now.saturating_sub(picoseconds(life.quiet));
    life.owes
        .then(|| known.filter(|since| heard <= *since).unwrap_or(now))
}

fn is_too_long(since: Option<u64>, now: u64, limit: u64) -> bool {
    since.is_some_and(|since| now.saturating_sub(since) >= limit)
}

/// Looks in the time after which a host is gone.
const LOOKS: u64 = 4;

/// Least limit, in picoseconds. A host answers probes at most twice a second, and the first ones follow each other faster.
const LIMIT_LEAST: u64 = 4_000_000_000_000;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{is_too_long, silent_since};
    use crate::tcp::socket_calls::HostLife;

    const SECOND: u64 = 1_000_000_000_000;

    /// Looks once a second. Returns when the host was considered gone, within two minutes.
    fn gone_after(limit: u64, life: impl Fn(u64) -> HostLife) -> Option<u64> {
        let mut since = None;
        (0..120).find(|second| {
            since = silent_since(since, life(*second), second * SECOND);
            is_too_long(since, second * SECOND, limit * SECOND)
        })
    }

    #[test]
    fn a_host_is_gone_that_owes_an_acknowledgment_for_the_limit() {
        let life = |second| HostLife {
            owes: second >= 10,
            quiet: Duration::from_secs(second),
        };
        assert_eq!(gone_after(30, life), Some(40));
    }

    #[test]
    fn a_host_is_alive_that_acknowledges_late_or_owes_nothing() {
        let sends = |second| HostLife {
            owes: true,
            quiet: Duration::from_secs(second % 20),
        };
        assert_eq!(gone_after(30, sends), None);
        // The host answers probes that the kernel sends more rarely than the limit.
        let probed = |second| HostLife {
            owes: second % 50 == 49,
            quiet: Duration::from_secs(second % 50),
        };
        assert_eq!(gone_after(30, probed), None);
        let idle = |second| HostLife {
            owes: false,
            quiet: Duration::from_secs(second),
        };
        assert_eq!(gone_after(30, idle), None);
    }
}
