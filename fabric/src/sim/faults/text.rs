//! Builds faults from named fields, for files and for lines.

use std::{collections::BTreeMap, ops::RangeInclusive};

use super::{
    ConfigError, FaultHits, FaultKind, FaultRule, FaultScope, FaultTiming, Probability, RankRanges,
};

/// A fault as it was written: names and values, all as text.
#[derive(Debug)]
pub(super) struct FaultDraft {
    /// Prefix of field names in errors, such as `faults.drop`.
    place: String,
    fields: BTreeMap<String, String>,
    /// Names of the fields that this kind of fault has.
    known: Vec<&'static str>,
}

impl FaultDraft {
    pub(super) fn new(place: impl Into<String>, fields: BTreeMap<String, String>) -> Self {
        Self {
            place: place.into(),
            fields,
            known: Vec::new(),
        }
    }

    /// Builds the fault of this name.
    pub(super) fn build(mut self, name: &str) -> Result<FaultRule, ConfigError> {
        let fault = match name {
            "drop" => self.packets(FaultKind::Drop),
            "dup" | "duplicate" => self.packets(FaultKind::Duplicate),
            "corrupt" => self.packets(FaultKind::Corrupt),
            "reorder" => {
                let window = self.required("window", count)?;
                self.packets(FaultKind::Reorder(window))
            }
            "delay" => {
                let by = self.required("by", time)?;
                self.packets(FaultKind::Delay(by))
            }
            "partition" => self.partition(),
            "pause" => self.pause(),
            "kill" => self.host(FaultKind::KillRank, false),
            "kill-rail" => self.rail(FaultKind::KillRail),
            "slow-rail" => {
                let factor = self.required("factor", positive)?;
                self.rail(FaultKind::SlowRail(factor))
            }
            "slots" => {
                let slots = self.required("slots", positive)?;
                let when = self.when(true)?;
                let rank = self.optional("rank", count)?;
                let scope = FaultScope {
                    rank,
                    ..FaultScope::default()
                };
                fault(FaultKind::Slots(slots), when, scope)
            }
            other => Err(self.wrong(
                "what",
                format!("{other:?} is not a fault: the faults are {NAMES}"),
            )),
        }?;
        self.finish()?;
        Ok(fault)
    }

    /// Builds a fault of packets: with a probability, of one packet, or of all.
    fn packets(&mut self, what: FaultKind) -> Result<FaultRule, ConfigError> {
        let mut when = self.when(true)?;
        let chance = self.optional("chance", probability)?;
        let nth = self.optional("nth", number)?;
        when.hits = match (chance, nth) {
            (Some(_), Some(_)) => {
                return Err(self.wrong("nth", "given beside `chance`: give one of them"));
            }
            (Some(chance), None) => FaultHits::Chance(chance),
            (None, Some(nth)) => FaultHits::Nth(nth),
            (None, None) => FaultHits::Every,
        };
        let scope = FaultScope {
            from: self.optional("from", ranks)?.unwrap_or_default(),
            to: self.optional("to", ranks)?.unwrap_or_default(),
            rail: self.optional("rail", count)?,
            rank: None,
        };
        fault(what, when, scope)
    }

    fn partition(&mut self) -> Result<FaultRule, ConfigError> {
        let from = self.required("from", ranks)?;
        let to = self.required("to", ranks)?;
        let when = self.when(true)?;
        let scope = FaultScope {
            from,
            to,
            ..FaultScope::default()
        };
        fault(FaultKind::Partition, when, scope)
    }

    fn pause(&mut self) -> Result<FaultRule, ConfigError> {
        if !self.fields.contains_key("for") {
            return Err(self.wrong("for", "missing: give the time that the rank pauses"));
        }
        self.host(FaultKind::Pause, true)
    }

    fn host(&mut self, what: FaultKind, lasts: bool) -> Result<FaultRule, ConfigError> {
        let rank = Some(self.required("rank", count)?);
        let when = self.when(lasts)?;
        let scope = FaultScope {
            rank,
            ..FaultScope::default()
        };
        fault(what, when, scope)
    }

    fn rail(&mut self, what: FaultKind) -> Result<FaultRule, ConfigError> {
        let rail = Some(self.required("rail", count)?);
        let when = self.when(true)?;
        let scope = FaultScope {
            rail,
            ..FaultScope::default()
        };
        fault(what, when, scope)
    }

