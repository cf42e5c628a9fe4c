//! Describes in words what two ranks called that disagree, for the errors on all ranks.
//!
//! A running collective knows only its signature and its source line. The description for a signature was recorded when its
//! program was made, so descriptions cost a collective nothing. When two ranks disagree, each sends its neighbors the description
//! of its call. Ranks pass descriptions on, behind the report of the mismatch. An error waits for the descriptions of both ranks,
//! unless one of them is down.

use std::{
    collections::{BTreeMap, BTreeSet},
    panic::Location,
    task::{Poll, Waker},
};

use super::{ProgramTable, disagreements::CallDisagreements};
use crate::{
    buffer::TypeSig,
    engine::commons::collective_registry::{CollectiveFailure, CollectiveRegistry},
    group::WorldRank,
    ops::OpInfo,
    proto::collective_id::CollectiveId,
    proto::wire::{self, CallDescriptionHeader, HeaderBase, WireKind},
};

/// Maximum number of signatures whose descriptions are kept. The cache of programs holds fewer programs.
const KNOWN_MAX: usize = 1 << 10;

/// Maximum number of calls whose descriptions are kept, for the few communicators on which ranks disagree.
const SAID_MAX: usize = 64;

/// Description of a rank that closes and has called no collective where another rank has.
const NOTHING: &str = "no further collective";

/// Maximum size of a communicator whose members are all notified by a rank that leaves because of a mismatch.
const TOLD_MAX: usize = 64;

/// Maximum bytes of one call's description.
const LEN_MAX: usize = wire::WORDS_PARTS * wire::WORDS_LEN;

/// Maximum number of pairs kept for one collective. Errors name one of them.
const PAIRS_MAX: usize = 16;

/// Two ranks of the world, the lower one first.
type DisagreeingRanks = [WorldRank; 2];

/// Two ranks, and what they called.
type CallDisagreement = (DisagreeingRanks, Option<Box<[String; 2]>>);

/// Descriptions for signatures, and of the calls of ranks that disagree.
pub(super) struct CallDescriptions {
    /// Descriptions of collectives, by signature.
    named: BTreeMap<u64, Box<str>>,
    /// The pairs of world ranks that disagree in one collective. Ranks may see different pairs, so there may be several.
    pairs: BTreeMap<CollectiveId, BTreeSet<DisagreeingRanks>>,
    /// Descriptions of calls of ranks that disagree, by collective and world rank.
    descriptions: BTreeMap<(CollectiveId, WorldRank), CallDescription>,
    /// Futures that wait for descriptions.
    wakers: Vec<Waker>,
}

/// Description that a rank has sent of its call.
#[derive(Default)]
struct CallDescription {
    parts: [Option<Box<[u8]>>; wire::WORDS_PARTS],
    /// The complete text.
    whole: Option<Box<str>>,
}

impl CallDescriptions {
    pub(super) const fn new() -> Self {
        Self {
            named: BTreeMap::new(),
            pairs: BTreeMap::new(),
            descriptions: BTreeMap::new(),
            wakers: Vec::new(),
        }
    }

    /// Records that two ranks disagree in a collective. Returns true if that was not known, and there is room for it.
    fn note(&mut self, id: CollectiveId, pair: DisagreeingRanks) -> bool {
        // No pair is evicted: as a new one it would be sent to the neighbors again, and come back from them.
        let is_full = self.pairs.len() >= SAID_MAX && !self.pairs.contains_key(&id);
        if is_full {
            return false;
        }
        let pairs = self.pairs.entry(id).or_default();
        pairs.len() < PAIRS_MAX && pairs.insert(pair)
    }

    /// Returns the pairs that disagree in a collective.
    fn pairs(&self, id: CollectiveId) -> impl Iterator<Item = DisagreeingRanks> {
        self.pairs.get(&id).into_iter().flatten().copied()
    }

    /// Returns true if a rank disagrees with another one in a collective.
    fn is_asked(&self, id: CollectiveId, rank: WorldRank) -> bool {
        self.pairs(id).any(|pair| pair.contains(&rank))
    }

    fn whole(&self, id: CollectiveId, rank: WorldRank) -> Option<&str> {
        self.descriptions.get(&(id, rank))?.whole.as_deref()
    }

    fn place(&mut self, id: CollectiveId, rank: WorldRank) -> Option<&mut CallDescription> {
        let is_full = self.descriptions.len() >= SAID_MAX;
        if is_full && !self.descriptions.contains_key(&(id, rank)) {
            return None;
        }
        Some(self.descriptions.entry((id, rank)).or_default())
    }

