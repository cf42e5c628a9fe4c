//! What the engine publishes in the rank's view (rt/src/view). Changes nothing, because a thread that falls asleep asks for it
//! after it has armed the driver.

use std::{collections::BTreeMap, panic::Location};

use super::{
    CreationCall, EngineCore, point_to_point::message::StoredMessage, stall_probe,
    window::AwaitedEpoch,
};
use crate::{
    buffer::TypeSig,
    group::{RankGroup, WorldRank},
    ops::{EndedOp, OpInfo, OpState},
    proto::{collective_id::CollectiveId, matching::MessageEnvelope},
    view::{
        PublishedComm, PublishedPeer, PublishedWait, RankSnapshot, StoredGroup, WaitKind,
        layout::PEERS_MAX,
    },
};

/// Most operations, communicators, kinds of unexpected messages and holders of locks in a snapshot. A view has room for about
/// that many.
const WAITS_MAX: usize = 800;
const COMMS_MAX: usize = 256;
const STORED_MAX: usize = 64;
const LOCKS_MAX: usize = 64;

/// Members of a communicator that its hash covers.
const HASHED_MAX: usize = 64;

/// Ids of operations that are not in the table of operations have this bit.
const NOT_IN_TABLE: u64 = 1 << 63;

impl EngineCore {
    /// Returns what this rank waits for. O(operations + stored messages).
    #[cold]
    pub(crate) fn published(&mut self) -> RankSnapshot {
        let (posted, arrived) = self.p2p.tables().counts();
        // Messages come last: there may be so many that they fill the view.
        let mut waits = self.collective_waits();
        waits.extend(self.creation_waits());
        waits.extend(self.other_waits());
        waits.extend(self.message_waits());
        let mut comms = self.published_comms();
        let mut stored = self.published_messages();
        let mut locks = self.windows.published_locks();
        let is_truncated = waits.len() > WAITS_MAX
            || comms.len() > COMMS_MAX
            || stored.len() > STORED_MAX
            || locks.len() > LOCKS_MAX;
        let ended = self.ended(arrived, &comms);
        let peers = self.published_peers();
        let last_ended = self.last_ended(&comms);
        waits.sort_by_key(|wait| !wait.is_awaited); // The most telling ones are kept.
        waits.truncate(WAITS_MAX);
        comms.truncate(COMMS_MAX);
        stored.truncate(STORED_MAX);
        locks.truncate(LOCKS_MAX);
        RankSnapshot {
            is_passive: self.is_at_rest(),
            is_truncated,
            posted,
            arrived,
            ended,
            events: self.p2p.common.recorders.noted_events().unwrap_or(0),
            has_all_peers: peers.len() == self.p2p.common.peers.len(),
            peers,
            waits,
            comms,
            stored,
            locks,
            last_ended,
            sleep: self.sleepers.published(),
            recorded: self.p2p.common.recorders.traced_totals(),
            ..RankSnapshot::default()
        }
    }

    /// Returns the number of operations that have ended, from numbers that are kept in any case. It may go back, as
    /// [`RankSnapshot::ended`] says.
    fn ended(&self, arrived: u64, comms: &[PublishedComm]) -> u64 {
        let stored = self.p2p.tables().stored_messages().count() as u64;
        let sent = self.p2p.common.peers.exchanged().map(|peer| peer.sent);
        let begun = comms.iter().map(|comm| comm.next);
        let running = self.programs.running_collectives().count() as u64;
        let running = running + self.p2p.common.calls.agreeing.len() as u64;
        let all = sent.chain(begun).map(u64::from).sum::<u64>() + arrived;
        all.saturating_sub(stored + running)
    }

    /// Returns the operation that ended last, in words.
    fn last_ended(&self, comms: &[PublishedComm]) -> String {
        match self.p2p.common.ops.last_ended() {
            EndedOp::Collective => {
                let mut collectives = comms.iter().map(|comm| &comm.last);
                let last = collectives.find(|last| !last.is_empty());
                last.cloned().unwrap_or_default()
            }
            // Both have the context of collectives.
            EndedOp::Recv(info) | EndedOp::Send(info) if !info.ctx.is_multiple_of(2) => {
                format!("call of a window or a communicator, {}", line(info.at))
            }
            EndedOp::Recv(info) if info.probe => ended_message("probe from", info),
            EndedOp::Recv(info) => ended_message("recv from", info),
            EndedOp::Send(info) => ended_message("send to", info),
            EndedOp::SentTo(rank) => format!("send to rank {rank}"),
            EndedOp::Unknown => String::new(),
        }
    }

    fn published_peers(&self) -> Vec<PublishedPeer> {
        let peers = self.p2p.common.peers.exchanged();
        peers.take(PEERS_MAX).collect()
    }

    /// Returns true if nothing happens here without a peer. Questions of a rank that waits for a collective do not count.
    fn is_at_rest(&self) -> bool {
        let no_timer = self
            .p2p
            .common
            .timers
            .keys()
            .all(|key| key == stall_probe::KEY);
        no_timer && self.p2p.common.commands_in_flight == 0 && self.is_without_transfers()
    }

