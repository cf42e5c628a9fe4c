//! Environment settings of interfaces that are opened from C. The book lists all names.

use std::{
    env,
    io::Write,
    net::Ipv4Addr,
    str::FromStr,
    sync::{Mutex, PoisonError},
};

use crate::{
    error::SoftError,
    habits::LibraryHabits,
    limits::NiLimits,
    process::SoftNicMode,
    transport::{DatagramFaults, MediumKind, PID_MAX, SoftTransportConfig},
};

/// Settings for one rail.
#[derive(Clone, Debug)]
pub(super) struct SoftRailSettings {
    /// `RIPSTOP_PORTALS_NETWORK`: jobs with different networks do not see each other.
    pub(super) network: String,
    /// `RIPSTOP_PORTALS_MODE`: `offload` or `generic`.
    pub(super) mode: SoftNicMode,
    /// `RIPSTOP_PORTALS_NID`, or the IPv4 address on a UDP network.
    pub(super) nid: u32,
    /// `RIPSTOP_PORTALS_LIMITS`: upper limits of an interface, as `name=number,name=number`.
    pub(super) ceiling: NiLimits,
    /// `RIPSTOP_PORTALS_TRANSPORT`, `.._HOST`, `.._FAULTS`, `.._RATE` and `.._CUT`.
    pub(super) wires: SoftTransportConfig,
    /// `RIPSTOP_PORTALS_FLOW`: true if flow control counts events too, not only entries and headers.
    pub(super) counts_events: bool,
    /// `RIPSTOP_PORTALS_HABITS`: optional behaviors of other libraries.
    pub(super) habits: LibraryHabits,
    /// Largest process id of the transport.
    pub(super) pid_max: u32,
    /// `RIPSTOP_PORTALS_REUSE`: true if opening an open interface again returns the same one.
    pub(super) reuse: bool,
    /// `RIPSTOP_PORTALS_CORE`: the only processor that works for the interface.
    pub(super) core: Option<usize>,
}

impl SoftRailSettings {
    /// Gives these habits to all interfaces opened later, regardless of the environment. Returns false if a name is unknown.
    pub(super) fn adopt(habits: &str) -> bool {
        let habits = LibraryHabits::parse(habits);
        let mut adopted = ADOPTED.lock().unwrap_or_else(PoisonError::into_inner);
        *adopted = habits.or(*adopted);
        habits.is_some()
    }

    /// Reads the settings of a rail.
    ///
    /// # Errors
    /// `ArgInvalid` for an invalid value. A message on standard error names the variable, because a code cannot.
    pub(super) fn read(rail: u32) -> Result<Self, SoftError> {
        let adopted = *ADOPTED.lock().unwrap_or_else(PoisonError::into_inner);
        let read = Self::from(rail, |name| env::var(name).ok());
        let read = read.map(|settings| Self {
            habits: adopted.unwrap_or(settings.habits),
            ..settings
        });
        read.map_err(|(name, value, wanted)| {
            // Writing to standard error may fail, and there is no other place to report that.
            let _told = writeln!(
                std::io::stderr(),
                "libportals: {name}={value}: expected {wanted}"
            );
            SoftError::ArgInvalid(name)
        })
    }

