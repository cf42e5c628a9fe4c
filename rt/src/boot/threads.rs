//! The ranks of a job as threads of one process: a shared table, and a barrier that fails when a rank leaves.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::{Boot, BootError, Exchange, Node, check_key, check_value};

/// Makes the `size` ranks of a job inside this process, rank 0 first, all on one node. Give each to one thread.
///
/// If a rank is dropped, finalized or aborted, the fences of the others fail instead of waiting forever.
#[must_use]
pub fn threads(size: u32) -> Vec<Boot> {
    let job = Arc::new(ThreadJob {
        size,
        table: Mutex::default(),
        completed: Condvar::new(),
    });
    let node = Node::only(size);
    let boot = |rank| Boot {
        rank,
        size,
        node: node.clone(),
        exchange: Box::new(ThreadExchange {
            job: Arc::clone(&job),
            rank,
            over: false,
        }),
        found: "threads",
    };
    (0..size).map(boot).collect()
}

#[derive(Debug)]
struct ThreadExchange {
    job: Arc<ThreadJob>,
    rank: u32,
    over: bool,
}

#[derive(Debug)]
struct ThreadJob {
    size: u32,
    table: Mutex<ExchangeTable>,
    completed: Condvar,
}

#[derive(Debug, Default)]
struct ExchangeTable {
    staged: BTreeMap<String, String>,
    published: BTreeMap<String, String>,
    /// Ranks that wait in the fence of this `round`.
    waiting: u32,
    round: u64,
    end: Option<ThreadJobEnd>,
}

/// Reason why no further fence can complete.
#[derive(Clone, Debug)]
enum ThreadJobEnd {
    Left { rank: u32 },
    Aborted { rank: u32, code: i32, why: String },
}

impl Exchange for ThreadExchange {
    fn put(&mut self, key: &str, value: &str) -> Result<(), BootError> {
        check_key(key)?;
        check_value(key, value)?;
        self.table()?
            .staged
            .insert(key.to_owned(), value.to_owned());
        Ok(())
    }

    fn fence(&mut self) -> Result<(), BootError> {
        let mut table = self.table()?;
        if let Some(end) = &table.end {
            return Err(end.clone().into()); // a fence can never be complete any more
        }
        let round = table.round;
        table.waiting += 1;
        if table.waiting == self.job.size {
            table.publish();
            self.job.completed.notify_all();
            return Ok(());
        }
        while table.round == round {
            if let Some(end) = &table.end {
                return Err(end.clone().into());
            }
            table = self
                .job
                .completed
                .wait(table)
                .unwrap_or_else(PoisonError::into_inner);
        }
        Ok(())
    }

    fn get(&mut self, _from: u32, key: &str) -> Result<Option<String>, BootError> {
        check_key(key)?;
        Ok(self.table()?.published.get(key).cloned())
    }

    fn abort(&mut self, code: i32, why: &str) {
        self.leave(ThreadJobEnd::Aborted {
            rank: self.rank,
            code,
            why: why.to_owned(),
        });
    }

    fn finalize(&mut self) -> Result<(), BootError> {
        self.leave(ThreadJobEnd::Left { rank: self.rank });
        Ok(())
    }
}

impl ThreadExchange {
    fn table(&self) -> Result<MutexGuard<'_, ExchangeTable>, BootError> {
        if self.over {
            Err(BootError::Over)
        } else {
            Ok(self.job.lock())
        }
    }

    fn leave(&mut self, end: ThreadJobEnd) {
        if !std::mem::replace(&mut self.over, true) {
            self.job.lock().end.get_or_insert(end);
            self.job.completed.notify_all();
        }
    }
}

impl Drop for ThreadExchange {
    fn drop(&mut self) {
        self.leave(ThreadJobEnd::Left { rank: self.rank });
    }
}

impl ThreadJob {
    /// Ignores poisoning: no code that can panic runs under the lock, and the table is consistent between any two
    /// statements.
    fn lock(&self) -> MutexGuard<'_, ExchangeTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ExchangeTable {
    fn publish(&mut self) {
        self.published.append(&mut self.staged);
        self.waiting = 0;
        self.round += 1;
    }
}

impl From<ThreadJobEnd> for BootError {
    fn from(end: ThreadJobEnd) -> Self {
        match end {
            ThreadJobEnd::Left { rank } => Self::RankGone { rank },
            ThreadJobEnd::Aborted { rank, code, why } => Self::Aborted { rank, code, why },
        }
    }
}
