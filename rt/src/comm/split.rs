//! New communicators from old ones.

use std::{collections::BTreeSet, sync::Mutex};

use super::{Comm, Group, Max, Min, Source, Tag};
use crate::error::{Error, Result};

/// Contexts in use by this runtime.
#[derive(Debug, Default)]
pub(crate) struct Contexts {
    used: Mutex<BTreeSet<u32>>,
}

impl Contexts {
    /// The least even number from `from` on that is not in use; it is in use now.
    fn reserve(&self, from: u32) -> u32 {
        let mut used = self.lock();
        let mut ctx = from.next_multiple_of(2).max(2);
        while !used.insert(ctx) {
            ctx += 2;
        }
        ctx
    }

    /// Reserves just this one, unless it is in use.
    fn reserve_exactly(&self, ctx: u32) -> bool {
        self.lock().insert(ctx)
    }

    pub(crate) fn release(&self, ctx: u32) {
        self.lock().remove(&ctx);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeSet<u32>> {
        self.used
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl Comm {
    /// Splits the ranks into communicators, one for each `color`; ranks with `None` get none. In the new communicator ranks
    /// are ordered by `key`, and those with the same key by their old rank. Collective.
    ///
    /// # Errors
    /// A member failed or finished.
    pub async fn split(&self, color: Option<u32>, key: i32) -> Result<Option<Self>> {
        let ctx = self.agree_on_context().await?;
        let all = self
            .gather_all([
                i64::from(color.is_some()),
                color.map_or(0, i64::from),
                i64::from(key),
            ])
            .await?;
        let Some(color) = color else {
            self.shared().contexts.release(ctx);
            return Ok(None);
        };
        let mine = |entry: &&(usize, [i64; 3])| entry.1[0] == 1 && entry.1[1] == i64::from(color);
        let mut members: Vec<_> = all
            .iter()
            .filter(mine)
            .map(|&(rank, [_, _, key])| (key, rank))
            .collect();
        members.sort_unstable();
        let world: Vec<u32> = members
            .iter()
            .filter_map(|&(_, rank)| self.group().world_of(rank))
            .collect();
        let group = Group::new(world);
        let rank = members
            .iter()
            .zip(0_u32..)
            .find(|((_, rank), _)| *rank == self.rank())
            .map(|(_, index)| index);
        let rank = rank.ok_or_else(|| {
            Error::argument(
                "split",
                "this rank's own entry came back changed".to_owned(),
            )
        })?;
        Ok(Some(Self::new(self.shared().clone(), ctx, rank, group)))
    }

    /// The same ranks in the same order, with messages of their own. Collective.
    ///
    /// # Errors
    /// A member failed or finished.
    pub async fn dup(&self) -> Result<Self> {
        let ctx = self.agree_on_context().await?;
        Ok(Self::new(
            self.shared().clone(),
            ctx,
            self.inner.rank,
            self.group().clone(),
        ))
    }

    /// The ranks that share this rank's node. Collective.
    ///
    /// # Errors
    /// A member failed or finished.
    pub async fn split_node(&self) -> Result<Self> {
        let node = self.shared().place.node.first().copied();
        let comm = self.split(node, 0).await?;
        comm.ok_or_else(|| {
            Error::argument("split_node", "this rank's node has no ranks".to_owned())
        })
    }

    /// A context that is free on all ranks. Each proposes one; the greatest is taken if it is free everywhere, else the next
    /// round starts above it. Splits of overlapping communicators may run at the same time.
    async fn agree_on_context(&self) -> Result<u32> {
        let contexts = &self.shared().contexts;
        let mut from = 2;
        loop {
            let proposed = contexts.reserve(from);
            let agreed = self
                .all_reduce([proposed], Max)
                .await
                .inspect_err(|_| contexts.release(proposed))?[0];
            let mut free = agreed == proposed;
            if !free {
                contexts.release(proposed);
                free = contexts.reserve_exactly(agreed);
            }
            let everywhere = self.all_reduce([u8::from(free)], Min).await;
            if matches!(everywhere, Ok([1])) {
                return Ok(agreed);
            }
            if free {
                contexts.release(agreed);
            }
            everywhere?;
            from = agreed + 2;
        }
    }

    /// Everybody's three numbers, with their ranks.
    async fn gather_all(&self, mine: [i64; 3]) -> Result<Vec<(usize, [i64; 3])>> {
        let tag = self.next_collective();
        let mut all = vec![mine; self.size()];
        if self.rank() == 0 {
            for (rank, entry) in all.iter_mut().enumerate().skip(1) {
                (*entry, _) = self
                    .recv_on(
                        self.id() + 1,
                        Source::Rank(rank),
                        Tag::Is(tag),
                        [[0_i64; 3]],
                    )
                    .await
                    .map(|(buf, status)| (buf[0], status))?;
            }
        } else {
            self.send_on(self.id() + 1, 0, tag, [mine], false).await?;
        }
        let all = self.bcast(0, all).await?;
        Ok(all.into_iter().enumerate().collect())
    }
}
