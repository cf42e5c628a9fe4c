//! Hosts that have vanished, or hear nothing any more, while data for them is in flight. Keepalive notices the others.
//!
//! A peer that is stopped or does not read is alive, however long that takes: its host still acknowledges data, and probes once
//! there is no room for data. A host that only sends is not: what it sends again shows that it does not hear the
//! acknowledgments. Such a host may still be heard, so a connection that is given up is reset: a peer that hears the reset need
//! not find out by itself. It could not for long, because its keepalive takes what is sent again for life.

use super::{
    core::TcpCore,
    socket_calls::{HostLife, host_life, reset_when_closed},
};
use crate::{driver::DownCause, timer::picoseconds};

/// What is known of a host that owes an acknowledgment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HostSilence {
    /// Time of the look that has seen its last sign of life.
    since: u64,
    /// Its signs of life until then.
    signs: u64,
}

impl TcpCore {
    /// Has a connection looked at from time to time, until its peer's host has acknowledged all that was sent.
    pub(super) fn watch_silence(&mut self, rank: u32) {
        let Some(connection) = &mut self.peers[rank as usize].connection else {
            return;
        };
        connection.watched = true;
        if self.silence_due.is_none() {
            let at = self.timer.now().saturating_add(LOOK_PAUSE);
            self.silence_due = Some(at);
            self.wake_at(at);
        }
    }

    /// Reports the peers whose hosts have given no sign of life for too long. Returns when to look again.
    pub(super) fn lose_silent_peers(&mut self, now: u64) -> Option<u64> {
        if self.silence_due? > now {
            return self.silence_due;
        }
        let limit = picoseconds(self.limit).max(LIMIT_LEAST);
        let (mut lost, mut next) = (Vec::new(), None);
        for (rank, peer) in (0..).zip(&mut self.peers) {
            let watched = peer.connection.as_mut().filter(|one| one.watched);
            let Some(connection) = watched else {
                continue;
            };
            let entry = self.sockets.get(connection.socket);
            let Some(socket) = entry.and_then(|entry| entry.fd.as_ref()) else {
                continue;
            };
            // A broken socket is noticed by its events.
            let Ok(life) = host_life(socket) else {
                continue;
            };
            connection.watched = life.owes || life.unsent;
            connection.silence = silence(connection.silence, life, now);
            let end = connection
                .silence
                .map_or(u64::MAX, |silence| silence.since.saturating_add(limit));
            if end <= now {
                reset_when_closed(socket);
                lost.push(rank);
            } else if connection.watched {
                let look = end.min(now.saturating_add(LOOK_PAUSE));
                next = Some(next.map_or(look, |next: u64| next.min(look)));
            }
        }
        self.silence_due = next;
        for rank in lost {
            let text = format!(
                "the host of rank {rank} has acknowledged nothing over TCP for {} s",
                limit / 1_000_000_000_000
            );
            self.lose(rank, DownCause::Failed, text);
        }
        next
    }
}

/// Returns the silence of a host after a look at it. A sign since the last look ends a silence, and so does it to owe nothing.
fn silence(known: Option<HostSilence>, life: HostLife, now: u64) -> Option<HostSilence> {
    let signs = life.signs;
    let begins = HostSilence { since: now, signs };
    life.owes.then(|| {
        let lasting = known.filter(|silence| silence.signs == signs);
        lasting.unwrap_or(begins)
    })
}

/// Time between two looks, in picoseconds. The end of a host is noticed so much later than the limit, at most.
const LOOK_PAUSE: u64 = 500_000_000_000;

/// Least limit, in picoseconds. A host answers probes at most twice a second, and the first ones follow each other faster.
const LIMIT_LEAST: u64 = 4_000_000_000_000;

#[cfg(test)]
mod tests {
    use super::{HostLife, silence};

    /// Looks once a second. Returns when the host was considered gone, within two minutes.
    fn gone_after(limit: u64, life: impl Fn(u64) -> HostLife) -> Option<u64> {
        let mut known = None;
        (0..120).find(|second| {
            known = silence(known, life(*second), *second);
            known.is_some_and(|silence| second - silence.since >= limit)
        })
    }

    fn life(owes: bool, signs: u64) -> HostLife {
        HostLife {
            owes,
            unsent: false,
            signs,
        }
    }

    #[test]
    fn a_host_is_gone_that_gives_no_sign_for_the_limit_and_should() {
        let silent = |second: u64| life(second >= 10, second.min(10));
        assert_eq!(gone_after(30, silent), Some(40));
        // Its last sign comes in the middle of what it owes.
        let last_sign = |second: u64| life(second >= 10, second.min(25));
        assert_eq!(gone_after(30, last_sign), Some(55));
    }

    #[test]
    fn a_host_is_alive_that_acknowledges_late_or_owes_nothing() {
        assert_eq!(gone_after(30, |second| life(true, second / 20)), None);
        // The host answers probes that the kernel sends more rarely than the limit.
        let probed = |second| life(second % 50 == 49, second / 50);
        assert_eq!(gone_after(30, probed), None);
        assert_eq!(gone_after(30, |_| life(false, 7)), None);
    }
}
