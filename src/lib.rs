//! Ripstop.
