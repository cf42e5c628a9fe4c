use std::{
    collections::VecDeque,
    io::{self, Read, Write},
    os::{fd::OwnedFd, unix::net::UnixStream},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use ripstop::fabric::{
    driver::{
        AbilitySummary, ArmResult, Caps, CommandFailure, CommandToken, DownCause, Driver,
        DriverAbilities, DriverCommand, DriverCost, LocalRange, PayloadView, PostResult,
        PreparedEndpoint, Sink, TurnProgress, WakeSource, WorldRank,
    },
    lacks_abilities,
    memory::{MemoryRegion, RemoteRegion},
};

// ANCHOR: state
/// A rank of a world in one process.
#[derive(Debug)]
struct Corridor {
    me: WorldRank,
    caps: Caps,
    /// By rank: what waits for that rank.
    mailboxes: Vec<Arc<Mailbox>>,
}

/// What waits for one rank.
#[derive(Debug)]
struct Mailbox {
    inside: Mutex<Inside>,
    /// Readable when the owner must wake up.
    bell: Arc<OwnedFd>,
    ring: UnixStream,
}

#[derive(Debug, Default)]
struct Inside {
    items: VecDeque<MailboxItem>,
    armed: bool,
    rung: bool,
    /// Ranks that found no room since the last turn of the owner.
    refused: Vec<WorldRank>,
    closed: bool,
}

#[derive(Debug)]
enum MailboxItem {
    Message(WorldRank, Vec<u8>, Vec<u8>),
    Down(WorldRank, DownCause),
    /// A mailbox that was full has room again.
    Room,
}
// ANCHOR_END: state

// ANCHOR: messages
impl Driver for Corridor {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn post<'a>(&mut self, command: DriverCommand<'a>) -> PostResult<'a> {
        let DriverCommand::Message { to, header, body } = command else {
            panic!("`Caps` say that there are only messages");
        };
        // The caller may reuse its memory when this returns, so the bytes are copied.
        let item = MailboxItem::Message(self.me, header.to_vec(), body.to_vec());
        if self.mailboxes[to.0 as usize].put(item, Some(self.me)) {
            PostResult::Posted
        } else {
            PostResult::Full(command)
        }
    }

    fn progress(&mut self, budget: u32, sink: &mut dyn Sink) -> TurnProgress {
        let own = Arc::clone(&self.mailboxes[self.me.0 as usize]);
        own.disarm();
        let mut events = 0;
        while events < budget
            && let Some(item) = own.take()
        {
            // The mailbox is not locked here, so that peers can post meanwhile.
            match item {
                MailboxItem::Message(from, header, body) => {
                    sink.message(from, &header, PayloadView::from_slice(&body));
                }
                MailboxItem::Down(peer, how) => sink.peer_down(peer, how),
                MailboxItem::Room => {}
            }
            events += 1;
        }
        // Room is an event: a rank that was refused may be asleep.
        let refused = std::mem::take(&mut own.lock().refused);
        for peer in refused {
            self.mailboxes[peer.0 as usize].put(MailboxItem::Room, None);
        }
        TurnProgress { events }
    }
    // ANCHOR_END: messages

    // ANCHOR: sleep
    fn arm(&mut self) -> ArmResult {
        let mut inside = self.mailboxes[self.me.0 as usize].lock();
        inside.armed = inside.items.is_empty();
        if inside.armed {
            ArmResult::Ready
        } else {
            ArmResult::Busy
        }
    }

    fn wait_on(&self) -> Vec<WakeSource> {
        vec![WakeSource::Fd(Arc::clone(
            &self.mailboxes[self.me.0 as usize].bell,
        ))]
    }
    // ANCHOR_END: sleep

    // ANCHOR: memory
    fn allocate(&mut self, len: usize) -> io::Result<MemoryRegion> {
        MemoryRegion::create("corridor", len, true)
    }

    fn expose(&mut self, _range: LocalRange) -> Option<RemoteRegion> {
        None // no peer reaches memory here
    }
    // ANCHOR_END: memory

    // ANCHOR: peers
    fn expect(&mut self, _awaited: &mut dyn FnMut() -> Vec<WorldRank>) {}

    fn give_up(&mut self, _peer: WorldRank, how: Option<DownCause>) -> DownCause {
        how.unwrap_or(DownCause::Failed)
    }
}

