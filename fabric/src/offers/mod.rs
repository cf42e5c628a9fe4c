//! What each rank of a job can do, and the network that all ranks choose by it.
//!
//! With `RIPSTOP_FABRIC=auto`, a job of several nodes takes the network with the shortest latency that all of its ranks offer:
//!
//! 1. [`NetworkOffers::open`] prepares every network that can run here, and keeps the reason for every other one.
//! 2. The rank publishes [`NetworkOffers::record`] where it would publish the address in one network.
//! 3. [`NetworkOffers::choose`] chooses by the records of all ranks. All ranks have the same records, so they choose the same.
//!
//! The choice is not a [`PreparedEndpoint`], because a prepared endpoint has capabilities, which depend on the choice.

mod choice;
mod record;
#[cfg(test)]
mod tests;

use std::{fmt::Write, io};

use self::record::{LinkAddress, OfferRecord};
pub use self::{choice::MissingOffer, record::RECORD_MAX};
use crate::{
    driver::{PreparedEndpoint, WorldRank},
    provider::{DriverEndpoint, OpenRequest, Provider},
};

/// The networks that a rank offers to its job, each prepared.
///
/// They are closed when this is dropped.
#[derive(Debug)]
pub struct NetworkOffers {
    /// In the order of preference.
    networks: Vec<NetworkOffer>,
}

#[derive(Debug)]
struct NetworkOffer {
    provider: &'static dyn Provider,
    found: Result<PreparedNetwork, WithheldOffer>,
}

#[derive(Debug)]
struct PreparedNetwork {
    endpoint: Box<dyn PreparedEndpoint>,
    notices: Vec<String>,
}

/// A network that this rank does not offer.
#[derive(Clone, Debug)]
#[expect(clippy::exhaustive_structs, reason = "for messages to users")]
pub struct WithheldOffer {
    /// Name of the network.
    pub network: &'static str,
    /// Sentence about why it cannot run here.
    pub reason: String,
    /// True if users expect the network to work: it passed its check, or one of its settings is set.
    pub is_unexpected: bool,
}

/// The network that all ranks chose. It is not connected yet.
#[derive(Debug)]
#[expect(clippy::exhaustive_structs, reason = "the caller takes it apart")]
pub struct ChosenNetwork {
    /// Provider of the network.
    pub provider: &'static dyn Provider,
    /// This rank's end of the network.
    pub endpoint: Box<dyn PreparedEndpoint>,
    /// Addresses of all ranks in the network, for [`PreparedEndpoint::connect`].
    pub addresses: Vec<Vec<u8>>,
    /// Sentences for the log. All ranks of a node get the same ones.
    pub notices: Vec<String>,
    /// Networks that were preferred to this one, and are missing on some rank.
    pub missing: Vec<MissingOffer>,
}

impl NetworkOffers {
    /// Prepares the networks that can run here. `providers` are in the order of preference, and `explain` makes an error of the
    /// system a sentence for users.
    pub fn open(
        providers: &[&'static dyn Provider],
        request: &OpenRequest<'_>,
        explain: impl Fn(io::Error) -> String,
    ) -> Self {
        let offer = |provider: &&'static dyn Provider| NetworkOffer {
            provider: *provider,
            found: prepare(*provider, request, &explain),
        };
        Self {
            networks: providers.iter().map(offer).collect(),
        }
    }

    /// Returns what this rank publishes: its address in each network, or why it does not offer the network.
    #[must_use]
    pub fn record(&self) -> Vec<u8> {
        let networks = self.networks.iter();
        let addresses: Vec<_> = networks.clone().map(NetworkOffer::address).collect();
        let offers = networks.zip(&addresses).map(|(network, address)| {
            let link = network.found.as_ref().map(|prepared| LinkAddress {
                bytes: address,
                kind: prepared.endpoint.link_kind(),
            });
            (
                network.provider.name(),
                link.map_err(|withheld| withheld.reason.as_str()),
            )
        });
        record::encode(&offers.collect::<Vec<_>>())
    }

    /// Returns the networks that this rank does not offer.
    pub fn withheld(&self) -> impl Iterator<Item = &WithheldOffer> {
        let networks = self.networks.iter();
        networks.filter_map(|network| network.found.as_ref().err())
    }

