//! The wire form of a connection message: the frame with its sender's lanes, and the ports behind them.
//!
//! ```text
//! a frame of `connect` | for each lane but the first: gid 16 bytes, lid u16, mtu u8, skills u8, key to the table u32,
//!                                            queue pair for connection messages u32
//! ```
//! The first port is in the rank's address. If it has moved since, it comes before the others.

use super::lane::{RemotePort, parse_skills, skills};
use crate::{
    connect::{ConnectFrame, QpAddress, QpAddressList},
    driver::WorldRank,
    lanes::RAILS_MAX,
};

/// Ends of the lanes of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LaneEnds {
    pub(super) lanes: QpAddressList,
    /// Ports behind the lanes. Those beyond the last lane mean nothing.
    pub(super) remote_ports: [RemotePort; RAILS_MAX],
}

impl LaneEnds {
    /// Joins lanes and their ports, of which there must be at least one.
    pub(super) fn new(lanes: QpAddressList, ports: &[RemotePort]) -> Self {
        let last = ports.len() - 1;
        let remote_ports = std::array::from_fn(|lane| ports[lane.min(last)]);
        Self {
            lanes,
            remote_ports,
        }
    }

    /// Returns the lanes with their ports.
    pub(super) fn iter(&self) -> impl Iterator<Item = (QpAddress, RemotePort)> + '_ {
        self.lanes.as_slice().iter().copied().zip(self.remote_ports)
    }
}

/// Appends the wire form to `bytes`. `moved`: the first port is not where the rank's address says.
pub(super) fn encode(frame: &ConnectFrame, ports: &[RemotePort], moved: bool, bytes: &mut Vec<u8>) {
    frame.encode(bytes);
    let known = usize::from(!moved);
    for port in ports.iter().take(frame.lanes.as_slice().len()).skip(known) {
        encode_port(port, bytes);
    }
}

pub(super) fn encode_port(port: &RemotePort, bytes: &mut Vec<u8>) {
    let skills = skills(port.reads, port.ethernet);
    bytes.extend(port.gid);
    bytes.extend(port.lid.to_le_bytes());
    bytes.extend([port.mtu, skills]);
    bytes.extend(port.table.to_le_bytes());
    bytes.extend(port.datagram_qpn.to_le_bytes());
}

/// Reads the wire form. `first` returns the first port of a rank. Returns `None` if the bytes are malformed.
pub(super) fn parse(
    bytes: &[u8],
    first: impl Fn(WorldRank) -> Option<RemotePort>,
) -> Option<(ConnectFrame, LaneEnds)> {
    let lanes = usize::from(*bytes.get(3)?);
    let (frame, ports) = bytes.split_at_checked(FRAME_LEN + lanes * LANE_LEN)?;
    let frame = ConnectFrame::parse(frame).ok()?;
    let (ports, rest) = ports.as_chunks::<PORT_LEN>();
    let others = lanes.saturating_sub(1);
    let whole = rest.is_empty() && (others..=lanes).contains(&ports.len());
    let known = first(frame.message.from.rank).filter(|_| whole && lanes <= RAILS_MAX)?;
    let mut ends = LaneEnds {
        lanes: frame.lanes,
        remote_ports: [known; RAILS_MAX],
    };
    for (remote, port) in ends
        .remote_ports
        .iter_mut()
        .skip(lanes - ports.len())
        .zip(ports)
    {
        *remote = parse_port(port)?;
    }
    Some((frame, ends))
}

pub(super) fn parse_port(bytes: &[u8; PORT_LEN]) -> Option<RemotePort> {
    let &[.., l0, l1, mtu, skills, k0, k1, k2, k3, w0, w1, w2, w3] = bytes;
    let gid = std::array::from_fn(|nth| bytes[nth]);
    let (reads, ethernet) = parse_skills(skills)?;
    let words = u32::from_le_bytes([w0, w1, w2, w3]);
    ((1..=5).contains(&mtu) && words >> 24 == 0).then_some(RemotePort {
        gid,
        lid: u16::from_le_bytes([l0, l1]),
        mtu,
        reads,
        ethernet,
        table: u32::from_le_bytes([k0, k1, k2, k3]),
        datagram_qpn: words,
    })
}

/// Returns the bytes of the longest connection message, if the first port has not moved.
pub(super) const fn len_max(lanes: usize) -> usize {
    FRAME_LEN + lanes * LANE_LEN + (lanes - 1) * PORT_LEN
}

