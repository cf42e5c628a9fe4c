//! The arguments of `cargo xtask vm`.

use std::{path::PathBuf, time::Duration};

pub(super) const HELP: &str = "\
cargo xtask vm [OPTION..] [--] COMMAND [ARG..]

Runs COMMAND as root on a virtual machine with soft-RoCE InfiniBand devices, and ends with its exit status. The machine
sees the files of this one where they are. What COMMAND writes is lost, except below folders given with --share.

  --devices N      devices rxe0, rxe1.. on one wire: 0, 1, 2 (default), 4 or 8; rxe0 is on eth0, 10.77.0.1, and so on.
                   The GID to use is number 1 (RoCE v2 over IPv4)
  --rate RATE      of every cable, as tc says it: 200mbit
  --loss PERCENT   of the packets that go to each device: 2%
  --delay TIME     of the packets that go to each device: 5ms
  --timeout S      seconds that COMMAND may take (default 600)
  --share DIR      COMMAND may write below DIR (again for more)
  --env NAME=VALUE sets a variable for COMMAND (again for more); HOME, LANG, PATH, TERM, USER and names that begin with
                   CARGO, RIPSTOP or RUST are always passed on
  --cpus N         processors (default 2)
  --parallel       the guest's processors run at the same time, as races between them need; on a busy machine
                   it takes minutes to start
  --memory MIB     (default 2048)
  --log            shows what the kernel says

COMMAND can pull cables: `cable pull 0` cuts rxe0 off silently, `cable down 0` takes its port down, `cable plug 0` mends
either, `cable shape 0 rate 200mbit loss 2% delay 5ms` changes one cable, `cable` alone prints this.

Exit status: COMMAND's; 124 when the time was up; 1 with a message when the machine could not be started or died.

  cargo xtask vm -- ibv_devinfo
  cargo xtask vm --loss 1% -- sh -c 'ib_send_lat -d rxe0 -x 1 -e & sleep 1; ib_send_lat -d rxe1 -x 1 -e 10.77.0.1'";

/// A machine, and the command to run on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct VmOptions {
    pub(crate) devices: u32,
    /// Arguments of `tc`'s netem for every cable; empty for none.
    pub(crate) shape: Vec<String>,
    pub(crate) timeout: Duration,
    pub(crate) shares: Vec<PathBuf>,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) cpus: u32,
    /// True if the processors run at the same time.
    pub(crate) parallel: bool,
    pub(crate) memory_mib: u32,
    pub(crate) log: bool,
    pub(crate) command: Vec<String>,
}

impl Default for VmOptions {
    fn default() -> Self {
        Self {
            devices: 2,
            shape: Vec::new(),
            timeout: Duration::from_secs(600),
            shares: Vec::new(),
            env: Vec::new(),
            cpus: 2,
            parallel: false,
            memory_mib: 2048,
            log: false,
            command: Vec::new(),
        }
    }
}

impl VmOptions {
    /// Parses the arguments; `None` if help was asked for.
    pub(super) fn parse(args: &[String]) -> Result<Option<Self>, String> {
        let mut options = Self::default();
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--help" | "-h" => return Ok(None),
                "--log" => options.log = true,
                "--parallel" => options.parallel = true,
                "--" => {
                    options.command = args.by_ref().cloned().collect();
                }
                option if option.starts_with('-') => {
                    let value = args
                        .next()
                        .ok_or_else(|| format!("{arg} needs a value\n\n{HELP}"))?;
                    options.set(option, value)?;
                }
                _ => options.command = [arg].into_iter().chain(args.by_ref()).cloned().collect(),
            }
        }
        if options.command.is_empty() {
            return Err(format!("say which command to run\n\n{HELP}"));
        }
        Ok(Some(options))
    }

    fn set(&mut self, option: &str, value: &str) -> Result<(), String> {
        match option {
            "--devices" => self.devices = devices(value)?,
            "--rate" | "--loss" | "--delay" => {
                let name = option.trim_start_matches('-');
                self.shape.extend([name.to_owned(), figure(option, value)?]);
            }
            "--timeout" => {
                self.timeout = Duration::from_secs(count(option, value, 1..=86_400)?.into());
            }
            "--share" => self.shares.push(folder(value)?),
            "--env" => self.env.push(variable(value)?),
            "--cpus" => self.cpus = count(option, value, 1..=64)?,
            "--memory" => self.memory_mib = count(option, value, 256..=1 << 20)?,
            _ => return Err(format!("unknown option {option}\n\n{HELP}")),
        }
        Ok(())
    }
}

