//! A server with a queue.

/// Serves requests one at a time, in the order of arrival: a process manager in virtual time.
#[derive(Clone, Debug)]
pub struct FifoServer {
    service_ns: u64,
    free_at: u64,
}

impl FifoServer {
    /// Makes a server that needs this many nanoseconds for each request.
    #[must_use]
    pub const fn new(service_ns: u64) -> Self {
        Self {
            service_ns,
            free_at: 0,
        }
    }

    /// Returns when a request that arrives at `at` is answered, both in nanoseconds. Call it in the order of arrival.
    pub fn serve(&mut self, at: u64) -> u64 {
        self.free_at = at.max(self.free_at).saturating_add(self.service_ns);
        self.free_at
    }
}

#[cfg(test)]
mod tests {
    use super::FifoServer;

    #[test]
    fn requests_that_come_together_wait_for_each_other() {
        let mut server = FifoServer::new(10);
        let answers = [0, 0, 0, 100, 105].map(|at| server.serve(at));
        assert_eq!(answers, [10, 20, 30, 110, 120]);
    }
}