    /// Returns the description of collectives of this signature.
    fn name(&self, sig: u64) -> &str {
        self.named.get(&sig).map_or("a collective", |name| name)
    }
}

impl CallDescription {
    /// Adds a part. Returns true if it was the last one missing.
    fn take(&mut self, header: &CallDescriptionHeader) -> bool {
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
        // The text may be printed to a terminal, so remove control characters.
        let text = String::from_utf8_lossy(&bytes);
        self.whole = Some(text.replace(char::is_control, " ").into());
        true
    }
}

impl ProgramTable {
    /// Returns the description of collectives of this signature.
    pub(in crate::engine) fn collective_name(&self, sig: u64) -> &str {
        self.descriptions.name(sig)
    }

    /// Returns the collectives in flight, with the descriptions of their calls.
    pub(in crate::engine) fn running_collectives(&self) -> impl Iterator<Item = (&OpInfo, &str)> {
        let runs = self.runs.iter().flatten();
        runs.map(|run| (&run.info, self.descriptions.name(run.sig())))
    }

    /// Returns the last collective of this context, if it is complete.
    pub(in crate::engine) fn last_collective_of(
        &self,
        calls: &CollectiveRegistry,
        ctx: u32,
    ) -> Option<String> {
        let number = calls.next(ctx).checked_sub(1)?;
        let (sig, at) = calls.over(CollectiveId::new(ctx, number))?;
        let name = self.descriptions.name(sig);
        let verb = name.split(" (").next().unwrap_or(name);
        Some(format!("{verb} #{number}, {}:{}", at.file(), at.line()))
    }
}

