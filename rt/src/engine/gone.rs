//! Null driver, which replaces the real one after the end. It accepts every command and completes none.

use std::io;

use ripstop_fabric::{
    driver::{Armed, Caps, Command, Driver, LocalRange, Post, Progress, Sink, WaitOn},
    memory::{Region, RemoteRegion},
};

/// The driver of a closed runtime.
#[derive(Debug)]
pub(super) struct Gone(pub(super) Caps);

impl Driver for Gone {
    fn caps(&self) -> &Caps {
        &self.0
    }

    fn post<'a>(&mut self, _: Command<'a>) -> Post<'a> {
        Post::Posted
    }

    fn progress(&mut self, _: u32, _: &mut dyn Sink) -> Progress {
        Progress::default()
    }

    fn arm(&mut self) -> Armed {
        Armed::Ready
    }

    fn wait_on(&self) -> Vec<WaitOn> {
        Vec::new()
    }

    fn allocate(&mut self, _: usize) -> io::Result<Region> {
        let sentence = "the runtime has been closed: allocate before that";
        Err(io::Error::new(io::ErrorKind::NotConnected, sentence))
    }

    fn expose(&mut self, _: LocalRange) -> Option<RemoteRegion> {
        None
    }
}
