//! Offers the driver to jobs of one rank, with a setting.

use std::io;

use super::world;
use crate::provider::{
    DriverSetting, DriverValues, OpenRequest, OpenedDriver, Provider, ProviderReach,
    parsing::within,
};

/// Opens a [`Mirror`](super::Mirror) that reaches its own rank.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::exhaustive_structs, reason = "has no fields")]
pub struct MirrorProvider;

impl Provider for MirrorProvider {
    fn name(&self) -> &'static str {
        "mirror"
    }

    fn summary(&self) -> &'static str {
        "queues in one process, for jobs of one rank"
    }

    fn reach(&self) -> ProviderReach {
        ProviderReach::Rank
    }

    fn settings(&self) -> &'static [&'static DriverSetting] {
        SETTINGS
    }

    fn check(&self, values: &DriverValues) -> Result<String, String> {
        let words = values.get(&WORDS);
        Ok(format!("bodies of up to {words} words"))
    }

    fn open(&self, request: OpenRequest<'_>) -> io::Result<OpenedDriver> {
        let mut alone = world(1).remove(0);
        alone.caps.body_max = 8 * request.values.read(&WORDS, words);
        Ok(OpenedDriver::ready(alone))
    }
}

const SETTINGS: &[&DriverSetting] = &[&WORDS];

static WORDS: DriverSetting = DriverSetting {
    name: "RIPSTOP_MIRROR_WORDS",
    range: "16..=1024 words",
    meaning: "longest body of a message, in words of 8 bytes",
    default: "1024",
    accepts: |value| words(value).map(|words| words.to_string()),
};

fn words(value: &str) -> Option<usize> {
    within(16..=1024, value)
}
