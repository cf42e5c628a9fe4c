//! Opens the network that all ranks of the job choose, beside shared memory.

use ripstop_fabric::{
    offers::{ChosenNetwork, MissingOffer, NetworkOffers},
    registry::FabricSelection,
};

use super::{DriverParams, OpenedFabric, combined, open_error, refused, remedied};
use crate::{
    boot::{self, HostName},
    error::Result,
    group::WorldRank,
};

impl DriverParams<'_> {
    /// Opens the networks that can run here, and joins the job over the one that all ranks choose.
    ///
    /// Unlike [`join`](Self::join), this function waits for what all ranks offer, because the driver's capabilities depend on it.
    pub(super) fn open_chosen(mut self) -> Result<OpenedFabric> {
        let explain = |why| remedied(why).to_string();
        let networks = FabricSelection::networks();
        let offers = NetworkOffers::open(&networks, &self.request(true), explain);
        self.report_withheld(&offers);
        let boot = &mut self.joining;
        let note = HostName::own().with_address(&offers.record());
        self.board.leave_note(boot.on_node(), &note);
        let limit = self.settings.boot_timeout;
        let records = boot::collect_addresses(boot, self.board, limit);
        let records = records.and_then(|records| self.link.hosts.take_names(&records));
        let records = records.map_err(|error| {
            if let Some(reporter) = self.reporter {
                reporter.blame_lost(&error);
            }
            refused(error)
        })?;
        let rank = WorldRank(self.boot.rank);
        let chosen = offers.choose(rank, &records, |rank| self.called(rank));
        let chosen = chosen.map_err(refused)?;
        let unknown = || refused(format!("{:?} is no network of jobs", chosen.provider));
        let fabric = FabricSelection::combined_with(chosen.provider).ok_or_else(unknown)?;
        let why = chosen_because(fabric, &chosen);
        self.report_choice(&chosen, &why);
        let driver = chosen.endpoint.connect(&chosen.addresses);
        let driver = combined(self.combination(fabric), driver.map_err(open_error)?)?;
        self.joining.exchange.settle().map_err(refused)?;
        Ok(OpenedFabric { driver, why })
    }

    /// Returns what errors call a rank.
    fn called(&self, rank: WorldRank) -> String {
        self.link.hosts.called(rank)
    }

    /// Reports once per node which networks its ranks do not offer, although users expect them to work.
    fn report_withheld(&self, offers: &NetworkOffers) {
        if self.boot.on_node() != 0 {
            return;
        }
        for withheld in offers.withheld() {
            let (network, reason) = (withheld.network, &withheld.reason);
            if withheld.is_unexpected {
                tracing::warn!(target: "ripstop::fabric", "{network} is not offered to the job: {reason}");
            } else {
                tracing::debug!(target: "ripstop::fabric", "{network} is not offered to the job: {reason}");
            }
        }
    }

    /// Reports once per job which network was chosen, and warns of the ranks because of which a better one was not.
    fn report_choice(&self, chosen: &ChosenNetwork, why: &str) {
        self.report(&chosen.notices);
        if self.boot.rank != 0 {
            return;
        }
        tracing::info!(target: "ripstop::fabric", "{why}");
        for offer in &chosen.missing {
            let MissingOffer {
                network,
                rank,
                reason,
                offered_by,
            } = offer;
            if let Some(other) = offered_by.map(|other| self.called(other)) {
                tracing::warn!(
                    target: "ripstop::fabric",
                    "{network} is not used, although {other} offers it, because {} does not: {reason}",
                    self.called(*rank)
                );
            }
        }
    }
}

/// Returns the sentence about a chosen network. `ripstop info --fabrics` has the reasons why others are missing.
fn chosen_because(fabric: FabricSelection, chosen: &ChosenNetwork) -> String {
    let missing = chosen.missing.iter();
    let missing: Vec<_> = missing
        .map(|offer| format!("{} on rank {}", offer.network, offer.rank))
        .collect();
    let beside = match missing.is_empty() {
        true => String::new(),
        false => format!(" (missing: {})", missing.join(", ")),
    };
    format!(
        "{}: some ranks do not share memory, and {} is the fastest network that all offer{beside}",
        fabric.name(),
        chosen.provider.name()
    )
}
