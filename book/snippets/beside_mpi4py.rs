//! Twelve tasks, each in as many lines as with mpi4py at most. The chapter has mpi4py's lines.

use ripstop::prelude::*;

use super::reference::compare;

mod hello {
    use std::process::ExitCode;

    // ANCHOR: hello
    #[ripstop::main]
    async fn main(world: ripstop::Comm) {
        println!("{} of {}", world.rank(), world.size());
    }
    // ANCHOR_END: hello

    #[test]
    fn it_is_a_whole_program() {
        let _is_a_program: fn() -> ExitCode = main;
    }
}

#[ripstop::test(ranks = 3)]
async fn values_go_around_a_ring(world: Comm) -> Result<()> {
    let (left, right) = neighbors(&world);
    let x = world.rank();
    // ANCHOR: ring
    let (_, x, _) = world.sendrecv_into(right, left, 7, x, 0).await?;
    // ANCHOR_END: ring
    assert_eq!(x, left);
    Ok(())
}

#[ripstop::test(ranks = 3)]
async fn ghosts_of_a_line_arrive_beside_a_computation(world: Comm) -> Result<()> {
    let (left, right) = neighbors(&world);
    let line = world.cart(&[world.size()], &[true]).await?;
    let mut u = vec![world.rank(); 12];
    let mut v = u.clone();
    let inside = |u: &[usize], v: &mut [usize]| v[2..10].copy_from_slice(&u[1..9]);
    // ANCHOR: halo
    let mut halo = Halo::new(&line, &[12], 1).await?;
    let in_flight = halo.start(&u);
    inside(&u, &mut v);
    in_flight.finish(&mut u).await?;
    // ANCHOR_END: halo
    assert_eq!((u[0], u[1], u[11]), (left, world.rank(), right));
    Ok(())
}

#[ripstop::test(ranks = 3)]
async fn a_field_is_summed_in_place(world: Comm) -> Result<()> {
    let mut field = vec![world.rank(); 5];
    // ANCHOR: all_reduce
    field = world.all_reduce(field, Sum).await?;
    // ANCHOR_END: all_reduce
    assert_eq!(field, [3; 5]);
    Ok(())
}

#[ripstop::test(ranks = 3)]
async fn blocks_of_any_length_go_to_all(world: Comm) -> Result<()> {
    let me = world.rank();
    let blocks: Vec<Vec<usize>> = (0..3).map(|to| vec![me; to]).collect();
    // ANCHOR: all_to_all
    let blocks = world.all_to_all_ragged(blocks).await?;
    // ANCHOR_END: all_to_all
    assert_eq!(blocks, [vec![0; me], vec![1; me], vec![2; me]]);
    Ok(())
}

#[ripstop::test(ranks = 3)]
async fn neighbors_put_into_each_others_windows(world: Comm) -> Result<()> {
    let (left, right) = neighbors(&world);
    let mut window = Window::<usize>::allocate(&world, 4).await?;
    let v = [world.rank(); 4];
    // ANCHOR: pscw
    let exposure = window.post(&[left])?;
    let access = exposure.start(&[right]).await?;
    access.put(right, 0, v).await?;
    access.complete().await?;
    let local = exposure.wait().await?;
    // ANCHOR_END: pscw
    assert_eq!(local, [left; 4]);
    window.free().await
}

#[ripstop::test(ranks = 3)]
async fn ranks_take_numbers_from_a_counter(world: Comm) -> Result<()> {
    let window = Window::<u64>::allocate(&world, 2).await?;
    let window = window.into_passive().await?;
    let v = [7];
    // ANCHOR: lock
    let lock = window.lock_all().await?;
    lock.put(0, 0, v).await?;
    lock.flush(0).await?;
    let number = lock.fetch_add(0, 1, 1).await?;
    lock.unlock().await;
    // ANCHOR_END: lock
    let sum = world.all_reduce(number, Sum).await?;
    assert_eq!(sum, 3);
    window.free().await
}

#[ripstop::test(ranks = 2)]
async fn a_message_tells_its_length(world: Comm) -> Result<()> {
    let peer = 1 - world.rank();
    world.send(peer, 9, vec![2.5_f32; 3]).detach();
    // ANCHOR: probe
    let message = world.probe(Source::Any, Tag::Any).await?;
    let (v, status) = message.recv::<f32>().await?;
    // ANCHOR_END: probe
    assert_eq!((v, status.source), (vec![2.5; 3], peer));
    Ok(())
}

