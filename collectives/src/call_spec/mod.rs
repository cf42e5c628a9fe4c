//! A collective call as data: its arguments are checked, then made into a program.

use ripstop_rt::{
    buffer::Wire,
    internal::offload::{CollectiveSignature, LocalCopy},
};

use crate::{
    Reduction,
    cache::CachedProgram,
    choose::{Algorithm, Shape, time_ns},
    plan::{Barrier, BlockPartition, OperandOrder, Plan, RankLayout, UnfitPlan, exscan, scan},
    tuning::ChoiceContext,
};

/// The collectives that plans are made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CollectiveKind {
    Barrier,
    Bcast,
    Gather,
    Scatter,
    AllGather,
    AllToAll,
    Reduce,
    AllReduce,
    ReduceScatter,
    Scan,
    Exscan,
}

/// The arguments of one rank's call. Lengths are in elements.
#[derive(Clone, Debug)]
pub(crate) struct CallSpec<'a> {
    /// The name of the call in errors.
    pub(crate) name: &'static str,
    pub(crate) kind: CollectiveKind,
    pub(crate) root: usize,
    /// The length of the buffer, or of one block if the call has no counts.
    pub(crate) len: usize,
    /// The length of each rank's block. All ranks pass the same counts, except to an all-to-all.
    pub(crate) counts: Option<&'a [usize]>,
    /// The lengths of the blocks to receive, for an all-to-all with counts.
    pub(crate) recv_counts: &'a [usize],
    /// The order of operands that the reduction needs.
    pub(crate) order: OperandOrder,
    pub(crate) op: &'static str,
    /// The fault of an argument, if one was found before the arguments were checked together.
    pub(crate) fault: Option<String>,
}

impl<'a> CallSpec<'a> {
    pub(crate) const fn of(verb: CollectiveKind, name: &'static str) -> Self {
        Self {
            name,
            kind: verb,
            root: 0,
            len: 0,
            counts: None,
            recv_counts: &[],
            order: OperandOrder::Any,
            op: "",
            fault: None,
        }
    }

    pub(crate) fn root(self, root: usize) -> Self {
        Self { root, ..self }
    }

    pub(crate) fn len(self, len: usize) -> Self {
        Self { len, ..self }
    }

    pub(crate) fn counts(self, counts: &'a [usize]) -> Self {
        let counts = Some(counts);
        Self { counts, ..self }
    }

    pub(crate) fn recv_counts(self, incoming: &'a [usize]) -> Self {
        Self {
            recv_counts: incoming,
            ..self
        }
    }

    pub(crate) fn with_fault(self, sentence: String) -> Self {
        Self {
            fault: Some(sentence),
            ..self
        }
    }

    /// Divides `all` elements equally among `size` ranks.
    pub(crate) fn share(self, all: usize, size: usize) -> Self {
        if all.is_multiple_of(size) {
            return self.len(all / size);
        }
        self.with_fault(format!(
            "`send` has {all} elements, which is not a multiple of the {size} ranks: pass counts for blocks of different \
             lengths"
        ))
    }

    pub(crate) fn reducing<T: Wire, R: Reduction<T>>(self) -> Self {
        Self {
            order: if R::COMMUTES {
                OperandOrder::Any
            } else {
                OperandOrder::RankOrder
            },
            op: R::NAME,
            ..self
        }
    }

