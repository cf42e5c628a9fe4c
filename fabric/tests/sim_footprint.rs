//! Checks the memory that simulated ranks take, as counted by the system. It is a test binary of its own, so that nothing else is
//! counted.

use ripstop_fabric::{
    driver::{Driver, DriverCommand, PostResult, WorldRank},
    sim::{Cluster, ClusterConfig, Model},
};

const RANKS: u32 = 16_384;
/// Most bytes of the fabric per idle rank. An idle rank may take 2 KiB in all.
const IDLE_BYTES_MAX: usize = 700;

#[test]
fn sixteen_thousand_idle_ranks_take_less_than_their_share() {
    let descriptors = descriptors_open();
    let before = resident();
    let config = ClusterConfig {
        model: Model::preset("bxi-4").expect("a preset"),
        ..ClusterConfig::new(RANKS)
    };
    let cluster = Cluster::new(config).expect("memory for them");
    let mut drivers: Vec<Box<dyn Driver>> = (0..RANKS)
        .map(|rank| Box::new(cluster.driver(rank)) as Box<dyn Driver>)
        .collect();
    let counted = cluster.stats().state_bytes;
    let taken = (resident() - before) / RANKS as usize;
    assert!(taken <= IDLE_BYTES_MAX, "{taken} bytes for each idle rank");
    assert!(
        counted / u64::from(RANKS) <= IDLE_BYTES_MAX as u64,
        "{counted} bytes counted"
    );
    assert_eq!(descriptors_open(), descriptors);

    // Each rank has a message to each of two neighbors in flight.
    for (rank, driver) in (0..RANKS).zip(&mut drivers) {
        for step in [1, 2] {
            let to = WorldRank((rank + step) % RANKS);
            let (header, body): (&[u8], &[u8]) = (&[1; 24], &[2; 8]);
            let answer = driver.post(DriverCommand::Message { to, header, body });
            assert!(matches!(answer, PostResult::Posted), "{answer:?}");
        }
    }
    let busy = (resident() - before) / RANKS as usize;
    assert!(
        busy <= 2048,
        "{busy} bytes for each rank with two messages out and two in, and four peers"
    );
}

/// Returns how many bytes of this process are resident.
fn resident() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm").expect("procfs");
    let pages: usize = pages
        .split(' ')
        .nth(1)
        .and_then(|pages| pages.parse().ok())
        .expect("a number of pages");
    pages * rustix::param::page_size()
}

fn descriptors_open() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("procfs").count()
}
