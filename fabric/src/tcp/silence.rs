//! Hosts that have vanished, or hear nothing any more, while data for them is in flight. Keepalive notices the others.
//!
//! A peer that is stopped or does not read is alive, however long that takes: its host still acknowledges data, and probes once
//! there is no room for data. A host that only sends is not: what it sends again shows that it does not hear the
//! acknowledgments. Such a host may still be heard, so its peer is [given up](super::given_up) and told: it could not find out by
//! itself for long, because its keepalive takes what is sent again for life.
//!
//! A path that is narrower than this host knows loses long packets only, and no error comes back if a firewall drops the reports
//! of routers. Then the peer's host still sends probes and hears the answers, while data are sent again for a quarter of an
//! hour. So probes of a host are no sign of life while it owes an acknowledgment of long segments and its window is open. The
//! kernel counts them as segments without data, but not as acknowledgments.

use super::{
    core::TcpCore,
    handshake::GiveUpReason,
    socket_calls::{HostLife, host_life},
};
use crate::timer::{earlier, picoseconds};

/// What is known of a host that owes an acknowledgment.
#[derive(Clone, Copy, Debug)]
pub(super) struct HostSilence {
    /// Time of the look that has seen its last sign of life.
    since: u64,
    /// Its segments without data until then.
    empty_segments: u32,
    /// The last look, and its time.
    seen: HostLife,
    seen_at: u64,
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
                let probes = connection.silence.is_some_and(HostSilence::has_probed);
                lost.push((rank, probes));
            } else if connection.watched {
                let look = end.min(now.saturating_add(LOOK_PAUSE));
                next = Some(earlier(next, look));
            }
        }
        self.silence_due = next;
        for (rank, probes) in lost {
            let seconds = limit / 1_000_000_000_000;
            let text = self.peers[rank as usize].silent_host(rank, seconds, probes);
            self.give_up(rank, probes.then_some(GiveUpReason::LongPackets), text);
        }
        next
    }
}

/// Returns the silence of a host after a look at it. A sign since the last look ends a silence, and so does it to owe nothing.
fn silence(known: Option<HostSilence>, life: HostLife, now: u64) -> Option<HostSilence> {
    let lasting = known.filter(|silence| !silence.is_broken_by(life, now));
    let (since, empty_segments) = lasting.map_or((now, life.empty_segments), |silence| {
        (silence.since, silence.empty_segments)
    });
    life.owes.then_some(HostSilence {
        since,
        empty_segments,
        seen: life,
        seen_at: now,
    })
}

impl HostSilence {
    /// Returns true if the host has received something from here since the last look. It has acknowledged data, or has answered
    /// with a segment without data what it cannot take.
    ///
    /// Its segments with data are no such sign. A host that hears nothing sends them again and again.
    fn is_broken_by(self, life: HostLife, now: u64) -> bool {
        let has_answered = || {
            let age = u64::from(life.acknowledgment_age).saturating_mul(MILLISECOND);
            life.empty_segments != self.seen.empty_segments
                && (!life.long || age <= now - self.seen_at)
        };
        life.acknowledged != self.seen.acknowledged || has_answered()
    }

    /// Returns true if the host has sent segments without data that acknowledge nothing, so its packets arrive here.
    const fn has_probed(self) -> bool {
        self.seen.empty_segments != self.empty_segments
    }
}

/// A millisecond, in picoseconds.
const MILLISECOND: u64 = 1_000_000_000;

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

    fn life(owes: bool, acknowledged: u64) -> HostLife {
        HostLife {
            owes,
            unsent: false,
            long: false,
            acknowledged,
            empty_segments: 0,
            acknowledgment_age: 0,
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

    #[test]
    fn probes_of_a_host_are_no_life_while_it_owes_an_acknowledgment_of_long_segments() {
        let probing = |second: u64, long: bool, age: u32| HostLife {
            long,
            empty_segments: u32::try_from(second / 2).unwrap(),
            acknowledgment_age: age,
            ..life(true, 7)
        };
        let never = |_| 1_000_000;
        let gone = |long: bool, age: fn(u64) -> u32| {
            gone_after(30, |second| probing(second, long, age(second)))
        };
        assert_eq!(gone(true, never), Some(30));
        // Where short segments are lost as well, the peer's kernel may have no memory for them.
        assert_eq!(gone(false, never), None);
        // The host answers what is sent again, because the peer has no room.
        assert_eq!(gone(true, |_| 0), None);
        let mut known = None;
        for second in 0..3 {
            known = silence(known, probing(second, true, 1_000_000), second);
        }
        assert!(known.unwrap().has_probed());
    }
}
