//! Starts of receives whose messages decide the size of their vectors.

use super::RuntimeShared;
use crate::{
    buffer::Wire,
    ops::{OpInfo, OpTicket},
};

impl RuntimeShared {
    /// Creates a receive into a new vector, and posts it.
    pub(crate) fn start_growing_recv<T: Wire>(&self, info: OpInfo) -> OpTicket<Vec<T>> {
        let mut engine = self.engine.lock();
        let (ticket, is_posted) = engine.recv_growing_calmly(info);
        if !is_posted {
            self.post(engine, ticket.op);
        }
        ticket
    }
}
