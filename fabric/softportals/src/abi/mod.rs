//! The C interfaces: numbers and layouts of each library family, over the same implementation.
//!
//! A program is compiled against the header of one family, and families differ in numbers, structures and handles. A
//! [`FamilyAbi`] describes these differences. [`portals_library!`](crate::portals_library) turns a package into the library of
//! one family. The functions themselves are implemented once, in [`calls`].

pub mod calls;
mod convert;
mod export;
mod layout;
mod library;
mod numbers;
mod portails4;
mod sandia42;
mod settings;

pub use self::{
    layout::{CPollFd, PtlCtEvent, PtlMd, PtlMe, PtlNiLimits, PtlProcess},
    numbers::AbiNumbers,
    portails4::Portails4,
    sandia42::Sandia42,
};
use std::ffi::CStr;

use crate::{event::FullEvent, interface::LibraryFamily};

/// A library family: its handles, structures and numbers.
pub trait FamilyAbi: Sized + 'static {
    /// Handle of an object.
    type Handle: Copy + PartialEq;
    /// Type of an enumeration passed as an argument.
    type Small: Copy + Into<u32>;
    /// Type of a time in milliseconds.
    type Time: Copy + Into<u64>;
    /// List entry of an interface without matching.
    type Le;
    /// Full event.
    type Event;

    /// Name of the family.
    const NAME: &CStr;
    /// All constants of the family.
    const NUMBERS: AbiNumbers;
    /// True if programs may pass no place for the index when they poll.
    const WHICH_IS_OPTIONAL: bool;
    /// True if entries of both kinds are valid on both kinds of interfaces. Programs of a family with one structure for both mix
    /// them.
    const ENTRIES_ARE_ALIKE: bool;
    /// Behavior of the family's interfaces.
    const FAMILY: LibraryFamily;
    /// Handles that mean no event queue and no counter.
    const NONE: [Self::Handle; 2];

    /// Returns the handle of an object's 32 bits.
    fn handle(bits: u32) -> Self::Handle;
    /// Returns an object's 32 bits, or all ones if the handle cannot name an object.
    fn bits(handle: Self::Handle) -> u32;
    /// Converts a list entry to the structure of matching interfaces.
    fn me(le: &Self::Le) -> PtlMe<Self::Handle>;
    /// Converts an event to the layout of the family.
    fn event(event: &FullEvent) -> Self::Event;
}