    /// Returns the messages and the accesses to windows in flight.
    fn message_waits(&mut self) -> Vec<PublishedWait> {
        // There may be hundreds of thousands. Those that futures wait for are the most telling ones.
        let mut room = WAITS_MAX + 1;
        let mut in_flight = Vec::new();
        let calls = &self.p2p.common.calls;
        let creating: Vec<CollectiveId> = calls.agreeing.iter().map(|call| call.id).collect();
        let is_in_creation = |info: &OpInfo| {
            let id = info.tag.map(|tag| CollectiveId::new(info.ctx, tag));
            id.is_some_and(|id| creating.contains(&id))
        };
        for is_awaited in [true, false] {
            in_flight.extend(self.p2p.common.ops.select(|slot| {
                let is_one = room > 0
                    && slot.waker.is_some() == is_awaited
                    && !slot.is_in_program()
                    && !is_in_creation(&slot.info)
                    && kind_of(&slot.state, slot.info.probe, slot.info.ctx).is_some();
                room -= usize::from(is_one);
                is_one
            }));
        }
        let mut waits = Vec::new();
        for op in in_flight {
            let slot = self.p2p.common.ops.live(op);
            let info = slot.info;
            let Some(kind) = kind_of(&slot.state, info.probe, info.ctx) else {
                continue;
            };
            let bytes = slot.area.len as u64;
            waits.push(PublishedWait {
                kind,
                id: op.pack(),
                comm: info.ctx & !1,
                peer: info.peer.map(|rank| rank.0),
                tag: info.tag,
                sig: info.sig,
                bytes,
                is_awaited: slot.waker.is_some(),
                since: 0,
                name: match kind {
                    WaitKind::Creation => "create".to_owned(),
                    _ => elements(info.sig, bytes),
                },
                at: line(info.at),
            });
        }
        waits
    }

    fn collective_waits(&self) -> Vec<PublishedWait> {
        let all = self
            .programs
            .running_collectives()
            .map(|(info, name)| PublishedWait {
                kind: WaitKind::Collective,
                id: NOT_IN_TABLE | u64::from(info.ctx) << 32 | u64::from(info.tag.unwrap_or(0)),
                comm: info.ctx & !1,
                peer: None,
                tag: info.tag,
                sig: info.sig,
                bytes: 0,
                is_awaited: true,
                since: 0,
                name: name.to_owned(),
                at: line(info.at),
            });
        all.collect()
    }

    /// Returns the collectives that consist of plain messages: the making of communicators and windows, fences, and the ends of
    /// windows.
    fn creation_waits(&self) -> Vec<PublishedWait> {
        let calls = self.p2p.common.calls.agreeing.iter();
        let wait = |call: &CreationCall| PublishedWait {
            kind: WaitKind::Creation,
            id: NOT_IN_TABLE | u64::from(call.id.context) << 32 | u64::from(call.id.sequence),
            comm: call.id.context & !1,
            peer: None,
            tag: Some(call.id.sequence),
            sig: TypeSig::of_name(call.name).0,
            bytes: 0,
            is_awaited: true,
            since: 0,
            name: match call.window {
                Some(window) => format!("{} of window {window}", call.name),
                None => call.name.to_owned(),
            },
            at: line(call.at),
        };
        calls.map(wait).collect()
    }

    /// Returns the agreements, and the epochs of windows that wait for other ranks.
    fn other_waits(&self) -> Vec<PublishedWait> {
        let wait =
            |kind: WaitKind, number: u64, comm: u32, target: Option<(WorldRank, u32)>, at| {
                let (peer, window) = target.unzip();
                PublishedWait {
                    kind,
                    id: NOT_IN_TABLE | id_of(kind, number, comm, target),
                    comm: comm & !1,
                    peer: peer.map(|rank| rank.0),
                    tag: window,
                    sig: 0,
                    bytes: 0,
                    is_awaited: true,
                    since: 0,
                    name: String::new(),
                    at,
                }
            };
        let agreements = self.recovery.waiting_agreed().map(|(number, report)| {
            let number = u64::from(number);
            wait(WaitKind::Agree, number, report.ctx, None, line(report.at))
        });
        let epochs = self.windows.published_waits().into_iter().map(|epoch| {
            let AwaitedEpoch { id, rank, kind, .. } = epoch;
            let at = epoch.at.map_or_else(String::new, line);
            let target = Some((rank, id.sequence));
            wait(kind, epoch.future, id.context, target, at)
        });
        agreements.chain(epochs).collect()
    }

    fn published_comms(&self) -> Vec<PublishedComm> {
        let contexts = self
            .p2p
            .common
            .groups
            .contexts()
            .filter(|ctx| ctx.is_multiple_of(2));
        let group = |ctx| Some((ctx, self.p2p.common.groups.get(ctx)?));
        let comms = contexts.take(COMMS_MAX + 1).filter_map(group);
        comms
            .map(|(ctx, group)| PublishedComm {
                comm: ctx,
                size: u32::try_from(group.len()).unwrap_or(u32::MAX),
                members: hash(group),
                next: self.p2p.common.calls.next_begun(ctx + 1),
                last: self
                    .programs
                    .last_collective_of(&self.p2p.common.calls, ctx + 1)
                    .unwrap_or_default(),
            })
            .collect()
    }

