//! A job of one rank without peers. Like in other jobs, a put can be read only after the next fence.

use std::collections::BTreeMap;

use super::{Boot, BootError, Exchange, Node, check_key, check_value};

pub(super) fn boot() -> Boot {
    Boot {
        rank: 0,
        size: 1,
        node: Node::only(1),
        exchange: Box::new(SingletonExchange::default()),
        found: "singleton",
    }
}

#[derive(Debug, Default)]
struct SingletonExchange {
    staged: BTreeMap<String, String>,
    published: BTreeMap<String, String>,
    over: bool,
}

impl SingletonExchange {
    fn check_open(&self) -> Result<(), BootError> {
        if self.over {
            Err(BootError::Over)
        } else {
            Ok(())
        }
    }
}

impl Exchange for SingletonExchange {
    fn put(&mut self, key: &str, value: &str) -> Result<(), BootError> {
        self.check_open()?;
        check_key(key)?;
        check_value(key, value)?;
        self.staged.insert(key.to_owned(), value.to_owned());
        Ok(())
    }

    fn fence(&mut self) -> Result<(), BootError> {
        self.check_open()?;
        self.published.append(&mut self.staged);
        Ok(())
    }

    fn get(&mut self, _from: u32, key: &str) -> Result<Option<String>, BootError> {
        self.check_open()?;
        check_key(key)?;
        Ok(self.published.get(key).cloned())
    }

    fn abort(&mut self, _code: i32, _why: &str) {
        self.over = true;
    }

    fn finalize(&mut self) -> Result<(), BootError> {
        self.over = true;
        Ok(())
    }
}