#[ripstop::test(ranks = 3)]
async fn a_transpose_is_planned_once(world: Comm) -> Result<()> {
    let field = vec![world.rank(); 3 * 4];
    // ANCHOR: persistent
    let mut plan = world.all_to_all_plan::<usize>(4).await?;
    plan.send_mut().copy_from_slice(&field);
    let transposed = plan.run().await?;
    // ANCHOR_END: persistent
    assert_eq!(transposed, [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]);
    Ok(())
}

#[ripstop::test(ranks = 4)]
async fn ranks_are_neighbors_on_a_grid(world: Comm) -> Result<()> {
    // ANCHOR: cart
    let dims = Cart::dims_for(world.size(), 3);
    let cart = world.cart(&dims, &[true, true, false]).await?;
    let (low, high) = cart.shift(0, 1);
    // ANCHOR_END: cart
    assert_eq!(dims, [2, 2, 1]);
    let there = cart.coords_of(low.expect("a neighbor, because the grid wraps around"));
    assert_eq!((low, there[0]), (high, 1 - cart.coords()[0]));
    Ok(())
}

#[ripstop::test(ranks = 4)]
async fn ranks_of_a_row_have_a_communicator(world: Comm) -> Result<()> {
    let color = world.rank() / 2;
    // ANCHOR: split
    let row = world.split(color, 0).await?;
    // ANCHOR_END: split
    assert_eq!((row.size(), row.rank()), (2, world.rank() % 2));
    Ok(())
}

// ANCHOR: struct
#[derive(Clone, Copy, Wire)]
#[repr(C)]
struct Particle([f64; 3], u64);

async fn send(world: &Comm, right: usize, particles: Vec<Particle>) -> Result<Vec<Particle>> {
    Ok(world.send(right, 7, particles).await?)
}
// ANCHOR_END: struct

#[ripstop::test(ranks = 2)]
async fn particles_are_sent(world: Comm) -> Result<()> {
    let peer = 1 - world.rank();
    let inbox = world.recv::<Particle>(peer, 7);
    let sent = send(&world, peer, vec![Particle([0.5; 3], 7)]).await?;
    let (got, _) = inbox.await?;
    assert_eq!((got[0].0, got[0].1, sent.len()), ([0.5; 3], 7, 1));
    Ok(())
}

/// Returns the ranks before and after this one in a ring.
fn neighbors(world: &Comm) -> (usize, usize) {
    let (rank, size) = (world.rank(), world.size());
    ((rank + size - 1) % size, (rank + 1) % size)
}

#[test]
fn no_task_takes_more_lines_than_with_mpi4py() {
    let source = include_str!("beside_mpi4py.rs");
    let mut table = "| task | mpi4py | Ripstop |\n|---|---|---|\n".to_owned();
    let tasks = tasks();
    assert_eq!(tasks.len(), 12);
    for task in tasks {
        let (start, end) = (
            format!("// ANCHOR: {}\n", task.anchor),
            format!("// ANCHOR_END: {}\n", task.anchor),
        );
        let ours = lines(between(source, &start, &end));
        let theirs = lines(task.python);
        assert!(
            theirs > 0 && (1..=theirs).contains(&ours),
            "{}: {ours} and {theirs}",
            task.title
        );
        table += &format!("| {} | {theirs} | {ours} |\n", task.title);
    }
    compare("beside_mpi4py.md", &table);
}

/// A section of the chapter.
struct ChapterTask {
    title: &'static str,
    python: &'static str,
    anchor: &'static str,
}

fn tasks() -> Vec<ChapterTask> {
    let sections = include_str!("../src/beside_mpi4py.md")
        .split("\n## ")
        .skip(1);
    let task = |section: &'static str| ChapterTask {
        title: section.lines().next().unwrap_or_default(),
        python: between(section, "```python\n", "```"),
        anchor: between(section, "beside_mpi4py.rs:", "}}"),
    };
    sections.map(task).collect()
}

fn between<'t>(text: &'t str, start: &str, end: &str) -> &'t str {
    let (_, rest) = text.split_once(start).unwrap_or_else(|| panic!("{start}"));
    rest.split_once(end).unwrap_or_else(|| panic!("{end}")).0
}

/// Returns the number of lines with a word. A brace alone is none.
fn lines(code: &str) -> usize {
    let has_word = |line: &&str| line.contains(char::is_alphabetic);
    code.lines().filter(has_word).count()
}
