//! Flows: the packets from one rank to another on one rail, with both halves of go-back-n.

use super::{
    super::{
        goback::{GoBackAnswer, GoBackHeader, GoBackLimits, GoBackReceiver, GoBackSender},
        heap::{NEVER, SimEvent, SimTime},
        network::{RankPair, WireLoad},
        world::{SimWorld, ps},
    },
    SLACK_MIN, SimWire, WireFlow, WireFrame, WirePacket,
    crossing::FrameCrossing,
};
use crate::{driver::DownCause, sim::faults::FlowKind};

impl SimWorld {
    /// Sends the packets that a flow may send now. Returns when the next one of the same transfer should leave.
    pub(super) fn transmit(&mut self, lane: u32) -> SimTime {
        let now = self.heap.now();
        let mut next = now;
        loop {
            let state = &mut self.wire().flows[lane];
            let (rail, distance) = (state.rail, state.distance);
            let pair = RankPair::new(state.from, state.to);
            let limits = self.lane_limits(distance);
            if self.hosts.is_killed(pair.from) {
                return now;
            }
            let sender = &mut self.wire().flows[lane].sender;
            let Some((data, packet)) = sender.poll_transmit(now, &limits) else {
                break;
            };
            if !sender.is_fresh(data.seq) {
                self.stats.retransmissions += 1;
            }
            let image = self.image(&data.seq.to_le_bytes(), packet.slot);
            let place = FlowKind::Packets.next(&mut self.wire().flows[lane].crossed);
            let crossed = self.cross(FrameCrossing {
                at: now,
                pair,
                rail: u32::from(rail),
                place,
                load: Some(WireLoad {
                    len: packet.len,
                    toll: packet.toll,
                }),
                image: &image,
            });
            next = crossed.next;
            self.put_on_wire(crossed, || WireFrame::Data { lane, data, packet });
            let sender = &mut self.wire().flows[lane].sender;
            sender.sent(crossed.due + distance, &limits);
        }
        self.plan_lane(lane);
        next
    }

    /// Plans the flow's next timeout, or gives up its peer.
    fn plan_lane(&mut self, lane: u32) {
        let now = self.heap.now();
        let state = &mut self.wire().flows[lane];
        if state.sender.is_dead() {
            return self.give_up(lane);
        }
        let Some(at) = state.sender.next_timeout() else {
            return;
        };
        if at < state.timer {
            let at = at.max(now + 1);
            state.timer = at;
            self.heap.push(at, SimEvent::FlowTimeout(lane));
        }
    }

    /// Handles a planned timeout of a flow.
    pub(in crate::sim) fn handle_flow_timeout(&mut self, lane: u32) {
        let now = self.heap.now();
        let state = &mut self.wire().flows[lane];
        if state.timer == now {
            state.timer = NEVER;
            self.transmit(lane);
        }
    }

    /// Gives up a peer that was silent for too long.
    fn give_up(&mut self, lane: u32) {
        let state = &mut self.wire().flows[lane];
        let (from, to, expected) = (state.from, state.to, state.receiver.expected());
        let numbers = state.sender.first()..;
        let left = state.sender.take_all();
        for (_, packet) in numbers.zip(left).filter(|(seq, _)| *seq >= expected) {
            self.drop_packet(packet.slot);
            self.leave_connection(from, to);
        }
        if let Some((pool, _)) = self.wire().pools.get_mut(&to) {
            pool.forget(lane);
        }
        self.report_peer_down(from, to, DownCause::Failed);
    }

    /// Handles a frame that has reached the other end.
    pub(in crate::sim) fn take_frame(&mut self, frame: u32) {
        match self.wire().frames.remove(frame) {
            WireFrame::Data { lane, data, packet } => self.take_data(lane, data, packet),
            WireFrame::Answer { lane, answer } => self.take_answer(lane, answer),
            WireFrame::Connection { from, to, bytes } => {
                self.take_connection_frame(from, to, &bytes)
            }
        }
    }