impl Drop for Corridor {
    fn drop(&mut self) {
        let how = if std::thread::panicking() {
            DownCause::Failed
        } else {
            DownCause::Finished
        };
        self.mailboxes[self.me.0 as usize].close();
        for door in &self.mailboxes {
            door.put(MailboxItem::Down(self.me, how), None);
        }
    }
}
// ANCHOR_END: peers

// ANCHOR: abilities
impl DriverAbilities for Corridor {
    lacks_abilities! {
        event_counters, task_lists, tag_matching, named_slots, peer_turns, mapped_memory, node_memory, peer_paths,
        connect_ahead, failure_watch, guarded_memory,
    }
}
// ANCHOR_END: abilities

// ANCHOR: mailbox
impl Mailbox {
    /// Adds an item, and wakes the owner if it sleeps. Returns false if there is no room for a message of `sender`, which is
    /// woken when there is some.
    fn put(&self, item: MailboxItem, sender: Option<WorldRank>) -> bool {
        let mut inside = self.lock();
        if inside.closed {
            return true; // for a peer that is down: dropped, not refused
        }
        if let Some(sender) = sender
            && inside.items.len() >= ROOM
        {
            if !inside.refused.contains(&sender) {
                inside.refused.push(sender);
            }
            return false;
        }
        inside.items.push_back(item);
        if std::mem::take(&mut inside.armed) {
            inside.rung = (&self.ring).write(&[1]).is_ok();
        }
        true
    }

    /// Ends the wake-up that `arm` asked for.
    fn disarm(&self) {
        let mut inside = self.lock();
        inside.armed = false;
        if std::mem::take(&mut inside.rung) {
            let drained = self.bell.try_clone().map(UnixStream::from);
            drained.and_then(|mut bell| bell.read(&mut [0])).ok();
        }
    }
    // ANCHOR_END: mailbox

    fn new() -> io::Result<Self> {
        let (bell, ring) = UnixStream::pair()?;
        Ok(Self {
            inside: Mutex::default(),
            bell: Arc::new(bell.into()),
            ring,
        })
    }

    fn take(&self) -> Option<MailboxItem> {
        self.lock().items.pop_front()
    }

    fn close(&self) {
        let mut inside = self.lock();
        inside.closed = true;
        inside.items.clear();
    }

