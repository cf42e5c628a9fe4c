//! MPI, as far as this program needs it: a thin layer over `mpi.c`.
#![expect(unsafe_code, reason = "calls C functions")]

use std::{
    ffi::{c_char, c_int},
    io,
};

/// MPI, initialized.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MpiLibrary {
    pub(crate) rank: u32,
    pub(crate) size: u32,
}

// SAFETY: these are the functions of `mpi.c`, which takes such arguments.
unsafe extern "C" {
    fn beside_init(rank: *mut c_int, size: *mut c_int) -> c_int;
    fn beside_leader(rank: c_int, leader: *mut c_int) -> c_int;
    fn beside_all_gather(mine: c_int, all: *mut c_int) -> c_int;
    fn beside_all_gather_bytes(
        mine: *const c_char,
        len: c_int,
        all: *mut c_char,
        lens: *const c_int,
        starts: *const c_int,
    ) -> c_int;
    fn beside_sum(mine: f64, sum: *mut f64) -> c_int;
    fn beside_abort(code: c_int);
    fn beside_finalize() -> c_int;
}

impl MpiLibrary {
    /// Initializes MPI for calls of several threads. Call once, before any other thread calls MPI.
    pub(crate) fn init() -> io::Result<Self> {
        let (mut rank, mut size) = (0, 0);
        // SAFETY: both results are numbers that outlive the call.
        match unsafe { beside_init(&raw mut rank, &raw mut size) } {
            0 => Ok(Self {
                rank: number(rank)?,
                size: number(size)?,
            }),
            2 => Err(io::Error::other(
                "this MPI library cannot be called by several threads (MPI_THREAD_MULTIPLE)",
            )),
            _ => Err(failed("MPI_Init_thread")),
        }
    }

    /// Returns for each rank the first rank that shares memory with it. Collective.
    pub(crate) fn leaders(self) -> io::Result<Vec<u32>> {
        let mut leader = 0;
        // SAFETY: the result is a number that outlives the call.
        check(
            unsafe { beside_leader(length(self.rank as usize)?, &raw mut leader) },
            "MPI_Comm_split_type",
        )?;
        self.all_gather(leader)?.into_iter().map(number).collect()
    }

    /// Returns the numbers of all ranks. Collective.
    fn all_gather(self, mine: c_int) -> io::Result<Vec<c_int>> {
        let mut all = vec![0; self.size as usize];
        // SAFETY: there is room for a number of each rank.
        check(
            unsafe { beside_all_gather(mine, all.as_mut_ptr()) },
            "MPI_Allgather",
        )?;
        Ok(all)
    }

    /// Returns the bytes of each rank. Collective.
    pub(crate) fn all_gather_bytes(self, mine: &[u8]) -> io::Result<Vec<Vec<u8>>> {
        let lens = self.all_gather(length(mine.len())?)?;
        let mut starts = Vec::new();
        let mut total: usize = 0;
        for &len in &lens {
            starts.push(length(total)?);
            total += number(len)? as usize;
        }
        let mut all = vec![0_u8; total];
        // SAFETY: `mine` has as many bytes as this rank said, `all` has room for what all ranks said, and each rank's place
        // in it begins where the one before ends.
        let gathered = unsafe {
            beside_all_gather_bytes(
                mine.as_ptr().cast(),
                length(mine.len())?,
                all.as_mut_ptr().cast(),
                lens.as_ptr(),
                starts.as_ptr(),
            )
        };
        check(gathered, "MPI_Allgatherv")?;
        let mut rest = &*all;
        let mut parts = Vec::new();
        for len in lens {
            let (part, behind) = rest.split_at(number(len)? as usize);
            parts.push(part.to_vec());
            rest = behind;
        }
        Ok(parts)
    }

    /// Returns the sum over all ranks. Collective.
    pub(crate) fn sum(self, mine: f64) -> io::Result<f64> {
        let mut sum = 0.0;
        // SAFETY: the result is a number that outlives the call.
        check(unsafe { beside_sum(mine, &raw mut sum) }, "MPI_Allreduce")?;
        Ok(sum)
    }

    /// Ends the job, if MPI has not ended.
    pub(crate) fn abort(self, code: i32) {
        // SAFETY: this may be called at any time after the initialization.
        unsafe { beside_abort(code) };
    }

    /// Ends MPI. Collective, and the last call of MPI in this process.
    pub(crate) fn finalize(self) -> io::Result<()> {
        // SAFETY: the caller makes no further call.
        check(unsafe { beside_finalize() }, "MPI_Finalize")
    }
}

fn check(code: c_int, call: &str) -> io::Result<()> {
    match code {
        0 => Ok(()),
        _ => Err(failed(call)),
    }
}

fn failed(call: &str) -> io::Error {
    io::Error::other(format!("{call} failed"))
}

fn number(value: c_int) -> io::Result<u32> {
    u32::try_from(value).map_err(io::Error::other)
}

fn length(value: usize) -> io::Result<c_int> {
    c_int::try_from(value).map_err(io::Error::other)
}
