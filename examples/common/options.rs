//! The arguments of a program. Its help is the table of them, so that none is missing there.
//!
//! A line of the help that begins with two spaces and a name, such as `  --json   one line`, declares an argument. The name of
//! an argument with a value is followed by one space and a word for the value, such as `  --steps S   time steps`.

use std::ops::RangeInclusive;

/// The arguments that a user gave, in their order.
#[derive(Debug)]
pub(crate) struct GivenArguments {
    help: &'static str,
    /// Names, each with its value; flags have empty ones.
    given: Vec<(String, String)>,
}

impl GivenArguments {
    /// Sorts the arguments into names and values; `None` asks for help.
    ///
    /// # Errors
    /// A sentence that names an argument that is not in the help, or one without its value.
    pub(crate) fn sort(
        help: &'static str,
        args: impl IntoIterator<Item = String>,
    ) -> Result<Option<Self>, String> {
        let mut given = Vec::new();
        let mut args = args.into_iter().peekable();
        while let Some(name) = args.next() {
            if ["--help", "-h"].contains(&name.as_str()) {
                return Ok(None);
            }
            let known = declared(help).find(|(known, _)| *known == name);
            let (_, value) = known.ok_or_else(|| {
                let meant = nearest(&name, declared(help).map(|(known, _)| known));
                meant.map_or_else(
                    || format!("there is no argument {name}; see --help"),
                    |meant| {
                        format!("there is no argument {name}: did you mean {meant}? See --help")
                    },
                )
            })?;
            let text = match value {
                Some(value) => args
                    .next_if(|next| !next.starts_with("--"))
                    .ok_or_else(|| format!("{name} needs a value, {name} {value}; see --help"))?,
                None => String::new(),
            };
            given.push((name, text));
        }
        Ok(Some(Self { help, given }))
    }

    /// Returns the argument that was given last of these, with its value.
    pub(crate) fn last(&self, names: &[&str]) -> Option<(&str, &str)> {
        let is_known = |name: &&str| declared(self.help).any(|(known, _)| known == *name);
        debug_assert!(names.iter().all(is_known), "{names:?} in the help");
        let found = self
            .given
            .iter()
            .rfind(|(name, _)| names.contains(&&**name));
        found.map(|(name, text)| (&**name, &**text))
    }

    /// Returns true if this flag was given.
    pub(crate) fn has(&self, flag: &str) -> bool {
        self.last(&[flag]).is_some()
    }

    /// Returns the value of an argument if it was given.
    ///
    /// # Errors
    /// A sentence that names the argument and its value, and says which values are allowed.
    pub(crate) fn read<V>(
        &self,
        name: &str,
        allowed: impl AllowedValues<V>,
    ) -> Result<Option<V>, String> {
        let Some((_, text)) = self.last(&[name]) else {
            return Ok(None);
        };
        let value = allowed.read(text);
        value.map(Some).ok_or_else(|| {
            let advice = allowed.advice(text);
            format!("{name} {text}: {advice}")
        })
    }
}

/// The values that an argument can have.
pub(crate) trait AllowedValues<V> {
    /// Returns the value that a text stands for, if it is allowed.
    fn read(&self, text: &str) -> Option<V>;

    /// Returns what to give instead of this text.
    fn advice(&self, text: &str) -> String;
}

impl AllowedValues<usize> for RangeInclusive<usize> {
    fn read(&self, text: &str) -> Option<usize> {
        text.parse().ok().filter(|value| self.contains(value))
    }

    fn advice(&self, _: &str) -> String {
        match (self.start(), *self.end()) {
            (least, usize::MAX) => format!("give a whole number of at least {least}"),
            (least, most) => format!("give a whole number from {least} to {most}"),
        }
    }
}

impl AllowedValues<f64> for RangeInclusive<f64> {
    fn read(&self, text: &str) -> Option<f64> {
        text.parse().ok().filter(|value| self.contains(value))
    }

    fn advice(&self, _: &str) -> String {
        let (least, most) = (self.start(), self.end());
        format!("give a number from {least} to {most}, such as 0.5")
    }
}

/// Numbers with `x` between them.
impl<const N: usize> AllowedValues<[usize; N]> for RangeInclusive<usize> {
    fn read(&self, text: &str) -> Option<[usize; N]> {
        let numbers = text
            .split('x')
            .map(|part| AllowedValues::<usize>::read(self, part));
        numbers.collect::<Option<Vec<_>>>()?.try_into().ok()
    }

    fn advice(&self, _: &str) -> String {
        let least = self.start();
        match N {
            3 => format!(
                "give three whole numbers of at least {least} for x, y and z, such as 2x2x1"
            ),
            _ => format!("give two whole numbers of at least {least}, such as 2x3"),
        }
    }
}

/// Allows these names, each with the value that it stands for.
impl<V: Clone> AllowedValues<V> for &[(&str, V)] {
    fn read(&self, text: &str) -> Option<V> {
        let found = self.iter().find(|(name, _)| *name == text);
        found.map(|(_, value)| value.clone())
    }

    fn advice(&self, text: &str) -> String {
        let names: Vec<&str> = self.iter().map(|&(name, _)| name).collect();
        let (last, others) = names.split_last().expect("names to choose from");
        let meant = nearest(text, names.iter().copied());
        let meant = meant.map_or(String::new(), |meant| format!("; did you mean {meant}?"));
        format!("choose {} or {last}{meant}", others.join(", "))
    }
}

/// Returns the arguments that a help declares, each with its word for a value if it takes one.
fn declared(help: &str) -> impl Iterator<Item = (&str, Option<&str>)> {
    help.lines().filter_map(|line| {
        let line = line
            .strip_prefix("  ")
            .filter(|line| line.starts_with("--"))?;
        let (name, rest) = line.split_once(' ').unwrap_or((line, ""));
        let value = rest.split(' ').next().filter(|word| !word.is_empty());
        Some((name, value))
    })
}

/// Returns the name that a misspelled one most likely stands for.
fn nearest<'n>(text: &str, names: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    let candidates = names.map(|name| (edits(text, name), name));
    let candidates = candidates.filter(|&(edits, name)| edits <= 1 + usize::from(name.len() > 5));
    candidates.min().map(|(_, name)| name)
}

/// Returns how many letters have to be inserted, removed or replaced to make one text the other.
fn edits(from: &str, to: &str) -> usize {
    let mut row: Vec<usize> = (0..=to.chars().count()).collect();
    for (line, letter) in from.chars().enumerate() {
        let mut before = row[0];
        row[0] = line + 1;
        for (column, other) in to.chars().enumerate() {
            let replaced = before + usize::from(letter != other);
            before = row[column + 1];
            row[column + 1] = replaced.min(before + 1).min(row[column] + 1);
        }
    }
    row[row.len() - 1]
}