impl CallDisagreements<'_> {
    /// Records the description of collectives of this signature, for errors of ranks that disagree.
    #[cold]
    pub(crate) fn name_signature(&mut self, sig: u64, describe: impl FnOnce() -> String) {
        let named = &mut self.programs.descriptions.named;
        if named.contains_key(&sig) {
            return;
        }
        if named.len() + 1 >= KNOWN_MAX {
            named.clear();
        }
        let (sig_by_lists, text) = (TypeSig(sig).and(super::BY_LISTS).0, describe());
        named.insert(sig_by_lists, text.as_str().into());
        named.insert(sig, text.into());
    }

    /// Records two ranks that disagree in a collective. Notifies the neighbors of the pair, and sends the descriptions of both
    /// calls as far as they are known.
    pub(super) fn note_pair(&mut self, id: CollectiveId, pair: DisagreeingRanks, is_new: bool) {
        let first = self.common.calls.revocations.first(id.context);
        let is_first = first.is_some_and(|(tag, _)| tag == id.sequence);
        let is_noted = is_first && self.programs.descriptions.note(id, pair);
        if is_new || is_noted {
            // The failure is announced before the descriptions, because neighbors believe only descriptions of ranks that they
            // know to disagree.
            self.announce_failure(id, CollectiveFailure::Mismatch(pair[0], pair[1]));
        }
        if is_noted {
            self.pass_on(id, pair[0]);
            self.pass_on(id, pair[1]);
            self.send_own_description(id);
            self.wake_for_descriptions();
        }
    }

    /// Notifies the neighbors of what this rank has called, if it is one of two that disagree and has not said so before.
    pub(super) fn send_own_description(&mut self, id: CollectiveId) {
        let me = self.common.me;
        let descriptions = &self.programs.descriptions;
        if !descriptions.is_asked(id, me) || descriptions.whole(id, me).is_some() {
            return;
        }
        let text = if let Some((sig, at)) = self.called(id) {
            format!("{} at {at}", self.programs.descriptions.name(sig))
        } else if let Some(call) = self.common.calls.creation(id) {
            call.to_string()
        } else if self.programs.compared.is_closing() {
            NOTHING.to_owned()
        } else {
            return;
        };
        if let Some(description) = self.programs.descriptions.place(id, me) {
            description.whole = Some(shortened(&text).into());
            self.pass_on(id, me);
        }
    }

    /// Returns the signature and the source line of a collective that this rank has called.
    pub(super) fn called(&mut self, id: CollectiveId) -> Option<(u64, &'static Location<'static>)> {
        if let Some(running) = self.common.calls.running(id) {
            let run = self.programs.get(running.run)?;
            return Some((running.sig, run.info.at));
        }
        self.common.calls.over(id)
    }

    /// Sends the description of a rank's call to the neighbors.
    fn pass_on(&mut self, id: CollectiveId, rank: WorldRank) {
        if let Some(group) = self.group_of(id.context) {
            let neighbors = super::fail::neighbors(&group, self.common.me);
            self.say_to(neighbors, id, rank);
            self.wake_for_descriptions();
        }
    }

    /// Sends the description of a rank's call to `peers`, if it is known.
    fn say_to(
        &mut self,
        peers: impl IntoIterator<Item = WorldRank> + Clone,
        id: CollectiveId,
        rank: WorldRank,
    ) {
        let Some(text) = self
            .programs
            .descriptions
            .whole(id, rank)
            .map(str::to_owned)
        else {
            return;
        };
        for header in CallDescriptionHeader::all(id, rank, text.as_bytes()) {
            for peer in peers.clone() {
                if self.common.peers.down(peer).is_none() {
                    self.common.peers.control(peer, &header);
                }
            }
        }
    }

    /// Notifies all members of small communicators of a mismatch, before this rank leaves because of it. A member that calls its
    /// first collective later would otherwise only see that this rank has left.
    pub(crate) fn tell_members_of_mismatch(&mut self) {
        for (id, [one, other]) in self.common.calls.revocations.mismatches() {
            let Some(group) = self.group_of(id.context) else {
                continue;
            };
            if group.len() > TOLD_MAX {
                continue;
            }
            let me = self.common.me;
            let others: Vec<WorldRank> = group.members().filter(|rank| *rank != me).collect();
            for rank in &others {
                if self.common.peers.down(*rank).is_none() {
                    self.common.tell_revoked(*rank, id.context);
                }
            }
            self.say_to(others.iter().copied(), id, one);
            self.say_to(others.iter().copied(), id, other);
        }
    }

    /// Handles a peer's description of a rank's call. Only members are believed, and only about ranks that disagree.
    pub(in crate::engine) fn handle_call_description(
        &mut self,
        by: WorldRank,
        header: &CallDescriptionHeader,
    ) {
        let id = CollectiveId::new(header.ctx, header.tag);
        let rank = WorldRank(header.rank);
        let group = self.group_of(id.context);
        if group.is_none() && !self.common.has_left(id.context & !1) {
            // This rank does not have the communicator yet. The description is used once it does.
            let description = self.programs.descriptions.place(id, rank);
            description.map(|description| description.take(header));
            return;
        }
        let is_member = group.is_some_and(|group| group.contains(by));
        let is_asked = self.programs.descriptions.is_asked(id, rank);
        if !is_member || !is_asked || rank == self.common.me {
            return;
        }
        let description = self.programs.descriptions.place(id, rank);
        if description.is_some_and(|description| description.take(header)) {
            self.pass_on(id, rank);
        }
    }

    /// Wakes the futures that wait for descriptions.
    pub(super) fn wake_for_descriptions(&mut self) {
        let wakers = std::mem::take(&mut self.programs.descriptions.wakers);
        self.common.wakers.extend(wakers);
    }

    /// Waits for the descriptions of two ranks that disagree on this communicator. Ready when no more can arrive.
    pub(crate) fn poll_descriptions(&mut self, ctx: u32, waker: &Waker) -> Poll<()> {
        if self.awaits_descriptions(ctx) {
            return self.wait_for_descriptions(waker);
        }
        Poll::Ready(())
    }

    /// Registers this future to be woken when there is news of a mismatch.
    pub(super) fn wait_for_descriptions(&mut self, waker: &Waker) -> Poll<()> {
        let wakers = &mut self.programs.descriptions.wakers;
        if !wakers.iter().any(|known| known.will_wake(waker)) {
            wakers.push(waker.clone());
        }
        Poll::Pending
    }

    /// Returns true if a rank that disagrees with another one may still say what it called.
    fn awaits_descriptions(&self, ctx: u32) -> bool {
        let Some((id, pair)) = self.named_pair(ctx) else {
            return false;
        };
        let comes = |rank: &WorldRank| {
            let is_known = self.programs.descriptions.whole(id, *rank).is_some();
            !is_known && *rank != self.common.me && self.common.peers.down(*rank).is_none()
        };
        !self.common.ended && pair.iter().any(comes)
    }

    /// Returns the pair of ranks that errors name. A pair that can still say what it called comes before one of which a rank has
    /// left.
    fn named_pair(&self, ctx: u32) -> Option<(CollectiveId, DisagreeingRanks)> {
        let (tag, CollectiveFailure::Mismatch(one, other)) =
            self.common.calls.revocations.first(ctx)?
        else {
            return None;
        };
        let (id, descriptions) = (CollectiveId::new(ctx, tag), &self.programs.descriptions);
        let never_says = |rank: &WorldRank| {
            self.common.peers.down(*rank).is_some() && descriptions.whole(id, *rank).is_none()
        };
        let best = descriptions
            .pairs(id)
            .min_by_key(|pair| (pair.iter().any(never_says), *pair));
        Some((id, best.unwrap_or([one, other])))
    }

    /// Returns true if ranks disagree in this collective before any other of its communicator, or if these ranks of the world
    /// are the ones that do.
    pub(crate) fn is_recorded(&self, id: CollectiveId, ranks: [usize; 2]) -> bool {
        let first = self.common.calls.revocations.first(id.context);
        let Some((sequence, CollectiveFailure::Mismatch(one, other))) = first else {
            return false;
        };
        let [one, other] = [one, other].map(|rank| rank.0 as usize);
        sequence == id.sequence || ranks == [one, other] || ranks == [other, one]
    }

    /// Returns two ranks of the world that disagree on this communicator, and what they called as far as that is known.
    pub(crate) fn disagreement(&self, ctx: u32) -> Option<CallDisagreement> {
        let (id, pair) = self.named_pair(ctx)?;
        let texts = pair.map(|rank| self.programs.descriptions.whole(id, rank));
        let calls = texts.iter().any(Option::is_some).then(|| {
            let texts = texts.map(|text| text.unwrap_or_default().to_owned());
            Box::new(texts)
        });
        Some((pair, calls))
    }
}

