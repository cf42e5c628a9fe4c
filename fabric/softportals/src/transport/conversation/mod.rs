//! Reliable, ordered packets over datagrams that are lost, duplicated and reordered: go-back-n. Pure.
//!
//! **Conversations.** Each pair of interfaces has a conversation, which has one number per end. A peer that restarts, or that
//! has given this process up, uses a new number. A delayed frame of its predecessor carries an old number, and clocks cannot
//! tell which number is newer, because clocks are set back. So this process pings the known peer. If it still runs, it answers.
//! If a successor has its address, the successor answers `Unknown` with the number from that ping, which it could not know
//! otherwise.
//!
//! **Frames.** Data frames count from zero. A receiver takes only the next expected frame and stores no others, so it needs no
//! memory for them. If a frame is missing, or there is no room, the receiver says so at most once per hold time, and the sender
//! resends from there. Unanswered frames are resent at growing intervals. After [`PATIENCE_NS`] without a sign of life the peer
//! is given up.
//!
//! Times are in nanoseconds.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, VecDeque};

use crate::event::PhysicalId;

/// Conversations of one interface.
#[derive(Debug)]
pub(super) struct UdpConversations {
    peers: BTreeMap<PhysicalId, UdpConversation>,
    /// Peers with frames to send.
    ready: VecDeque<PhysicalId>,
    /// Frames to answer with `Unknown`: their senders and their conversation numbers.
    strays: BTreeMap<PhysicalId, u64>,
    lost: Vec<PhysicalId>,
    /// Number of the most recent conversation.
    next_own: u64,
    /// Earliest time at which anything is due.
    due: u64,
}

#[derive(Debug)]
struct UdpConversation {
    own: u64,
    theirs: Option<u64>,
    queued: bool,
    /// Unacknowledged frames; the first has the number `first`.
    unacknowledged: VecDeque<Vec<u8>>,
    first: u64,
    /// Unacknowledged frames sent since the last step back.
    sent: usize,
    window: usize,
    /// Time to resend, unless an acknowledgment arrives earlier.
    repeat_at: Option<u64>,
    repeats: u32,
    hold_until: u64,
    refusals: u32,
    went_back_at: Option<u64>,
    /// Number of the next frame to take.
    expected: u64,
    owes_ack: bool,
    owes_ping: bool,
    refusal: Option<UdpFrameRefusal>,
    /// Number of the last refused frame, and the time of the refusal.
    refused: Option<(u64, u64)>,
    /// Time since which a sign of life is missing.
    silent_since: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum UdpFrameRefusal {
    Gap,
    Full,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum UdpFrameKind {
    Data,
    Ack,
    Ping,
    Gap,
    Full,
    Unknown,
}

#[derive(Clone, Copy, Debug)]
struct UdpFrameHeader {
    kind: UdpFrameKind,
    /// Conversation number of the sender.
    own: u64,
    /// Conversation number of the receiver, or 0 if unknown.
    theirs: u64,
    number: u64,
    expected: u64,
}

impl UdpConversations {
    /// Returns a value whose conversation numbers start after `epoch`, which no earlier process with this address has used.
    pub(super) const fn new(epoch: u64, now: u64) -> Self {
        Self {
            peers: BTreeMap::new(),
            ready: VecDeque::new(),
            strays: BTreeMap::new(),
            lost: Vec::new(),
            next_own: epoch,
            due: now,
        }
    }

    pub(super) fn has_room(&self, peer: PhysicalId) -> bool {
        let conversation = self.peers.get(&peer);
        let has_room = conversation.is_none_or(|one| one.unacknowledged.len() < one.window.max(2));
        has_room && !self.lost.contains(&peer)
    }

    pub(super) fn send(&mut self, now: u64, peer: PhysicalId, packet: Vec<u8>) {
        let conversation = self.with(peer);
        conversation.unacknowledged.push_back(packet);
        conversation.silent_since.get_or_insert(now);
        self.activate(peer);
    }

    /// Pings the peer to learn whether it is alive.
    pub(super) fn probe(&mut self, now: u64, peer: PhysicalId) {
        let conversation = self.with(peer);
        conversation.owes_ping = true;
        conversation.silent_since.get_or_insert(now);
        self.activate(peer);
    }

    /// Handles an arrived frame. Returns its packet if the frame is the expected one and there is room.
    pub(super) fn handle<'a>(
        &mut self,
        now: u64,
        from: PhysicalId,
        frame: &'a [u8],
        has_room: bool,
    ) -> Option<&'a [u8]> {
        let (header, packet) = frame.split_first_chunk()?;
        let header = UdpFrameHeader::decode(header)?;
        let takes = self.meet(from, &header)?;
        let packet = takes.handle(now, &header, has_room).then_some(packet);
        self.activate(from);
        packet
    }

