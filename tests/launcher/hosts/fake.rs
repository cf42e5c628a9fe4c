//! A helper that says what a test wants, and starts nothing.

use std::io::{Read, Write, stdin, stdout};

use super::{Folder, LIKE_SSH};
use crate::roles::{AS_RANK, ROLE};

/// The first bytes of a helper.
pub(super) const MARK: &[u8] = b"\0ripstop node 1\0";

/// The variable with the acts of the helper.
const ACTS: &str = "LAUNCHER_TEST_ACTS";

impl Folder {
    /// Makes a starter. The helper of host `bad` acts as told, and those of other hosts are true ones. The acts are words:
    /// a frame that the helper sends, or something that it waits for.
    pub(super) fn starter_of_fake(&self, acts: &str) -> String {
        let program = std::env::current_exe().unwrap();
        let (program, words) = (program.display(), AS_RANK.join(" "));
        let fake = format!("export {ROLE}=helper {ACTS}='{acts}'; exec {program} {words}");
        self.starter(&format!("if [ $host = bad ]; then {fake}\nfi\n{LIKE_SSH}"))
    }
}

/// Does what [`ACTS`] says.
pub(crate) fn live() -> ! {
    say(MARK);
    for act in std::env::var(ACTS).unwrap().split_whitespace() {
        match act {
            "await-start" => while next_kind().unwrap() != 3 {},
            "await-end" => while next_kind().is_some() {},
            _ => say(&frame(act)),
        }
    }
    std::process::exit(0)
}

/// Returns the bytes of a frame: `kind`, or `kind:number`.
fn frame(act: &str) -> Vec<u8> {
    let (kind, number) = act.split_once(':').unwrap_or((act, "0"));
    let number: u32 = number.parse().unwrap();
    let (number, zero) = (number.to_le_bytes(), 0_u32.to_le_bytes());
    let (kind, payload) = match kind {
        "beat" => (0_u8, vec![]),
        "hello" => (1, [text(env!("CARGO_PKG_VERSION")), text("fake")].concat()),
        "ready" => (2, vec![]),
        "refused" => (3, [vec![number[0]], text("it does not want to")].concat()),
        "started" => (4, [number, number].concat()),
        "ended" => (6, [number, zero].concat()),
        "bye" => (14, vec![]),
        _ => panic!("{act}"),
    };
    bytes_of(kind, &payload)
}

pub(super) fn bytes_of(kind: u8, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap();
    [&[kind][..], &length.to_le_bytes(), payload].concat()
}

/// Returns the bytes of a text in a frame.
pub(super) fn text(text: impl AsRef<[u8]>) -> Vec<u8> {
    let text = text.as_ref();
    let length = u32::try_from(text.len()).unwrap();
    [&length.to_le_bytes(), text].concat()
}

/// Reads a frame of the launcher, and returns its kind, or `None` at the end.
fn next_kind() -> Option<u8> {
    let mut header = [0; 5];
    stdin().read_exact(&mut header).ok()?;
    let [kind, length @ ..] = header;
    let mut payload = vec![0; u32::from_le_bytes(length) as usize];
    stdin().read_exact(&mut payload).ok()?;
    Some(kind)
}

fn say(bytes: &[u8]) {
    stdout().write_all(bytes).unwrap();
    stdout().flush().unwrap();
}
