//! Ripstop in a program that uses an MPI library, in the same processes: ranks are those of `MPI_COMM_WORLD`.
//!
//!     MPICC=mpicc cargo build -p beside_mpi
//!     mpirun -n 4 target/debug/beside_mpi
//!
//! The program ends MPI after both of its Ripstop runtimes; with `mpi-first` as its argument before them, and with `mpi-between`
//! between them.
#![cfg_attr(
    mpi,
    expect(clippy::print_stdout, reason = "it is what the program is for")
)]
#![expect(
    clippy::print_stderr,
    reason = "it says why the job ends, or how to build the program"
)]

#[cfg(mpi)]
mod exchange;
#[cfg(mpi)]
mod mpi;

#[cfg(not(mpi))]
fn main() -> std::process::ExitCode {
    eprintln!(
        "this program was built without MPI: set MPICC, as in `MPICC=mpicc cargo build -p beside_mpi`"
    );
    std::process::ExitCode::from(2)
}

#[cfg(mpi)]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mpi = mpi::MpiLibrary::init()?;
    let runtime = ripstop::Runtime::builder()
        .boot(exchange::boot(mpi)?)
        .init()?;
    let world = runtime.world();
    assert_eq!(
        (world.rank(), world.size()),
        (mpi.rank as usize, mpi.size as usize)
    );

    // A library of the program may have a runtime of its own.
    let of_library = ripstop::Runtime::builder()
        .boot(exchange::boot(mpi)?)
        .init()?;

    let total = runtime.block_on(heat(&world, mpi))?;
    of_library.block_on(ripstop::Collectives::barrier(&of_library.world()))?;
    if world.rank() == 0 {
        println!("ranks: {}, heat of all cells: {total:.6}", world.size());
    }
    match std::env::args().nth(1).as_deref() {
        Some("mpi-first") => {
            mpi.finalize()?;
            runtime.close()?;
            of_library.close()?;
        }
        Some("mpi-between") => {
            of_library.close()?;
            mpi.finalize()?;
            runtime.close()?;
        }
        _ => {
            runtime.close()?;
            of_library.close()?;
            mpi.finalize()?;
        }
    }
    Ok(())
}

/// Heat on a ring: Ripstop exchanges the edges, and MPI, which stands for a library such as PETSc, sums.
#[cfg(mpi)]
async fn heat(
    world: &ripstop::Comm,
    mpi: mpi::MpiLibrary,
) -> Result<f64, Box<dyn std::error::Error>> {
    use ripstop::{Collectives, Sum};

    let (rank, size) = (world.rank(), world.size());
    let (left, right) = ((rank + size - 1) % size, (rank + 1) % size);
    let mut cells = vec![0.0_f64; CELLS];
    cells[0] = 1.0 + rank as f64;
    let mut total = 0.0;
    for _ in 0..STEPS {
        let (from_left, from_right) = (world.recv::<f64>(left, 1), world.recv::<f64>(right, 2));
        let _to_right = world.send(right, 1, [cells[CELLS - 1]]);
        let _to_left = world.send(left, 2, [cells[0]]);
        // No future of Ripstop is polled while MPI waits: the agent carries its messages on.
        let of_mpi = mpi.sum(cells.iter().sum())?;
        let ((before, _), (behind, _)) = (from_left.await?, from_right.await?);
        let at = |cell: usize| match cell {
            0 => before[0],
            cell if cell > CELLS => behind[0],
            cell => cells[cell - 1],
        };
        cells = (1..=CELLS)
            .map(|cell| at(cell) + (at(cell - 1) - 2.0 * at(cell) + at(cell + 1)) / 4.0)
            .collect();
        total = world.all_reduce(cells.iter().sum::<f64>(), Sum).await?;
        assert!(
            (total - of_mpi).abs() < 1e-9 * total,
            "no heat is lost: {of_mpi}, then {total}"
        );
    }
    Ok(total)
}

#[cfg(mpi)]
const CELLS: usize = 100;
#[cfg(mpi)]
const STEPS: usize = 200;
