//! State of a rank, and its turns.

use std::{collections::VecDeque, io, os::fd::OwnedFd, sync::Arc, time::Duration};

use super::{
    checksum::FrameForm,
    congestion::CongestionRule,
    connection::{TcpConnection, TcpInbox},
    exports::TcpExports,
    frame::{FrameHead, FrameKind},
    handshake::TcpIdentity,
    hot::HotPeers,
    peer::TcpPeer,
    reach::DialPace,
    send_queue::TcpSendQueue,
    shortage::{ShortSends, is_shortage},
    socket_calls::{SendPart, send_bytes, send_parts},
    sockets::{SocketName, SocketRole, SocketTable},
    unmet_goodbyes::UnmetGoodbyes,
};
use crate::{
    counters::DriverStats,
    driver::{
        ArmResult, CommandFailure, CommandToken, DownCause, ExitRecord, PayloadView, Sink,
        WorldRank,
    },
    offload::ThresholdWatches,
    random::SeededRandom,
    timer::RetryTimer,
};

/// Everything that a rank has open.
#[derive(Debug)]
pub(super) struct TcpCore {
    pub(super) me: u32,
    pub(super) own: TcpIdentity,
    /// Token of this rank's address.
    pub(super) token: [u8; 16],
    /// Time after which a silent host is considered gone.
    pub(super) limit: Duration,
    /// Time for attempts to connect to a peer.
    pub(super) patience: Duration,
    pub(super) congestion: CongestionRule,
    /// What frames of this rank and of its peers look like.
    pub(super) form: FrameForm,
    pub(super) ends: Option<Arc<dyn ExitRecord>>,
    pub(super) peers: Vec<TcpPeer>,
    pub(super) sockets: SocketTable,
    pub(super) timer: RetryTimer,
    /// Ranks to which this one is connecting.
    pub(super) reaching: Vec<u32>,
    /// Attempts of which the network has not decided yet.
    pub(super) dials: DialPace,
    /// When the silence of hosts is looked at, if any owe an acknowledgment.
    pub(super) silence_due: Option<u64>,
    /// Connections without a proof.
    pub(super) arrivals: Vec<SocketName>,
    /// Listeners that are not looked at until there is room for strangers.
    pub(super) waiting_listeners: Vec<SocketName>,
    pub(super) inbox: TcpInbox,
    pub(super) exports: TcpExports,
    pub(super) watches: ThresholdWatches,
    /// What the sink was not told yet.
    pub(super) events: VecDeque<TcpEvent>,
    /// Peers for which something waits for more of the same turn.
    pub(super) staged: Vec<u32>,
    pub(super) short_sends: ShortSends,
    /// True while the rank may sleep.
    pub(super) armed: bool,
    pub(super) hot: HotPeers,
    pub(super) turns: u32,
    /// How this rank ends, once it does.
    pub(super) closing: Option<DownCause>,
    pub(super) goodbyes: UnmetGoodbyes,
    /// Notices to peers that this rank has given up.
    pub(super) notices: Vec<SocketName>,
    pub(super) counters: Arc<DriverStats>,
    pub(super) random: SeededRandom,
}

/// What the sink will be told.
#[derive(Debug)]
pub(super) enum TcpEvent {
    /// A message of this rank to itself.
    Message(Box<[u8]>, Box<[u8]>),
    Complete(CommandToken),
    Fetched(CommandToken, u64),
    Failed(CommandToken, CommandFailure),
    /// The place of a message that will never be whole.
    Returned(CommandToken),
    Down(u32, DownCause),
}

/// What a new core is made of.
#[derive(Debug)]
pub(super) struct CoreParts {
    pub(super) own: TcpIdentity,
    pub(super) token: [u8; 16],
    pub(super) limit: Duration,
    pub(super) patience: Duration,
    pub(super) congestion: CongestionRule,
    /// What frames of this rank and of its peers look like.
    pub(super) form: FrameForm,
    pub(super) ends: Option<Arc<dyn ExitRecord>>,
    pub(super) peers: Vec<TcpPeer>,
    pub(super) sockets: SocketTable,
    pub(super) timer: RetryTimer,
    pub(super) counters: Arc<DriverStats>,
    pub(super) seed: u64,
}

