//! Puts, gets, atomics and counts, done by the devices without the target's host.
//!
//! A count adds to the counter, and reads it together with the threshold that its owner waits for. If the threshold is reached,
//! the counting rank wakes the owner. This rank's processor adds its own counts, and those that peers ask for where tasks wait
//! for the counter (`counts`). Memory of this rank outside its regions is registered for the command, or copied if it is short.

use super::{
    abi::WC_SUCCESS,
    core::{Core, News, index},
    link::Link,
    objects::{Local, STEP_MAX},
    outbox::Step,
    backlog::Want,
    posting::Stall,
    multirail::Striped,
    lane::FIRST,
    wire::Word,
    rma_op::{Wish, cell_of},
};
use crate::{
    driver::{Command, Failure, Token},
    lanes::RAILS_MAX,
};

/// A command in flight.
#[derive(Debug)]
pub(super) struct Op {
    pub(super) peer: u32,
    owner: Owner,
    pub(super) wish: Wish,
    /// Bytes posted so far; `all_posted` once nothing is left to post.
    pub(super) posted: usize,
    pub(super) all_posted: bool,
    pub(super) flights: u32,
    pub(super) why: Option<Failure>,
    pub(super) old: u64,
    /// This rank's memory as the devices know it. The registration and the chunk behind it are released at the end.
    pub(super) here: Option<Here>,
    pub(super) registered: Option<u32>,
    pub(super) chunk: Option<u32>,
    /// State of a command that may go by any lane.
    pub(super) striped: Option<Box<Striped>>,
    /// True once messages that wait for the command may go.
    told: bool,
}

/// A piece of memory as each device knows it.
pub(super) type Here = [Local; RAILS_MAX];

/// Receiver of the result of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// None, because it is a count.
    Nobody,
    Caller(Token),
    /// A task of a list, by its number.
    Task(u64),
}

impl Core {
    /// Begins a command about a peer's memory. Returns false if there was no room.
    pub(super) fn move_bytes(&mut self, command: &Command<'_>) -> bool {
        let (to, owner, wish) = match *command {
            Command::Put {
                to,
                from,
                into,
                count,
                token,
            } => {
                let owner = Owner::Caller(token);
                match cell_of(count) {
                    Ok(count) => (to, owner, Wish::Put { from, into, count }),
                    Err(_) => return self.refuse(token),
                }
            }
            Command::Get {
                to,
                from,
                into,
                token,
            } => (to, Owner::Caller(token), Wish::Get { from, into }),
            Command::Atomic { to, at, op, token } => {
                let known = None;
                (to, Owner::Caller(token), Wish::Atomic { at, op, known })
            }
            Command::Count { to, counter, by }
                if to.0 == self.me && self.count_by_key(counter, by) =>
            {
                return true;
            }
            Command::Count { to, counter, by } => match Wish::count(counter, by) {
                Some(wish) => (to, Owner::Nobody, wish),
                None => return true,
            },
            ref other => unreachable!("{other:?} is not about a peer's memory"),
        };
        self.begin(to.0, owner, wish)
    }

    /// Begins a command. Returns false if there was no room.
    pub(super) fn begin(&mut self, peer: u32, owner: Owner, wish: Wish) -> bool {
        assert!(
            index(peer) < self.peers.len(),
            "rank {peer} in a job of {}",
            self.peers.len()
        );
        if self.ops.len() >= OPS_MAX {
            self.refused = true;
            return false;
        }
        let id = self.ops.insert(Op::new(peer, owner, wish));
        self.link_or_new(peer).counts += wish.counts();
        if self.link_or_new(peer).gone.is_some() {
            self.abandon(id, Failure::PeerDown);
        } else if let Err(why) = wish.check(peer) {
            self.abandon(id, why);
        } else {
            self.touch(peer);
            self.run(id);
            // The command waits by now. If there is no connection to be had, that ends it.
            if !self.link_or_new(peer).open {
                self.dial(peer);
            }
            if self.stirred.contains(&peer) {
                self.flush(peer);
            }
        }
        true
    }

    /// Fails a command that cannot be valid.
    fn refuse(&mut self, token: Token) -> bool {
        self.news.push_back(News::Failed(token, Failure::BadRange));
        true
    }

