//! The rest of an address: the ports of a rank with several devices, and the queue pairs of a rank that made one for each other
//! rank at the start.
//!
//! ```text
//! lanes u8 | for each lane but the first: its port, as in `connect_wire` | for each lane: numbers (`connect::ranges`), if any
//! ```

use super::{
    address::VerbsAddress,
    connect_wire::{self, LaneEnds, PORT_LEN},
    lane::{RemotePort, psns},
};
use crate::{
    connect::{QpAddress, QpAddressList, QpRanges},
    driver::WorldRank,
    lanes::RAILS_MAX,
};

/// Ports of a rank, and queue pairs that its peers find ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AddressExtension {
    /// Ports behind each lane except the first.
    pub(super) ports: Vec<RemotePort>,
    /// Numbers of the queue pairs on each lane; empty if there are none.
    pub(super) numbers: Vec<QpRanges>,
}

impl AddressExtension {
    /// Describes a rank with these ports and without queue pairs. Returns `None` for a single port, which the address itself has.
    pub(super) fn ports_only(ports: &[RemotePort]) -> Option<Self> {
        let (_first, others) = ports.split_first()?;
        (!others.is_empty()).then(|| Self {
            ports: others.to_vec(),
            numbers: Vec::new(),
        })
    }

    /// Returns true if there are queue pairs.
    pub(super) const fn has_queue_pairs(&self) -> bool {
        !self.numbers.is_empty()
    }

    /// Appends the wire form.
    pub(super) fn encode(&self, bytes: &mut Vec<u8>) {
        bytes.push(u8::try_from(self.ports.len() + 1).unwrap_or(u8::MAX));
        for port in &self.ports {
            connect_wire::encode_port(port, bytes);
        }
        for numbers in &self.numbers {
            numbers.encode(bytes);
        }
    }

    /// Reads the extension of a rank's address, in a job of `ranks` ranks. With `open`, queue pairs are among them.
    ///
    /// # Errors
    /// The bytes are no valid extension. The text names the defect.
    pub(super) fn parse(bytes: &[u8], ranks: u32, open: bool) -> Result<Self, String> {
        let lanes = bytes.split_first();
        let (lanes, rest) = lanes.ok_or("the number of its devices is missing")?;
        let lanes = usize::from(*lanes);
        if !(1..=RAILS_MAX).contains(&lanes) {
            return Err(format!(
                "it has {lanes} devices, but 1 to {RAILS_MAX} are possible"
            ));
        }
        let ports = rest.split_at_checked((lanes - 1) * PORT_LEN);
        let (ports, mut rest) = ports.ok_or("its list of ports is cut short")?;
        let ports = ports.as_chunks().0.iter().map(connect_wire::parse_port);
        let ports: Option<_> = ports.collect();
        let numbered = if open { lanes } else { 0 };
        let numbers = (0..numbered).map(|_| QpRanges::decode(&mut rest, ranks));
        let numbers: Result<_, _> = numbers.collect();
        let extension = Self {
            ports: ports.ok_or("a number of one of its ports is out of range")?,
            numbers: numbers.map_err(|why| why.to_string())?,
        };
        if rest.is_empty() {
            Ok(extension)
        } else {
            Err(format!("{} bytes follow its queue pairs", rest.len()))
        }
    }

    /// Returns the ends that rank `me` finds at rank `of`, whose address has this extension. They are those that a connection
    /// message would name. `psn` is the first packet number of the first lane.
    pub(super) fn ends(
        &self,
        of: WorldRank,
        me: WorldRank,
        address: &VerbsAddress,
        psn: u32,
    ) -> Option<LaneEnds> {
        let lanes = self.numbers.iter().zip(psns(psn)).map(|(numbers, psn)| {
            let qpn = numbers.number(of, me)?;
            Some(QpAddress { qpn, psn })
        });
        let lanes: Vec<_> = lanes.collect::<Option<_>>()?;
        let mut ends = LaneEnds {
            lanes: QpAddressList::new(&lanes)?,
            remote_ports: [address.first(); RAILS_MAX],
        };
        for (remote, port) in ends.remote_ports.iter_mut().skip(1).zip(&self.ports) {
            *remote = *port;
        }
        Some(ends)
    }

    #[cfg(test)]
    pub(super) fn example(ranks: u32, lanes: u32) -> Self {
        let port = |lane| RemotePort {
            gid: [9; 16],
            lid: 0x1234,
            mtu: 5,
            reads: lane,
            ethernet: true,
            table: 0x89ab_cdef,
            datagram_qpn: 0x0012_3456,
        };
        let numbers = |lane| QpRanges::new((0..ranks - 1).map(|at| 1000 * lane + 2 * at).collect());
        Self {
            ports: (1..u8::try_from(lanes).unwrap()).map(port).collect(),
            numbers: (0..lanes).map(numbers).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{AddressExtension, QpRanges, RAILS_MAX, RemotePort, psns};
    use crate::{driver::ADDRESS_MAX, driver::WorldRank};

    #[test]
    fn doors_on_four_devices_fit_into_an_address() {
        let mut extension = AddressExtension::example(2, u32::try_from(RAILS_MAX).unwrap());
        let numbers = |lane: u32| QpRanges::new((0..1023).map(|at| (lane << 22) + at).collect());
        extension.numbers = (0..4).map(numbers).collect();
        let mut bytes = Vec::new();
        extension.encode(&mut bytes);
        assert!(48 + bytes.len() <= ADDRESS_MAX, "{}", bytes.len());
        assert_eq!(AddressExtension::parse(&bytes, 1024, true), Ok(extension));
    }

    #[test]
    fn a_peer_finds_its_queue_pair_and_the_port_on_each_lane() {
        let extension = AddressExtension::example(5, 3);
        let address = crate::verbs::address::tests::ADDRESS;
        let ends = extension
            .ends(WorldRank(1), WorldRank(3), &address, 77)
            .unwrap();
        let lanes: Vec<_> = ends.iter().map(|(lane, _)| (lane.qpn, lane.psn)).collect();
        // Rank 3 is the third of rank 1's peers.
        let psns: Vec<_> = psns(77).take(3).collect();
        assert_eq!(lanes, [(4, psns[0]), (1004, psns[1]), (2004, psns[2])]);
        let remote_ports: Vec<RemotePort> = ends.iter().map(|(_, remote)| remote).collect();
        assert_eq!(
            remote_ports,
            [address.first(), extension.ports[0], extension.ports[1]]
        );
        assert!(
            extension
                .ends(WorldRank(1), WorldRank(1), &address, 77)
                .is_none()
        );
        assert!(
            extension
                .ends(WorldRank(1), WorldRank(5), &address, 77)
                .is_none()
        );
    }
}
