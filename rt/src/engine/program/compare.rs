//! Comparison of the last collective calls on each communicator, between ranks that are about to leave.
//!
//! The root of a broadcast completes without hearing from any other rank. If two ranks each consider themselves the root of
//! the same broadcast, and call no collective after it, only this comparison shows the difference.
//!
//! A rank that closes its runtime sends its last calls to the member one place behind it. When a rank has received the same calls
//! in one round, it sends its own to a member twice as far away in the next round (dissemination: Hensgen, Finkel, Manber 1988).
//! After ⌈log₂ size⌉ rounds, the calls of each rank are compared with those of all others, directly or through other ranks. A
//! rank that does not close yet takes part as soon as it has called the same number of collectives. A rank that finds a
//! difference revokes the communicator, which notifies all members.
//!
//! Only the last [`CALLS`] calls are compared. If two ranks disagreed in an older one, its messages have arrived meanwhile and
//! have shown the difference.

use std::{
    collections::BTreeMap,
    ops::Range,
    task::{Poll, Waker},
};

use ripstop_fabric::driver::Down;

use super::{Told, calls::Why};
use crate::{
    engine::{Core, Engine},
    error::ErrorKind,
    group::Group,
    proto::wire::{self, Base, Kind, LastCalls},
};

/// [`wire::CALLS`] in the type of call numbers.
const CALLS: u32 = 16;
const _: () = assert!(CALLS as usize == wire::CALLS);

/// Maximum number of dropped communicators whose calls are still compared. The oldest are forgotten.
const LEFT_MAX: usize = 64;

/// Letters that are kept: all rounds of the compared communicators.
const LETTERS_MAX: usize = (LEFT_MAX + 1) * ROUNDS_MAX as usize;

/// The context of the collectives of the world.
pub(super) const WORLD: u32 = 1;

/// Rounds in the largest possible communicator.
const ROUNDS_MAX: u32 = u32::BITS;

/// State of the comparisons of one rank.
pub(super) struct Comparisons {
    /// Number of collectives that this rank has begun on the world. `Some` only while it closes in good order, so that it begins
    /// no others.
    closing: Option<u32>,
    /// Dropped communicators on which this rank has called collectives, by their collectives' context.
    left: BTreeMap<u32, (Group, Window)>,
    /// The last letter of each context and round, and its sender.
    letters: BTreeMap<(u32, u32), (u32, LastCalls)>,
    /// The number of calls that this rank has sent in each context and round.
    sent: BTreeMap<(u32, u32), u32>,
}

/// The last calls of one rank on one communicator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Window {
    /// Number of the next call.
    next: u32,
    /// Halves of signatures, the last call's first. 0 if a signature is not known.
    sigs: [u32; wire::CALLS],
}

impl Window {
    /// Of a communicator whose collectives are revoked. It differs from no other window, and covers all calls.
    const REVOKED: Self = Self {
        next: u32::MAX,
        sigs: [0; wire::CALLS],
    };

    fn of(letter: &LastCalls) -> Self {
        Self {
            next: letter.next,
            sigs: letter.sigs,
        }
    }

    /// Returns the half of a call's signature, or 0 if it is not known.
    fn sig(&self, tag: u32) -> u32 {
        let age = self.next.wrapping_sub(tag).wrapping_sub(1);
        let sig = self.sigs.get(age as usize);
        sig.copied().unwrap_or_default()
    }

    /// Returns the calls that this window covers, the oldest first.
    fn tags(&self) -> Range<u32> {
        let first = self.next.saturating_sub(CALLS);
        first..self.next
    }

    /// Returns the first call with two different known signatures.
    fn difference(&self, other: &Self) -> Option<u32> {
        self.tags().find(|tag| {
            let (ours, theirs) = (self.sig(*tag), other.sig(*tag));
            ours != theirs && ours != 0 && theirs != 0
        })
    }
}

/// Folds a signature into half its length. Never returns 0.
fn half(sig: u64) -> u32 {
    (wire::low_half(sig) ^ wire::low_half(sig >> 32)).max(1)
}

impl Comparisons {
    pub(super) const fn new() -> Self {
        Self {
            closing: None,
            left: BTreeMap::new(),
            letters: BTreeMap::new(),
            sent: BTreeMap::new(),
        }
    }

    /// Returns true while this rank closes in good order.
    pub(super) const fn is_closing(&self) -> bool {
        self.closing.is_some()
    }

    /// Returns the members of a dropped communicator on which this rank has called collectives.
    pub(super) fn group(&self, ctx: u32) -> Option<&Group> {
        self.left.get(&ctx).map(|(group, _)| group)
    }
}

