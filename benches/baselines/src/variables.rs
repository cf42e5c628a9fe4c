//! Environment variables of pscom and pscom4portals: their ranges, their defaults, and their effects here.

use std::io;

use ripstop_fabric::driver::Caps;

/// The values that have an effect.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(
    clippy::exhaustive_structs,
    reason = "written out by the code that opens a baseline"
)]
pub struct PscomLayout {
    /// `PSP_PORTALS_BUFFER_SIZE`: bytes of a buffer.
    pub buffer_size: usize,
    /// `PSP_PORTALS_RECVQ_SIZE`: receive buffers for each peer.
    pub recvq_size: usize,
    /// `PSP_PORTALS_SENDQ_SIZE`: send buffers for each peer.
    pub sendq_size: usize,
    /// `PSP_PORTALS_EQ_SIZE`: events that a queue holds.
    pub eq_size: u32,
    /// `PSP_PORTALS_MAX_RNDV_REQS`: maximum number of one-sided commands in flight.
    pub max_rndv_reqs: u32,
    /// `PSP_PORTALS_RENDEZVOUS`, otherwise `PSP_RENDEZVOUS`: longer messages use the rendezvous protocol.
    pub rendezvous: u64,
}

/// A row of the table of variables.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct PscomVariable {
    /// Name of the variable.
    pub name: &'static str,
    /// Default value.
    pub default: &'static str,
    /// Valid values.
    pub range: &'static str,
    /// Effect in this baseline.
    pub maps_to: &'static str,
    /// Check of a value.
    check: PscomCheck,
}

#[derive(Clone, Copy, Debug)]
enum PscomCheck {
    /// Numbers from the first to the second.
    Number(u64, u64),
    /// Such numbers, or `inf`.
    NumberOrInf(u64, u64),
    Words(&'static [&'static str]),
}

impl Default for PscomLayout {
    fn default() -> Self {
        Self {
            buffer_size: 8192,
            recvq_size: 16,
            sendq_size: 16,
            eq_size: 65_536,
            max_rndv_reqs: 4096,
            rendezvous: 40_000,
        }
    }
}

impl PscomLayout {
    /// Reads the values from these variables. Variables outside the table are ignored.
    ///
    /// # Errors
    /// `InvalidInput` for a wrong value, which names the variable and its range.
    pub fn from_variables(
        variables: impl IntoIterator<Item = (String, String)>,
    ) -> io::Result<Self> {
        let mut pscom = Self::default();
        let mut of_portals = None;
        for (name, text) in variables {
            let Some(row) = TABLE.iter().find(|row| row.name == name) else {
                continue;
            };
            let value = row.read(&text)?;
            match row.name {
                "PSP_PORTALS_BUFFER_SIZE" => pscom.buffer_size = size(value),
                "PSP_PORTALS_RECVQ_SIZE" => pscom.recvq_size = size(value),
                "PSP_PORTALS_SENDQ_SIZE" => pscom.sendq_size = size(value),
                "PSP_PORTALS_EQ_SIZE" => pscom.eq_size = count(value),
                "PSP_PORTALS_MAX_RNDV_REQS" => pscom.max_rndv_reqs = count(value),
                "PSP_PORTALS_RENDEZVOUS" => of_portals = Some(value),
                "PSP_RENDEZVOUS" => pscom.rendezvous = value,
                _ => {}
            }
        }
        pscom.rendezvous = of_portals.unwrap_or(pscom.rendezvous);
        Ok(pscom)
    }

    /// Returns the table of variables.
    #[must_use]
    pub const fn variables() -> &'static [PscomVariable] {
        TABLE
    }

    /// Returns the longest body of a message, which must fit into the send buffers of a peer.
    ///
    /// Control messages of the runtime have bodies too, so the threshold of rendezvous has a minimum.
    pub(crate) fn body_max(&self, driver: &Caps) -> usize {
        let sends = self.sendq_size * self.buffer_size - driver.header_max;
        let whole = usize::try_from(self.rendezvous).unwrap_or(usize::MAX);
        whole.clamp(BODY_LEAST, driver.body_max).min(sends)
    }

    /// Returns the bytes of all receive buffers, and of all send buffers.
    pub(crate) fn lens(&self, peers: usize) -> [usize; 2] {
        [self.recvq_size, self.sendq_size].map(|count| peers * count * self.buffer_size)
    }

    /// Returns the bytes of the buffers of one peer.
    #[must_use]
    pub const fn peer_len(&self) -> usize {
        (self.recvq_size + self.sendq_size) * self.buffer_size
    }
}