    /// Chooses the first network that all ranks offer, and closes the others. `records` has one entry per rank, in rank order,
    /// and includes this rank. `called` returns how errors call a rank.
    ///
    /// # Errors
    /// The ranks have no network in common, or a rank has published something else. The text says what to do.
    pub fn choose(
        self,
        rank: WorldRank,
        records: &[Vec<u8>],
        called: impl Fn(WorldRank) -> String,
    ) -> Result<ChosenNetwork, String> {
        let records = decoded(records, &called)?;
        let names: Vec<_> = self
            .networks
            .iter()
            .map(|one| one.provider.name())
            .collect();
        let (at, missing) = choice::choose(&names, &records);
        let missing = self.with_own_reasons(rank, missing);
        let Some(at) = at else {
            return Err(nothing_in_common(&missing, &called));
        };
        let name = names[at];
        let network = self.networks.into_iter().nth(at);
        // This rank's own record is among those of all ranks, unless the board or the launcher garbled it.
        let Some((provider, Ok(prepared))) = network.map(|one| (one.provider, one.found)) else {
            return Err(format!(
                "{} has published that it offers {name}, which is not true: {REPORT}",
                called(rank)
            ));
        };
        let addresses = records.iter().filter_map(|record| record.offered(name));
        let addresses =
            addresses.filter_map(|offered| offered.ok().map(|link| link.bytes.to_vec()));
        Ok(ChosenNetwork {
            provider,
            endpoint: prepared.endpoint,
            addresses: addresses.collect(),
            notices: prepared.notices,
            missing,
        })
    }

    /// Names this rank for the networks that it does not offer itself, because only this rank has the whole reason.
    fn with_own_reasons(&self, rank: WorldRank, missing: Vec<MissingOffer>) -> Vec<MissingOffer> {
        let own = |mut offer: MissingOffer| {
            let withheld = self.withheld().find(|own| own.network == offer.network);
            if let Some(withheld) = withheld {
                offer.rank = rank;
                offer.reason.clone_from(&withheld.reason);
            }
            offer
        };
        missing.into_iter().map(own).collect()
    }
}

impl NetworkOffer {
    /// Returns this rank's address in the network; it is empty if the rank does not offer the network.
    fn address(&self) -> Vec<u8> {
        let prepared = self.found.as_ref();
        prepared.map_or_else(|_| Vec::new(), |prepared| prepared.endpoint.address())
    }
}

fn prepare(
    provider: &'static dyn Provider,
    request: &OpenRequest<'_>,
    explain: &impl Fn(io::Error) -> String,
) -> Result<PreparedNetwork, WithheldOffer> {
    let withheld = |reason: String, is_unexpected: bool| WithheldOffer {
        network: provider.name(),
        reason,
        is_unexpected,
    };
    let mut settings = provider.settings().iter();
    let is_wanted = settings.any(|setting| request.values.is_set(setting));
    let checked = provider.check(request.values);
    checked.map_err(|why| withheld(why, is_wanted))?;
    let opened = provider.open(request.clone());
    let opened = opened.map_err(|why| withheld(explain(why), true))?;
    match opened.endpoint {
        DriverEndpoint::Prepared(endpoint) => Ok(PreparedNetwork {
            endpoint,
            notices: opened.notices,
        }),
        DriverEndpoint::Ready(_) => Err(withheld("it has no addresses".to_owned(), true)),
    }
}

fn decoded(
    records: &[Vec<u8>],
    called: impl Fn(WorldRank) -> String,
) -> Result<Vec<OfferRecord<'_>>, String> {
    let unreadable = |rank: u32, why: &str| {
        let rank = called(WorldRank(rank));
        format!(
            "what {rank} has published about its networks cannot be read ({why}): set RIPSTOP_FABRIC to the same value on \
             all ranks, and run the same build of the program"
        )
    };
    let all = (0..).zip(records);
    all.map(|(rank, bytes)| OfferRecord::decode(bytes).map_err(|why| unreadable(rank, why)))
        .collect()
}

fn nothing_in_common(missing: &[MissingOffer], called: impl Fn(WorldRank) -> String) -> String {
    let mut text =
        "the ranks are on several nodes, or in containers that share no memory, and no network is offered by all of them"
            .to_owned();
    // The last network needs the least, so it is the one that users can most likely make work.
    for offer in missing.iter().rev() {
        // Writing to a string cannot fail.
        let _ = write!(
            text,
            "; {}: not by {} ({})",
            offer.network,
            called(offer.rank),
            offer.reason
        );
    }
    text + ": `ripstop info --fabrics` says on each node what can run there"
}

const REPORT: &str = "this is an error in Ripstop or in the launcher";
