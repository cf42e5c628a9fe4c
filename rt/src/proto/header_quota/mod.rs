//! Limits how many unexpected messages may wait at a receiver, and lets receives reach messages that are held back at
//! their senders.
//!
//! An unexpected message costs its receiver at least a header. The store has room for a limited number of headers from all peers
//! together. Each peer may send a few messages from the start. The receiver raises the limit of peers whose messages are taken
//! ([`QuotaGrants`]). A sender at its limit ([`HeaderQuota`]) keeps its messages in a [`BlockedQueue`], in order, and notifies
//! the receiver (`Blocked`). The sum of all limits never exceeds the room, so the store cannot overflow. Limits are absolute
//! message counts, so a repeated or late one does no harm.
//!
//! A program may legitimately receive the last message of such a queue first. A receive that finds no message, while a peer that
//! may have one is blocked, *fetches* it from there (`FetchRequest`). The peer answers with the first matching message of its
//! queue, offered out of order (`FetchedRts`), or with nothing. From then on, the peer notifies the receiver of each message with
//! a new envelope in its queue (`FetchCandidate`), so that the receiver can ask again. If no receive waits for a fetched message
//! any more, the receiver sends it back (`FetchReturned`), so it takes no room in the store. Otherwise the receiver confirms the
//! match (`FetchMatched`), and the sender drops the message's place in the queue.
//!
//! Order is kept per source, communicator and tag: while a message is fetched, no other message with its envelope is sent, and
//! the queue does not move past it. A receive of any tag fetches the first message of its communicator, and gets no other.

mod blocked_queue;
mod fetch_tracker;
mod grants;
mod quota;
#[cfg(test)]
mod tests;

pub(crate) use blocked_queue::{BlockedQueue, FetchCandidate, FetchResult, QueueFront};
pub(crate) use fetch_tracker::FetchTracker;
pub(crate) use grants::{HeaderRoom, PeerQuota, QuotaGrants};
pub(crate) use quota::HeaderQuota;
