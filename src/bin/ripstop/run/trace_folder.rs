//! The folder in which the ranks of a job record their traces if the user wants the profile alone.
//!
//! Its launcher holds a lock on it and removes it. So a folder without a lock is one that a killed launcher has left, whichever
//! process or container that ran in. The next launcher removes it.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::process::geteuid;

/// The start of the names of these folders.
const PREFIX: &str = "ripstop-profile-";

/// Names of folders that a launcher tries.
const NAMES_MAX: u32 = 100;

/// A folder that goes with this value.
#[derive(Debug)]
pub(super) struct TraceFolder {
    path: PathBuf,
    /// The folder, open for its lock.
    _locked: File,
}

impl TraceFolder {
    /// Makes a folder that only its owner may read. A launcher of the same number in another container may have the first names.
    ///
    /// # Errors
    /// No folder can be made, for example this one.
    pub(super) fn create(parent: &Path) -> Result<Self, (PathBuf, io::Error)> {
        let mut number = 0;
        loop {
            let path = parent.join(format!("{PREFIX}{}-{number}", std::process::id()));
            let made = DirBuilder::new().mode(0o700).create(&path);
            match made.and_then(|()| lock_new(&path)) {
                Ok(Some(_locked)) => return Ok(Self { path, _locked }),
                Ok(None) if number < NAMES_MAX => number += 1,
                Err(why) if why.kind() == io::ErrorKind::AlreadyExists && number < NAMES_MAX => {
                    number += 1;
                }
                Ok(None) => return Err((path, io::ErrorKind::ResourceBusy.into())),
                Err(why) => return Err((path, why)),
            }
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for TraceFolder {
    fn drop(&mut self) {
        // What cannot be removed stays until the next launcher tries.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Removes the folders of launchers that were killed. What cannot be removed, such as a folder of another user, stays.
pub(super) fn remove_abandoned(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let is_named = name.to_str().is_some_and(|name| name.starts_with(PREFIX));
        let path = entry.path();
        // While this lock is held, a launcher that has just made the folder sees that it has lost it, and makes another one.
        if is_named && let Some(_abandoned) = lock_abandoned(&path) {
            let _ = fs::remove_dir_all(path);
        }
    }
}

/// Locks a folder that this process has just made. Returns `None` if another launcher took it for an abandoned one meanwhile.
///
/// # Errors
/// The folder cannot be opened.
fn lock_new(path: &Path) -> io::Result<Option<File>> {
    let folder = match open(path) {
        Err(why) if why.kind() == io::ErrorKind::NotFound => return Ok(None),
        folder => folder?,
    };
    // A file system without locks keeps what killed launchers leave.
    let is_lost = matches!(folder.try_lock(), Err(TryLockError::WouldBlock));
    Ok((!is_lost && is_at(path, &folder)).then_some(folder))
}

/// Locks a folder of this user whose launcher does not live any more, and returns it; `None` for any other one.
fn lock_abandoned(path: &Path) -> Option<File> {
    let folder = open(path).ok()?;
    let is_ours = folder.metadata().ok()?.uid() == geteuid().as_raw();
    let is_abandoned = is_ours && folder.try_lock().is_ok() && is_at(path, &folder);
    is_abandoned.then_some(folder)
}

/// Opens a folder, but none behind a link.
fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true);
    options.custom_flags(libc::O_DIRECTORY | libc::O_NOFOLLOW);
    options.open(path)
}

/// Returns true if the path names this folder.
fn is_at(path: &Path, folder: &File) -> bool {
    let at = |found: fs::Metadata| (found.dev(), found.ino());
    let now = fs::symlink_metadata(path).map(at).ok();
    now.is_some() && now == folder.metadata().map(at).ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    /// A new folder for one test, which goes with this value.
    struct Parent(PathBuf);

    impl Parent {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("ripstop-{name}-{}", std::process::id()));
            fs::create_dir(&path).unwrap();
            Self(path)
        }

        fn names(&self) -> Vec<String> {
            let entries = fs::read_dir(&self.0).unwrap();
            let name = |entry: io::Result<fs::DirEntry>| entry.unwrap().file_name();
            let names = entries.map(|entry| name(entry).into_string().unwrap());
            let mut names: Vec<String> = names.collect();
            names.sort();
            names
        }
    }

    impl Drop for Parent {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_folder_that_exists_is_left_alone() {
        let parent = Parent::new("two-folders");
        let [first, second] = [(); 2].map(|()| TraceFolder::create(&parent.0).unwrap());
        let mode = fs::metadata(second.path()).unwrap().permissions().mode();
        assert_ne!(first.path(), second.path());
        assert_eq!(mode & 0o077, 0);
        drop((first, second));
        assert_eq!(parent.names(), [""; 0]);
    }

    #[test]
    fn only_folders_without_a_launcher_are_removed() {
        let parent = Parent::new("abandoned-folders");
        let used = TraceFolder::create(&parent.0).unwrap();
        fs::write(used.path().join("rank.0"), "records").unwrap();
        let left = parent.0.join(format!("{PREFIX}1-0"));
        fs::create_dir(&left).unwrap();
        fs::write(left.join("rank.0"), "records").unwrap();
        let other = parent.0.join("ripstop-other");
        fs::create_dir(&other).unwrap();
        let link = parent.0.join(format!("{PREFIX}2-0"));
        symlink(&other, &link).unwrap();
        let file = parent.0.join(format!("{PREFIX}3-0"));
        fs::write(&file, "").unwrap();

        remove_abandoned(&parent.0);
        assert!(used.path().join("rank.0").exists());
        let stays = [used.path(), &link, &file, &other].map(|path| path.file_name().unwrap());
        let mut stays = stays.map(|name| name.to_str().unwrap().to_owned());
        stays.sort();
        assert_eq!(parent.names(), stays);
    }

    #[test]
    fn a_folder_that_another_launcher_is_removing_is_not_used() {
        let parent = Parent::new("lost-folders");
        let path = parent.0.join(format!("{PREFIX}1-0"));
        fs::create_dir(&path).unwrap();
        let remover = lock_abandoned(&path).unwrap();
        assert!(lock_new(&path).unwrap().is_none());
        fs::remove_dir(&path).unwrap();
        drop(remover);
        assert!(lock_new(&path).unwrap().is_none());
    }
}
