//! stub
use ripstop_fabric::driver::Caps;
use crate::settings::Settings;
pub(crate) struct Paths { eager_max: usize }
impl Paths { pub(crate) fn new(caps: &Caps, settings: &Settings) -> Self { Self { eager_max: settings.eager_max.unwrap_or(4096).min(caps.body_max) } } pub(crate) fn eager_max(&self) -> usize { self.eager_max } }
impl std::fmt::Display for Paths { fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result { write!(f, "eager up to {}", self.eager_max) } }
