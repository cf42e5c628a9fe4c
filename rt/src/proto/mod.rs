//! Pure protocols, called by the engine: no I/O, no clock, no threads, no `unsafe`.

pub(crate) mod agree;
pub(crate) mod channel;
pub(crate) mod collective_id;
pub(crate) mod failure_detector;
pub(crate) mod header_quota;
pub(crate) mod matching;
pub(crate) mod path;
pub(crate) mod wire;
