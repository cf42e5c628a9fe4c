//! The choice among the networks that the ranks of a job offer. It depends on nothing but their records.

use super::record::OfferRecord;
use crate::driver::WorldRank;

/// A network that the job does not use, because a rank does not offer it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "for messages to users")]
pub struct MissingOffer {
    /// Name of the network.
    pub network: &'static str,
    /// A rank that does not offer it.
    pub rank: WorldRank,
    /// That rank's reason.
    pub reason: String,
    /// The lowest rank that offers the network, if any does.
    pub offered_by: Option<WorldRank>,
}

/// Returns the position of the first network that all ranks offer, and what is missing for each network before it.
///
/// `networks` is in the order of preference, and `records` are those of all ranks in the order of their numbers.
pub(super) fn choose(
    networks: &[&'static str],
    records: &[OfferRecord<'_>],
) -> (Option<usize>, Vec<MissingOffer>) {
    let mut missing = Vec::new();
    for (at, network) in networks.iter().enumerate() {
        match missing_offer(network, records) {
            Some(offer) => missing.push(offer),
            None => return (Some(at), missing),
        }
    }
    (None, missing)
}

fn missing_offer(network: &'static str, records: &[OfferRecord<'_>]) -> Option<MissingOffer> {
    let offers = |record: &OfferRecord<'_>| matches!(record.offered(network), Some(Ok(_)));
    let Some(rank) = records.iter().position(|record| !offers(record)) else {
        return missing_kind(network, records);
    };
    let reason = match records[rank].offered(network) {
        Some(Err(reason)) => reason,
        _ => "its build does not know this network",
    };
    Some(MissingOffer {
        network,
        rank: numbered(rank),
        reason: reason.to_owned(),
        offered_by: records.iter().position(offers).map(numbered),
    })
}

/// Returns the first rank whose link is of another kind than that of rank 0, if there is one. All ranks offer the network.
fn missing_kind(network: &'static str, records: &[OfferRecord<'_>]) -> Option<MissingOffer> {
    let offered = records.iter().map(|record| record.offered(network));
    let kinds = offered.map(|offered| offered.and_then(Result::ok).map(|address| address.kind));
    let kinds: Vec<&str> = kinds.collect::<Option<_>>()?;
    let first = kinds.first()?;
    let rank = kinds.iter().position(|kind| kind != first)?;
    Some(MissingOffer {
        network,
        rank: numbered(rank),
        reason: format!("its link is {}, and that of rank 0 is {first}", kinds[rank]),
        offered_by: Some(WorldRank(0)),
    })
}

fn numbered(rank: usize) -> WorldRank {
    WorldRank(u32::try_from(rank).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::{MissingOffer, OfferRecord, choose};
    use crate::{
        driver::WorldRank,
        offers::record::{LinkAddress, encode},
    };

    const NETWORKS: [&str; 3] = ["verbs", "portals", "tcp"];

    /// Returns the record of a rank that offers some networks, written like `v-t`. An upper-case letter is a link of another
    /// kind.
    fn record(offers: &str) -> Vec<u8> {
        let kind = |offer: u8| {
            if offer.is_ascii_uppercase() {
                "RoCE"
            } else {
                "InfiniBand"
            }
        };
        let networks = NETWORKS.into_iter().zip(offers.as_bytes().chunks(1));
        let networks = networks.map(|(name, bytes)| match bytes {
            b"-" => (name, Err("no device")),
            _ => (
                name,
                Ok(LinkAddress {
                    bytes,
                    kind: kind(bytes[0]),
                }),
            ),
        });
        encode(&networks.collect::<Vec<_>>())
    }

    fn chosen(ranks: &[&str]) -> (Option<usize>, Vec<MissingOffer>) {
        let records: Vec<_> = ranks.iter().map(|offers| record(offers)).collect();
        let records: Vec<_> = records
            .iter()
            .map(|bytes| OfferRecord::decode(bytes).unwrap())
            .collect();
        choose(&NETWORKS, &records)
    }

    #[test]
    fn the_cheapest_network_that_all_offer_is_chosen() {
        let chosen = |ranks: &[&str]| chosen(ranks).0;
        assert_eq!(chosen(&["vpt", "vpt"]), Some(0));
        assert_eq!(chosen(&["vpt", "-pt", "v-t"]), Some(2));
        assert_eq!(chosen(&["vp-", "-pt"]), Some(1));
        assert_eq!(chosen(&["--t"; 5]), Some(2));
        assert_eq!(chosen(&["v--", "--t"]), None);
        assert_eq!(chosen(&["vpt", "---"]), None);
    }

    #[test]
    fn every_network_that_was_passed_over_names_a_rank_without_it() {
        let (at, missing) = chosen(&["v-t", "v-t", "--t"]);
        assert_eq!(at, Some(2));
        let offer = |network, rank, offered_by: Option<u32>| MissingOffer {
            network,
            rank: WorldRank(rank),
            reason: "no device".to_owned(),
            offered_by: offered_by.map(WorldRank),
        };
        let expected = [offer("verbs", 2, Some(0)), offer("portals", 0, None)];
        assert_eq!(missing, expected);
    }

    #[test]
    fn a_network_whose_links_do_not_fit_together_is_not_chosen() {
        assert_eq!(chosen(&["V-t", "V-t"]).0, Some(0));
        let (at, missing) = chosen(&["v-t", "v-t", "V-t"]);
        assert_eq!((at, missing[0].rank), (Some(2), WorldRank(2)));
        let reason = "its link is RoCE, and that of rank 0 is InfiniBand";
        assert_eq!(
            (missing[0].reason.as_str(), missing[0].offered_by),
            (reason, Some(WorldRank(0)))
        );
        assert_eq!(chosen(&["v--", "V--"]).0, None);
    }

    #[test]
    fn a_network_that_another_build_lacks_is_not_chosen() {
        let all = record("vpt");
        let kind = "InfiniBand";
        let old = encode(&[("tcp", Ok(LinkAddress { bytes: &[1], kind }))]);
        let records = [&all, &old].map(|bytes| OfferRecord::decode(bytes).unwrap());
        let (at, missing) = choose(&NETWORKS, &records);
        assert_eq!((at, missing.len()), (Some(2), 2));
        assert!(missing[0].reason.contains("does not know"), "{missing:?}");
    }
}
