//! The file of a node's metrics.
//!
//! It is replaced as a whole by a rename, so a reader never sees a half of it. Its writer holds a lock on it. So a file without a
//! lock is one that a killed rank has left, whichever process or container it ran in. Another rank of its job may go on with it,
//! and other jobs remove it.

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

/// A file that several ranks share, of which one writes it. It exists as long as the value of that rank.
#[derive(Debug)]
pub(super) struct MetricsFile {
    path: PathBuf,
    /// Name of the next contents of this rank until they are whole. The collector reads no file of such a name.
    unfinished: PathBuf,
    /// The present contents, open for their lock, if this rank writes them.
    locked: Option<File>,
}

impl MetricsFile {
    pub(super) fn new(path: PathBuf, rank: u32) -> Self {
        Self {
            unfinished: path.with_extension(format!("{rank}{FINISHED}{UNFINISHED}")),
            path,
            locked: None,
        }
    }

    /// Replaces the contents, unless another rank writes them. If there are none, or if the rank that wrote them does not live
    /// any more, this rank writes them from now on.
    pub(super) fn write(&mut self, text: &str) -> io::Result<()> {
        self.locked
            .take_if(|locked| has_been_replaced(&self.path, locked));
        if self.locked.is_some() {
            return self.replace(text, |from, to| fs::rename(from, to));
        }
        // While this rank holds the lock of the old contents, no other one takes over.
        if let Some(_abandoned) = lock_abandoned(&self.path) {
            return self.replace(text, |from, to| fs::rename(from, to));
        }
        if self.path.exists() {
            return Ok(());
        }
        // Of several ranks that find no file, the first one makes it.
        match self.replace(text, move_to_new) {
            Err(fault) if fault.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            outcome => outcome,
        }
    }

    /// Writes the contents under another name, and then moves them to the name of the file.
    fn replace(
        &mut self,
        text: &str,
        rename: impl FnOnce(&Path, &Path) -> io::Result<()>,
    ) -> io::Result<()> {
        let written = self.write_unfinished(text).and_then(|file| {
            rename(&self.unfinished, &self.path)?;
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
        if let Some(locked) = &self.locked
            && !has_been_replaced(&self.path, locked)
        {
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
        if !is_named {
            continue;
        }
        // While the lock is held, no rank of the other job goes on with the file.
        if let Some(_abandoned) = lock_abandoned(&entry.path()) {
            let _ = fs::remove_file(entry.path());
        }
    }
    Ok(())
}

/// Locks a file of metrics whose writer does not live any more, and returns it; `None` for any other file.
fn lock_abandoned(path: &Path) -> Option<File> {
    let mut options = OpenOptions::new();
    options.read(true);
    options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    let mut file = options.open(path).ok()?;
    let found = file.metadata().ok()?;
    let mut first = [0; FIRST_LINE.len()];
    let is_abandoned = found.is_file()
        && file.read_exact(&mut first).is_ok()
        && first == *FIRST_LINE.as_bytes()
        && file.try_lock().is_ok()
        && is_at(path, &found);
    is_abandoned.then_some(file)
}

/// Moves a file to a name that no other file may have.
fn move_to_new(from: &Path, to: &Path) -> io::Result<()> {
    match fs::hard_link(from, to) {
        Ok(()) => fs::remove_file(from),
        Err(fault) if fault.kind() == io::ErrorKind::AlreadyExists => Err(fault),
        // The file system has no links.
        Err(_) => fs::rename(from, to),
    }
}

/// Returns true if the path names another file than this one. Where it names none, a rank of another job or an administrator has
/// removed it.
fn has_been_replaced(path: &Path, file: &File) -> bool {
    path.exists() && !file.metadata().is_ok_and(|found| is_at(path, &found))
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
        let mut alive = MetricsFile::new(at("ripstop-1-0.prom"), 0);
        alive.write("a 1\n").unwrap();
        alive.write("a 2\n").unwrap();
        fs::write(at("ripstop-2-0.prom"), format!("{FIRST_LINE}a 3\n")).unwrap();
        fs::write(at("ripstop-2-0.prom.tmp"), format!("{FIRST_LINE}a")).unwrap();
        let unfinished = MetricsFile::new(at("ripstop-3-0.prom"), 0);
        let _locked = unfinished.write_unfinished("a 5\n").unwrap();
        fs::write(at("ripstop-other.prom"), "a 4\n").unwrap();
        remove_abandoned(&directory).unwrap();
        assert!(!at("ripstop-2-0.prom.tmp").exists() && at("ripstop-3-0.0.prom.tmp").exists());
        fs::remove_file(at("ripstop-3-0.0.prom.tmp")).unwrap();
        let text = fs::read_to_string(at("ripstop-1-0.prom")).unwrap();
        assert_eq!(text, format!("{FIRST_LINE}a 2\n"));
        assert!(!at("ripstop-2-0.prom").exists() && at("ripstop-other.prom").exists());
        drop(alive);
        let left: Vec<_> = fs::read_dir(&directory).unwrap().collect();
        assert_eq!(left.len(), 1, "{left:?}");
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn one_of_several_ranks_writes_the_file_and_another_one_when_it_has_ended() {
        let directory = directory("several");
        let path = directory.join("ripstop-1-0.prom");
        let mut files = [0, 1, 2].map(|rank| MetricsFile::new(path.clone(), rank));
        let mut write = |rank: usize, text: &str| {
            files[rank].write(text).unwrap();
            let lines = fs::read_to_string(&path).unwrap();
            let read = lines.strip_prefix(FIRST_LINE).unwrap().to_owned();
            if text == "end\n" {
                // The writer is killed: its lock goes, and its file stays.
                files[rank].locked = None;
            }
            read
        };
        assert_eq!(write(0, "a 1\n"), "a 1\n");
        assert_eq!(write(1, "a 2\n"), "a 1\n", "rank 0 writes the file");
        assert_eq!(write(0, "end\n"), "end\n");
        assert_eq!(write(2, "a 3\n"), "a 3\n", "rank 2 takes over");
        assert_eq!(write(1, "a 4\n"), "a 3\n");
        fs::remove_file(&path).unwrap();
        assert_eq!(write(1, "a 5\n"), "a 5\n", "rank 1 finds no file");
        assert_eq!(write(2, "a 6\n"), "a 5\n", "rank 2 finds another one");
        let [_, writer, other] = files;
        drop(other);
        assert!(path.exists());
        drop(writer);
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 0);
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn a_file_that_another_one_has_replaced_is_not_at_its_path_any_more() {
        let directory = directory("replaced");
        let path = directory.join("ripstop-1-0.prom");
        let mut file = MetricsFile::new(path.clone(), 0);
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
        let mut file = MetricsFile::new(path.clone(), 0);
        file.write("a 1\n").unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, MODE);
        let obstacle = directory.join("ripstop-1-0.0.prom.tmp");
        fs::create_dir(&obstacle).unwrap();
        assert!(file.write("a 2\n").is_err());
        assert!(fs::read_to_string(&path).unwrap().ends_with("\na 1\n"));
        drop(file);
        fs::remove_dir_all(&directory).unwrap();
    }
}
