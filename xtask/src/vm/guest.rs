//! A running guest: its output, its time limit, its end.
//!
//! All output comes through sockets that have no files, and QEMU ends with this process, however this process ends. So nothing
//! is left.

use std::{
    env,
    io::{self, BufRead as _, BufReader, Read, Write},
    os::{
        linux::net::SocketAddrExt as _,
        unix::net::{SocketAddr, UnixListener, UnixStream},
    },
    process::{self, Child, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    thread::{self, JoinHandle},
    time::Duration,
};

use super::{command, image::VmImage, options::VmOptions, qemu};

/// A virtual machine that runs a command.
#[derive(Debug)]
pub(super) struct VmGuest {
    child: Child,
    ports: Vec<VmPort>,
    errors: JoinHandle<Vec<u8>>,
    news: Receiver<VmEvent>,
    timeout: Duration,
    log: bool,
}

/// An event of a guest.
#[derive(Debug, PartialEq, Eq)]
enum VmEvent {
    /// The command begins.
    Began,
    /// The command ended with this status.
    Ended(u8),
    /// The reader of the command's output is gone.
    Unread,
    /// The machine is off.
    Off,
}

impl VmGuest {
    /// Starts the machine; the output of the command goes to `output`.
    pub(super) fn start(
        image: &VmImage,
        options: &VmOptions,
        output: impl Write + Send + 'static,
    ) -> Result<Self, String> {
        let folder = env::current_dir().map_err(|why| format!("the current folder: {why}"))?;
        let settings = command::settings(options);
        let initramfs = image.initramfs(&settings, &command::script(options, &folder))?;
        let (sender, news) = channel();
        let console: Box<dyn Write + Send> = if options.log {
            Box::new(io::stderr())
        } else {
            Box::new(io::sink())
        };
        let ports = vec![
            VmPort::open(CONSOLE, move |stream| copy(stream, console).0)?,
            VmPort::open("status", told(sender.clone()))?,
            VmPort::open("out", passed_on(output, sender))?,
            VmPort::open("err", |stream| copy(stream, io::stderr()).0)?,
        ];
        let names: Vec<String> = ports.iter().map(|port| port.name.clone()).collect();
        let mut child = image
            .emulator
            .command()
            .args(qemu::arguments(&image.kernel(), options, &names))
            .stdin(initramfs)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|why| format!("`setpriv` does not start: {why}"))?;
        let errors = child.stderr.take().ok_or("no errors to read")?;
        Ok(Self {
            child,
            ports,
            errors: thread::spawn(move || collect(errors)),
            news,
            timeout: options.timeout,
            log: options.log,
        })
    }

    /// Follows the guest to its end and returns the status of the command.
    pub(super) fn status(mut self) -> Result<u8, String> {
        let patience = GuestTimeouts {
            start: BOOT,
            command: self.timeout + GRACE,
            end: GRACE,
        };
        let status = follow(&self.news, patience);
        if status.is_err() {
            // The guest may be off already.
            drop(self.child.kill());
        }
        let ended = self.child.wait().map_err(|why| format!("QEMU: {why}"))?;
        self.ports.iter().for_each(VmPort::release);
        let mut console = Vec::new();
        for port in self.ports {
            let said = port.reader.join().unwrap_or_default();
            if port.name.ends_with(CONSOLE) {
                console = said;
            }
        }
        let errors = self.errors.join().unwrap_or_default();
        let console = String::from_utf8_lossy(&console);
        match status? {
            Some(status) => {
                if !self.log {
                    complain(&console);
                }
                if status == TIME_IS_UP {
                    eprintln!(
                        "vm: the command took longer than {} s",
                        self.timeout.as_secs()
                    );
                }
                Ok(status)
            }
            None => Err(format!(
                "the guest died before the command ended (QEMU: {ended}):\n{}{}",
                String::from_utf8_lossy(&errors),
                last_lines(&console)
            )),
        }
    }
}

/// The longest silences of a guest in its phases.
#[derive(Clone, Copy, Debug)]
struct GuestTimeouts {
    start: Duration,
    command: Duration,
    end: Duration,
}

/// Returns the command's status; `None` if the machine went off without one.
fn follow(news: &Receiver<VmEvent>, patience: GuestTimeouts) -> Result<Option<u8>, String> {
    let mut status = None;
    let mut left = patience.start;
    loop {
        match news.recv_timeout(left) {
            Ok(VmEvent::Began) => left = patience.command,
            Ok(VmEvent::Ended(with)) => {
                status = Some(with);
                left = patience.end;
            }
            Ok(VmEvent::Unread) => return Err("the output has no reader".to_owned()),
            Ok(VmEvent::Off) | Err(RecvTimeoutError::Disconnected) => return Ok(status),
            Err(RecvTimeoutError::Timeout) => {
                return Err(format!(
                    "the guest said nothing for {} s and was ended; `--log` shows what its kernel says",
                    left.as_secs()
                ));
            }
        }
    }
}

/// A socket to which QEMU connects, and the thread that reads it.
#[derive(Debug)]
struct VmPort {
    name: String,
    reader: JoinHandle<Vec<u8>>,
}

impl VmPort {
    fn open(
        short: &str,
        read: impl FnOnce(UnixStream) -> Vec<u8> + Send + 'static,
    ) -> Result<Self, String> {
        let name = format!("ripstop-vm-{}-{short}", process::id());
        let listener = address(&name)
            .and_then(|address| UnixListener::bind_addr(&address))
            .map_err(|why| format!("a socket for the guest: {why}"))?;
        let reader = thread::spawn(move || match listener.accept() {
            Ok((stream, _)) => read(stream),
            Err(_) => Vec::new(),
        });
        Ok(Self { name, reader })
    }

