//! A device of this rank, and the objects made on it. The second device of a rank reaches the second one of another, and so on.
//! Such a pair of devices is a lane.

use std::{collections::BTreeMap, io, os::fd::OwnedFd, sync::Arc};

use super::{
    inbox::Inbox,
    objects::{Channel, Context, Cq, Pd},
};
use crate::{
    driver::WaitOn,
    lanes::{Speed, Speeds},
};

/// A device of this rank.
#[derive(Debug)]
pub(super) struct Rail {
    pub(super) inbox: Inbox,
    /// Peer of each queue pair, by number.
    pub(super) by_qpn: BTreeMap<u32, u32>,
    pub(super) own: Own,
    /// Why the device has failed. Its completions may never come, so nothing waits for them, and nothing new is made on it.
    pub(super) failed: Option<&'static str>,
    /// True if it reports when a queue pair that was given up holds no receives any more. `None` if that is not known yet.
    pub(super) says_last: Option<bool>,
    completions: Arc<OwnedFd>,
    events: Arc<OwnedFd>,
    /// Events that the queues are armed for, and that have not come yet.
    arrivals_armed: Wakes,
    sends_armed: bool,
}

/// Which arrivals wake a sleeping thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Wakes {
    None,
    /// Arrivals whose senders asked for that.
    Wanted,
    /// All arrivals, and so counts as well.
    All,
}

/// This rank's port of a device, and the objects made on it.
#[derive(Debug)]
pub(super) struct Own {
    /// Name of the device.
    pub(super) device: String,
    pub(super) context: Arc<Context>,
    pub(super) pd: Arc<Pd>,
    pub(super) channel: Arc<Channel>,
    pub(super) port: u8,
    pub(super) gid_index: u8,
    pub(super) gid: [u8; 16],
    pub(super) lid: u16,
    /// MTU as verbs encodes it: 1 to 5 for 256 to 4096 bytes.
    pub(super) mtu: u8,
    pub(super) ethernet: bool,
    pub(super) reads_out: u8,
    pub(super) reads_in: u8,
    pub(super) timeout: u8,
    /// Most bytes of one request.
    pub(super) piece_max: usize,
    /// Speed relative to the other devices.
    pub(super) weight: u32,
}

impl Rail {
    pub(super) fn new(own: Own, arrivals: &Arc<Cq>, receives: u32) -> io::Result<Self> {
        Ok(Self {
            inbox: Inbox::new(&own.pd, arrivals, receives)?,
            by_qpn: BTreeMap::new(),
            completions: Arc::new(own.channel.fd()?),
            events: Arc::new(own.context.events()?),
            own,
            failed: None,
            says_last: None,
            arrivals_armed: Wakes::None,
            sends_armed: false,
        })
    }

    /// Returns the descriptors that a sleeping thread waits for.
    pub(super) fn wait_on(&self) -> [WaitOn; 2] {
        [&self.completions, &self.events].map(|fd| WaitOn::Fd(Arc::clone(fd)))
    }

    /// Arms the queues for an event at the next arrival that must wake and, if `sends` is given, at the next completion of a
    /// request.
    ///
    /// # Errors
    /// The device's error.
    pub(super) fn notify(&mut self, wakes: Wakes, sends: Option<&Cq>) -> io::Result<()> {
        if self.arrivals_armed < wakes {
            self.inbox.cq.notify(wakes == Wakes::Wanted)?;
            self.arrivals_armed = wakes;
        }
        if let Some(sends) = sends.filter(|_| !self.sends_armed) {
            sends.notify(false)?;
            self.sends_armed = true;
        }
        Ok(())
    }

    #[cfg(test)]
    pub(super) const fn hears_sends(&self) -> bool {
        self.sends_armed
    }

    /// Takes an event, whose queue is not armed any more. Returns false if there was none.
    pub(super) fn take_event(&mut self) -> bool {
        if self.arrivals_armed == Wakes::None && !self.sends_armed {
            return false;
        }
        let Some(handle) = self.own.channel.take() else {
            return false;
        };
        if handle == self.inbox.cq.handle() {
            self.arrivals_armed = Wakes::None;
        } else {
            self.sends_armed = false;
        }
        true
    }
}

/// Returns the speeds of the devices as their weights say them, used until pieces have been measured.
pub(super) fn speeds(rails: &[Rail]) -> Speeds {
    let weights = rails.iter().map(|rail| rail.own.weight);
    Speeds::by_weight(SPEED, &weights.collect::<Vec<_>>())
}

/// Speed of a device of the greatest weight, typical of 100 Gbit/s.
const SPEED: Speed = Speed {
    latency_ns: 1_500,
    bytes_per_us: 12_000,
};
