//! A rank's address, as bytes that the bootstrap carries to its peers.
//!
//! ```text
//! version u8 | mtu u8 | lid u16 | datagram queue pair u32 | its key u32 | incarnation u32 | gid 16 bytes
//! the table of regions: address u64, key u32 | flags u8: 1 takes datagram messages, 2 queue pairs, 4 ports | skills u8 (`lane`)
//! 0 u16 | all little-endian; then the queue pairs, or the ports (`address_extension`)
//! ```

use std::io;

use super::{
    address_extension::AddressExtension,
    lane::{PSN_MAX, RemotePort, parse_skills, skills},
    objects::RemoteAddress,
};
use crate::random::SeededRandom;

/// Address of a rank: its first port, its datagram queue pair and its table of regions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct VerbsAddress {
    pub(super) gid: [u8; 16],
    pub(super) lid: u16,
    /// MTU as verbs encodes it: 1 to 5 for 256 to 4096 bytes.
    pub(super) mtu: u8,
    /// Number of the queue pair that receives datagrams, and the key that these must carry.
    pub(super) qpn: u32,
    pub(super) qkey: u32,
    pub(super) incarnation: u32,
    /// Table where peers look up the rank's regions.
    pub(super) table: RemoteAddress,
    /// Reads of one queue pair that its first port serves at a time.
    pub(super) reads: u8,
    /// True if the link of its first port is Ethernet rather than InfiniBand.
    pub(super) ethernet: bool,
    /// True if the rank accepts datagram messages.
    pub(super) datagrams: bool,
}

impl VerbsAddress {
    /// Makes the address of a rank with this first port.
    pub(super) const fn new(
        first: &RemotePort,
        qkey: u32,
        table: RemoteAddress,
        datagrams: bool,
    ) -> Self {
        Self {
            gid: first.gid,
            lid: first.lid,
            mtu: first.mtu,
            qpn: first.datagram_qpn,
            qkey,
            incarnation: 1,
            table,
            reads: first.reads,
            ethernet: first.ethernet,
            datagrams,
        }
    }

    /// Returns the length in bytes of an address with this extension.
    pub(super) fn len(extension: Option<&AddressExtension>) -> usize {
        let mut bytes = Vec::new();
        extension
            .into_iter()
            .for_each(|extension| extension.encode(&mut bytes));
        LEN + bytes.len()
    }

    /// Returns the wire form. `extension` names the queue pairs that peers find ready, or only the further ports.
    pub(super) fn encode(&self, extension: Option<&AddressExtension>) -> Vec<u8> {
        let mut bytes = vec![VERSION, self.mtu];
        bytes.extend(self.lid.to_le_bytes());
        for word in [self.qpn, self.qkey, self.incarnation] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(self.gid);
        bytes.extend(self.table.address.to_le_bytes());
        bytes.extend(self.table.key.to_le_bytes());
        let datagrams = if self.datagrams { DATAGRAMS } else { 0 };
        let flags = datagrams
            | match extension {
                Some(extension) if extension.has_queue_pairs() => PREWIRED,
                Some(_) => PORTS,
                None => 0,
            };
        bytes.extend([flags, skills(self.reads, self.ethernet), 0, 0]);
        if let Some(extension) = extension {
            extension.encode(&mut bytes);
        }
        bytes
    }

