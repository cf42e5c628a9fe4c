//! An endpoint that listens before its peers are known.

use std::{io, net::SocketAddr};

use super::{
    Tcp,
    address::{ENDPOINTS_MAX, TcpAddress, TcpEndpoint},
    checksum::FrameForm,
    config::{ListenAddress, TcpConfig, caps},
    congestion::CongestionRule,
    core::{CoreParts, TcpCore},
    handshake::TcpIdentity,
    interfaces::{PortRange, dial_order},
    peer::TcpPeer,
    socket_calls::listen,
    sockets::{SocketRole, SocketTable},
};
use crate::{
    driver::{AbilitySummary, Caps, Driver, PreparedEndpoint, WakeSource},
    random::SeededRandom,
    random::fill_unguessable,
    timer::RetryTimer,
};

/// An endpoint without peers. It listens already, so peers that know its address wait instead of being refused.
#[derive(Debug)]
pub struct PreparedTcp {
    config: TcpConfig,
    address: TcpAddress,
    sockets: SocketTable,
    timer: RetryTimer,
    caps: Caps,
    seed: u64,
}

impl PreparedTcp {
    /// Listens at the addresses of the configuration, on ports of the range or on any.
    pub(super) fn open(config: TcpConfig, ports: Option<PortRange>) -> io::Result<Self> {
        raise_descriptor_limit();
        let (mut token, mut seed) = ([0; 16], [0; 8]);
        fill_unguessable(&mut token)?;
        fill_unguessable(&mut seed)?;
        let seed = u64::from_ne_bytes(seed);
        let mut random = SeededRandom::new(seed);
        let mut sockets = SocketTable::new()?;
        let timer = RetryTimer::new()?;
        sockets.add_timer(&timer.wait_on())?;
        let mut endpoints = Vec::new();
        for address in config.listen.iter().take(ENDPOINTS_MAX) {
            let (socket, port) = listen_at(address, ports, &mut random)?;
            sockets.add(socket, SocketRole::Listener)?;
            endpoints.push(TcpEndpoint {
                ip: address.ip,
                prefix: address.prefix,
                speed: address.speed,
                port,
            });
        }
        if endpoints.is_empty() {
            let why = "no address to listen at: name one";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        let incarnation = u32::try_from(random.bits() >> 32).unwrap_or(u32::MAX);
        Ok(Self {
            address: TcpAddress {
                token,
                incarnation,
                endpoints,
            },
            config,
            sockets,
            timer,
            caps: caps(),
            seed,
        })
    }

    /// Returns where the rank listens.
    #[must_use]
    pub fn endpoints(&self) -> Vec<SocketAddr> {
        self.address
            .endpoints
            .iter()
            .map(TcpEndpoint::socket)
            .collect()
    }

    /// Connects to ranks with these addresses, of which one is this rank's own.
    ///
    /// # Errors
    /// An address that is none, with its rank.
    pub fn connect(self, addresses: &[Vec<u8>]) -> io::Result<Tcp> {
        let me = self.config.rank;
        let decode = |(rank, bytes): (usize, &Vec<u8>)| {
            let address = TcpAddress::decode(bytes).map_err(|why| {
                io::Error::new(why.kind(), format!("the address of rank {rank}: {why}"))
            })?;
            Ok(TcpPeer::new(address))
        };
        let peers = addresses.iter().enumerate().map(decode);
        let mut peers = peers.collect::<io::Result<Vec<_>>>()?;
        let own = peers.get(me as usize).map(|peer| &peer.address);
        if own != Some(&self.address) {
            let why = format!("the addresses of the job do not have the one of rank {me}");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        let endpoints = &self.address.endpoints;
        for peer in &mut peers {
            peer.address.endpoints = dial_order(endpoints, &peer.address.endpoints);
        }
        let Self { config, .. } = self;
        let congestion = CongestionRule::new(config.congestion, &self.address.endpoints);
        let ips = peers
            .iter()
            .filter_map(|peer| peer.address.endpoints.first());
        let ips = ips.map(|endpoint| endpoint.ip);
        for listener in self.sockets.listeners() {
            congestion.apply_to_listener(listener, ips.clone());
        }
        let core = TcpCore::new(CoreParts {
            own: TcpIdentity {
                rank: me,
                incarnation: self.address.incarnation,
            },
            token: self.address.token,
            limit: config.silence,
            patience: config.patience,
            congestion,
            form: FrameForm {
                checked: config.checksum,
            },
            ends: config.ends,
            peers,
            sockets: self.sockets,
            timer: self.timer,
            counters: config.counters,
            seed: self.seed,
        });
        Ok(Tcp::new(core, self.caps, config.linger))
    }
}

impl PreparedEndpoint for PreparedTcp {
    fn address(&self) -> Vec<u8> {
        self.address.encode()
    }

    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn wait_on(&self) -> Vec<WakeSource> {
        vec![WakeSource::Fd(self.sockets.wait_on())]
    }

    fn abilities(&self) -> AbilitySummary {
        AbilitySummary {
            counters: true,
            lists: None,
            tags: None,
            connects: true,
        }
    }

    fn connect(self: Box<Self>, addresses: &[Vec<u8>]) -> io::Result<Box<dyn Driver>> {
        Self::connect(*self, addresses).map(|driver| Box::new(driver) as Box<dyn Driver>)
    }
}

/// Listens at an address, on any port or one of a range.
fn listen_at(
    address: &ListenAddress,
    ports: Option<PortRange>,
    random: &mut SeededRandom,
) -> io::Result<(std::os::fd::OwnedFd, u16)> {
    let at = |port| SocketAddr::new(address.ip, port);
    let fail = |why: io::Error, what: String| {
        let text = format!("cannot listen at {}{what}: {why}", address.ip);
        io::Error::new(why.kind(), text)
    };
    let Some(ports) = ports else {
        return listen(at(0)).map_err(|why| fail(why, String::new()));
    };
    let mut last = io::Error::from(io::ErrorKind::AddrInUse);
    for port in ports.ports_from(random.bits()) {
        match listen(at(port)) {
            Ok(listener) => return Ok(listener),
            Err(why) => last = why,
        }
    }
    let advice = if last.kind() == io::ErrorKind::PermissionDenied {
        "low ones need the capability CAP_NET_BIND_SERVICE, so name others with RIPSTOP_TCP_PORTS"
    } else {
        "name more with RIPSTOP_TCP_PORTS"
    };
    let what = format!(" on any of the ports {ports}; {advice}");
    Err(fail(last, what))
}

/// Lets the process have as many sockets as the system allows.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum {
        let raised = Rlimit {
            current: maximum,
            maximum,
        };
        // Without it, the limit is met later, if at all.
        let _ = setrlimit(Resource::Nofile, raised);
    }
}
