//! Scenarios with much traffic: a rate, a flood, random messages, all pairs at once.

use ripstop::{Comm, Result, Source, fabric::random::SeededRandom, sim};

use super::scenario::{RankFigures, ScenarioWork, TAG, each_us, rank0_figure};

/// Messages in flight.
const WINDOW: u64 = 64;

/// Every rank and its partner send each other windows of messages.
pub(super) async fn rate(world: Comm, work: ScenarioWork) -> Result<RankFigures> {
    let (rank, size) = (world.rank(), world.size());
    let partner = rank ^ 1;
    if partner >= size {
        return Ok(RankFigures::new());
    }
    let start = sim::now(&world);
    let mut left = work.iters;
    while left > 0 {
        let window = left.min(WINDOW);
        let inbox: Vec<_> = (0..window)
            .map(|_| world.recv_into(partner, TAG, vec![0_u8; work.size]))
            .collect();
        let sends: Vec<_> = (0..window)
            .map(|_| world.send(partner, TAG, vec![0_u8; work.size]))
            .collect();
        for message in inbox {
            message.await?;
        }
        for send in sends {
            send.await?;
        }
        left -= window;
    }
    let each = each_us(sim::now(&world) - start, work.iters);
    Ok(rank0_figure(rank, "rate_per_us", "messages/µs", 1.0 / each))
}

/// Rank 0 sends windows of messages to the last rank, which answers each window.
pub(super) async fn stream(world: Comm, work: ScenarioWork) -> Result<RankFigures> {
    let (rank, last) = (world.rank(), world.size() - 1);
    if last == 0 || (rank != 0 && rank != last) {
        return Ok(RankFigures::new());
    }
    let start = sim::now(&world);
    for _ in 0..work.iters.div_ceil(WINDOW) {
        if rank == 0 {
            let sends: Vec<_> = (0..WINDOW)
                .map(|_| world.send(last, TAG, vec![0_u8; work.size]))
                .collect();
            for send in sends {
                send.await?;
            }
            world.recv_into(last, TAG, [0_u8; 1]).await?;
        } else {
            let inbox: Vec<_> = (0..WINDOW)
                .map(|_| world.recv_into(0, TAG, vec![0_u8; work.size]))
                .collect();
            for message in inbox {
                message.await?;
            }
            world.send(0, TAG, [0_u8; 1]).await?;
        }
    }
    let messages = work.iters.div_ceil(WINDOW) * WINDOW;
    let each = each_us(sim::now(&world) - start, messages);
    Ok(rank0_figure(rank, "rate_per_us", "messages/µs", 1.0 / each))
}

/// All ranks send to rank 0, which reports how evenly it served them: Jain's index of what each had sent when half had come.
pub(super) async fn flood(world: Comm, work: ScenarioWork) -> Result<RankFigures> {
    let (rank, size) = (world.rank(), world.size());
    if rank != 0 {
        for number in 0..work.iters {
            world
                .send(0, TAG, content(work.seed, rank, 0, number, work.size))
                .await?;
        }
        return Ok(RankFigures::new());
    }
    let total = work.iters * (size as u64 - 1);
    let mut counts = vec![0_u64; size];
    let mut at_half = Vec::new();
    let start = sim::now(&world);
    for nth in 0..total {
        let (bytes, status) = world.recv::<u8>(Source::Any, TAG).await?;
        let number = counts[status.source];
        assert_eq!(
            bytes,
            content(work.seed, status.source, 0, number, work.size),
            "message {number} of rank {}",
            status.source
        );
        counts[status.source] += 1;
        if nth == total / 2 {
            at_half = counts[1..].to_vec();
        }
    }
    let spent = sim::now(&world) - start;
    let goodput = (total * work.size as u64) as f64 / (spent.as_secs_f64() * 1e6).max(1e-9);
    let mut figures = rank0_figure(rank, "goodput_bytes_per_us", "bytes/µs", goodput);
    figures.extend(rank0_figure(rank, "fairness", "fairness", jain(&at_half)));
    Ok(figures)
}

