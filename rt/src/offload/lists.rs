//! Lowered programs at a driver that runs task lists: counters get their places, and lists are posted.

use std::{collections::BTreeMap, io, sync::Arc};

use ripstop_fabric::{
    driver::{Command, Driver, LocalRange, Peer, Post, Token},
    memory::{Region, RemoteRegion},
    offload::{Action, Counters, Landing, RemoteCounter, Target, Task, When},
};

use super::{
    Buffer, Program, Span,
    lower::{Counter, Deed, Item, LANES, Lane, Lanes, Least, Lowering},
};

/// What the programs of one slot of a communicator share: the lanes between its ranks, by names that all of them know.
#[derive(Debug)]
pub(crate) struct Slot {
    me: usize,
    name: u64,
    lanes: Lanes,
    counters: Counters,
    /// A landing for each lane to us.
    places: Region,
    /// To no bytes.
    nothing: RemoteRegion,
}

/// A program under way.
#[derive(Debug)]
pub(crate) struct Posted {
    lowering: Lowering,
    own: Counters,
    memory: Memory,
    /// Of its lists, and of the watch for its end.
    token: Token,
    items: Vec<Item>,
    tasks: Vec<Task>,
    /// The counters that steps of the host add to at their end.
    for_host: BTreeMap<usize, u32>,
}

/// A program's memory. Whoever made it keeps it in place until the program is over.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory {
    pub(crate) input: LocalRange,
    pub(crate) output: LocalRange,
    pub(crate) scratch: Option<LocalRange>,
    pub(crate) output_key: RemoteRegion,
    pub(crate) scratch_key: Option<RemoteRegion>,
}

impl Slot {
    /// For a communicator of all ranks; `name` is even, and the same on all of them. 96 bytes for each rank and lane, of which
    /// only those exist that are used.
    ///
    /// # Errors
    /// What the driver said when there was no memory, or that it has no names.
    pub(crate) fn new(
        driver: &mut dyn Driver,
        me: usize,
        size: usize,
        name: u64,
    ) -> io::Result<Self> {
        let lanes = size * usize::try_from(LANES).unwrap_or(usize::MAX);
        let counters = Counters::new(driver, lanes)?;
        let places = driver.allocate(lanes * size_of::<Landing>())?;
        let regions = [(name, counters.region()), (name | 1, &places)];
        for (name, region) in regions {
            let posted = driver.post(Command::Name { name, region });
            debug_assert!(matches!(posted, Post::Posted), "a name needs no room");
        }
        let owner = u32::try_from(me).unwrap_or(u32::MAX);
        Ok(Self {
            me,
            name,
            lanes: Lanes::default(),
            counters,
            places,
            nothing: RemoteRegion::named(owner, name | 1, 0, 0),
        })
    }
}

impl Slot {
    /// This rank.
    pub(crate) const fn rank(&self) -> usize {
        self.me
    }
}

impl Posted {
    /// Begins a program: its first two lists are posted, and `token` comes back in `Sink::reached` when it is over. `None` when
    /// its steps need longer lists than half of `tasks_max` tasks.
    ///
    /// # Errors
    /// What the driver said when there was no memory for its counters.
    pub(crate) fn begin(
        driver: &mut dyn Driver,
        slot: &mut Slot,
        (program, memory): (Arc<Program>, Memory),
        (tasks_max, token): (usize, Token),
    ) -> io::Result<Option<Self>> {
        let Some(lowering) = Lowering::new(program, tasks_max / 2, &mut slot.lanes) else {
            return Ok(None);
        };
        let own = Counters::new(driver, lowering.counters())?;
        let (counter, threshold) = (own.at(0), lowering.ends());
        let watch = Command::Watch {
            counter: &counter,
            threshold,
            token,
        };
        let posted = driver.post(watch);
        debug_assert!(matches!(posted, Post::Posted), "a watch needs no room");
        let mut begun = Self {
            lowering,
            own,
            memory,
            token,
            items: Vec::new(),
            tasks: Vec::new(),
            for_host: BTreeMap::new(),
        };
        begun.post_next(driver, slot);
        begun.post_next(driver, slot);
        Ok(Some(begun))
    }

