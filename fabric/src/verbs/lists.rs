//! Task lists: queue pairs execute the tasks, and turns begin them.
//!
//! A verbs device cannot wait for a counter. So a turn looks for tasks that may begin, and posts those for one peer together. A
//! sleeping thread is woken by a count that a task waits for, and by the completions of posted requests.

use std::collections::{BTreeMap, VecDeque};

use super::{
    core::{Core, index},
    host_counters::Own,
    onesided::Owner,
    rma_op::{Wish, cell_of},
};
use crate::{
    driver::{Failure, Token},
    offload::{Action, Counter, Lists, Order, TASKS_MAX, Task},
};

/// Tasks in flight.
#[derive(Debug, Default)]
pub(super) struct Tasks {
    begun: BTreeMap<u64, Begun>,
    /// Completed tasks that are not processed yet, and their results.
    over: VecDeque<(u64, Result<(), Failure>)>,
    /// Commands that found no room.
    stuck: VecDeque<Stuck>,
    /// Regions with the counters of this rank.
    pub(super) own: Own,
}

impl Tasks {
    /// Returns true if completed tasks are not processed yet. A message can release a task that completes immediately, outside a
    /// turn.
    pub(super) fn are_over(&self) -> bool {
        !self.over.is_empty()
    }

    /// Returns true if tasks of a token may still touch this rank's memory, as those that count on completion do. A caller
    /// that knows that the list is done asks, because a peer may have counted in place of the tasks.
    pub(super) fn touch(&self, token: Token) -> bool {
        let touches = |begun: &Begun| begun.token == token && begun.done.is_some();
        self.begun.values().any(touches)
    }

    /// Returns true if any command has found no room.
    pub(super) fn have_stuck(&self) -> bool {
        !self.stuck.is_empty()
    }

    /// Returns true if a command for a peer has found no room.
    pub(super) fn are_stuck(&self, peer: u32) -> bool {
        self.stuck.iter().any(|stuck| stuck.peer == peer)
    }
}

/// A task that has begun.
#[derive(Debug)]
struct Begun {
    token: Token,
    done: Option<Counter>,
}

/// A command that found no room.
#[derive(Debug)]
struct Stuck {
    peer: u32,
    owner: Owner,
    wish: Wish,
}

impl Core {
    /// Takes a list. Returns false if there was no room.
    pub(super) fn post_list(&mut self, tasks: &[Task], token: Token) -> bool {
        let taken = self.lists.post(tasks, token);
        if taken {
            self.begin_tasks();
            self.listen();
        }
        taken
    }

    /// Cancels the lists of a token.
    pub(super) fn cancel_lists(&mut self, token: Token) {
        self.lists.cancel(token);
        self.forget_tasks(token);
        self.begin_tasks();
    }

    /// Begins the tasks that may begin, and posts their requests together for each peer. Returns how many began.
    pub(super) fn begin_tasks(&mut self) -> u32 {
        self.outbox.gathers = true;
        let begun = self.begin_all();
        self.outbox.gathers = false;
        while let Some(to) = self.outbox.gathered.pop() {
            let Self { links, outbox, .. } = self;
            let link = links[index(to.peer)].as_deref_mut();
            if let Some(Err(why)) = link.map(|link| outbox.post_chain(link, to.lane)) {
                self.note_broken(to, why);
                self.bury(to); // the peer may have failed since the requests were gathered
            }
        }
        begun
    }

    fn begin_all(&mut self) -> u32 {
        let mut begun = 0;
        self.retry();
        loop {
            while let Some((serial, how)) = self.tasks.over.pop_front() {
                self.settle_task(serial, how);
            }
            self.obey();
            let Some((then, token)) = self.lists.poll_begin() else {
                return begun;
            };
            self.carry_out(then, token);
            begun += 1;
        }
    }

    /// Notes that the command of a task has completed.
    pub(super) fn task_over(&mut self, serial: u64, how: Result<(), Failure>) {
        self.tasks.over.push_back((serial, how));
    }

    /// Drops tasks that have not begun. Those that have begun and found no room go on if they only count: a peer may wait for a
    /// count, and it needs no memory of this rank.
    pub(super) fn drop_lists(&mut self) {
        self.lists = Lists::new(TASKS_MAX);
        self.tasks.stuck.retain(|stuck| stuck.wish.counts() > 0);
    }

    fn retry(&mut self) {
        while let Some(stuck) = self.tasks.stuck.pop_front() {
            let Stuck { peer, owner, wish } = stuck;
            if !self.begin(peer, owner, wish) {
                return self.tasks.stuck.push_front(stuck);
            }
        }
    }

