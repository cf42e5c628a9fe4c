//! Makes a number of calls of one kind: `cargo xtask bench instructions` counts their instructions under valgrind.
//!
//!     ripstop-instructions message 2000

use std::{env, error::Error, process::ExitCode};

use self::{
    alone::LONE_ROWS,
    pair::{PAIR_ROWS, TCP_ROWS},
};

mod alone;
mod pair;

/// Result of a row, whose error ends the program.
type RowResult = Result<(), Box<dyn Error + Send + Sync>>;

#[expect(clippy::print_stderr, reason = "it says what the program takes")]
fn main() -> ExitCode {
    let words: Vec<String> = env::args().skip(1).collect();
    let outcome = match words.as_slice() {
        [row, calls] => calls
            .parse()
            .map_err(|why| format!("{calls} is no number of calls: {why}").into())
            .and_then(|calls| run(row, calls)),
        _ => Err(format!("give a row and a number of calls; the rows are {}", names()).into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

fn run(row: &str, calls: usize) -> RowResult {
    if let Some((_, body)) = LONE_ROWS.iter().find(|(name, _)| *name == row) {
        return alone::run(*body, calls);
    }
    for (rows, fabric) in [(&PAIR_ROWS[..], "shm"), (&TCP_ROWS, "tcp")] {
        if let Some((_, body)) = rows.iter().find(|(name, _)| *name == row) {
            return pair::run(*body, fabric, calls);
        }
    }
    Err(format!("there is no row {row}; the rows are {}", names()).into())
}

fn names() -> String {
    let lone = LONE_ROWS.iter().map(|(name, _)| *name);
    let pairs = PAIR_ROWS.iter().chain(&TCP_ROWS).map(|(name, _)| *name);
    lone.chain(pairs).collect::<Vec<_>>().join(", ")
}