    /// Reads the address of `rank`, in a job of `ranks` ranks.
    ///
    /// # Errors
    /// The bytes are no valid address. The text names the rank and the defect.
    pub(super) fn parse(
        rank: usize,
        bytes: &[u8],
        ranks: u32,
    ) -> io::Result<(Self, Option<AddressExtension>)> {
        let wrong = |what: String| {
            let why = format!("the verbs address of rank {rank}: {what}");
            io::Error::new(io::ErrorKind::InvalidData, why)
        };
        let whole = bytes.split_first_chunk::<LEN>();
        let behind = whole.map_or(0, |(all, _)| all[44] & (PREWIRED | PORTS));
        let (all, rest) = whole
            .filter(|(_, rest)| behind != 0 || rest.is_empty())
            .ok_or_else(|| {
                wrong(format!(
                    "it has {} bytes, but an address has {LEN}",
                    bytes.len()
                ))
            })?;
        let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|nth| all[at + nth]));
        let skills = parse_skills(all[45]);
        let (reads, ethernet) = skills.unwrap_or((0, false));
        let address = Self {
            gid: std::array::from_fn(|nth| all[16 + nth]),
            lid: u16::from_le_bytes([all[2], all[3]]),
            mtu: all[1],
            qpn: word(4),
            qkey: word(8),
            incarnation: word(12),
            table: RemoteAddress {
                address: u64::from(word(32)) | u64::from(word(36)) << 32,
                key: word(40),
            },
            reads,
            ethernet,
            datagrams: all[44] & DATAGRAMS != 0,
        };
        if all[0] != VERSION {
            return Err(wrong(format!(
                "its version is {}, but this driver's is {VERSION}: run the same build of the \
                                      program on all ranks",
                all[0]
            )));
        }
        let numbers = (1..=5).contains(&address.mtu) && address.qpn >> 24 == 0;
        let flags = all[44] & !(DATAGRAMS | PREWIRED | PORTS) == 0 && behind != PREWIRED | PORTS;
        let known = flags && skills.is_some() && all[46..] == [0; 2];
        if !numbers || !known || address.incarnation == 0 {
            return Err(wrong("a number in it is out of range".to_owned()));
        }
        let open = behind == PREWIRED;
        let extension =
            (behind != 0).then(|| AddressExtension::parse(rest, ranks, open).map_err(wrong));
        Ok((address, extension.transpose()?))
    }

    /// Checks that this rank's first port and a peer's can reach each other.
    ///
    /// # Errors
    /// One is InfiniBand and the other Ethernet. The text says what to set.
    pub(super) fn check_kind(&self, rank: usize, peer: &Self) -> io::Result<()> {
        let kind = |ethernet| {
            if ethernet {
                "Ethernet (RoCE)"
            } else {
                "InfiniBand"
            }
        };
        if peer.ethernet == self.ethernet {
            return Ok(());
        }
        let why = format!(
            "InfiniBand verbs: the port of rank {rank} is {}, and this rank's is {}: name ports of one network on all nodes \
             with RIPSTOP_VERBS_DEVICE",
            kind(peer.ethernet),
            kind(self.ethernet)
        );
        Err(io::Error::new(io::ErrorKind::InvalidInput, why))
    }

    /// Returns the number of the first packet from this rank to a peer, by the first of the queue pairs that both made before
    /// they knew each other. It follows from the two addresses, so both ranks know it, and a process without the addresses does
    /// not.
    pub(super) fn psn(&self, peer: &Self) -> u32 {
        let both = u64::from(self.qkey) << 32 | u64::from(peer.qkey);
        u32::try_from(SeededRandom::new(both).bits() & u64::from(PSN_MAX)).unwrap_or(0)
    }

    /// Returns the first port.
    pub(super) const fn first(&self) -> RemotePort {
        RemotePort {
            gid: self.gid,
            lid: self.lid,
            mtu: self.mtu,
            reads: self.reads,
            ethernet: self.ethernet,
            table: self.table.key,
            datagram_qpn: self.qpn,
        }
    }
}

const VERSION: u8 = 5;
const LEN: usize = 48;
// Bits of the byte of flags.
const DATAGRAMS: u8 = 1;
const PREWIRED: u8 = 2;
const PORTS: u8 = 4;

#[cfg(test)]
pub(super) mod tests {
    use super::{AddressExtension, RemoteAddress, VerbsAddress};
    use crate::random::SeededRandom;

    pub(in crate::verbs) const ADDRESS: VerbsAddress = VerbsAddress {
        gid: [7; 16],
        lid: 0x1234,
        mtu: 5,
        qpn: 0x0012_3456,
        qkey: 0x89ab_cdef,
        incarnation: 1,
        table: RemoteAddress {
            address: 0x7f01_2345_6789_a000,
            key: 0x5555_aaaa,
        },
        reads: 16,
        ethernet: true,
        datagrams: true,
    };