    fn lock(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// ANCHOR: prepared
/// A rank that peers can find, and that does not know them yet.
#[derive(Debug)]
struct PreparedCorridor {
    me: u32,
    caps: Caps,
    own: Arc<Mailbox>,
}

impl PreparedEndpoint for PreparedCorridor {
    /// Returns the place of the own mailbox in a table of this process. A network would return a port or a queue pair.
    fn address(&self) -> Vec<u8> {
        let mut table = TABLE.lock().unwrap_or_else(PoisonError::into_inner);
        table.push(Arc::clone(&self.own));
        (table.len() - 1).to_le_bytes().to_vec()
    }

    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn wait_on(&self) -> Vec<WakeSource> {
        vec![WakeSource::Fd(Arc::clone(&self.own.bell))]
    }

    fn abilities(&self) -> AbilitySummary {
        AbilitySummary::default()
    }

    fn connect(self: Box<Self>, addresses: &[Vec<u8>]) -> io::Result<Box<dyn Driver>> {
        let mailboxes = addresses.iter().zip(0..).map(|(address, rank)| {
            find(address).ok_or_else(|| {
                let why = format!("the address {address:?} of rank {rank} is not valid");
                io::Error::new(io::ErrorKind::InvalidInput, why)
            })
        });
        Ok(Box::new(Corridor {
            me: WorldRank(self.me),
            mailboxes: mailboxes.collect::<io::Result<_>>()?,
            caps: self.caps,
        }))
    }
}
// ANCHOR_END: prepared

static TABLE: Mutex<Vec<Arc<Mailbox>>> = Mutex::new(Vec::new());

fn find(address: &[u8]) -> Option<Arc<Mailbox>> {
    let place = usize::from_le_bytes(address.try_into().ok()?);
    let table = TABLE.lock().unwrap_or_else(PoisonError::into_inner);
    table.get(place).cloned()
}

// ANCHOR: caps
fn caps() -> Caps {
    Caps {
        name: "corridor",
        inline_max: 64,
        header_max: 128,
        body_max: 64 << 10,
        ordered: true,
        reliable: true,
        detects_death: true,
        shares_memory: false,
        one_sided: false,
        atomics: false,
        by_processor: false,
        any_memory: Err("a corridor carries messages only".to_owned()),
        pins_exposed: false,
        lanes: 1,
        cost: COST,
    }
}
// ANCHOR_END: caps

const COST: DriverCost = DriverCost {
    send_ns: 100.0,
    recv_ns: 100.0,
    latency_ns: 100.0,
    copy_ns_per_kib: 50.0,
    message_ns_per_kib: 100.0,
    get_ns: 100.0,
    get_ns_per_kib: 50.0,
    put_ns: 100.0,
    put_ns_per_kib: 50.0,
    expose_ns: 100.0,
};

/// Most items in a mailbox.
const ROOM: usize = 4;

#[derive(Default)]
struct Heard {
    messages: Vec<Vec<u8>>,
    down: Vec<(WorldRank, DownCause)>,
}

impl Sink for Heard {
    fn message(&mut self, _from: WorldRank, header: &[u8], body: PayloadView<'_>) {
        self.messages.push([header, &body.to_vec()].concat());
    }

    fn complete(&mut self, _token: CommandToken) {}
    fn fetched(&mut self, _token: CommandToken, _old: u64) {}
    fn failed(&mut self, _token: CommandToken, _why: CommandFailure) {}
    fn reached(&mut self, _token: CommandToken) {}
    fn triggered(&mut self, _token: CommandToken) {}

    fn peer_down(&mut self, peer: WorldRank, why: DownCause) {
        self.down.push((peer, why));
    }
}

fn world() -> io::Result<[Box<dyn Driver>; 2]> {
    let entrance = |me| -> io::Result<_> {
        let (caps, own) = (caps(), Arc::new(Mailbox::new()?));
        Ok(Box::new(PreparedCorridor { me, caps, own }))
    };
    let (first, second) = (entrance(0)?, entrance(1)?);
    let addresses = [first.address(), second.address()];
    Ok([first.connect(&addresses)?, second.connect(&addresses)?])
}

fn message<'a>(header: &'a [u8]) -> DriverCommand<'a> {
    DriverCommand::Message {
        to: WorldRank(1),
        header,
        body: b"!",
    }
}

#[test]
fn a_message_wakes_its_receiver_and_the_end_comes_after_it() -> io::Result<()> {
    let [mut sender, mut receiver] = world()?;
    let mut heard = Heard::default();
    assert_eq!(receiver.arm(), ArmResult::Ready);
    assert!(matches!(sender.post(message(b"hello")), PostResult::Posted));
    assert_eq!(receiver.arm(), ArmResult::Busy);
    drop(sender);
    assert_eq!(receiver.progress(8, &mut heard).events, 2);
    assert_eq!(heard.messages, [b"hello!"]);
    assert_eq!(heard.down, [(WorldRank(0), DownCause::Finished)]);
    assert!(receiver.failure_watch().is_none());
    Ok(())
}

#[test]
fn room_wakes_a_sender_that_was_refused() -> io::Result<()> {
    let [mut sender, mut receiver] = world()?;
    for _ in 0..ROOM {
        assert!(matches!(sender.post(message(b"")), PostResult::Posted));
    }
    assert!(matches!(sender.post(message(b"")), PostResult::Full(_)));
    assert_eq!(sender.arm(), ArmResult::Ready);
    let mut heard = Heard::default();
    let _turn = receiver.progress(8, &mut heard);
    assert_eq!(
        (heard.messages.len(), sender.arm()),
        (ROOM, ArmResult::Busy)
    );
    assert!(matches!(sender.post(message(b"")), PostResult::Posted));
    Ok(())
}

#[test]
fn an_address_of_no_rank_is_refused_with_its_rank() -> io::Result<()> {
    let own = Arc::new(Mailbox::new()?);
    let entrance = Box::new(PreparedCorridor {
        me: 0,
        caps: caps(),
        own,
    });
    let addresses = [entrance.address(), vec![1]];
    let why = entrance.connect(&addresses).expect_err("no address");
    assert!(why.to_string().contains("rank 1"), "{why}");
    Ok(())
}
