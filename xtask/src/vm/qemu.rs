//! The virtual machine as QEMU's command line.

use std::{ffi::OsString, path::Path};

use super::{clock, options::VmOptions};

/// Returns QEMU's arguments. All input and output goes through sockets of these names.
pub(super) fn arguments(kernel: &Path, options: &VmOptions, ports: &[String]) -> Vec<OsString> {
    let emulated = !has_kvm();
    let mut words: Vec<OsString> = FIXED.iter().map(OsString::from).collect();
    let (accelerator, processor) = match (emulated, options.parallel) {
        (true, false) => EMULATED,
        (true, true) => (EMULATED_PARALLEL, EMULATED.1),
        (false, _) => REAL,
    };
    words.extend(["-accel", accelerator, "-cpu", processor].map(OsString::from));
    words.extend(["-smp".into(), options.cpus.to_string().into()]);
    words.extend(["-m".into(), options.memory_mib.to_string().into()]);
    words.extend(["-kernel".into(), kernel.into()]);
    words.extend(["-append".into(), boot_line(emulated, options.log).into()]);
    words.extend(folder("root", Path::new("/"), ",readonly=on"));
    for (number, share) in options.shares.iter().enumerate() {
        words.extend(folder(&format!("share{number}"), share, ""));
    }
    words.extend(ports.iter().flat_map(|name| port(name)));
    words
}

/// Returns the last part of a port's name, which is its name in the guest.
pub(super) fn short_port_name(port: &str) -> &str {
    port.rsplit('-').next().unwrap_or(port)
}

/// Returns true if KVM can be used. A host that is itself a virtual machine may offer `/dev/kvm` and still fail to run Debian's
/// kernel, so KVM is used only if it is the processor's own.
fn has_kvm() -> bool {
    let real =
        ["kvm_intel", "kvm_amd"].map(|module| Path::new("/sys/module").join(module).exists());
    let device = std::fs::File::options()
        .read(true)
        .write(true)
        .open("/dev/kvm");
    real.contains(&true) && device.is_ok()
}

fn boot_line(emulated: bool, log: bool) -> String {
    let mut line = BOOT_LINE.to_owned();
    if emulated {
        line.push_str(&format!(
            " {BOOT_LINE_EMULATED} tsc_early_khz={}",
            clock::khz()
        ));
    }
    line.push_str(if log { " loglevel=7" } else { " loglevel=5" });
    line
}

/// Returns the arguments that let the guest mount a folder of this machine.
fn folder(tag: &str, path: &Path, more: &str) -> [OsString; 4] {
    let path = path.display().to_string().replace(',', ",,");
    [
        "-fsdev".into(),
        format!("local,id={tag},path={path},security_model=none,multidevs=remap{more}").into(),
        "-device".into(),
        format!("virtio-9p-pci,fsdev={tag},mount_tag={tag}").into(),
    ]
}

/// Returns the arguments of a serial port of the guest, or of its console, that ends at a socket of this process.
fn port(name: &str) -> [OsString; 4] {
    let short = short_port_name(name);
    let socket = format!("socket,id={short},path={name},abstract=on,server=off");
    let device = match short {
        "console" => ["-serial".to_owned(), format!("chardev:{short}")],
        _ => [
            "-device".to_owned(),
            format!("virtserialport,chardev={short},name={short}"),
        ],
    };
    let [option, value] = device.map(OsString::from);
    ["-chardev".into(), socket.into(), option, value]
}

const FIXED: [&str; 13] = [
    "-machine",
    "q35,smm=off,sata=off,i8042=off,vmport=off",
    "-nodefaults",
    "-no-user-config",
    "-display",
    "none",
    "-no-reboot",
    "-initrd",
    "/dev/stdin",
    "-device",
    "virtio-serial-pci,max_ports=8",
    "-device",
    "virtio-rng-pci",
];

/// Emulation by one thread for all processors. With a thread for each, every interrupt between them waits until the host
/// schedules another thread, and on a busy host a guest takes minutes to start. `erms` is off because copies by `rep movsb`
/// are emulated byte by byte; `fsrm` without it makes the kernel's `memmove` run forever.
const EMULATED: (&str, &str) = ("tcg,thread=single", "max,-erms,-fsrm");
const EMULATED_PARALLEL: &str = "tcg,thread=multi";
const REAL: (&str, &str) = ("kvm", "host");

const BOOT_LINE: &str = "console=ttyS0 panic=-1 oops=panic nokaslr mitigations=off edd=off random.trust_cpu=on audit=0 \
    apparmor=0 nowatchdog cryptomgr.notests rcupdate.rcu_cpu_stall_suppress=1 rcupdate.rcu_expedited=1 net.ifnames=0";

/// The time stamp counter is the only clock that is fast to read. The timer check fails on a busy host. Translated code is
/// found again only at the same address.
const BOOT_LINE_EMULATED: &str = "no_timer_check norandmaps tsc=reliable";

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{VmOptions, arguments};

    #[test]
    fn folders_and_ports_become_devices_of_the_guest() {
        let options = VmOptions {
            shares: vec!["/a,b".into()],
            ..VmOptions::default()
        };
        let words = arguments(
            Path::new("/k"),
            &options,
            &["x-1-out".to_owned(), "x-1-console".to_owned()],
        );
        let line = words.join(" ".as_ref());
        let line = line.to_str().unwrap();
        assert!(
            line.contains("path=/,security_model=none,multidevs=remap,readonly=on"),
            "{line}"
        );
        assert!(
            line.contains("id=share0,path=/a,,b,security_model=none,multidevs=remap -device"),
            "{line}"
        );
        assert!(line.contains("id=out,path=x-1-out,abstract=on"), "{line}");
        assert!(
            line.contains("virtserialport,chardev=out,name=out"),
            "{line}"
        );
        assert!(line.ends_with("-serial chardev:console"), "{line}");
    }
}
