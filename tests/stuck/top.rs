//! `ripstop top`: tables of jobs with real processes, on a pipe and on a terminal.

use std::{
    fs::File,
    io::{Read, Write},
    process::{Child, Command, Stdio},
    sync::mpsc::{Receiver, channel},
    thread::spawn,
};

use rustix::{
    process::{Pid, Signal, kill_process},
    pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt},
};
use serde_json::Value;

use super::{GUARD, RIPSTOP, StuckJob, now, place};

/// Runs `ripstop top` on a pipe. Returns its output and its code.
fn top(arguments: &[&str]) -> (String, Option<i32>) {
    let output = Command::new(RIPSTOP)
        .arg("top")
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = [output.stdout, output.stderr].concat();
    (
        String::from_utf8_lossy(&text).into_owned(),
        output.status.code(),
    )
}

/// Repeats `ripstop top` with these arguments until its output is as wanted. Returns that.
#[track_caller]
fn top_until(arguments: &[&str], is_wanted: impl Fn(&str) -> bool) -> String {
    let end = now() + GUARD;
    loop {
        let (text, code) = top(arguments);
        if is_wanted(&text) {
            assert_eq!(code, Some(0), "{text}");
            return text;
        }
        assert!(now() < end, "the last table is:\n{text}");
    }
}

#[test]
fn a_table_names_each_rank_and_the_line_of_its_oldest_operation() {
    let job = StuckJob::start(2, "recv_ring");
    let waits: [String; 2] = [1, 0].map(|peer| {
        let at = place("ring recv");
        format!(" s recv from rank {peer}, tag 3, communicator 0, {at}")
    });
    let pid = job.pid().to_string();
    // A rank may have begun to wait between the two looks of a table, and then it has moved.
    let is_at_rest = |line: &str, rank: &str, wait: &str| {
        let cells: Vec<&str> = line.split_whitespace().collect();
        let is_rank = cells.first() == Some(&rank) && cells.get(2) == Some(&"waiting");
        is_rank && cells.get(4..8) == Some(&["0"; 4]) && line.ends_with(wait)
    };
    let text = top_until(&[&pid], |text| {
        let lines: Vec<&str> = text.lines().collect();
        lines.len() == 4
            && is_at_rest(lines[2], "0", &waits[0])
            && is_at_rest(lines[3], "1", &waits[1])
    });
    assert!(text.contains("2 of 2 ranks on this machine"), "{text}");
}

#[test]
fn a_job_that_goes_on_has_operations_that_end_each_second() {
    let job = StuckJob::start(2, "slow");
    let pid = job.pid().to_string();
    let goes_on = |rank: &Value| {
        let is_moving = |field| rank[field].as_f64().is_some_and(|rate| rate > 0.0);
        is_moving("ended_per_s") && rank["error"].is_null() && rank["pid"].is_u64()
    };
    top_until(&[&pid, "--json"], |text| {
        let table: Value = serde_json::from_str(text).unwrap_or_default();
        let ranks = table["ranks"].as_array().cloned().unwrap_or_default();
        table["schema"] == 1 && ranks.len() == 2 && ranks.iter().all(goes_on)
    });
}

#[test]
fn a_rank_that_is_stopped_is_shown_as_such() {
    let job = StuckJob::start(2, "recv_ring");
    let pid = job.pid().to_string();
    let first = |text: &str| {
        let table: Value = serde_json::from_str(text).unwrap_or_default();
        // A table of the start may have only rank 1.
        let first = &table["ranks"][0];
        if first["rank"] == 0 {
            first.clone()
        } else {
            Value::Null
        }
    };
    let text = top_until(&[&pid, "--json"], |text| first(text)["state"] == "waiting");
    let rank = first(&text)["pid"]
        .as_i64()
        .and_then(|pid| i32::try_from(pid).ok());
    let rank = rank.and_then(Pid::from_raw).unwrap();
    kill_process(rank, Signal::STOP).unwrap();
    top_until(&[&pid, "--json"], |text| first(text)["state"] == "stopped");
}

