//! The start of a Ripstop job over MPI: a rank's place, and a table of strings that all ranks share.

use std::{collections::BTreeMap, io};

use ripstop::boot::{Boot, BootError, Exchange, Node};

use crate::mpi::MpiLibrary;

/// Returns the place of this process in `MPI_COMM_WORLD`. Collective.
pub(crate) fn boot(mpi: MpiLibrary) -> io::Result<Boot> {
    let hosts: Vec<String> = mpi.leaders()?.iter().map(u32::to_string).collect();
    Ok(Boot {
        rank: mpi.rank,
        size: mpi.size,
        node: Node::of_hosts(mpi.rank, &hosts),
        exchange: Box::new(MpiExchange {
            mpi,
            staged: BTreeMap::new(),
            published: vec![BTreeMap::new(); mpi.size as usize],
        }),
        found: "mpi",
    })
}

#[derive(Debug)]
struct MpiExchange {
    mpi: MpiLibrary,
    /// Values that this rank has put since the last fence.
    staged: BTreeMap<String, String>,
    /// Values of each rank.
    published: Vec<BTreeMap<String, String>>,
}

impl Exchange for MpiExchange {
    fn put(&mut self, key: &str, value: &str) -> Result<(), BootError> {
        self.staged.insert(key.to_owned(), value.to_owned());
        Ok(())
    }

    fn fence(&mut self) -> Result<(), BootError> {
        let staged = std::mem::take(&mut self.staged).into_iter();
        // Keys and values have no spaces, and keys have no `=`.
        let words: Vec<String> = staged
            .map(|(key, value)| format!("{key}={value}"))
            .collect();
        let all = self.mpi.all_gather_bytes(words.join(" ").as_bytes());
        let all = all.map_err(|source| BootError::Io {
            doing: "exchanging addresses over MPI".to_owned(),
            source,
        })?;
        for (table, words) in self.published.iter_mut().zip(all) {
            let words = String::from_utf8_lossy(&words);
            let pairs = words.split(' ').filter_map(|word| word.split_once('='));
            table.extend(pairs.map(|(key, value)| (key.to_owned(), value.to_owned())));
        }
        Ok(())
    }

    fn get(&mut self, from: u32, key: &str) -> Result<Option<String>, BootError> {
        let table = self.published.get(from as usize);
        Ok(table.and_then(|table| table.get(key).cloned()))
    }

    fn abort(&mut self, code: i32, why: &str) {
        eprintln!("rank {} ends the job: {why}", self.mpi.rank);
        self.mpi.abort(code);
    }

    /// Does nothing: the program ends MPI when it needs it no more, before or after its Ripstop runtime.
    fn finalize(&mut self) -> Result<(), BootError> {
        Ok(())
    }
}
