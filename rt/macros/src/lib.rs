//! Attributes and derives.
