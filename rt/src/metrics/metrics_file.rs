//! The file of a node's metrics.
//!
//! It is replaced as a whole by a rename, so a reader never sees a half of it. Its writer holds a lock on it. So a file without a
//! lock is one that a killed rank has left, whichever process or container it ran in.

use std::{
    fs::{self, File, Metadata, OpenOptions, Permissions},
    io::{self, Read, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

/// The first line, by which a file is known as one of these.
pub(super) const FIRST_LINE: &str =
    "# A rank of a Ripstop job writes this file, and holds a lock on it as long as it lives.\n";

/// All users may read the file, because node_exporter belongs to another user.
const MODE: u32 = 0o644;

/// End of the names of files with metrics.
pub(super) const FINISHED: &str = ".prom";

/// What the name of a file has behind that until its contents are whole.
const UNFINISHED: &str = ".tmp";

/// A file that exists as long as this value, from the first [`write`](Self::write) on.
#[derive(Debug)]
pub(super) struct MetricsFile {
    path: PathBuf,
    /// Name of the next contents until they are whole. The collector reads no file of such a name.
    unfinished: PathBuf,
    /// The present contents, open for their lock.
    locked: Option<File>,
}

impl MetricsFile {
    pub(super) fn new(path: PathBuf) -> Self {
        let mut unfinished = path.clone().into_os_string();
        unfinished.push(UNFINISHED);
        Self {
            path,
            unfinished: unfinished.into(),
            locked: None,
        }
    }

    /// Replaces the contents.
    pub(super) fn write(&mut self, text: &str) -> io::Result<()> {
        let written = self.write_unfinished(text).and_then(|file| {
            fs::rename(&self.unfinished, &self.path)?;
            Ok(file)
        });
        if written.is_err() {
            let _ = fs::remove_file(&self.unfinished);
        }
        self.locked = Some(written?);
        Ok(())
    }

    fn write_unfinished(&self, text: &str) -> io::Result<File> {
        // Nothing is written through a link that another user has left under this name.
        match fs::remove_file(&self.unfinished) {
            Err(fault) if fault.kind() != io::ErrorKind::NotFound => return Err(fault),
            _ => {}
        }
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(MODE);
        let mut file = options.open(&self.unfinished)?;
        file.set_permissions(Permissions::from_mode(MODE))?;
        // The lock comes before the first line, so a file with that line and without a lock has lost its writer. A file system
        // without locks keeps what killed ranks leave.
        let _ = file.try_lock();
        file.write_all(FIRST_LINE.as_bytes())?;
        file.write_all(text.as_bytes())?;
        Ok(file)
    }
}

impl Drop for MetricsFile {
    fn drop(&mut self) {
        if self.locked.is_some() {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Removes the files of ranks that were killed, also unfinished ones. A file that cannot be removed, such as one of another user,
/// stays, and so does one whose rank was killed before it had written the first line.
///
/// # Errors
/// The directory cannot be read.
pub(super) fn remove_abandoned(directory: &Path) -> io::Result<()> {
    for entry in fs::read_dir(directory)?.flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let whole = name.strip_suffix(UNFINISHED).unwrap_or(&name);
        let is_named = whole.starts_with("ripstop-") && whole.ends_with(FINISHED);
        if is_named && is_abandoned(&entry.path()) {
            let _ = fs::remove_file(entry.path());
        }
    }
    Ok(())
}

/// Returns true for a file of metrics whose writer does not live any more.
fn is_abandoned(path: &Path) -> bool {
    let mut options = OpenOptions::new();
    options.read(true);
    options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    let Ok(mut file) = options.open(path) else {
        return false;
    };
    let Ok(found) = file.metadata() else {
        return false;
    };
    let mut first = [0; FIRST_LINE.len()];
    found.is_file()
        && file.read_exact(&mut first).is_ok()
        && first == *FIRST_LINE.as_bytes()
        && file.try_lock().is_ok()
        && is_at(path, &found)
}

/// Returns true if the path names this file. A writer that lives may have put another file there meanwhile, and has no lock on
/// the old one then.
fn is_at(path: &Path, file: &Metadata) -> bool {
    fs::symlink_metadata(path).is_ok_and(|now| (now.dev(), now.ino()) == (file.dev(), file.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes an empty directory.
    fn directory(name: &str) -> PathBuf {
        let name = format!("ripstop-metrics-{name}-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir(&directory).unwrap();
        directory
    }

    #[test]
    fn only_files_without_a_writer_are_removed() {
        let directory = directory("abandoned");
        let at = |name: &str| directory.join(name);
        let mut alive = MetricsFile::new(at("ripstop-1-0.prom"));
        alive.write("a 1\n").unwrap();
        alive.write("a 2\n").unwrap();
        fs::write(at("ripstop-2-0.prom"), format!("{FIRST_LINE}a 3\n")).unwrap();
        fs::write(at("ripstop-2-0.prom.tmp"), format!("{FIRST_LINE}a")).unwrap();
        let unfinished = MetricsFile::new(at("ripstop-3-0.prom"));
        let _locked = unfinished.write_unfinished("a 5\n").unwrap();
        fs::write(at("ripstop-other.prom"), "a 4\n").unwrap();
        remove_abandoned(&directory).unwrap();
        assert!(!at("ripstop-2-0.prom.tmp").exists() && at("ripstop-3-0.prom.tmp").exists());
        fs::remove_file(at("ripstop-3-0.prom.tmp")).unwrap();
        let text = fs::read_to_string(at("ripstop-1-0.prom")).unwrap();
        assert_eq!(text, format!("{FIRST_LINE}a 2\n"));
        assert!(!at("ripstop-2-0.prom").exists() && at("ripstop-other.prom").exists());
        drop(alive);
        let left: Vec<_> = fs::read_dir(&directory).unwrap().collect();
        assert_eq!(left.len(), 1, "{left:?}");
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn a_file_that_another_one_has_replaced_is_not_at_its_path_any_more() {
        let directory = directory("replaced");
        let path = directory.join("ripstop-1-0.prom");
        let mut file = MetricsFile::new(path.clone());
        file.write("a 1\n").unwrap();
        let old = File::open(&path).unwrap();
        assert!(is_at(&path, &old.metadata().unwrap()));
        file.write("a 2\n").unwrap();
        assert!(!is_at(&path, &old.metadata().unwrap()));
        drop(file);
        assert!(!is_at(&path, &old.metadata().unwrap()));
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn every_user_may_read_the_file_and_a_failed_write_leaves_the_last_one() {
        let directory = directory("mode");
        let path = directory.join("ripstop-1-0.prom");
        let mut file = MetricsFile::new(path.clone());
        file.write("a 1\n").unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, MODE);
        let obstacle = directory.join("ripstop-1-0.prom.tmp");
        fs::create_dir(&obstacle).unwrap();
        assert!(file.write("a 2\n").is_err());
        assert!(fs::read_to_string(&path).unwrap().ends_with("\na 1\n"));
        drop(file);
        fs::remove_dir_all(&directory).unwrap();
    }
}
