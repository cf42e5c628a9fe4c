//! How the numbers of an end are updated: each by an atomic instruction, or many at a time under a lock.
//!
//! The first update decides this for as long as the window exists. If it is of few numbers, every update is one atomic
//! instruction for each number, and no update waits for another one. If it is of many, every update takes the end's lock, and
//! then needs no atomic instruction for each number. It cannot change later: a rank that has begun an update by atomic
//! instructions leaves no trace of that, which costs nothing and lets no other rank find out when it is done.
//!
//! The lock is a word in the cache line behind the elements, which all ranks map that map the elements. The word contains the
//! holder's rank. A rank that waits takes the lock from a holder that is down; then the holder's update is done in part, as a put
//! of a rank that fails may be.

use std::{
    hint,
    sync::atomic::{
        AtomicU32,
        Ordering::{AcqRel, Relaxed, Release},
    },
    thread,
};

use ripstop_fabric::memory::{MemoryRegion, RegionWord};

use crate::{buffer::LINE, group::WorldRank};

/// Lock of the numbers of an end, which is off if each number is updated by an atomic instruction.
#[derive(Clone, Debug)]
pub(crate) struct UpdateLock {
    word: RegionWord,
    me: WorldRank,
}

/// Holds the lock of an end's numbers.
#[must_use = "the lock is free as soon as this is dropped"]
pub(crate) struct UpdateGuard<'l>(&'l UpdateLock);

/// Number of looks at a held lock before its waiter asks for the holder and yields its processor.
const LOOKS: u32 = 100;
/// First updates of at least this many numbers turn the lock on. For fewer, an atomic instruction for each number takes no
/// longer than the lock.
const MANY: usize = 16;

impl UpdateLock {
    /// Returns the lock of the `len` bytes at `start`, in a region that has a line to spare after them.
    pub(super) fn behind(region: &MemoryRegion, start: usize, len: usize, me: WorldRank) -> Self {
        let word = region.word(Self::end(start, len) - LINE);
        Self { word, me }
    }

    /// Returns the length of the key to memory with a lock. Other ranks know of the lock because this key includes its line.
    pub(super) fn key_len(start: usize, len: usize) -> usize {
        Self::end(start, len) - start
    }

    /// Returns the offset at which the line of this lock ends.
    fn end(start: usize, len: usize) -> usize {
        (start + len).next_multiple_of(LINE) + LINE
    }

    /// Returns true if each number is updated by an atomic instruction.
    #[inline]
    pub(crate) fn is_off(&self) -> bool {
        self.word.load(Relaxed) == OFF
    }

    /// Returns the rank that has the lock at the moment.
    pub(super) fn holder(&self) -> Option<WorldRank> {
        let now = self.word.load(Relaxed);
        (now >= HOLDERS).then(|| rank_of(now))
    }

    /// Begins an update of `count` numbers. Returns the held lock, or `None` if each number is updated by an atomic instruction.
    /// While another rank holds the lock, `is_down` is asked whether that rank is down.
    ///
    /// # Errors
    /// Returns the error of `is_down`, which ends the wait.
    pub(crate) fn begin<E>(
        &self,
        count: usize,
        mut is_down: impl FnMut(WorldRank) -> Result<bool, E>,
    ) -> Result<Option<UpdateGuard<'_>>, E> {
        let (word, mine) = (&*self.word, code_of(self.me));
        let mut looks = 0;
        loop {
            match try_begin(word, mine, count >= MANY) {
                UpdateBegin::Off => return Ok(None),
                UpdateBegin::Held => return Ok(Some(UpdateGuard(self))),
                UpdateBegin::HeldBy(_) if looks < LOOKS => {
                    looks += 1;
                    hint::spin_loop();
                }
                UpdateBegin::HeldBy(holder) => {
                    if !is_down(rank_of(holder))? {
                        thread::yield_now();
                    } else if word.replace(holder, mine) {
                        return Ok(Some(UpdateGuard(self)));
                    }
                }
            }
        }
    }
}

impl Drop for UpdateGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.word.set_free(code_of(self.0.me));
    }
}

/// Result of an attempt to begin an update.
#[derive(Debug, PartialEq, Eq)]
enum UpdateBegin {
    Off,
    /// This rank has taken the lock.
    Held,
    /// Another thread has the lock: the code of its rank.
    HeldBy(u32),
}

