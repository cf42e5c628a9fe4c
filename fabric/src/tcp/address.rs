//! A rank's address, as bytes that the bootstrap carries to its peers.
//!
//! ```text
//! version u8 | number of endpoints u8, 1 to 4 | 0 u16 | incarnation u32 | token 16 bytes
//! each endpoint: 4 or 6 u8 | prefix length u8 | speed class u8 | 0 u8 | port u16 | address 4 or 16 bytes | all little-endian,
//! except addresses, which have the network's order
//! ```

use std::{
    fmt, io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

/// How peers reach a rank, and the secret by which they prove that they belong to its job.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct TcpAddress {
    /// Random bytes that only the ranks of the job learn.
    pub(super) token: [u8; 16],
    /// Number of this run of the rank.
    pub(super) incarnation: u32,
    /// Where the rank listens, in its order of preference. There is at least one endpoint, and at most [`ENDPOINTS_MAX`].
    pub(super) endpoints: Vec<TcpEndpoint>,
}

/// A listener of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TcpEndpoint {
    pub(super) ip: IpAddr,
    /// Bits of the address that all hosts of its subnet share.
    pub(super) prefix: u8,
    pub(super) speed: SpeedClass,
    pub(super) port: u16,
}

/// Speed of an interface, rounded down to a power of two. Unknown speeds are the least.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SpeedClass(u8);

impl TcpAddress {
    /// Returns the bytes that [`decode`](Self::decode) reads, at most [`ADDRESS_LEN_MAX`].
    pub(super) fn encode(&self) -> Vec<u8> {
        let count = self.endpoints.len();
        assert!(
            (1..=ENDPOINTS_MAX).contains(&count),
            "an address has 1 to {ENDPOINTS_MAX} endpoints, not {count}"
        );
        let mut bytes = vec![VERSION, u8::try_from(count).unwrap_or(u8::MAX), 0, 0];
        bytes.extend(self.incarnation.to_le_bytes());
        bytes.extend(self.token);
        for endpoint in &self.endpoints {
            endpoint.encode(&mut bytes);
        }
        bytes
    }

    /// Reads an address. Bytes that no [`encode`](Self::encode) returns are refused.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidData`], with what is wrong. The text names no rank: the caller knows whose address it is.
    pub(super) fn decode(bytes: &[u8]) -> io::Result<Self> {
        let (head, mut rest) = bytes
            .split_first_chunk::<HEAD_LEN>()
            .ok_or_else(|| invalid(format!("has {} bytes: too short", bytes.len())))?;
        let [version, count, zeros @ ..] = head.first_chunk::<4>().unwrap_or(&[0; 4]);
        if *version != VERSION {
            return Err(invalid(format!(
                "has format {version}, and this rank reads format {VERSION}: start all ranks with the same version of Ripstop"
            )));
        }
        let count = usize::from(*count);
        if !(1..=ENDPOINTS_MAX).contains(&count) || *zeros != [0; 2] {
            return Err(invalid(format!("has {count} endpoints")));
        }
        let mut endpoints = Vec::with_capacity(count);
        for _ in 0..count {
            let (endpoint, after) = TcpEndpoint::decode(rest)?;
            endpoints.push(endpoint);
            rest = after;
        }
        if !rest.is_empty() {
            return Err(invalid(format!("goes on for {} bytes", rest.len())));
        }
        Ok(Self {
            token: field(head, 8),
            incarnation: u32::from_le_bytes(field(head, 4)),
            endpoints,
        })
    }
}

impl fmt::Debug for TcpAddress {
    /// Leaves the token out, because logs are read by more people than the job's owner.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TcpAddress")
            .field("incarnation", &self.incarnation)
            .field("endpoints", &self.endpoints)
            .finish_non_exhaustive()
    }
}

impl TcpEndpoint {
    /// Returns where to connect to.
    pub(super) const fn socket(&self) -> SocketAddr {
        SocketAddr::new(self.ip, self.port)
    }

    fn encode(&self, bytes: &mut Vec<u8>) {
        let family = if self.ip.is_ipv4() { 4 } else { 6 };
        bytes.extend([family, self.prefix, self.speed.0, 0]);
        bytes.extend(self.port.to_le_bytes());
        match self.ip {
            IpAddr::V4(ip) => bytes.extend(ip.octets()),
            IpAddr::V6(ip) => bytes.extend(ip.octets()),
        }
    }

    /// Decodes an endpoint, and returns it with the bytes after it.
    fn decode(bytes: &[u8]) -> io::Result<(Self, &[u8])> {
        let cut = || invalid("ends within an endpoint".to_owned());
        let (head, rest) = bytes.split_first_chunk::<6>().ok_or_else(cut)?;
        let [family, prefix, speed, zero, low, high] = *head;
        let (ip, rest) = match family {
            4 => {
                let (ip, rest) = rest.split_first_chunk::<4>().ok_or_else(cut)?;
                (IpAddr::from(Ipv4Addr::from(*ip)), rest)
            }
            6 => {
                let (ip, rest) = rest.split_first_chunk::<16>().ok_or_else(cut)?;
                (IpAddr::from(Ipv6Addr::from(*ip)), rest)
            }
            _ => return Err(invalid(format!("has an endpoint of family {family}"))),
        };
        let endpoint = Self {
            ip,
            prefix,
            speed: SpeedClass(speed),
            port: u16::from_le_bytes([low, high]),
        };
        if zero == 0 && endpoint.is_possible() {
            Ok((endpoint, rest))
        } else {
            let socket = endpoint.socket();
            Err(invalid(format!(
                "has an impossible endpoint ({socket}, prefix {prefix}, speed {speed})"
            )))
        }
    }