impl PscomVariable {
    /// Returns the number that a text stands for; 0 for a word.
    fn read(&self, text: &str) -> io::Result<u64> {
        let number = || text.trim().parse::<u64>().ok();
        let value = match self.check {
            PscomCheck::NumberOrInf(..) if text.trim() == "inf" => Some(u64::MAX),
            PscomCheck::Number(least, most) | PscomCheck::NumberOrInf(least, most) => {
                number().filter(|value| (least..=most).contains(value))
            }
            PscomCheck::Words(words) => words.contains(&text.trim()).then_some(0),
        };
        value.ok_or_else(|| {
            let Self { name, range, .. } = self;
            let why = format!("{name}={text} is out of range: it may be {range}");
            io::Error::new(io::ErrorKind::InvalidInput, why)
        })
    }
}

/// Converts a value that was checked to be below 2³².
fn count(value: u64) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

fn size(value: u64) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}

/// Minimum for the longest body.
const BODY_LEAST: usize = 128;

macro_rules! table {
    ($($name:literal = $default:literal, $check:expr, $range:literal, $maps_to:literal;)+) => {
        &[$(PscomVariable { name: $name, default: $default, range: $range, maps_to: $maps_to, check: $check },)+]
    };
}

const SWITCH: PscomCheck = PscomCheck::Number(0, 1);
const ANY: PscomCheck = PscomCheck::Number(0, u32::MAX as u64);

const TABLE: &[PscomVariable] = table! {
    "PSP_PORTALS" = "40", ANY, "0..=4294967295, 0 for never",
        "nothing: fabrics have no priorities; RIPSTOP_FABRIC=portals selects this one";
    "PSP_PORTALS_BUFFER_SIZE" = "8192", PscomCheck::Number(256, 1 << 20), "256..=1048576 bytes",
        "the same; Ripstop has RIPSTOP_EAGER_MAX, and slabs that all peers share";
    "PSP_PORTALS_RECVQ_SIZE" = "16", PscomCheck::Number(1, 4096), "1..=4096 buffers",
        "the same; Ripstop keeps no buffers for single peers";
    "PSP_PORTALS_SENDQ_SIZE" = "16", PscomCheck::Number(1, 4096), "1..=4096 buffers",
        "the same; Ripstop keeps no buffers for single peers";
    "PSP_PORTALS_EQ_SIZE" = "65536", PscomCheck::Number(64, 1 << 24), "64..=16777216 events",
        "the same; Ripstop has RIPSTOP_PORTALS_EVENTS";
    "PSP_PORTALS_FOSTER_PROGRESS" = "0", SWITCH, "0 | 1",
        "nothing: every turn polls all queues; RIPSTOP_PROGRESS selects what makes turns";
    "PSP_PORTALS_MAX_RNDV_REQS" = "4096", PscomCheck::Number(1, 1 << 20), "1..=1048576 commands",
        "the same; Ripstop has RIPSTOP_PORTALS_EVENTS";
    "PSP_PORTALS_RNDV_FRAGMENT_SIZE" = "inf", PscomCheck::NumberOrInf(4096, u64::MAX), "4096.. bytes | inf",
        "nothing: one operation of the adapter moves up to its limit";
    "PSP_PORTALS_RENDEZVOUS" = "40000", PscomCheck::NumberOrInf(0, u64::MAX), "0.. bytes | inf",
        "the longest message that is sent without rendezvous, limited by the send queue; Ripstop has \
         RIPSTOP_EAGER_MAX";
    "PSP_RENDEZVOUS" = "inf", PscomCheck::NumberOrInf(0, u64::MAX), "0.. bytes | inf",
        "the same as PSP_PORTALS_RENDEZVOUS, where that is not set";
    "PSP_TCP_BACKLOG" = "262144", ANY, "0..=4294967295 connections",
        "nothing: ranks do not connect to each other by TCP";
    "PSP_UNEXPECTED_RECEIVES" = "0", SWITCH, "0 | 1",
        "nothing: unexpected messages are always accepted, up to RIPSTOP_UNEXPECTED_BYTES";
    "PSP_SCHED_YIELD" = "0", SWITCH, "0 | 1",
        "nothing: a wait spins, yields and sleeps by itself; see RIPSTOP_SPIN_US_MAX";
    "PSP_READAHEAD" = "350", ANY, "0..=4294967295 bytes",
        "nothing: there is no stream to read ahead in";
    "PSP_RETRY" = "10", ANY, "0..=4294967295 times",
        "nothing: ranks make no connections; RIPSTOP_BOOT_TIMEOUT limits how long the start waits";
    "PSP_SHUTDOWN_TIMEOUT" = "0", ANY, "0..=4294967295 milliseconds",
        "nothing: a rank that ends waits for its peers to take the messages in flight, at most one second for each";
    "PSP_GUARD" = "0", SWITCH, "0 | 1",
        "always on; see RIPSTOP_DETECT_MS";
    "PSP_PRECON_TYPE" = "tcp", PscomCheck::Words(&["tcp", "rrcomm"]), "tcp | rrcomm",
        "nothing: ranks exchange addresses through the process manager; see RIPSTOP_BOOT";
    "PSP_IPROBE_COUNT" = "0", ANY, "0..=4294967295 probes",
        "nothing: a probe is a future";
    "PSP_DEADLOCK_WARNINGS" = "0", SWITCH, "0 | 1",
        "nothing; in simulation, a job that hangs reports which rank waits for which";
    "PSP_DEBUG" = "0", ANY, "0..=4294967295",
        "nothing";
};