impl Engine {
    /// Begins to compare calls on all communicators. `closing` is the number of collectives that this rank has begun on the
    /// world, if it begins no others. Returns false if neither this rank nor a leaving peer has called any collective.
    pub(crate) fn begin_comparison(&mut self, closing: Option<u32>) -> bool {
        let has_begun = closing.is_some_and(|begun| begun > 0) && self.core.peers.size() > 1;
        if !has_begun && self.core.compared_contexts().is_empty() {
            return false;
        }
        self.core.programs.compared.closing = closing;
        self.compare_again();
        true
    }

    /// Notifies the peers again. A peer that does not close yet may have called the same number of collectives meanwhile.
    pub(crate) fn compare_again(&mut self) {
        for ctx in self.core.compared_contexts() {
            let sent = &mut self.core.programs.compared.sent;
            sent.retain(|(of, _), _| *of != ctx);
            self.core.compare(ctx);
        }
        self.flush();
    }
}

impl Core {
    /// Returns the contexts on which this rank, or a leaving peer, has called collectives.
    fn compared_contexts(&self) -> Vec<u32> {
        let state = &*self.programs;
        let live = self.groups.contexts();
        let live = live.filter(|ctx| !ctx.is_multiple_of(2) && state.calls.next(*ctx) > 0);
        let left = state.compared.left.keys().copied();
        let named = state.compared.letters.keys().map(|(ctx, _)| *ctx);
        // Collectives whose futures were never polled have no record, but are included in this count.
        let world = state.compared.closing.filter(|begun| *begun > 0);
        let world = world.map(|_| WORLD);
        let mut all: Vec<u32> = live.chain(left).chain(named).chain(world).collect();
        all.sort_unstable();
        all.dedup();
        all.retain(|ctx| self.group_of(*ctx).is_some_and(|group| group.len() > 1));
        // The world, and the latest others.
        let first = usize::from(all.first() == Some(&WORLD));
        let surplus = all.len().saturating_sub(first + LEFT_MAX);
        all.drain(first..first + surplus);
        all
    }

    /// Returns the last calls of this rank on a communicator.
    fn last_calls(&self, ctx: u32) -> Window {
        let state = &*self.programs;
        let left = state.compared.left.get(&ctx);
        let left = left.map_or_else(Window::default, |(_, window)| *window);
        let next = state.calls.next(ctx).max(left.next);
        let mut window = Window { next, ..left };
        for tag in window.tags() {
            let age = (next - tag - 1) as usize;
            let running = state.calls.running((ctx, tag)).map(|running| running.sig);
            let known = running.or_else(|| state.calls.sig_of_over((ctx, tag)));
            window.sigs[age] = known.map_or_else(|| left.sig(tag), half);
        }
        window
    }

    /// Keeps the last calls on a communicator that this rank drops. They are compared when it leaves.
    pub(in crate::engine) fn keep_calls(&mut self, ctx: u32, group: Group) {
        let is_compared = !ctx.is_multiple_of(2) && group.len() > 1;
        if !is_compared || self.programs.calls.next(ctx) == 0 {
            return;
        }
        let window = self.last_calls(ctx);
        let left = &mut self.programs.compared.left;
        left.insert(ctx, (group, window));
        if left.len() > LEFT_MAX {
            // Never drop the world's calls: all ranks rely on them.
            let oldest = left.keys().copied().find(|ctx| *ctx > WORLD);
            oldest.map(|ctx| left.remove(&ctx));
        }
    }