    /// Returns true if a host may listen there.
    fn is_possible(&self) -> bool {
        let bits = if self.ip.is_ipv4() { 32 } else { 128 };
        self.prefix <= bits
            && self.speed <= SpeedClass::MAX
            && self.port != 0
            && !self.ip.is_unspecified()
            && !self.ip.is_multicast()
            && self.ip != IpAddr::V4(Ipv4Addr::BROADCAST)
    }
}

impl SpeedClass {
    /// The class of the greatest speed that an interface can report.
    const MAX: Self = Self::of(Some(u32::MAX));

    /// Returns the class of a speed in Mb/s, or of an unknown one.
    pub(super) const fn of(megabits: Option<u32>) -> Self {
        match megabits {
            Some(speed) => {
                let [bits, ..] = (u32::BITS - speed.leading_zeros()).to_le_bytes();
                Self(bits)
            }
            None => Self(0),
        }
    }
}

fn field<const LEN: usize>(bytes: &[u8; HEAD_LEN], at: usize) -> [u8; LEN] {
    let mut field = [0; LEN];
    field.copy_from_slice(&bytes[at..at + LEN]);
    field
}

fn invalid(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("TCP address {what}"))
}

/// The most endpoints of a rank: hosts have few networks that all ranks share.
pub(super) const ENDPOINTS_MAX: usize = 4;

/// The most bytes of an encoded address.
pub(super) const ADDRESS_LEN_MAX: usize = HEAD_LEN + ENDPOINTS_MAX * ENDPOINT_LEN_MAX;

const _: () = assert!(ADDRESS_LEN_MAX <= crate::driver::ADDRESS_MAX);

const VERSION: u8 = 3;
const HEAD_LEN: usize = 24;
const ENDPOINT_LEN_MAX: usize = 6 + 16;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{ADDRESS_LEN_MAX, ENDPOINTS_MAX, SpeedClass, TcpAddress, TcpEndpoint};

    fn endpoint(ip: &str, prefix: u8) -> TcpEndpoint {
        TcpEndpoint {
            ip: ip.parse().unwrap(),
            prefix,
            speed: SpeedClass::of(Some(25_000)),
            port: 4711,
        }
    }

    fn example() -> TcpAddress {
        TcpAddress {
            token: *b"0123456789abcdef",
            incarnation: 7,
            endpoints: vec![endpoint("10.1.2.3", 24), endpoint("fd00::17", 64)],
        }
    }

    fn changed(at: usize, to: u8) -> Vec<u8> {
        let mut bytes = example().encode();
        assert_ne!(bytes[at], to, "byte {at} must change");
        bytes[at] = to;
        bytes
    }

    #[test]
    fn an_address_survives_the_way_through_the_bootstrap() {
        let mut address = example();
        assert_eq!(TcpAddress::decode(&address.encode()).unwrap(), address);
        address.endpoints = vec![endpoint("fd00::17", 128); ENDPOINTS_MAX];
        let bytes = address.encode();
        assert_eq!(bytes.len(), ADDRESS_LEN_MAX);
        assert_eq!(TcpAddress::decode(&bytes).unwrap(), address);
    }

    #[test]
    fn impossible_addresses_are_refused_with_the_reason() {
        let good = example().encode();
        for (bytes, word) in [
            (vec![], "short"),
            (good[..23].to_vec(), "short"),
            (good[..good.len() - 1].to_vec(), "ends within an endpoint"),
            ([&good[..], &[0]].concat(), "goes on"),
            (changed(0, 2), "same version"),
            (changed(1, 0), "0 endpoints"),
            (changed(1, 5), "5 endpoints"),
            (changed(1, 3), "ends within"),
            (changed(1, 1), "goes on"),
            (changed(2, 1), "endpoints"),
            (changed(24, 5), "family 5"),
            (changed(25, 33), "prefix 33"),
            (changed(26, 33), "speed 33"),
            (changed(27, 1), "impossible"),
            (changed(30, 224), "224.1.2.3"),
        ] {
            let why = TcpAddress::decode(&bytes).unwrap_err().to_string();
            assert!(why.contains(word), "{word} in {why}");
        }
        let mut portless = example();
        portless.endpoints[1].port = 0;
        assert!(TcpAddress::decode(&portless.encode()).is_err());
        let mut anywhere = example();
        anywhere.endpoints[0] = endpoint("0.0.0.0", 0);
        assert!(TcpAddress::decode(&anywhere.encode()).is_err());
    }

    #[test]
    fn a_log_does_not_tell_the_token() {
        let address = TcpAddress {
            token: [0xa7; 16],
            ..example()
        };
        let text = format!("{address:?}");
        assert!(text.contains("10.1.2.3"), "{text}");
        assert!(!text.contains("167") && !text.contains("a7"), "{text}");
    }

    #[test]
    fn faster_interfaces_have_greater_classes() {
        let speeds = [None, Some(10), Some(100), Some(1000), Some(10_000)];
        let classes = speeds.map(SpeedClass::of);
        assert!(
            classes.is_sorted_by(|slow, fast| slow < fast),
            "{classes:?}"
        );
        assert_eq!(SpeedClass::of(Some(u32::MAX)), SpeedClass::MAX);
    }

    proptest! {
        #[test]
        fn hostile_bytes_decode_to_what_encodes_to_them_or_not_at_all(
            random in prop::collection::vec(any::<u8>(), 0..=ADDRESS_LEN_MAX + 1),
            edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        ) {
            let mut edited = example().encode();
            for (at, to) in edits {
                let at = at.index(edited.len());
                edited[at] = to;
            }
            for bytes in [random, edited] {
                if let Ok(address) = TcpAddress::decode(&bytes) {
                    prop_assert_eq!(address.encode(), bytes);
                }
            }
        }
    }
}
