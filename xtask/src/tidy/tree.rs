//! The text files of the workspace.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

/// Every text file by its path from the root, with `/` between the parts.
pub(super) struct SourceTree {
    files: BTreeMap<String, String>,
}

impl SourceTree {
    pub(super) fn read(root: &Path) -> Result<Self, String> {
        let mut tree = Self {
            files: BTreeMap::new(),
        };
        tree.walk(root, "")
            .map_err(|why| format!("reading the workspace: {why}"))?;
        Ok(tree)
    }

    /// Returns the path and text of every file.
    pub(super) fn all(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files
            .iter()
            .map(|(path, text)| (path.as_str(), text.as_str()))
    }

    /// Returns the files whose names end with `end`.
    pub(super) fn with_suffix<'a>(
        &'a self,
        end: &'a str,
    ) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.all().filter(move |(path, _)| path.ends_with(end))
    }

    pub(super) fn get(&self, path: &str) -> Option<&str> {
        self.files.get(path).map(String::as_str)
    }

    fn walk(&mut self, root: &Path, folder: &str) -> io::Result<()> {
        let mut entries: Vec<PathBuf> = Vec::new();
        for entry in fs::read_dir(root.join(folder))? {
            entries.push(entry?.path());
        }
        for entry in entries {
            let Some(name) = entry.file_name().and_then(|name| name.to_str()) else {
                continue;
            };
            let path = if folder.is_empty() {
                name.to_owned()
            } else {
                format!("{folder}/{name}")
            };
            if entry.is_symlink() || SKIPPED.contains(&name) {
                continue;
            } else if entry.is_dir() {
                self.walk(root, &path)?;
            } else if let Ok(text) = String::from_utf8(fs::read(&entry)?) {
                self.files.insert(path, text);
            }
        }
        Ok(())
    }

    #[cfg(test)]
    pub(super) fn of(files: &[(&str, &str)]) -> Self {
        let owned = files
            .iter()
            .map(|(path, text)| (path.to_string(), text.to_string()));
        Self {
            files: owned.collect(),
        }
    }
}

/// Folders that are built or generated.
const SKIPPED: [&str; 3] = [".git", "target", "Cargo.lock"];