    /// Releases the reader if QEMU never connected.
    fn release(&self) {
        // The connection is refused if the reader already has one.
        drop(address(&self.name).and_then(|address| UnixStream::connect_addr(&address)));
    }
}

fn address(name: &str) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(name)
}

/// Forwards the guest's reports about the command. The receiver of `news` may have ended.
fn told(news: Sender<VmEvent>) -> impl FnOnce(UnixStream) -> Vec<u8> {
    move |stream| {
        let lines = BufReader::new(stream).lines().map_while(Result::ok);
        lines
            .filter_map(|line| news_of(&line))
            .for_each(|what| drop(news.send(what)));
        drop(news.send(VmEvent::Off));
        Vec::new()
    }
}

fn passed_on(output: impl Write, news: Sender<VmEvent>) -> impl FnOnce(UnixStream) -> Vec<u8> {
    move |stream| {
        if copy(stream, output).1.is_err() {
            drop(news.send(VmEvent::Unread));
        }
        Vec::new()
    }
}

fn news_of(line: &str) -> Option<VmEvent> {
    match line.split_once(' ') {
        None if line == "began" => Some(VmEvent::Began),
        Some(("ended", status)) => Some(VmEvent::Ended(status.parse().ok()?)),
        _ => None,
    }
}

/// Copies the stream as it comes, to its end. Returns the last part of it.
fn copy(mut stream: impl Read, mut to: impl Write) -> (Vec<u8>, io::Result<()>) {
    let mut kept = Vec::new();
    let mut part = vec![0; 64 << 10];
    // A QEMU that was killed resets its sockets, which counts as an end.
    while let Ok(len @ 1..) = stream.read(&mut part) {
        let written = to.write_all(&part[..len]).and_then(|()| to.flush());
        if written.is_err() {
            return (kept, written);
        }
        kept.extend_from_slice(&part[..len]);
        kept.drain(..kept.len().saturating_sub(KEPT_MAX));
    }
    (kept, Ok(()))
}

fn collect(mut stream: impl Read) -> Vec<u8> {
    let mut all = Vec::new();
    // Data before an error is all there is.
    drop(stream.read_to_end(&mut all));
    all
}

/// Prints complaints of the guest's kernel, which a program may have survived.
fn complain(console: &str) {
    let wrong = |line: &&str| COMPLAINTS.iter().any(|mark| line.contains(mark));
    let lines: Vec<&str> = console.lines().filter(wrong).collect();
    if !lines.is_empty() {
        eprintln!("vm: the guest's kernel says:\n{}", lines.join("\n"));
    }
}

fn last_lines(console: &str) -> String {
    let lines: Vec<&str> = console.lines().collect();
    lines[lines.len().saturating_sub(LAST_LINES)..].join("\n")
}

const CONSOLE: &str = "console";

/// Bytes of a port that are kept, to be shown if the guest dies.
const KEPT_MAX: usize = 1 << 20;

/// Exit code of `timeout` at the limit.
const TIME_IS_UP: u8 = 124;

/// Time limit of a start, which takes four seconds on an idle host, and took two minutes on a busy one.
const BOOT: Duration = Duration::from_secs(900);

/// Time that the guest may take beyond the command's limit: `timeout` first asks, then kills.
const GRACE: Duration = Duration::from_secs(60);

const LAST_LINES: usize = 40;

const COMPLAINTS: [&str; 6] = [
    "WARNING:",
    "BUG:",
    "Oops",
    "general protection",
    "refcount_t",
    "ripstop:",
];

#[cfg(test)]
mod tests {
    use std::{sync::mpsc::channel, time::Duration};

    use super::{GuestTimeouts, VmEvent, follow, last_lines, news_of};

    fn followed(said: impl IntoIterator<Item = VmEvent>) -> Result<Option<u8>, String> {
        let (sender, news) = channel();
        said.into_iter().for_each(|what| sender.send(what).unwrap());
        let patience = GuestTimeouts {
            start: Duration::ZERO,
            command: Duration::ZERO,
            end: Duration::ZERO,
        };
        follow(&news, patience)
    }

    #[test]
    fn the_status_of_a_command_is_passed_on_when_the_machine_is_off() {
        for status in [0, 7, 124, 255] {
            let said = [VmEvent::Began, VmEvent::Ended(status), VmEvent::Off];
            assert_eq!(followed(said), Ok(Some(status)));
        }
        for said in [vec![VmEvent::Off], vec![VmEvent::Began, VmEvent::Off]] {
            assert_eq!(followed(said), Ok(None));
        }
    }

    #[test]
    fn a_guest_that_says_nothing_any_more_is_an_error_wherever_it_was() {
        for said in [
            vec![],
            vec![VmEvent::Began],
            vec![VmEvent::Began, VmEvent::Ended(0)],
        ] {
            assert!(followed(said).unwrap_err().contains("said nothing"));
        }
        let why = followed([VmEvent::Began, VmEvent::Unread]).unwrap_err();
        assert!(why.contains("no reader"), "{why}");
    }

    #[test]
    fn a_guest_tells_when_the_command_began_and_how_it_ended() {
        assert_eq!(news_of("began"), Some(VmEvent::Began));
        assert_eq!(news_of("ended 139"), Some(VmEvent::Ended(139)));
        for line in ["", "ended", "ended 256", "ended -1", "began now"] {
            assert_eq!(news_of(line), None, "{line}");
        }
    }

    #[test]
    fn of_a_long_console_the_last_lines_are_shown() {
        let console: Vec<String> = (0..100).map(|line| line.to_string()).collect();
        let shown = last_lines(&console.join("\n"));
        assert!(
            shown.starts_with("60\n") && shown.ends_with("\n99"),
            "{shown}"
        );
        assert_eq!(last_lines("one"), "one");
    }
}
