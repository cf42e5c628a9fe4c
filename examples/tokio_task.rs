//! A task of tokio serves the state of the job over TCP while the ranks communicate.
//!
//!     ripstop run -n 2 --example tokio_task
#![expect(clippy::print_stdout, reason = "it is what the program is for")]

// ANCHOR: program
use std::{
    error::Error,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use ripstop::prelude::{Collectives, Comm, Sum};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

#[ripstop::main(tokio)]
async fn main(world: Comm) -> Result<(), Box<dyn Error>> {
    let step = Arc::new(AtomicU64::new(0));
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let shown = Arc::clone(&step);
    let server = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await?;
        let text = format!("step {}\n", shown.load(Ordering::Relaxed));
        stream.write_all(text.as_bytes()).await
    });
    for _ in 0..10 {
        world.all_reduce([1.0], Sum).await?;
        step.fetch_add(1, Ordering::Relaxed);
    }
    let mut text = String::new();
    TcpStream::connect(address)
        .await?
        .read_to_string(&mut text)
        .await?;
    server.await??;
    println!(
        "rank {} of {} is at {}",
        world.rank(),
        world.size(),
        text.trim()
    );
    assert_eq!(text, "step 10\n");
    Ok(())
}
// ANCHOR_END: program
