//! Ports on which ranks listen, where a firewall lets only some pass.

use std::iter;

/// A range of ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::tcp) struct PortRange {
    low: u16,
    high: u16,
}

impl PortRange {
    /// Parses a range like `5000-5999`.
    pub(in crate::tcp) fn parse(text: &str) -> Option<Self> {
        let (low, high) = text.split_once('-')?;
        let port = |text: &str| {
            let digits = text.bytes().all(|byte| byte.is_ascii_digit());
            text.parse().ok().filter(|port| *port > 0 && digits)
        };
        let (low, high) = (port(low.trim())?, port(high.trim())?);
        (low <= high).then_some(Self { low, high })
    }

    /// Returns all ports once, beginning at a place that a random number selects: the ranks of a host collide rarely then.
    pub(in crate::tcp) fn ports_from(self, random: u64) -> impl Iterator<Item = u16> {
        let width = u64::from(self.high - self.low) + 1;
        let start = u16::try_from(random % width).unwrap_or(0);
        let first = self.low + start;
        (first..=self.high).chain(iter::once(self.low..first).flatten())
    }
}

impl std::fmt::Display for PortRange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{}", self.low, self.high)
    }
}

#[cfg(test)]
mod tests {
    use super::PortRange;

    #[test]
    fn ranges_have_two_ports_in_ascending_order() {
        for text in ["5000-5999", "1-65535", "80-80"] {
            let range = PortRange::parse(text).unwrap();
            assert_eq!(range.to_string(), text);
        }
        for text in [
            "",
            "-",
            "5000",
            "5000-",
            "-5000",
            "0-10",
            "6000-5000",
            "1-65536",
            "70000-70001",
            "a-b",
            "1-2-3",
            "+1-2",
            "-1-2",
            "1..2",
        ] {
            assert_eq!(PortRange::parse(text), None, "{text}");
        }
    }

    #[test]
    fn every_port_is_tried_once_from_any_start() {
        let range = PortRange::parse("5000-5004").unwrap();
        let mut starts = Vec::new();
        for random in 0..5 {
            let mut ports: Vec<u16> = range.ports_from(random).collect();
            starts.push(ports[0]);
            ports.sort_unstable();
            assert_eq!(ports, [5000, 5001, 5002, 5003, 5004]);
        }
        assert_eq!(starts, [5000, 5001, 5002, 5003, 5004]);
        let all = PortRange::parse("1-65535").unwrap();
        assert_eq!(all.ports_from(u64::MAX).count(), 65_535);
        let one = PortRange::parse("7-7").unwrap();
        assert_eq!(one.ports_from(u64::MAX).collect::<Vec<_>>(), [7]);
    }
}