fn devices(value: &str) -> Result<u32, String> {
    match value {
        "0" | "1" | "2" | "4" | "8" => count("--devices", value, 0..=8),
        _ => Err(format!("--devices {value}: give 0, 1, 2, 4 or 8")),
    }
}

fn count(option: &str, value: &str, range: std::ops::RangeInclusive<u32>) -> Result<u32, String> {
    let number = value.parse().ok().filter(|number| range.contains(number));
    number.ok_or_else(|| {
        let (least, most) = range.into_inner();
        format!("{option} {value}: give a whole number from {least} to {most}")
    })
}

/// Checks a number with its unit, because it goes into a script for the guest.
fn figure(option: &str, value: &str) -> Result<String, String> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'.' || byte == b'%';
    if value.starts_with(|first: char| first.is_ascii_digit()) && value.bytes().all(plain) {
        return Ok(value.to_owned());
    }
    Err(format!(
        "{option} {value}: give a number with its unit, such as 200mbit, 2% or 5ms"
    ))
}

fn folder(value: &str) -> Result<PathBuf, String> {
    let path = std::fs::canonicalize(value).map_err(|why| format!("--share {value}: {why}"))?;
    if path.is_dir() {
        Ok(path)
    } else {
        Err(format!("--share {value}: give a folder"))
    }
}

fn variable(value: &str) -> Result<(String, String), String> {
    let name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    match value.split_once('=') {
        Some((left, right)) if !left.is_empty() && left.bytes().all(name) => {
            Ok((left.to_owned(), right.to_owned()))
        }
        _ => Err(format!("--env {value}: give NAME=VALUE")),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::VmOptions;

    fn parse(line: &str) -> Result<Option<VmOptions>, String> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        VmOptions::parse(&words)
    }

    #[test]
    fn all_arguments_are_understood() {
        let options = parse(
            "--devices 4 --rate 200mbit --loss 2% --delay 5ms --timeout 7 --share / --env A=b=c \
             --cpus 3 --parallel --memory 512 --log -- prog --devices 9",
        );
        let expected = VmOptions {
            devices: 4,
            shape: ["rate", "200mbit", "loss", "2%", "delay", "5ms"]
                .map(str::to_owned)
                .to_vec(),
            timeout: Duration::from_secs(7),
            shares: vec!["/".into()],
            env: vec![("A".to_owned(), "b=c".to_owned())],
            cpus: 3,
            parallel: true,
            memory_mib: 512,
            log: true,
            command: ["prog", "--devices", "9"].map(str::to_owned).to_vec(),
        };
        assert_eq!(options.unwrap().unwrap(), expected);
    }

    #[test]
    fn the_command_begins_at_the_first_word_that_is_no_option() {
        let options = parse("--cpus 1 ls -l --help").unwrap().unwrap();
        assert_eq!(options.command, ["ls", "-l", "--help"]);
    }

    #[test]
    fn a_bad_argument_is_named() {
        for line in [
            "--devices 3 ls",
            "--loss ;reboot ls",
            "--timeout 0 ls",
            "--share /no/such ls",
            "--env =x ls",
            "--memory many ls",
            "--fast 1 ls",
        ] {
            let option = line.split(' ').next().unwrap();
            let why = parse(line).unwrap_err();
            assert!(why.contains(option), "{line}: {why}");
        }
        assert!(parse("--cpus").unwrap_err().contains("needs a value"));
        assert!(parse("--log").unwrap_err().contains("which command"));
        assert_eq!(parse("--help"), Ok(None));
    }
}
