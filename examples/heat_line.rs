//! Heat on a ring of cells, of which each rank has some: the ghost cells cross while the inner cells are computed.
//!
//!     ripstop run -n 4 --example heat_line
#![expect(clippy::print_stdout, reason = "it is what the program is for")]

use ripstop::prelude::*;

const CELLS: usize = 100; // of each rank
const STEPS: usize = 200;

#[ripstop::main]
async fn main(world: Comm) -> Result<()> {
    let line = world.cart(&[world.size()], &[true]).await?;
    let (Some(left), Some(right)) = line.shift(0, 1) else {
        unreachable!("a ring has no ends")
    };
    let mut heat = vec![0.0; CELLS + 2]; // with one ghost cell at each end
    if line.rank() == 0 {
        heat[1] = 1.0;
    }
    for _step in 0..STEPS {
        let from_left = line.recv_into(left, 0, [0.0]);
        let from_right = line.recv_into(right, 1, [0.0]);
        let to_right = line.send(right, 0, [heat[CELLS]]);
        let to_left = line.send(left, 1, [heat[1]]);
        let mut next = heat.clone();
        // Meanwhile, the cells that need no ghosts.
        for (cell, new) in next.iter_mut().enumerate().take(CELLS).skip(2) {
            *new = flow(&heat, cell);
        }
        ([heat[0]], _) = from_left.await?;
        ([heat[CELLS + 1]], _) = from_right.await?;
        for cell in [1, CELLS] {
            next[cell] = flow(&heat, cell);
        }
        to_right.await?;
        to_left.await?;
        heat = next;
    }
    let mine: f64 = heat[1..=CELLS].iter().sum();
    let total = line.all_reduce(mine, Sum).await?;
    if line.rank() == 0 {
        println!("total heat {total:.6} on {} ranks", line.size());
    }
    assert!((total - 1.0).abs() < 1e-9, "heat is neither made nor lost");
    Ok(())
}

fn flow(heat: &[f64], cell: usize) -> f64 {
    heat[cell] + 0.25 * (heat[cell - 1] - 2.0 * heat[cell] + heat[cell + 1])
}
