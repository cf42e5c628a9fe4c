//! Offers the baselines to jobs that ask for one by its provider.

use std::io;

use ripstop_fabric::{
    portals::PortalsProvider,
    provider::{DriverValues, OpenRequest, OpenedDriver, Provider, ProviderReach},
};

use crate::{prepare::BaselineLayout, variables::PscomLayout};

/// Prepares a baseline. It reads the settings of the Portals driver.
#[derive(Clone, Copy, Debug)]
pub struct BaselineProvider {
    name: &'static str,
    /// Returns the layout, configured by the other library's own variables.
    layout: fn() -> io::Result<BaselineLayout>,
}

/// Provider of the layout of pscom4portals, which its `PSP_` variables configure.
pub static PSCOM: BaselineProvider = BaselineProvider {
    name: "pscom",
    layout: || {
        Ok(BaselineLayout::Pscom(PscomLayout::from_variables(
            variables(),
        )?))
    },
};

/// Provider of the layout of MPC.
pub static MPC: BaselineProvider = BaselineProvider {
    name: "mpc",
    layout: || Ok(BaselineLayout::Mpc),
};

impl Provider for BaselineProvider {
    fn name(&self) -> &'static str {
        self.name
    }

    fn summary(&self) -> &'static str {
        "messages over Portals as another library lays them out"
    }

    fn reach(&self) -> ProviderReach {
        ProviderReach::Job
    }

    fn check(&self, values: &DriverValues) -> Result<String, String> {
        PortalsProvider.check(values)
    }

    fn open(&self, request: OpenRequest<'_>) -> io::Result<OpenedDriver> {
        let config = PortalsProvider::config(&request)?;
        (self.layout)()?.prepare(config).map(OpenedDriver::prepared)
    }
}

fn variables() -> impl Iterator<Item = (String, String)> {
    std::env::vars_os().filter_map(|(name, value)| {
        let value = value.to_string_lossy().into_owned();
        Some((name.into_string().ok()?, value))
    })
}