const FRAME_LEN: usize = 28;
const LANE_LEN: usize = 8;
pub(super) const PORT_LEN: usize = 28;

#[cfg(test)]
mod tests {
    use super::{
        ConnectFrame, PORT_LEN, QpAddress, QpAddressList, RAILS_MAX, RemotePort, encode, len_max,
        parse,
    };
    use crate::{
        connect::{ConnectKind, ConnectMessage, RankIncarnation},
        driver::WorldRank,
        random::SeededRandom,
    };

    const PORT: RemotePort = RemotePort {
        gid: [9; 16],
        lid: 0x1234,
        mtu: 5,
        reads: 16,
        ethernet: false,
        table: 0x89ab_cdef,
        datagram_qpn: 0x0012_3456,
    };

    fn greeting(lanes: usize, moved: bool) -> (ConnectFrame, Vec<RemotePort>, Vec<u8>) {
        let end = |rank| RankIncarnation {
            rank,
            incarnation: 1,
        };
        let message = ConnectMessage {
            kind: if lanes > 0 {
                ConnectKind::Request
            } else {
                ConnectKind::Ready
            },
            id: 7,
            from: end(WorldRank(3)),
            to: end(WorldRank(4)),
        };
        let mut frame = ConnectFrame::bare(message);
        frame.lanes = QpAddressList::new(&vec![QpAddress { qpn: 5, psn: 6 }; lanes]).unwrap();
        let port = |nth: usize| RemotePort {
            lid: u16::try_from(nth).unwrap(),
            reads: u8::try_from(nth + 1).unwrap(),
            ethernet: nth % 2 == 1,
            ..PORT
        };
        let ports: Vec<_> = (0..RAILS_MAX).map(port).collect();
        let mut bytes = Vec::new();
        encode(&frame, &ports, moved, &mut bytes);
        (frame, ports, bytes)
    }

    #[test]
    fn all_lanes_and_their_ports_travel_in_one_word() {
        for lanes in 0..=RAILS_MAX {
            let (frame, ports, bytes) = greeting(lanes, false);
            assert!(
                bytes.len() <= len_max(lanes.max(1)),
                "{} bytes",
                bytes.len()
            );
            let (parsed, ends) =
                parse(&bytes, |rank| (rank == WorldRank(3)).then_some(ports[0])).unwrap();
            assert_eq!(parsed, frame);
            let remote_ports: Vec<_> = ends.iter().map(|(_, remote)| remote).collect();
            assert_eq!(remote_ports, ports[..lanes]);
            assert!(parse(&bytes, |_| None).is_none(), "from no rank");
            assert!(parse(&bytes[..bytes.len() - 1], |_| Some(PORT)).is_none());
        }
    }

    #[test]
    fn where_the_first_port_has_moved_to_goes_along() {
        for lanes in 0..=RAILS_MAX {
            let (frame, ports, bytes) = greeting(lanes, true);
            let (parsed, ends) = parse(&bytes, |_| Some(PORT)).unwrap();
            assert_eq!(parsed, frame);
            let remote_ports: Vec<_> = ends.iter().map(|(_, remote)| remote).collect();
            assert_eq!(remote_ports, ports[..lanes]);
            let longer = [&bytes[..], &[1; PORT_LEN]].concat();
            assert!(parse(&longer, |_| Some(PORT)).is_none());
        }
    }

    #[test]
    fn numbers_that_no_port_has_are_refused() {
        let (.., bytes) = greeting(2, false);
        let port = bytes.len() - 28;
        for (at, wrong) in [(18, 0), (18, 6), (19, 0), (19, 0x80)] {
            let mut bytes = bytes.clone();
            bytes[port + at] = wrong;
            assert!(parse(&bytes, |_| Some(PORT)).is_none(), "{at}: {wrong}");
        }
    }

    #[test]
    fn noise_is_refused_and_never_a_panic() {
        let mut random = SeededRandom::new(11);
        for _ in 0..10_000 {
            let (.., mut bytes) = greeting(RAILS_MAX, random.bits().is_multiple_of(2));
            let at = usize::try_from(random.within(0..bytes.len() as u64)).unwrap();
            bytes[at] ^= u8::try_from(random.within(1..256)).unwrap();
            let _no_panic = parse(&bytes, |_| Some(PORT));
            random.fill(&mut bytes);
            assert!(parse(&bytes, |_| Some(PORT)).is_none());
        }
    }
}
