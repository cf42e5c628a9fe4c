//! loopback
