//! Reads faults from a line: `drop=0.3,kill=3@2ms`.

use std::{collections::BTreeMap, str::FromStr};

use super::{ConfigError, FaultRule, Faults, text::FaultDraft};

impl FromStr for Faults {
    type Err = ConfigError;

    fn from_str(line: &str) -> Result<Self, ConfigError> {
        let items = line
            .split(',')
            .map(str::trim)
            .filter(|item| !item.is_empty());
        let list: Result<_, _> = items.map(parse_fault).collect();
        Ok(Self { list: list? })
    }
}

fn parse_fault(item: &str) -> Result<FaultRule, ConfigError> {
    let (name, value) = item.split_once('=').ok_or_else(|| {
        ConfigError::new(
            "faults",
            format!("{item:?} has no value: write for example drop=0.3"),
        )
    })?;
    let (name, mut value) = (name.trim(), value.trim().to_owned());
    let mut fields = BTreeMap::new();
    if name == "slow-rail" {
        // The factor comes last, after the time.
        take_tail(&mut value, '/', "factor", &mut fields);
    }
    if take_tail(&mut value, '@', "at", &mut fields)
        && let Some((at, lasting)) = fields["at"].clone().split_once('+')
    {
        fields.insert("at".to_owned(), at.to_owned());
        fields.insert("for".to_owned(), lasting.to_owned());
    }
    for (field, text) in name_value(name, &value) {
        fields.insert(field.to_owned(), text.to_owned());
    }
    FaultDraft::new(format!("faults.{name}"), fields).build(name)
}

/// Returns the fields that the main value of a fault stands for.
fn name_value<'a>(name: &str, value: &'a str) -> Vec<(&'static str, &'a str)> {
    match name {
        "reorder" => vec![("window", value)],
        "slots" => vec![("slots", value)],
        "pause" | "kill" => vec![("rank", value)],
        "kill-rail" | "slow-rail" => vec![("rail", value)],
        "partition" => {
            let (from, to) = value.split_once('|').unwrap_or((value, ""));
            vec![("from", from), ("to", to)]
        }
        "delay" => match value.split_once(':') {
            Some((hits, by)) => vec![hits_field(hits), ("by", by)],
            None => vec![("by", value)],
        },
        _ => vec![hits_field(value)],
    }
}

/// Returns the name and the value of the field that `0.3` or `#7` sets.
fn hits_field(text: &str) -> (&'static str, &str) {
    match text.strip_prefix('#') {
        Some(nth) => ("nth", nth),
        None => ("chance", text),
    }
}

/// Cuts off the text after `mark`, and adds it to the fields. Returns false if there is no `mark`.
fn take_tail(
    value: &mut String,
    mark: char,
    name: &str,
    fields: &mut BTreeMap<String, String>,
) -> bool {
    let Some((head, tail)) = value.split_once(mark) else {
        return false;
    };
    fields.insert(name.to_owned(), tail.to_owned());
    *value = head.to_owned();
    true
}
