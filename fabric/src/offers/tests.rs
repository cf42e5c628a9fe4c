use std::{io, sync::Arc, time::Duration};

use super::{NetworkOffers, WithheldOffer, record::NETWORKS_MAX};
use crate::{
    counters::DriverStats,
    driver::{AbilitySummary, Caps, Driver, PreparedEndpoint, WakeSource, WorldRank},
    loopback::{LoopbackDriver, world},
    provider::{
        DriverSetting, DriverValues, JobPlace, OpenRequest, OpenedDriver, Provider, ProviderReach,
        parsing::text,
    },
    registry::FabricSelection,
    shm::{Board, BoardRanks, WakeMethod},
};

/// A network that can run here, cannot, or passes its check and cannot be opened.
struct FakeNetwork {
    name: &'static str,
    outcome: FakeOutcome,
    /// Each open endpoint has a clone.
    open: Arc<()>,
}

#[derive(Clone, Copy)]
enum FakeOutcome {
    Works,
    CheckFails,
    OpenFails,
    NeedsNoAddress,
}

use FakeOutcome::{CheckFails, NeedsNoAddress, OpenFails, Works};

impl FakeNetwork {
    /// Returns a network, which lives as long as the program because providers do.
    fn new(name: &'static str, outcome: FakeOutcome) -> &'static Self {
        Box::leak(Box::new(Self {
            name,
            outcome,
            open: Arc::default(),
        }))
    }

    fn open_endpoints(&self) -> usize {
        Arc::strong_count(&self.open) - 1
    }
}

impl Provider for FakeNetwork {
    fn name(&self) -> &'static str {
        self.name
    }

    fn summary(&self) -> &'static str {
        "nothing"
    }

    fn reach(&self) -> ProviderReach {
        ProviderReach::Job
    }

    fn settings(&self) -> &'static [&'static DriverSetting] {
        const SETTINGS: &[&DriverSetting] = &[&DEVICE];
        if self.name == "fast" { SETTINGS } else { &[] }
    }

    fn check(&self, _values: &DriverValues) -> Result<String, String> {
        match self.outcome {
            CheckFails => Err(format!("{} has no device", self.name)),
            _ => Ok("a device".to_owned()),
        }
    }

    fn open(&self, request: OpenRequest<'_>) -> io::Result<OpenedDriver> {
        let driver = world(1).remove(0);
        match self.outcome {
            Works => {}
            NeedsNoAddress => return Ok(OpenedDriver::ready(driver)),
            _ => return Err(io::Error::other("the device is busy")),
        }
        let prepared = FakeEndpoint {
            address: address(self.name, request.place.rank),
            driver,
            _open: Arc::clone(&self.open),
        };
        Ok(OpenedDriver::prepared(prepared))
    }
}

static DEVICE: DriverSetting = DriverSetting {
    name: "RIPSTOP_FAST_DEVICE",
    range: "a device",
    meaning: "the device of the network `fast`",
    default: "",
    accepts: text,
};

fn address(network: &str, rank: WorldRank) -> Vec<u8> {
    format!("{network} {rank}").into_bytes()
}

#[derive(Debug)]
struct FakeEndpoint {
    address: Vec<u8>,
    driver: LoopbackDriver,
    _open: Arc<()>,
}

impl PreparedEndpoint for FakeEndpoint {
    fn address(&self) -> Vec<u8> {
        self.address.clone()
    }

    fn caps(&self) -> &Caps {
        self.driver.caps()
    }

    fn wait_on(&self) -> Vec<WakeSource> {
        self.driver.wait_on()
    }

    fn abilities(&self) -> AbilitySummary {
        AbilitySummary::default()
    }

    fn connect(self: Box<Self>, _addresses: &[Vec<u8>]) -> io::Result<Box<dyn Driver>> {
        Ok(Box::new(self.driver))
    }
}