#[cfg(test)]
mod tests {
    use super::{PscomLayout, TABLE};

    fn one(name: &str, value: &str) -> std::io::Result<PscomLayout> {
        PscomLayout::from_variables([(name.to_owned(), value.to_owned())])
    }

    #[test]
    fn defaults_are_those_that_pscom_documents() {
        let documented = [
            ("PSP_PORTALS", "40"),
            ("PSP_PORTALS_BUFFER_SIZE", "8192"),
            ("PSP_PORTALS_RECVQ_SIZE", "16"),
            ("PSP_PORTALS_SENDQ_SIZE", "16"),
            ("PSP_PORTALS_EQ_SIZE", "65536"),
            ("PSP_PORTALS_FOSTER_PROGRESS", "0"),
            ("PSP_PORTALS_MAX_RNDV_REQS", "4096"),
            ("PSP_PORTALS_RNDV_FRAGMENT_SIZE", "inf"),
            ("PSP_PORTALS_RENDEZVOUS", "40000"),
            ("PSP_RENDEZVOUS", "inf"),
            ("PSP_TCP_BACKLOG", "262144"),
            ("PSP_UNEXPECTED_RECEIVES", "0"),
            ("PSP_SCHED_YIELD", "0"),
            ("PSP_READAHEAD", "350"),
            ("PSP_RETRY", "10"),
            ("PSP_SHUTDOWN_TIMEOUT", "0"),
            ("PSP_GUARD", "0"),
            ("PSP_PRECON_TYPE", "tcp"),
            ("PSP_IPROBE_COUNT", "0"),
            ("PSP_DEADLOCK_WARNINGS", "0"),
            ("PSP_DEBUG", "0"),
        ];
        let table: Vec<_> = TABLE.iter().map(|row| (row.name, row.default)).collect();
        assert_eq!(table, documented);
        for row in TABLE.iter().filter(|row| row.name != "PSP_RENDEZVOUS") {
            let as_said = one(row.name, row.default).expect(row.name);
            assert_eq!(as_said, PscomLayout::default(), "{}", row.name);
        }
        assert_eq!(PscomLayout::default().peer_len(), 262_144);
    }

    #[test]
    fn values_act_and_the_general_threshold_gives_way_to_that_of_portals() {
        assert_eq!(
            one("PSP_PORTALS_BUFFER_SIZE", "4096")
                .expect("right")
                .buffer_size,
            4096
        );
        assert_eq!(
            one("PSP_PORTALS_RENDEZVOUS", "inf")
                .expect("right")
                .rendezvous,
            u64::MAX
        );
        assert_eq!(one("PSP_RENDEZVOUS", "100").expect("right").rendezvous, 100);
        let both = [("PSP_PORTALS_RENDEZVOUS", "7"), ("PSP_RENDEZVOUS", "100")];
        for both in [both, [both[1], both[0]]] {
            let both = both.map(|(name, value)| (name.to_owned(), value.to_owned()));
            assert_eq!(
                PscomLayout::from_variables(both).expect("right").rendezvous,
                7
            );
        }
        assert_eq!(
            one("PSP_NOTHING_OF_OURS", "x").expect("ignored"),
            PscomLayout::default()
        );
    }

    #[test]
    fn bad_values_are_refused_with_what_they_may_be() {
        for (name, value, range) in [
            ("PSP_PORTALS_BUFFER_SIZE", "255", "256..=1048576"),
            ("PSP_PORTALS_RECVQ_SIZE", "0", "1..=4096"),
            ("PSP_PORTALS_SENDQ_SIZE", "many", "1..=4096"),
            ("PSP_PORTALS_EQ_SIZE", "-1", "64..="),
            ("PSP_PORTALS_RNDV_FRAGMENT_SIZE", "1", "inf"),
            ("PSP_PORTALS_FOSTER_PROGRESS", "2", "0 | 1"),
            ("PSP_PRECON_TYPE", "udp", "tcp | rrcomm"),
            ("PSP_PORTALS", "no", "0 for never"),
        ] {
            let why = one(name, value).expect_err(name).to_string();
            assert!(
                why.contains(&format!("{name}={value}")) && why.contains(range),
                "{why}"
            );
        }
    }
}