    /// Retries the commands that waited for room.
    pub(super) fn unpark(&mut self, peer: u32) {
        for want in [Want::Credits, Want::Room] {
            let waiting =
                |core: &mut Self| core.link(peer).map_or(0, |link| link.parked.count(want));
            for _ in 0..waiting(self) {
                // One at a time: commands that end meanwhile leave the queue.
                let before = waiting(self);
                let link = self.link(peer).filter(|link| link.open);
                let Some(id) = link.and_then(|link| link.parked.pop(want)) else {
                    break;
                };
                self.run(id);
                // Stop at one that waits again. Otherwise each completion would retry all that wait for the next ones.
                let waits = waiting(self) >= before;
                if waits && (want == Want::Credits || !self.has_room_for_steps(peer)) {
                    break;
                }
            }
        }
    }

    /// Returns true if any step, and so any command, has room in a queue pair. If not, requests are in flight, and their
    /// completions trigger the next try.
    fn has_room_for_steps(&self, peer: u32) -> bool {
        let requests = u32::try_from(STEP_MAX).unwrap_or(u32::MAX);
        let link = self.links[index(peer)].as_deref();
        let fits = |link: &Link, lane| {
            link.has_room(lane, requests) && self.outbox.has_room(lane, requests)
        };
        link.is_some_and(|link| (0..link.ways.len()).any(|lane| fits(link, lane)))
    }

    pub(super) fn run(&mut self, id: u32) {
        let stall = self.advance(id);
        let Some(op) = self.ops.get_mut(id) else {
            return;
        };
        let peer = op.peer;
        match stall {
            Ok(()) if op.striped.is_some() => {} // ends with its last piece
            Ok(()) => {
                self.settle_posted(id);
                self.finish_if_over(id);
            }
            Err(Stall::Never(why)) => self.abandon(id, why),
            Err(Stall::Room | Stall::Credits) if self.link_or_new(peer).gone.is_some() => {
                self.abandon(id, Failure::PeerDown);
            }
            Err(Stall::Room) => self.park(id, peer, Want::Room),
            Err(Stall::Credits) => self.park(id, peer, Want::Credits),
            Err(Stall::Name(_)) if self.names.forgone => self.abandon(id, Failure::Cancelled),
            Err(Stall::Slot(slot)) => self.link_or_new(peer).asking.push(slot, id),
            Err(Stall::Name(name)) => {
                self.link_or_new(peer).naming.push(name, id);
                // A name may never be given, and a count by name is in no order with other messages, so these need not wait.
                self.let_messages_go(id);
            }
        }
    }

    fn park(&mut self, id: u32, peer: u32, want: Want) {
        self.link_or_new(peer).parked.push(id, want);
        self.stir(peer);
    }

    /// Posts as much of a command as there is room for.
    fn advance(&mut self, id: u32) -> Result<(), Stall> {
        let Some(op) = self.ops.get(id) else {
            return Ok(());
        };
        let (peer, wish) = (op.peer, op.wish);
        if self.goes_widely(peer, op) {
            return self.go_widely(id);
        }
        if wish.does_nothing() {
            return self.look_only(peer, &wish);
        }
        self.need_first(peer)?;
        let places = self.find(peer, &wish)?;
        match wish {
            Wish::Put { .. } | Wish::Offer { .. } => self.post_pieces(id, peer, places, true),
            Wish::Get { .. } => self.post_pieces(id, peer, places, false),
            Wish::Count { by, .. } => self.post_count(id, peer, places, by),
            Wish::Atomic { op, known, .. } => self.post_atomic(id, peer, places.main, op, known),
        }
    }

    /// Handles the completion of a step.
    pub(super) fn handle_step(
        &mut self,
        id: u32,
        step: Step,
        lane: usize,
        answer: Option<u32>,
        status: i32,
    ) {
        let found = answer.map(|answer| self.outbox.take_answer(answer));
        let Some(op) = self.ops.get_mut(id) else {
            return;
        };
        op.flights -= 1;
        let peer = op.peer;
        if let Step::Piece(piece) = step {
            return self.handle_piece(id, piece, lane, status);
        }
        if status != WC_SUCCESS {
            let why = if self.is_of_lane(lane, status) {
                Failure::PeerDown
            } else {
                self.transport(lane, status)
            };
            self.lose_if_unsure(peer);
            return self.abandon(id, why);
        }
        match (step, found) {
            (Step::Count, Some([_, count, wake_at, ..])) if count >= !wake_at => {
                self.say(peer, Word::Wake)
            }
            (Step::Atomic { expected }, Some([old, ..])) => {
                op.old = old;
                if op.wish.wants_another_look(expected, old) {
                    op.all_posted = false;
                    return self.run(id);
                }
            }
            _ => {}
        }
        self.finish_if_over(id);
    }