/// Opens what `rank` offers, with these values of settings.
fn offers(rank: u32, networks: &[&'static FakeNetwork], values: &DriverValues) -> NetworkOffers {
    let board = Board::create(1).unwrap();
    let ranks = vec![WorldRank(rank)];
    let request = OpenRequest {
        place: JobPlace {
            rank: WorldRank(rank),
            size: 8,
            node: BoardRanks { board, ranks },
            ranks_per_node: 1,
        },
        wake: WakeMethod::Futex,
        patience: Duration::from_secs(60),
        detect: None,
        single_copy: true,
        announces_ends: false,
        values,
        counters: Arc::new(DriverStats::default()),
    };
    let providers: Vec<&'static dyn Provider> = networks.iter().map(|one| *one as _).collect();
    NetworkOffers::open(&providers, &request, |why| format!("{why}: buy another"))
}

/// Opens what ranks offer, each its own networks, and returns this with all records.
fn job(ranks: &[&[&'static FakeNetwork]]) -> (Vec<NetworkOffers>, Vec<Vec<u8>>) {
    let open = |(rank, networks): (u32, &&[_])| offers(rank, networks, &DriverValues::default());
    let all: Vec<_> = (0..).zip(ranks).map(open).collect();
    let records = all.iter().map(NetworkOffers::record).collect();
    (all, records)
}

fn called(WorldRank(rank): WorldRank) -> String {
    format!("the {} rank", ["first", "second", "third"][rank as usize])
}

#[test]
fn all_ranks_choose_the_network_that_all_have_and_close_the_others() {
    let [fast, slow] =
        [("fast", Works), ("slow", Works)].map(|(name, how)| FakeNetwork::new(name, how));
    let broken = FakeNetwork::new("fast", CheckFails);
    let (all, records) = job(&[&[fast, slow], &[fast, slow], &[broken, slow]]);
    assert_eq!((fast.open_endpoints(), slow.open_endpoints()), (2, 3));
    let mut chosen = Vec::new();
    for (rank, offers) in (0..).map(WorldRank).zip(all) {
        let network = offers.choose(rank, &records, called).unwrap();
        assert_eq!(network.provider.name(), "slow");
        assert_eq!(network.endpoint.address(), address("slow", rank));
        let expected = [0, 1, 2].map(|rank| address("slow", WorldRank(rank)));
        assert_eq!(network.addresses, expected);
        let [missing] = network.missing.as_slice() else {
            panic!("{:?}", network.missing);
        };
        assert_eq!((missing.network, missing.rank), ("fast", WorldRank(2)));
        assert_eq!(missing.reason, "fast has no device");
        assert_eq!(missing.offered_by, Some(WorldRank(0)));
        chosen.push(network);
    }
    assert_eq!((fast.open_endpoints(), slow.open_endpoints()), (0, 3));
    drop(chosen);
    assert_eq!(slow.open_endpoints(), 0);
}

#[test]
fn the_first_network_is_taken_where_every_rank_has_it() {
    let [fast, slow] = ["fast", "slow"].map(|name| FakeNetwork::new(name, Works));
    let broken = FakeNetwork::new("slow", OpenFails);
    let (all, records) = job(&[&[fast, slow], &[fast, broken]]);
    for (rank, offers) in (0..).map(WorldRank).zip(all) {
        let network = offers.choose(rank, &records, called).unwrap();
        assert_eq!(network.provider.name(), "fast");
        assert!(network.missing.is_empty());
    }
    assert_eq!((fast.open_endpoints(), slow.open_endpoints()), (0, 0));
}

#[test]
fn ranks_without_a_common_network_hear_which_rank_lacks_which() {
    let [fast, slow] = ["fast", "slow"].map(|name| FakeNetwork::new(name, Works));
    let [no_fast, no_slow] =
        [("fast", OpenFails), ("slow", CheckFails)].map(|(name, how)| FakeNetwork::new(name, how));
    let (all, records) = job(&[&[fast, slow], &[fast, no_slow], &[no_fast, slow]]);
    for (rank, offers) in (0..).map(WorldRank).zip(all) {
        let why = offers.choose(rank, &records, called).unwrap_err();
        for part in [
            "fast: not by the third rank (the device is busy: buy another)",
            "slow: not by the second rank (slow has no device)",
            "ripstop info --fabrics",
        ] {
            assert!(why.contains(part), "{part} in: {why}");
        }
        assert!(why.find("slow: not by") < why.find("fast: not by"), "{why}");
    }
    assert_eq!((fast.open_endpoints(), slow.open_endpoints()), (0, 0));
}

#[test]
fn a_rank_tells_its_own_reason_in_full() {
    let network = FakeNetwork::new("slow", Works);
    let (mut all, _) = job(&[&[network]]);
    let reason = "x".repeat(300);
    all[0].networks[0].found = Err(WithheldOffer {
        network: "slow",
        reason: reason.clone(),
        is_unexpected: true,
    });
    let own = all[0].record();
    let why = all
        .remove(0)
        .choose(WorldRank(0), &[own], called)
        .unwrap_err();
    assert!(why.contains(&reason), "{why}");
}

#[test]
fn what_fails_is_unexpected_if_it_passed_its_check_or_was_configured() {
    let networks = [
        ("fast", CheckFails),
        ("second", OpenFails),
        ("third", NeedsNoAddress),
    ]
    .map(|(name, how)| FakeNetwork::new(name, how));
    let mut values = DriverValues::default();
    let withheld = |values: &DriverValues| -> Vec<_> {
        let offers = offers(0, &networks, values);
        let all = offers.withheld();
        all.map(|one| (one.network, one.is_unexpected)).collect()
    };
    let expected = |fast| [("fast", fast), ("second", true), ("third", true)];
    assert_eq!(withheld(&values), expected(false));
    values.set(&DEVICE, "mlx5_9").unwrap();
    assert_eq!(withheld(&values), expected(true));
}

#[test]
fn what_is_no_record_is_an_error_that_names_its_rank() {
    let fast = FakeNetwork::new("fast", Works);
    let (mut all, mut records) = job(&[&[fast], &[fast]]);
    records[1] = address("fast", WorldRank(1));
    let why = all
        .remove(0)
        .choose(WorldRank(0), &records, called)
        .unwrap_err();
    assert!(why.contains("what the second rank has published"), "{why}");
    assert!(why.contains("RIPSTOP_FABRIC"), "{why}");
}

#[test]
fn a_rank_whose_own_record_was_garbled_does_not_use_what_it_does_not_have() {
    let (works, broken) = (
        FakeNetwork::new("fast", Works),
        FakeNetwork::new("fast", CheckFails),
    );
    let (_, records) = job(&[&[works], &[works]]);
    let (mut all, _) = job(&[&[broken], &[works]]);
    let why = all
        .remove(0)
        .choose(WorldRank(0), &records, called)
        .unwrap_err();
    assert!(why.contains("fast"), "{why}");
}

#[test]
fn a_record_has_room_for_all_networks_of_jobs() {
    assert!(FabricSelection::networks().len() <= NETWORKS_MAX);
}