    /// Returns the conversation that a frame belongs to, or starts one.
    fn meet(&mut self, from: PhysicalId, header: &UdpFrameHeader) -> Option<&mut UdpConversation> {
        if header.kind == UdpFrameKind::Unknown && header.theirs == 0 {
            return None;
        }
        let known = self.peers.get(&from);
        let for_another = header.theirs != 0 && known.map(|one| one.own) != Some(header.theirs);
        if for_another {
            if header.kind != UdpFrameKind::Unknown && self.strays.len() < STRAYS_MAX {
                self.strays.insert(from, header.own);
            }
            return None;
        }
        let theirs = known.and_then(|one| one.theirs);
        if header.kind == UdpFrameKind::Unknown {
            self.lose(from);
            return None;
        }
        if theirs.is_some_and(|theirs| header.own != theirs) {
            self.ask(from);
            return None;
        }
        let begins = begins_something(header.kind) && self.peers.len() < PEERS_MAX;
        if !self.peers.contains_key(&from) && !begins {
            return None;
        }
        let conversation = self.with(from);
        conversation.theirs = Some(header.own);
        Some(conversation)
    }

    /// Pings the known peer to find out whether it still runs.
    ///
    /// Silence proves nothing, because the ping may have been lost. The ping is not retried: a successor repeats the frame that
    /// caused it, and so causes another one. A delayed frame is not repeated.
    fn ask(&mut self, peer: PhysicalId) {
        if let Some(conversation) = self.peers.get_mut(&peer) {
            conversation.owes_ping = true;
        }
        self.activate(peer);
    }

    fn with(&mut self, peer: PhysicalId) -> &mut UdpConversation {
        let next_own = &mut self.next_own;
        self.peers.entry(peer).or_insert_with(|| {
            *next_own += 1;
            UdpConversation::new(*next_own)
        })
    }

    fn lose(&mut self, peer: PhysicalId) {
        if self.peers.remove(&peer).is_some() {
            self.lost.push(peer);
        }
    }

    fn activate(&mut self, peer: PhysicalId) {
        if let Some(conversation) = self.peers.get_mut(&peer) {
            self.due = self.due.min(conversation.deadline());
            if !std::mem::replace(&mut conversation.queued, true) {
                self.ready.push_back(peer);
            }
        }
    }

    /// Resends, and gives up peers, as due. O(conversations) if anything is due, otherwise O(1).
    pub(super) fn handle_time(&mut self, now: u64) {
        if now < self.due {
            return;
        }
        let silent = self.peers.iter().filter(|(_, one)| one.is_given_up(now));
        let silent: Vec<PhysicalId> = silent.map(|(peer, _)| *peer).collect();
        silent.into_iter().for_each(|peer| self.lose(peer));
        let due = self
            .peers
            .iter_mut()
            .filter(|(_, one)| one.deadline() <= now);
        let due: Vec<PhysicalId> = due
            .map(|(peer, one)| {
                one.handle_time(now);
                *peer
            })
            .collect();
        due.into_iter().for_each(|peer| self.activate(peer));
        let deadlines = self.peers.values().map(UdpConversation::deadline);
        self.due = deadlines.min().unwrap_or(u64::MAX);
    }

    /// Passes the frames that may leave to `send`, in up to three parts, one per peer in turn.
    pub(super) fn transmit(&mut self, now: u64, mut send: impl FnMut(PhysicalId, [&[u8]; 3])) {
        while let Some((peer, theirs)) = self.strays.pop_first() {
            self.next_own += 1;
            let unknown = UdpFrameHeader {
                kind: UdpFrameKind::Unknown,
                own: self.next_own,
                theirs,
                number: 0,
                expected: 0,
            };
            send(peer, [&unknown.encode(), &[], &[]]);
        }
        while let Some(peer) = self.ready.pop_front() {
            let Some(conversation) = self.peers.get_mut(&peer) else {
                continue;
            };
            conversation.queued = false;
            if let Some((header, packet)) = conversation.next_frame(now) {
                send(peer, [&header.encode(), packet, &[]]);
                self.activate(peer);
            } else {
                self.due = self.due.min(conversation.deadline());
            }
        }
    }

