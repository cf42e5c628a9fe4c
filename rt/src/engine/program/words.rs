//! What two ranks called that disagree, in words: for the errors of both, and of all others.
//!
//! A collective that runs knows its signature, and the line that called it; what a signature stands for was put into words when
//! its program was made. So words cost a collective nothing. Only when two ranks disagree does each tell its neighbours what it
//! called, and a rank that hears of it passes it on, as the news that they disagree went before. An error waits for both, but not
//! for long.

use std::{
    collections::BTreeMap,
    panic::Location,
    task::{Poll, Waker},
};

use super::calls::Why;
use crate::{
    buffer::TypeSig,
    engine::Core,
    proto::wire::{self, Base, Kind, Words},
};

/// Signatures whose words are kept. Programs that are made are kept in fewer.
const KNOWN_MAX: usize = 1 << 10;

/// Words of calls that are kept, for a few communicators on which ranks disagreed.
const SAID_MAX: usize = 64;

/// Bytes of one call's words.
const LEN_MAX: usize = wire::WORDS_PARTS * wire::WORDS_LEN;

/// Context and tag.
type Key = (u32, u32);

/// What is known in words.
pub(super) struct Known {
    /// What collectives of a signature are called.
    named: BTreeMap<u64, Box<str>>,
    /// What world ranks have called where two disagreed.
    said: BTreeMap<(Key, u32), Said>,
    /// Futures that wait for words.
    wakers: Vec<Waker>,
}

/// What a rank has said of its call.
#[derive(Default)]
struct Said {
    parts: [Option<Box<[u8]>>; wire::WORDS_PARTS],
    /// All of it.
    whole: Option<Box<str>>,
}

impl Known {
    pub(super) const fn new() -> Self {
        Self {
            named: BTreeMap::new(),
            said: BTreeMap::new(),
            wakers: Vec::new(),
        }
    }

    fn whole(&self, key: Key, rank: u32) -> Option<&str> {
        self.said.get(&(key, rank))?.whole.as_deref()
    }

    fn place(&mut self, key: Key, rank: u32) -> Option<&mut Said> {
        let is_full = self.said.len() >= SAID_MAX;
        if is_full && !self.said.contains_key(&(key, rank)) {
            return None;
        }
        Some(self.said.entry((key, rank)).or_default())
    }

    /// In words, what collectives of this signature are.
    fn name(&self, sig: u64) -> &str {
        self.named.get(&sig).map_or("a collective", |name| name)
    }
}

impl Said {
    /// Takes a part in. Whether that was the last one.
    fn take(&mut self, header: &Words) -> bool {
        let (part, parts, len) = (header.part, header.parts, header.len);
        let (part, parts, len) = (usize::from(part), usize::from(parts), usize::from(len));
        let is_sound = part < parts && parts <= self.parts.len() && len <= header.text.len();
        if !is_sound || self.whole.is_some() {
            return false;
        }
        self.parts[part].get_or_insert_with(|| header.text[..len].into());
        let parts = &self.parts[..parts];
        if parts.iter().any(Option::is_none) {
            return false;
        }
        let bytes: Vec<u8> = parts.iter().flatten().flatten().copied().collect();
        // It ends up on a terminal.
        let text = String::from_utf8_lossy(&bytes);
        self.whole = Some(text.replace(char::is_control, " ").into());
        true
    }
}

impl Core {
    /// What collectives of this signature are, in words, for ranks that disagree.
    #[cold]
    pub(crate) fn name_signature(&mut self, sig: u64, words: impl FnOnce() -> String) {
        let named = &mut self.programs.words.named;
        if named.contains_key(&sig) {
            return;
        }
        if named.len() + 1 >= KNOWN_MAX {
            named.clear();
        }
        let (listed, words) = (TypeSig(sig).and(super::BY_LISTS).0, words());
        named.insert(listed, words.as_str().into());
        named.insert(sig, words.into());
    }

    /// Tells others what this rank called, if it is one of two that disagree, and has called something.
    pub(super) fn say_own(&mut self, ctx: u32) {
        let me = self.programs.me;
        let Some((tag, Why::Mismatch(one, other))) = self.programs.calls.revoked_from(ctx) else {
            return;
        };
        let key = (ctx, tag);
        if ![one, other].contains(&me) || self.programs.words.whole(key, me).is_some() {
            return;
        }
        let Some((sig, at)) = self.called(key) else {
            return;
        };
        let text = format!("{} at {at}", self.programs.words.name(sig));
        if let Some(said) = self.programs.words.place(key, me) {
            said.whole = Some(shortened(&text).into());
            self.pass_on(key, me);
        }
    }

    /// The signature of a collective of this rank, and the line that called it.
    pub(super) fn called(&mut self, key: Key) -> Option<(u64, &'static Location<'static>)> {
        if let Some(running) = self.programs.calls.running(key) {
            let run = self.programs.get(running.run)?;
            return Some((running.sig, run.about.at));
        }
        self.programs.calls.over(key)
    }

    /// Tells the neighbours what a rank called.
    fn pass_on(&mut self, key: Key, rank: u32) {
        let text = self.programs.words.whole(key, rank).map(str::to_owned);
        let (Some(text), Some(group)) = (text, self.group_of(key.0)) else {
            return;
        };
        for header in Words::all(key, rank, text.as_bytes()) {
            for peer in super::fail::neighbours(&group, self.programs.me) {
                if self.peers.down(peer).is_none() {
                    self.peers.control(peer, &header);
                }
            }
        }
        self.wake_for_words();
    }