    fn obey(&mut self) {
        while let Some(order) = self.lists.poll_order() {
            match order {
                Order::Watch {
                    counter,
                    threshold,
                    token,
                } => self.watches.add(&counter, threshold, token),
                Order::Unwatch(token) => self.watches.remove(token),
            }
        }
    }

    fn carry_out(&mut self, then: Action, token: Token) {
        let serial = self.lists.number();
        let mut begun = Begun { token, done: None };
        let (peer, wish) = match then {
            Action::Put {
                to,
                from,
                target,
                done,
            } => {
                begun.done = done;
                let Some((into, count)) = target.read() else {
                    return self.end_at_once(serial, begun, Err(Failure::Unmatched));
                };
                let put = cell_of(count).map(|count| Wish::Put { from, into, count });
                (to.0, put)
            }
            Action::Offer {
                to,
                landing,
                place,
                count,
                ..
            } => {
                let offer = cell_of(Some(count)).map(|count| Wish::Offer {
                    landing,
                    into: place,
                    count,
                });
                (to.0, offer)
            }
            Action::Count { to, counter, by } => {
                let counted = to.0 == self.me && self.count_by_key(counter, by);
                if let Some(wish) = Wish::count(counter, by).filter(|_| !counted) {
                    self.begin_or_wait(to.0, Owner::Nobody, wish);
                }
                return self.end_at_once(serial, begun, Ok(()));
            }
            Action::Copy { from, into, done } => {
                from.copy_to(into);
                begun.done = done;
                return self.end_at_once(serial, begun, Ok(()));
            }
            Action::Combine {
                from,
                into,
                how,
                done,
            } => {
                how.apply(from, into);
                begun.done = done;
                return self.end_at_once(serial, begun, Ok(()));
            }
        };
        match wish {
            Ok(wish) => {
                self.tasks.begun.insert(serial, begun);
                self.begin_or_wait(peer, Owner::Task(serial), wish);
            }
            Err(_) if self.link_or_new(peer).gone.is_some() => {
                self.end_at_once(serial, begun, Err(Failure::PeerDown));
            }
            Err(why) => self.end_at_once(serial, begun, Err(why)),
        }
    }

    fn end_at_once(&mut self, serial: u64, begun: Begun, how: Result<(), Failure>) {
        self.tasks.begun.insert(serial, begun);
        self.task_over(serial, how);
    }

    fn begin_or_wait(&mut self, peer: u32, owner: Owner, wish: Wish) {
        if !self.tasks.stuck.is_empty() || !self.begin(peer, owner, wish) {
            self.tasks.stuck.push_back(Stuck { peer, owner, wish });
        }
    }

    fn settle_task(&mut self, serial: u64, how: Result<(), Failure>) {
        let Some(Begun { token, done }) = self.tasks.begun.remove(&serial) else {
            return;
        };
        let failed = how.is_err();
        if let (Ok(()), Some(done)) = (&how, done) {
            self.count_own(&done, 1);
        }
        self.lists.ended(token, how);
        if failed {
            self.forget_tasks(token);
        }
    }

    /// Cancels tasks that have begun and not left yet, perhaps because a name is never given.
    fn forget_tasks(&mut self, token: Token) {
        let of_token = |(_, begun): &(&u64, &Begun)| begun.token == token;
        let begun = self.tasks.begun.iter().filter(of_token);
        let serials: Vec<u64> = begun.map(|(serial, _)| *serial).collect();
        for serial in serials {
            let owner = Owner::Task(serial);
            let stuck = &mut self.tasks.stuck;
            if let Some(at) = stuck.iter().position(|stuck| stuck.owner == owner) {
                stuck.remove(at);
                self.task_over(serial, Err(Failure::Cancelled));
            } else {
                self.recall(owner);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Begun, Tasks, Token};
    use crate::{memory::Region, offload::Counter};

    #[test]
    fn lists_that_move_bytes_are_not_forgotten() {
        let counter = Counter::in_region(Region::anonymous(64).unwrap(), 0);
        let mut tasks = Tasks::default();
        for (serial, token, done) in [(1, 5, None), (2, 6, Some(counter))] {
            let token = Token(token);
            tasks.begun.insert(serial, Begun { token, done });
        }
        // An offer uses no memory of its own, and may be reported after everything that followed from it.
        assert!(!tasks.touch(Token(5)));
        assert!(tasks.touch(Token(6)));
        tasks.begun.remove(&2);
        assert!(!tasks.touch(Token(6)));
    }
}