    #[test]
    fn an_address_survives_the_way_through_the_bootstrap() {
        let bytes = ADDRESS.encode(None);
        assert!(bytes.len() <= 48, "{} bytes", bytes.len());
        assert_eq!(VerbsAddress::parse(0, &bytes, 9).unwrap(), (ADDRESS, None));
        let plain = VerbsAddress {
            datagrams: false,
            ethernet: false,
            ..ADDRESS
        };
        assert_eq!(
            VerbsAddress::parse(0, &plain.encode(None), 9).unwrap(),
            (plain, None)
        );
        let extension = AddressExtension::example(9, 3);
        let ports = [&[ADDRESS.first()], &extension.ports[..]].concat();
        let closed = AddressExtension::ports_only(&ports).unwrap();
        assert!(AddressExtension::ports_only(&ports[..1]).is_none());
        for extension in [extension, closed] {
            let bytes = ADDRESS.encode(Some(&extension));
            assert_eq!(
                VerbsAddress::parse(0, &bytes, 9).unwrap(),
                (ADDRESS, Some(extension))
            );
        }
    }

    #[test]
    fn two_ranks_know_the_first_packets_of_both_without_a_word() {
        let peer = VerbsAddress {
            qkey: 0x1234_5678,
            ..ADDRESS
        };
        let [ours, theirs] = [ADDRESS.psn(&peer), peer.psn(&ADDRESS)];
        let read =
            |address: VerbsAddress| VerbsAddress::parse(0, &address.encode(None), 9).unwrap().0;
        assert_eq!(read(ADDRESS).psn(&read(peer)), ours);
        assert_eq!(read(peer).psn(&read(ADDRESS)), theirs);
        assert!(ours != theirs && ours < 1 << 24 && theirs < 1 << 24);
    }

    #[test]
    fn ports_of_two_kinds_of_network_are_refused_at_once() {
        let infiniband = VerbsAddress {
            ethernet: false,
            ..ADDRESS
        };
        assert!(ADDRESS.check_kind(1, &ADDRESS).is_ok());
        assert!(infiniband.check_kind(1, &infiniband).is_ok());
        let why = ADDRESS.check_kind(7, &infiniband).unwrap_err().to_string();
        for word in ["rank 7", "InfiniBand", "RoCE", "RIPSTOP_VERBS_DEVICE"] {
            assert!(why.contains(word), "{why}");
        }
    }

    #[test]
    fn bytes_that_are_no_address_are_refused_with_the_rank() {
        let good = ADDRESS.encode(None);
        let changed = |at: usize, to: u8| {
            let mut bytes = good.clone();
            bytes[at] = to;
            bytes
        };
        let shortened = good[..47].to_vec();
        for bytes in [
            vec![],
            shortened,
            changed(0, 2),
            changed(1, 0),
            changed(1, 6),
            changed(7, 1),
            changed(44, 0x81),
            changed(44, 2), // an extension, and there is none
            changed(44, 4), // ports, and there are none
            [&changed(44, 6)[..], &[1]].concat(),
            [&good[..], &[0]].concat(), // something, but no extension
            changed(45, 0),
            changed(45, 0x80),
            changed(47, 1),
        ] {
            let why = VerbsAddress::parse(13, &bytes, 9).unwrap_err().to_string();
            assert!(why.contains("rank 13"), "{why}");
        }
        let mut random = SeededRandom::new(5);
        for _ in 0..1000 {
            let mut bytes = good.clone();
            random.fill(&mut bytes);
            let _no_panic = VerbsAddress::parse(0, &bytes, 9);
        }
    }

    #[test]
    fn doors_that_are_none_are_refused_with_the_rank() {
        let good = ADDRESS.encode(Some(&AddressExtension::example(9, 2)));
        for len in 0..good.len() {
            let why = VerbsAddress::parse(13, &good[..len], 9)
                .unwrap_err()
                .to_string();
            assert!(why.contains("rank 13"), "{why}");
        }
        for job in [0, 2, 8, 10] {
            assert!(VerbsAddress::parse(13, &good, job).is_err(), "{job} ranks");
        }
        let mut random = SeededRandom::new(6);
        for _ in 0..10_000 {
            let mut bytes = good.clone();
            let at = usize::try_from(random.within(0..bytes.len() as u64)).unwrap();
            bytes[at] ^= u8::try_from(random.within(1..256)).unwrap();
            let _no_panic = VerbsAddress::parse(0, &bytes, 9);
            random.fill(&mut bytes[48..]);
            let _no_panic = VerbsAddress::parse(0, &bytes, 9);
        }
    }
}