    /// All tasks of one of its lists have begun: posts the next list, if there is one.
    pub(crate) fn post_next(&mut self, driver: &mut dyn Driver, slot: &Slot) {
        let mut items = std::mem::take(&mut self.items);
        while self.tasks.is_empty() {
            items.clear();
            self.lowering.next_list(&mut items);
            if items.is_empty() {
                break;
            }
            for item in &items {
                self.add(item, slot);
            }
        }
        self.items = items;
        let list = Command::List {
            tasks: &self.tasks,
            token: self.token,
        };
        if !self.tasks.is_empty() && matches!(driver.post(list), Post::Posted) {
            self.tasks.clear();
        }
    }

    /// Whether all is done. Then the driver touches none of its memory any more.
    pub(crate) fn is_over(&self) -> bool {
        self.own.at(0).value() >= self.lowering.ends()
    }

    fn add(&mut self, item: &Item, slot: &Slot) {
        if let Deed::Host { step, end } = item.deed {
            self.for_host.insert(step, end);
            return;
        }
        self.tasks.push(Task {
            when: self.when(item.when, slot),
            and: item.and.map(|least| self.when(least, slot)),
            then: self.action(item.deed, slot),
        });
    }

    fn action(&self, deed: Deed, slot: &Slot) -> Action {
        match deed {
            Deed::Invite { lane, into, end } => {
                let (owner, nth) = (world(lane.peer), mine(lane, slot.me));
                let len = size_of::<Landing>() as u64;
                Action::Offer {
                    to: Peer(owner),
                    landing: Landing {
                        into: self.key_to(&into, slot),
                        count: self.counter_key(end),
                    },
                    place: RemoteRegion::named(owner, slot.name | 1, nth * len, len),
                    count: RemoteCounter::named(owner, slot.name, nth),
                }
            }
            Deed::Put { lane, from, end } => Action::Put {
                to: Peer(world(lane.peer)),
                from: self.range_of(&from),
                target: Target::Given {
                    region: slot.places.clone(),
                    offset: theirs(lane) * size_of::<Landing>(),
                },
                done: Some(self.own.at(end as usize)),
            },
            Deed::Pass { to } => Action::Count {
                to: Peer(world(slot.me)),
                counter: self.counter_key(to),
                by: 1,
            },
            Deed::Copy { from, into, end } => Action::Copy {
                from: self.range_of(&from),
                into: self.range_of(&into),
                done: Some(self.own.at(end as usize)),
            },
            Deed::Host { .. } => unreachable!("no task of the driver's"),
        }
    }

    fn when(&self, least: Least, slot: &Slot) -> When {
        let counter = match least.counter {
            Counter::Own(nth) => self.own.at(nth as usize),
            Counter::Lane(lane) => slot.counters.at(theirs(lane)),
        };
        When {
            counter,
            threshold: least.value,
        }
    }

    fn counter_key(&self, nth: u32) -> RemoteCounter {
        let key = self.own.remote().at(nth as usize);
        key.expect("a program has as many counters as its lowering says")
    }

    fn range_of(&self, span: &Span) -> LocalRange {
        let whole = match span.buffer {
            Buffer::Input => self.memory.input,
            Buffer::Output => self.memory.output,
            Buffer::Scratch => self.memory.scratch.unwrap_or(self.memory.output),
        };
        whole.slice(span.start, span.len)
    }

    fn key_to(&self, span: &Span, slot: &Slot) -> RemoteRegion {
        let whole = match span.buffer {
            _ if span.len == 0 => return slot.nothing,
            Buffer::Scratch => self.memory.scratch_key,
            Buffer::Output | Buffer::Input => Some(self.memory.output_key),
        };
        let key = whole.and_then(|key| key.slice(span.start as u64, span.len as u64));
        key.expect("a program's spans are inside its memory")
    }
}

fn world(rank: usize) -> u32 {
    u32::try_from(rank).expect("a communicator has less than 2^32 ranks")
}

/// A lane to a peer, among the peer's.
fn mine(lane: Lane, me: usize) -> u64 {
    me as u64 * LANES + lane.nth
}

/// A lane from a peer, among ours.
fn theirs(lane: Lane) -> usize {
    usize::try_from(lane.peer as u64 * LANES + lane.nth).unwrap_or(usize::MAX)
}