impl TcpCore {
    pub(super) fn new(parts: CoreParts) -> Self {
        let me = parts.own.rank;
        Self {
            me,
            own: parts.own,
            token: parts.token,
            limit: parts.limit,
            patience: parts.patience,
            congestion: parts.congestion,
            form: parts.form,
            ends: parts.ends,
            peers: parts.peers,
            sockets: parts.sockets,
            timer: parts.timer,
            reaching: Vec::new(),
            dials: DialPace::default(),
            silence_due: None,
            arrivals: Vec::new(),
            waiting_listeners: Vec::new(),
            inbox: TcpInbox {
                bytes: vec![0; INBOX_LEN],
                ..TcpInbox::default()
            },
            exports: TcpExports::new(me),
            watches: ThresholdWatches::new(),
            events: VecDeque::new(),
            staged: Vec::new(),
            short_sends: ShortSends::default(),
            armed: false,
            hot: HotPeers::default(),
            turns: 0,
            closing: None,
            goodbyes: UnmetGoodbyes::default(),
            notices: Vec::new(),
            counters: parts.counters,
            random: SeededRandom::new(parts.seed),
        }
    }

    /// Makes a turn. Returns the number of events.
    pub(super) fn turn(&mut self, budget: u32, sink: &mut dyn Sink) -> u32 {
        self.armed = false;
        self.send_staged();
        self.turns = self.turns.wrapping_add(1);
        let mut events = self.tell(budget, sink);
        events += self.handle_arrived(budget.saturating_sub(events), sink);
        // A peer that always has more must not keep the sockets waiting that are ready.
        if events < budget && !self.sockets.has_ready() {
            events += self.look_at_hot(budget - events, sink);
        } else {
            self.hot.end_dialogue();
        }
        self.note_dialogue();
        if (events == 0 && self.hot.is_empty()) || self.turns.is_multiple_of(POLL_EVERY) {
            self.poll();
        }
        events += self.look_at_ready(budget.saturating_sub(events), sink);
        events += self.tell(budget.saturating_sub(events), sink);
        events
    }

    /// Looks at the sockets that are ready, each once. Without a budget, whatever needs none is done: sends, accepts and retries.
    fn look_at_ready(&mut self, budget: u32, sink: &mut dyn Sink) -> u32 {
        let mut events = 0;
        // A flood of strangers must not keep a turn from ending.
        for _ in 0..LOOKS_MAX {
            let Some(name) = self.sockets.next_ready() else {
                break;
            };
            self.look_at(name);
            events += self.handle_arrived(budget.saturating_sub(events), sink);
        }
        self.sockets.end_turn();
        events
    }

    /// Hands over what waits for the sink.
    fn tell(&mut self, budget: u32, sink: &mut dyn Sink) -> u32 {
        let mut told = 0;
        while told < budget
            && let Some(token) = self.watches.pop_reached()
        {
            sink.reached(token);
            told += 1;
        }
        while told < budget
            && let Some(event) = self.events.pop_front()
        {
            event.tell(self.me, sink);
            told += 1;
        }
        told
    }

    pub(super) fn poll(&mut self) {
        self.counters.checks.add(1);
        let polled = self.sockets.poll();
        debug_assert!(polled.is_ok(), "{polled:?}");
    }

    /// Looks at a socket of which something changed.
    pub(super) fn look_at(&mut self, name: SocketName) {
        let Some(entry) = self.sockets.get(name) else {
            return;
        };
        match &entry.role {
            SocketRole::Listener => self.look_at_listener(name),
            SocketRole::Timer => self.tick(),
            SocketRole::Arrival(_) => self.look_at_arrival(name),
            SocketRole::Attempt(_) => self.look_at_attempt(name),
            SocketRole::GiveUp(_) => self.look_at_notice(name),
            SocketRole::Peer(rank) => {
                let rank = *rank;
                self.flush(rank);
                // A socket that only has room again brings nothing.
                match self.sockets.get(name) {
                    Some(entry) if entry.readable && self.inbox.is_empty() => {
                        self.receive_from(rank);
                    }
                    Some(entry) if entry.readable => self.sockets.postpone(name),
                    _ => {}
                }
            }
        }
    }

    /// Does what is due, and sets the timer for what is due next.
    fn tick(&mut self) {
        let now = self.timer.now();
        for rank in self.reaching.clone() {
            self.continue_reach(rank, now);
        }
        self.look_at_waiting_listeners();
        let silent = self.drop_silent_arrivals(now);
        let short = self.retry_short_sends(now);
        let silence = self.lose_silent_peers(now);
        let notices = self.drop_late_notices(now);
        let due = self.reaching.iter().filter_map(|rank| {
            let reach = self.peers[*rank as usize].reach.as_ref()?;
            reach.due()
        });
        let next = due.chain(silent).chain(silence).chain(notices);
        let next = next.chain(short).min();
        let set = self.timer.set(next);
        debug_assert!(set.is_ok(), "{set:?}");
    }

