//! Cache of programs: a call that repeats an earlier one reuses its program instead of planning again.

use std::{ptr, sync::Arc};

use ripstop_rt::internal::{
    lock::{SpinGuard, SpinLock},
    offload::{CollectiveProgram, CollectiveSignature},
};

use crate::{
    Tuning,
    call_spec::{CallSpec, CollectiveKind},
    neighborhood_key::NeighborhoodKey,
    plan::{OperandOrder, RankLayout},
    tuning::AUTO,
};

/// The programs of one runtime.
#[derive(Debug, Default)]
pub(crate) struct ProgramCache {
    calls: LruPrograms<ProgramKey>,
    /// The programs of neighborhood calls.
    pub(crate) around: LruPrograms<NeighborhoodKey>,
}

/// Programs of one kind. Those behind the first few are in the order of their last use, the latest first.
#[derive(Debug)]
pub(crate) struct LruPrograms<K> {
    entries: SpinLock<Vec<Arc<ProgramEntry<K>>>>,
}

/// A program that is about to run, and the signature that all ranks must agree on.
#[derive(Debug)]
pub(crate) struct CachedProgram {
    pub(crate) program: Arc<CollectiveProgram>,
    pub(crate) signature: CollectiveSignature,
}

#[derive(Debug)]
struct ProgramEntry<K> {
    key: K,
    program: Arc<CollectiveProgram>,
    signature: CollectiveSignature,
    /// Size of the entry, in steps.
    weight: usize,
}

#[derive(Debug)]
struct ProgramKey {
    verb: CollectiveKind,
    rank: usize,
    size: usize,
    per_node: usize,
    root: usize,
    len: usize,
    counts: Option<Box<[usize]>>,
    incoming: Box<[usize]>,
    order: OperandOrder,
    op: &'static str,
    elem: (u64, usize),
    /// `None` if the caller named no algorithm.
    tuning: Option<Tuning>,
}

/// Inputs of a call besides its arguments.
#[derive(Clone, Copy)]
pub(crate) struct CallerContext<'a> {
    pub(crate) place: RankLayout<'a>,
    /// Ranks of the communicator in a row that share a node.
    pub(crate) per_node: usize,
    /// The type's signature and its alignment; packed and aligned types have the same signature.
    pub(crate) elem: (u64, usize),
    pub(crate) tuning: &'a Tuning,
}

impl CallerContext<'_> {
    /// Returns the algorithms that the caller named.
    #[inline]
    fn named(&self) -> Option<Tuning> {
        (!ptr::eq(self.tuning, &AUTO)).then_some(*self.tuning)
    }
}

impl ProgramCache {
    /// Returns the program of an earlier call with the same key, or the one that `make` makes.
    ///
    /// Inlined, because a call site knows most of its key. Only what is made anew gets an address.
    #[inline(always)]
    pub(crate) fn get(
        &self,
        caller: &CallerContext<'_>,
        spec: &CallSpec<'_>,
        make: impl FnOnce(&CallerContext<'_>, &CallSpec<'_>) -> Result<CachedProgram, String>,
    ) -> Result<CachedProgram, String> {
        if spec.fault.is_none()
            && let Some(ready) = self.calls.find(|key| key.is(caller, spec))
        {
            return Ok(ready);
        }
        self.make(*caller, spec.clone(), make)
    }

    #[cold]
    #[inline(never)]
    fn make(
        &self,
        caller: CallerContext<'_>,
        spec: CallSpec<'_>,
        make: impl FnOnce(&CallerContext<'_>, &CallSpec<'_>) -> Result<CachedProgram, String>,
    ) -> Result<CachedProgram, String> {
        let ready = make(&caller, &spec)?;
        let key = ProgramKey::of(&caller, &spec);
        let numbers = key.incoming.len() + key.counts.as_ref().map_or(0, |counts| counts.len());
        self.calls.keep(key, &ready, numbers);
        Ok(ready)
    }
}

impl<K> Default for LruPrograms<K> {
    fn default() -> Self {
        let entries = SpinLock::new(Vec::new());
        Self { entries }
    }
}

