//! `RIPSTOP_PROFILE`: the ranks record traces, and the launcher prints the profile when the job has ended.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use ripstop_rt::Settings;

use super::{LaunchError, message};
use crate::trace::profile::JobProfile;
use crate::trace::profile_of;

/// Names of folders that a launcher tries.
const NAMES_MAX: u32 = 100;

/// Where the ranks of a job record their traces, and where the profile goes.
#[derive(Debug)]
pub(super) struct JobProfiling {
    /// The start of the names of the traces.
    base: PathBuf,
    /// The folder of the traces, which goes with this value. `None` if the user named a place for them.
    folder: Option<PathBuf>,
    /// The file for the whole profile.
    file: Option<PathBuf>,
}

impl JobProfiling {
    /// Prepares a profile if `RIPSTOP_PROFILE` asks for one.
    ///
    /// # Errors
    /// No folder can be made.
    pub(super) fn asked() -> Result<Option<Self>, LaunchError> {
        // A bad value is reported by each rank that reads it.
        let settings = Settings::from_environment().unwrap_or_default();
        if settings.profile.as_os_str().is_empty() {
            return Ok(None);
        }
        let mut profiling = Self {
            base: settings.trace,
            folder: None,
            file: (settings.profile != Path::new("1")).then_some(settings.profile),
        };
        if profiling.base.as_os_str().is_empty() {
            let folder = new_folder().map_err(|(folder, why)| {
                LaunchError::machine(format!(
                    "RIPSTOP_PROFILE needs the folder {} for a while, which cannot be made: {why}",
                    folder.display()
                ))
            })?;
            profiling.base = folder.join("rank");
            profiling.folder = Some(folder);
        }
        Ok(Some(profiling))
    }

    pub(super) fn base(&self) -> &Path {
        &self.base
    }

    /// Prints the profile, and writes the file.
    pub(super) fn report(&self) {
        let profile = profile_of(std::slice::from_ref(&self.base), false);
        let written = profile.and_then(|profile| {
            profile.text().lines().for_each(message::print_line);
            self.file
                .as_deref()
                .map_or(Ok(()), |file| write(&profile, file))
        });
        if let Err(why) = written {
            message::print_line(&format!("no profile: {why}"));
        }
    }
}

impl Drop for JobProfiling {
    fn drop(&mut self) {
        if let Some(folder) = &self.folder {
            // What cannot be removed stays in the folder for temporary files.
            let _ = fs::remove_dir_all(folder);
        }
    }
}

/// Makes a folder for traces that only its owner may read. A launcher of the same number that was killed may have left the first
/// names.
///
/// # Errors
/// No folder can be made, for example this one.
fn new_folder() -> Result<PathBuf, (PathBuf, io::Error)> {
    let mut number = 0;
    loop {
        let name = format!("ripstop-profile-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        match DirBuilder::new().mode(0o700).create(&folder) {
            Ok(()) => return Ok(folder),
            Err(why) if why.kind() == io::ErrorKind::AlreadyExists && number < NAMES_MAX => {
                number += 1
            }
            Err(why) => return Err((folder, why)),
        }
    }
}

/// Writes the profile in the form that the file's name asks for.
fn write(profile: &JobProfile, file: &Path) -> Result<(), String> {
    let form = file.extension().and_then(|form| form.to_str());
    let text = match form {
        Some("json") => format!("{}\n", profile.json()),
        Some("csv") => profile.csv(),
        Some("svg") => profile.svg(),
        _ => profile.text(),
    };
    fs::write(file, text).map_err(|why| format!("{}: {why}", file.display()))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::new_folder;

    #[test]
    fn a_folder_that_exists_is_left_alone() {
        let [first, second] = [(); 2].map(|()| new_folder().unwrap());
        let mode = fs::metadata(&second).unwrap().permissions().mode();
        fs::remove_dir(&first).unwrap();
        fs::remove_dir(&second).unwrap();
        assert_ne!(first, second);
        assert_eq!(mode & 0o077, 0);
    }
}