    fn from(
        rail: u32,
        value: impl Fn(&'static str) -> Option<String>,
    ) -> Result<Self, SoftSettingError> {
        let look = |name| SettingVariable::of(name, &value);
        let medium = medium(rail, look("RIPSTOP_PORTALS_TRANSPORT"), &value)?;
        let (nid, pid_max) = match &medium {
            MediumKind::Udp { host, .. } => (u32::from(*host), PID_MAX),
            MediumKind::Shared => {
                let nid = parse(look("RIPSTOP_PORTALS_NID"), "a node's number")?;
                (nid.unwrap_or(1), u32::MAX)
            }
        };
        let mode = choice(
            look("RIPSTOP_PORTALS_MODE"),
            "offload or generic",
            &[
                ("offload", SoftNicMode::Offload),
                ("generic", SoftNicMode::Generic),
            ],
        )?;
        let most = NiLimits {
            // The data of volatile puts must fit into the packet of the header.
            max_volatile_size: mode
                .inline_max()
                .map_or(NiLimits::MOST.max_volatile_size, |most| most as u64),
            ..NiLimits::MOST
        };
        Ok(Self {
            network: value("RIPSTOP_PORTALS_NETWORK").unwrap_or_else(|| "default".to_owned()),
            mode,
            nid,
            ceiling: read(
                look("RIPSTOP_PORTALS_LIMITS"),
                "name=number,name=number with names of ptl_ni_limits_t, or max_eq_size",
                |text| most.lowered(text),
            )?
            .unwrap_or(most),
            wires: SoftTransportConfig {
                medium,
                rate: of_rail(rail, look("RIPSTOP_PORTALS_RATE"), "bytes per second")?,
                cut_after: of_rail(rail, look("RIPSTOP_PORTALS_CUT"), CUT)?
                    .filter(|bytes| *bytes > 0),
            },
            counts_events: choice(
                look("RIPSTOP_PORTALS_FLOW"),
                "events or entries",
                &[("events", true), ("entries", false)],
            )?,
            habits: read(look("RIPSTOP_PORTALS_HABITS"), HABITS, LibraryHabits::parse)?
                .unwrap_or_default(),
            pid_max,
            reuse: choice(
                look("RIPSTOP_PORTALS_REUSE"),
                "1 or 0",
                &[("1", true), ("0", false)],
            )?,
            core: read(
                look("RIPSTOP_PORTALS_CORE"),
                "the number of a processor, from 0 to 1023",
                |text| text.trim().parse().ok().filter(|core| *core < CORES_MAX),
            )?,
        })
    }
}

/// Habits requested by a call of the program.
static ADOPTED: Mutex<Option<LibraryHabits>> = Mutex::new(None);

/// Size of a processor set.
const CORES_MAX: usize = 1024;
const HABITS: &str = "ends-never, incoherent, polled-only, short-failures, send-alone, or several with commas between";
const CUT: &str = "bytes, or 0 for never, or one for each rail";

/// A variable, its value, and the expected form.
type SoftSettingError = (&'static str, String, &'static str);

/// A variable of the environment.
struct SettingVariable {
    name: &'static str,
    value: Option<String>,
}

impl SettingVariable {
    fn of(name: &'static str, value: impl Fn(&'static str) -> Option<String>) -> Self {
        Self {
            name,
            value: value(name),
        }
    }
}

