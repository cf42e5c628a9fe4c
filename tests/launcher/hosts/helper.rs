//! The helper of a host, to which a test speaks as the launcher does.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, Stdio};

use super::fake::{MARK, bytes_of, text};
use crate::RIPSTOP;

/// A helper without a launcher. It ends by itself if a test says nothing for a minute, so no test hangs.
struct LoneHelper {
    process: Child,
    /// Its end ends the helper, and with it all ranks.
    input: ChildStdin,
    output: ChildStdout,
    errors: BufReader<ChildStderr>,
}

impl LoneHelper {
    /// Starts a helper that is ready to start ranks of a shell's script.
    fn ready(ranks: u32, script: &str) -> Self {
        let mut command = Command::new(RIPSTOP);
        command.args(["node", "1"]).stdin(Stdio::piped());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let mut helper = Self {
            input: process.stdin.take().unwrap(),
            output: process.stdout.take().unwrap(),
            errors: BufReader::new(process.stderr.take().unwrap()),
            process,
        };
        let mut mark = [0; MARK.len()];
        helper.output.read_exact(&mut mark).unwrap();
        assert_eq!(mark, MARK);
        let setup = bytes_of(SETUP, &setup(ranks, script));
        helper.say(&[setup, bytes_of(CHECK, &[])]);
        helper.hear(READY);
        helper
    }

    /// Sends frames in one write.
    fn say(&mut self, frames: &[Vec<u8>]) {
        self.input.write_all(&frames.concat()).unwrap();
    }

    /// Reads up to the next frame of this kind, and returns its payload.
    fn hear(&mut self, kind: u8) -> Vec<u8> {
        loop {
            let mut header = [0; 5];
            self.output.read_exact(&mut header).unwrap();
            let [said, length @ ..] = header;
            let mut payload = vec![0; u32::from_le_bytes(length) as usize];
            self.output.read_exact(&mut payload).unwrap();
            if said == kind {
                return payload;
            }
        }
    }
}

/// The description of a job that is on one host.
fn setup(ranks: u32, script: &str) -> Vec<u8> {
    let numbers: Vec<u8> = (0..ranks).flat_map(u32::to_le_bytes).collect();
    let path = std::env::var("PATH").unwrap();
    [
        ranks.to_le_bytes().to_vec(),
        text(numbers),
        text(""), // No CPUs are named for a rank.
        text("kvs"),
        text(format!("(vector,(0,1,{ranks}))")),
        vec![2], // It is bound to nothing.
        60_000_u32.to_le_bytes().to_vec(),
        text("/"),
        1_u32.to_le_bytes().to_vec(), // One program, from rank 0 on.
        0_u32.to_le_bytes().to_vec(),
        text("sh"),
        2_u32.to_le_bytes().to_vec(),
        text("-c"),
        text(script),
        text("PATH"),
        text(path),
    ]
    .concat()
}

// Frames of the launcher.
const SETUP: u8 = 1;
const CHECK: u8 = 2;
const START: u8 = 3;
const SIGNAL: u8 = 4;
const INPUT: u8 = 5;
const INPUT_END: u8 = 6;

// Frames of the helper.
const READY: u8 = 2;
const OUTPUT: u8 = 5;
const ENDED: u8 = 6;

#[test]
fn a_signal_directly_behind_the_start_reaches_all_ranks() {
    let mut helper = LoneHelper::ready(5, "exec sleep 1000");
    let term = 15_u32.to_le_bytes();
    helper.say(&[bytes_of(START, &[]), bytes_of(SIGNAL, &term)]);
    let mut ended: Vec<Vec<u8>> = (0..5).map(|_| helper.hear(ENDED)).collect();
    ended.sort();
    let expected = (0..5_u32).map(|rank| [rank.to_le_bytes(), term].concat());
    assert_eq!(ended, expected.collect::<Vec<_>>());
}

#[test]
fn input_directly_behind_the_start_reaches_rank_0() {
    let mut helper = LoneHelper::ready(2, "[ $PMI_RANK = 0 ] && exec cat; exec sleep 1000");
    let start = [
        bytes_of(START, &[]),
        bytes_of(INPUT, b"hello"),
        bytes_of(INPUT_END, &[]),
    ];
    helper.say(&start);
    assert_eq!(helper.hear(OUTPUT), b"\0\0\0\0\0hello");
}

#[test]
fn a_launcher_that_makes_no_sense_is_not_heard_again() {
    let stubborn = "trap '' TERM; echo here; while :; do sleep 1000; done";
    let mut helper = LoneHelper::ready(1, stubborn);
    helper.say(&[bytes_of(START, &[])]);
    helper.hear(OUTPUT);
    helper.say(&[bytes_of(255, &[])]);
    let mut said = String::new();
    helper.errors.read_line(&mut said).unwrap();
    assert!(
        said.contains("the launcher sent a frame of 0 bytes, kind 255"),
        "{said}"
    );
    let _closed = helper.input.write_all(&bytes_of(255, &[])); // It may have ended already.
    let mut rest = String::new();
    helper.errors.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "");
    assert_eq!(helper.process.wait().unwrap().code(), Some(1));
}