    /// Returns the messages of the application that no receive has taken, by kind, and those that probes have reserved.
    fn published_messages(&mut self) -> Vec<StoredGroup> {
        let is_unqueued = |message: &StoredMessage| message.place.is_none();
        let has_unqueued = self.p2p.tables().stored_messages().any(is_unqueued);
        let packing = has_unqueued.then(|| self.awaited_packing());
        let mut packing = packing.unwrap_or_default();
        let mut kinds = BTreeMap::new();
        for message in self.p2p.tables().stored_messages() {
            let envelope = message.envelope;
            if !envelope.ctx.is_multiple_of(2) {
                continue;
            }
            let is_probed = is_unqueued(message);
            let receive = packing
                .iter()
                .position(|awaited| is_probed && *awaited == envelope);
            if let Some(receive) = receive {
                packing.swap_remove(receive);
                continue;
            }
            let key = (
                envelope.ctx,
                envelope.source,
                envelope.tag,
                message.sig,
                is_probed,
            );
            if kinds.len() > STORED_MAX && !kinds.contains_key(&key) {
                continue;
            }
            let bytes = message.body.as_message_body().bytes();
            let group = kinds.entry(key).or_insert_with(|| StoredGroup {
                is_probed,
                source: envelope.source.0,
                comm: envelope.ctx,
                tag: envelope.tag,
                sig: message.sig,
                count: 0,
                bytes: 0,
                name: elements(message.sig, bytes),
            });
            group.count += 1;
            group.bytes += bytes;
        }
        kinds.into_values().collect()
    }

    /// Returns the envelopes of the messages that receives have taken, and read in place as soon as they are packed.
    fn awaited_packing(&mut self) -> Vec<MessageEnvelope> {
        let ops = &mut self.p2p.common.ops;
        let receives = ops.select(|slot| matches!(slot.state, OpState::AwaitsPacking(_)));
        let envelope = |op| {
            let slot = ops.get(op)?;
            let OpState::AwaitsPacking(landed) = slot.state else {
                return None;
            };
            Some(MessageEnvelope {
                ctx: slot.info.ctx,
                source: landed.source,
                tag: landed.tag,
            })
        };
        receives.into_iter().filter_map(envelope).collect()
    }
}

/// Returns the kind of an operation; `None` if it is complete, or a part of a collective.
fn kind_of(state: &OpState, is_probe: bool, ctx: u32) -> Option<WaitKind> {
    let kind = match state {
        OpState::Free | OpState::Running | OpState::Done(_) | OpState::Failed | OpState::Lost => {
            return None;
        }
        OpState::Queued => WaitKind::SendQueued,
        OpState::Offered | OpState::Withdrawing => WaitKind::SendOffered,
        OpState::Remote { .. } => WaitKind::Remote,
        OpState::Posted(_) | OpState::Expected if is_probe => WaitKind::Probe,
        OpState::Posted(_) | OpState::Expected => WaitKind::Recv,
        OpState::Landing(_) | OpState::Recalled(_) | OpState::Following { .. } => {
            WaitKind::RecvMoving
        }
        OpState::AwaitsPacking(_) => WaitKind::RecvPacking,
        OpState::Putting { .. }
        | OpState::Claiming { .. }
        | OpState::PuttingRear { .. }
        | OpState::Fragmenting { .. } => WaitKind::SendMoving,
    };
    // Communicators and windows are made by plain messages on the context of their collectives.
    let is_creation = !ctx.is_multiple_of(2) && kind != WaitKind::Remote;
    Some(if is_creation {
        WaitKind::Creation
    } else {
        kind
    })
}

/// Returns the elements of a message in words.
fn elements(sig: u64, bytes: u64) -> String {
    match TypeSig(sig).primitive() {
        Some((name, size)) => format!("{name} x {}", bytes / size as u64),
        None => format!("{bytes} bytes"),
    }
}

fn ended_message(what: &str, info: &OpInfo) -> String {
    let peer = info
        .peer
        .map_or_else(|| "any rank".to_owned(), |rank| format!("rank {rank}"));
    format!("{what} {peer}, {}", line(info.at))
}

fn line(at: &Location<'_>) -> String {
    format!("{}:{}", at.file(), at.line())
}

fn hash(group: &RankGroup) -> u64 {
    let members = group.members().take(HASHED_MAX);
    let start = TypeSig::of_name("members").and(group.len() as u64);
    members
        .fold(start, |sum, rank| sum.and(u64::from(rank.0)))
        .0
}

/// Returns the name of an agreement with this number, or of what a future with this number waits for at a window of a rank.
fn id_of(kind: WaitKind, number: u64, comm: u32, target: Option<(WorldRank, u32)>) -> u64 {
    let (peer, window) = target.map_or((u64::MAX, u64::MAX), |(rank, window)| {
        (u64::from(rank.0), u64::from(window))
    });
    let parts = [kind as u64, number, u64::from(comm), peer, window];
    let start = TypeSig::of_name("wait");
    parts.into_iter().fold(start, |id, part| id.and(part)).0
}
