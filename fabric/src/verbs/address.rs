//! Where a rank can be reached, as bytes that the bootstrap carries to its peers.
//!
//! ```text
//! version u8 | mtu u8 | lid u16 | datagram queue pair u32 | its key u32 | incarnation u32 | gid 16 bytes
//! the table of regions: address u64, key u32          all little-endian
//! ```

use std::io;

use super::{objects::Remote, way::Far};

/// Where a rank can be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Address {
    pub(super) gid: [u8; 16],
    pub(super) lid: u16,
    /// 1 to 5 for 256 to 4096 bytes.
    pub(super) mtu: u8,
    /// The queue pair that takes words about connections, and its key.
    pub(super) qpn: u32,
    pub(super) qkey: u32,
    pub(super) incarnation: u32,
    /// Where peers look up its regions.
    pub(super) table: Remote,
}

impl Address {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![VERSION, self.mtu];
        bytes.extend(self.lid.to_le_bytes());
        for word in [self.qpn, self.qkey, self.incarnation] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(self.gid);
        bytes.extend(self.table.address.to_le_bytes());
        bytes.extend(self.table.key.to_le_bytes());
        bytes
    }

    /// # Errors
    /// What is wrong with the address of this rank.
    pub(super) fn parse(rank: usize, bytes: &[u8]) -> io::Result<Self> {
        let wrong = |what: String| {
            let why = format!("the verbs address of rank {rank}: {what}");
            io::Error::new(io::ErrorKind::InvalidData, why)
        };
        let all: &[u8; LEN] = bytes
            .try_into()
            .map_err(|_| wrong(format!("{} bytes, and {LEN} are one", bytes.len())))?;
        let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|nth| all[at + nth]));
        let address = Self {
            gid: std::array::from_fn(|nth| all[16 + nth]),
            lid: u16::from_le_bytes([all[2], all[3]]),
            mtu: all[1],
            qpn: word(4),
            qkey: word(8),
            incarnation: word(12),
            table: Remote {
                address: u64::from(word(32)) | u64::from(word(36)) << 32,
                key: word(40),
            },
        };
        if all[0] != VERSION {
            return Err(wrong(format!("version {}, and this is {VERSION}", all[0])));
        }
        if !(1..=5).contains(&address.mtu) || address.qpn >> 24 != 0 || address.incarnation == 0 {
            return Err(wrong("a number out of its range".to_owned()));
        }
        Ok(address)
    }

    /// Its first port.
    pub(super) const fn first(&self) -> Far {
        Far {
            gid: self.gid,
            lid: self.lid,
            mtu: self.mtu,
            table: self.table.key,
            words: self.qpn,
        }
    }
}

const VERSION: u8 = 1;
const LEN: usize = 44;

#[cfg(test)]
mod tests {
    use super::{Address, Remote};
    use crate::random::Random;

    const ADDRESS: Address = Address {
        gid: [7; 16],
        lid: 0x1234,
        mtu: 5,
        qpn: 0x0012_3456,
        qkey: 0x89ab_cdef,
        incarnation: 1,
        table: Remote {
            address: 0x7f01_2345_6789_a000,
            key: 0x5555_aaaa,
        },
    };

    #[test]
    fn an_address_survives_the_way_through_the_bootstrap() {
        let bytes = ADDRESS.encode();
        assert!(bytes.len() <= 48, "{} bytes", bytes.len());
        assert_eq!(Address::parse(0, &bytes).unwrap(), ADDRESS);
    }

    #[test]
    fn bytes_that_are_no_address_are_refused_with_the_rank() {
        let good = ADDRESS.encode();
        let changed = |at: usize, to: u8| {
            let mut bytes = good.clone();
            bytes[at] = to;
            bytes
        };
        let shortened = good[..43].to_vec();
        for bytes in [
            vec![],
            shortened,
            changed(0, 2),
            changed(1, 0),
            changed(1, 6),
            changed(7, 1),
        ] {
            let why = Address::parse(13, &bytes).unwrap_err().to_string();
            assert!(why.contains("rank 13"), "{why}");
        }
        let mut random = Random::new(5);
        for _ in 0..1000 {
            let mut bytes = good.clone();
            random.fill(&mut bytes);
            let _no_panic = Address::parse(0, &bytes);
        }
    }
}
