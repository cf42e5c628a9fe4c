//! A collective call as data: its arguments are checked, then made into a program.

use ripstop_rt::{
    buffer::Wire,
    internal::offload::{Program, Signature},
};

use crate::{
    Reduction,
    choose::{Algorithm, Shape, time_ns},
    lower::lower,
    plan::{Barrier, Blocks, Order, Place, Plan, Unfit, exscan, scan},
    tuning::Guide,
};

/// The collectives that plans are made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
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
pub(crate) struct Ask<'a> {
    /// The name of the call in errors.
    pub(crate) name: &'static str,
    pub(crate) verb: Verb,
    pub(crate) root: usize,
    /// The length of the buffer, or of one block if the call has no counts.
    pub(crate) len: usize,
    /// The length of each rank's block. All ranks pass the same counts, except to an all-to-all.
    pub(crate) counts: Option<&'a [usize]>,
    /// The lengths of the blocks to receive, for an all-to-all with counts.
    pub(crate) incoming: &'a [usize],
    /// The order of operands that the reduction needs.
    pub(crate) order: Order,
    pub(crate) op: &'static str,
    /// The fault of an argument, if one was found before the arguments were checked together.
    pub(crate) wrong: Option<String>,
}

/// The program that runs, and the signature that all ranks must agree on.
pub(crate) struct Made {
    pub(crate) program: Program,
    pub(crate) signature: Signature,
}

