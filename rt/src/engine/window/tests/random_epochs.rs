//! Random puts, gets and updates in random epochs of a few ranks.
#![expect(clippy::print_stdout, reason = "seeds are printed")]

use std::{
    cell::RefCell,
    collections::BTreeSet,
    future::poll_fn,
    panic::Location,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, Waker},
};

use ripstop_fabric::{memory::MemoryRegion, random::SeededRandom};

use super::alone::{ELEMENT, ID, LoneEnd, LoneFlush, lone_ends, remote_info, settle};
use crate::{
    engine::window::{
        Combine, FenceMethod, NumberType, TargetRanges, WindowLockKind, WindowOpKind,
    },
    error::ErrorKind,
    group::WorldRank,
    ops::OpTicket,
    trace::WindowCall,
};

/// Most ranks. Each of them puts to an element of its own, the first elements of each end.
const RANKS_MAX: u32 = 4;
/// Element that all ranks update and fetch.
const COUNTED: usize = 4;
/// Element that ranks get and put while they have the exclusive lock.
const LOCKED: usize = 5;
/// The first of the elements that ranks update together, in updates of several messages.
const SUMMED: usize = 6;
const SUMMED_LEN: usize = 600;

/// Elements of each end.
const ELEMENTS: usize = SUMMED + SUMMED_LEN;

/// Epochs of a program.
const ROUNDS: usize = 8;

/// Most turns until all ranks have ended.
const LONG: u32 = 200_000;

/// What all ranks do between two fences.
enum EpochRound {
    /// Any rank accesses any other one in an epoch of fences.
    Fences,
    /// Ranks post to their origins: for each origin, and each target, whether the origin accesses it.
    Exposures(Vec<Vec<bool>>),
    /// Ranks take locks.
    Locks,
}

/// What a rank has done to the memory of each target.
#[derive(Clone, Debug, Default)]
struct TargetRecord {
    /// The last value put to the element of the origin.
    put: u64,
    adds: u64,
    /// Old values that updates have fetched.
    fetched: Vec<u64>,
    increments: u64,
    sums: u64,
}

/// The application of a rank.
struct EndUser {
    me: usize,
    size: u32,
    end: Rc<RefCell<LoneEnd>>,
    random: SeededRandom,
    records: Vec<TargetRecord>,
}

type UserEnd = (Vec<TargetRecord>, Result<(), ErrorKind>);

impl EndUser {
    fn with<R>(&self, action: impl FnOnce(&mut LoneEnd) -> R) -> R {
        let mut end = self.end.borrow_mut();
        let result = action(&mut end);
        end.flush();
        result
    }

    /// Waits until `check` returns a value.
    async fn until<R>(&self, mut check: impl FnMut(&mut LoneEnd) -> Option<R>) -> R {
        poll_fn(|_| self.with(&mut check).map_or(Poll::Pending, Poll::Ready)).await
    }

    fn below(&mut self, limit: u32) -> u32 {
        below(&mut self.random, limit)
    }

    fn any_rank(&mut self) -> WorldRank {
        WorldRank(self.below(self.size))
    }

    fn record(&mut self, target: WorldRank) -> &mut TargetRecord {
        &mut self.records[target.0 as usize]
    }

    /// Runs all rounds, and then closes the end, also after an error.
    async fn run(mut self, rounds: Rc<[EpochRound]>) -> UserEnd {
        let result = self.run_rounds(&rounds).await;
        self.with(|end| end.windows().close_window(ID));
        (self.records, result)
    }

    async fn run_rounds(&mut self, rounds: &[EpochRound]) -> Result<(), ErrorKind> {
        for round in rounds {
            match round {
                EpochRound::Fences => self.access_between_fences().await?,
                EpochRound::Exposures(accesses) => self.access_exposed(accesses).await?,
                EpochRound::Locks => self.access_locked().await?,
            }
            self.fence(false).await?;
        }
        Ok(())
    }

    async fn access_between_fences(&mut self) -> Result<(), ErrorKind> {
        self.with(|end| end.core.windows().set_fence_epoch(ID, true));
        self.fence(false).await?;
        for _ in 0..self.below(4) {
            let target = self.any_rank();
            self.access(target, false).await?;
        }
        self.fence(true).await?;
        self.with(|end| end.core.windows().set_fence_epoch(ID, false));
        Ok(())
    }

