//! Snippets of the chapter on types.

use ndarray::Array2;
use num_complex::Complex;
use ripstop::{Located, MinLoc, prelude::*};
use serde::{Deserialize, Serialize};

#[ripstop::test(ranks = 2)]
async fn complex_numbers(world: Comm) -> Result<()> {
    let peer = 1 - world.rank();
    // ANCHOR: complex
    let spectrum = vec![Complex::new(0.5, -1.0); 256];
    world.send(peer, 0, spectrum).await?;
    let (spectrum, _) = world.recv::<Complex<f64>>(peer, 0).await?;
    let total = world.all_reduce(spectrum, Sum).await?;
    // ANCHOR_END: complex
    assert_eq!(total[255], Complex::new(1.0, -2.0));
    Ok(())
}

#[ripstop::test(ranks = 2)]
async fn arrays(world: Comm) -> Result<()> {
    let peer = 1 - world.rank();
    // ANCHOR: ndarray
    let field = Array2::<f64>::ones((64, 32));
    let inbox = world.recv_into(peer, 0, Array2::<f64>::zeros((64, 32)));
    let field = world.send(peer, 0, field).await?; // the same array, of the same shape
    let (theirs, _) = inbox.await?;
    // ANCHOR_END: ndarray
    assert_eq!(theirs, field);
    Ok(())
}

// ANCHOR: value
#[derive(Debug, PartialEq, Serialize, Deserialize)]
enum Order {
    Solve { name: String, tolerance: f64 },
    Stop,
}
// ANCHOR_END: value

#[ripstop::test(ranks = 2)]
async fn values(world: Comm) -> Result<()> {
    let peer = 1 - world.rank();
    // ANCHOR: serde
    let name = "poisson".to_owned();
    let order = Order::Solve {
        name,
        tolerance: 1e-9,
    };
    let sent = world.send_value(peer, 0, &order);
    let (received, _) = world.recv_value::<Order>(peer, 0).await?;
    sent.await?;
    // ANCHOR_END: serde
    assert_eq!(received, order);
    assert_ne!(received, Order::Stop);
    Ok(())
}

#[ripstop::test(ranks = 3)]
async fn arrays_as_elements(world: Comm) -> Result<()> {
    let residual = [3.0, 1.0, 2.0][world.rank()];
    // ANCHOR: reduce
    let moments = world
        .all_reduce(vec![[1.0, residual, residual * residual]], Sum)
        .await?;
    let best = world
        .all_reduce(vec![Located::new(residual, world.rank() as u64)], MinLoc)
        .await?;
    println!("least: {} on rank {}", best[0].value(), best[0].at());
    // ANCHOR_END: reduce
    assert_eq!(moments, [[3.0, 6.0, 14.0]]);
    assert_eq!((best[0].value(), best[0].at()), (1.0, 1));
    Ok(())
}
