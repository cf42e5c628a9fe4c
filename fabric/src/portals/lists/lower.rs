//! What a task is to the adapter.

use bytemuck::Zeroable;

use super::{
    super::{
        calls::{self, Ct, Me, Refused},
        entries::RawEntry,
        moves::Far,
        peer::Life,
        rails::Bound,
        state::Portals,
    },
    bits,
    gear::Then,
    landed::Place,
    piece_max, quiet,
};
use crate::{
    driver::{LocalRange, Peer, Token},
    memory::{Region, RemoteRegion},
    offload::{Action, Combination, Counter, Landing, Pair, RemoteCounter, Target},
};

/// What the adapter does for a task.
#[derive(Debug)]
pub(super) enum Plan {
    Put {
        /// Where it begins, and its length.
        from: (u64, u64),
        far: Far,
        /// A count at the peer, when the data is there.
        count: Option<Far>,
        done: Option<Ct>,
    },
    /// Atomics, each from where it begins, with its length.
    Combine {
        pieces: Vec<((u64, u64), Far)>,
        how: Combination,
        done: Option<Ct>,
    },
    Count(Far),
    /// Add to a counter of this rank.
    Add(Ct, u64),
    /// Tell the host that it is due.
    Task {
        done: Option<Ct>,
    },
}

impl Plan {
    /// What is added to the gear's counter from when it begins until what it does is over.
    pub(super) const fn over(&self) -> u64 {
        match self {
            Self::Combine { pieces, .. } => pieces.len() as u64,
            Self::Put { .. } | Self::Count(_) => 1,
            Self::Add(..) => 0,
            // The word to the host, and the host's.
            Self::Task { .. } => 2,
        }
    }

    /// The same until nothing is added any more.
    pub(super) const fn ends(&self) -> u64 {
        match self {
            Self::Put { count: Some(_), .. } => 2,
            _ => self.over(),
        }
    }
}

impl Portals {
    /// What the adapter does, and what is to be known of it.
    pub(super) fn plan(&mut self, action: &Action, token: Token) -> Result<(Plan, Then), Refused> {
        let done = match action {
            Action::Put { done, .. } | Action::Copy { done, .. } | Action::Combine { done, .. } => {
                done.as_ref()
            }
            Action::Offer { .. } | Action::Count { .. } => None,
        };
        let done = done.map(|done| self.cell_of(done)).transpose()?;
        let native = match action {
            Action::Put {
                to, from, target, ..
            } => self.plan_put(*to, *from, target, done),
            Action::Offer {
                to,
                landing,
                count,
                pair: Some(pair),
                ..
            } => self.plan_offer(*to, (landing, *pair), *count, token)?,
            Action::Offer { .. } => None,
            Action::Count { to, counter, by } => self.plan_count(*to, *counter, *by),
            Action::Copy { from, into, .. } => self.plan_copy(*from, *into, done),
            Action::Combine {
                from, into, how, ..
            } => self.plan_combine(*from, *into, *how, done),
        };
        // What cannot go well is the host's, too: it fails when it is due.
        Ok(native.unwrap_or_else(|| (Plan::Task { done }, Then::Task(action.clone()))))
    }

    fn cell_of(&mut self, counter: &Counter) -> Result<Ct, Refused> {
        let spot = self.ground.exports.spot(counter.place());
        let spot = spot.ok_or_else(|| {
            Refused::Code(
                "a task adds to a counter that is not of `Counters::for_tasks`".to_owned(),
            )
        })?;
        self.cell(spot)
    }

    fn plan_put(
        &self,
        to: Peer,
        from: LocalRange,
        target: &Target,
        done: Option<Ct>,
    ) -> Option<(Plan, Then)> {
        let (far, count, presumed) = match target {
            Target::Known { into, count } => {
                let far = self.far_by_first(to.0, *into, from.len())?;
                let count = match count {
                    Some(count) => Some(self.far_count(to, *count)?),
                    None => None,
                };
                (far, count, None)
            }
            Target::Given {
                region,
                offset,
                word,
                pair,
            } => {
                let bits = bits::data((*pair)?, *word, from.len() as u64)?;
                let far = self.far_list(to, self.peer(to.0).address.own_bits(bits))?;
                presume(region, *offset, (*word, from.len()));
                (far, None, Some((region.clone(), *offset)))
            }
        };
        let fits = from.len() as u64 <= self.ground.ni.limits.max_msg_size;
        let plan = Plan::Put {
            from: span(from),
            far,
            count,
            done,
        };
        (fits && self.is_up(to)).then_some((plan, Then::Put(to.0, presumed)))
    }

    fn plan_offer(
        &mut self,
        to: Peer,
        (landing, pair): (&Landing, Pair),
        count: RemoteCounter,
        token: Token,
    ) -> Result<Option<(Plan, Then)>, Refused> {
        let len = landing.into.len;
        let memory = if len == 0 {
            Some(0)
        } else {
            self.ground.exports.address_of(landing.into)
        };
        let ends = landing
            .count
            .cell()
            .and_then(|key| Some((self.own_spot(key)?, self.own_cell(key)?)));
        let (Some(far), Some(start), Some((spot, ct)), Some(match_bits), true) = (
            self.far_count(to, count),
            memory,
            ends,
            bits::data(pair, landing.word, len).map(|bits| self.address.own_bits(bits)),
            self.is_up(to) && len <= self.ground.ni.limits.max_msg_size,
        ) else {
            return Ok(None);
        };
        let place = Place {
            memory: (start, len),
            match_bits,
            from: to.0,
        };
        self.land(&place, (spot.serial, ct), token)?;
        Ok(Some((Plan::Count(far), Then::Count(to.0, far))))
    }

