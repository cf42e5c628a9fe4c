//! Opening a device: from its name to its limits and queues.

use std::{io, sync::Arc, time::Duration};

use super::{
    config::VerbsConfig,
    datagrams,
    device::DevicePort,
    inbox::WINDOW,
    objects::{DeviceLimits, PortState, TRIES, VerbsChannel, VerbsContext, VerbsCq, VerbsPd},
    rail::RailDevice,
};

/// An opened device, without queues.
pub(super) struct OpenedDevice {
    own: RailDevice,
    pub(super) limits: DeviceLimits,
}

impl OpenedDevice {
    /// Opens the named devices, with their weights.
    pub(super) fn all(
        named: Vec<(DevicePort, u32)>,
        config: &VerbsConfig,
    ) -> io::Result<Vec<Self>> {
        let given = given(&config.gid_index, named.len())?;
        let all = named.into_iter().zip(given);
        all.map(|((port, weight), given)| Self::new(port, weight, given, config))
            .collect()
    }

    fn new(
        port: DevicePort,
        weight: u32,
        given: Option<u8>,
        config: &VerbsConfig,
    ) -> io::Result<Self> {
        let gid_index = given.map_or_else(|| port.gid_index(), Ok)?;
        let context = VerbsContext::open(&port.device, &config.counters)?;
        let (limits, state) = (context.limits()?, context.port(port.port)?);
        if !state.active {
            return Err(io::Error::new(
                io::ErrorKind::NotConnected,
                format!("port {port} is down: {}", DevicePort::DOWN),
            ));
        }
        let gid = context.gid(port.port, gid_index);
        let gid = gid.ok().filter(|gid| !port.ethernet || *gid != [0; 16]);
        let gid = gid.ok_or_else(|| {
            let why = format!(
                "gid_index: port {port} has no address number {gid_index}: choose one that `ibv_devinfo -v` shows with \
                 RIPSTOP_VERBS_GID_INDEX"
            );
            io::Error::new(io::ErrorKind::InvalidInput, why)
        })?;
        let own = RailDevice {
            name: port.device.clone(),
            pd: VerbsPd::new(&context)?,
            channel: VerbsChannel::new(&context)?,
            context,
            port: port.port,
            gid_index,
            gid,
            lid: state.lid,
            mtu: state.mtu,
            ethernet: port.ethernet,
            reads_out: limits.reads_out,
            reads_in: limits.reads_in,
            timeout: timeout(config.patience),
            piece_max: piece_max(&state),
            request_max: request_max(&limits, &state),
            weight,
        };
        Ok(Self { own, limits })
    }

    /// Makes the queues of the device.
    pub(super) fn device(self, rooms: QueueCapacity) -> io::Result<ReadyDevice> {
        let channel = &self.own.channel;
        let queues = [
            VerbsCq::new(channel, rooms.sends + datagrams::SENDS)?,
            VerbsCq::new(channel, rooms.receives + datagrams::RECEIVES)?,
        ];
        let Self { own, limits } = self;
        Ok(ReadyDevice {
            own,
            limits,
            queues,
        })
    }
}

/// An opened device, with its queues.
#[derive(Debug)]
pub(super) struct ReadyDevice {
    pub(super) own: RailDevice,
    pub(super) limits: DeviceLimits,
    /// Completion queues of requests and of arrivals.
    pub(super) queues: [Arc<VerbsCq>; 2],
}

/// Room in the queues of a device: completions of requests, and receives.
#[derive(Clone, Copy, Debug)]
pub(super) struct QueueCapacity {
    pub(super) sends: u32,
    pub(super) receives: u32,
}

impl QueueCapacity {
    /// Returns room for a window of receives for each rank, as far as the devices have it.
    pub(super) fn new(limits: &[DeviceLimits], ranks: u32) -> Self {
        let cqe_max = least(limits.iter().map(|one| one.cqe_max));
        let srq_wr_max = least(limits.iter().map(|one| one.srq_wr_max));
        let qp_wr_max = least(limits.iter().map(|one| one.qp_wr_max));
        let most = cqe_max.saturating_sub(datagrams::RECEIVES).min(srq_wr_max);
        let receives = ranks.saturating_mul(WINDOW).min(most) / WINDOW * WINDOW;
        let sends = SENDS
            .min(cqe_max.saturating_sub(datagrams::SENDS))
            .min(qp_wr_max);
        Self { sends, receives }
    }

    /// Returns the number of peers that there are buffers for, besides those that this rank needs for messages to itself.
    pub(super) const fn connections_max(self) -> u32 {
        (self.receives / WINDOW).saturating_sub(1)
    }
}

/// Returns the index of the address for each of `devices` devices, as far as it is given.
fn given(indices: &[u8], devices: usize) -> io::Result<Vec<Option<u8>>> {
    match indices {
        [] => Ok(vec![None; devices]),
        [all] => Ok(vec![Some(*all); devices]),
        each if each.len() == devices => Ok(each.iter().copied().map(Some).collect()),
        each => {
            let why = format!(
                "gid_index: {} numbers for {devices} devices of RIPSTOP_VERBS_DEVICE: give RIPSTOP_VERBS_GID_INDEX one \
                 number for all devices, or one for each",
                each.len()
            );
            Err(io::Error::new(io::ErrorKind::InvalidInput, why))
        }
    }
}