    /// Returns the lengths of this rank's input and output, in elements.
    ///
    /// # Errors
    /// A sentence, if the call was already wrong, `root` is no rank, the number of counts is not the number of ranks, or the
    /// elements need more memory than there are addresses.
    pub(crate) fn buffer_lens(
        &self,
        place: &RankLayout<'_>,
        elem: usize,
    ) -> Result<(usize, usize), String> {
        let (me, size) = (place.rank(), place.size());
        if let Some(sentence) = &self.fault {
            return Err(sentence.clone());
        }
        if self.root >= size {
            let root = self.root;
            return Err(format!(
                "`root` is rank {root}, and there are ranks 0..{size}"
            ));
        }
        let all = self.total("counts", self.counts, size, elem)?;
        let at_root = if me == self.root { all } else { 0 };
        let block = self.counts.map_or(self.len, |counts| counts[me]);
        Ok(match self.kind {
            CollectiveKind::Barrier => (0, 0),
            CollectiveKind::Bcast | CollectiveKind::AllReduce | CollectiveKind::Scan => {
                (0, self.len)
            }
            CollectiveKind::Gather => (block, at_root),
            CollectiveKind::Scatter => (at_root, block),
            CollectiveKind::AllGather => (block, all),
            CollectiveKind::Reduce if me == self.root => (self.len, self.len),
            CollectiveKind::Reduce => (self.len, 0),
            CollectiveKind::ReduceScatter => (all, block),
            CollectiveKind::Exscan => (self.len, self.len),
            CollectiveKind::AllToAll if self.counts.is_none() => (all, all),
            CollectiveKind::AllToAll => {
                let incoming = self.total("recv_counts", Some(self.recv_counts), size, elem)?;
                let (give, take) = (block, self.recv_counts[me]);
                if give != take {
                    return Err(format!(
                        "`send_counts[{me}]` is {give} but `recv_counts[{me}]` is {take}: the block that a rank sends to \
                         itself must have the same length in both"
                    ));
                }
                (all, incoming)
            }
        })
    }

    /// Returns what a rank does that is alone and chooses no algorithm, or `None` if the call is wrong or its result undefined.
    ///
    /// It is what [`build_program`](Self::build_program) would plan, without making a plan.
    #[inline(always)]
    pub(crate) fn local_copy<T: Wire>(&self) -> Option<LocalCopy> {
        let block = match self.counts {
            None => self.len,
            Some([block]) => *block,
            Some(_) => return None,
        };
        let matches = self.kind != CollectiveKind::AllToAll
            || self.counts.is_none()
            || matches!(self.recv_counts, [same] if *same == block);
        let fits = block <= BYTES_MAX / TIMES_MAX / size_of::<T>();
        if self.fault.is_some() || self.root != 0 || !matches || !fits {
            return None;
        }
        match self.kind {
            CollectiveKind::Exscan => None,
            CollectiveKind::Barrier
            | CollectiveKind::Bcast
            | CollectiveKind::AllReduce
            | CollectiveKind::Scan => Some(LocalCopy::InPlace),
            _ => Some(LocalCopy::Bytes(block * size_of::<T>())),
        }
    }

    /// Returns the length of all blocks together.
    fn total(
        &self,
        name: &str,
        counts: Option<&[usize]>,
        size: usize,
        elem: usize,
    ) -> Result<usize, String> {
        let name = if self.kind == CollectiveKind::AllToAll && name == "counts" {
            "send_counts"
        } else {
            name
        };
        let all = match counts {
            Some(counts) if counts.len() != size => {
                let len = counts.len();
                return Err(format!(
                    "`{name}` has {len} entries, and there are {size} ranks"
                ));
            }
            Some(counts) => counts
                .iter()
                .try_fold(0_usize, |all, count| all.checked_add(*count)),
            None => self.len.checked_mul(size),
        };
        // Scratch of a plan is at most a few times its buffers, or, for the leader of a node, those of all ranks of the node.
        let times = match self.kind {
            CollectiveKind::AllToAll => size.saturating_mul(TIMES_MAX),
            _ => TIMES_MAX,
        };
        let fits = |all: &usize| {
            all.checked_mul(elem)
                .is_some_and(|bytes| bytes <= BYTES_MAX / times)
        };
        all.filter(fits).ok_or_else(|| match counts {
            Some(_) => format!("`{name}` add up to more than fits into memory: use smaller counts"),
            None => format!(
                "{size} blocks of {} elements do not fit into memory: use smaller blocks",
                self.len
            ),
        })
    }

    /// Makes the program of this rank, with the algorithm that the guide chooses.
    ///
    /// # Errors
    /// A sentence: those of [`buffer_lens`](Self::buffer_lens), or a named algorithm that does not fit.
    pub(crate) fn build_program<T: Wire>(
        &self,
        place: &RankLayout<'_>,
        guide: &ChoiceContext<'_>,
    ) -> Result<CachedProgram, String> {
        let (input, output) = self.buffer_lens(place, size_of::<T>())?;
        let chosen = self.plan(place, guide, size_of::<T>());
        let plan = chosen.plan.map_err(|unfit| unfit.to_string())?;
        let program = plan.program::<T>(input, output);
        let program = program.map_err(|misfit| misfit.to_string())?;
        let is_short = self.is_short(chosen.cost_ns, place.size());
        Ok(CachedProgram {
            program: program.short(is_short).into(),
            signature: self.signature::<T>(&chosen.algorithm),
        })
    }