#[test]
fn a_process_without_ranks_is_a_mistake_in_the_command_line() {
    let (text, code) = top(&["1"]);
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("belongs to process or job 1"), "{text}");
}

/// `ripstop top` on a terminal of its own.
struct TopOnTerminal {
    command: Child,
    keyboard: File,
    /// What is written to the terminal.
    shown: Receiver<Vec<u8>>,
    text: String,
    /// Keeps the terminal after the command has ended.
    _terminal: File,
}

impl TopOnTerminal {
    fn start(job: &StuckJob) -> Self {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let user = openpt(flags).unwrap();
        unlockpt(&user).unwrap();
        let terminal = File::from(ioctl_tiocgptpeer(&user, flags).unwrap());
        let command = Command::new(RIPSTOP)
            .args(["top", &job.pid().to_string()])
            .stdin(terminal.try_clone().unwrap())
            .stdout(terminal.try_clone().unwrap())
            .stderr(terminal.try_clone().unwrap())
            .spawn()
            .unwrap();
        let keyboard = File::from(user);
        let mut output = keyboard.try_clone().unwrap();
        let (sender, shown) = channel();
        spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count) = output.read(&mut bytes) {
                if count == 0 || sender.send(bytes[..count].to_vec()).is_err() {
                    break;
                }
            }
        });
        Self {
            command,
            keyboard,
            shown,
            text: String::new(),
            _terminal: terminal,
        }
    }

    /// Reads what is shown until that has this text, and drops all up to there.
    #[track_caller]
    fn read_past(&mut self, text: &str) {
        let end = now() + GUARD;
        loop {
            assert!(now() < end, "no {text:?} on the terminal");
            if let Some(at) = self.text.find(text) {
                self.text.drain(..at + text.len());
                return;
            }
            match self.shown.recv_timeout(GUARD) {
                Ok(bytes) => self.text += &String::from_utf8_lossy(&bytes),
                Err(_) => panic!("no {text:?} on the terminal"),
            }
        }
    }

    /// Checks that the command ends well and leaves the terminal as it was, with its last table and perhaps a last line.
    #[track_caller]
    fn ends(mut self, last: &str) {
        self.read_past("\x1b[?25h\x1b[?1049l");
        self.read_past("ended/s");
        self.read_past(last);
        assert!(self.command.wait().unwrap().success());
        // Only a terminal that shows what is typed, as at the start, repeats this.
        self.keyboard.write_all(b"typed later\n").unwrap();
        self.read_past("typed later\r\n");
    }
}

#[test]
fn a_key_and_signals_end_the_command_and_the_terminal_is_as_before() {
    let job = StuckJob::start(2, "recv_ring");
    let pid = job.pid().to_string();
    top_until(&[&pid], |text| text.contains("recv from"));
    let place = place("ring recv");
    let (_, line) = place.rsplit_once('/').unwrap();
    for end in [
        None,
        Some(Signal::INT),
        Some(Signal::TERM),
        Some(Signal::HUP),
    ] {
        let mut top = TopOnTerminal::start(&job);
        top.read_past("\x1b[?1049h");
        top.read_past("ended/s");
        top.read_past(line);
        match end {
            None => top.keyboard.write_all(b"xq").unwrap(),
            Some(signal) => kill_process(Pid::from_child(&top.command), signal).unwrap(),
        }
        top.ends("");
    }
}

#[test]
fn the_end_of_the_job_ends_the_command() {
    let job = StuckJob::start(2, "recv_ring");
    let pid = job.pid().to_string();
    top_until(&[&pid], |text| text.contains("recv from"));
    let mut top = TopOnTerminal::start(&job);
    top.read_past("ended/s");
    drop(job);
    top.ends(": all ranks on this machine have ended\r\n");
}
