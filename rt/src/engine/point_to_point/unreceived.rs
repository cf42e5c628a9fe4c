//! Messages to this rank that were never received. Counted when their communicator or the runtime ends, and reported once.

use std::collections::BTreeMap;

use ripstop_fabric::driver::DownCause;

use super::{PointToPoint, tables::MessageTables};
use crate::{
    buffer::TypeSig,
    group::{CommRank, WorldRank},
    proto::matching::MessageEnvelope,
};

/// Numbers of messages that were not received, by kind.
#[derive(Debug, Default)]
pub(crate) struct UnreceivedMessages {
    kinds: BTreeMap<UnreceivedKind, UnreceivedCount>,
    /// Messages of further kinds, for which there was no room.
    rest: u64,
}

/// Properties that messages of one kind share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct UnreceivedKind {
    /// World rank of the sender.
    source: WorldRank,
    ctx: u32,
    tag: u32,
    sig: TypeSig,
}

#[derive(Clone, Copy, Debug)]
struct UnreceivedCount {
    messages: u64,
    /// Lengths of the shortest and of the longest message, in bytes.
    bytes: (u64, u64),
}

/// Most kinds counted separately. A longer list would not help the user.
const KINDS_MAX: usize = 1_000;

/// Most kinds listed in a sentence.
const LISTED_MAX: usize = 4;

impl UnreceivedMessages {
    fn add(&mut self, sort: UnreceivedKind, bytes: u64) {
        if let Some(count) = self.kinds.get_mut(&sort) {
            count.messages += 1;
            count.bytes = (count.bytes.0.min(bytes), count.bytes.1.max(bytes));
        } else if self.kinds.len() < KINDS_MAX {
            let bytes = (bytes, bytes);
            self.kinds
                .insert(sort, UnreceivedCount { messages: 1, bytes });
        } else {
            self.rest += 1;
        }
    }

    fn messages(&self) -> u64 {
        self.rest + self.kinds.values().map(|count| count.messages).sum::<u64>()
    }

    /// Returns a sentence for the user, or `None` if all messages were received. `of` is the sender's rank in the communicator,
    /// if all messages have the same sender.
    pub(crate) fn sentence(&self, of: Option<CommRank>) -> Option<String> {
        let total = self.messages();
        let (first, _) = self.kinds.first_key_value()?;
        let of = match of {
            Some(rank) => format!(" of rank {rank}"),
            None if total == 1 => first.sender(),
            None => String::new(),
        };
        let were = if total == 1 { "message" } else { "messages" };
        let was = if total == 1 { "was" } else { "were" };
        let kinds = self.list(of.is_empty());
        Some(format!("{total} {were}{of} {was} not received: {kinds}"))
    }

    /// Returns the list of kinds, shortened to the first ones.
    fn list(&self, senders: bool) -> String {
        let (total, mut listed, mut text) = (self.messages(), 0, String::new());
        for (sort, count) in self.kinds.iter().take(LISTED_MAX) {
            if listed > 0 {
                text.push_str("; ");
            }
            let sender = if senders {
                sort.sender() + ","
            } else {
                " with".to_owned()
            };
            if total > 1 {
                text += &format!("{}{sender} ", count.messages);
            }
            text += &format!("tag {}, {}", sort.tag, length(sort.sig, count));
            listed += count.messages;
        }
        if total > listed {
            text += &format!("; and {} more", total - listed);
        }
        text
    }
}

impl UnreceivedKind {
    fn sender(&self) -> String {
        match self.ctx {
            0 => format!(" of rank {}", self.source),
            ctx => format!(
                " of rank {} of the world on communicator {ctx}",
                self.source
            ),
        }
    }
}

/// Returns the length of the messages, in elements if their type is known.
fn length(sig: TypeSig, count: &UnreceivedCount) -> String {
    let (unit, size) = match sig.primitive() {
        Some((name, size)) => (name.to_owned(), size as u64),
        None => (format!("bytes of {sig}"), 1),
    };
    let (least, most) = (count.bytes.0 / size, count.bytes.1 / size);
    let range = if most > least {
        format!("{least} to {most}")
    } else {
        least.to_string()
    };
    let each = if count.messages > 1 { " each" } else { "" };
    format!("{range} {unit}{each}")
}

