//! How many messages may wait for a receive, and how none waits in vain when they are too many. After spec P7.
//!
//! A message that nobody has asked for yet costs its receiver at least a header. The store has room for so many of them, from
//! all peers together. Each peer may send a few from the start; the receiver raises the limit of those whose messages are taken
//! ([`Grants`]), and a sender at its limit ([`Allowance`]) keeps its messages in a [`Line`], in order, and says so (BLOCKED).
//! All limits together never exceed the room, so the store does not either, whatever is sent. Limits are absolute numbers of
//! messages: saying one twice, or late, says nothing wrong.
//!
//! A program may be right to receive the last message of such a line first: a receive that finds nothing, while a peer that may
//! have its message is blocked, *seeks* it there (SEEK). The peer answers with the first message of its line that fits, offered
//! out of turn (SOUGHT), or not at all; then it tells of each message that comes to its line with an envelope that was not
//! there before (HELD), so that the seeker can ask again. Who finds nobody waiting for a sought message any more sends it back
//! (BACK): it takes no place in the store. Else the sender hears that it was met (MET), and forgets its place in the line.
//!
//! Order is kept per source, communicator and tag: while a message is out, none with its envelope is sent, and the line does not
//! move past it. A receive of any tag seeks the first message of its communicator, and no other is given to it.

mod allowance;
mod grants;
mod line;
mod seeker;
#[cfg(test)]
mod tests;

pub(crate) use allowance::Allowance;
pub(crate) use grants::{Granted, Grants, Room};
pub(crate) use line::{Front, Held, Line, Sought};
pub(crate) use seeker::Seeker;