    /// Makes the failure of a request that failed by itself rather than with its lane.
    pub(super) fn transport(&self, lane: usize, status: i32) -> Failure {
        let words = self.rails[lane].own.context.status(status);
        Failure::Transport(std::io::Error::other(words))
    }

    /// Fails a command: no more of it is posted, and it ends when its requests in flight have completed.
    pub(super) fn abandon(&mut self, id: u32, why: Failure) {
        self.settle_posted(id);
        if let Some(op) = self.ops.get_mut(id) {
            op.why.get_or_insert(why);
            self.finish_if_over(id);
        }
    }

    /// Notes that no more of a command will be posted. Messages that waited for a count may go.
    pub(super) fn settle_posted(&mut self, id: u32) {
        let Some(op) = self.ops.get_mut(id) else {
            return;
        };
        let peer = op.peer;
        op.all_posted = true;
        // Behind the count on the same queue pair, a message arrives after it.
        if self.link_or_new(peer).home == FIRST {
            self.let_messages_go(id);
        }
    }

    fn let_messages_go(&mut self, id: u32) {
        let Some(op) = self.ops.get_mut(id) else {
            return;
        };
        let (peer, counts) = (op.peer, op.wish.counts());
        if !std::mem::replace(&mut op.told, true) && counts > 0 {
            self.link_or_new(peer).counts -= counts;
            self.stir(peer);
        }
    }

    pub(super) fn finish_if_over(&mut self, id: u32) {
        if !self
            .ops
            .get(id)
            .is_some_and(|op| op.all_posted && op.flights == 0)
        {
            return;
        }
        self.let_messages_go(id);
        let Some(op) = self.ops.remove(id) else {
            return;
        };
        // The command may have waited for room, and another command will get its number.
        if let Some(link) = self.link(op.peer) {
            link.forget_op(id);
        }
        if let Some(chunk) = op.chunk {
            if let (Wish::Get { into, .. }, None) = (op.wish, &op.why) {
                self.outbox.copy_out(chunk, into);
            }
            self.outbox.free_chunk(chunk);
        }
        if let Some(registered) = op.registered {
            self.registrations.give_back(registered, &mut self.exports);
        }
        if let Some(link) = self.link(op.peer) {
            link.forgetting.handle_end(id);
        }
        self.say_forgot(op.peer);
        if let Some(striped) = op.striped {
            self.spare_stripe(striped);
        }
        let token = match op.owner {
            Owner::Nobody => return,
            Owner::Task(serial) => return self.task_over(serial, op.why.map_or(Ok(()), Err)),
            Owner::Caller(token) => token,
        };
        self.news.push_back(match (op.why, op.wish) {
            (Some(why), _) => News::Failed(token, why),
            (None, Wish::Atomic { .. }) => News::Fetched(token, op.old),
            (None, _) => News::Complete(token),
        });
    }

    /// Cancels a command that has nothing in flight.
    pub(super) fn recall(&mut self, owner: Owner) {
        let found = self.ops.find(|op| op.owner == owner && op.flights == 0);
        if let Some(id) = found {
            self.abandon(id, Failure::Cancelled);
        }
    }

    /// Returns true if a request in flight to a peer touches memory of the application.
    pub(super) fn touches_memory(&self, peer: u32) -> bool {
        self.ops.iter().any(|op| op.peer == peer && op.flights > 0)
    }
}

impl Op {
    pub(super) const fn is_of_task(&self) -> bool {
        matches!(self.owner, Owner::Task(_))
    }

    const fn new(peer: u32, owner: Owner, wish: Wish) -> Self {
        Self {
            peer,
            owner,
            wish,
            posted: 0,
            all_posted: false,
            flights: 0,
            why: None,
            old: 0,
            here: None,
            registered: None,
            chunk: None,
            striped: None,
            told: false,
        }
    }
}

/// Commands that may be in flight or wait.
const OPS_MAX: usize = 1024;
