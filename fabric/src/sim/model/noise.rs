//! Detours of the operating system: computes how much longer work takes because of them.

use super::Noise;
use crate::{
    random::SeededRandom,
    sim::{heap::SimTime, slab::index, world::ps},
};

/// Detours of all ranks.
#[derive(Debug)]
pub(in crate::sim) enum NoiseDetours {
    None,
    Fixed {
        rhythm: DetourRhythm,
        seed: u64,
    },
    Exponential {
        means: DetourRhythm,
        next: Vec<NextDetour>,
    },
}

/// Frequency and length of the times in which the operating system takes a processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::sim) struct DetourRhythm {
    /// Period of fixed detours; for random ones, the mean time from the end of one to the start of the next.
    every: SimTime,
    /// Length of a detour.
    detour: SimTime,
}

/// The next detour of a rank.
#[derive(Debug)]
pub(in crate::sim) struct NextDetour {
    random: SeededRandom,
    start: SimTime,
    end: SimTime,
}

impl NoiseDetours {
    pub(in crate::sim) fn new(noise: Noise, seed: u64, ranks: u32) -> Self {
        match noise {
            Noise::None => Self::None,
            Noise::Fixed {
                every_ns,
                detour_ns,
            } => Self::Fixed {
                rhythm: DetourRhythm {
                    every: ps(every_ns),
                    detour: ps(detour_ns),
                },
                seed,
            },
            Noise::Exponential {
                every_ns,
                detour_ns,
            } => {
                let means = DetourRhythm {
                    every: ps(every_ns),
                    detour: ps(detour_ns),
                };
                let first = |rank| NextDetour::first(seed, rank, means);
                let next = (0..ranks).map(first).collect();
                Self::Exponential { means, next }
            }
        }
    }

    /// Returns when `work` that a rank begins at `start` is done.
    pub(in crate::sim) fn end(&mut self, rank: u32, start: SimTime, work: SimTime) -> SimTime {
        match self {
            Self::None => start.saturating_add(work),
            Self::Fixed { rhythm, seed } => {
                let phase = phase(*seed, rank) % rhythm.every;
                fixed_end(*rhythm, phase, start, work)
            }
            Self::Exponential { means, next } => next[index(rank)].end(start, work, *means),
        }
    }

    /// Returns how many bytes of memory the detours of all ranks take, besides this value.
    pub(in crate::sim) const fn footprint(&self) -> usize {
        match self {
            Self::Exponential { next, .. } => next.capacity() * size_of::<NextDetour>(),
            _ => 0,
        }
    }
}

/// Returns when `work` is done that begins at `start`, if detours begin at `phase` and then every `rhythm.every`.
fn fixed_end(rhythm: DetourRhythm, phase: SimTime, start: SimTime, work: SimTime) -> SimTime {
    let DetourRhythm { every, detour } = rhythm;
    let into = (start + (every - phase)) % every;
    // Work that begins in a detour waits for the detour's end.
    let start = start + detour.saturating_sub(into);
    let into = into.max(detour);
    let to_next = every - into;
    if work <= to_next {
        return start + work;
    }
    // Each whole period has `free` time for work, and the last one at least a part of that.
    let (left, free) = (work - to_next, every - detour);
    let whole = (left - 1) / free;
    start + to_next + whole * every + detour + (left - whole * free)
}

impl NextDetour {
    fn first(seed: u64, rank: u32, means: DetourRhythm) -> Self {
        let mut next = Self {
            random: SeededRandom::new(phase(seed, rank)),
            start: 0,
            end: 0,
        };
        next.plan(0, means);
        next
    }

    fn plan(&mut self, from: SimTime, means: DetourRhythm) {
        self.start = from.saturating_add(exponential(&mut self.random, means.every));
        self.end = self
            .start
            .saturating_add(exponential(&mut self.random, means.detour));
    }