    /// Returns true if the call completes before a host would be woken a few times. The result is the same on all ranks.
    ///
    /// A call of a single rank counts as short, because there is nothing for an adapter to do. Reductions of any length count
    /// as short too: those of floats need the host at every step. Integers, which some adapters combine, are not told apart;
    /// they go by task lists if the settings say that all collectives do.
    fn is_short(&self, cost_ns: f64, size: usize) -> bool {
        let reduces = matches!(
            self.kind,
            CollectiveKind::Reduce
                | CollectiveKind::AllReduce
                | CollectiveKind::ReduceScatter
                | CollectiveKind::Scan
                | CollectiveKind::Exscan
        );
        // No rank knows the lengths of all blocks of an all-to-all with counts.
        let is_known = self.kind != CollectiveKind::AllToAll || self.counts.is_none();
        size == 1 || reduces || is_known && cost_ns < SHORT_NS
    }

    fn plan(
        &self,
        place: &RankLayout<'_>,
        guide: &ChoiceContext<'_>,
        elem: usize,
    ) -> AlgorithmChoice {
        if self.is_empty() {
            // A rank without elements takes part too, so that a rank with other arguments is detected.
            return AlgorithmChoice::only("none", Barrier::Dissemination.plan(place));
        }
        let (root, len, order) = (self.root, self.len, self.order);
        let blocks = self
            .counts
            .map_or_else(|| BlockPartition::each(len), BlockPartition::counts);
        let shape = self.shape(place, elem);
        let tuning = guide.tuning;
        match self.kind {
            CollectiveKind::Barrier => {
                AlgorithmChoice::of(guide, tuning.barrier, &shape, |it| it.plan(place))
            }
            CollectiveKind::Bcast => {
                AlgorithmChoice::of(guide, tuning.bcast, &shape, |it| it.plan(place, root, len))
            }
            CollectiveKind::Gather => AlgorithmChoice::of(guide, tuning.gather, &shape, |it| {
                it.plan(place, root, &blocks)
            }),
            CollectiveKind::Scatter => AlgorithmChoice::of(guide, tuning.scatter, &shape, |it| {
                it.plan(place, root, &blocks)
            }),
            CollectiveKind::AllGather => {
                AlgorithmChoice::of(guide, tuning.all_gather, &shape, |it| {
                    it.plan(place, &blocks)
                })
            }
            CollectiveKind::AllToAll => {
                let incoming = self
                    .counts
                    .map(|_| BlockPartition::counts(self.recv_counts));
                AlgorithmChoice::of(guide, tuning.all_to_all, &shape, |it| {
                    it.plan(place, &blocks, incoming.as_ref().unwrap_or(&blocks))
                })
            }
            CollectiveKind::Reduce => AlgorithmChoice::of(guide, tuning.reduce, &shape, |it| {
                it.plan(place, root, len, order)
            }),
            CollectiveKind::AllReduce => {
                AlgorithmChoice::of(guide, tuning.all_reduce, &shape, |it| {
                    it.plan(place, len, order)
                })
            }
            CollectiveKind::ReduceScatter => {
                AlgorithmChoice::of(guide, tuning.reduce_scatter, &shape, |it| {
                    it.plan(place, &blocks, order)
                })
            }
            CollectiveKind::Scan => AlgorithmChoice::only("doubling", Ok(scan(place, len))),
            CollectiveKind::Exscan => AlgorithmChoice::only("doubling", Ok(exscan(place, len))),
        }
    }

    /// Returns true if all ranks know that no element moves.
    fn is_empty(&self) -> bool {
        match (self.kind, self.counts) {
            (CollectiveKind::Barrier, _) | (CollectiveKind::AllToAll, Some(_)) => false,
            (_, Some(counts)) => counts.iter().all(|count| *count == 0),
            (_, None) => self.len == 0,
        }
    }

