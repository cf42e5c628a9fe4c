//! The sender's half of the header quota: how many messages it may still send to a peer.

/// Number of messages that may be sent to a peer, in total.
#[derive(Debug)]
pub(crate) struct HeaderQuota {
    limit: u32,
    used: u32,
    /// Limit at which the peer was last notified that this rank is blocked.
    told: Option<u32>,
}

impl HeaderQuota {
    pub(crate) fn new(first: u32) -> Self {
        Self {
            limit: first,
            used: 0,
            told: None,
        }
    }

    /// Uses one message of the limit. Returns false if the limit is reached.
    #[inline]
    pub(crate) fn spend(&mut self) -> bool {
        let free = self.used != self.limit;
        self.used = self.used.wrapping_add(u32::from(free));
        free
    }

    /// Undoes a [`spend`](Self::spend), because the message did not leave.
    pub(crate) fn unspend(&mut self) {
        self.used = self.used.wrapping_sub(1);
    }

    /// Returns the number of messages that have left, modulo 2³².
    pub(crate) fn used(&self) -> u32 {
        self.used
    }

    /// Returns true if no further message may leave.
    pub(crate) fn is_spent(&self) -> bool {
        self.used == self.limit
    }

    /// Returns the reached limit, once for each limit, if the peer must be notified that this rank is blocked.
    pub(crate) fn block(&mut self) -> Option<u32> {
        let news = self.is_spent() && self.told != Some(self.limit);
        news.then(|| *self.told.insert(self.limit))
    }

    /// Handles a new limit from the peer. Returns true if it is higher than before.
    pub(crate) fn handle_grant(&mut self, limit: u32) -> bool {
        let new = ahead(limit, self.limit).is_some_and(|more| more > 0);
        if new {
            self.limit = limit;
        }
        new
    }

    /// Handles the peer's request to give back unused messages. Returns the limit from now on.
    pub(crate) fn handle_recall(&mut self, first: u32) -> u32 {
        let kept = self.limit.wrapping_sub(self.used).min(first);
        self.told = None;
        self.limit = self.used.wrapping_add(kept);
        self.limit
    }
}

/// Returns how far `later` is ahead of `earlier`, or `None` if it is behind (RFC 1982).
pub(super) fn ahead(later: u32, earlier: u32) -> Option<u32> {
    let distance = later.wrapping_sub(earlier);
    (distance < 1 << 31).then_some(distance)
}