/// The word of a lock: an atomic, or a model of one.
trait UpdateLockWord {
    fn look(&self) -> u32;
    /// Replaces a value by another one. Returns false if the word has a third value.
    fn replace(&self, old: u32, new: u32) -> bool;
    /// Frees the lock if the rank with the code `mine` still has it. Another rank has it if it took this rank for down.
    fn set_free(&self, mine: u32);
}

impl UpdateLockWord for AtomicU32 {
    #[inline]
    fn look(&self) -> u32 {
        self.load(Relaxed)
    }

    #[inline]
    fn replace(&self, old: u32, new: u32) -> bool {
        self.compare_exchange(old, new, AcqRel, Relaxed).is_ok()
    }

    #[inline]
    fn set_free(&self, mine: u32) {
        let _taken = self.compare_exchange(mine, FREE, Release, Relaxed);
    }
}

/// Begins an update if no other thread has the lock.
#[inline]
fn try_begin<W: UpdateLockWord>(word: &W, mine: u32, is_of_many: bool) -> UpdateBegin {
    loop {
        let now = word.look();
        let next = match now {
            OFF => return UpdateBegin::Off,
            UNDECIDED if !is_of_many => OFF,
            UNDECIDED | FREE => mine,
            holder => return UpdateBegin::HeldBy(holder),
        };
        if word.replace(now, next) {
            return if next == OFF {
                UpdateBegin::Off
            } else {
                UpdateBegin::Held
            };
        }
    }
}

/// Value of the word before the first update. The memory of a window is zero at first.
const UNDECIDED: u32 = 0;
/// Value of the word if each number is updated by an atomic instruction.
const OFF: u32 = 1;
/// Value of the word if no thread has the lock.
const FREE: u32 = 2;
/// Value of the word if rank 0 has the lock; those of the other ranks follow.
const HOLDERS: u32 = 3;

fn code_of(rank: WorldRank) -> u32 {
    rank.0.wrapping_add(HOLDERS)
}

fn rank_of(code: u32) -> WorldRank {
    WorldRank(code.wrapping_sub(HOLDERS))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    use super::{
        FREE, HOLDERS, LINE, MANY, MemoryRegion, OFF, UNDECIDED, UpdateBegin, UpdateLock,
        UpdateLockWord, WorldRank, try_begin,
    };

    #[test]
    fn the_first_update_decides_and_no_later_one_does() {
        let word = AtomicU32::new(UNDECIDED);
        assert_eq!(try_begin(&word, HOLDERS, false), UpdateBegin::Off);
        assert_eq!(try_begin(&word, HOLDERS, true), UpdateBegin::Off);
        let word = AtomicU32::new(UNDECIDED);
        assert_eq!(try_begin(&word, HOLDERS + 4, true), UpdateBegin::Held);
        let held = UpdateBegin::HeldBy(HOLDERS + 4);
        assert_eq!(try_begin(&word, HOLDERS, false), held);
        word.set_free(HOLDERS);
        assert_eq!(
            try_begin(&word, HOLDERS, false),
            held,
            "a lock of another rank"
        );
        word.set_free(HOLDERS + 4);
        assert_eq!(try_begin(&word, HOLDERS, false), UpdateBegin::Held);
        assert_ne!(word.load(Relaxed), OFF);
        assert!(!word.replace(FREE, OFF));
    }

    #[test]
    fn a_lock_is_taken_from_a_holder_that_is_down_and_from_no_other() {
        let region = MemoryRegion::create("numbers", 100, false).unwrap();
        let [dead, me] = [7, 8].map(|rank| UpdateLock::behind(&region, 8, 20, WorldRank(rank)));
        let held = dead.begin(MANY, |_| Err("nothing to wait for")).unwrap();
        std::mem::forget(held);
        let mut asked = 0;
        let stopped = me.begin(1, |holder| {
            assert_eq!(holder, WorldRank(7));
            asked += 1;
            if asked < 3 {
                Ok(false)
            } else {
                Err("it did not go on")
            }
        });
        assert_eq!(stopped.err(), Some("it did not go on"));
        assert_eq!(me.holder(), Some(WorldRank(7)));
        let taken = me.begin(1, |_| Ok::<_, ()>(true)).unwrap();
        assert!(taken.is_some() && !me.is_off());
        assert_eq!(dead.holder(), Some(WorldRank(8)));
        drop(taken);
        assert_eq!(me.holder(), None);
        let again = dead.begin(1, |_| Err("nothing to wait for")).unwrap();
        assert!(again.is_some(), "the lock is on for good");
    }

    #[test]
    fn the_line_of_a_lock_is_behind_the_elements_and_inside_the_room_to_spare() {
        for len in [1, 8, 63, 64, 65, 4032, 4096] {
            let end = UpdateLock::end(0, len);
            assert!(end >= len + LINE && end < len + 2 * LINE, "{len}: {end}");
        }
    }
}

