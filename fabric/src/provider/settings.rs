//! Settings that drivers bring, and their values.

use std::collections::BTreeMap;

/// A setting of a driver.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::exhaustive_structs, reason = "written out by drivers")]
pub struct DriverSetting {
    /// Name of the environment variable.
    pub name: &'static str,
    /// Allowed values, as shown to users.
    pub range: &'static str,
    /// Meaning, as shown to users.
    pub meaning: &'static str,
    /// Value if none is set. It is one of the allowed values.
    pub default: &'static str,
    /// Returns the text of an allowed value as it is shown to users, or `None` for other values.
    pub accepts: fn(&str) -> Option<String>,
}

/// Values of the drivers' settings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DriverValues {
    set: BTreeMap<&'static str, String>,
}

impl DriverValues {
    /// Sets a value. Returns `None` if the setting does not accept it.
    pub fn set(&mut self, setting: &DriverSetting, value: &str) -> Option<()> {
        let text = (setting.accepts)(value)?;
        self.set.insert(setting.name, text);
        Some(())
    }

    /// Returns true if a value was set, be it the default.
    #[must_use]
    pub fn is_set(&self, setting: &DriverSetting) -> bool {
        self.set.contains_key(setting.name)
    }

    /// Returns the value of a setting, or its default.
    #[must_use]
    pub fn get(&self, setting: &DriverSetting) -> &str {
        self.set
            .get(setting.name)
            .map_or(setting.default, String::as_str)
    }

    /// Returns the value of a setting as its driver parses it.
    ///
    /// # Panics
    /// Panics if `parse` refuses a value that the setting accepts.
    #[must_use]
    pub fn read<T>(&self, setting: &DriverSetting, parse: impl FnOnce(&str) -> Option<T>) -> T {
        let value = self.get(setting);
        parse(value).unwrap_or_else(|| panic!("{} accepts {value}", setting.name))
    }
}