    async fn fence(&self, ending: bool) -> Result<(), ErrorKind> {
        let method = self.with(|end| end.windows().begin_fence(ID, ending));
        assert_eq!(method, FenceMethod::Counted);
        let passed = self.until(|end| match end.windows().advance_fence(ID, method) {
            Ok(passed) => Some(passed),
            Err(_) => {
                end.windows().watch_fence(ID);
                None
            }
        });
        passed.await.map_err(|(_, why)| why)
    }

    async fn access_exposed(&mut self, accesses: &[Vec<bool>]) -> Result<(), ErrorKind> {
        let (me, all) = (self.me, (0..self.size).map(WorldRank));
        let is_origin = |rank: &WorldRank| accesses[rank.0 as usize][me];
        let is_target = |rank: &WorldRank| accesses[me][rank.0 as usize];
        let origins: Vec<WorldRank> = all.clone().filter(is_origin).collect();
        let targets: Vec<WorldRank> = all.filter(is_target).collect();
        self.with(|end| {
            let mut windows = end.windows();
            origins
                .iter()
                .for_each(|&rank| windows.post_window(ID, rank));
            targets.iter().for_each(|&rank| windows.greet(ID, rank));
        });
        let started = self.until(|end| {
            let started = end.core.windows().start_window(ID, &targets);
            if started.is_none() {
                end.windows().watch_posted(ID, &targets);
            }
            started
        });
        started.await.map_err(|(_, why)| why)?;
        for &target in &targets {
            self.access(target, false).await?;
        }
        for &target in &targets {
            self.complete(target).await?;
        }
        for &origin in &origins {
            let completed = self.until(|end| {
                end.windows().watch_completed(ID, &[origin]);
                end.core.windows().has_completed(ID, origin)
            });
            completed.await?;
        }
        Ok(())
    }

    async fn complete(&self, target: WorldRank) -> Result<(), ErrorKind> {
        let access = self.with(|end| {
            end.windows().complete_window(ID, target);
            let counters = end.core.windows().epoch_counters(ID, target);
            counters.accesses_begun()
        });
        let ended = self.until(|end| end.core.windows().has_ended(ID, target, access));
        ended.await
    }

    async fn access_locked(&mut self) -> Result<(), ErrorKind> {
        for _ in 0..self.below(4) {
            let target = self.any_rank();
            let is_exclusive = self.random.chance(0.5);
            let want = if is_exclusive {
                WindowLockKind::Exclusive
            } else {
                WindowLockKind::Shared
            };
            let (op, at) = ("lock", Location::caller());
            let call = WindowCall { op, at };
            self.with(|end| end.windows().ask_lock(ID, target, want, call))?;
            if self.random.chance(0.8) {
                let granted = self.until(|end| end.core.windows().has_lock(ID, target, want));
                granted.await?;
                self.access(target, is_exclusive).await?;
            } else if self.random.chance(0.5) {
                let waits = self.begin_sum(target); // needs the lock, which is given back before it is granted
                self.drop_op(&waits);
            }
            self.with(|end| end.core.windows().give_lock_back(ID, target));
            self.until(|end| end.is_outside(target).then_some(())).await;
        }
        Ok(())
    }

    /// Accesses the memory of a target, which this rank may do now.
    async fn access(&mut self, target: WorldRank, is_exclusive: bool) -> Result<(), ErrorKind> {
        for _ in 0..self.below(5) {
            match self.below(if is_exclusive { 5 } else { 4 }) {
                0 if self.random.chance(0.3) => {
                    let dropped = self.begin_put(target);
                    self.drop_op(&dropped);
                    return Ok(()); // what follows in this epoch would have no order with it
                }
                0 => {
                    let put = self.begin_put(target);
                    self.end_write(put).await?;
                }
                1 => {
                    let got = self.get(target, self.me).await?;
                    assert_eq!(got, self.record(target).put, "from {target}");
                }
                2 => self.add(target).await?,
                3 => {
                    let sum = self.begin_sum(target);
                    if self.random.chance(0.3) {
                        self.drop_op(&sum);
                    } else {
                        self.end_write(sum).await?;
                    }
                }
                _ => {
                    let value = self.get(target, LOCKED).await?;
                    let put = self.write(target, WindowOpKind::Put, LOCKED, vec![value + 1]);
                    self.end_write(put).await?;
                    self.record(target).increments += 1;
                }
            }
        }
        Ok(())
    }

    fn begin_put(&mut self, target: WorldRank) -> OpTicket<Vec<u64>> {
        let value = self.random.bits();
        self.record(target).put = value;
        self.write(target, WindowOpKind::Put, self.me, vec![value])
    }

