//! What only some drivers can do: one trait for each ability, handed out by the driver.
//!
//! No trait here has methods with defaults, so a wrapper that forgets one does not compile.

use std::{fmt, io, sync::Weak};

use super::{
    AwaitedLook, AwaitedMessage, Caps, CommandToken, DownEvidence, DriverCommand, LocalRange,
    PayloadView, PostResult, Sink, SlotName, SlotReceipt, TagBuffer, WorldRank,
};
use crate::{
    memory::{MemoryRegion, RemoteRegion},
    offload::{LocalCounter, RemoteCounter, TriggeredTask},
    tags::MatchTag,
};

/// Hands out the abilities of a driver: `Some` if it has the ability, which is the only sign of it.
///
/// The answers do not change while a driver has peers, so callers may ask once whether an ability is there. A driver names those
/// that it lacks in [`lacks_abilities!`](crate::lacks_abilities).
pub trait DriverAbilities {
    /// Returns the counters of ranks, which peers add to.
    fn event_counters(&mut self) -> Option<&mut dyn EventCounters>;

    /// Returns task lists, which counters start.
    fn task_lists(&mut self) -> Option<&mut dyn TaskLists>;

    /// Returns tag matching by the adapter.
    fn tag_matching(&mut self) -> Option<&mut dyn TagMatching>;

    /// Returns the named slots for short messages.
    fn named_slots(&mut self) -> Option<&mut dyn NamedSlots>;

    /// Returns turns for single peers.
    fn peer_turns(&mut self) -> Option<&mut dyn PeerTurns>;

    /// Returns access to peers' memory by loads and stores.
    fn mapped_memory(&mut self) -> Option<&mut dyn MappedMemory>;

    /// Returns memory that the ranks of this node map, whichever path other memory takes.
    fn node_memory(&mut self) -> Option<&mut dyn NodeMemory>;

    /// Returns what differs from peer to peer.
    fn peer_paths(&mut self) -> Option<&mut dyn PeerPaths>;

    /// Returns the means to connect to peers before anything is sent to them.
    fn connect_ahead(&mut self) -> Option<&mut dyn ConnectAhead>;

    /// Returns what the driver knows of peers that may have failed.
    fn failure_watch(&mut self) -> Option<&mut dyn FailureWatch>;

    /// Returns the check of accesses to this rank's memory.
    fn guarded_memory(&mut self) -> Option<&mut dyn GuardedMemory>;
}

/// Counters of this rank, which [`DriverCommand::Count`] and counting puts of peers add to.
pub trait EventCounters {
    /// Allocates memory like [`Driver::allocate`](super::Driver::allocate), for counters that tasks wait for.
    ///
    /// Those are the counters of [`LocalCounters::for_tasks`](crate::offload::LocalCounters::for_tasks).
    ///
    /// An adapter that runs task lists may count elsewhere and write the value here only when it reports the count. A driver may
    /// also update such counters only in its turns.
    ///
    /// # Errors
    /// The call fails as [`Driver::allocate`](super::Driver::allocate) does.
    fn allocate_counters(&mut self, len: usize) -> io::Result<MemoryRegion>;
}

/// Lists of tasks that begin when counters reach thresholds.
pub trait TaskLists {
    /// Returns the limits of lists, which never change.
    fn list_limits(&self) -> ListLimits;

    /// Keeps a list of tasks, and begins each task when its counters have reached their thresholds. Returns false if there is no
    /// room.
    ///
    /// Tasks that become ready at the same time begin in list order. A list is taken whole or not at all: there is no room while
    /// more than [`ListLimits::triggered_max`] tasks would be waiting. A list longer than that is a mistake of the caller. Tasks
    /// that are ready when posted do not count as waiting. Room is an event, as for [`Driver::post`](super::Driver::post).
    ///
    /// The caller must keep the memory that tasks touch alive until counters show that they are done, or until
    /// [`Sink::failed`].
    ///
    /// The token is handed back in [`Sink::triggered`] when all tasks of this list have begun, or in
    /// [`Sink::failed`]. Lists with the same token belong together: the first task that fails takes all of
    /// them back, and no task with this token begins until the token is canceled. A failed task may still have counted, but no
    /// watch reports that count before the failure is reported.
    fn post_list(&mut self, tasks: &[TriggeredTask], token: CommandToken) -> bool;

    /// Takes back the lists of a token. Reported as [`CommandFailure::Cancelled`](super::CommandFailure::Cancelled) when none of
    /// their tasks is in flight any more, even if there were no lists.
    fn cancel_lists(&mut self, token: CommandToken);

