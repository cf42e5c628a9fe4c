//! Reasons why a peer failed, in words that say what to check.

use std::io;

use super::{
    abi::{WC_FLUSHED, WC_RETRIES_EXCEEDED},
    core::VerbsCore,
    rail::VerbsRail,
};
use crate::{
    connect::{ConnectFailure, RejectReason},
    driver::{CommandFailure, DownCause, WorldRank},
};

impl VerbsCore {
    /// Marks a peer as failed, for this reason.
    pub(super) fn fail(&mut self, peer: WorldRank, why: io::Error) {
        let link = self.links.get_or_new(peer);
        link.broken.get_or_insert(why);
        self.report_peer_down(peer, DownCause::Failed);
    }
}

impl VerbsRail {
    /// Returns what the status of a failed request says of the connection. Returns `None` for one that was flushed.
    pub(super) fn why_of(&self, status: i32) -> Option<io::Error> {
        let words = self.device.context.status(status);
        match status {
            WC_FLUSHED => None,
            _ if self.port_is_down() => Some(io::Error::new(
                io::ErrorKind::NetworkDown,
                format!("{words}: this rank's port is down: see its cable and switch"),
            )),
            WC_RETRIES_EXCEEDED => Some(silent(&words)),
            _ => Some(io::Error::other(words)),
        }
    }

    /// Returns true if a request has failed because its lane has. A device whose port is down may give another status than one
    /// whose packets get lost.
    pub(super) fn is_of_lane(&self, status: i32) -> bool {
        matches!(status, WC_FLUSHED | WC_RETRIES_EXCEEDED) || self.port_is_down()
    }

    pub(super) fn port_is_down(&self) -> bool {
        let own = &self.device;
        let state = own.context.port(own.port);
        state.is_ok_and(|state| !state.active)
    }

    /// Makes the failure of a request that failed by itself rather than with its lane.
    pub(super) fn request_failure(&self, status: i32) -> CommandFailure {
        let words = self.device.context.status(status);
        CommandFailure::Transport(io::Error::other(words))
    }
}

/// Makes the error for a peer that does not acknowledge. Devices do not say why.
fn silent(words: &str) -> io::Error {
    let why = format!(
        "{words}: its process or node has failed, a cable or switch between the ports has failed, or long packets do not \
         get through: every switch must let pass what both ports' `active_mtu` says (`ibv_devinfo`), plus 76 bytes of \
         headers on Ethernet"
    );
    io::Error::new(io::ErrorKind::TimedOut, why)
}

/// Makes the error for a lane whose ends are of different kinds of network.
pub(super) fn unlike() -> io::Error {
    let why = "one end's port is InfiniBand, the other's Ethernet (RoCE): name devices of one network in the same order on all \
               nodes with RIPSTOP_VERBS_DEVICE";
    io::Error::new(io::ErrorKind::Unsupported, why)
}

/// Makes the error for two ranks that cannot be connected although each has a device that works.
pub(super) fn unmatched() -> io::Error {
    let why = "no device of this rank works whose counterpart on the other rank works, too: the first device of \
               RIPSTOP_VERBS_DEVICE reaches only the first one of the other rank, the second only the second";
    io::Error::new(io::ErrorKind::NotConnected, why)
}

/// Makes the error for two ranks that could not be connected.
pub(super) fn unconnected(why: ConnectFailure) -> io::Error {
    let sentence = match why {
        ConnectFailure::Unreachable => {
            "no answer came from its address: check with `ibv_devinfo -v` that both ports' addresses (GIDs) are of \
             one network and kind, that its port's is the one that it had when the job began, and that a firewall lets \
             UDP port 4791 pass"
        }
        ConnectFailure::Rejected(RejectReason::NoQueuePair) => "it has no queue pair for this rank",
        ConnectFailure::Rejected(_) | ConnectFailure::Broken => {
            "it rejected or closed the connection"
        }
        ConnectFailure::Restarted => "it was restarted",
        ConnectFailure::Down => "its connection had failed before",
    };
    io::Error::new(io::ErrorKind::NotConnected, sentence)
}

#[cfg(test)]
mod tests {
    use super::{ConnectFailure, silent, unconnected};

    #[test]
    fn an_unreachable_peer_is_reported_with_its_likely_causes() {
        let why = silent("transport retry counter exceeded").to_string();
        for words in ["retry counter exceeded", "active_mtu", "cable"] {
            assert!(why.contains(words), "{why}");
        }
        let why = unconnected(ConnectFailure::Unreachable).to_string();
        assert!(why.contains("GID") && why.contains("4791"), "{why}");
    }
}
