//! Introducing ends of a window to each other before their first use.

use std::future::poll_fn;

use super::{WindowEnd, WindowTarget, listener::WindowListener};
use crate::{buffer::Wire, engine::Engine, error::Result, group::WorldRank};

impl<T: Wire> WindowEnd<T> {
    /// Introduces this end to these ranks, and completes when all of them have introduced theirs.
    ///
    /// # Errors
    /// A rank is out of range or named twice, has failed, finished or freed the window, or has elements of another
    /// type.
    pub fn introduce<'p>(
        &'p self,
        neighbors: &[usize],
    ) -> impl Future<Output = Result<()>> + Send + use<'p, T> {
        let greeted = self.greet_all(neighbors);
        async move {
            let greeted = greeted?;
            let ranks: Vec<WorldRank> = greeted.iter().map(|target| target.world).collect();
            let id = self.id;
            let check = |engine: &mut Engine| engine.core.windows().have_come(id, &ranks);
            let mut listener = WindowListener::new(self);
            let known = poll_fn(|cx| listener.poll(cx, None, check, |_| ()));
            let known = known.await;
            known.map_err(|(rank, why)| self.error("meet", why, rank))?;
            greeted
                .into_iter()
                .try_for_each(|target| self.look("meet", target))
        }
    }

    /// Sends a greeting to these ranks.
    fn greet_all(&self, neighbors: &[usize]) -> Result<Vec<&WindowTarget>> {
        self.check_ranks("meet", "neighbors", neighbors)?;
        let mut greeted = Vec::new();
        for &rank in neighbors {
            greeted.push(self.find_or_insert_target("meet", "neighbors", rank)?);
        }
        let (id, shared) = (self.id, self.comm.shared());
        shared.with(|engine| {
            for target in &greeted {
                engine.windows().greet(id, target.world);
            }
            engine.flush();
        });
        Ok(greeted)
    }
}