    fn end(&mut self, start: SimTime, work: SimTime, means: DetourRhythm) -> SimTime {
        if self.end <= start {
            // The host was idle meanwhile. An exponential time to the next detour does not depend on how long it was idle.
            self.plan(start, means);
        }
        let mut end = start.saturating_add(work);
        while self.start < end {
            end = end.saturating_add(self.end - self.start.max(start));
            self.plan(self.end, means);
        }
        end
    }
}

/// Returns an exponentially distributed time with this mean. It only compares integers (von Neumann's method), so it is the same
/// on all machines. It relies on this: a descending run of random numbers that begins with x has an odd length with probability
/// exp(-x).
fn exponential(random: &mut SeededRandom, mean: SimTime) -> SimTime {
    let mut whole: SimTime = 0;
    loop {
        let first = random.bits();
        let (mut last, mut length) = (first, 1_u32);
        loop {
            let next = random.bits();
            if next > last {
                break;
            }
            last = next;
            length += 1;
        }
        if length % 2 == 1 {
            let part = (u128::from(mean) * u128::from(first)) >> 64;
            let part = SimTime::try_from(part).unwrap_or(SimTime::MAX);
            return whole.saturating_mul(mean).saturating_add(part);
        }
        whole += 1;
    }
}

fn phase(seed: u64, rank: u32) -> u64 {
    SeededRandom::new(seed ^ u64::from(rank).wrapping_mul(0x2545_f491_4f6c_dd1d)).bits()
}

#[cfg(test)]
mod tests {
    use super::{DetourRhythm, Noise, NoiseDetours, exponential, fixed_end};
    use crate::random::SeededRandom;

    /// Computes the same as `fixed_end`, one unit of time after the other.
    fn slowly(rhythm: DetourRhythm, phase: u64, start: u64, work: u64) -> u64 {
        let DetourRhythm { every, detour } = rhythm;
        let (mut now, mut left) = (start, work);
        while left > 0 || (now + every - phase) % every < detour && now == start {
            if (now + every - phase) % every >= detour {
                left -= 1;
            }
            now += 1;
        }
        now
    }

    #[test]
    fn fixed_detours_lengthen_as_much_as_they_overlap() {
        for detour in 1..4 {
            for every in detour + 1..7 {
                for (phase, start, work) in (0..every).flat_map(|phase| {
                    (0..9).flat_map(move |start| (1..20).map(move |work| (phase, start, work)))
                }) {
                    let noise = DetourRhythm { every, detour };
                    assert_eq!(
                        fixed_end(noise, phase, start, work),
                        slowly(noise, phase, start, work),
                        "{noise:?} {phase} {start} {work}"
                    );
                }
            }
        }
    }

    #[test]
    fn exponential_times_have_their_mean_and_their_tail() {
        let mut random = SeededRandom::new(5);
        let drawn: Vec<u64> = (0..100_000)
            .map(|_| exponential(&mut random, 1_000_000))
            .collect();
        let mean = drawn.iter().sum::<u64>() / 100_000;
        assert!((985_000..1_015_000).contains(&mean), "{mean}");
        // Fractions of exp(-1) and exp(-3) of the times are longer than one mean and than three means.
        let longer = |than: u64| drawn.iter().filter(|time| **time > than).count();
        assert!(
            (36_200..37_400).contains(&longer(1_000_000)),
            "{}",
            longer(1_000_000)
        );
        assert!(
            (4_700..5_260).contains(&longer(3_000_000)),
            "{}",
            longer(3_000_000)
        );
    }

    #[test]
    fn noise_takes_its_share_of_a_long_time() {
        let (every_ns, detour_ns) = (90_000, 10_000);
        let mut detours = NoiseDetours::new(
            Noise::Exponential {
                every_ns,
                detour_ns,
            },
            3,
            4,
        );
        let end = detours.end(2, 0, 1_000_000_000_000);
        assert!(
            (1_100_000_000_000..1_122_000_000_000).contains(&end),
            "{end}"
        );
        assert_eq!(NoiseDetours::new(Noise::None, 3, 4).end(2, 5, 7), 12);
    }
}
