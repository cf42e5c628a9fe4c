//! Reads faults from a file of `[[fault]]` tables.

use std::collections::BTreeMap;

use toml::de::{DeTable, DeValue};

use super::{ConfigError, FaultRule, Faults, text::FaultDraft};

pub(super) fn parse(text: &str) -> Result<Faults, ConfigError> {
    let table = DeTable::parse(text).map_err(|why| ConfigError::new("faults", why.message()))?;
    let table = table.get_ref();
    if let Some(key) = table.keys().find(|key| key.get_ref() != "fault") {
        let why = "is not allowed here: write [[fault]] tables";
        return Err(ConfigError::new(key.get_ref().clone(), why));
    }
    let Some(faults) = table.get("fault") else {
        return Ok(Faults::default());
    };
    let tables = faults.get_ref().as_array();
    let tables = tables.ok_or_else(|| ConfigError::new("fault", "write [[fault]]"))?;
    let list: Result<_, _> = (0..)
        .zip(tables.iter())
        .map(|(number, table)| parse_fault(number, table.get_ref()))
        .collect();
    Ok(Faults { list: list? })
}

fn parse_fault(number: usize, value: &DeValue<'_>) -> Result<FaultRule, ConfigError> {
    let place = format!("fault[{number}]");
    let table = value.as_table();
    let table = table.ok_or_else(|| ConfigError::new(place.clone(), "must be a table"))?;
    let mut fields = BTreeMap::new();
    for (name, value) in table {
        let name = name.get_ref().to_string();
        let text = text_of(value.get_ref()).ok_or_else(|| {
            let kind = value.get_ref().type_str();
            ConfigError::new(
                format!("{place}.{name}"),
                format!("a value of type {kind} is not allowed here"),
            )
        })?;
        fields.insert(name, text);
    }
    let what = fields.remove("what").ok_or_else(|| {
        ConfigError::new(format!("{place}.what"), "missing: name the kind of fault")
    })?;
    FaultDraft::new(place, fields).build(&what)
}

/// Returns a number or a word as text, and a list as text with commas.
fn text_of(value: &DeValue<'_>) -> Option<String> {
    match value {
        DeValue::String(text) => Some(text.to_string()),
        DeValue::Integer(number) if number.radix() == 10 => Some(number.as_str().to_owned()),
        DeValue::Float(number) => Some(number.as_str().to_owned()),
        DeValue::Array(items) => {
            let items: Option<Vec<_>> = items.iter().map(|item| text_of(item.get_ref())).collect();
            items.map(|items| items.join(", "))
        }
        _ => None,
    }
}
