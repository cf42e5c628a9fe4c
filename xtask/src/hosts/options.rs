//! The arguments of `cargo xtask hosts`.

pub(super) const HELP: &str = "\
cargo xtask hosts [OPTION..] [--] COMMAND [ARG..]
cargo xtask hosts --suite

Makes hosts h1, h2.. of namespaces on this machine, each with an sshd and a cable to one switch, and runs COMMAND on a machine
`login` beside them. There `ssh h1` works, and so does `ripstop run --hosts h1:2,h2:2`. The hosts share the files of this machine,
but no memory, no processes and no network with it or with each other. Everything ends with COMMAND, or with this command,
however that ends. Nothing outside is changed, also no file of yours, and no port outside is opened.

  --hosts N      hosts h1 to hN (default 2, at most 32)
  --rate MBIT    limits every cable, in both directions, to MBIT megabits in a second
  --json         prints a line with the names and addresses of the hosts before COMMAND runs
  --suite        runs jobs over four such hosts, as the gate does: examples, measurements, killed ranks, lost hosts, poor
                 networks, strangers

COMMAND can use:

  cable pull h2  cuts h2 off silently; `cable deaf h2` and `cable mute h2` only in one direction; `cable lose h2 5` loses 5 % of
                 its packets, and `cable narrow h2 1280` those of more than 1280 bytes; `cable plug h2` mends all that;
                 `cable rate h2 100` limits it to 100 Mbit/s; `cable delay h2 20 1` delays by 20 ms and loses 1 % (`cable --help`)
  power off h2   kills all processes of h2 at once; `power on h2` starts it again
  on h2 ps ax    runs a command on h2 without the network, so also if h2 is cut off

The folder in $TEST_HOSTS has a file h2.first with the process id of h2's first process, as COMMAND sees it.

It needs root, or user namespaces with subordinate ids (newuidmap), and Debian's openssh-server and iproute2.
Exit status: COMMAND's; 125 with a message if the hosts could not be made, 1 if this machine cannot make any.

  cargo xtask hosts -- target/debug/ripstop run --hosts h1:2,h2:2 --label target/debug/examples/hello
  cargo xtask hosts --hosts 4 --rate 1000 -- bash";

/// The hosts to make, and the command to run among them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HostsOptions {
    pub(super) hosts: u8,
    /// Megabits in a second that each cable carries.
    pub(super) rate: Option<u32>,
    pub(super) json: bool,
    pub(super) command: Vec<String>,
}

impl HostsOptions {
    /// Parses the arguments; `None` if help was asked for.
    pub(super) fn parse(args: &[String]) -> Result<Option<Self>, String> {
        let mut options = Self {
            hosts: 2,
            rate: None,
            json: false,
            command: Vec::new(),
        };
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--help" | "-h" => return Ok(None),
                "--json" => options.json = true,
                "--hosts" => options.hosts = number(arg, args.next(), 32)?,
                "--rate" => options.rate = Some(number(arg, args.next(), 1_000_000)?),
                "--" => options.command = args.by_ref().cloned().collect(),
                option if option.starts_with('-') => {
                    return Err(format!("unknown option {option}\n\n{HELP}"));
                }
                _ => options.command = [arg].into_iter().chain(args.by_ref()).cloned().collect(),
            }
        }
        if options.command.is_empty() {
            return Err(format!("say which command to run\n\n{HELP}"));
        }
        Ok(Some(options))
    }
}

fn number<T: TryFrom<u32>>(option: &str, value: Option<&String>, most: u32) -> Result<T, String> {
    let text = value.ok_or_else(|| format!("{option} needs a value\n\n{HELP}"))?;
    let number = text
        .parse()
        .ok()
        .filter(|number| (1..=most).contains(number));
    number
        .and_then(|number| T::try_from(number).ok())
        .ok_or_else(|| format!("{option} {text}: give a whole number from 1 to {most}"))
}

#[cfg(test)]
mod tests {
    use super::HostsOptions;

    fn parse(line: &str) -> Result<Option<HostsOptions>, String> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        HostsOptions::parse(&words)
    }

    #[test]
    fn all_arguments_are_understood() {
        let options = parse("--hosts 3 --rate 200 --json -- prog --hosts 9").unwrap();
        let expected = HostsOptions {
            hosts: 3,
            rate: Some(200),
            json: true,
            command: ["prog", "--hosts", "9"].map(str::to_owned).to_vec(),
        };
        assert_eq!(options, Some(expected));
    }

    #[test]
    fn the_command_begins_at_the_first_word_that_is_no_option() {
        let options = parse("ssh h1 ls --help").unwrap().unwrap();
        assert_eq!(options.command, ["ssh", "h1", "ls", "--help"]);
        assert_eq!(
            (options.hosts, options.rate, options.json),
            (2, None, false)
        );
    }

    #[test]
    fn a_bad_argument_is_named() {
        for line in [
            "--hosts 0 ls",
            "--hosts 33 ls",
            "--hosts 1e9 ls",
            "--rate -1 ls",
            "--fast ls",
        ] {
            let option = line.split(' ').next().unwrap();
            let why = parse(line).unwrap_err();
            assert!(why.contains(option), "{line}: {why}");
        }
        assert!(parse("--rate").unwrap_err().contains("needs a value"));
        assert!(parse("--json").unwrap_err().contains("which command"));
        assert_eq!(parse("--help"), Ok(None));
    }
}