fn medium(
    rail: u32,
    transport: SettingVariable,
    value: &impl Fn(&'static str) -> Option<String>,
) -> Result<MediumKind, SoftSettingError> {
    let faults = read(
        SettingVariable::of("RIPSTOP_PORTALS_FAULTS", value),
        "drop=, duplicate=, reorder=, exhaust= with chances below 1, delay_us= and seed=, with commas between",
        DatagramFaults::parse,
    )?;
    // Faults apply to datagrams only, so setting them selects UDP.
    let usual = if faults.is_some() { "udp" } else { "shared" };
    let named = SettingVariable {
        value: transport.value.or_else(|| Some(usual.to_owned())),
        ..transport
    };
    if !choice(named, "shared or udp", &[("shared", false), ("udp", true)])? {
        return Ok(MediumKind::Shared);
    }
    let host = SettingVariable::of("RIPSTOP_PORTALS_HOST", value);
    let host = of_rail(
        rail,
        host,
        "an IPv4 address of this machine, or one for each rail",
    )?;
    Ok(MediumKind::Udp {
        host: host.unwrap_or(Ipv4Addr::LOCALHOST),
        faults: faults.unwrap_or_default(),
    })
}

fn read<T>(
    variable: SettingVariable,
    wanted: &'static str,
    meaning: impl FnOnce(&str) -> Option<T>,
) -> Result<Option<T>, SoftSettingError> {
    let SettingVariable { name, value } = variable;
    let Some(value) = value else { return Ok(None) };
    match meaning(&value) {
        Some(meaning) => Ok(Some(meaning)),
        None => Err((name, value, wanted)),
    }
}

fn parse<T: FromStr>(
    variable: SettingVariable,
    wanted: &'static str,
) -> Result<Option<T>, SoftSettingError> {
    read(variable, wanted, |text| text.trim().parse().ok())
}

/// Parses one value for all rails, or a comma-separated list with one per rail. The last one applies to all further rails.
fn of_rail<T: FromStr>(
    rail: u32,
    variable: SettingVariable,
    wanted: &'static str,
) -> Result<Option<T>, SoftSettingError> {
    read(variable, wanted, |text| {
        let own = text.split(',').take(rail as usize + 1).last();
        own?.trim().parse().ok()
    })
}

/// Parses one of these words. Without a value, the first one applies.
fn choice<T: Copy>(
    variable: SettingVariable,
    wanted: &'static str,
    words: &[(&str, T)],
) -> Result<T, SoftSettingError> {
    let chosen = read(variable, wanted, |text| {
        let found = words.iter().find(|(word, _)| *word == text.trim());
        found.map(|(_, meaning)| *meaning)
    })?;
    Ok(chosen.unwrap_or(words[0].1))
}

#[cfg(test)]
mod tests {
    use super::{Ipv4Addr, MediumKind, SoftNicMode, SoftRailSettings, SoftSettingError};

    fn from(rail: u32, said: &[(&str, &str)]) -> Result<SoftRailSettings, SoftSettingError> {
        SoftRailSettings::from(rail, |name| {
            let found = said.iter().find(|(one, _)| *one == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn nothing_said_is_shared_memory_and_offload() {
        let settings = from(0, &[]).expect("right");
        assert!(matches!(settings.wires.medium, MediumKind::Shared));
        assert_eq!(
            (settings.mode, settings.nid, settings.reuse, settings.core),
            (SoftNicMode::Offload, 1, true, None)
        );
    }

    #[test]
    fn a_host_that_is_interrupted_takes_little_with_a_header() {
        let most = |said: &[_]| from(0, said).expect("right").ceiling.max_volatile_size;
        let generic = ("RIPSTOP_PORTALS_MODE", "generic");
        assert_eq!(most(&[]), super::NiLimits::MOST.max_volatile_size);
        let inline = SoftNicMode::Generic.inline_max().expect("little");
        assert_eq!(most(&[generic]), inline as u64);
        let lower = ("RIPSTOP_PORTALS_LIMITS", "max_volatile_size=8");
        assert_eq!(most(&[generic, lower]), 8);
    }

    #[test]
    fn rails_have_their_own_addresses_and_rates() {
        let said = [
            ("RIPSTOP_PORTALS_TRANSPORT", "udp"),
            ("RIPSTOP_PORTALS_HOST", "10.0.0.1, 10.0.1.1"),
            ("RIPSTOP_PORTALS_RATE", "1000"),
            ("RIPSTOP_PORTALS_CUT", "0,5000"),
        ];
        for (rail, host) in [(0, [10, 0, 0, 1]), (1, [10, 0, 1, 1]), (3, [10, 0, 1, 1])] {
            let settings = from(rail, &said).expect("right");
            assert_eq!(settings.nid, u32::from(Ipv4Addr::from(host)));
            assert_eq!(settings.wires.rate, Some(1000));
            let cut = [None, Some(5_000)][usize::from(rail > 0)];
            assert_eq!(settings.wires.cut_after, cut);
        }
    }

    #[test]
    fn faults_go_over_datagrams() {
        let settings = from(0, &[("RIPSTOP_PORTALS_FAULTS", "drop=0.1,seed=4")]).expect("right");
        match settings.wires.medium {
            MediumKind::Udp { host, faults } => {
                assert_eq!((host, faults.seed), (Ipv4Addr::LOCALHOST, 4));
            }
            MediumKind::Shared => panic!("nothing is lost there"),
        }
    }

    #[test]
    fn a_wrong_value_is_named() {
        for (name, value) in [
            ("RIPSTOP_PORTALS_MODE", "fast"),
            ("RIPSTOP_PORTALS_NID", "one"),
            ("RIPSTOP_PORTALS_LIMITS", "max_things=3"),
            ("RIPSTOP_PORTALS_TRANSPORT", "tcp"),
            ("RIPSTOP_PORTALS_FAULTS", "drop=2"),
            ("RIPSTOP_PORTALS_RATE", "fast"),
            ("RIPSTOP_PORTALS_CUT", "soon"),
            ("RIPSTOP_PORTALS_FLOW", "none"),
            ("RIPSTOP_PORTALS_HABITS", "ends"),
            ("RIPSTOP_PORTALS_REUSE", "yes"),
            ("RIPSTOP_PORTALS_CORE", "1024"),
        ] {
            let (named, said, wanted) = from(0, &[(name, value)]).expect_err("wrong");
            assert_eq!((named, &said[..]), (name, value));
            assert!(!wanted.is_empty());
        }
    }
}
