//! Messages to this rank that it never received: counted when their communicator or the runtime goes, and told once at the end.

use std::collections::BTreeMap;

use ripstop_fabric::driver::Down;

use super::Core;
use crate::{buffer::TypeSig, proto::matching::Envelope};

/// Messages that were not received, by what they have in common.
#[derive(Debug, Default)]
pub(crate) struct Unreceived {
    kinds: BTreeMap<Sort, Count>,
    /// Messages of kinds that there was no room for.
    rest: u64,
}

/// What messages have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Sort {
    /// World rank of the sender.
    source: u32,
    ctx: u32,
    tag: u32,
    sig: TypeSig,
}

#[derive(Clone, Copy, Debug)]
struct Count {
    messages: u64,
    /// Bytes of the shortest and of the longest.
    bytes: (u64, u64),
}

/// Kinds that are counted one by one: a program that loses more of them is helped by none.
const KINDS_MAX: usize = 1_000;

/// Kinds that a sentence lists.
const LISTED_MAX: usize = 4;

impl Unreceived {
    fn add(&mut self, sort: Sort, bytes: u64) {
        if let Some(count) = self.kinds.get_mut(&sort) {
            count.messages += 1;
            count.bytes = (count.bytes.0.min(bytes), count.bytes.1.max(bytes));
        } else if self.kinds.len() < KINDS_MAX {
            let bytes = (bytes, bytes);
            self.kinds.insert(sort, Count { messages: 1, bytes });
        } else {
            self.rest += 1;
        }
    }

    fn messages(&self) -> u64 {
        self.rest + self.kinds.values().map(|count| count.messages).sum::<u64>()
    }

    /// What there is to say; `None` if all was received. `of` is the sender, where it is only one and has a rank in another
    /// communicator than the world.
    pub(crate) fn sentence(&self, of: Option<usize>) -> Option<String> {
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

    /// The kinds, of many the first ones.
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

impl Sort {
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

/// How long the messages are, in elements where their type is known.
fn length(sig: TypeSig, count: &Count) -> String {
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

impl Core {
    /// A message of the application will not be received. Messages of ranks that have failed, and on communicators that are
    /// revoked, are not counted: the program has heard of those.
    #[cold]
    pub(super) fn note_unreceived(&mut self, envelope: Envelope, sig: u64, bytes: u64) {
        let Envelope { ctx, source, tag } = envelope;
        let is_known = !ctx.is_multiple_of(2)
            || self.programs.is_void(ctx)
            || self.peers.down(source) == Some(Down::Failed);
        if !is_known {
            let sig = TypeSig(sig);
            let sort = Sort {
                source,
                ctx,
                tag,
                sig,
            };
            self.unreceived.get_or_insert_default().add(sort, bytes);
        }
    }

    /// Takes what there is to say of messages that were not received.
    pub(crate) fn take_unreceived(&mut self) -> Option<String> {
        self.unreceived.take()?.sentence(None)
    }

    /// What a rank has sent to this one that waits here to be received, as a sentence; `rank` is its number in the communicator.
    /// O(stored messages).
    pub(crate) fn waiting_from(&self, source: u32, ctx: u32, rank: usize) -> Option<String> {
        let mut waiting = Unreceived::default();
        for message in self.messages.all() {
            let Envelope {
                source: its,
                ctx: on,
                tag,
            } = message.envelope;
            if its == source && on == ctx && message.place.is_some() {
                let sig = TypeSig(message.sig);
                let sort = Sort {
                    source,
                    ctx,
                    tag,
                    sig,
                };
                waiting.add(sort, message.body.parcel().bytes());
            }
        }
        waiting.sentence(Some(rank))
    }
}

#[cfg(test)]
mod tests {
    use super::{KINDS_MAX, Sort, TypeSig, Unreceived};
    use crate::buffer::Wire;

    fn sort(source: u32, ctx: u32, tag: u32, sig: TypeSig) -> Sort {
        Sort {
            source,
            ctx,
            tag,
            sig,
        }
    }

    #[test]
    fn what_was_received_needs_no_word() {
        assert_eq!(Unreceived::default().sentence(None), None);
    }

    #[test]
    fn messages_are_grouped_by_what_they_have_in_common() {
        let mut lost = Unreceived::default();
        lost.add(sort(1, 0, 8, f64::SIG), 80);
        assert_eq!(
            lost.sentence(None).as_deref(),
            Some("1 message of rank 1 was not received: tag 8, 10 f64")
        );
        lost.add(sort(1, 0, 8, f64::SIG), 80);
        assert_eq!(
            lost.sentence(Some(3)).as_deref(),
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
        let mut lost = Unreceived::default();
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
