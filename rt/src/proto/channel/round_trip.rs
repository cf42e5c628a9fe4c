//! Estimates how long to wait for an acknowledgment, after Jacobson and Karels, with Karn's rule (RFC 6298).

/// Measured round trip of one peer. Times are in nanoseconds.
#[derive(Debug, Default)]
pub(super) struct RoundTrip {
    /// Smoothed round trip and its deviation; `None` before the first measurement.
    known: Option<(u64, u64)>,
    timed: TimedMessage,
}

/// The message that is timed.
///
/// One message is timed at a time. Once a round trip is known, a message that was sent twice is never timed, because
/// the acknowledgment could be for either copy. The first measurement is less strict, because under heavy loss there
/// might never be one. It may be too long by an early rewind, or begin at the last of several timeouts, which are far
/// apart.
#[derive(Clone, Copy, Debug, Default)]
enum TimedMessage {
    #[default]
    Nothing,
    /// This message left, and `set_clock` will give the time.
    Left(u16),
    Since(u16, u64),
}

impl RoundTrip {
    /// Records that a message left for the first time.
    pub(super) fn sent(&mut self, seq: u16) {
        if matches!(self.timed, TimedMessage::Nothing) {
            self.timed = TimedMessage::Left(seq);
        }
    }

    /// Sets the present time, shortly after a message has left.
    pub(super) fn set_clock(&mut self, now: u64) {
        if let TimedMessage::Left(seq) = self.timed {
            self.timed = TimedMessage::Since(seq, now);
        }
    }

    /// Handles the acknowledgment of the `done` messages from `first` on.
    pub(super) fn acked(&mut self, first: u16, done: u16, now: u64) {
        match self.timed {
            TimedMessage::Since(seq, since) if seq.wrapping_sub(first) < done => {
                self.measured(now.saturating_sub(since));
                self.timed = TimedMessage::Nothing;
            }
            TimedMessage::Left(seq) if seq.wrapping_sub(first) < done => {
                self.timed = TimedMessage::Nothing
            }
            _ => {}
        }
    }

    /// Records that all unacknowledged messages are resent.
    pub(super) fn rewound(&mut self, timed_out: bool) {
        self.timed = match self.timed {
            _ if self.known.is_some() => TimedMessage::Nothing,
            TimedMessage::Since(seq, _) if timed_out => TimedMessage::Left(seq),
            timed => timed,
        };
    }

    /// Returns the wait for an acknowledgment; `None` before the first measurement.
    pub(super) fn timeout(&self) -> Option<u64> {
        let (smooth, deviation) = self.known?;
        Some(smooth.saturating_add(deviation.saturating_mul(4)))
    }

    /// Returns the smoothed round trip.
    pub(super) fn smooth(&self) -> Option<u64> {
        self.known.map(|(smooth, _)| smooth)
    }

    fn measured(&mut self, sample: u64) {
        self.known = Some(match self.known {
            None => (sample, sample / 2),
            Some((smooth, deviation)) => {
                let off = smooth.abs_diff(sample);
                let deviation = deviation - deviation / 4 + off / 4;
                (smooth - smooth / 8 + sample / 8, deviation)
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::RoundTrip;

    impl RoundTrip {
        fn measures(&mut self, seq: u16, sent: u64, acked: u64) {
            self.sent(seq);
            self.set_clock(sent);
            self.acked(seq, 1, acked);
        }
    }

    #[test]
    fn the_wait_follows_the_round_trip_and_its_changes() {
        let mut trip = RoundTrip::default();
        assert_eq!(trip.timeout(), None);
        trip.measures(0, 1_000, 1_800);
        assert_eq!(trip.timeout(), Some(800 + 4 * 400));
        for seq in 1..100 {
            trip.measures(seq, 0, 800);
        }
        assert!(
            trip.timeout()
                .is_some_and(|wait| (800..850).contains(&wait))
        );
        trip.measures(100, 0, 8_000);
        assert!(trip.timeout() > Some(8_000));
    }

    #[test]
    fn a_message_that_was_sent_twice_is_not_measured() {
        let mut trip = RoundTrip::default();
        trip.measures(6, 0, 8);
        let before = trip.timeout();
        trip.sent(7);
        trip.set_clock(0);
        trip.rewound(false);
        trip.acked(7, 1, 500);
        assert_eq!(trip.timeout(), before);
    }

    #[test]
    fn the_first_measurement_may_be_of_a_message_that_was_sent_twice() {
        let first = |timed_out| {
            let mut trip = RoundTrip::default();
            trip.sent(0);
            trip.set_clock(10);
            trip.rewound(timed_out);
            trip.set_clock(100);
            trip.acked(0, 1, 105);
            trip.smooth()
        };
        assert_eq!((first(false), first(true)), (Some(95), Some(5)));
    }

    #[test]
    fn only_the_timed_message_ends_the_measurement_also_round_the_circle() {
        let mut trip = RoundTrip::default();
        trip.sent(1);
        trip.sent(2);
        trip.set_clock(10);
        trip.acked(65_534, 3, 20);
        assert_eq!(trip.timeout(), None);
        trip.acked(1, 2, 30);
        assert_eq!(trip.timeout(), Some(20 + 4 * 10));
    }
}