/// Sends random messages to random ranks. Each rank can compute from the seed what it will receive.
pub(super) async fn random(world: Comm, work: ScenarioWork) -> Result<RankFigures> {
    let (rank, size) = (world.rank(), world.size());
    let mut sends = Vec::new();
    let mut sent = vec![0; size];
    for number in 0..work.iters {
        let (to, len) = message(work, rank, number, size);
        let bytes = content(work.seed, rank, to, sent[to], len);
        sent[to] += 1;
        sends.push(world.send(to, TAG, bytes));
    }
    for from in 0..size {
        let mine = (0..work.iters).map(|number| message(work, from, number, size));
        for (number, (_, len)) in (0..).zip(mine.filter(|&(to, _)| to == rank)) {
            let (bytes, _) = world.recv::<u8>(from, TAG).await?;
            let expected = content(work.seed, from, rank, number, len);
            assert_eq!(bytes, expected, "message {number} from rank {from}");
        }
    }
    for send in sends {
        send.await?;
    }
    Ok(RankFigures::new())
}

/// Sends one message from each rank to each rank, all at once.
pub(super) async fn connect(world: Comm, work: ScenarioWork) -> Result<RankFigures> {
    let (rank, size) = (world.rank(), world.size());
    let start = sim::now(&world);
    let others = || (1..size).map(|distance| (rank + distance) % size);
    let sends: Vec<_> = others()
        .map(|to| world.send(to, TAG, content(work.seed, rank, to, 0, work.size)))
        .collect();
    for from in others() {
        let (bytes, _) = world.recv::<u8>(from, TAG).await?;
        assert_eq!(
            bytes,
            content(work.seed, from, rank, 0, work.size),
            "from rank {from}"
        );
    }
    for send in sends {
        send.await?;
    }
    let spent = each_us(sim::now(&world) - start, 1);
    Ok(rank0_figure(
        rank,
        "all_connected_us",
        "all connected µs",
        spent,
    ))
}

/// Returns the destination and length of a rank's message: short ones, eager ones and some by rendezvous.
fn message(work: ScenarioWork, from: usize, number: u64, size: usize) -> (usize, usize) {
    let mut random = chance(work.seed, from, usize::MAX, number);
    let mut below = |limit: usize| {
        let number = random.within(0..limit as u64);
        usize::try_from(number).expect("less than a usize")
    };
    let to = below(size);
    let longest = [16, work.size + 1, 4096, 40_000][below(4)];
    (to, below(longest))
}

/// Returns the bytes of one message.
fn content(seed: u64, from: usize, to: usize, number: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    chance(seed, from, to, number).fill(&mut bytes);
    bytes
}

fn chance(seed: u64, from: usize, to: usize, number: u64) -> SeededRandom {
    let mut mixed = seed;
    for word in [from as u64, to as u64, number] {
        mixed = SeededRandom::new(mixed ^ word).bits();
    }
    SeededRandom::new(mixed)
}

/// Returns Jain's index: 1 if all counts are equal, 1/n if one has it all (Jain, Chiu, Hawe 1984).
fn jain(counts: &[u64]) -> f64 {
    let sum: f64 = counts.iter().map(|&count| count as f64).sum();
    let squares: f64 = counts.iter().map(|&count| (count as f64).powi(2)).sum();
    if squares == 0.0 {
        1.0
    } else {
        sum * sum / (counts.len() as f64 * squares)
    }
}

#[cfg(test)]
mod tests {
    use super::jain;

    #[test]
    fn fairness_is_one_for_equal_shares_and_one_nth_for_a_monopoly() {
        assert!((jain(&[5, 5, 5]) - 1.0).abs() < 1e-12);
        assert!((jain(&[9, 0, 0]) - 1.0 / 3.0).abs() < 1e-12);
        assert!((jain(&[]) - 1.0).abs() < 1e-12);
    }
}