    fn begin_sum(&mut self, target: WorldRank) -> OpTicket<Vec<u64>> {
        self.record(target).sums += 1;
        self.write(target, sum(false), SUMMED, vec![1; SUMMED_LEN])
    }

    async fn add(&mut self, target: WorldRank) -> Result<(), ErrorKind> {
        let update = self.fetch(target, sum(true), COUNTED, 1);
        self.record(target).adds += 1;
        if self.random.chance(0.3) {
            self.drop_op(&update);
        } else {
            let old = self.end_fetch(update).await?;
            self.record(target).fetched.push(old);
        }
        Ok(())
    }

    async fn get(&self, target: WorldRank, element: usize) -> Result<u64, ErrorKind> {
        let get = self.fetch(target, WindowOpKind::Get, element, 0);
        self.end_fetch(get).await
    }

    fn write(
        &self,
        target: WorldRank,
        kind: WindowOpKind,
        element: usize,
        values: Vec<u64>,
    ) -> OpTicket<Vec<u64>> {
        let (info, ranges) = (remote_info(target), ranges_from(element));
        self.with(|end| end.core.windows().write_window(info, kind, ranges, values))
    }

    fn fetch(
        &self,
        target: WorldRank,
        kind: WindowOpKind,
        element: usize,
        operand: u64,
    ) -> OpTicket<Vec<u64>> {
        let (info, ranges) = (remote_info(target), ranges_from(element));
        let buf = vec![operand];
        self.with(|end| end.core.windows().fetch_window(info, kind, ranges, buf))
    }

    async fn end_write(&self, ticket: OpTicket<Vec<u64>>) -> Result<(), ErrorKind> {
        let taken = self.until(|end| end.core.common.take_send(&ticket)).await;
        taken.0.map(|_| ()).map_err(|failure| failure.kind)
    }

    async fn end_fetch(&self, ticket: OpTicket<Vec<u64>>) -> Result<u64, ErrorKind> {
        let taken = self.until(|end| end.core.common.take_recv(&ticket)).await;
        taken.0.map(|_| taken.1[0]).map_err(|failure| failure.kind)
    }

    /// Drops the future of an operation, which goes on.
    fn drop_op(&self, ticket: &OpTicket<Vec<u64>>) {
        self.with(|end| end.core.common.detach(ticket.op));
    }
}

fn sum(fetch: bool) -> WindowOpKind {
    WindowOpKind::Update {
        number: NumberType::U64,
        combine: Combine::Sum,
        fetch,
    }
}

fn ranges_from(element: usize) -> TargetRanges {
    TargetRanges::From((element * ELEMENT) as u64)
}

fn below(random: &mut SeededRandom, limit: u32) -> u32 {
    u32::try_from(random.within(0..u64::from(limit))).expect("small")
}

fn any_round(random: &mut SeededRandom, size: u32) -> EpochRound {
    match below(random, 3) {
        0 => EpochRound::Fences,
        1 => {
            let mut of_origin =
                |_| -> Vec<bool> { (0..size).map(|_| random.chance(0.5)).collect() };
            EpochRound::Exposures((0..size).map(&mut of_origin).collect())
        }
        _ => EpochRound::Locks,
    }
}

/// Ranks that run the same rounds.
struct RandomEpochs {
    random: SeededRandom,
    /// The ranks that have not left.
    ends: Vec<Option<Rc<RefCell<LoneEnd>>>>,
    users: Vec<Option<Pin<Box<dyn Future<Output = UserEnd>>>>>,
    memory: Vec<MemoryRegion>,
    /// What ranks have done until their end.
    results: Vec<Option<UserEnd>>,
}

impl RandomEpochs {
    fn new(seed: u64) -> Self {
        let mut random = SeededRandom::new(seed);
        let size = 2 + below(&mut random, RANKS_MAX - 1);
        println!("seed {seed}: {size} ranks");
        let rounds = (0..ROUNDS).map(|_| any_round(&mut random, size));
        let rounds: Rc<[EpochRound]> = rounds.collect();
        let mut epochs = Self {
            random,
            ends: Vec::new(),
            users: Vec::new(),
            memory: Vec::new(),
            results: Vec::new(),
        };
        for (mut end, me) in lone_ends(size).into_iter().zip(0..) {
            epochs.memory.push(end.open(ELEMENTS));
            end.reorder_counts(epochs.random.bits());
            let end = Rc::new(RefCell::new(end));
            let user = EndUser {
                me,
                size,
                end: Rc::clone(&end),
                random: SeededRandom::new(epochs.random.bits()),
                records: vec![TargetRecord::default(); size as usize],
            };
            let user = user.run(Rc::clone(&rounds));
            epochs.users.push(Some(Box::pin(user)));
            epochs.ends.push(Some(end));
            epochs.results.push(None);
        }
        epochs
    }

