//! The MPI libraries of this machine, made to use TCP alone, over one interface.

use std::process::{Command, Stdio};

use super::contestant::{Contestant, on_path};

/// The options with which a library uses TCP, or the reason why it cannot.
pub(super) type TcpWay = Result<TcpOptions, String>;

/// What makes a library use TCP: arguments of its `mpiexec`, and variables that its ranks inherit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TcpOptions {
    args: &'static [&'static str],
    variables: &'static [(&'static str, &'static str)],
}

impl TcpOptions {
    /// Makes a launcher's command use TCP over this interface: for all messages, or only between hosts if the ranks of a host
    /// share memory.
    pub(super) fn apply(self, command: &mut Command, interface: &str, shares_memory: bool) {
        let chosen = |word| match (word, shares_memory) {
            (LOOPBACK, _) => interface,
            (BTL_TRANSPORTS, true) => "self,vader,tcp",
            (UCX_TRANSPORTS_OF_TCP, true) => "tcp,self,sm",
            _ => word,
        };
        command.args(self.args.iter().copied().map(chosen));
        let forbids = |name: &str| shares_memory && name.ends_with("NOLOCAL");
        let variables = self.variables.iter().filter(|(name, _)| !forbids(name));
        command.envs(variables.map(|&(name, value)| (name, chosen(value))));
    }
}

/// The ways in which this machine's libraries use TCP.
#[derive(Debug)]
pub(super) struct TcpPeers {
    mpich: TcpWay,
    openmpi: TcpWay,
    openmpi_ucx: TcpWay,
}

impl TcpPeers {
    /// Asks the libraries which networks they were built for.
    pub(super) fn find() -> Self {
        let mpich = installed(Contestant::Mpich).and_then(|()| output("mpichversion"));
        let openmpi = installed(Contestant::OpenMpi).and_then(|()| output("ompi_info"));
        Self {
            mpich: mpich.and_then(|version| mpich_way(&version)),
            openmpi: openmpi
                .clone()
                .and_then(|info| openmpi_way(&info, "btl: tcp", BTL)),
            openmpi_ucx: openmpi.and_then(|info| openmpi_way(&info, "pml: ucx", UCX)),
        }
    }

    /// Returns the way of a contestant that uses TCP by an MPI library; `None` for all others.
    pub(super) const fn of(&self, who: Contestant) -> Option<&TcpWay> {
        match who {
            Contestant::MpichTcp => Some(&self.mpich),
            Contestant::OpenMpiTcp => Some(&self.openmpi),
            Contestant::OpenMpiUcx => Some(&self.openmpi_ucx),
            _ => None,
        }
    }
}

/// Returns an error with the packages to install if a library is missing.
fn installed(library: Contestant) -> Result<(), String> {
    if library.is_installed() {
        return Ok(());
    }
    let packages = match library {
        Contestant::Mpich => "mpich libmpich-dev",
        _ => "openmpi-bin libopenmpi-dev",
    };
    Err(format!("not installed: apt-get install {packages}"))
}

fn output(program: &str) -> Result<String, String> {
    if !on_path(program) {
        return Err(format!(
            "{program}, which tells its networks, is not installed"
        ));
    }
    let output = Command::new(program).stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("{program} cannot start: {error}"))?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Chooses by the device that MPICH was built with, because each names its network in a variable of its own.
fn mpich_way(version: &str) -> TcpWay {
    let device = version
        .lines()
        .find_map(|line| line.strip_prefix("MPICH Device:"));
    let device = device.unwrap_or_default().trim();
    let variables: &[_] = match device {
        "ch4:ucx" => &[NO_SHARED_MEMORY, UCX_TRANSPORTS, UCX_DEVICES],
        "ch4:ofi" => &[
            NO_SHARED_MEMORY,
            ("FI_PROVIDER", "tcp"),
            ("FI_TCP_IFACE", LOOPBACK),
        ],
        "ch3:nemesis" => &[NO_SHARED_MEMORY, ("MPIR_CVAR_CH3_NOLOCAL", "1")],
        _ => {
            return Err(format!(
                "built for the device {device:?}; TCP is known for ch4:ucx, ch4:ofi and ch3:nemesis"
            ));
        }
    };
    Ok(TcpOptions {
        args: &[],
        variables,
    })
}