impl PointToPoint {
    /// Counts a message of the application that will not be received. Messages of failed ranks and on revoked communicators do
    /// not count, because the program has got errors for those.
    #[cold]
    pub(in crate::engine) fn note_unreceived(
        &mut self,
        envelope: MessageEnvelope,
        sig: u64,
        bytes: u64,
    ) {
        let MessageEnvelope { ctx, source, tag } = envelope;
        let is_known = !ctx.is_multiple_of(2)
            || self.common.is_void(ctx)
            || self.common.peers.down(source) == Some(DownCause::Failed);
        if !is_known {
            let sig = TypeSig(sig);
            let sort = UnreceivedKind {
                source,
                ctx,
                tag,
                sig,
            };
            self.unreceived.get_or_insert_default().add(sort, bytes);
        }
    }

    /// Takes the sentence about the messages that were not received.
    pub(crate) fn take_unreceived(&mut self) -> Option<String> {
        self.unreceived.take()?.sentence(None)
    }
}

impl MessageTables<'_> {
    /// Returns a sentence about the messages of a rank that wait here to be received. `rank` is its number in the communicator.
    /// O(stored messages).
    pub(crate) fn waiting_from(
        self,
        source: WorldRank,
        ctx: u32,
        rank: CommRank,
    ) -> Option<String> {
        let mut waiting = UnreceivedMessages::default();
        for message in self.messages.all() {
            let MessageEnvelope {
                source: its,
                ctx: on,
                tag,
            } = message.envelope;
            if its == source && on == ctx && message.place.is_some() {
                let sig = TypeSig(message.sig);
                let sort = UnreceivedKind {
                    source,
                    ctx,
                    tag,
                    sig,
                };
                waiting.add(sort, message.body.as_message_body().bytes());
            }
        }
        waiting.sentence(Some(rank))
    }
}

#[cfg(test)]
mod tests {
    use super::{CommRank, KINDS_MAX, TypeSig, UnreceivedKind, UnreceivedMessages, WorldRank};
    use crate::buffer::Wire;

    fn sort(source: u32, ctx: u32, tag: u32, sig: TypeSig) -> UnreceivedKind {
        UnreceivedKind {
            source: WorldRank(source),
            ctx,
            tag,
            sig,
        }
    }

    #[test]
    fn what_was_received_needs_no_word() {
        assert_eq!(UnreceivedMessages::default().sentence(None), None);
    }

    #[test]
    fn messages_are_grouped_by_what_they_have_in_common() {
        let mut lost = UnreceivedMessages::default();
        lost.add(sort(1, 0, 8, f64::SIG), 80);
        assert_eq!(
            lost.sentence(None).as_deref(),
            Some("1 message of rank 1 was not received: tag 8, 10 f64")
        );
        lost.add(sort(1, 0, 8, f64::SIG), 80);
        assert_eq!(
            lost.sentence(Some(CommRank(3))).as_deref(),
            Some("2 messages of rank 3 were not received: 2 with tag 8, 10 f64 each")
        );
        lost.add(sort(2, 6, 0, u8::SIG), 3);
        lost.add(sort(2, 6, 0, u8::SIG), 5);
        assert_eq!(
            lost.sentence(None).as_deref(),
            Some(
                "4 messages were not received: 2 of rank 1, tag 8, 10 f64 each; \
                 2 of rank 2 of the world on communicator 6, tag 0, 3 to 5 u8 each"
            )
        );
    }

    #[test]
    fn however_many_kinds_there_are_the_sentence_stays_short_and_the_count_right() {
        let mut lost = UnreceivedMessages::default();
        for tag in 0..5_000 {
            lost.add(sort(1, 0, tag, u64::SIG), 8);
        }
        assert_eq!(lost.kinds.len(), KINDS_MAX);
        let sentence = lost.sentence(None).expect("some were lost");
        assert!(
            sentence.starts_with("5000 messages") && sentence.ends_with("; and 4996 more"),
            "{sentence}"
        );
        assert!(sentence.len() < 300, "{sentence}");
    }
}
