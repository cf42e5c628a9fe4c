//! Connections between simulated adapters that need them: queue pairs, made on demand, after `connect`.
//!
//! The first packet for a peer starts it, and what follows waits in its order. Queue pairs are made one after the other by each
//! rank, at the model's cost; the words about them are datagrams, and faults reach them.

use std::collections::{BTreeMap, VecDeque};

use super::{
    Config,
    heap::{NEVER, Time, What},
    slab::index,
    world::{World, ps},
};
use crate::{
    connect::{
        Action, CAPS_NONE, Connection, Context, End, Event, Frame, Kind, Lane, Lanes, Limits,
        Local, Message, State,
    },
    driver::Down,
};

/// All connections of a cluster.
#[derive(Debug)]
pub(super) struct Dial {
    seed: u64,
    /// To make the queue pairs of a connection, one for each rail.
    cost: Time,
    sides: BTreeMap<(u32, u32), Side>,
    /// Queue pairs that each rank has made, and when it is through with making them.
    made: Vec<(u32, Time)>,
    actions: Vec<Action>,
}

/// One rank's side of a connection.
#[derive(Debug)]
struct Side {
    connection: Connection,
    /// The own queue pair, and the peer's; 0 while there is none.
    own: u32,
    peer: u32,
    /// When the own one is made.
    ready: Time,
    /// The next timeout that is planned.
    timer: Time,
    /// What waits: packets and their rails.
    pending: VecDeque<(u32, u32)>,
}

impl Dial {
    pub(super) fn new(config: &Config) -> Self {
        let nic = &config.model.nic;
        Self {
            seed: config.seed,
            cost: ps(nic.connect_ns).saturating_mul(u64::from(nic.rails)),
            sides: BTreeMap::new(),
            made: vec![(0, 0); index(config.ranks)],
            actions: Vec::new(),
        }
    }

    /// Bytes that it takes, without what waits in it.
    pub(super) fn footprint(&self) -> usize {
        2 * self.sides.len() * size_of::<((u32, u32), Side)>()
            + self.made.len() * size_of::<(u32, Time)>()
    }

    /// Packets that wait for a connection.
    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        self.sides.values().map(|side| side.pending.len()).sum()
    }

    fn side(&mut self, pair: (u32, u32)) -> &mut Side {
        self.sides.entry(pair).or_insert_with(|| Side {
            connection: Connection::new(pair.1),
            own: 0,
            peer: 0,
            ready: 0,
            timer: NEVER,
            pending: VecDeque::new(),
        })
    }
}

impl World {
    fn dial(&mut self) -> &mut Dial {
        let dial = self.wire().dial.as_mut();
        dial.unwrap_or_else(|| unreachable!("who speaks of connections has them"))
    }

    /// Whether a packet may leave; if not, it waits for the connection.
    pub(super) fn has_dialled(&mut self, from: u32, to: u32, packet: (u32, u32)) -> bool {
        let side = self.dial().side((from, to));
        let state = side.connection.state();
        if state == State::Ready && side.pending.is_empty() {
            return true;
        }
        side.pending.push_back(packet);
        if matches!(state, State::Idle | State::Failed) {
            self.tell_side((from, to), Event::Connect, 0);
        }
        false
    }

    /// Data from a peer came through a rank's queue pair.
    pub(super) fn hear_data(&mut self, rank: u32, peer: u32) {
        if self.wire().dial.is_some()
            && self.dial().side((rank, peer)).connection.state() == State::RepSent
        {
            self.tell_side((rank, peer), Event::Data, 0);
        }
    }

    /// A word about a connection came.
    pub(super) fn take_word(&mut self, from: u32, to: u32, bytes: &[u8]) {
        if self.is_deaf(to, from) {
            return;
        }
        if let Ok(frame) = Frame::parse(bytes) {
            let lane = frame.lanes.as_slice().first().map_or(0, |lane| lane.qpn);
            self.tell_side((to, from), Event::Message(frame.message), lane);
        }
    }

