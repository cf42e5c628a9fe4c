//! A device of this rank, and the objects made on it. The second device of a rank reaches the second one of another, and so on.
//! Such a pair of devices is a lane.

use std::{collections::BTreeMap, io, os::fd::OwnedFd, sync::Arc};

use super::{
    inbox::VerbsInbox,
    objects::{VerbsChannel, VerbsContext, VerbsCq, VerbsPd},
};
use crate::{
    driver::{WakeSource, WorldRank},
    lanes::{LaneSpeed, LaneSpeeds},
};

/// A device of this rank.
#[derive(Debug)]
pub(super) struct VerbsRail {
    pub(super) inbox: VerbsInbox,
    /// Peer of each queue pair, by the number of the queue pair.
    pub(super) by_qpn: BTreeMap<u32, WorldRank>,
    pub(super) device: RailDevice,
    /// Reason why the device has failed. Its completions may never come, so nothing waits for them, and nothing new is made on
    /// it.
    pub(super) failed: Option<&'static str>,
    /// True if the device reports when a retired queue pair holds no receives any more. `None` if that is not known yet.
    pub(super) reports_last_wqe: Option<bool>,
    completions: Arc<OwnedFd>,
    events: Arc<OwnedFd>,
    /// Events that the queues are armed for, and that have not come yet.
    arrivals_armed: WakeFilter,
    sends_armed: bool,
}

/// Arrivals that wake a sleeping thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum WakeFilter {
    None,
    /// Arrivals whose senders asked to wake this rank.
    Wanted,
    /// All arrivals, and so counts as well.
    All,
}

/// This rank's port of a device, and the objects made on it.
#[derive(Debug)]
pub(super) struct RailDevice {
    /// Name of the device.
    pub(super) name: String,
    pub(super) context: Arc<VerbsContext>,
    pub(super) pd: Arc<VerbsPd>,
    pub(super) channel: Arc<VerbsChannel>,
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
    /// Most bytes of one request that another lane may repeat, and of one that goes by the first lane only.
    pub(super) piece_max: usize,
    pub(super) request_max: usize,
    /// Speed relative to the other devices.
    pub(super) weight: u32,
}

impl VerbsRail {
    pub(super) fn new(own: RailDevice, arrivals: &Arc<VerbsCq>, receives: u32) -> io::Result<Self> {
        Ok(Self {
            inbox: VerbsInbox::new(&own.pd, arrivals, receives)?,
            by_qpn: BTreeMap::new(),
            completions: Arc::new(own.channel.fd()?),
            events: Arc::new(own.context.events()?),
            device: own,
            failed: None,
            reports_last_wqe: None,
            arrivals_armed: WakeFilter::None,
            sends_armed: false,
        })
    }

    /// Returns the descriptors that a sleeping thread waits for.
    pub(super) fn wait_on(&self) -> [WakeSource; 2] {
        [&self.completions, &self.events].map(|fd| WakeSource::Fd(Arc::clone(fd)))
    }

    /// Arms the queues for an event at the next arrival that must wake the thread and, if `sends` is given, at the next
    /// completion of a request.
    ///
    /// # Errors
    /// The device returns an error.
    pub(super) fn notify(&mut self, wakes: WakeFilter, sends: Option<&VerbsCq>) -> io::Result<()> {
        if self.arrivals_armed < wakes {
            self.inbox.cq.notify(wakes == WakeFilter::Wanted)?;
            self.arrivals_armed = wakes;
        }
        if let Some(sends) = sends.filter(|_| !self.sends_armed) {
            sends.notify(false)?;
            self.sends_armed = true;
        }
        Ok(())
    }

    #[cfg(test)]
    pub(super) const fn is_armed_for_sends(&self) -> bool {
        self.sends_armed
    }

    /// Takes an event, and records that its queue is not armed any more. Returns false if there was none.
    pub(super) fn take_event(&mut self) -> bool {
        if self.arrivals_armed == WakeFilter::None && !self.sends_armed {
            return false;
        }
        let Some(handle) = self.device.channel.take() else {
            return false;
        };
        if handle == self.inbox.cq.handle() {
            self.arrivals_armed = WakeFilter::None;
        } else {
            self.sends_armed = false;
        }
        true
    }
}

/// Returns the speeds of the devices as their weights say them, used until pieces have been measured.
pub(super) fn speeds(rails: &[VerbsRail]) -> LaneSpeeds {
    let weights = rails.iter().map(|rail| rail.device.weight);
    LaneSpeeds::by_weight(SPEED, &weights.collect::<Vec<_>>())
}

/// Speed of a device of the greatest weight, typical of 100 Gbit/s.
const SPEED: LaneSpeed = LaneSpeed {
    latency_ns: 1_500,
    bytes_per_us: 12_000,
};
