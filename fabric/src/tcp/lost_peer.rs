//! What errors say about a peer that was lost: its addresses, the cause, and what to do.

use std::io;

use super::{handshake::GiveUpReason, peer::TcpPeer};
use crate::driver::DownCause;

impl TcpPeer {
    /// Returns the evidence of a connection that has ended without a goodbye, for this reason unless the peer has closed it.
    pub(super) fn ended_connection(&self, rank: u32, why: Option<&io::Error>) -> String {
        let place = self.place(rank);
        let (why, advice) = match why {
            Some(why) => (why.to_string(), network_advice(why)),
            None => ("it was closed".to_owned(), PROCESS_ADVICE),
        };
        format!("the TCP connection to {place} ended without a goodbye ({why}){advice}")
    }

    /// Returns the evidence of a host that has acknowledged nothing for so long. `probes` is true if its packets have come.
    pub(super) fn silent_host(&self, rank: u32, seconds: u64, probes: bool) -> String {
        let place = self.place(rank);
        let cause = if probes {
            format!(
                ": packets of that host arrive here, but at least long ones to it are lost: {MTU_ADVICE}"
            )
        } else {
            NETWORK_ADVICE.to_owned()
        };
        format!("the host of {place} has acknowledged no data over TCP for {seconds} s{cause}")
    }

    /// Returns the evidence of a peer that has given this rank up and has said why.
    pub(super) fn gave_up(&self, rank: u32, why: GiveUpReason) -> String {
        let place = self.place(rank);
        let why = match why {
            GiveUpReason::LongPackets => &format!(
                "packets from this rank's host arrive there, but long packets from there do not arrive at this host: \
                 {MTU_ADVICE}"
            ),
            GiveUpReason::Damaged => &format!(
                "what this rank sent over TCP was damaged on the way: a checksum is wrong{DAMAGE_ADVICE}"
            ),
            GiveUpReason::Nonsense => {
                "it cannot read what this rank sent over TCP: start all ranks with the same version and settings of Ripstop"
            }
        };
        format!("{place} has given this rank up, because {why}")
    }

    /// Returns the evidence of a peer that has said goodbye.
    pub(super) fn said_goodbye(&self, rank: u32, how: DownCause) -> String {
        let place = self.place(rank);
        match how {
            DownCause::Finished => format!("{place} said goodbye"),
            DownCause::Failed => format!(
                "{place} has failed, and said so before it ended: look at the errors of that rank"
            ),
        }
    }

    /// Returns the peer's rank and addresses, as errors name them. The caller adds the name of the host.
    pub(super) fn place(&self, rank: u32) -> String {
        let all = self.address.endpoints.iter();
        let all: Vec<_> = all.map(|one| one.socket().to_string()).collect();
        format!("rank {rank} ({})", all.join(" or "))
    }
}

/// Returns what to do about an error that has ended a connection.
fn network_advice(why: &io::Error) -> &'static str {
    match why.kind() {
        io::ErrorKind::TimedOut
        | io::ErrorKind::HostUnreachable
        | io::ErrorKind::NetworkUnreachable => NETWORK_ADVICE,
        _ => PROCESS_ADVICE,
    }
}

/// What to do about a peer of which the network has lost the track, to be added to its error.
pub(super) const NETWORK_ADVICE: &str = ": check that its host is up, and that this host reaches these \
     addresses (`ip route get`, firewalls); RIPSTOP_TCP_IFACE chooses others";

/// What to do about a network that changes data, to be added to its error.
pub(super) const DAMAGE_ADVICE: &str =
    ": have the adapters, cables and switches between both hosts checked";

/// What to do about a path that only short packets pass.
const MTU_ADVICE: &str = "give all interfaces on the path one MTU, let firewalls pass ICMP messages of the kind \"fragmentation \
     needed\", or set net.ipv4.tcp_mtu_probing to 1 on both hosts";

/// What to do about a peer that no longer keeps its connections.
const PROCESS_ADVICE: &str =
    ": look at the errors of that rank, whose process has ended or has given this rank up";