    pub(super) fn next_lost(&mut self) -> Option<PhysicalId> {
        self.lost.pop()
    }

    /// Returns true if there are unacknowledged frames.
    pub(super) fn owes(&self) -> bool {
        self.peers
            .values()
            .any(|one| !one.unacknowledged.is_empty())
    }

    /// Returns the time at which [`Self::handle_time`] must be called next.
    pub(super) fn deadline(&self) -> Option<u64> {
        (self.due != u64::MAX).then_some(self.due)
    }
}

/// Returns true if a frame of this kind may start a conversation. Answers may not.
const fn begins_something(kind: UdpFrameKind) -> bool {
    matches!(kind, UdpFrameKind::Data | UdpFrameKind::Ping)
}

impl UdpConversation {
    const fn new(own: u64) -> Self {
        Self {
            own,
            theirs: None,
            queued: false,
            unacknowledged: VecDeque::new(),
            first: 0,
            sent: 0,
            window: WINDOW_START,
            repeat_at: None,
            repeats: 0,
            hold_until: 0,
            refusals: 0,
            went_back_at: None,
            expected: 0,
            owes_ack: false,
            owes_ping: false,
            refusal: None,
            refused: None,
            silent_since: None,
        }
    }

    /// Handles a frame. Returns true if its packet is taken.
    fn handle(&mut self, now: u64, header: &UdpFrameHeader, has_room: bool) -> bool {
        self.silent_since = None;
        self.handle_expected(now, header.expected);
        if !self.unacknowledged.is_empty() {
            self.silent_since = Some(now);
        }
        match header.kind {
            UdpFrameKind::Data => return self.handle_data(now, header.number, has_room),
            UdpFrameKind::Ping => self.owes_ack = true,
            UdpFrameKind::Gap => self.go_back(now),
            UdpFrameKind::Full => {
                self.refusals += 1;
                self.hold_until = now + (HOLD_NS << self.refusals.min(HOLD_DOUBLINGS_MAX));
                self.sent = 0;
            }
            UdpFrameKind::Ack | UdpFrameKind::Unknown => {}
        }
        false
    }

    /// Handles an acknowledgment: the peer has all frames before `expected`.
    fn handle_expected(&mut self, now: u64, expected: u64) {
        let news = expected.saturating_sub(self.first);
        let news = usize::try_from(news).unwrap_or(usize::MAX);
        if news == 0 || news > self.unacknowledged.len() {
            return;
        }
        self.unacknowledged.drain(..news);
        self.first = expected;
        self.sent = self.sent.saturating_sub(news);
        self.window = (self.window + 1).min(WINDOW_MAX);
        self.repeats = 0;
        self.refusals = 0;
        self.repeat_at = (self.sent > 0).then_some(now + REPEAT_NS);
    }

    fn handle_data(&mut self, now: u64, number: u64, has_room: bool) -> bool {
        if number < self.expected {
            self.owes_ack = true;
            return false;
        }
        if number == self.expected && has_room {
            self.expected += 1;
            self.owes_ack = true;
            return true;
        }
        let refused_just_now = self
            .refused
            .is_some_and(|(frame, at)| frame == self.expected && now < at + HOLD_NS);
        if !refused_just_now {
            self.refused = Some((self.expected, now));
            self.refusal = Some(if number == self.expected {
                UdpFrameRefusal::Full
            } else {
                UdpFrameRefusal::Gap
            });
        }
        false
    }

    /// Resends from the first unacknowledged frame, unless the previous resend cannot have arrived yet.
    fn go_back(&mut self, now: u64) {
        if self.went_back_at.is_some_and(|at| now < at + HOLD_NS) {
            return;
        }
        self.went_back_at = Some(now);
        self.sent = 0;
        self.window = (self.window / 2).max(1);
    }

    fn handle_time(&mut self, now: u64) {
        if self.repeat_at.is_some_and(|at| at <= now) {
            self.repeats = (self.repeats + 1).min(REPEAT_DOUBLINGS_MAX);
            self.repeat_at = None;
            self.sent = 0;
            self.window = (self.window / 2).max(1);
        }
    }

