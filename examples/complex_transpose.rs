//! Transposes a matrix of complex numbers whose rows are spread over the ranks, as a Fourier transform does.
//!
//!     ripstop run -n 4 --example complex_transpose
#![expect(clippy::print_stdout, reason = "it is what the program is for")]

// ANCHOR: program
use num_complex::Complex;
use ripstop::prelude::*;

#[ripstop::main]
async fn main(world: Comm) -> Result<()> {
    let (me, size) = (world.rank(), world.size());
    // This rank has one row, and rank `j` gets its element `j`.
    let row: Vec<_> = (0..size)
        .map(|column| Complex::new(me as f64, column as f64))
        .collect();
    let column: Vec<Complex<f64>> = world.all_to_all(row).await?;
    println!("rank {me} has column {column:?}");
    assert!(
        column
            .iter()
            .enumerate()
            .all(|(row, z)| *z == Complex::new(row as f64, me as f64))
    );
    let norm = world.all_reduce(column, Sum).await?;
    assert_eq!(norm[0].im, (size * (size - 1) / 2) as f64);
    Ok(())
}
// ANCHOR_END: program
