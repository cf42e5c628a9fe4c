//! How packets get from one process to another: in order, each once, or the peer is lost.

mod local;

pub use self::local::{Place, Port, Reservation};