/// Shortens a text to [`LEN_MAX`] bytes. Cuts the middle, because the source line at the end says more than the counts there.
fn shortened(text: &str) -> String {
    if text.len() <= LEN_MAX {
        return text.to_owned();
    }
    let front = text.floor_char_boundary(LEN_MAX / 3);
    let rear = text.ceil_char_boundary(text.len() - (LEN_MAX / 2));
    format!("{}…{}", &text[..front], &text[rear..])
}

impl CallDescriptionHeader {
    /// Splits the description of a rank's call into messages.
    fn all(id: CollectiveId, rank: WorldRank, text: &[u8]) -> impl Iterator<Item = Self> {
        let parts = text.chunks(wire::WORDS_LEN).take(wire::WORDS_PARTS);
        let count = parts.len();
        parts.zip(0_u8..).map(move |(part, at)| {
            let mut bytes = [0; wire::WORDS_LEN];
            bytes[..part.len()].copy_from_slice(part);
            Self {
                base: HeaderBase::new(WireKind::CallDescription),
                ctx: id.context,
                tag: id.sequence,
                rank: rank.0,
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
    use super::{CallDescription, CallDescriptionHeader, CollectiveId, WorldRank, shortened, wire};

    fn description(text: &str, order: impl Iterator<Item = usize>) -> Option<Box<str>> {
        let parts: Vec<CallDescriptionHeader> =
            CallDescriptionHeader::all(CollectiveId::new(3, 7), WorldRank(1), text.as_bytes())
                .collect();
        let mut description = CallDescription::default();
        for at in order {
            description.take(&parts[at % parts.len()]);
        }
        description.whole
    }

    #[test]
    fn words_arrive_whole_in_any_order_and_more_than_once() {
        let text = "all_reduce (3 f64, Sum) at src/main.rs:31:17, ".repeat(5);
        let text = shortened(&text);
        assert_eq!(
            description(&text, [2, 0, 0, 1, 2, 3].into_iter()).as_deref(),
            Some(&*text)
        );
        assert_eq!(description(&text, [2, 0].into_iter()), None);
        assert_eq!(description("a\u{1b}[2Jb", 0..1).as_deref(), Some("a [2Jb"));
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
        let mut header =
            CallDescriptionHeader::all(CollectiveId::new(3, 7), WorldRank(1), b"barrier")
                .next()
                .expect("one part");
        for (part, parts, len) in [(1, 1, 7), (0, 200, 7), (9, 200, 7), (0, 1, 255), (0, 0, 7)] {
            (header.part, header.parts, header.len) = (part, parts, len);
            let mut description = CallDescription::default();
            assert!(
                !description.take(&header) && description.whole.is_none(),
                "{part} {parts} {len}"
            );
        }
        assert!(wire::WORDS_LEN <= usize::from(u8::MAX));
    }
}