    fn any_rank(&mut self) -> usize {
        let size = u32::try_from(self.ends.len()).expect("few");
        below(&mut self.random, size) as usize
    }

    /// Lets some rank go on, and make a turn.
    fn step(&mut self) {
        let rank = self.any_rank();
        if let Some(user) = &mut self.users[rank] {
            let polled = user.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            if let Poll::Ready(result) = polled {
                self.results[rank] = Some(result);
                self.users[rank] = None;
            }
        }
        if let Some(end) = &self.ends[rank] {
            end.borrow_mut().turn();
        }
    }

    /// Lets ranks go on until all have ended.
    fn finish(&mut self) {
        let mut turns = 0;
        while self.users.iter().any(Option::is_some) {
            self.step();
            turns += 1;
            assert!(turns < LONG, "a rank waits for ever");
        }
    }

    /// Drops a rank in the middle of what it does.
    fn lose_one(&mut self) {
        let lost = self.any_rank();
        self.users[lost] = None;
        self.results[lost] = None;
        self.ends[lost] = None;
    }

    /// Checks that each operation has taken effect once, and that locks have excluded other ranks.
    fn check_memory(&self) {
        let users = self.results.iter().flatten();
        let records: Vec<&[TargetRecord]> = users.map(|(records, _)| records.as_slice()).collect();
        for (target, memory) in self.memory.iter().enumerate() {
            let mut bytes = vec![0; ELEMENTS * ELEMENT];
            memory.read(0, &mut bytes);
            let elements = bytes.chunks_exact(ELEMENT);
            let elements = elements.map(|bytes| u64::from_ne_bytes(bytes.try_into().expect("8")));
            let elements: Vec<u64> = elements.collect();
            let all = || records.iter().map(|records| &records[target]);
            for (origin, record) in (0..).zip(all()) {
                assert_eq!(elements[origin], record.put, "put by {origin} to {target}");
            }
            let adds = all().map(|record| record.adds).sum::<u64>();
            assert_eq!(elements[COUNTED], adds, "updates of {target}");
            let fetched: Vec<u64> = all().flat_map(|record| record.fetched.clone()).collect();
            let distinct: BTreeSet<u64> = fetched.iter().copied().collect();
            assert_eq!(distinct.len(), fetched.len(), "fetched from {target}");
            assert!(distinct.last().is_none_or(|last| *last < adds));
            let increments = all().map(|record| record.increments).sum::<u64>();
            assert_eq!(elements[LOCKED], increments, "increments of {target}");
            let sums = all().map(|record| record.sums).sum::<u64>();
            assert_eq!(elements[SUMMED..], [sums; SUMMED_LEN], "sums of {target}");
        }
    }

    /// Checks that the ranks that are left are idle, and have freed everything.
    fn check_end(&self) {
        settle(|| {
            let ends = self.ends.iter().flatten();
            ends.fold(false, |before, end| before | end.borrow_mut().turn())
        });
        for end in self.ends.iter().flatten() {
            end.borrow_mut().check_end();
        }
    }
}

#[test]
fn each_operation_takes_effect_once_in_its_epoch_and_exclusive_locks_exclude() {
    for seed in 0..40 {
        let mut epochs = RandomEpochs::new(seed);
        epochs.finish();
        for (_, result) in epochs.results.iter().flatten() {
            assert!(result.is_ok(), "{result:?}");
        }
        epochs.check_memory();
        epochs.check_end();
    }
}

#[test]
fn a_rank_that_leaves_at_any_time_keeps_no_other_rank_waiting_and_leaves_no_operation() {
    let mut failed = 0;
    for seed in 40..120 {
        let mut epochs = RandomEpochs::new(seed);
        for _ in 0..below(&mut epochs.random, 300) {
            epochs.step();
        }
        epochs.lose_one();
        epochs.finish();
        let results = epochs.results.iter().flatten();
        failed += results.filter(|(_, result)| result.is_err()).count();
        epochs.check_end();
    }
    assert!(
        failed > 40,
        "{failed} ranks have seen that another one left"
    );
}
