//! The communicators that this rank is in, by context. There are few, and they are searched only when a peer fails or leaves.

use std::ops::Range;

use crate::group::{RankGroup, WorldRank};

#[derive(Debug, Default)]
pub(in crate::engine) struct GroupTable {
    /// Sorted by context. In a vector the first communicator takes a tenth of the memory that it takes in a tree, which
    /// matters in large simulations.
    joined: Vec<JoinedGroup>,
    /// Even contexts that this rank has left for good, divided by 2, as sorted ranges that do not touch.
    left: Vec<Range<u32>>,
}

#[derive(Debug)]
struct JoinedGroup {
    ctx: u32,
    group: RankGroup,
    handles: u32,
}

impl GroupTable {
    /// Returns the members of this communicator. O(log communicators).
    pub(in crate::engine) fn get(&self, ctx: u32) -> Option<&RankGroup> {
        let at = self.place(ctx).ok()?;
        Some(&self.joined[at].group)
    }

    /// Adds a handle of a communicator. Returns true if it is the first.
    pub(in crate::engine) fn join(&mut self, ctx: u32, group: &RankGroup) -> bool {
        let place = self.place(ctx);
        let at = place.unwrap_or_else(|at| at);
        if place.is_err() {
            let group = group.clone();
            // Most ranks only ever have the world's two contexts, one for messages and one for collectives.
            if self.joined.is_empty() {
                self.joined.reserve_exact(2);
            }
            self.joined.insert(
                at,
                JoinedGroup {
                    ctx,
                    group,
                    handles: 0,
                },
            );
        }
        self.joined[at].handles += 1;
        place.is_err()
    }

    /// Removes a handle of a communicator. Returns the members if it was the last handle.
    pub(in crate::engine) fn leave(&mut self, ctx: u32) -> Option<RankGroup> {
        let at = self.place(ctx).ok()?;
        self.joined[at].handles -= 1;
        if self.joined[at].handles > 0 {
            return None;
        }
        let joined = self.joined.remove(at);
        self.note_left(ctx);
        Some(joined.group)
    }

    /// Returns the contexts of all communicators that this rank is in.
    pub(in crate::engine) fn contexts(&self) -> impl Iterator<Item = u32> {
        self.joined.iter().map(|joined| joined.ctx)
    }

    /// Returns true if this rank has left the communicator with this message context for good. O(log ranges).
    pub(in crate::engine) fn has_left(&self, ctx: u32) -> bool {
        if self.left.is_empty() || !ctx.is_multiple_of(2) {
            return false;
        }
        let after = self.left.partition_point(|range| range.end <= ctx / 2);
        let range = self.left.get(after);
        range.is_some_and(|range| range.contains(&(ctx / 2)))
    }

    fn note_left(&mut self, ctx: u32) {
        // The world's context can be joined again: a later call may make another handle of it.
        if ctx == 0 || !ctx.is_multiple_of(2) {
            return;
        }
        let half = ctx / 2;
        let after = self.left.partition_point(|range| range.end < half);
        let mut new = half..half + 1;
        let touching = self.left[after..]
            .iter()
            .take_while(|range| range.start <= new.end)
            .count();
        for range in self.left.drain(after..after + touching) {
            new = new.start.min(range.start)..new.end.max(range.end);
        }
        self.left.insert(after, new);
    }

    /// Returns the contexts of the communicators that have `rank` as a member.
    pub(in crate::engine) fn with(&self, rank: WorldRank) -> impl Iterator<Item = u32> {
        self.joined
            .iter()
            .filter(move |joined| joined.group.contains(rank))
            .map(|joined| joined.ctx)
    }

    fn place(&self, ctx: u32) -> Result<usize, usize> {
        self.joined.binary_search_by_key(&ctx, |joined| joined.ctx)
    }
}

#[cfg(test)]
mod tests {
    use super::{GroupTable, RankGroup};

    #[test]
    fn what_was_left_is_kept_in_few_ranges() {
        let mut groups = GroupTable::default();
        for ctx in [0, 1, 2, 3, 8, 9, 6, 7, 12, 13, 4, 5] {
            assert!(groups.join(ctx, &RankGroup::First(2)));
            assert!(!groups.has_left(ctx));
            assert!(groups.leave(ctx).is_some());
        }
        let left = (0..20).filter(|ctx| groups.has_left(*ctx));
        assert_eq!(left.collect::<Vec<_>>(), [2, 4, 6, 8, 12]);
        assert_eq!(groups.left, [1..5, 6..7]);
    }

    #[test]
    fn the_last_handle_leaves() {
        let mut groups = GroupTable::default();
        groups.join(4, &RankGroup::First(2));
        groups.join(4, &RankGroup::First(2));
        assert!(groups.leave(4).is_none() && !groups.has_left(4));
        assert!(groups.leave(4).is_some() && groups.has_left(4));
    }
}
