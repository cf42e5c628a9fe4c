//! `RIPSTOP_PROFILE`: the ranks record traces, and the launcher prints the profile when the job has ended.

use std::fs;
use std::path::{Path, PathBuf};

use ripstop_rt::Settings;

use super::trace_folder::{self, TraceFolder};
use super::{LaunchError, message};
use crate::trace::profile::JobProfile;
use crate::trace::profile_of;

/// Where the ranks of a job record their traces, and where the profile goes.
#[derive(Debug)]
pub(super) struct JobProfiling {
    /// The start of the names of the traces.
    base: PathBuf,
    /// The folder of the traces, which goes with this value. `None` if the user named a place for them.
    _folder: Option<TraceFolder>,
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
        let parent = std::env::temp_dir();
        trace_folder::remove_abandoned(&parent);
        let (base, folder) = if settings.trace.as_os_str().is_empty() {
            let folder = TraceFolder::create(&parent).map_err(|(folder, why)| {
                LaunchError::machine(format!(
                    "RIPSTOP_PROFILE needs the folder {} for a while, which cannot be made: {why}",
                    folder.display()
                ))
            })?;
            (folder.path().join("rank"), Some(folder))
        } else {
            (settings.trace, None)
        };
        Ok(Some(Self {
            base,
            _folder: folder,
            file: (settings.profile != Path::new("1")).then_some(settings.profile),
        }))
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
