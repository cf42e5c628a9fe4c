//! Snippets of the chapter on collectives.

// ANCHOR: first
use ripstop::prelude::*;

#[ripstop::test(ranks = 4)]
async fn every_rank_gets_the_sum(world: Comm) -> Result<()> {
    let mine = vec![world.rank() as f64; 1000];
    let sums = world.all_reduce(mine, Sum).await?;
    assert!(sums.iter().all(|sum| *sum == 6.0));
    Ok(())
}
// ANCHOR_END: first

fn interior(field: &[f64]) -> f64 {
    field.iter().map(|x| x.sqrt()).sum()
}

#[ripstop::test(ranks = 3)]
async fn a_computation_hides_a_collective(world: Comm) -> Result<()> {
    let field = vec![2.0; 100_000];
    // ANCHOR: overlap
    let dots = world.all_reduce([1.0, 2.0, 3.0], Sum); // in flight from here on
    let energy = interior(&field); // no future is polled meanwhile
    let hidden = dots.is_done();
    let [a, b, c] = dots.await?;
    // ANCHOR_END: overlap
    let _ = hidden;
    assert_eq!([a, b, c], [3.0, 6.0, 9.0]);
    assert!(energy > 0.0);
    Ok(())
}

#[ripstop::test(ranks = 4)]
async fn work_on_a_block_begins_when_it_lands(world: Comm) -> Result<()> {
    let rows = vec![1.0_f64; 4 * 256];
    let mut total = 0.0;
    // ANCHOR: blocks
    let mut blocks = world.all_to_all(rows).blocks();
    while let Some(block) = blocks.next().await {
        let (_from, block) = block?;
        total += interior(&block);
    }
    // ANCHOR_END: blocks
    assert_eq!(total, 1024.0);
    Ok(())
}

#[ripstop::test(ranks = 2)]
async fn a_plan_is_made_once(world: Comm) -> Result<()> {
    // ANCHOR: plan
    let mut transpose = world.all_to_all_plan::<f64>(64).await?;
    for step in 0..10 {
        transpose.send_mut().fill(f64::from(step));
        let transposed = transpose.run().await?;
        assert_eq!(transposed[0], f64::from(step));
    }
    // ANCHOR_END: plan
    Ok(())
}

#[ripstop::test(ranks = 3)]
async fn vectors_of_any_lengths(world: Comm) -> Result<()> {
    // ANCHOR: ragged
    let leavers: Vec<Vec<u64>> = (0..world.size()).map(|to| vec![7; to]).collect();
    let arrivals: Vec<Vec<u64>> = world.all_to_all_ragged(leavers).await?;
    // ANCHOR_END: ragged
    assert!(arrivals.iter().all(|from| from.len() == world.rank()));
    Ok(())
}

#[ripstop::test(ranks = 3)]
async fn an_input_file_is_handed_to_all_ranks(
    world: Comm,
) -> std::result::Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let path = "Cargo.toml";
    // ANCHOR: bcast_ragged
    let bytes = match world.rank() {
        0 => std::fs::read(path)?,
        _ => Vec::new(), // the other ranks need not know the length
    };
    let bytes = world.bcast_ragged(0, bytes).await?;
    // ANCHOR_END: bcast_ragged
    assert_eq!(bytes, std::fs::read(path)?);
    Ok(())
}

#[ripstop::test(ranks = 6)]
async fn particles_go_to_all_ranks_around(world: Comm) -> Result<()> {
    // ANCHOR: graph
    let grid = world.cart(&[2, 3], &[true, true]).await?;
    let [y, x] = [0, 1].map(|dimension| grid.coords()[dimension].cast_signed());
    let corners_too = (-1..=1).flat_map(|dy| (-1..=1).map(move |dx| [y + dy, x + dx]));
    let mut around: Vec<usize> = corners_too.filter_map(|at| grid.rank_at(&at)).collect();
    around.sort_unstable();
    around.dedup(); // in a small grid, a rank is a neighbor at several sides
    around.retain(|rank| *rank != grid.rank());

    let graph = grid.graph(&around, &around).await?; // receive from these, send to these
    let leavers: Vec<Vec<u64>> = around.iter().map(|&to| vec![to as u64; to]).collect();
    let arrivals = graph.neighbor_all_to_all_ragged(leavers).await?; // `arrivals[i]` is of `around[i]`
    // ANCHOR_END: graph
    let mine = vec![grid.rank() as u64; grid.rank()];
    assert_eq!(arrivals, vec![mine; 5]);
    Ok(())
}

#[ripstop::test(ranks = 3)]
async fn counts_of_the_root_alone(world: Comm) -> Result<()> {
    // ANCHOR: rooted
    let is_root = world.rank() == 0;
    let counts: &[usize] = if is_root { &[1, 2, 3] } else { &[] };
    let cells = if is_root { vec![0.5; 6] } else { Vec::new() };
    let own = world.scatter_v_rooted(0, cells, counts).await?;
    let all = world.gather_v_rooted(0, own, counts).await?;
    // ANCHOR_END: rooted
    assert_eq!(all, is_root.then(|| vec![0.5; 6]));
    Ok(())
}

#[ripstop::test(ranks = 4)]
async fn the_same_bits_everywhere_and_always(world: Comm) -> Result<()> {
    // ANCHOR: reproducible
    let mine = if world.rank() == 0 { 1e16 } else { 0.1 };
    let sum = world.all_reduce(mine, ReproducibleSum).await?;
    // ANCHOR_END: reproducible
    assert_eq!(sum, 1e16);
    Ok(())
}

#[test]
fn cells_give_the_same_bits_on_any_number_of_ranks() {
    use ripstop::sim::Simulation;

    let cells: Vec<f64> = (1..=100).map(|cell| 1.0 / f64::from(cell)).collect();
    let expected: ExactSum<f64> = cells.iter().copied().collect();
    for ranks in [1, 3, 7] {
        let cells = cells.clone();
        let report = Simulation::new(ranks).run(move |world| {
            let per_rank = cells.len().div_ceil(world.size());
            let mine = cells.chunks(per_rank).nth(world.rank()).unwrap_or_default();
            let mine = mine.to_vec();
            async move { exact_sum(&world, mine).await }
        });
        for sum in report.expect("the simulation ends").results {
            let sum = sum.expect("all ranks live").expect("no rank fails");
            assert_eq!(sum.to_bits(), expected.value().to_bits(), "{ranks} ranks");
        }
    }
}

// ANCHOR: exact
use ripstop::collectives::reproducible::ExactSum;

async fn exact_sum(world: &Comm, cells: Vec<f64>) -> Result<f64> {
    let mine: ExactSum<f64> = cells.into_iter().collect();
    let words = world.all_gather(mine.into_words()).await?; // 35 words of each rank
    let mut sum = ExactSum::<f64>::new();
    for words in words.as_chunks().0 {
        sum.merge(&ExactSum::from_words(*words));
    }
    Ok(sum.value())
}
// ANCHOR_END: exact

#[ripstop::test(ranks = 4)]
async fn an_algorithm_by_name(world: Comm) -> Result<()> {
    // ANCHOR: tuned
    use ripstop::{Tuning, collectives::plan::AllReduce};
    let rings = world.tuned(Tuning::AUTO.all_reduce(AllReduce::Ring));
    let sums = rings.all_reduce(vec![1_u64; 1 << 16], Sum).await?;
    // ANCHOR_END: tuned
    assert_eq!(sums[0], 4);
    Ok(())
}