/// Returns the exponent of the devices' timeout: a packet is sent again after 4.096 µs · 2^exponent, [`TRIES`] times.
fn timeout(patience: Duration) -> u8 {
    let units = patience.as_nanos() / (4096 * u128::from(TRIES));
    let exponent = units.checked_ilog2().unwrap_or(0);
    // The value 0 would mean to retry forever, and the field has five bits.
    u8::try_from(exponent.clamp(1, 31)).unwrap_or(31)
}

/// Returns the most bytes of a piece of a command.
fn piece_max(state: &PortState) -> usize {
    (state.message_max as usize).clamp(1 << 16, PIECE_MAX)
}

/// Returns the most bytes of a request that no other lane can repeat.
///
/// Soft-RoCE counts the tries of a request, not of a packet: packets that have arrived do not reset its count. So a long request
/// whose packets overtake each other, or of which some are lost, would end the connection of two living ranks.
fn request_max(limits: &DeviceLimits, state: &PortState) -> usize {
    if limits.soft_roce {
        SOFT_PACKETS_MAX * (128 << state.mtu.clamp(1, 5))
    } else {
        piece_max(state)
    }
}

/// Returns the smallest value.
pub(super) fn least(all: impl Iterator<Item = u32>) -> u32 {
    all.min().unwrap_or(0)
}

/// Most requests in flight to all peers together.
const SENDS: u32 = 4096;
/// Most bytes of one request, because the requests behind it wait until all of it was sent.
const PIECE_MAX: usize = 8 << 20;
/// Most packets of one request on soft-RoCE: 16 KiB where a packet has 4 KiB. There are fewer packets than tries. Each try
/// delivers the first packet that is missing, if no packet is lost, so packets that overtake each other never use all tries up.
const SOFT_PACKETS_MAX: usize = 4;
const _: () = assert!(SOFT_PACKETS_MAX < TRIES as usize);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_buffers_for_all_ranks_or_for_as_many_as_the_device_takes() {
        let limits = DeviceLimits {
            srq_wr_max: 32_767,
            qp_wr_max: 1 << 15,
            qp_max: 1 << 17,
            cqe_max: 1 << 22,
            reads_out: 16,
            reads_in: 16,
            atomics: true,
            soft_roce: false,
        };
        let serves =
            |limits: &[DeviceLimits], ranks| QueueCapacity::new(limits, ranks).connections_max();
        assert_eq!(serves(&[limits], 1000), 999, "all others");
        assert_eq!(serves(&[limits], 100_000), 1022, "and itself");
        let less = DeviceLimits {
            cqe_max: 4096 + datagrams::RECEIVES,
            ..limits
        };
        assert_eq!(serves(&[limits, less], 100_000), 127);
    }

    #[test]
    fn a_request_is_so_short_that_its_tries_suffice_where_the_device_counts_them_all() {
        let limits = |soft_roce| DeviceLimits {
            srq_wr_max: 1,
            qp_wr_max: 1,
            qp_max: 1,
            cqe_max: 1,
            reads_out: 1,
            reads_in: 1,
            atomics: true,
            soft_roce,
        };
        let state = |mtu, message_max| PortState {
            active: true,
            mtu,
            lid: 0,
            message_max,
        };
        let bytes = |soft_roce, mtu, max| request_max(&limits(soft_roce), &state(mtu, max));
        for (mtu, expected) in [(1, 1 << 10), (3, 4 << 10), (5, 16 << 10)] {
            assert_eq!(bytes(true, mtu, 8 << 20), expected);
        }
        assert_eq!(bytes(false, 3, 1 << 31), 8 << 20);
        assert_eq!(bytes(false, 5, 1 << 20), 1 << 20);
        assert_eq!(bytes(false, 5, 0), 64 << 10, "the device does not say");
    }

    #[test]
    fn a_number_of_an_address_is_for_all_devices_or_there_is_one_for_each() {
        assert_eq!(given(&[], 2).unwrap(), [None, None]);
        assert_eq!(given(&[3], 2).unwrap(), [Some(3), Some(3)]);
        assert_eq!(given(&[3, 1], 2).unwrap(), [Some(3), Some(1)]);
        for (indices, devices) in [(&[3, 1][..], 1), (&[3, 1], 3), (&[1, 2, 3], 2)] {
            let why = given(indices, devices).unwrap_err().to_string();
            let said = format!("{} numbers for {devices}", indices.len());
            assert!(
                why.contains(&said) && why.contains("RIPSTOP_VERBS_GID_INDEX"),
                "{why}"
            );
        }
    }

    #[test]
    fn devices_are_never_more_patient_than_asked_and_half_as_much_at_least() {
        for (seconds, exponent) in [(2, 16), (20, 19), (600, 24)] {
            assert_eq!(timeout(Duration::from_secs(seconds)), exponent);
        }
        for patience in (10..600_000).step_by(37).map(Duration::from_millis) {
            let waits = Duration::from_nanos(4096 << timeout(patience)) * u32::from(TRIES);
            assert!(waits <= patience && patience < 2 * waits, "{patience:?}");
        }
        assert_eq!(timeout(Duration::ZERO), 1);
        assert_eq!(timeout(Duration::MAX), 31);
    }
}