    fn take_data(&mut self, lane: u32, data: GoBackHeader, packet: WirePacket) {
        let state = &self.wire().flows[lane];
        let (from, to, distance) = (state.from, state.to, state.distance);
        let next = data.seq == state.receiver.expected();
        if state.sender.is_dead() || self.ignores_peer(to, from) {
            return;
        }
        let met = &mut self.wire().flows[lane].met;
        if packet.connected && !std::mem::replace(met, true) {
            self.note_peer_data(to, from);
        }
        let limits = self.lane_limits(distance);
        let now = self.heap.now();
        let needs_slot = next && self.needs_slot(packet.slot);
        let SimWire {
            flows: lanes,
            pools,
            ..
        } = self.wire();
        let receiver = &mut lanes[lane].receiver;
        let mut pool = pools.get_mut(&to).map(|(pool, _)| pool);
        if let Some(pool) = pool.as_mut().filter(|_| next && !needs_slot) {
            pool.pass(lane);
        }
        let pool = pool.filter(|_| needs_slot);
        let verdict = receiver.handle_data(data, lane, pool, now, &limits);
        if verdict.taken {
            self.deliver(packet.slot);
        }
        if let Some(answer) = verdict.answer {
            self.send_answer(lane, answer, now);
        }
        if needs_slot {
            self.call(to);
        }
    }

    pub(super) fn send_answer(&mut self, lane: u32, answer: GoBackAnswer, at: SimTime) {
        let state = &self.wire().flows[lane];
        let (pair, rail) = (RankPair::new(state.to, state.from), u32::from(state.rail));
        let place = FlowKind::Answers.next(&mut self.wire().flows[lane].answers);
        let crossed = self.cross(FrameCrossing {
            at,
            pair,
            rail,
            place,
            load: None,
            image: &answer.expected.to_le_bytes(),
        });
        self.put_on_wire(crossed, || WireFrame::Answer { lane, answer });
    }

    fn take_answer(&mut self, lane: u32, answer: GoBackAnswer) {
        let state = &self.wire().flows[lane];
        let (from, to, distance) = (state.from, state.to, state.distance);
        if self.ignores_peer(from, to) {
            return;
        }
        let limits = self.lane_limits(distance);
        let now = self.heap.now();
        let SimWire {
            flows: lanes, done, ..
        } = self.wire();
        let sender = &mut lanes[lane].sender;
        sender.handle_answer(answer, now, &limits, done);
        done.clear();
        self.transmit(lane);
    }

    pub(super) fn flow(&mut self, from: u32, to: u32, rail: u32) -> u32 {
        let rail = u8::try_from(rail).unwrap_or(u8::MAX);
        let first = self.hosts.link(from, to).first_flow;
        let lanes = &self.wire().flows;
        let mut all = std::iter::successors(first, |lane| lanes[*lane].next);
        if let Some(lane) = all.find(|lane| lanes[*lane].rail == rail) {
            return lane;
        }
        let distance = self.distance(from, to);
        let lane = self.wire().flows.insert(WireFlow {
            from,
            to,
            rail,
            next: first,
            crossed: 0,
            answers: 0,
            met: false,
            timer: NEVER,
            distance,
            sender: GoBackSender::new(),
            receiver: GoBackReceiver::default(),
        });
        self.hosts.link(from, to).first_flow = Some(lane);
        lane
    }

    fn lane_limits(&mut self, distance: SimTime) -> GoBackLimits {
        let patient = ps(self.model.network.failure_ns);
        GoBackLimits {
            window: WINDOW,
            slack: (distance / 2).max(SLACK_MIN),
            hold: (8 * distance).max(SLACK_MIN),
            silence: patient.max(SILENCE_TRIPS * (distance + SLACK_MIN)),
            seed: self.wire().seed,
        }
    }
}

/// Maximum number of packets of a flow in flight. At 12.5 GB/s and a latency of 2 µs, 256 packets of 200 bytes fill the path.
const WINDOW: u32 = 256;
/// Number of one-way trips for which a peer may be silent, on long paths.
const SILENCE_TRIPS: u64 = 1000;
