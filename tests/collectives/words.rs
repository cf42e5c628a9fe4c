//! If two ranks call different collectives, the error contains both calls.

use std::sync::{Arc, Mutex};

use ripstop::{Error, Runtime, prelude::*};

use crate::ranks;

/// A call of a rank on a communicator.
type Work = for<'a> fn(&'a Comm) -> std::pin::Pin<Box<dyn Future<Output = Result<()>> + Send + 'a>>;

macro_rules! work {
    (|$comm:ident| $body:expr) => {
        |$comm| Box::pin(async move { $body })
    };
}

/// Returns each rank's error.
fn ends(size: u32, settings: &[(&str, &str)], work: Work) -> Vec<Option<Error>> {
    let ends = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&ends);
    ranks::run(size, settings, move |runtime: Runtime| {
        let world = runtime.world();
        let end = runtime.block_on(work(&world)).err();
        kept.lock().unwrap().push((world.rank(), end));
    });
    let mut ends = std::mem::take(&mut *ends.lock().unwrap());
    ends.sort_by_key(|(rank, _)| *rank);
    ends.into_iter().map(|(_, end)| end).collect()
}

#[test]
fn both_calls_are_told_with_roots_types_counts_operators_and_lines() {
    let both = |work| {
        let ends = ends(2, &[], work);
        ends.into_iter()
            .map(|end| end.expect("they differ").to_string())
    };
    let file = "at tests/collectives/words.rs:";
    for text in both(work!(|comm| {
        if comm.rank() == 0 {
            comm.all_reduce([1.0_f64; 3], Sum).await?;
        } else {
            comm.barrier().await?;
        }
        Ok(())
    })) {
        let first = format!("rank 0 calls all_reduce (3 f64, Sum) {file}");
        let second = format!("rank 1 calls barrier {file}");
        assert!(text.contains(&first) && text.contains(&second), "{text}");
    }
    // The error names the call that differed, and not the one that detected it.
    for text in both(work!(|comm| {
        comm.bcast(comm.rank(), [7_u32; 5]).await?;
        comm.barrier().await
    })) {
        let first = format!("rank 0 calls bcast (root 0, 5 u32) {file}");
        let second = format!("rank 1 calls bcast (root 1, 5 u32) {file}");
        assert!(text.contains(&first) && text.contains(&second), "{text}");
    }
}
