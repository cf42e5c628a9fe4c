//! Worlds of baselines on the software Portals, and of Ripstop's own layout to compare them with.

use ripstop_fabric::{
    driver::{Driver, PreparedEndpoint},
    hook::{HookDriver, HookPlan},
    portals::{Portals, PortalsConfig},
};
use ripstop_portals_baselines::{BaselineLayout, PscomLayout};

use crate::copies::{Copy, Hired};

/// A message layout; `None` is that of Ripstop.
pub(crate) type Layout = Option<BaselineLayout>;

pub(crate) fn pscom() -> Layout {
    Some(BaselineLayout::Pscom(PscomLayout::default()))
}

pub(crate) const fn mpc() -> Layout {
    Some(BaselineLayout::Mpc)
}

pub(crate) const fn ours() -> Layout {
    None
}

pub(crate) fn pscom_world(ranks: u32) -> Vec<Box<dyn Driver>> {
    world(ranks, "sandia42", &pscom(), |config| config)
}

/// Returns ranks with two receive buffers of 1 KiB and nine send buffers, so that long messages are sent in pieces and many are
/// dropped at first.
pub(crate) fn little_pscom_world(ranks: u32) -> Vec<Box<dyn Driver>> {
    let little = PscomLayout {
        buffer_size: 1024,
        recvq_size: 2,
        sendq_size: 9,
        eq_size: 256,
        ..PscomLayout::default()
    };
    let little = Some(BaselineLayout::Pscom(little));
    world(ranks, "portails4", &little, |config| config)
}

pub(crate) fn mpc_world(ranks: u32) -> Vec<Box<dyn Driver>> {
    world(ranks, "portails4", &mpc(), |config| config)
}

pub(crate) fn world(
    ranks: u32,
    family: &'static str,
    layout: &Layout,
    mut change: impl FnMut(PortalsConfig) -> PortalsConfig,
) -> Vec<Box<dyn Driver>> {
    let prepared = (0..ranks).map(|_| {
        let copy = Copy::hire(family);
        let config = PortalsConfig {
            library: Some(copy.path()),
            // A reused copy may have the habits of another world.
            habits: Some(String::new()),
            ..change(PortalsConfig::default())
        };
        (prepare(layout, config), copy)
    });
    let prepared: Vec<_> = prepared.collect();
    let addresses: Vec<_> = prepared.iter().map(|(one, _)| one.address()).collect();
    let connect = |(one, copy): (Box<dyn PreparedEndpoint>, Copy)| {
        // The hook changes nothing. It makes the box a driver that can be hired.
        let driver = HookDriver::new(one.connect(&addresses).unwrap(), HookPlan::new());
        Box::new(Hired::new(driver, copy)) as Box<dyn Driver>
    };
    prepared.into_iter().map(connect).collect()
}

fn prepare(layout: &Layout, config: PortalsConfig) -> Box<dyn PreparedEndpoint> {
    match layout {
        Some(layout) => Box::new(layout.prepare(config).unwrap()),
        None => Box::new(Portals::prepare(config).unwrap()),
    }
}
