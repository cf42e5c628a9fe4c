//! Tasks make more tasks. A rank without tasks asks another rank for some, and a counter says when none is left anywhere.
//!
//!     ripstop run -n 4 --example task_tree
#![expect(clippy::print_stdout, reason = "it is what the program is for")]

// ANCHOR: program
use ripstop::prelude::*;

const ASK: u32 = 1;
const GIVE: u32 = 2;
const QUEENS: u32 = 8;

#[ripstop::main]
async fn main(world: Comm) -> Result<()> {
    let window = Window::<i64>::allocate(&world, 1).await?;
    let window = window.into_passive().await?;
    let open = window.lock_shared(0).await?; // how many tasks of all ranks are not done
    let mut stack = Vec::new();
    if world.rank() == 0 {
        open.fetch_add(0, 0, 1).await?;
        stack.push(QueensBoard::default());
    }
    world.barrier().await?; // no rank looks at the counter before the first task is counted

    let (mut tasks, mut solutions) = (0_u64, 0_u64);
    let mut others = (1..world.size()).cycle();
    loop {
        give_half(&world, &mut stack).await?;
        if let Some(board) = stack.pop() {
            let children = board.with_one_more_queen();
            // In one step: this task is done, and its children are open. Only then can a rank take one of them.
            open.fetch_add(0, 0, children.len().cast_signed() as i64 - 1)
                .await?;
            stack.extend(children);
            tasks += 1;
            solutions += u64::from(board.rows == QUEENS);
        } else if open.fetch_add(0, 0, 0).await? == 0 {
            break; // no rank has a task, and none is on its way
        } else if let Some(distance) = others.next() {
            stack = ask(&world, (world.rank() + distance) % world.size()).await?;
        }
    }
    open.unlock().await;

    // Ranks that have not seen the end yet may still ask, and get nothing, until all ranks are at the barrier.
    let asked = world.clone();
    let refusing = world.spawn(async move {
        while let Ok((_, status)) = asked.recv::<QueensBoard>(Source::Any, ASK).await {
            asked.send(status.source, GIVE, NOTHING).detach();
        }
    });
    world.barrier().await?;
    refusing.abort().await;

    let [tasks, solutions] = world.all_reduce([tasks, solutions], Sum).await?;
    if world.rank() == 0 {
        println!("{solutions} solutions, {tasks} tasks");
    }
    assert_eq!((solutions, tasks), (92, 2057));
    window.free().await
}

/// Gives half of the stack to each rank that has asked for tasks: the older half, because old tasks make the most others.
async fn give_half(world: &Comm, stack: &mut Vec<QueensBoard>) -> Result<()> {
    while let Some(request) = world.try_probe(Source::Any, ASK)? {
        let (_, status) = request.recv::<QueensBoard>().await?;
        let half: Vec<QueensBoard> = stack.drain(..stack.len() / 2).collect();
        world.send(status.source, GIVE, half).detach();
    }
    Ok(())
}

/// Asks a rank for tasks, and waits for its answer. Ranks that ask this one meanwhile get nothing.
async fn ask(world: &Comm, rank: usize) -> Result<Vec<QueensBoard>> {
    world.send(rank, ASK, NOTHING).detach();
    loop {
        let (boards, status) = world.recv::<QueensBoard>(Source::Any, Tag::Any).await?;
        if status.tag == GIVE {
            return Ok(boards);
        }
        world.send(status.source, GIVE, NOTHING).detach();
    }
}

const NOTHING: [QueensBoard; 0] = [];

/// A chess board with a queen in each of its first rows. A bit is a column of the next row that one of them attacks.
#[derive(Clone, Copy, Default, Wire)]
#[repr(C)]
struct QueensBoard {
    rows: u32,
    straight: u32,
    left: u32,
    right: u32,
}

impl QueensBoard {
    fn with_one_more_queen(self) -> Vec<Self> {
        let attacked = self.straight | self.left | self.right;
        let columns = (0..QUEENS).map(|column| 1 << column);
        let free = columns.filter(|column| attacked & column == 0);
        let child = |column: u32| Self {
            rows: self.rows + 1,
            straight: self.straight | column,
            left: (self.left | column) << 1,
            right: (self.right | column) >> 1,
        };
        free.map(child).collect()
    }
}
// ANCHOR_END: program