impl<K> LruPrograms<K> {
    /// Finds the program whose key `is_it` accepts.
    #[inline]
    pub(crate) fn find(&self, is_it: impl Fn(&K) -> bool) -> Option<CachedProgram> {
        let entries = &mut *self.lock();
        let mut at = entries.iter().position(|entry| is_it(&entry.key))?;
        let ahead = || -> usize { entries[..at].iter().map(|entry| entry.weight).sum() };
        if at >= RECENT || at > 0 && ahead() > STEPS_MAX / 8 {
            entries[..=at].rotate_right(1);
            at = 0;
        }
        let ProgramEntry {
            program, signature, ..
        } = &*entries[at];
        Some(CachedProgram {
            program: Arc::clone(program),
            signature: *signature,
        })
    }

    /// Stores a program. `numbers` counts the entries of the key's lists, which may outnumber the steps of the program.
    pub(crate) fn keep(&self, key: K, ready: &CachedProgram, numbers: usize) {
        let weight = ready.program.len() + numbers / NUMBERS_IN_A_STEP;
        if weight > STEPS_MAX {
            return;
        }
        let mut entries = self.lock();
        let entry = ProgramEntry {
            key,
            program: Arc::clone(&ready.program),
            signature: ready.signature,
            weight,
        };
        entries.insert(0, Arc::new(entry));
        let mut steps = 0;
        let fit = entries.iter().take(ENTRIES_MAX).take_while(|entry| {
            steps += entry.weight;
            steps <= STEPS_MAX
        });
        let fit = fit.count();
        entries.truncate(fit);
    }

    fn lock(&self) -> SpinGuard<'_, Vec<Arc<ProgramEntry<K>>>> {
        self.entries.lock()
    }
}

impl ProgramKey {
    fn of(caller: &CallerContext<'_>, spec: &CallSpec<'_>) -> Self {
        Self {
            verb: spec.kind,
            rank: caller.place.rank(),
            size: caller.place.size(),
            per_node: caller.per_node,
            root: spec.root,
            len: spec.len,
            counts: spec.counts.map(Box::from),
            incoming: spec.recv_counts.into(),
            order: spec.order,
            op: spec.op,
            elem: caller.elem,
            tuning: caller.named(),
        }
    }

    #[inline(always)]
    fn is(&self, caller: &CallerContext<'_>, spec: &CallSpec<'_>) -> bool {
        self.verb == spec.kind
            && (self.root, self.len) == (spec.root, spec.len)
            && (self.order, self.elem) == (spec.order, caller.elem)
            && (self.rank, self.size) == (caller.place.rank(), caller.place.size())
            && self.per_node == caller.per_node
            && self.counts.is_some() == spec.counts.is_some()
            && are_same(
                self.counts.as_deref().unwrap_or_default(),
                spec.counts.unwrap_or_default(),
            )
            && are_same(&self.incoming, spec.recv_counts)
            && are_same(self.op.as_bytes(), spec.op.as_bytes())
            && self.is_tuned_for(caller)
    }

    /// Returns true if the caller named the same algorithms, or named none for this program either.
    #[inline]
    fn is_tuned_for(&self, caller: &CallerContext<'_>) -> bool {
        match &self.tuning {
            None => ptr::eq(caller.tuning, &AUTO),
            Some(tuning) => !ptr::eq(caller.tuning, &AUTO) && tuning == caller.tuning,
        }
    }
}

/// Returns true if two slices are equal. Empty slices are handled first: their pointers dangle, a vectorized `memcmp` loads
/// from there all the same, and suppressing that fault took the processor a quarter of a short collective.
#[inline]
fn are_same<T: PartialEq>(one: &[T], other: &[T]) -> bool {
    one.len() == other.len() && (one.is_empty() || ptr::eq(one, other) || one == other)
}

/// Programs at the start of the cache that keep their places when they are used: those of an inner loop.
const RECENT: usize = 8;

/// The most programs in the cache. An application has a few dozen different calls in its main loop.
const ENTRIES_MAX: usize = 64;

/// The most steps of all programs together: about half a megabyte for each rank, of which one process may hold many. Programs
/// that have run by task lists take a third more.
const STEPS_MAX: usize = 4096;

/// Numbers of a key that take as much memory as one step.
const NUMBERS_IN_A_STEP: usize = 16;

#[cfg(test)]
mod tests {
    use super::{CallerContext, ENTRIES_MAX, NUMBERS_IN_A_STEP, ProgramCache, STEPS_MAX};
    use crate::{
        Tuning,
        call_spec::{CallSpec, CollectiveKind},
        cost::{LogGP, Machine},
        plan::RankLayout,
        tuning::ChoiceContext,
    };

