//! Snippets of the how-to pages.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use ripstop::{Runtime, prelude::*, sim::Simulation};

#[ripstop::test(ranks = 3)]
async fn a_pipeline_passes_all_blocks_on(world: Comm) -> Result<()> {
    let mut finished = Vec::new();
    // ANCHOR: pipeline
    let line = world.cart(&[world.size()], &[false]).await?;
    let (before, behind) = line.shift(0, 1); // `None` at the ends
    let mut in_flight = None;
    for block in 0..8 {
        let (mut numbers, _) = line.recv::<u64>(before, 0).await?;
        if before.is_none() {
            numbers = vec![block; 1000]; // the first rank makes the blocks
        }
        numbers.iter_mut().for_each(|number| *number += 1); // the work of this stage
        if behind.is_none() {
            finished.push(numbers); // the last rank keeps them
        } else if let Some(sent) = in_flight.replace(line.send(behind, 0, numbers)) {
            sent.await?; // at most two blocks of a rank are in flight
        }
    }
    if let Some(sent) = in_flight {
        sent.await?;
    }
    // ANCHOR_END: pipeline
    let first: Vec<u64> = finished.iter().map(|numbers| numbers[0]).collect();
    let expected = if world.rank() == 2 { 3..11 } else { 0..0 };
    assert_eq!(first, expected.collect::<Vec<_>>());
    Ok(())
}

// ANCHOR: sparse
/// What the rows of one rank need of other ranks, to be multiplied by a vector that is shared out like the rows.
struct Neighbors {
    graph: Graph,
    /// The own elements that each neighbor needs, one list after the other, and the lengths of these lists.
    wanted: (Vec<usize>, Vec<usize>),
    /// How many elements come from each neighbor.
    counts: Vec<usize>,
}

impl Neighbors {
    /// `columns[rank]` has the columns with a nonzero element in this rank's rows, for the owner of each column.
    /// The columns of a rank begin at `first`.
    async fn new(world: &Comm, columns: &[Vec<usize>], first: usize) -> Result<Self> {
        let wanted = world.all_to_all_ragged(columns.to_vec()).await?;
        let used = |lists: &[Vec<usize>]| -> Vec<usize> {
            let ranks = (0..world.size()).filter(|rank| *rank != world.rank());
            ranks.filter(|rank| !lists[*rank].is_empty()).collect()
        };
        let (sources, destinations) = (used(columns), used(&wanted));
        let graph = world.graph(&sources, &destinations).await?;
        let lists = destinations.iter().map(|rank| &wanted[*rank]);
        let own = lists.clone().flatten().map(|column| column - first);
        Ok(Self {
            graph,
            wanted: (own.collect(), lists.map(Vec::len).collect()),
            counts: sources.iter().map(|rank| columns[*rank].len()).collect(),
        })
    }

    /// Returns the elements of other ranks that this rank's rows need: by rank, and in the order of `columns`.
    async fn ghosts(&self, own: &[f64]) -> Result<Vec<f64>> {
        let (wanted, lens) = &self.wanted;
        let elements: Vec<f64> = wanted.iter().map(|element| own[*element]).collect();
        let ghosts = self
            .graph
            .neighbor_all_to_all_v(elements, lens, &self.counts);
        Ok(ghosts.await?)
    }
}
// ANCHOR_END: sparse

#[ripstop::test(ranks = 3)]
async fn rows_of_a_sparse_matrix_get_what_they_need(world: Comm) -> Result<()> {
    // Each row needs the columns beside the diagonal and one that is half a matrix away. Rank 0 has 3 rows, rank 1 has 4, and
    // rank 2 has 5.
    let (firsts, n) = ([0_usize, 3, 7, 12], 12);
    let (first, end) = (firsts[world.rank()], firsts[world.rank() + 1]);
    let mut columns = vec![Vec::new(); world.size()];
    for row in first..end {
        for column in [row.wrapping_sub(1), row + 1, (row + n / 2) % n] {
            let owner = (0..3).find(|rank| (firsts[*rank]..firsts[rank + 1]).contains(&column));
            if let Some(owner) = owner
                && owner != world.rank()
                && !columns[owner].contains(&column)
            {
                columns[owner].push(column);
            }
        }
    }
    let neighbors = Neighbors::new(&world, &columns, first).await?;
    for step in [0.5, 1.5] {
        let own: Vec<f64> = (first..end).map(|row| row as f64 * step).collect();
        let ghosts = neighbors.ghosts(&own).await?;
        let expected = columns.iter().flatten().map(|column| *column as f64 * step);
        assert_eq!(ghosts, expected.collect::<Vec<_>>());
    }
    Ok(())
}

#[ripstop::test(ranks = 5)]
async fn two_models_exchange_their_fields(world: Comm) -> Result<()> {
    // ANCHOR: models
    let oceans = world.size() / 2; // the first ranks compute the ocean, the others the air
    let is_ocean = world.rank() < oceans;
    let model = world.split(u8::from(is_ocean), 0).await?; // a communicator for each model
    let model = model.named(if is_ocean { "ocean" } else { "air" });
    let other_root = if is_ocean { oceans } else { 0 }; // of the other model, in the world

    let mine = vec![world.rank() as f64; 1 + model.rank()]; // this rank's part of its model's field
    let parts = model.gather_ragged(0, mine).await?;
    let mut theirs = Vec::new();
    if let Some(parts) = parts {
        // The two roots exchange the whole fields over the world.
        (_, theirs, _) = world
            .sendrecv(other_root, other_root, 0, parts.concat())
            .await?;
    }
    let theirs = model.bcast_ragged(0, theirs).await?;
    // ANCHOR_END: models
    let ocean = vec![0.0, 1.0, 1.0];
    let air = vec![2.0, 3.0, 3.0, 4.0, 4.0, 4.0];
    assert_eq!(theirs, if is_ocean { air } else { ocean });
    Ok(())
}