    fn next_frame(&mut self, now: u64) -> Option<(UdpFrameHeader, &[u8])> {
        let header = |kind, number, one: &Self| UdpFrameHeader {
            kind,
            own: one.own,
            theirs: one.theirs.unwrap_or(0),
            number,
            expected: one.expected,
        };
        if let Some(refusal) = self.refusal.take() {
            let kind = match refusal {
                UdpFrameRefusal::Gap => UdpFrameKind::Gap,
                UdpFrameRefusal::Full => UdpFrameKind::Full,
            };
            return Some((header(kind, 0, self), &[]));
        }
        let may_send = self.sent < self.unacknowledged.len().min(self.window);
        if may_send && now >= self.hold_until {
            let number = self.first + self.sent as u64;
            self.repeat_at
                .get_or_insert(now + (REPEAT_NS << self.repeats));
            self.sent += 1;
            self.owes_ack = false;
            let header = header(UdpFrameKind::Data, number, self);
            return self
                .unacknowledged
                .get(self.sent - 1)
                .map(|packet| (header, &packet[..]));
        }
        if std::mem::take(&mut self.owes_ping) {
            self.owes_ack = false;
            return Some((header(UdpFrameKind::Ping, 0, self), &[]));
        }
        std::mem::take(&mut self.owes_ack).then(|| (header(UdpFrameKind::Ack, 0, self), &[][..]))
    }

    fn is_given_up(&self, now: u64) -> bool {
        self.silent_since
            .is_some_and(|since| now >= since + PATIENCE_NS)
    }

    fn deadline(&self) -> u64 {
        let waits = self.sent < self.unacknowledged.len().min(self.window);
        let ends = [
            self.repeat_at,
            (waits && self.hold_until > 0).then_some(self.hold_until),
            self.silent_since.map(|since| since + PATIENCE_NS),
        ];
        ends.into_iter().flatten().min().unwrap_or(u64::MAX)
    }
}

impl UdpFrameHeader {
    fn encode(&self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4] = match self.kind {
            UdpFrameKind::Data => 0,
            UdpFrameKind::Ack => 1,
            UdpFrameKind::Ping => 2,
            UdpFrameKind::Gap => 3,
            UdpFrameKind::Full => 4,
            UdpFrameKind::Unknown => 5,
        };
        let words = [self.own, self.theirs, self.number, self.expected];
        for (place, word) in bytes[8..].chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    fn decode(bytes: &[u8; HEADER_LEN]) -> Option<Self> {
        let word = |at: usize| bytes[at..].first_chunk().copied().map(u64::from_le_bytes);
        let kind = match bytes[4] {
            0 => UdpFrameKind::Data,
            1 => UdpFrameKind::Ack,
            2 => UdpFrameKind::Ping,
            3 => UdpFrameKind::Gap,
            4 => UdpFrameKind::Full,
            5 => UdpFrameKind::Unknown,
            _ => return None,
        };
        let header = Self {
            kind,
            own: word(8)?,
            theirs: word(16)?,
            number: word(24)?,
            expected: word(32)?,
        };
        bytes.starts_with(&MAGIC).then_some(header)
    }
}

/// Bytes of the header before each packet.
pub(super) const HEADER_LEN: usize = 40;

/// The last byte is the version of the format.
const MAGIC: [u8; 4] = *b"RSP\x01";
/// Frames in flight to a peer: as many packets as fit into the smallest receive buffer of common systems.
const WINDOW_MAX: usize = 16;
const WINDOW_START: usize = 8;
/// Minimum time between two refusals of the same frame, and the initial wait of a sender for room.
const HOLD_NS: u64 = 500_000;
/// Time before the first resend, well above the response time of a busy machine.
const REPEAT_NS: u64 = 20_000_000;
/// Resend intervals grow to 160 ms. That gives two dozen attempts before a peer is given up, enough even if half of all frames
/// are lost.
const REPEAT_DOUBLINGS_MAX: u32 = 3;
/// Waits for room grow to 32 ms.
const HOLD_DOUBLINGS_MAX: u32 = 6;
/// Silence after which a peer is considered dead.
pub(super) const PATIENCE_NS: u64 = 4_000_000_000;
/// Peers at a time: several times the number of addresses in one network of this kind.
const PEERS_MAX: usize = 1 << 16;
/// Pending `Unknown` answers.
const STRAYS_MAX: usize = 64;

#[cfg(test)]
mod tests;
