//! The world as data: names, addresses, and the script that makes it.

use std::fmt::Write as _;

use serde_json::{Value, json};

/// The hosts of a world, and how they are made.
#[derive(Clone, Debug)]
pub(super) struct WorldPlan {
    pub(super) hosts: u8,
    /// Megabits in a second that each cable carries.
    pub(super) rate: Option<u32>,
    /// Paths of programs that are not always in PATH.
    pub(super) sshd: String,
    pub(super) ssh: String,
}

impl WorldPlan {
    /// Returns the script of the first process. Its arguments are the command to run.
    pub(super) fn script(&self) -> String {
        let mut script = format!("{WORLD}\nrate={}\nbegin\n", rate(self.rate));
        for (name, mode, text) in self.files() {
            add(
                &mut script,
                format_args!("put {name} {mode} <<'END OF FILE'\n{text}\nEND OF FILE"),
            );
        }
        script.push_str("prepare\n");
        for number in 1..=self.hosts {
            let [four, six] = addresses(number);
            add(
                &mut script,
                format_args!("host h{number} {four}/24 {six}/64"),
            );
        }
        let [four, six] = addresses(LOGIN);
        add(&mut script, format_args!("run {four}/24 {six}/64 \"$@\""));
        script
    }

    /// Returns the names and addresses of all hosts.
    pub(super) fn json(&self) -> Value {
        let host = |number| {
            let [four, six] = addresses(number);
            json!({"name": format!("h{number}"), "ipv4": four, "ipv6": six})
        };
        let hosts: Vec<Value> = (1..=self.hosts).map(host).collect();
        json!({"hosts": hosts, "rate_mbit": self.rate})
    }

    fn files(&self) -> [(&'static str, &'static str, String); 11] {
        let tool = |name, text: &str| (name, "755", text.trim_end().to_owned());
        let file = |name, text: String| (name, "644", text.trim_end().to_owned());
        [
            tool("bin/cable", include_str!("world/cable.sh")),
            tool("bin/on", include_str!("world/on.sh")),
            tool("bin/power", include_str!("world/power.sh")),
            tool("bin/ssh", include_str!("world/ssh.sh")),
            file("host.sh", include_str!("world/host.sh").to_owned()),
            file("names", self.names()),
            file("ssh", self.ssh.clone()),
            file("sshd", self.sshd.clone()),
            file("ssh_config", SSH_CONFIG.to_owned()),
            file("sshd_config", SSHD_CONFIG.to_owned()),
            file(
                "README",
                "Made by `cargo xtask hosts`, and gone with it.".to_owned(),
            ),
        ]
    }

    /// Returns the text of `/etc/hosts`.
    fn names(&self) -> String {
        let mut names = "127.0.0.1 localhost\n::1 localhost\n".to_owned();
        let hosts = (1..=self.hosts).map(|number| (number, format!("h{number}")));
        for (number, name) in hosts.chain([(LOGIN, "login".to_owned())]) {
            for address in addresses(number) {
                add(&mut names, format_args!("{address} {name}"));
            }
        }
        names
    }
}

/// Returns the addresses of a host. No other network can be reached from there, so they collide with none.
fn addresses(number: u8) -> [String; 2] {
    [format!("10.99.0.{number}"), format!("fd99::{number:x}")]
}

fn rate(rate: Option<u32>) -> String {
    rate.map_or_else(String::new, |mbit| mbit.to_string())
}

fn add(text: &mut String, line: std::fmt::Arguments<'_>) {
    writeln!(text, "{line}").expect("writing to a string never fails");
}

/// The number of the machine that is no host.
const LOGIN: u8 = 254;

const WORLD: &str = include_str!("world/world.sh");

/// Names no file of the user, and no agent.
const SSH_CONFIG: &str = "\
IdentityFile /run/hosts/user_key
IdentitiesOnly yes
IdentityAgent none
UserKnownHostsFile /run/hosts/known_hosts
GlobalKnownHostsFile /dev/null
StrictHostKeyChecking yes
UpdateHostKeys no";

/// All hosts start many sessions at once, and none asks the user's files.
const SSHD_CONFIG: &str = "\
HostKey /run/hosts/host_key
AuthorizedKeysFile /run/hosts/user_key.pub
PermitRootLogin prohibit-password
PermitUserRC no
StrictModes no
UsePAM no
UseDNS no
PasswordAuthentication no
KbdInteractiveAuthentication no
PrintMotd no
MaxStartups 100
MaxSessions 100";

#[cfg(test)]
mod tests {
    use super::WorldPlan;

    fn plan(hosts: u8) -> WorldPlan {
        WorldPlan {
            hosts,
            rate: Some(100),
            sshd: "/usr/sbin/sshd".to_owned(),
            ssh: "/usr/bin/ssh".to_owned(),
        }
    }

    #[test]
    fn each_host_has_addresses_and_a_name_of_its_own() {
        let names = plan(32).names();
        let mut lines: Vec<&str> = names.lines().collect();
        assert!(names.contains("\n10.99.0.1 h1\nfd99::1 h1\n"), "{names}");
        assert!(
            names.contains("\nfd99::20 h32\n10.99.0.254 login\n"),
            "{names}"
        );
        lines.sort_unstable();
        lines.dedup();
        assert_eq!(lines.len(), 2 * (1 + 32 + 1));
    }

    #[test]
    fn the_script_makes_all_hosts_before_it_runs_the_command() {
        let script = plan(2).script();
        let end = "prepare\nhost h1 10.99.0.1/24 fd99::1/64\nhost h2 10.99.0.2/24 fd99::2/64\n\
                   run 10.99.0.254/24 fd99::fe/64 \"$@\"\n";
        assert!(script.ends_with(end), "{script}");
        assert!(
            script.contains("\nrate=100\nbegin\nput bin/cable 755 <<'END OF FILE'\n#!/bin/sh\n")
        );
        let ends = script.lines().filter(|line| *line == "END OF FILE");
        assert_eq!(ends.count(), plan(2).files().len());
    }

    #[test]
    fn the_configurations_name_no_file_outside_of_the_world() {
        for (name, _, text) in plan(1).files() {
            assert!(
                !text.contains('~') && !text.contains("HOME"),
                "{name}: {text}"
            );
        }
        let outside = |text: &str| !text.contains("/run/hosts/") && text.contains('/');
        let lines = [super::SSH_CONFIG, super::SSHD_CONFIG].concat();
        let strange: Vec<&str> = lines.lines().filter(|line| outside(line)).collect();
        assert_eq!(strange, ["GlobalKnownHostsFile /dev/null"]);
    }

    #[test]
    fn the_line_of_json_has_all_hosts() {
        let expected =
            r#"{"hosts":[{"ipv4":"10.99.0.1","ipv6":"fd99::1","name":"h1"}],"rate_mbit":100}"#;
        assert_eq!(plan(1).json().to_string(), expected);
    }
}
