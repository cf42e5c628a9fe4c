//! One-sided windows with epochs as values. Registered memory is in `ripstop_fabric`; windows come here.
#![forbid(unsafe_code)]
