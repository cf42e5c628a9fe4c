//! The sender's half of a limit.

/// How many messages may be sent to a peer, in all.
#[derive(Debug)]
pub(crate) struct Allowance {
    limit: u32,
    used: u32,
    /// The limit at which the peer was last told that we are blocked.
    told: Option<u32>,
}

impl Allowance {
    pub(crate) fn new(first: u32) -> Self {
        Self {
            limit: first,
            used: 0,
            told: None,
        }
    }

    /// Takes a message's place at the receiver. `false`: not now.
    #[inline]
    pub(crate) fn spend(&mut self) -> bool {
        let free = self.used != self.limit;
        self.used = self.used.wrapping_add(u32::from(free));
        free
    }

    /// Takes a [`spend`](Self::spend) back: the message did not leave.
    pub(crate) fn unspend(&mut self) {
        self.used = self.used.wrapping_sub(1);
    }

    /// No further message may leave.
    pub(crate) fn is_spent(&self) -> bool {
        self.used == self.limit
    }

    /// Says once for each limit that the peer must be told: the limit that we are at.
    pub(crate) fn block(&mut self) -> Option<u32> {
        let news = self.is_spent() && self.told != Some(self.limit);
        news.then(|| *self.told.insert(self.limit))
    }

    /// The peer has raised the limit. Whether that is new.
    pub(crate) fn handle_grant(&mut self, limit: u32) -> bool {
        let new = ahead(limit, self.limit).is_some_and(|more| more > 0);
        if new {
            self.limit = limit;
        }
        new
    }

    /// The peer asks for what we do not need back. The limit from now on.
    pub(crate) fn handle_recall(&mut self, first: u32) -> u32 {
        let kept = self.limit.wrapping_sub(self.used).min(first);
        self.told = None;
        self.limit = self.used.wrapping_add(kept);
        self.limit
    }
}

/// By how much `later` is ahead of `earlier`, if it is not behind (RFC 1982).
pub(super) fn ahead(later: u32, earlier: u32) -> Option<u32> {
    let distance = later.wrapping_sub(earlier);
    (distance < 1 << 31).then_some(distance)
}