    /// Has the timer ring at this time, or earlier.
    pub(super) fn wake_at(&mut self, at: u64) {
        let set = self.timer.set_if_earlier(at);
        debug_assert!(set.is_ok(), "{set:?}");
    }

    /// Takes over a connection whose handshake is complete, and sends what waited for it.
    pub(super) fn adopt(&mut self, rank: u32, name: SocketName) {
        self.cancel_reach(rank, Some(name));
        self.peers[rank as usize].connection = Some(Box::new(TcpConnection::new(name)));
        if let Some(entry) = self.sockets.get_mut(name) {
            // The handshake has left room, and its last read may have left bytes.
            (entry.writable, entry.readable) = (true, true);
        }
        self.flush(rank);
        self.sockets.look_at(name);
        // The handshake may not be acknowledged yet.
        self.watch_silence(rank);
    }

    /// Hands over bytes that came together with the end of a handshake.
    pub(super) fn give_first_bytes(&mut self, rank: u32, first: Vec<u8>) {
        if let Some(connection) = &mut self.peers[rank as usize].connection
            && !first.is_empty()
        {
            connection.first = first;
        }
    }

    /// Sends a message, or queues it. Returns false if there is no room.
    pub(super) fn send(&mut self, rank: u32, header: &[u8], body: &[u8]) -> bool {
        let head = FrameHead {
            kind: FrameKind::Message,
            head_len: header.len(),
            body_len: body.len(),
        };
        let len = self.form.start_len() + header.len() + body.len();
        if !self.may_stage(rank, len) && self.can_send(rank) {
            self.flush(rank);
            if self.peers[rank as usize].queue.is_empty() {
                let start = self.form.start(head, header, body);
                self.send_now(rank, [start.as_bytes(), header, body]);
                return true;
            }
        }
        let peer = &mut self.peers[rank as usize];
        if !peer.queue.has_room(len) {
            return false;
        }
        peer.queue.push_frame(self.form, head, header, body);
        if peer.connection.is_none() {
            self.reach(rank);
        } else {
            self.stage(rank);
        }
        true
    }

    /// Sends a message of these parts to a peer for which nothing is queued, and queues what its socket has no room for.
    fn send_now(&mut self, rank: u32, parts: [&[u8]; 3]) {
        self.watch_silence(rank);
        let peer = &mut self.peers[rank as usize];
        peer.sent_in = Some(self.turns);
        let Some(connection) = &peer.connection else {
            return;
        };
        let Some(entry) = self.sockets.get_mut(connection.socket) else {
            return;
        };
        let mut sent = 0;
        self.counters.system_calls.add(1);
        match entry.socket().and_then(|socket| send_all(socket, parts)) {
            Ok(bytes) => sent = bytes,
            Err(why) if why.kind() == io::ErrorKind::WouldBlock => {}
            Err(why) if is_shortage(&why) => self.short_sends.add(rank, &mut self.timer),
            Err(why) => {
                entry.break_off(why);
                let name = connection.socket;
                return self.sockets.look_at(name);
            }
        }
        if sent < parts.iter().map(|part| part.len()).sum() {
            entry.writable = false;
        }
        for part in parts {
            let skipped = sent.min(part.len());
            peer.queue.push(&part[skipped..]);
            sent -= skipped;
        }
    }

    /// Sends what is queued for a peer, as far as its socket has room.
    pub(super) fn flush(&mut self, rank: u32) {
        let peer = &mut self.peers[rank as usize];
        let Some(connection) = &peer.connection else {
            return;
        };
        let Some(entry) = self.sockets.get_mut(connection.socket) else {
            return;
        };
        if !entry.writable || peer.queue.is_empty() {
            return;
        }
        self.counters.system_calls.add(1);
        match entry.socket().and_then(|socket| peer.queue.flush(socket)) {
            Ok(true) => {}
            Ok(false) => entry.writable = false,
            Err(why) if is_shortage(&why) => {
                entry.writable = false;
                self.short_sends.add(rank, &mut self.timer);
            }
            Err(why) => {
                entry.break_off(why);
                let name = connection.socket;
                return self.sockets.look_at(name);
            }
        }
        self.watch_silence(rank);
    }

