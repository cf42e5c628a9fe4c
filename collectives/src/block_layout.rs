//! How a call among neighbors divides its buffers into blocks, and the program for that.

use ripstop_rt::{buffer::Wire, internal::offload::CollectiveSignature};

use crate::{
    Edges,
    cache::CachedProgram,
    call_spec::BYTES_MAX,
    plan::{NeighborEdge, RankLayout, neighbors, self_blocks},
};

/// Division of the two buffers into blocks. Lengths are in elements.
#[derive(Clone, Copy)]
pub(crate) struct BlockLayout<'a> {
    /// Elements of the send buffer.
    pub(crate) send_len: usize,
    /// Elements of the receive buffer, if its length may tell the length of a block.
    pub(crate) recv_len: Option<usize>,
    /// True if all neighbors get the same block.
    pub(crate) same_block: bool,
    pub(crate) sends: Option<&'a [usize]>,
    pub(crate) recvs: Option<&'a [usize]>,
}

impl<'a> BlockLayout<'a> {
    pub(crate) const fn one_to_all(given: usize) -> Self {
        Self {
            send_len: given,
            recv_len: None,
            same_block: true,
            sends: None,
            recvs: None,
        }
    }

    pub(crate) const fn receiving(self, counts: &'a [usize]) -> Self {
        let recvs = Some(counts);
        Self { recvs, ..self }
    }

    pub(crate) const fn equal(given: usize) -> Self {
        Self {
            same_block: false,
            ..Self::one_to_all(given)
        }
    }

    pub(crate) const fn counted(sends: &'a [usize], recvs: &'a [usize]) -> Self {
        Self {
            send_len: 0,
            recv_len: None,
            same_block: false,
            sends: Some(sends),
            recvs: Some(recvs),
        }
    }

    /// Makes the program of a rank, and what the rank must agree on with its neighbors.
    pub(crate) fn make<T: Wire>(
        &self,
        place: &RankLayout<'_>,
        edges: &Edges,
    ) -> Result<CachedProgram, String> {
        let block = self.block(edges)?;
        let (to, input) = self.ends::<T>("send_counts", &edges.destinations, self.sends, block)?;
        let (from, output) = self.ends::<T>("recv_counts", &edges.sources, self.recvs, block)?;
        let input = if self.same_block {
            self.send_len
        } else {
            input
        };
        if !has_room::<T>(input) {
            return Err(format!(
                "a block of {input} elements does not fit into memory: use a smaller block"
            ));
        }
        for (give, take) in self_blocks(place.rank(), &to, &from, edges.pairing) {
            let (given, taken) = (to[give].len, from[take].len);
            if given != taken {
                let what = match self.sends {
                    Some(_) => format!("`send_counts[{give}]` is {given}"),
                    None => format!("`send` has {given} elements"),
                };
                return Err(format!(
                    "{what} but `recv_counts[{take}]` is {taken}: the block that a rank sends to itself must have the \
                     same length in both"
                ));
            }
        }
        let plan = neighbors(place, &to, &from, edges.pairing);
        let program = plan.program::<T>(input, output);
        let program = program.map_err(|misfit| misfit.to_string())?;
        Ok(CachedProgram {
            program: program.into(),
            // Messages tell the lengths of blocks, so the signature does not contain them.
            signature: CollectiveSignature::of(self.verb()).with_type::<T>(),
        })
    }

    pub(crate) const fn verb(&self) -> &'static str {
        if self.same_block {
            "neighbor_all_gather"
        } else {
            "neighbor_all_to_all"
        }
    }

    /// Returns the length of a block without a count.
    fn block(&self, edges: &Edges) -> Result<usize, String> {
        let (outgoing, incoming) = (edges.destinations.len(), edges.sources.len());
        if self.same_block {
            return Ok(self.send_len);
        }
        let (name, all, neighbors) = match self.recv_len {
            _ if outgoing > 0 || self.send_len > 0 => ("send", self.send_len, outgoing),
            _ if incoming == 0 || self.recvs.is_some() => return Ok(0),
            Some(room) => ("recv", room, incoming),
            None => {
                let sentence = "`send` has no destination, so its length does not give the length of a block: call a form \
                                with `recv` or counts";
                return Err(sentence.to_owned());
            }
        };
        if !all.is_multiple_of(neighbors) {
            return Err(format!(
                "`{name}` has {all} elements, which is not a multiple of the {neighbors} neighbors: pass counts for \
                 blocks of different lengths"
            ));
        }
        Ok(all / neighbors)
    }

    /// Returns the blocks of one direction, and their length in all.
    fn ends<T>(
        &self,
        name: &str,
        ranks: &[Option<usize>],
        counts: Option<&[usize]>,
        block: usize,
    ) -> Result<(Vec<NeighborEdge>, usize), String> {
        if let Some(counts) = counts.filter(|counts| counts.len() != ranks.len()) {
            let (has, needed) = (counts.len(), ranks.len());
            return Err(format!(
                "`{name}` has {has} entries, but there are {needed} neighbors: give one entry for each"
            ));
        }
        let repeats = self.same_block && name == "send_counts";
        let (mut start, mut ends) = (0_usize, Vec::with_capacity(ranks.len()));
        for (at, rank) in ranks.iter().enumerate() {
            let len = counts.map_or(block, |counts| counts[at]);
            ends.push(NeighborEdge {
                rank: *rank,
                start,
                len,
            });
            if !repeats {
                let end = start.checked_add(len);
                start = end.filter(|end| has_room::<T>(*end)).ok_or_else(|| {
                    format!("`{name}` add up to more than fits into memory: use smaller counts")
                })?;
            }
        }
        Ok((ends, start))
    }
}

/// Returns true if memory can hold `len` elements.
fn has_room<T>(len: usize) -> bool {
    let bytes = len.checked_mul(size_of::<T>());
    bytes.is_some_and(|bytes| bytes <= BYTES_MAX)
}
