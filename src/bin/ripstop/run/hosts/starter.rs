//! The command that starts a helper on a host.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::time::Duration;

use super::list::ListedHost;

/// How helpers are started on other hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum HelperStarter {
    Ssh,
    Srun,
    Blaunch,
    PbsTmrsh,
    /// The words of a command; the host takes the place of each `%h`.
    Words(Vec<String>),
}

impl HelperStarter {
    /// Parses the value of `--start-with`.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let words: Vec<String> = text.split_ascii_whitespace().map(str::to_owned).collect();
        match text.trim() {
            "ssh" => Ok(Self::Ssh),
            "srun" => Ok(Self::Srun),
            "blaunch" => Ok(Self::Blaunch),
            "pbs_tmrsh" => Ok(Self::PbsTmrsh),
            "" => Err("it names no command".to_owned()),
            _ if text.contains(['\'', '"', '\\']) => Err(
                "quotes and backslashes have no meaning here: write a script, and name that"
                    .to_owned(),
            ),
            _ if words[0].contains("%h") => Err("the command itself cannot be the host".to_owned()),
            _ => Ok(Self::Words(words)),
        }
    }

    /// Returns the words that start `helper` on the host. A host that is silent for `patience` is lost.
    pub(super) fn command(
        &self,
        host: &ListedHost,
        helper: &Path,
        patience: Duration,
    ) -> Result<Vec<OsString>, String> {
        let words: Vec<String> = match self {
            Self::Ssh => return ssh(host, helper, patience),
            Self::Srun => SRUN.iter().map(|&word| word.to_owned()).collect(),
            Self::Blaunch => vec!["blaunch".to_owned()],
            Self::PbsTmrsh => vec!["pbs_tmrsh".to_owned()],
            Self::Words(words) => words.clone(),
        };
        let name = match (&host.user, self) {
            (None, _) => host.name.clone(),
            (Some(user), Self::Words(_)) => format!("{user}@{}", host.name),
            (Some(user), _) => {
                return Err(format!(
                    "{} starts no helper as user {user}: only ssh does",
                    words[0]
                ));
            }
        };
        let mut words: Vec<String> = match self {
            Self::Srun => words
                .into_iter()
                .chain([format!("--nodelist={name}")])
                .collect(),
            _ if words.iter().any(|word| word.contains("%h")) => {
                words.iter().map(|word| word.replace("%h", &name)).collect()
            }
            _ => words.into_iter().chain([name]).collect(),
        };
        let helper = [
            helper.as_os_str().to_owned(),
            "node".into(),
            PROTOCOL.into(),
        ];
        Ok(words.drain(..).map(OsString::from).chain(helper).collect())
    }
}

/// ssh gives the remote shell one line, so the path of the helper is quoted for any shell if need be.
fn ssh(host: &ListedHost, helper: &Path, patience: Duration) -> Result<Vec<OsString>, String> {
    let path = helper.as_os_str().as_bytes();
    let quote: &[u8] = if path.iter().all(|&byte| is_plain(byte)) {
        b""
    } else if path.iter().any(|byte| b"'\\!\n".contains(byte)) {
        return Err(format!(
            "no shell of another host understands {}: give the folder of this command a plain name",
            helper.display()
        ));
    } else {
        b"'"
    };
    let line = [b"exec ", quote, path, quote, b" node ", PROTOCOL.as_bytes()].concat();
    let mut words: Vec<OsString> = SSH.iter().map(OsString::from).collect();
    // The launcher decides when a host is lost. ssh gives up only later, in case that the launcher was killed meanwhile.
    let questions = patience.as_secs() / SSH_ASKS_S + 2;
    words.extend([
        format!("-oServerAliveInterval={SSH_ASKS_S}").into(),
        format!("-oServerAliveCountMax={questions}").into(),
    ]);
    if let Some(user) = &host.user {
        words.extend(["-l".into(), user.into()]);
    }
    words.extend([
        "--".into(),
        OsString::from(&host.name),
        OsString::from_vec(line),
    ]);
    Ok(words)
}