    /// Releases lists whose tasks have all begun and whose published landings have all been used. They cannot be canceled any
    /// more.
    ///
    /// Returns false if some task is still in flight; the caller then asks again.
    fn forget_lists(&mut self, token: CommandToken) -> bool;

    /// Gives a region of this rank a name, so that peers can make keys to it themselves with [`RemoteRegion::named`]. The name is
    /// unique among the regions of this rank, and keeps the region mapped.
    ///
    /// Peers' commands that used the name before it was given wait for this.
    fn give_name(&mut self, name: u64, region: &MemoryRegion);

    /// Takes back the name of a region.
    fn take_back_name(&mut self, name: u64);
}

/// Limits of a driver's task lists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(
    clippy::exhaustive_structs,
    reason = "written out by each driver with task lists"
)]
pub struct ListLimits {
    /// Most tasks that can wait at a time.
    pub triggered_max: usize,
    /// Longest [`TaskAction::Combine`](crate::offload::TaskAction::Combine) that the adapter performs, in bytes. Longer ones are
    /// left to the rank's processor; 0 means all.
    pub combine_max: usize,
}

/// Tag matching by the adapter, which then places bodies where their receiver wants them.
pub trait TagMatching {
    /// Returns the shortest body in bytes for which matching by the adapter saves a copy. The answer never changes.
    fn shortest_body(&mut self) -> usize;

    /// Posts a [`DriverCommand::Message`] that may be placed directly in memory that its receiver has [offered](Self::offer) for
    /// this tag. The message keeps its order with all other messages, whether or not it is placed there.
    fn post_tagged<'a>(&mut self, tag: MatchTag, message: DriverCommand<'a>) -> PostResult<'a>;

    /// Lends memory to the next message that this peer posts with this tag, if header length and body fit the offer.
    ///
    /// Returns true if the driver accepted the memory. The driver then owns it until
    /// [`Sink::placed`] or [`Sink::returned`] names the token, until
    /// [`take_back`](Self::take_back) returns true, or until the driver is dropped.
    ///
    /// Messages that arrived earlier, or that arrive by another path, are handed to the sink as usual and leave the memory
    /// untouched.
    fn offer(&mut self, from: WorldRank, offer: TagBuffer) -> bool;

    /// Asks for lent memory back. Returns true if it belongs to the caller again. Otherwise
    /// [`Sink::placed`] or [`Sink::returned`] will name the token later, even if the
    /// peer fails.
    fn take_back(&mut self, token: CommandToken) -> bool;
}

/// For each peer, a few slots for messages of at most [`SLOT_MESSAGE_MAX`](super::SLOT_MESSAGE_MAX) bytes, in which the receiver
/// looks for each message by its name.
///
/// These messages are not ordered with others, and cost a fraction of one.
pub trait NamedSlots {
    /// Writes a message to a slot of this peer, and wakes the peer if it sleeps.
    ///
    /// Returns false if there is no free slot or no connection yet; the caller must then send the message by other means. A
    /// message in a slot stays readable after this rank has ended. `again`: `bytes` is identical to the previous message written
    /// to a slot, for any peer, so the driver may reuse its storage.
    fn put_slot(
        &mut self,
        to: WorldRank,
        name: SlotName,
        sig: u64,
        bytes: &[u8],
        again: bool,
    ) -> bool;

    /// Returns the number that the sender stored with the message of this name for the receiver to compare, if the message has
    /// arrived.
    ///
    /// Returns `None` also while messages that the peer sent before it were not yet handed to a sink.
    fn peek_slot(&self, from: WorldRank, name: SlotName) -> Option<u64>;