#[ripstop::test(ranks = 4)]
async fn blocks_of_a_matrix_are_written_into_one_file(
    world: Comm,
) -> std::result::Result<(), Box<dyn std::error::Error + Send + Sync>> {
    use std::{env, fs, os::unix::fs::FileExt, process};

    let path = env::temp_dir().join(format!("ripstop-matrix-{}", process::id()));
    let file = fs::File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)?;
    let width = 7_usize;
    let (rows, columns) = ([0..2, 2..5], [0..4, 4..7]);
    let (rows, columns) = (
        rows[world.rank() / 2].clone(),
        columns[world.rank() % 2].clone(),
    );
    let cells = rows.clone().flat_map(|row| {
        columns
            .clone()
            .map(move |column| (row * 10 + column) as f64)
    });
    let block: Vec<f64> = cells.collect();
    // ANCHOR: block_rows
    // `block` has the cells of the range `rows` and the range `columns` of a matrix with rows of `width` numbers.
    for (row, cells) in rows.zip(block.chunks(columns.len())) {
        let before = row * width + columns.start; // so many numbers are before these in the file
        file.write_all_at(bytemuck::cast_slice(cells), 8 * before as u64)?;
    }
    // ANCHOR_END: block_rows
    world.barrier().await?;
    if world.rank() == 0 {
        let bytes = fs::read(&path)?;
        fs::remove_file(&path)?;
        let numbers: Vec<f64> = bytemuck::pod_collect_to_vec(&bytes);
        let expected =
            (0..5).flat_map(|row| (0..7).map(move |column| f64::from(row * 10 + column)));
        assert_eq!(numbers, expected.collect::<Vec<_>>());
    }
    Ok(())
}

// ANCHOR: must_stop
/// Returns true on all ranks if one of them was asked to stop, or has run for `limit`.
async fn must_stop(
    world: &Comm,
    asked: &AtomicBool,
    started: Instant,
    limit: Duration,
) -> Result<bool> {
    let stops = asked.load(Ordering::Relaxed) || started.elapsed() > limit;
    let any = world.all_reduce(u8::from(stops), Max).await?;
    Ok(any == 1)
}
// ANCHOR_END: must_stop

#[ripstop::test(ranks = 3)]
async fn all_ranks_stop_in_the_same_step(world: Comm) -> Result<()> {
    #[expect(clippy::disallowed_methods, reason = "a program's own clock")]
    let started = Instant::now();
    let limit = Duration::from_secs(3600);
    let asked = AtomicBool::new(false);
    let mut steps = 0;
    while !must_stop(&world, &asked, started, limit).await? {
        steps += 1;
        asked.store(world.rank() == 1 && steps == 5, Ordering::Relaxed);
    }
    assert_eq!(steps, 5);
    assert!(must_stop(&world, &asked, started, Duration::ZERO).await?);
    Ok(())
}

// ANCHOR: any_number
#[test]
fn the_answer_does_not_depend_on_the_number_of_ranks() {
    let alone = answers(1)[0];
    for ranks in 2..=7 {
        let same = answers(ranks).iter().all(|answer| *answer == alone);
        assert!(
            same,
            "{:?} on {ranks} ranks, {alone} on one",
            answers(ranks)
        );
    }
}

/// Returns what each of the ranks has computed.
fn answers(ranks: u32) -> Vec<f64> {
    let simulation = Simulation::new(ranks);
    let report = simulation.run(|world| async move { norm(&world).await });
    let results = report.expect("the ranks end").results.into_iter().flatten();
    results.map(|norm| norm.expect("no error")).collect()
}
// ANCHOR_END: any_number

/// Adds up numbers that are spread over the ranks, always in the order of the cells.
async fn norm(world: &Comm) -> Result<f64> {
    let cells = 1000;
    let share = |rank| rank * cells / world.size();
    let mine = share(world.rank())..share(world.rank() + 1);
    let squares: Vec<f64> = mine.map(|cell| (cell as f64).sqrt()).collect();
    let sums = world.all_gather_ragged(squares).await?;
    let all: Vec<f64> = sums.into_iter().flatten().collect();
    Ok(all.iter().sum::<f64>().sqrt())
}

// ANCHOR: session
/// What a program in another language holds between its calls.
struct Session {
    runtime: Runtime,
}

impl Session {
    fn start() -> Result<Self> {
        let runtime = Runtime::init()?; // joins the job, as `#[ripstop::main]` does
        Ok(Self { runtime })
    }

    /// Replaces each of the values by its sum over all ranks.
    fn add_up(&self, values: &mut [f64]) -> Result<()> {
        let world = self.runtime.world();
        let sums = world.block_on(world.all_reduce(values.to_vec(), Sum))?;
        values.copy_from_slice(&sums);
        Ok(())
    }

    fn end(self) -> Result<()> {
        self.runtime.close()
    }
}
// ANCHOR_END: session

#[test]
fn a_session_is_used_without_async() -> Result<()> {
    let session = Session::start()?;
    let mut values = [1.5, 2.5];
    session.add_up(&mut values)?;
    assert_eq!(values, [1.5, 2.5]);
    session.end()
}