impl<'a> Ask<'a> {
    pub(crate) const fn of(verb: Verb, name: &'static str) -> Self {
        Self {
            name,
            verb,
            root: 0,
            len: 0,
            counts: None,
            incoming: &[],
            order: Order::Any,
            op: "",
            wrong: None,
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

    pub(crate) fn incoming(self, incoming: &'a [usize]) -> Self {
        Self { incoming, ..self }
    }

    pub(crate) fn wrong(self, sentence: String) -> Self {
        Self {
            wrong: Some(sentence),
            ..self
        }
    }

    /// Divides `all` elements equally among `size` ranks.
    pub(crate) fn share(self, all: usize, size: usize) -> Self {
        if all.is_multiple_of(size) {
            return self.len(all / size);
        }
        self.wrong(format!(
            "`send` has {all} elements, no multiple of the {size} ranks: other blocks take counts"
        ))
    }

    pub(crate) fn reducing<T: Wire, R: Reduction<T>>(self) -> Self {
        Self {
            order: if R::COMMUTES {
                Order::Any
            } else {
                Order::RankOrder
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
    pub(crate) fn lens(&self, place: &Place<'_>, elem: usize) -> Result<(usize, usize), String> {
        let (me, size) = (place.rank(), place.size());
        if let Some(sentence) = &self.wrong {
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
        Ok(match self.verb {
            Verb::Barrier => (0, 0),
            Verb::Bcast | Verb::AllReduce | Verb::Scan => (0, self.len),
            Verb::Gather => (block, at_root),
            Verb::Scatter => (at_root, block),
            Verb::AllGather => (block, all),
            Verb::Reduce if me == self.root => (self.len, self.len),
            Verb::Reduce => (self.len, 0),
            Verb::ReduceScatter => (all, block),
            Verb::Exscan => (self.len, self.len),
            Verb::AllToAll if self.counts.is_none() => (all, all),
            Verb::AllToAll => {
                let incoming = self.total("recv_counts", Some(self.incoming), size, elem)?;
                let (give, take) = (block, self.incoming[me]);
                if give != take {
                    return Err(format!(
                        "`send_counts[{me}]` is {give} and `recv_counts[{me}]` is {take}: what stays has one length"
                    ));
                }
                (all, incoming)
            }
        })
    }

    /// Returns the length of all blocks together.
    fn total(
        &self,
        name: &str,
        counts: Option<&[usize]>,
        size: usize,
        elem: usize,
    ) -> Result<usize, String> {
        let name = if self.verb == Verb::AllToAll && name == "counts" {
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
        let times = match self.verb {
            Verb::AllToAll => size.saturating_mul(4),
            _ => 4,
        };
        let fits = |all: &usize| {
            all.checked_mul(elem)
                .is_some_and(|bytes| bytes <= BYTES_MAX / times)
        };
        all.filter(fits).ok_or_else(|| match counts {
            Some(_) => format!("`{name}` add up to more than memory can have"),
            None => format!(
                "{size} blocks of {} elements are more than memory can have",
                self.len
            ),
        })
    }

    /// Makes the program of this rank, with the algorithm that the guide chooses.
    ///
    /// # Errors
    /// A sentence: those of [`lens`](Self::lens), or a named algorithm that does not fit.
    pub(crate) fn make<T: Wire>(
        &self,
        place: &Place<'_>,
        guide: &Guide<'_>,
    ) -> Result<Made, String> {
        let (input, output) = self.lens(place, size_of::<T>())?;
        let chosen = self.plan(place, guide, size_of::<T>());
        let plan = chosen.plan.map_err(|unfit| unfit.to_string())?;
        let program = lower::<T>(
            &plan,
            input,
            output,
            self.is_short(chosen.cost_ns, place.size()),
        );
        Ok(Made {
            program: program.map_err(|misfit| misfit.to_string())?,
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
            self.verb,
            Verb::Reduce | Verb::AllReduce | Verb::ReduceScatter | Verb::Scan | Verb::Exscan
        );
        // No rank knows the lengths of all blocks of an all-to-all with counts.
        let is_known = self.verb != Verb::AllToAll || self.counts.is_none();
        size == 1 || reduces || is_known && cost_ns < SHORT_NS
    }

    fn plan(&self, place: &Place<'_>, guide: &Guide<'_>, elem: usize) -> Chosen {
        if self.is_empty() {
            // A rank without elements takes part too, so that a rank with other arguments is detected.
            return Chosen::only("none", Barrier::Dissemination.plan(place));
        }
        let (root, len, order) = (self.root, self.len, self.order);
        let blocks = self
            .counts
            .map_or_else(|| Blocks::each(len), Blocks::counts);
        let shape = self.shape(place, elem);
        let tuning = guide.tuning;
        match self.verb {
            Verb::Barrier => Chosen::of(guide, tuning.barrier, &shape, |it| it.plan(place)),
            Verb::Bcast => Chosen::of(guide, tuning.bcast, &shape, |it| it.plan(place, root, len)),
            Verb::Gather => Chosen::of(guide, tuning.gather, &shape, |it| {
                it.plan(place, root, &blocks)
            }),
            Verb::Scatter => Chosen::of(guide, tuning.scatter, &shape, |it| {
                it.plan(place, root, &blocks)
            }),
            Verb::AllGather => Chosen::of(guide, tuning.all_gather, &shape, |it| {
                it.plan(place, &blocks)
            }),
            Verb::AllToAll => {
                let incoming = self.counts.map(|_| Blocks::counts(self.incoming));
                Chosen::of(guide, tuning.all_to_all, &shape, |it| {
                    it.plan(place, &blocks, incoming.as_ref().unwrap_or(&blocks))
                })
            }
            Verb::Reduce => Chosen::of(guide, tuning.reduce, &shape, |it| {
                it.plan(place, root, len, order)
            }),
            Verb::AllReduce => Chosen::of(guide, tuning.all_reduce, &shape, |it| {
                it.plan(place, len, order)
            }),
            Verb::ReduceScatter => Chosen::of(guide, tuning.reduce_scatter, &shape, |it| {
                it.plan(place, &blocks, order)
            }),
            Verb::Scan => Chosen::only("doubling", Ok(scan(place, len))),
            Verb::Exscan => Chosen::only("doubling", Ok(exscan(place, len))),
        }
    }

    /// Returns true if all ranks know that no element moves.
    fn is_empty(&self) -> bool {
        match (self.verb, self.counts) {
            (Verb::Barrier, _) | (Verb::AllToAll, Some(_)) => false,
            (_, Some(counts)) => counts.iter().all(|count| *count == 0),
            (_, None) => self.len == 0,
        }
    }

    /// Returns the shape that the chooser sees; it is the same on all ranks.
    fn shape(&self, place: &Place<'_>, elem: usize) -> Shape {
        let size = place.size();
        let all = self.counts.map(|counts| counts.iter().sum::<usize>());
        let len = match (self.verb, all) {
            // Counts differ between ranks. Each block is one message, whatever the algorithm.
            (Verb::AllToAll, Some(_)) => 1,
            (Verb::ReduceScatter, all) => all.unwrap_or(self.len * size),
            (_, Some(all)) => all.div_ceil(size),
            (_, None) => self.len,
        };
        Shape {
            bytes: len.saturating_mul(elem),
            order: self.order,
            ragged: self.counts.is_some(),
            mapped: place.is_mapped(),
            ..Shape::of(size)
        }
    }

    /// Describes the call, for the error when two ranks have called different collectives.
    pub(crate) fn words<T: Wire>(&self) -> String {
        let mut words = Vec::new();
        if matches!(
            self.verb,
            Verb::Bcast | Verb::Gather | Verb::Scatter | Verb::Reduce
        ) {
            words.push(format!("root {}", self.root));
        }
        match self.counts {
            _ if self.verb == Verb::Barrier => {}
            Some(_) if self.verb == Verb::AllToAll => words.push(format!("{}", T::SIG)),
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

    fn signature<T: Wire>(&self, algorithm: &str) -> Signature {
        let agreed = self.counts.filter(|_| self.verb != Verb::AllToAll);
        let numbers = [self.root, self.len, usize::from(self.order == Order::Any)];
        let numbers = numbers.iter().chain(agreed.into_iter().flatten());
        let words = format!("{:?} {algorithm} {}", self.verb, self.op);
        numbers.fold(Signature::of(&words).with_type::<T>(), |sig, number| {
            sig.with(*number as u64)
        })
    }
}

/// An algorithm, its cost and its plan.
struct Chosen {
    algorithm: String,
    cost_ns: f64,
    plan: Result<Plan, Unfit>,
}

impl Chosen {
    /// Plans with the algorithm that the call names, or with the best one.
    fn of<A: Algorithm>(
        guide: &Guide<'_>,
        named: Option<A>,
        shape: &Shape,
        plan: impl Fn(A) -> Result<Plan, Unfit>,
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
    fn only(name: &str, plan: Result<Plan, Unfit>) -> Self {
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

/// The largest size of a buffer, in bytes.
pub(crate) const BYTES_MAX: usize = isize::MAX as usize;

#[cfg(test)]
mod tests;
