//! Asks the kernel for the interfaces of this host.

use std::{fs, io, os::fd::OwnedFd, time::Duration};

use rustix::{
    io::retry_on_intr,
    net::{
        self, AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType,
        netlink::SocketAddrNetlink,
        sockopt::{self, Timeout},
    },
};

use super::{
    NetworkInterface,
    netlink::{DONE, GET_ADDRESSES, GET_LINKS, GET_ROUTES, InterfaceTable, messages, question},
};

impl NetworkInterface {
    /// Returns the interfaces in the network namespace of this process.
    ///
    /// # Errors
    /// The kernel's error.
    pub(in crate::tcp) fn all() -> io::Result<Vec<Self>> {
        for _ in 0..ATTEMPTS {
            if let Some(interfaces) = ask()? {
                return Ok(interfaces.into_iter().map(with_speed).collect());
            }
        }
        let why = "the network interfaces of this host change all the time";
        Err(io::Error::other(why))
    }
}

/// Returns the interfaces, or none if some of them changed meanwhile.
fn ask() -> io::Result<Option<Vec<NetworkInterface>>> {
    let flags = SocketFlags::CLOEXEC;
    // The default protocol of this family is the one for routes.
    let socket = net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
    // The kernel answers at once. The limit is for sandboxes that imitate it.
    sockopt::set_socket_timeout(&socket, Timeout::Recv, Some(ANSWER_MAX))?;
    let mut table = InterfaceTable::default();
    let mut buffer = vec![0; BUFFER_LEN];
    for (sequence, kind) in (1..).zip([GET_LINKS, GET_ADDRESSES, GET_ROUTES]) {
        let question = question(kind, sequence);
        let kernel = SocketAddrNetlink::new(0, 0);
        retry_on_intr(|| net::sendto(&socket, &question, SendFlags::empty(), &kernel))?;
        if !read_list(&socket, sequence, &mut buffer, &mut table)? {
            return Ok(None);
        }
    }
    Ok(Some(table.into_interfaces()))
}

/// Adds a list to the table. Returns false if the list may lack parts.
fn read_list(
    socket: &OwnedFd,
    sequence: u32,
    buffer: &mut [u8],
    table: &mut InterfaceTable,
) -> io::Result<bool> {
    let mut complete = true;
    loop {
        let (_, len) = retry_on_intr(|| net::recv(socket, &mut *buffer, RecvFlags::TRUNC))?;
        let bytes = buffer.get(..len).ok_or(io::ErrorKind::InvalidData)?;
        if bytes.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        for message in messages(bytes).filter(|message| message.sequence == sequence) {
            complete &= !message.interrupted;
            match message.error() {
                Some(code) => return Err(io::Error::from_raw_os_error(code)),
                None if message.kind == DONE => return Ok(complete),
                None => table.add(&message),
            }
        }
    }
}

/// Adds the speed that an adapter tells. Virtual ones tell nothing, or numbers that mean nothing.
fn with_speed(interface: NetworkInterface) -> NetworkInterface {
    if !interface.kind.is_empty() && !["bond", "team", "vlan"].contains(&interface.kind.as_str()) {
        return interface;
    }
    let path = format!("/sys/class/net/{}/speed", interface.name);
    let text = fs::read_to_string(path).unwrap_or_default();
    NetworkInterface {
        speed: text.trim().parse().ok().filter(|speed| *speed > 0),
        ..interface
    }
}

/// How often the kernel is asked again, if interfaces change meanwhile.
const ATTEMPTS: u32 = 10;

const ANSWER_MAX: Duration = Duration::from_secs(5);

/// The kernel sends up to 32 KiB at once, if the reader has room for them.
const BUFFER_LEN: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr, TcpListener, UdpSocket};

    use super::NetworkInterface;

    #[test]
    fn this_host_has_a_loopback_interface_with_its_address() {
        let all = NetworkInterface::all().unwrap();
        let lo = all.iter().find(|interface| interface.loopback).unwrap();
        let ips: Vec<IpAddr> = lo.addresses.iter().map(|address| address.ip).collect();
        assert!(
            lo.up && ips.contains(&Ipv4Addr::LOCALHOST.into()),
            "{all:?}"
        );
        let mut names = all.iter().map(|interface| &interface.name);
        assert!(names.all(|name| !name.is_empty()), "{all:?}");
    }

    #[test]
    fn listeners_can_use_every_usable_address_of_interfaces_that_are_up() {
        let refused = || {
            let all = NetworkInterface::all().unwrap().into_iter();
            let up = all.filter(|interface| interface.up);
            let addresses = up.flat_map(|interface| interface.addresses);
            let usable = addresses.filter(|address| address.is_usable());
            usable.filter(|address| TcpListener::bind((address.ip, 0)).is_err())
        };
        // Other programs may take an interface away between the two steps, but not the same one twice.
        let first: Vec<_> = refused().collect();
        let twice: Vec<_> = refused().filter(|one| first.contains(one)).collect();
        assert_eq!(twice, []);
    }

    /// Compares with the address that the kernel itself would choose. Connecting a datagram socket sends nothing.
    #[test]
    fn the_interface_of_the_default_route_is_known() {
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        let Ok(()) = socket.connect("192.0.2.1:9") else {
            return;
        };
        let own = socket.local_addr().unwrap().ip();
        let all = NetworkInterface::all().unwrap();
        let mut addresses = all.iter().flat_map(|interface| &interface.addresses);
        assert!(
            addresses.any(|address| address.ip == own),
            "{own} in {all:?}"
        );
    }
}