    /// Takes the message of this name, if it has arrived, and frees its slot.
    ///
    /// The pieces of the message are handed to `fill`, which returns true if they are what the receiver expects.
    fn take_slot(
        &mut self,
        from: WorldRank,
        name: SlotName,
        fill: &mut dyn FnMut(&[PayloadView<'_>]) -> bool,
    ) -> Option<SlotReceipt>;

    /// Takes the message of this name like [`take_slot`](Self::take_slot), if [`peek_slot`](Self::peek_slot) returns `sig`.
    ///
    /// # Errors
    /// The message was not taken. The error contains the number that its sender stored, or `None` if the message has not come.
    fn take_expected_slot(
        &mut self,
        from: WorldRank,
        name: SlotName,
        sig: u64,
        fill: &mut dyn FnMut(&[PayloadView<'_>]) -> bool,
    ) -> Result<SlotReceipt, Option<u64>>;

    /// Returns the names of all messages of this peer that are in slots now.
    fn slots_from(&self, from: WorldRank) -> Vec<SlotName>;

    /// Returns true if a message of this peer was not taken from its slot yet, although a message that the peer sent later was
    /// handed to a sink.
    ///
    /// The answer compares counts, so it may be wrong after messages were taken out of order ([`SlotReceipt::overtook`]).
    fn are_slots_behind(&self, from: WorldRank) -> bool;
}

/// Turns for a caller that waits for a message of one peer, at a fraction of the cost of
/// [`Driver::progress`](super::Driver::progress).
pub trait PeerTurns {
    /// Hands at most one arrival of this peer to `sink`, and returns how many. Returns `None` if this driver cannot look for
    /// messages of this peer alone, or not yet; then only a turn can find one.
    ///
    /// Messages of the peer keep their order, whichever kind of turn hands them out. The call does nothing else that a turn does,
    /// so the caller must also make turns: the next one reports a peer that turned out to be down. The driver must not be armed.
    fn progress_from(&mut self, from: WorldRank, sink: &mut dyn Sink) -> Option<u32>;

    /// Takes the next arrival of this peer if it is the awaited message, and copies its body. No sink hears of it.
    ///
    /// Everything else is as for [`progress_from`](Self::progress_from), which finds what this call leaves.
    fn take_awaited(&mut self, from: WorldRank, awaited: AwaitedMessage) -> AwaitedLook;
}

/// Peers' memory as mapped into this process.
///
/// Words that different ranks write should be in different cache lines if the driver has this ability.
pub trait MappedMemory {
    /// Returns a peer's memory as mapped into this process, and the offset in it where the key's range starts.
    ///
    /// Loads and stores there are puts and gets without a command. Returns `None` if the driver cannot map the memory, or cannot
    /// do so yet.
    fn reach(&mut self, of: WorldRank, key: RemoteRegion) -> Option<(MemoryRegion, usize)>;

    /// Returns a peer's counter as mapped into this process. Adding to it has the effect of a [`DriverCommand::Count`] without a
    /// command.
    ///
    /// Returns `None` if the driver cannot map the counter, or cannot do so yet.
    fn reach_counter(&mut self, of: WorldRank, key: RemoteCounter) -> Option<LocalCounter>;
}

/// Memory that the ranks of a node map, for loads and stores only.
///
/// A driver of several paths has it for the ranks of its own node, although its other memory is that of the network. Commands
/// never name this memory.
pub trait NodeMemory {
    /// Returns true if this rank and the peer can map such memory of each other. The answer never changes.
    fn shares_with(&self, peer: WorldRank) -> bool;

    /// Allocates zeroed memory that peers can map. `len` is in bytes and is rounded up to whole pages.
    ///
    /// # Errors
    /// The call fails as [`Driver::allocate`](super::Driver::allocate) does.
    fn allocate_on_node(&mut self, len: usize) -> io::Result<MemoryRegion>;

    /// Returns a key to a range of memory from [`allocate_on_node`](Self::allocate_on_node), for peers to map it. The key works
    /// as long as the region has a holder.
    fn expose_on_node(&mut self, range: LocalRange) -> Option<RemoteRegion>;

    /// Returns a peer's memory as mapped into this process, and the offset in it where the key's range starts.
    ///
    /// Returns `None` if the key is not to such memory of this peer, or the peer has released it.
    fn reach_on_node(&mut self, of: WorldRank, key: RemoteRegion) -> Option<(MemoryRegion, usize)>;
}

/// Several paths, of which each peer is reached by one.
pub trait PeerPaths {
    /// Returns what the driver can do with this peer, which may be more than it can do with every peer.
    ///
    /// That is about single commands: lengths, memory, costs. What must hold for the streams of all peers is in
    /// [`Driver::caps`](super::Driver::caps): order, reliability, detection of failures.
    fn caps_to(&self, peer: WorldRank) -> &Caps;

    /// Returns a key like [`Driver::expose`](super::Driver::expose), but valid for this peer only, so the driver may pick a
    /// faster path.
    ///
    /// Exception: a counting put through such a key may fail with [`BadRange`](super::CommandFailure::BadRange).
    fn expose_to(&mut self, peer: WorldRank, range: LocalRange) -> Option<RemoteRegion>;
}

/// Connections that take long, and can be made before they are used.
pub trait ConnectAhead {
    /// Starts connecting to all these peers at the same time, because the caller will send something to them.
    ///
    /// Never blocks; a connection that fails is reported when it is used.
    fn connect_many(&mut self, peers: &[WorldRank]);
}

/// Says how peers have failed, and helps the caller to detect failed peers if [`Caps::detects_death`] is false.
pub trait FailureWatch {
    /// Returns true if the driver knows where its peers are, and from then on always. Until then messages find no room, so no
    /// peer can be probed for liveness.
    fn knows_peers(&mut self) -> bool;

    /// Returns how many of this rank's commands the peer's adapter has acknowledged so far, or 0 if the driver does not count
    /// them.
    ///
    /// A growing count shows that the peer is alive, even if its own messages are delayed behind many others.
    fn answers(&mut self, peer: WorldRank) -> u64;

    /// Returns how this driver knows that a peer has failed, and what to check if it knows more than that the peer is
    /// unreachable.
    fn evidence(&mut self, peer: WorldRank) -> DownEvidence;
}

/// Checks accesses to memory that only a bug in the program can lead to. Real adapters cannot check them.
pub trait GuardedMemory {
    /// Has `keeper` asked before a command of a peer touches this memory of this rank. If it forbids the access, the driver
    /// panics.
    fn guard(&mut self, key: RemoteRegion, keeper: Weak<dyn AccessPolicy>);
}

/// Knows at every moment which ranks may access some memory of this rank.
pub trait AccessPolicy: Send + Sync + fmt::Debug {
    /// Returns true if commands of `origin` may access the memory now.
    fn permits(&self, origin: WorldRank) -> bool;
}

/// Abilities that a driver will have once it is connected, for callers that decide before that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(
    clippy::exhaustive_structs,
    reason = "written out by each prepared driver"
)]
pub struct AbilitySummary {
    /// True if the driver has [`EventCounters`].
    pub counters: bool,
    /// Limits of [`TaskLists`], if the driver has them.
    pub lists: Option<ListLimits>,
    /// Shortest body for [`TagMatching`], if the driver has that.
    pub tags: Option<usize>,
    /// True if the driver has [`ConnectAhead`].
    pub connects: bool,
}

/// Writes methods of [`DriverAbilities`] that return `None`.
///
/// ```
/// use ripstop_fabric::{driver::{DriverAbilities, EventCounters}, lacks_abilities};
///
/// struct Plain;
///
/// impl DriverAbilities for Plain {
///     lacks_abilities! {
///         event_counters, task_lists, tag_matching, named_slots, peer_turns, mapped_memory, node_memory, peer_paths,
///         connect_ahead, failure_watch, guarded_memory,
///     }
/// }
///
/// assert!(Plain.event_counters().is_none());
/// ```
#[macro_export]
macro_rules! lacks_abilities {
    ($($accessor:ident),+ $(,)?) => {
        $($crate::ability_method! { [] $accessor })+
    };
}

/// Writes methods of [`DriverAbilities`] that return those of the driver in a field of this
/// wrapper: `passes_abilities! { FIELD: ACCESSOR, ACCESSOR }`.
#[macro_export]
macro_rules! passes_abilities {
    ($driver:ident: $($accessor:ident),+ $(,)?) => {
        $($crate::ability_method! { [$driver] $accessor })+
    };
}

/// Writes one method for the two macros above.
#[doc(hidden)]
#[macro_export]
macro_rules! ability_method {
    ($how:tt event_counters) => {
        $crate::ability_method! { $how event_counters EventCounters }
    };
    ($how:tt task_lists) => {
        $crate::ability_method! { $how task_lists TaskLists }
    };
    ($how:tt tag_matching) => {
        $crate::ability_method! { $how tag_matching TagMatching }
    };
    ($how:tt named_slots) => {
        $crate::ability_method! { $how named_slots NamedSlots }
    };
    ($how:tt peer_turns) => {
        $crate::ability_method! { $how peer_turns PeerTurns }
    };
    ($how:tt mapped_memory) => {
        $crate::ability_method! { $how mapped_memory MappedMemory }
    };
    ($how:tt node_memory) => {
        $crate::ability_method! { $how node_memory NodeMemory }
    };
    ($how:tt peer_paths) => {
        $crate::ability_method! { $how peer_paths PeerPaths }
    };
    ($how:tt connect_ahead) => {
        $crate::ability_method! { $how connect_ahead ConnectAhead }
    };
    ($how:tt failure_watch) => {
        $crate::ability_method! { $how failure_watch FailureWatch }
    };
    ($how:tt guarded_memory) => {
        $crate::ability_method! { $how guarded_memory GuardedMemory }
    };
    ([] $accessor:ident $ability:ident) => {
        fn $accessor(&mut self) -> Option<&mut dyn $crate::driver::$ability> {
            None
        }
    };
    ([$driver:ident] $accessor:ident $ability:ident) => {
        #[inline]
        fn $accessor(&mut self) -> Option<&mut dyn $crate::driver::$ability> {
            self.$driver.$accessor()
        }
    };
}
