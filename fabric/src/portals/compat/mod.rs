//! Message layouts of other libraries over Portals, for comparison with the same driver, the same library and the same costs per
//! byte.
//!
//! - **pscom** has buffers for each peer, each a list entry that takes one message, and no flow control. A message that finds no
//!   entry is dropped, and its sender puts it again immediately (`buffers`, `baseline`).
//! - **MPC** has blocks that all peers share, like the slabs of this driver, but smaller and more of them. A job that runs out of
//!   blocks fails.

mod baseline;
pub(super) mod buffers;
mod variables;

pub use self::variables::{PscomLayout, PscomVariable};

/// Message layouts.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BaselineLayout {
    /// The layout of pscom4portals.
    Pscom(PscomLayout),
    /// The layout of MPC: 64 blocks of 64 KiB.
    Mpc,
}

impl BaselineLayout {
    /// Returns the layout of this name, `pscom` or `mpc`, or `None` for other names. The `PSP_` variables configure the layout of
    /// pscom.
    ///
    /// # Errors
    /// `InvalidInput` for a variable with a wrong value, which names its range.
    pub fn named(
        name: &str,
        variables: impl IntoIterator<Item = (String, String)>,
    ) -> std::io::Result<Option<Self>> {
        Ok(match name {
            "pscom" => Some(Self::Pscom(PscomLayout::from_variables(variables)?)),
            "mpc" => Some(Self::Mpc),
            _ => None,
        })
    }

    /// Returns the name of the layout.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Pscom(_) => "pscom",
            Self::Mpc => "mpc",
        }
    }

    pub(super) const fn pscom(&self) -> Option<&PscomLayout> {
        match self {
            Self::Pscom(pscom) => Some(pscom),
            Self::Mpc => None,
        }
    }
}

/// Number of MPC's blocks, their bytes, and the longest body of a message in one.
pub(super) const MPC_BLOCKS: usize = 64;
pub(super) const MPC_BLOCK_LEN: usize = 64 << 10;
pub(super) const MPC_BODY_MAX: usize = 8192;
