//! The checks, one file for each group. Each reads its facts once, and judges them without looking at the machine again.

mod clock;
mod copying;
mod kernel;
mod launchers;
mod memory;
mod network;
mod processors;
mod versions;

use std::collections::BTreeMap;

use ripstop::settings::Settings;

use self::{
    clock::ClockFacts, copying::CopyingFacts, kernel::KernelFacts, launchers::LauncherFacts,
    memory::MemoryFacts, network::NetworkFacts, processors::ProcessorFacts, versions::VersionFacts,
};
use super::finding::CheckFinding;
use crate::system_files::SystemFiles;

/// Runs all checks. Changes nothing, joins no job and needs no privileges.
pub(super) fn run(
    files: &dyn SystemFiles,
    variables: &BTreeMap<String, String>,
) -> Vec<CheckFinding> {
    let read = Settings::from_variables(variables.clone());
    let defaults = Settings::new();
    // Drivers are checked with the default settings if the environment has bad ones.
    let settings = read.as_ref().unwrap_or(&defaults);
    let drivers = network::driver_answers(settings);
    let shared = drivers.iter().find(|driver| driver.name == "shm");
    let shared = shared.map_or_else(
        || Err("this build has no shared memory".to_owned()),
        |driver| driver.found.clone(),
    );
    let processors = ProcessorFacts::observe(files);
    let memory = MemoryFacts::observe(files, shared.clone().map(drop), processors.allowed());
    [
        KernelFacts::observe(files).findings(),
        memory.findings(),
        CopyingFacts::observe(files, shared).findings(),
        processors.findings(),
        ClockFacts::observe(files).findings(),
        LauncherFacts::observe(variables).findings(),
        NetworkFacts::observe(files, &drivers, settings.fabric).findings(),
        VersionFacts::observe(read.as_ref().map_err(ToString::to_string)).findings(),
    ]
    .concat()
}
