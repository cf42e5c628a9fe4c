//! Parses and prints the values of settings. All functions return `None` for values that are not allowed.

use std::{ops::RangeInclusive, str::FromStr};

/// Returns the value itself, because any text is allowed.
#[must_use]
pub fn text(value: &str) -> Option<String> {
    Some(value.to_owned())
}

/// Returns the value if it is one of the words of a range like `on | off`.
#[must_use]
pub fn one_of(words: &str, value: &str) -> Option<String> {
    words
        .split(" | ")
        .any(|word| word == value)
        .then(|| value.to_owned())
}

/// Returns a number if it is within a range.
#[must_use]
pub fn within<T: FromStr + PartialOrd>(range: RangeInclusive<T>, value: &str) -> Option<T> {
    value.parse().ok().filter(|number| range.contains(number))
}

/// Returns `Some(None)` for `auto`; `read` parses all other values.
#[must_use]
pub fn or_auto<T>(value: &str, read: impl Fn(&str) -> Option<T>) -> Option<Option<T>> {
    if value == "auto" {
        Some(None)
    } else {
        read(value).map(Some)
    }
}

/// Returns the text of a value, which is `auto` if there is none.
pub fn auto_or<T>(value: &Option<T>, print: impl Fn(&T) -> String) -> String {
    value.as_ref().map_or_else(|| "auto".to_owned(), print)
}
