//! Sends an enum with strings and maps, by `serde`.
//!
//!     ripstop run -n 2 --example values
#![expect(clippy::print_stdout, reason = "it is what the program is for")]

use std::collections::BTreeMap;

use ripstop::prelude::*;
use serde::{Deserialize, Serialize};

#[derive(Debug, PartialEq, Serialize, Deserialize)]
enum Request {
    Solve {
        name: String,
        weights: BTreeMap<String, f64>,
    },
    Stop,
}

#[ripstop::main]
async fn main(world: Comm) -> Result<()> {
    let (me, size) = (world.rank(), world.size());
    let weights = BTreeMap::from([("alpha".to_owned(), me as f64)]);
    let requests = [
        Request::Solve {
            name: format!("case {me}"),
            weights,
        },
        Request::Stop,
    ];
    let mut sent = Vec::new();
    for request in &requests {
        sent.push(world.send_value((me + 1) % size, 0, request));
    }
    loop {
        let (request, status) = world.recv_value::<Request>(Source::Any, 0).await?;
        println!("rank {me}: {request:?} from rank {}", status.source);
        if request == Request::Stop {
            break;
        }
    }
    for send in sent {
        send.await?;
    }
    Ok(())
}