fn openmpi_way(info: &str, component: &str, options: TcpOptions) -> TcpWay {
    // A longer name may begin with this one.
    if info.contains(&format!("MCA {component} ")) {
        return Ok(options);
    }
    Err(format!(
        "built without the component {component}: ompi_info does not list it"
    ))
}

/// The interface that all of them leave out unless it is named. [`TcpOptions::apply`] puts another in its place.
pub(super) const LOOPBACK: &str = "lo";

const NO_SHARED_MEMORY: (&str, &str) = ("MPIR_CVAR_NOLOCAL", "1");
const UCX_TRANSPORTS: (&str, &str) = ("UCX_TLS", UCX_TRANSPORTS_OF_TCP);
const UCX_TRANSPORTS_OF_TCP: &str = "tcp,self";
const BTL_TRANSPORTS: &str = "self,tcp";
const UCX_DEVICES: (&str, &str) = ("UCX_NET_DEVICES", LOOPBACK);

const BTL: TcpOptions = TcpOptions {
    args: &[
        "--mca",
        "pml",
        "ob1",
        "--mca",
        "btl",
        BTL_TRANSPORTS,
        "--mca",
        "btl_tcp_if_include",
        LOOPBACK,
    ],
    variables: &[],
};

/// The UCX component refuses TCP unless any transport and any device will do.
const UCX: TcpOptions = TcpOptions {
    args: &[
        "--mca",
        "pml",
        "ucx",
        "--mca",
        "pml_ucx_tls",
        "any",
        "--mca",
        "pml_ucx_devices",
        "any",
        "-x",
        "UCX_TLS",
        "-x",
        "UCX_NET_DEVICES",
    ],
    variables: &[UCX_TRANSPORTS, UCX_DEVICES],
};

#[cfg(test)]
mod tests {
    use std::{ffi::OsString, process::Command};

    use super::{BTL, TcpOptions, UCX, mpich_way, openmpi_way};

    #[test]
    fn the_device_that_mpich_was_built_with_says_how_it_uses_tcp() {
        let way = |device: &str| {
            mpich_way(&format!(
                "MPICH Version:\t4\nMPICH Device:    \t{device}\nMPICH CC:\tgcc\n"
            ))
        };
        assert!(
            way("ch4:ucx")
                .unwrap()
                .variables
                .contains(&("UCX_TLS", "tcp,self"))
        );
        assert!(
            way("ch4:ofi")
                .unwrap()
                .variables
                .contains(&("FI_PROVIDER", "tcp"))
        );
        assert!(way("ch3:other").unwrap_err().contains("\"ch3:other\""));
        assert!(mpich_way("").is_err());
    }

    #[test]
    fn ranks_that_share_memory_use_tcp_between_hosts_alone() {
        let words = |options: TcpOptions, shares_memory| {
            let mut command = Command::new("mpiexec");
            options.apply(&mut command, "eth0", shares_memory);
            let args = command.get_args().map(Into::into);
            let variables = command.get_envs().map(|(name, value)| {
                let value = value.unwrap_or_default().display();
                OsString::from(format!("{}={value}", name.display()))
            });
            args.chain(variables).collect::<Vec<OsString>>()
        };
        let has = |words: &[OsString], word: &str| words.iter().any(|other| other == word);
        let mpich = mpich_way("MPICH Device: ch4:ucx").unwrap();
        for (options, alone, shared) in [
            (BTL, "self,tcp", "self,vader,tcp"),
            (UCX, "UCX_TLS=tcp,self", "UCX_TLS=tcp,self,sm"),
            (mpich, "UCX_TLS=tcp,self", "UCX_TLS=tcp,self,sm"),
        ] {
            assert!(has(&words(options, false), alone));
            assert!(has(&words(options, true), shared));
        }
        assert!(has(&words(mpich, false), "MPIR_CVAR_NOLOCAL=1"));
        assert!(!has(&words(mpich, true), "MPIR_CVAR_NOLOCAL=1"));
    }

    #[test]
    fn open_mpi_without_a_component_says_so() {
        let info = "    MCA btl: tcp (MCA v2.1.0)\n    MCA pml: ucx2 (MCA v2.1.0)\n";
        assert_eq!(openmpi_way(info, "btl: tcp", BTL), Ok(BTL));
        assert!(
            openmpi_way(info, "pml: ucx", BTL)
                .unwrap_err()
                .contains("pml: ucx")
        );
    }
}
