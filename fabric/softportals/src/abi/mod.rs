//! The C interfaces: numbers and layouts of one family each, over the same library.
//!
//! Programs are compiled against one family's header, whose numbers, structures and handles differ from the others'. A
//! [`Profile`] is all that differs. [`portals_library!`](crate::portals_library) makes a package the library of one family;
//! what the functions do is written once, in [`calls`].

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
    layout::{CtEvent, Limits, Md, Me, PollFd, Process},
    numbers::Numbers,
    portails4::Portails4,
    sandia42::Sandia42,
};
use std::ffi::CStr;

use crate::{event::Event, interface::Family};

/// One family: its handles, structures and numbers.
pub trait Profile: Sized + 'static {
    /// What stands for an object.
    type Handle: Copy + PartialEq;
    /// An enumeration as an argument.
    type Small: Copy + Into<u32>;
    /// A time in milliseconds.
    type Time: Copy + Into<u64>;
    /// A list entry of an interface without matching.
    type Le;
    /// A full event.
    type Event;

    /// What it is called.
    const NAME: &CStr;
    /// All its constants.
    const NUMBERS: Numbers;
    /// Whether programs leave out the place for the index when they poll: those of this family do.
    const WHICH_IS_OPTIONAL: bool;
    /// Whether an entry of either kind goes to interfaces of both: programs of a family with one structure for the two mix them.
    const ENTRIES_ARE_ALIKE: bool;
    /// Whose ways its interfaces have.
    const FAMILY: Family;
    /// What stands for no event queue, and what for no counter. No other handle does.
    const NONE: [Self::Handle; 2];

    /// The handle for an object's 32 bits.
    fn handle(bits: u32) -> Self::Handle;
    /// An object's 32 bits; all ones when it cannot be one.
    fn bits(handle: Self::Handle) -> u32;
    /// A list entry with the fields that those of matching interfaces have.
    fn me(le: &Self::Le) -> Me<Self::Handle>;
    /// An event as the family lays it out.
    fn event(event: &Event) -> Self::Event;
}