    /// Returns the shape that the chooser sees; it is the same on all ranks.
    fn shape(&self, place: &RankLayout<'_>, elem: usize) -> Shape {
        let size = place.size();
        let all = self.counts.map(|counts| counts.iter().sum::<usize>());
        let len = match (self.kind, all) {
            // Counts differ between ranks. Each block is one message, whatever the algorithm.
            (CollectiveKind::AllToAll, Some(_)) => 1,
            (CollectiveKind::ReduceScatter, all) => all.unwrap_or(self.len * size),
            (_, Some(all)) => all.div_ceil(size),
            (_, None) => self.len,
        };
        Shape {
            bytes: len.saturating_mul(elem),
            order: self.order,
            ragged: self.counts.is_some(),
            mapped: place.has_consecutive_nodes(),
            ..Shape::of(size)
        }
    }

    /// Describes the call, for the error when two ranks have called different collectives.
    pub(crate) fn describe<T: Wire>(&self) -> String {
        let mut words = Vec::new();
        if matches!(
            self.kind,
            CollectiveKind::Bcast
                | CollectiveKind::Gather
                | CollectiveKind::Scatter
                | CollectiveKind::Reduce
        ) {
            words.push(format!("root {}", self.root));
        }
        match self.counts {
            _ if self.kind == CollectiveKind::Barrier => {}
            Some(_) if self.kind == CollectiveKind::AllToAll => words.push(format!("{}", T::SIG)),
            Some(counts) => words.push(format!("{counts:?} {}", T::SIG)),
            None => words.push(format!("{} {}", self.len, T::SIG)),
        }
        if !self.op.is_empty() {
            words.push(self.op.to_owned());
        }
        if words.is_empty() {
            return self.name.to_owned();
        }
        format!("{} ({})", self.name, words.join(", "))
    }

    fn signature<T: Wire>(&self, algorithm: &str) -> CollectiveSignature {
        let agreed = self
            .counts
            .filter(|_| self.kind != CollectiveKind::AllToAll);
        let numbers = [
            self.root,
            self.len,
            usize::from(self.order == OperandOrder::Any),
        ];
        let numbers = numbers.iter().chain(agreed.into_iter().flatten());
        let words = format!("{:?} {algorithm} {}", self.kind, self.op);
        numbers.fold(
            CollectiveSignature::of(&words).with_type::<T>(),
            |sig, number| sig.with(*number as u64),
        )
    }
}

/// An algorithm, its cost and its plan.
struct AlgorithmChoice {
    algorithm: String,
    cost_ns: f64,
    plan: Result<Plan, UnfitPlan>,
}

impl AlgorithmChoice {
    /// Plans with the algorithm that the call names, or with the best one.
    fn of<A: Algorithm>(
        guide: &ChoiceContext<'_>,
        named: Option<A>,
        shape: &Shape,
        plan: impl Fn(A) -> Result<Plan, UnfitPlan>,
    ) -> Self {
        let algorithm = guide.choose(named, shape);
        let plan = plan(algorithm);
        // The cost of an algorithm that cannot be planned is not computed: its formula may not terminate.
        let cost_ns = match &plan {
            Ok(_) => time_ns(algorithm, shape, &guide.machine),
            Err(_) => 0.0,
        };
        Self {
            algorithm: algorithm.to_string(),
            cost_ns,
            plan,
        }
    }

    /// Wraps the plan of a collective that has only one algorithm.
    fn only(name: &str, plan: Result<Plan, UnfitPlan>) -> Self {
        Self {
            algorithm: name.to_owned(),
            cost_ns: 0.0,
            plan,
        }
    }
}

/// Calls that take longer than this are worth handing to an adapter. Below it, most of the time is the permission to send,
/// which adapters wait for. Above it, a host that is woken for each step would be woken several times.
const SHORT_NS: f64 = 20_000.0;

/// Scratch of a plan is at most this many times its buffers.
const TIMES_MAX: usize = 4;

/// The largest size of a buffer, in bytes.
pub(crate) const BYTES_MAX: usize = isize::MAX as usize;

#[cfg(test)]
mod tests;