    /// Compares the letters received for this communicator, and sends this rank's letter of each round that is due.
    pub(super) fn compare(&mut self, ctx: u32) {
        let is_revoked = self.programs.calls.is_revoked(ctx);
        let me = self.programs.me;
        let Some(group) = self.group_of(ctx) else {
            return;
        };
        let Some(place) = group.local_of(me) else {
            return;
        };
        let closing = self.programs.compared.closing.filter(|_| !is_revoked);
        let ours = if is_revoked {
            Window::REVOKED
        } else {
            self.last_calls(ctx)
        };
        let may_miss = closing.is_some() && ctx == WORLD && !self.has_failed_member(&group);
        for (round, distance) in rounds(group.len()) {
            let at = |place: usize| group.world_of(place % group.len());
            let (to, from) = (at(place + distance), at(place + group.len() - distance));
            let (Some(to), Some(from)) = (to, from) else {
                return;
            };
            self.send_calls((ctx, round), to, (&ours, closing));
            if is_revoked {
                continue; // nothing is left to compare
            }
            let letter = self.programs.compared.letters.get(&(ctx, round));
            let letter = letter.filter(|(rank, _)| *rank == from);
            let letter = letter.map(|(_, letter)| *letter);
            let theirs = letter.as_ref().map(Window::of);
            let end = letter.and_then(|letter| (letter.closing != 0).then_some(letter.begun));
            let uneven = match (closing, end) {
                (Some(ours), Some(theirs)) if may_miss && ours != theirs => Some(ours.min(theirs)),
                _ => None,
            };
            // Collectives that create communicators and windows have no signature here. They fail by themselves if only some
            // ranks call them, so do not report them.
            let is_call = |tag: &u32| {
                [Some(ours), theirs]
                    .iter()
                    .flatten()
                    .any(|its| its.sig(*tag) != 0)
            };
            let uneven = uneven.filter(is_call);
            let differs = theirs.and_then(|theirs| ours.difference(&theirs));
            if let Some(tag) = differs.or(uneven) {
                let why = Why::Mismatch(from.min(me), from.max(me));
                return self.revoke((ctx, tag), why);
            }
            let is_heard = end.is_some() || theirs.is_some_and(|theirs| theirs.next >= ours.next);
            if !is_heard && self.peers.down(from).is_none() {
                return;
            }
        }
    }

    /// Returns true if a member has failed. Survivors may have gone on at different collectives.
    fn has_failed_member(&self, group: &Group) -> bool {
        let failed = |member: u32| self.peers.down(member) == Some(Down::Failed);
        self.peers.downs() > 0 && group.members().any(failed)
    }

    /// Sends the last calls of this rank, unless the peer has them already.
    fn send_calls(
        &mut self,
        (ctx, round): (u32, u32),
        to: u32,
        (ours, closing): (&Window, Option<u32>),
    ) {
        let sent = &mut self.programs.compared.sent;
        let before = sent.insert((ctx, round), ours.next);
        if before == Some(ours.next) || self.peers.down(to).is_some() {
            return;
        }
        let header = LastCalls {
            base: Base::new(Kind::LastCalls),
            ctx,
            round,
            next: ours.next,
            closing: closing.is_some().into(),
            begun: closing.unwrap_or_default(),
            sigs: ours.sigs,
        };
        self.peers.control(to, &header);
    }

    /// Handles the last calls of a peer that leaves or takes part in a comparison.
    pub(in crate::engine) fn handle_last_calls(&mut self, rank: u32, header: &LastCalls) {
        let key = (header.ctx, header.round);
        if header.ctx.is_multiple_of(2) || header.round >= ROUNDS_MAX {
            self.refused += 1;
            return;
        }
        let group = self.group_of(header.ctx);
        if group.is_none() && self.has_left(header.ctx & !1)
            || group
                .is_some_and(|group| !is_in_front(&group, (rank, self.programs.me), header.round))
        {
            return; // the calls there are not known any more, or the sender is no member
        }
        let is_revoked = self.programs.calls.is_revoked(header.ctx);
        if is_revoked {
            self.tell_revoked(rank, header.ctx);
        }
        let compared = &mut self.programs.compared;
        compared.letters.insert(key, (rank, *header));
        if compared.letters.len() > LETTERS_MAX {
            compared.letters.pop_last();
        }
        let closing = compared.closing;
        if is_revoked || closing.is_some() || self.last_calls(header.ctx).next >= header.next {
            // Compare later: news of a difference may have arrived right behind the letter. Its sender may have left since, so
            // that it could not send the words for its call any more.
            self.programs.told.push(Told::Letter(header.ctx));
        }
    }

    /// Waits for the last calls of the other ranks. Ready when each round's letter has arrived or its sender is down.
    pub(crate) fn poll_compared(&mut self, waker: &Waker) -> Poll<()> {
        for ctx in self.compared_contexts() {
            self.compare(ctx); // Peers may have left meanwhile.
            let polled = match self.programs.calls.revoked_from(ctx) {
                Some(_) => self.poll_words(ctx, waker),
                None if self.is_compared(ctx) => Poll::Ready(()),
                None => self.wait_for_words(waker),
            };
            if polled.is_pending() {
                return Poll::Pending;
            }
        }
        Poll::Ready(())
    }

