//! A driver whose adapter matches tags, and that reports what a test says.
#![expect(unsafe_code, reason = "writes to memory as an adapter does")]

use std::{
    collections::{BTreeMap, VecDeque},
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use ripstop_fabric::{
    driver::{
        ArmResult, Caps, CommandToken, DownCause, Driver, DriverAbilities, DriverCommand,
        LocalRange, PayloadView, PostResult, Sink, TagBuffer, TagMatching, TurnProgress,
        WakeSource,
    },
    lacks_abilities,
    loopback::{self, LoopbackDriver},
    memory::{MemoryRegion, RemoteRegion},
    passes_abilities,
    tags::MatchTag,
};

use super::alone::op_info;
use crate::{
    group::WorldRank,
    ops::{OpInfo, OpTicket},
};

/// State of the driver, and its next reports.
#[derive(Debug, Default)]
pub(in crate::engine) struct DriverScript {
    pub(in crate::engine) lent: BTreeMap<CommandToken, TagBuffer>,
    /// Buffers into which a message is being written.
    pub(in crate::engine) taken: BTreeMap<CommandToken, TagBuffer>,
    /// Buffers that the engine has asked for and not got back.
    pub(in crate::engine) asked: Vec<CommandToken>,
    pub(in crate::engine) next: VecDeque<ScriptedReport>,
    /// True if the driver returns a buffer immediately when asked.
    pub(in crate::engine) yields: bool,
    /// True if the driver accepts no buffers.
    pub(in crate::engine) full: bool,
    /// True once the driver was dropped.
    pub(in crate::engine) closed: bool,
}

/// Report of a scripted driver.
#[derive(Debug)]
pub(in crate::engine) enum ScriptedReport {
    Message(Vec<u8>, Vec<u8>),
    /// A message placed in the buffer with this token.
    Placed(CommandToken, Vec<u8>, Vec<u8>),
    Returned(CommandToken),
    Down,
}

/// A driver whose adapter matches tags, and that reports what a test says.
#[derive(Debug)]
pub(in crate::engine) struct ScriptedDriver {
    inner: LoopbackDriver,
    caps: Caps,
    script: Arc<Mutex<DriverScript>>,
}

impl ScriptedDriver {
    /// Returns the driver of rank 0 of two, and its script.
    pub(in crate::engine) fn new() -> (Self, Arc<Mutex<DriverScript>>) {
        let inner = loopback::world(2).remove(0);
        let caps = inner.caps().clone();
        let script = Arc::<Mutex<DriverScript>>::default();
        let driver = Self {
            inner,
            caps,
            script: Arc::clone(&script),
        };
        (driver, script)
    }
}

pub(in crate::engine) fn lock(script: &Mutex<DriverScript>) -> MutexGuard<'_, DriverScript> {
    script.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Driver for ScriptedDriver {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn post<'a>(&mut self, _: DriverCommand<'a>) -> PostResult<'a> {
        PostResult::Posted
    }

    fn progress(&mut self, _: u32, sink: &mut dyn Sink) -> TurnProgress {
        let all = std::mem::take(&mut lock(&self.script).next);
        let events = u32::try_from(all.len()).expect("a few");
        let from = WorldRank(1);
        for says in all {
            match says {
                ScriptedReport::Message(header, body) => {
                    sink.message(from, &header, PayloadView::from_slice(&body));
                }
                ScriptedReport::Placed(token, header, body) => {
                    let mut script = lock(&self.script);
                    let taken = script.taken.remove(&token);
                    let offer = taken.or_else(|| script.lent.remove(&token));
                    drop(script);
                    let into = offer.expect("it was lent").into;
                    write(into, &body);
                    sink.placed(token, from, &header, lent_payload(into, body.len()));
                }
                ScriptedReport::Returned(token) => {
                    lock(&self.script).lent.remove(&token);
                    sink.returned(token);
                }
                ScriptedReport::Down => sink.peer_down(from, DownCause::Failed),
            }
        }
        TurnProgress { events }
    }

    fn arm(&mut self) -> ArmResult {
        ArmResult::Ready
    }

    fn wait_on(&self) -> Vec<WakeSource> {
        Vec::new()
    }

    fn allocate(&mut self, len: usize) -> io::Result<MemoryRegion> {
        self.inner.allocate(len)
    }

    fn expose(&mut self, _: LocalRange) -> Option<RemoteRegion> {
        None
    }

    fn expect(&mut self, _: &mut dyn FnMut() -> Vec<WorldRank>) {}

    fn give_up(&mut self, _: WorldRank, how: Option<DownCause>) -> DownCause {
        how.unwrap_or(DownCause::Failed)
    }
}

impl DriverAbilities for ScriptedDriver {
    fn tag_matching(&mut self) -> Option<&mut dyn TagMatching> {
        Some(self)
    }

    passes_abilities! { inner: event_counters }
    lacks_abilities! {
        task_lists, named_slots, peer_turns, mapped_memory, node_memory, peer_paths, connect_ahead, failure_watch,
        guarded_memory,
    }
}

impl TagMatching for ScriptedDriver {
    fn shortest_body(&mut self) -> usize {
        8
    }

    fn post_tagged<'a>(&mut self, _: MatchTag, message: DriverCommand<'a>) -> PostResult<'a> {
        self.post(message)
    }

    fn offer(&mut self, _: WorldRank, offer: TagBuffer) -> bool {
        let mut script = lock(&self.script);
        let takes = !script.full;
        if takes {
            script.lent.insert(offer.token, offer);
        }
        takes
    }

    fn take_back(&mut self, token: CommandToken) -> bool {
        let mut script = lock(&self.script);
        let is_back = script.yields && script.lent.remove(&token).is_some();
        if !is_back {
            script.asked.push(token);
        }
        is_back
    }
}

impl Drop for ScriptedDriver {
    fn drop(&mut self) {
        // Write to all buffers, as an adapter may do until the last moment.
        let mut script = lock(&self.script);
        for offer in script.lent.values().chain(script.taken.values()) {
            write(offer.into, &vec![0xdd; offer.into.len()]);
        }
        script.closed = true;
    }
}

/// Writes to a buffer, as an adapter does.
pub(super) fn write(into: LocalRange, from: &[u8]) {
    assert!(
        from.len() <= into.len(),
        "the adapter lets nothing longer in"
    );
    // SAFETY: the buffer is lent, so the engine keeps it alive and does not access it.
    unsafe {
        into.start()
            .as_ptr()
            .copy_from_nonoverlapping(from.as_ptr(), from.len())
    };
}

fn lent_payload<'a>(of: LocalRange, len: usize) -> PayloadView<'a> {
    // SAFETY: as above, for as long as the sink is called.
    unsafe { PayloadView::from_raw(of.start(), len) }
}

pub(in crate::engine) fn exact(tag: u32) -> OpInfo {
    op_info(Some(1), Some(tag))
}

pub(in crate::engine) fn token(recv: &OpTicket<Vec<u8>>) -> CommandToken {
    CommandToken(recv.op.pack())
}

pub(in crate::engine) fn header(info: &OpInfo) -> Vec<u8> {
    bytemuck::bytes_of(&info.eager()).to_vec()
}

pub(in crate::engine) fn message(tag: u32, body: &[u8]) -> ScriptedReport {
    ScriptedReport::Message(header(&exact(tag)), body.to_vec())
}

pub(in crate::engine) fn placed(recv: &OpTicket<Vec<u8>>, tag: u32, body: &[u8]) -> ScriptedReport {
    ScriptedReport::Placed(token(recv), header(&exact(tag)), body.to_vec())
}