    fn plan_count(&mut self, to: Peer, counter: RemoteCounter, by: u64) -> Option<(Plan, Then)> {
        let own = counter.cell().filter(|_| to.0 == self.me);
        if let Some(ct) = own.and_then(|key| self.own_cell(key)) {
            return Some((Plan::Add(ct, by), Then::Nothing));
        }
        let far = self.far_count(to, counter)?;
        (by == 1 && self.is_up(to)).then_some((Plan::Count(far), Then::Count(to.0, far)))
    }

    fn plan_copy(
        &mut self,
        from: LocalRange,
        into: LocalRange,
        done: Option<Ct>,
    ) -> Option<(Plan, Then)> {
        let most = self.ground.ni.limits.max_msg_size;
        let fits = from.len() == into.len() && from.len() as u64 <= most;
        let plan = Plan::Put {
            from: span(from),
            far: self.own_memory(into).filter(|_| fits)?,
            count: None,
            done,
        };
        Some((plan, Then::Put(self.me, None)))
    }

    /// A block of integers: as many atomics of this rank's own memory as it takes.
    fn plan_combine(
        &mut self,
        from: LocalRange,
        into: LocalRange,
        how: Combination,
        done: Option<Ct>,
    ) -> Option<(Plan, Then)> {
        let whole = from.len().is_multiple_of(how.integer.bytes());
        let fits = whole && from.len() == into.len() && from.len() <= self.caps.combine_max;
        let far = self.own_memory(into).filter(|_| fits)?;
        let most = piece_max(&self.ground.ni).max(1);
        let piece = |at: usize| {
            let offset = far.offset + at as u64;
            let len = most.min(from.len() - at);
            (span(from.slice(at, len)), Far { offset, ..far })
        };
        let pieces = (0..from.len()).step_by(most).map(piece).collect();
        let plan = Plan::Combine { pieces, how, done };
        Some((plan, Then::Put(self.me, None)))
    }

    /// Memory of this rank, as its own lists reach it. None where the library has no entry for that, or the way to oneself is
    /// cut off.
    fn own_memory(&mut self, range: LocalRange) -> Option<Far> {
        if !self.is_by_first(self.me) {
            return None;
        }
        if self.lists.own.is_none() {
            self.lists.own = self.open_own_memory().ok();
        }
        self.lists.own.map(|_| Far {
            process: self.address.process,
            pt: self.address.tables.wakes,
            match_bits: bits::OWN,
            offset: span(range).0,
        })
    }

    /// The way to oneself is left: nothing that still comes by it touches memory. Whether nothing does now.
    pub(in super::super) fn close_own_memory(&mut self) -> bool {
        let in_use = |own: &mut Me| matches!(self.ground.ni.unlink(*own), Err(Refused::InUse));
        self.lists.own.take_if(|own| !in_use(own));
        self.lists.own.is_none()
    }

    /// All memory, for this rank alone. It is not behind the table entry of what peers reach, which is another one after a rail
    /// of theirs has failed: what a list is to do then may have been handed to the adapter before.
    fn open_own_memory(&self) -> Result<Me, Refused> {
        let profile = self.ground.ni.profile();
        let entry = RawEntry {
            memory: calls::span(None, profile),
            options: quiet(profile) | profile.options.me_op_put | profile.options.me_no_truncate,
            match_bits: bits::OWN,
            ignore_bits: 0,
            min_free: 0,
            ct: None,
            from: Some(self.address.process),
            overflow: false,
        };
        self.ground.counters.all.entries.add(1);
        self.ground
            .ni
            .append_raw(self.address.tables.wakes, &entry, 0)
    }

    /// A counter of tasks at a peer.
    fn far_count(&self, to: Peer, counter: RemoteCounter) -> Option<Far> {
        let bits = bits::count(counter.cell()?, self.peer(to.0).owner(to.0))?;
        self.far_list(to, bits)
    }

    fn far_list(&self, to: Peer, match_bits: u64) -> Option<Far> {
        let address = self.peer(to.0).address;
        Some(Far {
            process: address.process,
            pt: address.tables.lists,
            match_bits,
            offset: 0,
        })
    }

    fn is_by_first(&self, to: u32) -> bool {
        self.lane_of_lists(to) == Bound::By(0)
    }

    /// Memory that the first rail reaches, as lists need it.
    fn far_by_first(&self, to: u32, key: RemoteRegion, len: usize) -> Option<Far> {
        self.is_by_first(to)
            .then(|| self.far((to, 0), key, 0, len).ok())?
    }

    fn is_up(&self, to: Peer) -> bool {
        self.peer(to.0).life == Life::Up && self.is_by_first(to.0)
    }
}

/// Writes what the offer of a pair would have put there. What the peer refuses is then [put right](disown).
fn presume(region: &Region, offset: usize, (word, len): (u64, usize)) {
    let into = RemoteRegion {
        len: len as u64,
        ..Zeroable::zeroed()
    };
    let landing = Landing {
        into,
        word,
        count: Zeroable::zeroed(),
    };
    region.write(offset, bytemuck::bytes_of(&landing));
}

/// The peer has offered something else.
pub(super) fn disown(region: &Region, offset: usize, word: u64) {
    presume(region, offset, (!word, 0));
}

fn span(range: LocalRange) -> (u64, u64) {
    let start = range.start().as_ptr().expose_provenance() as u64;
    (start, range.len() as u64)
}