    /// Returns true if each round's letter has arrived, or its sender is down.
    fn is_compared(&self, ctx: u32) -> bool {
        if self.programs.calls.is_revoked(ctx) {
            return true;
        }
        let Some(group) = self.group_of(ctx) else {
            return true;
        };
        let Some(place) = group.local_of(self.programs.me) else {
            return true;
        };
        let next = self.last_calls(ctx).next;
        rounds(group.len()).all(|(round, distance)| {
            let from = group.world_of((place + group.len() - distance) % group.len());
            let letter = self.programs.compared.letters.get(&(ctx, round));
            let is_heard = letter.is_some_and(|(rank, letter)| {
                Some(*rank) == from && (letter.closing != 0 || letter.next >= next)
            });
            is_heard || from.is_none_or(|from| self.peers.down(from).is_some())
        })
    }

    /// Returns true if this rank knows that two ranks called different collectives.
    pub(crate) fn knows_of_mismatch(&self) -> bool {
        !self.programs.calls.mismatches().is_empty()
    }

    /// Returns the error that two ranks called different collectives, if no call of this rank has returned it. The caller must
    /// report it.
    pub(crate) fn take_untold_mismatch(&mut self) -> Option<(u32, ErrorKind)> {
        let mut contexts = self.compared_contexts().into_iter();
        let ctx = contexts.find(|ctx| self.programs.calls.take_untold_mismatch(*ctx))?;
        let (ranks, calls) = self.disagreement(ctx)?;
        let group = self.group_of(ctx)?;
        let [rank, other] = ranks.map(|world| group.local_of(world).unwrap_or(world as usize));
        Some((ctx & !1, ErrorKind::Mismatch { rank, other, calls }))
    }
}

/// Returns true if `rank` sends letters of this round to `me`.
fn is_in_front(group: &Group, (rank, me): (u32, u32), round: u32) -> bool {
    let Some((front, place)) = group.local_of(rank).zip(group.local_of(me)) else {
        return false;
    };
    let is_it = |(its, distance)| its == round && (front + distance) % group.len() == place;
    rounds(group.len()).any(is_it)
}

/// Returns the rounds among `size` ranks, and the distance in each.
fn rounds(size: usize) -> impl Iterator<Item = (u32, usize)> {
    let rounds = (0..ROUNDS_MAX).map(|round| (round, 1_usize << round));
    rounds.take_while(move |(_, distance)| *distance < size)
}

#[cfg(test)]
mod tests {
    use super::{Window, half, rounds, wire};

    /// Returns the window of a rank with these calls, the first call first.
    fn window(sigs: &[u64]) -> Window {
        let mut window = Window {
            next: u32::try_from(sigs.len()).expect("a few"),
            ..Window::default()
        };
        for (kept, sig) in window.sigs.iter_mut().zip(sigs.iter().rev()) {
            *kept = half(*sig);
        }
        window
    }

    #[test]
    fn the_first_different_call_is_found() {
        let ours = window(&[1, 2, 3, 4]);
        for same in [&[1, 2, 3, 4][..], &[1, 2], &[], &[1, 2, 3, 4, 5]] {
            assert_eq!(ours.difference(&window(same)), None);
        }
        assert_eq!(ours.difference(&window(&[1, 9, 9, 4])), Some(1));
        assert_eq!(ours.difference(&window(&[1, 9])), Some(1));
        assert_eq!(window(&[1, 9]).difference(&ours), Some(1));
    }

    #[test]
    fn calls_that_one_rank_does_not_know_any_more_are_no_difference() {
        let calls: Vec<u64> = (1..=40).collect();
        let mut others = calls.clone();
        others[40 - wire::CALLS - 1] = 99;
        assert_eq!(window(&calls).difference(&window(&others)), None);
        others[40 - wire::CALLS] = 99;
        let first = u32::try_from(40 - wire::CALLS).ok();
        assert_eq!(window(&calls).difference(&window(&others)), first);
        let mut gaps = window(&calls);
        gaps.sigs.fill(0);
        assert_eq!(gaps.difference(&window(&others)), None);
    }

    #[test]
    fn a_forged_number_of_calls_is_no_panic() {
        let ours = window(&[1, 2, 3]);
        for next in [0, 1, 20, u32::MAX - 1, u32::MAX] {
            let found = ours.difference(&Window { next, ..ours });
            assert!(found.is_none_or(|tag| tag < 3), "{next}: {found:?}");
        }
    }

    #[test]
    fn each_rank_hears_of_all_others_in_the_rounds() {
        for size in 1..40_usize {
            let mut known = vec![0_u64; size];
            (0..size).for_each(|rank| known[rank] = 1 << rank);
            for (_, distance) in rounds(size) {
                let before = known.clone();
                (0..size).for_each(|rank| known[(rank + distance) % size] |= before[rank]);
            }
            assert!(
                known
                    .iter()
                    .all(|known| known.count_ones() as usize == size)
            );
        }
    }
}