/// Loom models of updates of one number, in every order that matters: `cargo xtask loom`.
#[cfg(all(test, loom))]
mod loom_models {
    use std::sync::Arc;

    use loom::{
        sync::atomic::{
            AtomicU32,
            Ordering::{AcqRel, Relaxed, Release},
        },
        thread,
    };

    use super::{FREE, HOLDERS, UNDECIDED, UpdateBegin, UpdateLockWord, try_begin};
    use crate::sync;

    impl UpdateLockWord for AtomicU32 {
        fn look(&self) -> u32 {
            self.load(Relaxed)
        }
        fn replace(&self, old: u32, new: u32) -> bool {
            self.compare_exchange(old, new, AcqRel, Relaxed).is_ok()
        }
        fn set_free(&self, mine: u32) {
            let _taken = self.compare_exchange(mine, FREE, Release, Relaxed);
        }
    }

    /// A lock and one number behind it.
    struct Model {
        word: AtomicU32,
        number: AtomicU32,
    }

    impl Model {
        fn new(word: u32) -> Arc<Self> {
            Arc::new(Self {
                word: AtomicU32::new(word),
                number: AtomicU32::new(0),
            })
        }

        /// Adds 1 as the rank with the code `mine`; the rank with the code `dead` is down.
        fn add(&self, mine: u32, is_of_many: bool, dead: Option<u32>) {
            loop {
                match try_begin(&self.word, mine, is_of_many) {
                    UpdateBegin::Off => {
                        self.number.fetch_add(1, Relaxed);
                        return;
                    }
                    UpdateBegin::Held => break,
                    UpdateBegin::HeldBy(holder) => {
                        if Some(holder) == dead && self.word.replace(holder, mine) {
                            break;
                        }
                        thread::yield_now();
                    }
                }
            }
            self.add_plainly();
            self.word.set_free(mine);
        }

        fn add_plainly(&self) {
            let old = self.number.load(Relaxed);
            self.number.store(old + 1, Relaxed);
        }
    }

    /// Lets a thread and this one add 1, each of them its own way, and checks the sum. With a third one, the waits for a held
    /// lock are more than a model can have.
    fn both_add(word: u32, are_of_many: [bool; 2], dead: Option<u32>) {
        sync::explore(move || {
            let model = Model::new(word);
            let [here, there] = are_of_many;
            let other = Arc::clone(&model);
            let other = thread::spawn(move || other.add(HOLDERS + 1, there, dead));
            model.add(HOLDERS, here, dead);
            other.join().unwrap();
            assert_eq!(model.number.load(Relaxed), 2);
        });
    }

    #[test]
    fn updates_of_many_and_of_few_numbers_lose_none() {
        both_add(UNDECIDED, [true, false], None);
        both_add(UNDECIDED, [true, true], None);
    }

    #[test]
    fn a_lock_of_a_rank_that_is_down_has_one_holder_again() {
        let dead = HOLDERS + 7;
        both_add(dead, [true, false], Some(dead));
    }

    #[test]
    #[should_panic(expected = "left")]
    fn without_the_lock_an_update_is_lost() {
        sync::explore(|| {
            let model = Model::new(UNDECIDED);
            let other = Arc::clone(&model);
            let other = thread::spawn(move || other.add_plainly());
            model.add_plainly();
            other.join().unwrap();
            assert_eq!(model.number.load(Relaxed), 2);
        });
    }
}
