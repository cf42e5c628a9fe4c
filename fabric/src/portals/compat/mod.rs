//! How others lay messages out over Portals, to be compared with: the same driver, the same library, the same costs for a byte.
//!
//! **pscom** has buffers for each peer, each a list entry that is gone after one message, and no flow control: what finds no
//! entry is dropped, and its sender puts it again at once (`buffers`, `baseline`). **MPC** has blocks that all peers share, as
//! this driver has slabs, but smaller ones and more of them, and a job that runs out of them is at its end.

mod baseline;
pub(super) mod buffers;
mod variables;

pub use self::variables::{Pscom, PscomVariable};

/// Whose layout.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Compat {
    /// That of pscom4portals.
    Pscom(Pscom),
    /// That of MPC: 64 blocks of 64 KiB.
    Mpc,
}

impl Compat {
    /// The layout of this name, `pscom` or `mpc`; that of pscom as the `PSP_` variables say. `None` for other names.
    ///
    /// # Errors
    /// `InvalidInput` for a variable with a wrong value: named, with what it may be.
    pub fn named(
        name: &str,
        variables: impl IntoIterator<Item = (String, String)>,
    ) -> std::io::Result<Option<Self>> {
        Ok(match name {
            "pscom" => Some(Self::Pscom(Pscom::from_variables(variables)?)),
            "mpc" => Some(Self::Mpc),
            _ => None,
        })
    }

    /// Its name.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Pscom(_) => "pscom",
            Self::Mpc => "mpc",
        }
    }

    pub(super) const fn pscom(&self) -> Option<&Pscom> {
        match self {
            Self::Pscom(pscom) => Some(pscom),
            Self::Mpc => None,
        }
    }
}

/// Blocks of MPC, their bytes, and the longest body of a message in one.
pub(super) const MPC_BLOCKS: usize = 64;
pub(super) const MPC_BLOCK_LEN: usize = 64 << 10;
pub(super) const MPC_BODY_MAX: usize = 8192;
