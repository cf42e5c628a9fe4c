//! The choice among the networks that the ranks of a job offer. It depends on nothing but their records.

use super::record::OfferRecord;

/// A network that the job does not use, because a rank does not offer it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "for messages to users")]
pub struct MissingOffer {
    /// Name of the network.
    pub network: &'static str,
    /// A rank that does not offer it.
    pub rank: usize,
    /// That rank's reason.
    pub reason: String,
    /// The lowest rank that offers the network, if any does.
    pub offered_by: Option<usize>,
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
    let offered = |record: &OfferRecord<'_>| matches!(record.offered(network), Some(Ok(_)));
    let rank = records.iter().position(|record| !offered(record))?;
    let reason = match records[rank].offered(network) {
        Some(Err(reason)) => reason,
        _ => "its build does not know this network",
    };
    Some(MissingOffer {
        network,
        rank,
        reason: reason.to_owned(),
        offered_by: records.iter().position(offered),
    })
}

#[cfg(test)]
mod tests {
    use super::{MissingOffer, OfferRecord, choose};
    use crate::offers::record::encode;

    const NETWORKS: [&str; 3] = ["verbs", "portals", "tcp"];

    /// Returns the record of a rank that offers some networks, written like `v-t`.
    fn record(offers: &str) -> Vec<u8> {
        let networks = NETWORKS.into_iter().zip(offers.bytes());
        let networks = networks.map(|(name, offer)| {
            let address = if offer == b'-' {
                Err("no device")
            } else {
                Ok(vec![offer])
            };
            (name, address)
        });
        encode(networks.collect::<Vec<_>>().into_iter())
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
        let offer = |network, rank, offered_by| MissingOffer {
            network,
            rank,
            reason: "no device".to_owned(),
            offered_by,
        };
        let expected = [offer("verbs", 2, Some(0)), offer("portals", 0, None)];
        assert_eq!(missing, expected);
    }

    #[test]
    fn a_network_that_another_build_lacks_is_not_chosen() {
        let all = record("vpt");
        let old = encode([("tcp", Ok(vec![1]))].into_iter());
        let records = [&all, &old].map(|bytes| OfferRecord::decode(bytes).unwrap());
        let (at, missing) = choose(&NETWORKS, &records);
        assert_eq!((at, missing.len()), (Some(2), 2));
        assert!(missing[0].reason.contains("does not know"), "{missing:?}");
    }
}
