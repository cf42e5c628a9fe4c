//! A process with one interface, for tests.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use ripstop_softportals::{
    AccessFault, AckRequest, AppMemory, CtId, EntryId, EntryList, EntryOptions, EqId, EventKind,
    InitiatorFilter, LibraryFamily, LibraryHabits, MdId, MdOffset, MdOptions, MemoryDescriptor,
    NiCommand, NiConfig, NiFail, NiLimits, PhysicalId, RequestTarget, SoftListEntry, SoftPeer,
    SoftRegion, TableOptions,
    process::{SoftNic, SoftNicMode, SoftNicSetup},
    transport::{InterfaceLocation, MediumKind, SoftTransportConfig},
};

/// Memory that the test can read.
#[derive(Clone, Debug)]
pub(crate) struct Ram(pub(crate) Arc<Mutex<Vec<u8>>>);

impl AppMemory for Ram {
    fn read(&mut self, at: u64, into: &mut [u8]) -> Result<(), AccessFault> {
        let at = usize::try_from(at).map_err(|_| AccessFault)?;
        let ram = self.0.lock().map_err(|_| AccessFault)?;
        let from = ram.get(at..).and_then(|rest| rest.get(..into.len()));
        into.copy_from_slice(from.ok_or(AccessFault)?);
        Ok(())
    }

    fn write(&mut self, at: u64, from: &[u8]) -> Result<(), AccessFault> {
        let at = usize::try_from(at).map_err(|_| AccessFault)?;
        let mut ram = self.0.lock().map_err(|_| AccessFault)?;
        let into = ram
            .get_mut(at..)
            .and_then(|rest| rest.get_mut(..from.len()));
        into.ok_or(AccessFault)?.copy_from_slice(from);
        Ok(())
    }
}

/// A process with one interface: the lower half of its memory is a target, the upper half an initiator.
#[derive(Debug)]
pub(crate) struct Process {
    nid: u32,
    pub(crate) nic: Arc<SoftNic<Ram>>,
    pub(crate) ram: Ram,
    pub(crate) md: MdId,
    pub(crate) entry: EntryId,
    pub(crate) eq: EqId,
    pub(crate) ct: CtId,
}

pub(crate) const HALF: usize = 1 << 22;

/// Returns the address of a process of the same network.
fn at(nid: u32, pid: u32) -> PhysicalId {
    PhysicalId { nid, pid }
}

pub(crate) fn start(network: &str, pid: u32) -> Process {
    start_in(network, pid, SoftNicMode::Offload)
}

pub(crate) fn start_in(network: &str, pid: u32, mode: SoftNicMode) -> Process {
    start_over(network, pid, mode, SoftTransportConfig::default())
}

pub(crate) fn start_over(
    network: &str,
    pid: u32,
    mode: SoftNicMode,
    wires: SoftTransportConfig,
) -> Process {
    start_on(network, pid, mode, wires, None)
}

pub(crate) fn start_on(
    network: &str,
    pid: u32,
    mode: SoftNicMode,
    wires: SoftTransportConfig,
    core: Option<usize>,
) -> Process {
    let ram = Ram(Arc::new(Mutex::new(vec![0; 2 * HALF])));
    let nid = match &wires.medium {
        MediumKind::Udp { host, .. } => u32::from(*host),
        _ => 1,
    };
    let setup = SoftNicSetup {
        config: NiConfig {
            matching: true,
            logical: false,
            address: at(nid, pid),
            uid: 0,
            limits: NiLimits::MOST,
            packet_max: wires.packet_max(),
            inline_max: mode.inline_max(),
            counts_events: true,
            family: LibraryFamily::Sandia,
            habits: LibraryHabits::default(),
        },
        place: InterfaceLocation {
            network: format!("test-{network}-{}", std::process::id()),
            rail: 0,
            kind: 0,
        },
        mode,
        wires,
        core,
    };
    let nic = SoftNic::open(setup, ram.clone()).expect("a free address");
    let (eq, ct, entry, md) = nic.call(|interface| {
        let eq = interface.eq_alloc(4096).expect("within the limits");
        let ct = interface.ct_alloc().expect("within the limits");
        let pt = interface
            .pt_alloc(TableOptions::NONE, Some(eq), Some(0))
            .expect("free");
        let entry = SoftListEntry {
            region: SoftRegion::flat(0, HALF as u64),
            ct: Some(ct),
            uid: None,
            options: EntryOptions::OP_PUT
                | EntryOptions::OP_GET
                | EntryOptions::EVENT_LINK_DISABLE
                | EntryOptions::EVENT_CT_COMM,
            source: InitiatorFilter::Any,
            match_bits: 0,
            ignore_bits: 0,
            min_free: 0,
        };
        let entry = interface.append(pt, entry, EntryList::Priority, 0);
        let entry = entry.expect("within the limits");
        let md = MemoryDescriptor {
            region: SoftRegion::flat(HALF as u64, HALF as u64),
            options: MdOptions::EVENT_SEND_DISABLE,
            eq: Some(eq),
            ct: None,
        };
        let md = interface.md_bind(md).expect("within the limits");
        (eq, ct, entry, md)
    });
    Process {
        nid,
        nic: Arc::new(nic),
        ram,
        md,
        entry,
        eq,
        ct,
    }
}

impl Process {
    pub(crate) fn put(&self, to: u32, length: u64, ack: AckRequest) {
        self.start(
            |local, remote| NiCommand::Put(local, remote, ack),
            to,
            length,
        );
    }

    pub(crate) fn start(
        &self,
        command: impl FnOnce(MdOffset, RequestTarget) -> NiCommand,
        to: u32,
        length: u64,
    ) {
        let local = MdOffset {
            md: self.md,
            offset: 0,
        };
        let remote = RequestTarget {
            peer: SoftPeer::At(at(self.nid, to)),
            pt_index: 0,
            match_bits: 0,
            offset: 0,
            length,
            user_ptr: 0,
            hdr_data: 0,
        };
        self.nic
            .call(|interface| interface.start(command(local, remote)))
            .expect("valid");
    }

    pub(crate) fn event(&self) -> (EventKind, NiFail) {
        let waited = self
            .nic
            .wait_event(&[self.eq], Some(Duration::from_secs(20)));
        let event = waited.expect("an event in time").0.event;
        (event.kind, event.fail)
    }
}
