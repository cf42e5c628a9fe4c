//! The communicators of a runtime, by context: few, and looked for only when a peer goes.

use crate::group::Group;

/// A sorted list: the first communicator costs a rank of a large simulation a tenth of what it costs in a tree.
#[derive(Debug, Default)]
pub(super) struct Groups(Vec<Joined>);

#[derive(Debug)]
struct Joined {
    ctx: u32,
    group: Group,
    handles: u32,
}

impl Groups {
    /// Who is in this communicator. O(log communicators).
    pub(super) fn get(&self, ctx: u32) -> Option<&Group> {
        let at = self.place(ctx).ok()?;
        Some(&self.0[at].group)
    }

    /// A handle joins. `true`: it is the first of this communicator.
    pub(super) fn join(&mut self, ctx: u32, group: &Group) -> bool {
        let place = self.place(ctx);
        let at = place.unwrap_or_else(|at| at);
        if place.is_err() {
            let group = group.clone();
            // The world and its collectives are all that most ranks ever have.
            if self.0.is_empty() {
                self.0.reserve_exact(2);
            }
            self.0.insert(
                at,
                Joined {
                    ctx,
                    group,
                    handles: 0,
                },
            );
        }
        self.0[at].handles += 1;
        place.is_err()
    }

    /// A handle leaves. `true`: it was the last.
    pub(super) fn leave(&mut self, ctx: u32) -> bool {
        let Ok(at) = self.place(ctx) else {
            return false;
        };
        self.0[at].handles -= 1;
        let last = self.0[at].handles == 0;
        if last {
            self.0.remove(at);
        }
        last
    }

    /// The communicators that this rank is in.
    pub(super) fn with(&self, rank: u32) -> impl Iterator<Item = u32> {
        self.0
            .iter()
            .filter(move |joined| joined.group.contains(rank))
            .map(|joined| joined.ctx)
    }

    fn place(&self, ctx: u32) -> Result<usize, usize> {
        self.0.binary_search_by_key(&ctx, |joined| joined.ctx)
    }
}