    fn when(&mut self, lasts: bool) -> Result<FaultTiming, ConfigError> {
        let at = self.optional("at", time)?.unwrap_or(0);
        let lasting = if lasts {
            self.optional("for", time)?
        } else {
            None
        };
        Ok(FaultTiming {
            at,
            lasting: lasting.unwrap_or(u64::MAX),
            hits: FaultHits::Every,
        })
    }

    fn required<T>(&mut self, name: &'static str, parse: ValueParser<T>) -> Result<T, ConfigError> {
        self.optional(name, parse)?
            .ok_or_else(|| self.wrong(name, "missing"))
    }

    fn optional<T>(
        &mut self,
        name: &'static str,
        parse: ValueParser<T>,
    ) -> Result<Option<T>, ConfigError> {
        self.known.push(name);
        let Some(text) = self.fields.remove(name) else {
            return Ok(None);
        };
        parse(text.trim())
            .map(Some)
            .map_err(|allowed| self.wrong(name, format!("{text:?} is wrong: give {allowed}")))
    }

    /// Returns an error if there is a field that this fault does not have.
    fn finish(self) -> Result<(), ConfigError> {
        match self.fields.keys().next() {
            None => Ok(()),
            Some(name) => {
                let known = self.known.join(", ");
                Err(self.wrong(
                    name,
                    format!("is not a field of this fault: its fields are {known}"),
                ))
            }
        }
    }

    fn wrong(&self, name: &str, why: impl Into<String>) -> ConfigError {
        ConfigError::new(format!("{}.{name}", self.place), why)
    }
}

/// Parses a word. The error says what it should be.
type ValueParser<T> = fn(&str) -> Result<T, &'static str>;

fn fault(what: FaultKind, when: FaultTiming, scope: FaultScope) -> Result<FaultRule, ConfigError> {
    Ok(FaultRule {
        kind: what,
        timing: when,
        scope,
    })
}

fn count(text: &str) -> Result<u32, &'static str> {
    text.parse().map_err(|_| "a number from 0")
}

fn positive(text: &str) -> Result<u32, &'static str> {
    let number = text.parse().ok().filter(|number| *number > 0);
    number.ok_or("a number from 1")
}

fn number(text: &str) -> Result<u64, &'static str> {
    text.parse().map_err(|_| "a number from 0")
}

fn probability(text: &str) -> Result<Probability, &'static str> {
    let number = text.parse().ok().and_then(Probability::new);
    number.ok_or("a probability from 0 to 1")
}

/// Parses a time such as `1.5us` to picoseconds.
fn time(text: &str) -> Result<u64, &'static str> {
    parse_time(text).ok_or("a time with its unit: ps, ns, us, ms or s")
}

fn parse_time(text: &str) -> Option<u64> {
    let unit_at = text.find(|c: char| c.is_ascii_alphabetic())?;
    let (number, unit) = text.split_at(unit_at);
    let scale = match unit {
        "ps" => 1,
        "ns" => 1000,
        "us" => 1_000_000,
        "ms" => 1_000_000_000,
        "s" => 1_000_000_000_000_u64,
        _ => return None,
    };
    let number = number.trim();
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(part) || part.len() > 12 {
        return None;
    }
    let tenths = 10_u64.pow(u32::try_from(part.len()).ok()?);
    let part: u64 = if part.is_empty() {
        0
    } else {
        part.parse().ok()?
    };
    let part = u128::from(part) * u128::from(scale) / u128::from(tenths);
    let whole: u64 = whole.parse().ok()?;
    whole
        .checked_mul(scale)?
        .checked_add(u64::try_from(part).ok()?)
}

/// Parses ranks such as `0-3, 6`.
fn ranks(text: &str) -> Result<RankRanges, &'static str> {
    let ranges: Option<Vec<_>> = text
        .split(',')
        .map(|range| parse_range(range.trim()))
        .collect();
    ranges.map(RankRanges).ok_or("ranks as in 0-3, 6")
}

fn parse_range(text: &str) -> Option<RangeInclusive<u32>> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
    (first <= last).then_some(first..=last)
}

const NAMES: &str =
    "drop, dup, corrupt, reorder, delay, partition, pause, kill, kill-rail, slow-rail and slots";