    /// Handles the end of a connection on which no goodbye has arrived.
    pub(super) fn handle_end(&mut self, rank: u32, why: Option<&io::Error>) {
        let peer = &self.peers[rank as usize];
        let told = peer.connection.as_ref().and_then(|one| one.given_up);
        let text = match told {
            Some(told) => peer.gave_up(rank, told),
            None => peer.ended_connection(rank, why),
        };
        self.lose(rank, DownCause::Failed, text);
    }

    /// Reports that a peer is down, and ends everything in flight to it.
    pub(super) fn lose(&mut self, rank: u32, how: DownCause, evidence: String) {
        self.cancel_reach(rank, None);
        self.hot.forget(rank);
        let peer = &mut self.peers[rank as usize];
        if let Some(connection) = peer.connection.take() {
            self.sockets.close(connection.socket);
            if let Some(place) = connection.lent_place() {
                self.events.push_back(TcpEvent::Returned(place.token));
            }
        }
        if peer.ended.is_some() {
            return;
        }
        peer.ended = Some(how);
        peer.evidence = Some(evidence);
        peer.queue = TcpSendQueue::default();
        for pending in std::mem::take(&mut peer.pending) {
            let failed = TcpEvent::Failed(pending.token, CommandFailure::PeerDown);
            self.events.push_back(failed);
        }
        self.events.push_back(TcpEvent::Down(rank, how));
    }

    /// Prepares a sleep.
    pub(super) fn arm(&mut self) -> ArmResult {
        self.send_staged();
        self.hot.end_dialogue();
        self.sockets.report_all();
        let waits = |core: &Self| {
            !core.events.is_empty()
                || !core.inbox.is_empty()
                || core.watches.is_reached()
                || core.sockets.has_ready()
        };
        if waits(self) {
            return ArmResult::Busy;
        }
        self.poll();
        if waits(self) {
            ArmResult::Busy
        } else {
            self.armed = true;
            ArmResult::Ready
        }
    }

    /// Returns true if some peers are not connected and have not ended.
    pub(super) fn has_strangers(&self) -> bool {
        let mut others = (0..).zip(&self.peers).filter(|(rank, _)| *rank != self.me);
        others.any(|(_, peer)| peer.connection.is_none() && peer.ended.is_none())
    }

    /// Queues a frame whose head is a record, without a body.
    pub(super) fn queue_record(&mut self, rank: u32, kind: FrameKind, record: &impl bytemuck::Pod) {
        let record = bytemuck::bytes_of(record);
        let head = FrameHead::with_record(kind, record, 0);
        let queue = &mut self.peers[rank as usize].queue;
        queue.push_frame(self.form, head, record, &[]);
    }

    /// Returns the descriptor to sleep on.
    pub(super) fn wait_on(&self) -> Arc<OwnedFd> {
        self.sockets.wait_on()
    }
}

/// Sends as many bytes of a message as there is room for. Returns their number.
fn send_all(socket: &OwnedFd, parts: [&[u8]; 3]) -> io::Result<usize> {
    // A list of parts costs the kernel more than a copy of a short message costs this rank.
    let mut joined = [0; JOINED_MAX];
    let mut len = 0;
    for part in parts {
        let Some(room) = joined.get_mut(len..len + part.len()) else {
            return send_parts(socket, &parts.map(SendPart::Bytes));
        };
        room.copy_from_slice(part);
        len += part.len();
    }
    send_bytes(socket, &joined[..len])
}

impl TcpEvent {
    fn tell(self, me: u32, sink: &mut dyn Sink) {
        match self {
            Self::Message(header, body) => {
                sink.message(WorldRank(me), &header, PayloadView::from_slice(&body));
            }
            Self::Complete(token) => sink.complete(token),
            Self::Fetched(token, old) => sink.fetched(token, old),
            Self::Failed(token, why) => sink.failed(token, why),
            Self::Returned(token) => sink.returned(token),
            Self::Down(rank, how) => sink.peer_down(WorldRank(rank), how),
        }
    }
}

/// Bytes received by one call.
const INBOX_LEN: usize = 256 << 10;

/// A rank that reads sockets of hot peers asks for events of the others once in so many turns, even while the hot ones are
/// silent: a question in each turn would double the time until the rank sees what arrives from a hot one.
const POLL_EVERY: u32 = 8;

/// Longest message that is sent from one buffer.
const JOINED_MAX: usize = 256;

/// Sockets that are looked at in a turn.
const LOOKS_MAX: u32 = 256;
