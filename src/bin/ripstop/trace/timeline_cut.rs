//! Which part of a timeline is wanted: ranks, a span of time, and at most so many operations.

use std::time::Duration;

use ripstop_rt::internal::trace::format::TracedOp;

use super::arrows::JoinedEpoch;
use super::timeline::{JobTimeline, OpPlace, RankTimeline, TracedMessage};

/// Which operations are wanted.
#[derive(Clone, Debug)]
pub(crate) struct TimelineCut {
    /// Ranks; all if empty.
    pub(crate) ranks: Vec<u32>,
    /// Nanoseconds since the first operation.
    pub(crate) from: u64,
    pub(crate) to: u64,
}

impl JobTimeline {
    /// Keeps only what is wanted, and then the earliest operations if there are more than `most`.
    ///
    /// # Errors
    /// A rank is not in the job, or the wanted time is behind what was kept in memory.
    pub(crate) fn cut(&mut self, cut: &TimelineCut, most: usize) -> Result<(), String> {
        if let Some(strange) = cut.ranks.iter().find(|rank| **rank >= self.size) {
            return Err(format!(
                "--ranks names {strange}, and there are ranks 0..{}",
                self.size
            ));
        }
        let (from, mut to) = (cut.from, cut.to);
        let is_wanted = |rank: u32| cut.ranks.is_empty() || cut.ranks.contains(&rank);
        let (mut begins, mut left_out): (Vec<u64>, u64) = (Vec::new(), 0);
        for rank in self.ranks.iter().filter(|rank| is_wanted(rank.rank)) {
            let inside = rank
                .ops
                .iter()
                .filter(|op| op.end >= from && op.begin <= to);
            begins.extend(inside.map(|op| op.begin));
            let spans = rank.spans.iter();
            let inside = spans.filter(|span| span.end >= from && span.begin <= to);
            begins.extend(inside.map(|span| span.begin));
            left_out += rank.left_out;
        }
        let (count, shown) = (begins.len() as u64, begins.len().min(most));
        let kept_until = self.kept_until.filter(|last| *last < to);
        if let Some(last) = kept_until.filter(|last| from > 0 && *last <= from) {
            #[expect(clippy::cast_precision_loss, reason = "for people")]
            let [from, last] = [from, last].map(|time| time as f64 / 1e9);
            return Err(format!(
                "--from is behind what --max-mib keeps in memory: give more with --max-mib (--from is {from:.6} s, and what is \
                 kept ends at {last:.6} s)"
            ));
        }
        let last = if begins.len() > most {
            Some(*begins.select_nth_unstable(most).1)
        } else {
            kept_until
        };
        if let Some(last) = last {
            to = last.saturating_sub(1);
            #[expect(clippy::cast_precision_loss, reason = "for people")]
            let seconds = to as f64 / 1e9;
            let all = count + kept_until.map_or(0, |_| left_out);
            self.notes.push(format!(
                "cut at {seconds:.6} s: the first {shown} of {all} operations and spans are shown; --ranks and --to choose less, \
                 and --max-mib allows more"
            ));
        }
        let is_whole = cut.ranks.is_empty() && from == 0 && to == u64::MAX;
        if !is_whole {
            self.keep(|rank, begin, end| is_wanted(rank) && end >= from && begin <= to);
        }
        self.remove_empty_ranks();
        Ok(())
    }

    fn keep(&mut self, is_kept: impl Fn(u32, u64, u64) -> bool) {
        let mut places: Vec<Vec<Option<usize>>> = Vec::new();
        for rank in &mut self.ranks {
            let mut kept = 0;
            let place = |op: &TracedOp| {
                is_kept(rank.rank, op.begin, op.end).then(|| {
                    kept += 1;
                    kept - 1
                })
            };
            let new: Vec<Option<usize>> = rank.ops.iter().map(place).collect();
            let mut is_here = new.iter().map(Option::is_some);
            rank.ops.retain(|_| is_here.next() == Some(true));
            rank.spans
                .retain(|span| is_kept(rank.rank, span.begin, span.end));
            for times in [&mut rank.flushes, &mut rank.agent_turns] {
                times.retain(|[begin, end]| is_kept(rank.rank, *begin, *end));
            }
            places.push(new);
        }
        let moved = |(rank, op): OpPlace| Some((rank, places[rank][op]?));
        self.messages = self
            .messages
            .iter()
            .filter_map(|message| {
                let (send, recv) = (moved(message.send)?, moved(message.recv)?);
                Some(TracedMessage { send, recv })
            })
            .collect();
        let epochs = self.epochs.iter().filter_map(|epoch| {
            let (exposure, access) = (moved(epoch.exposure)?, moved(epoch.access)?);
            Some(JoinedEpoch { exposure, access })
        });
        self.epochs = epochs.collect();
    }

    /// Removes ranks of which nothing is drawn.
    fn remove_empty_ranks(&mut self) {
        let is_drawn = |rank: &RankTimeline| !rank.ops.is_empty() || !rank.spans.is_empty();
        let mut new = Vec::new();
        let mut kept = 0;
        for rank in &self.ranks {
            new.push(kept);
            kept += usize::from(is_drawn(rank));
        }
        let moved = |(rank, op): OpPlace| (new[rank], op);
        for message in &mut self.messages {
            (message.send, message.recv) = (moved(message.send), moved(message.recv));
        }
        for epoch in &mut self.epochs {
            (epoch.exposure, epoch.access) = (moved(epoch.exposure), moved(epoch.access));
        }
        self.ranks.retain(is_drawn);
    }
}

/// Returns the nanoseconds of a text with seconds.
///
/// # Errors
/// The text is something else, or the time is before the first operation.
pub(crate) fn parse_time(text: &str) -> Result<u64, String> {
    let seconds = text.parse().ok();
    let time = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let nanos = time.and_then(|time| u64::try_from(time.as_nanos()).ok());
    nanos.ok_or_else(|| "expected seconds since the first operation, such as 1.5".to_owned())
}

/// Returns the ranks of the text `0-3,7`.
///
/// # Errors
/// The text is something else.
pub(crate) fn parse_ranks(text: &str) -> Result<Vec<u32>, String> {
    let mut ranks = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let number = |text: &str| {
            let number = text.trim().parse::<u32>();
            number.map_err(|_| format!("{text:?} is no rank: ranks are given as 0-3,7"))
        };
        let (first, last) = (number(first)?, number(last)?);
        if first > last || last - first >= 1 << 20 {
            return Err(format!(
                "{part:?} is no range of ranks: ranks are given as 0-3,7"
            ));
        }
        ranks.extend(first..=last);
    }
    ranks.sort_unstable();
    ranks.dedup();
    Ok(ranks)
}

#[cfg(test)]
mod tests {
    use super::parse_ranks;

    #[test]
    fn ranges_of_ranks_that_are_none_are_errors() {
        assert_eq!(parse_ranks("0-2,7").unwrap(), [0, 1, 2, 7]);
        for text in ["4294967295-0", "3-2", "0-4294967295", "x", ""] {
            assert!(parse_ranks(text).is_err(), "{text}");
        }
    }
}