/// Formats a command as one would type it.
pub(super) fn typed(words: &[OsString]) -> String {
    let typed = words.iter().map(|word| {
        let word = word.to_string_lossy();
        if !word.is_empty() && word.bytes().all(|byte| is_plain(byte) || byte == b'%') {
            word.into_owned()
        } else {
            format!("'{}'", word.replace('\'', "'\\''"))
        }
    });
    typed.collect::<Vec<_>>().join(" ")
}

/// Returns true for a byte that no shell gives a meaning, within a word.
fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"/._-+,:=@".contains(&byte)
}

/// The version of what the launcher and its helpers say.
pub(in crate::run) const PROTOCOL: &str = "1";

/// No terminal and no forwarding; no questions, because there is no terminal to answer at; no shared connection, which would
/// take the channels of all hosts down with it. The user's own policy about host keys holds.
const SSH: &[&str] = &[
    "ssh",
    "-T",
    "-x",
    "-a",
    "-oClearAllForwardings=yes",
    "-oBatchMode=yes",
    "-oConnectTimeout=10",
    "-oConnectionAttempts=1",
    "-oControlMaster=no",
    "-oControlPath=none",
    "-oLogLevel=ERROR",
];

/// Seconds after which ssh asks a silent server for a sign.
const SSH_ASKS_S: u64 = 5;

/// Without `--overlap`, a step waits until another one of the allocation has ended. Without `--unbuffered`, what a helper says
/// waits for the end of a line, which may never come.
const SRUN: &[&str] = &[
    "srun",
    "--overlap",
    "--nodes=1",
    "--ntasks=1",
    "--cpu-bind=none",
    "--kill-on-bad-exit=1",
    "--unbuffered",
    "--quiet",
    "--mpi=none",
];

#[cfg(test)]
mod tests {
    use super::*;

    fn started(with: &str, host: &str, helper: &str) -> Result<String, String> {
        let host = super::super::list::parse(host).unwrap().remove(0);
        let patience = Duration::from_secs(60);
        let words = HelperStarter::parse(with)?.command(&host, Path::new(helper), patience)?;
        Ok(typed(&words))
    }

    #[test]
    fn ssh_has_more_patience_than_the_launcher() {
        let command = started("ssh", "n1", "/r").unwrap();
        let said = "-oServerAliveInterval=5 -oServerAliveCountMax=14 ";
        assert!(command.contains(said), "{command}");
    }

    #[test]
    fn each_starter_runs_the_same_short_command() {
        let of = |with| started(with, "n1", "/opt/ripstop").unwrap();
        assert!(of("ssh").starts_with("ssh -T -x -a "));
        assert!(of("ssh").ends_with(" -- n1 'exec /opt/ripstop node 1'"));
        assert!(of("srun").ends_with(" --mpi=none --nodelist=n1 /opt/ripstop node 1"));
        assert_eq!(of("blaunch"), "blaunch n1 /opt/ripstop node 1");
        assert_eq!(of("pbs_tmrsh"), "pbs_tmrsh n1 /opt/ripstop node 1");
        assert_eq!(of("rsh"), "rsh n1 /opt/ripstop node 1");
        assert_eq!(
            of("kubectl exec -i pod-%h --"),
            "kubectl exec -i pod-n1 -- /opt/ripstop node 1"
        );
    }

    #[test]
    fn a_user_goes_where_it_has_a_place() {
        let of = |with| started(with, "me@n1", "/r");
        assert!(of("ssh").unwrap().contains(" -l me -- n1 "));
        assert_eq!(of("rsh").unwrap(), "rsh me@n1 /r node 1");
        assert!(of("srun").unwrap_err().contains("as user me"));
    }

    #[test]
    fn a_path_is_quoted_or_refused() {
        let of = |helper| started("ssh", "n1", helper);
        assert!(
            of("/my tools/$x")
                .unwrap()
                .ends_with(r"'exec '\''/my tools/$x'\'' node 1'")
        );
        for helper in ["/a'b", "/a\\b", "/a!b", "/a\nb"] {
            assert!(of(helper).unwrap_err().contains("plain name"), "{helper}");
        }
    }

    #[test]
    fn a_starter_that_cannot_be_meant_is_refused() {
        for with in ["", "  ", "%h", "sh -c 'x'"] {
            assert!(HelperStarter::parse(with).is_err(), "{with:?}");
        }
    }
}
