//! The files in which the kernel tells what a machine has: `/proc`, `/sys` and some below `/etc`.

use std::{fs, str::FromStr};

/// Files by their absolute paths. Tests make some up.
pub(crate) trait SystemFiles {
    /// Returns the content of a file without the space around it. A file that cannot be read counts as missing.
    fn text(&self, path: &str) -> Option<String>;

    /// Returns the names in a directory in ascending order; none if it is missing.
    fn names(&self, directory: &str) -> Vec<String>;
}

/// The files of this machine, as this process sees them.
#[derive(Debug)]
pub(crate) struct MachineFiles;

impl SystemFiles for MachineFiles {
    fn text(&self, path: &str) -> Option<String> {
        let bytes = fs::read(path).ok()?;
        Some(String::from_utf8_lossy(&bytes).trim().to_owned())
    }

    fn names(&self, directory: &str) -> Vec<String> {
        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        let mut names: Vec<String> = entries
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect();
        names.sort();
        names
    }
}

/// Returns the number that a file consists of.
pub(crate) fn number<T: FromStr>(files: &dyn SystemFiles, path: &str) -> Option<T> {
    files.text(path)?.parse().ok()
}

/// Returns the processors that this process may use, in ascending order.
pub(crate) fn allowed_processors(files: &dyn SystemFiles) -> Vec<u32> {
    let status = files.text("/proc/self/status").unwrap_or_default();
    let mut lines = status.lines();
    let list = lines.find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    list.map_or_else(Vec::new, listed_numbers)
}

/// Returns the numbers of a list as the kernel writes it, such as `0-3,8`. Other text gives those before the first fault.
pub(crate) fn listed_numbers(list: &str) -> Vec<u32> {
    let mut numbers = Vec::new();
    for part in list.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (Ok(first), Ok(last)) = (first.parse::<u32>(), last.parse::<u32>()) else {
            break;
        };
        numbers.extend((first..=last).take(LIST_MAX));
    }
    numbers
}

/// Returns a list of ascending numbers as the kernel writes it.
pub(crate) fn number_list(numbers: &[u32]) -> String {
    let runs = numbers.chunk_by(|one, next| one.checked_add(1) == Some(*next));
    let texts = runs.map(|run| match run {
        [first, .., last] => format!("{first}-{last}"),
        [one] => one.to_string(),
        [] => String::new(),
    });
    texts.collect::<Vec<_>>().join(",")
}

/// More processors than any machine has, so that a bad list takes no memory.
const LIST_MAX: usize = 1 << 16;

/// Made-up files.
#[cfg(test)]
pub(crate) mod made_up {
    use std::collections::{BTreeMap, BTreeSet};

    use super::SystemFiles;

    #[derive(Debug, Default)]
    pub(crate) struct MadeUpFiles(BTreeMap<String, String>);

    impl MadeUpFiles {
        pub(crate) fn new(files: &[(&str, &str)]) -> Self {
            Self::default().with(files)
        }

        pub(crate) fn with(mut self, files: &[(&str, &str)]) -> Self {
            let owned = |(path, text): &(&str, &str)| ((*path).to_owned(), (*text).to_owned());
            self.0.extend(files.iter().map(owned));
            self
        }
    }

    impl SystemFiles for MadeUpFiles {
        fn text(&self, path: &str) -> Option<String> {
            self.0.get(path).cloned()
        }

        fn names(&self, directory: &str) -> Vec<String> {
            let below = format!("{directory}/");
            let rests = self.0.keys().filter_map(|path| path.strip_prefix(&below));
            let first = |rest: &str| rest.split('/').next().unwrap_or(rest).to_owned();
            let names: BTreeSet<String> = rests.map(first).collect();
            names.into_iter().collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{listed_numbers, number_list};

    #[test]
    fn lists_of_numbers_are_read_and_written_as_the_kernel_does() {
        for (text, numbers) in [
            ("0-3,8", vec![0, 1, 2, 3, 8]),
            ("5", vec![5]),
            ("", vec![]),
            ("0-1,6-7,9", vec![0, 1, 6, 7, 9]),
            ("4294967295,5", vec![u32::MAX, 5]),
        ] {
            assert_eq!(listed_numbers(text), numbers, "{text}");
            assert_eq!(number_list(&numbers), text);
        }
        assert_eq!(listed_numbers("1,x,3"), [1]);
        assert_eq!(listed_numbers("0-4294967295").len(), 1 << 16);
    }
}
