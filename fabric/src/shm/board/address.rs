//! How another process of the node finds the board.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    sync::atomic::Ordering::{AcqRel, Acquire, Relaxed},
};

use rustix::fs::OFlags;

use super::{
    super::{
        handover::{self, PATIENCE},
        namespaces::ProcessNamespaces,
        proc,
    },
    ATTACHED_AT, Board, COOKIE_AT, JOB_AT, MAGIC, MAGIC_AT, SIZE_AT, SIZE_MAX, VERSION, VERSION_AT,
    board_len,
};
use crate::memory::MemoryRegion;

impl Board {
    /// Returns what another process of this node needs to attach: less than 100 bytes, without spaces. It is valid as long as
    /// this value lives.
    #[must_use]
    pub fn address(&self) -> String {
        let (pid, fd) = (std::process::id(), self.region.as_fd().as_raw_fd());
        let ProcessNamespaces { user, pid: pids } = self.own_spaces();
        format!(
            "{pid}:{fd}:{}:{}:{:016x}:{:016x}:{user}:{pids}",
            self.region.len(),
            self.size,
            self.cookie,
            self.name(),
        )
    }

    /// Maps the board that a leader on this node created.
    ///
    /// # Errors
    /// A sentence that says what to do, if the address is invalid, the leader cannot be reached, or the memory there is not its
    /// board.
    pub fn attach(address: &str) -> io::Result<Self> {
        let Some(parsed) = BoardAddress::parse(address) else {
            return Err(refusal(io::ErrorKind::InvalidInput, address, NOT_ONE));
        };
        let spaces = ProcessNamespaces::own();
        let fd = parsed
            .open(spaces)
            .map_err(|why| refusal(why.kind(), address, &why.to_string()))?;
        let BoardAddress {
            len,
            size,
            cookie,
            name,
            ..
        } = parsed;
        let region = MemoryRegion::open(fd, len, true)
            .map_err(|why| refusal(why.kind(), address, &format!("it cannot be mapped: {why}")))?;
        let job = region.atomic_u32(JOB_AT).load(Relaxed);
        let found = Self {
            region,
            size,
            job,
            cookie,
            name,
            spaces,
            patience: PATIENCE,
        };
        match found.check() {
            Ok(()) => {
                found.check_namespaces(); // Before the creator sees that all ranks are here.
                found.region.atomic_u32(ATTACHED_AT).fetch_add(1, AcqRel);
                found.notify_waiters();
                Ok(found)
            }
            Err(what) => Err(refusal(
                io::ErrorKind::InvalidData,
                address,
                &format!("{OTHER_JOB} ({what})"),
            )),
        }
    }

    fn check(&self) -> Result<(), &'static str> {
        let same = [
            (
                self.region.len() >= board_len(self.size, self.job),
                "its length",
            ),
            (
                self.region.atomic_u64(MAGIC_AT).load(Acquire) == MAGIC,
                "its first bytes",
            ),
            (
                self.region.atomic_u32(VERSION_AT).load(Relaxed) == VERSION,
                "its version",
            ),
            (
                self.region.atomic_u32(SIZE_AT).load(Relaxed) == self.size,
                "the number of ranks",
            ),
            (
                self.region.atomic_u64(COOKIE_AT).load(Relaxed) == self.cookie,
                "the job's cookie",
            ),
        ];
        same.into_iter()
            .find(|(same, _)| !same)
            .map_or(Ok(()), |(_, what)| Err(what))
    }
}

struct BoardAddress {
    pid: u32,
    fd: u32,
    len: usize,
    size: u32,
    cookie: u64,
    /// Number from which the name of the creator's socket is made.
    name: u64,
    /// Namespaces of the creator.
    spaces: ProcessNamespaces,
}

impl BoardAddress {
    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split(':');
        let address = Self {
            pid: parts.next()?.parse().ok()?,
            fd: parts.next()?.parse().ok()?,
            len: parts.next()?.parse().ok()?,
            size: parts.next()?.parse().ok()?,
            cookie: u64::from_str_radix(parts.next()?, 16).ok()?,
            name: u64::from_str_radix(parts.next()?, 16).ok()?,
            spaces: ProcessNamespaces {
                user: parts.next()?.parse().ok()?,
                pid: parts.next()?.parse().ok()?,
            },
        };
        let sane =
            parts.next().is_none() && (1..=SIZE_MAX).contains(&address.size) && address.len > 0;
        sane.then_some(address)
    }

    /// Opens the board's descriptor under `/proc`, or asks the creator for it if it is hidden there.
    fn open(&self, own: ProcessNamespaces) -> io::Result<OwnedFd> {
        let hidden = if own.number_alike(self.spaces) {
            match proc::open_fd_of(self.pid, self.fd, OFlags::RDWR) {
                Err(why) if why.kind() == io::ErrorKind::PermissionDenied => why.to_string(),
                opened => {
                    let gone =
                        |why| io::Error::new(io::Error::kind(&why), format!("{GONE} ({why})"));
                    return opened.map_err(gone);
                }
            }
        } else {
            "its process has no number in this PID namespace".to_owned()
        };
        let maker = "the rank that made it";
        handover::board(self.name, self.cookie, PATIENCE)
            .map_err(|why| handover::unreached(&hidden, &why, own, self.spaces, maker))
    }
}

fn refusal(kind: io::ErrorKind, address: &str, why: &str) -> io::Error {
    io::Error::new(kind, format!("the node's board at {address:?}: {why}"))
}

const NOT_ONE: &str = "this is not an address (pid:fd:length:ranks:cookie:name:namespaces); start all ranks with one launcher";
const GONE: &str = "it cannot be opened; keep the leader alive until all are attached";
const OTHER_JOB: &str =
    "this is not the board of this job; run the same build of the program on all ranks";
