//! Reasons why a peer failed, in words that say what to check.

use std::io;

use super::{abi, core::VerbsCore, rail::VerbsRail};
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
    /// Returns what the status of the first request that failed on a lane says of the lane.
    pub(super) fn why_of(&self, status: i32) -> io::Error {
        let words = self.device.context.status(status);
        match status {
            _ if self.port_is_down() => io::Error::new(
                io::ErrorKind::NetworkDown,
                format!("{words}: this rank's port is down: see its cable and switch"),
            ),
            abi::WC_RETRIES_EXCEEDED => silent(&words),
            _ if is_of_device(status) => taken_down(&words, &self.device.name),
            _ => io::Error::other(words),
        }
    }

    /// Returns true if a request has failed because its lane has. A device whose port is down may give another status than one
    /// whose packets get lost.
    pub(super) fn is_of_lane(&self, status: i32) -> bool {
        ends_lane(status) || self.port_is_down()
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

/// Returns true if a status says nothing against the request: the queue pair, one of the devices or the way between them has
/// failed. The other statuses blame the request, which would fail by another lane, too.
const fn ends_lane(status: i32) -> bool {
    matches!(
        status,
        abi::WC_BAD_RESPONSE
            | abi::WC_REMOTE_OPERATION
            | abi::WC_RETRIES_EXCEEDED
            | abi::WC_REMOTE_ABORTED
            | abi::WC_RESPONSE_TIMEOUT
    ) || is_of_device(status)
}

/// Returns true if this rank's device has given up a queue pair by itself. The peer may live.
const fn is_of_device(status: i32) -> bool {
    matches!(
        status,
        abi::WC_LOCAL_OPERATION | abi::WC_FLUSHED | abi::WC_FATAL | abi::WC_GENERAL
    )
}

/// Makes the error for a queue pair that this rank's device has taken down without saying which request failed.
fn taken_down(words: &str, device: &str) -> io::Error {
    let why = format!(
        "{words}: the adapter {device} of this rank ended the connection, although the other rank may live: see the kernel's \
         log of this node (`dmesg`), and the error of the other rank. A soft-RoCE adapter does so when the kernel has no memory \
         for a packet: set `vm.min_free_kbytes` to 131072 or more on all nodes"
    );
    io::Error::new(io::ErrorKind::ConnectionAborted, why)
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
    use super::{ConnectFailure, abi, ends_lane, is_of_device, silent, taken_down, unconnected};

    /// All statuses of completions.
    const STATUSES: std::ops::Range<i32> = 0..24;

    #[test]
    fn a_status_blames_the_lane_or_the_request() {
        let lane: Vec<i32> = STATUSES.filter(|status| ends_lane(*status)).collect();
        assert_eq!(lane, [2, 5, 7, 11, 12, 16, 19, 20, 21]);
        let device: Vec<i32> = STATUSES.filter(|status| is_of_device(*status)).collect();
        assert_eq!(device, [2, 5, 19, 21]);
        // A wrong length, memory that is not registered, and a wrong key would fail by another lane as well.
        assert!([1, 4, 9, 10].into_iter().all(|status| !ends_lane(status)));
        assert!(!ends_lane(abi::WC_SUCCESS));
    }

    #[test]
    fn a_connection_that_the_own_adapter_ended_names_it_and_what_to_look_at() {
        let why = taken_down("local QP operation error", "rxe7").to_string();
        for words in [
            "local QP operation error",
            "rxe7 of this rank",
            "dmesg",
            "min_free_kbytes",
        ] {
            assert!(why.contains(words), "{why}");
        }
    }

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