    /// Returns true if the program had to be made.
    fn misses(cache: &ProgramCache, size: usize, spec: &CallSpec<'_>) -> bool {
        let link = LogGP {
            latency_ns: 100.0,
            overhead_ns: 10.0,
            gap_ns: 10.0,
            ns_per_kib: 40.0,
        };
        let guide = ChoiceContext {
            tuning: &Tuning::AUTO,
            settings: &ripstop_rt::Settings::new(),
            machine: Machine {
                inside: link,
                across: link,
                per_node: size,
                processors: size,
                slot_bytes: 0,
                slot_moved_bytes: 0,
                copy_ns_per_kib: 20.0,
                reduce_ns_per_kib: 40.0,
            },
        };
        let place = RankLayout::new(1, size);
        let caller = CallerContext {
            place,
            per_node: size,
            elem: (8, 8),
            tuning: &Tuning::AUTO,
        };
        let mut made = false;
        let ready = cache.get(&caller, spec, |_, spec| {
            made = true;
            spec.build_program::<u64>(&place, &guide)
        });
        ready.unwrap();
        made
    }

    #[test]
    fn a_call_is_planned_once_and_others_are_other_calls() {
        let cache = ProgramCache::default();
        let bcast = |root, len| {
            CallSpec::of(CollectiveKind::Bcast, "bcast")
                .root(root)
                .len(len)
        };
        assert!(misses(&cache, 4, &bcast(0, 9)));
        assert!(!misses(&cache, 4, &bcast(0, 9)));
        assert!(misses(&cache, 4, &bcast(1, 9)) && misses(&cache, 4, &bcast(0, 8)));
        assert!(misses(&cache, 5, &bcast(0, 9)));
        let (some, others) = ([1, 2, 0, 3], [1, 2, 3, 0]);
        let ragged = CallSpec::of(CollectiveKind::AllGather, "all_gather_v");
        assert!(misses(&cache, 4, &ragged.clone().counts(&some)));
        assert!(misses(&cache, 4, &ragged.clone().counts(&others)));
        assert!(!misses(&cache, 4, &ragged.clone().counts(&some)));
        assert!(!misses(&cache, 4, &bcast(0, 9)));
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let cache = ProgramCache::default();
        for len in 1..2 * ENTRIES_MAX {
            misses(
                &cache,
                4,
                &CallSpec::of(CollectiveKind::AllReduce, "all_reduce").len(len),
            );
        }
        assert_eq!(cache.calls.lock().len(), ENTRIES_MAX);
        let large = CallSpec::of(CollectiveKind::AllToAll, "all_to_all").len(1 << 16);
        assert!(misses(&cache, 900, &large) && misses(&cache, 901, &large));
        assert!(misses(&cache, STEPS_MAX, &large) && misses(&cache, STEPS_MAX, &large));
        let steps = |cache: &ProgramCache| -> usize {
            let entries = cache.calls.lock();
            entries.iter().map(|entry| entry.program.len()).sum()
        };
        assert!(steps(&cache) <= STEPS_MAX && !misses(&cache, 901, &large));
    }

    #[test]
    fn a_call_in_use_stays_beside_large_ones_that_are_new() {
        let cache = ProgramCache::default();
        let hot = CallSpec::of(CollectiveKind::AllReduce, "all_reduce").len(1);
        let large = CallSpec::of(CollectiveKind::AllToAll, "all_to_all").len(1 << 16);
        misses(&cache, 4, &hot);
        for size in 900..910 {
            assert!(misses(&cache, size, &large));
            assert!(!misses(&cache, 4, &hot), "after that of {size} ranks");
        }
    }

    #[test]
    fn keys_are_bounded_where_programs_are_short() {
        const SIZE: usize = 20_000;
        let cache = ProgramCache::default();
        for len in 0..10 {
            let counts = [vec![len], vec![1; SIZE - 1]].concat();
            misses(
                &cache,
                SIZE,
                &CallSpec::of(CollectiveKind::Gather, "gather_v").counts(&counts),
            );
        }
        let entries = cache.calls.lock();
        let numbers = entries.iter().map(|entry| {
            let counts = entry.key.counts.as_ref();
            counts.map_or(0, |counts| counts.len())
        });
        let numbers: usize = numbers.sum();
        assert!(!entries.is_empty() && numbers <= STEPS_MAX * NUMBERS_IN_A_STEP);
    }
}