    /// A planned look at a connection.
    pub(super) fn redial(&mut self, rank: u32, peer: u32) {
        let now = self.now;
        let side = self.dial().side((rank, peer));
        if side.timer == now {
            side.timer = NEVER;
            self.tell_side((rank, peer), Event::Timeout, 0);
        }
    }

    fn tell_side(&mut self, pair: (u32, u32), event: Event, lane: u32) {
        if self.is_killed(pair.0) {
            return;
        }
        let now = self.now;
        let dial = self.dial();
        let local = Local {
            end: End {
                rank: pair.0,
                incarnation: FIRST_LIFE,
            },
            limits: Limits::default(),
            seed: dial.seed,
        };
        let mut actions = std::mem::take(&mut dial.actions);
        let mut cx = Context {
            local: &local,
            now,
            actions: &mut actions,
        };
        dial.side(pair).connection.handle(event, &mut cx);
        self.plan_redial(pair);
        actions
            .drain(..)
            .for_each(|action| self.perform(pair, action, lane));
        self.dial().actions = actions;
    }

    fn plan_redial(&mut self, pair: (u32, u32)) {
        let side = self.dial().side(pair);
        let at = side.connection.next_timeout().unwrap_or(NEVER);
        if at < side.timer {
            side.timer = at;
            let (rank, peer) = pair;
            self.heap.push(at, What::Redial { rank, peer });
        }
    }

    fn perform(&mut self, pair: (u32, u32), action: Action, lane: u32) {
        let now = self.now;
        match action {
            Action::Create => {
                let dial = self.dial();
                let cost = dial.cost;
                let (made, free_at) = &mut dial.made[index(pair.0)];
                *made += 1;
                *free_at = now.max(*free_at) + cost;
                let (own, ready) = (*made, *free_at);
                let side = dial.side(pair);
                (side.own, side.ready) = (own, ready);
                self.stats.queue_pairs += 1;
            }
            Action::Bind => self.dial().side(pair).peer = lane,
            Action::Send(message) => self.say(pair, message),
            Action::Open => self.open_connection(pair),
            Action::Destroy => {
                let side = self.dial().side(pair);
                (side.own, side.peer) = (0, 0);
            }
            Action::Fail(_) => {
                let pending = std::mem::take(&mut self.dial().side(pair).pending);
                pending
                    .into_iter()
                    .for_each(|(packet, _)| self.lose(packet));
                self.tell_down(pair.0, pair.1, Down::Failed);
            }
            // Nobody evicts here.
            _ => {}
        }
    }

    fn say(&mut self, pair: (u32, u32), message: Message) {
        let mut at = self.now;
        let mut frame = Frame::bare(message);
        if matches!(message.kind, Kind::Request | Kind::Reply) {
            let side = self.dial().side(pair);
            at = at.max(side.ready);
            let lane = Lane {
                qpn: side.own,
                psn: 0,
            };
            let lanes = Lanes::new(&[lane]).unwrap_or_default();
            frame = Frame {
                message,
                caps: CAPS_NONE,
                lanes,
            };
        }
        let mut bytes = Vec::new();
        frame.encode(&mut bytes);
        self.send_word(pair, &bytes, at);
    }

    /// What waited leaves, in its order.
    fn open_connection(&mut self, pair: (u32, u32)) {
        self.stats.connections += 1;
        let side = self.dial().side(pair);
        let (own, peer) = (side.own, side.peer);
        let other = self.dial().side((pair.1, pair.0));
        assert!(
            (own, peer) == (other.peer, other.own),
            "queue pair {own} of rank {} and {peer} of rank {} are not connected to each other",
            pair.0,
            pair.1
        );
        let pending = std::mem::take(&mut self.dial().side(pair).pending);
        for (packet, rail) in pending {
            self.leave_connected(packet, rail);
        }
    }
}

/// Simulated ranks are not started again.
const FIRST_LIFE: u32 = 1;
