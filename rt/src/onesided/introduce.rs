//! Meeting other ends ahead of their first use.

use std::future::poll_fn;

use super::{Port, listener::Listener};
use crate::{buffer::Wire, engine::Engine, error::Result};

impl<T: Wire> Port<T> {
    /// Introduces this end to these ranks, and returns when all of them have introduced theirs.
    ///
    /// # Errors
    /// A rank that is out of range or named twice, that failed, finished or freed the window, or has elements of another type.
    pub async fn introduce(&self, neighbours: &[usize]) -> Result<()> {
        self.check_ranks("meet", "neighbours", neighbours)?;
        let mut met = Vec::new();
        for &rank in neighbours {
            met.push(self.meet("meet", "neighbours", rank)?);
        }
        let ranks: Vec<u32> = met.iter().map(|target| target.world).collect();
        let (id, shared) = (self.id, self.comm.shared());
        shared.with(|engine| {
            for &rank in &ranks {
                engine.greet(id, rank);
            }
            engine.flush();
        });
        let check = |engine: &mut Engine| engine.core.have_come(id, &ranks);
        let mut listener = Listener::new(self);
        let known = poll_fn(|cx| listener.poll(cx, check, |_| ()));
        let known = known.await;
        known.map_err(|(rank, why)| self.error("meet", why, rank))?;
        met.into_iter()
            .try_for_each(|target| self.look("meet", target))
    }
}