    /// A peer says what a rank has called: believed of members, where two have disagreed.
    pub(in crate::engine) fn handle_words(&mut self, by: u32, header: &Words) {
        let (key, rank) = ((header.ctx, header.tag), header.rank);
        let is_member = self.group_of(key.0).is_some_and(|group| group.contains(by));
        let first = self.programs.calls.revoked_from(key.0);
        let is_asked = matches!(
            first,
            Some((tag, Why::Mismatch(one, other))) if tag == key.1 && [one, other].contains(&rank)
        );
        if !is_member || !is_asked || rank == self.programs.me {
            return;
        }
        let said = self.programs.words.place(key, rank);
        if said.is_some_and(|said| said.take(header)) {
            self.pass_on(key, rank);
        }
    }

    /// Those that wait for words look again.
    pub(super) fn wake_for_words(&mut self) {
        let wakers = std::mem::take(&mut self.programs.words.wakers);
        self.wakers.extend(wakers);
    }

    /// What two ranks have called that disagree on this communicator, as far as they say it; ready when there is no more to come.
    pub(crate) fn poll_words(&mut self, ctx: u32, waker: &Waker) -> Poll<()> {
        let waits = self.awaits_words(ctx);
        if waits {
            let wakers = &mut self.programs.words.wakers;
            if !wakers.iter().any(|known| known.will_wake(waker)) {
                wakers.push(waker.clone());
            }
            return Poll::Pending;
        }
        Poll::Ready(())
    }

    /// Whether a rank that disagrees with another one is still to say what it called.
    fn awaits_words(&self, ctx: u32) -> bool {
        let Some((tag, Why::Mismatch(one, other))) = self.programs.calls.revoked_from(ctx) else {
            return false;
        };
        let me = self.programs.me;
        let comes = |rank: u32| {
            let is_known = self.programs.words.whole((ctx, tag), rank).is_some();
            !is_known && rank != me && self.peers.down(rank).is_none()
        };
        !self.ended && (comes(one) || comes(other))
    }

    /// Both calls, for the error of a rank that was told that these two ranks disagree.
    pub(crate) fn words(&self, ctx: u32, ranks: [usize; 2]) -> Option<Box<[String; 2]>> {
        let (tag, _) = self.programs.calls.revoked_from(ctx)?;
        let words = &self.programs.words;
        let said = ranks.map(|rank| {
            let rank = u32::try_from(rank).ok()?;
            words.whole((ctx, tag), rank)
        });
        said.iter().any(Option::is_some).then(|| {
            let said = said.map(|said| said.unwrap_or_default().to_owned());
            Box::new(said)
        })
    }
}

/// As much of it as is told. The line at the end says more than the counts in the middle.
fn shortened(text: &str) -> String {
    if text.len() <= LEN_MAX {
        return text.to_owned();
    }
    let front = text.floor_char_boundary(LEN_MAX / 3);
    let rear = text.ceil_char_boundary(text.len() - (LEN_MAX / 2));
    format!("{}…{}", &text[..front], &text[rear..])
}

impl Words {
    /// The parts of what a rank called.
    fn all((ctx, tag): Key, rank: u32, text: &[u8]) -> impl Iterator<Item = Self> {
        let parts = text.chunks(wire::WORDS_LEN).take(wire::WORDS_PARTS);
        let count = parts.len();
        parts.zip(0_u8..).map(move |(part, at)| {
            let mut bytes = [0; wire::WORDS_LEN];
            bytes[..part.len()].copy_from_slice(part);
            Self {
                base: Base::new(Kind::Words),
                ctx,
                tag,
                rank,
                part: at,
                parts: u8::try_from(count).unwrap_or(u8::MAX),
                len: u8::try_from(part.len()).unwrap_or(u8::MAX),
                zero: 0,
                text: bytes,
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{Said, Words, shortened, wire};

    fn said(text: &str, order: impl Iterator<Item = usize>) -> Option<Box<str>> {
        let parts: Vec<Words> = Words::all((3, 7), 1, text.as_bytes()).collect();
        let mut said = Said::default();
        for at in order {
            said.take(&parts[at % parts.len()]);
        }
        said.whole
    }

    #[test]
    fn words_arrive_whole_in_any_order_and_more_than_once() {
        let text = "all_reduce (3 f64, Sum) at src/main.rs:31:17, ".repeat(5);
        let text = shortened(&text);
        assert_eq!(
            said(&text, [2, 0, 0, 1, 2, 3].into_iter()).as_deref(),
            Some(&*text)
        );
        assert_eq!(said(&text, [2, 0].into_iter()), None);
        assert_eq!(said("a\u{1b}[2Jb", 0..1).as_deref(), Some("a [2Jb"));
    }

    #[test]
    fn what_is_too_long_keeps_its_end() {
        let long = format!("gather_v ({}) at src/é.rs:7:1", "1, ".repeat(1_000));
        let short = shortened(&long);
        assert!(short.len() <= super::LEN_MAX, "{}", short.len());
        assert!(short.starts_with("gather_v (1, ") && short.ends_with("at src/é.rs:7:1"));
    }

    #[test]
    fn forged_parts_are_refused() {
        let mut header = Words::all((3, 7), 1, b"barrier").next().expect("one part");
        for (part, parts, len) in [(1, 1, 7), (0, 200, 7), (9, 200, 7), (0, 1, 255), (0, 0, 7)] {
            (header.part, header.parts, header.len) = (part, parts, len);
            let mut said = Said::default();
            assert!(
                !said.take(&header) && said.whole.is_none(),
                "{part} {parts} {len}"
            );
        }
        assert!(wire::WORDS_LEN <= usize::from(u8::MAX));
    }
}
