//! Pure: what the ranks of a host wait for, as bytes that its helper sends to the launcher.

use ripstop_rt::internal::view::layout::{RankView, ViewHead, decode, encode};
use ripstop_rt::internal::view::report::{ObservedJob, ObservedRank, ProcessState};
use ripstop_rt::internal::view::{FlightEvent, FlightKind, FlightRecord, RankFlight};

use super::frame::payload::{PayloadReader, PayloadWriter};

/// The most bytes of one rank: two views, and what the system says of its process.
pub(super) const RANK_MAX: usize = 264 << 10;

/// Returns the bytes of what a host has observed.
pub(in crate::run) fn write(job: &ObservedJob) -> Vec<u8> {
    let mut bytes = PayloadWriter::default();
    bytes.number(job.size);
    bytes.long(job.now);
    bytes.long(job.between);
    for rank in &job.ranks {
        bytes.number(rank.rank);
        bytes.number(rank.pid);
        write_process(&rank.process, &mut bytes);
        match &rank.view {
            Ok(view) => write_view(Some(view), &mut bytes),
            Err(why) => {
                bytes.byte(UNREADABLE);
                bytes.text(why.as_bytes());
            }
        }
        write_view(rank.before.as_ref(), &mut bytes);
    }
    bytes.bytes
}

/// Returns what a host has observed, or `None` if these bytes are nothing of the kind.
pub(super) fn read(bytes: &[u8]) -> Option<ObservedJob> {
    let mut bytes = PayloadReader::new(bytes);
    let (size, now, between) = (bytes.number()?, bytes.long()?, bytes.long()?);
    let ranks = bytes.list(|bytes| read_rank(bytes, size))?;
    Some(ObservedJob {
        name: String::new(),
        size,
        now,
        between,
        knows_all: false,
        ranks,
    })
}

fn read_rank(bytes: &mut PayloadReader<'_>, size: u32) -> Option<ObservedRank> {
    let (rank, pid) = (bytes.number()?, bytes.number()?);
    let process = read_process(bytes)?;
    let head = ViewHead::new(rank, size, 0);
    let view = match bytes.byte()? {
        UNREADABLE => Err(word(bytes)?),
        kind => Ok(read_view(kind, head, bytes)?),
    };
    let before = match bytes.byte()? {
        UNREADABLE => None,
        kind => Some(read_view(kind, head, bytes)?),
    };
    Some(ObservedRank {
        rank,
        node: String::new(),
        pid,
        process,
        view,
        before,
    })
}

fn write_view(view: Option<&RankView>, into: &mut PayloadWriter) {
    let Some(view) = view else {
        return into.byte(UNREADABLE);
    };
    into.byte(if view.is_current { CURRENT } else { OLDER });
    into.text(&encode(&view.snapshot));
    into.long(view.flight.events);
    into.number(u32::try_from(view.flight.records.len()).expect("a ring has 4096 records"));
    let records = view.flight.records.iter();
    records.for_each(|record| write_record(record, into));
}

fn write_record(record: &FlightRecord, into: &mut PayloadWriter) {
    into.long(record.number);
    into.byte(record.event as u8);
    into.byte(record.kind as u8);
    for value in [record.peer, record.tag] {
        into.byte(u8::from(value.is_some()));
        into.number(value.unwrap_or(0));
    }
    into.number(record.comm);
    into.number(record.bytes);
    into.long(record.before.unwrap_or(NO_TIME));
    into.text(record.at.as_bytes());
}

fn read_record(bytes: &mut PayloadReader<'_>) -> Option<FlightRecord> {
    let number = bytes.long()?;
    let event = FlightEvent::of_code(bytes.byte()?)?;
    let kind = FlightKind::of_code(bytes.byte()?)?;
    let mut value = || {
        let is_some = bytes.byte()? != 0;
        let value = bytes.number()?;
        Some(is_some.then_some(value))
    };
    let (peer, tag) = (value()?, value()?);
    let (comm, len) = (bytes.number()?, bytes.number()?);
    let before = bytes.long()?;
    Some(FlightRecord {
        number,
        event,
        kind,
        peer,
        tag,
        comm,
        bytes: len,
        before: (before != NO_TIME).then_some(before),
        at: word(bytes)?,
    })
}

fn read_flight(bytes: &mut PayloadReader<'_>) -> Option<RankFlight> {
    let (events, count) = (bytes.long()?, bytes.number()?);
    let records = (0..count).map(|_| read_record(bytes));
    Some(RankFlight {
        events,
        records: records.collect::<Option<_>>()?,
    })
}

fn read_view(kind: u8, head: ViewHead, bytes: &mut PayloadReader<'_>) -> Option<RankView> {
    Some(RankView {
        head,
        is_current: match kind {
            CURRENT => true,
            OLDER => false,
            _ => return None,
        },
        snapshot: decode(bytes.text()?)?,
        flight: read_flight(bytes)?,
    })
}

fn write_process(process: &ProcessState, into: &mut PayloadWriter) {
    let (kind, number, text) = match process {
        ProcessState::Alive {
            percent,
            sleeps_in,
            is_running,
        } => (if *is_running { 5 } else { 0 }, *percent, &**sleeps_in),
        ProcessState::InKernel { function } => (1, 0, &**function),
        ProcessState::Stopped => (2, 0, ""),
        ProcessState::Ended { how, ago: None } => (3, 0, &**how),
        ProcessState::Ended { how, ago: Some(_) } => (4, 0, &**how),
    };
    into.byte(kind);
    into.number(number);
    into.text(text.as_bytes());
    if let ProcessState::Ended { ago: Some(ago), .. } = process {
        into.long(*ago);
    }
}

fn read_process(bytes: &mut PayloadReader<'_>) -> Option<ProcessState> {
    let (kind, percent, text) = (bytes.byte()?, bytes.number()?, word(bytes)?);
    Some(match kind {
        0 | 5 => ProcessState::Alive {
            percent,
            sleeps_in: text,
            is_running: kind == 5,
        },
        1 => ProcessState::InKernel { function: text },
        2 => ProcessState::Stopped,
        3 => ProcessState::Ended {
            how: text,
            ago: None,
        },
        4 => ProcessState::Ended {
            how: text,
            ago: Some(bytes.long()?),
        },
        _ => return None,
    })
}

/// Takes a text that will be printed, and so has no control characters.
fn word(bytes: &mut PayloadReader<'_>) -> Option<String> {
    Some(bytes.string()?.replace(char::is_control, " "))
}

/// Stands for the time of a record that has none.
const NO_TIME: u64 = u64::MAX;

/// What stands in front of a view.
const UNREADABLE: u8 = 0;
const CURRENT: u8 = 1;
const OLDER: u8 = 2;

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, proptest};
    use ripstop_rt::internal::view::RankSnapshot;

    use super::*;

    fn job() -> ObservedJob {
        let record = |number, peer, before| FlightRecord {
            number,
            event: FlightEvent::Ended,
            kind: FlightKind::Recv,
            peer,
            tag: Some(4),
            comm: 2,
            bytes: 8,
            before,
            at: "src/halo.rs:88".to_owned(),
        };
        let view = |number, is_current| RankView {
            head: ViewHead::new(3, 4, 0),
            is_current,
            snapshot: RankSnapshot {
                number,
                taken: 5 << 40,
                ..RankSnapshot::default()
            },
            flight: RankFlight {
                events: number,
                records: vec![
                    record(number, None, Some(5 << 40)),
                    record(number + 1, Some(2), None),
                ],
            },
        };
        let rank = |rank, process, view, before| ObservedRank {
            rank,
            node: String::new(),
            pid: 100 + rank,
            process,
            view,
            before,
        };
        let how = || "was killed by signal 9 (SIGKILL)".to_owned();
        let ended = |ago| ProcessState::Ended { how: how(), ago };
        let alive = ProcessState::Alive {
            percent: 97,
            sleeps_in: "do_poll".to_owned(),
            is_running: false,
        };
        let running = ProcessState::Alive {
            percent: 1,
            sleeps_in: String::new(),
            is_running: true,
        };
        let in_kernel = ProcessState::InKernel {
            function: "nfs_wait".to_owned(),
        };
        ObservedJob {
            name: String::new(),
            size: 4,
            now: 6 << 40,
            between: 1_000_000_000,
            knows_all: false,
            ranks: vec![
                rank(3, alive, Ok(view(9, true)), Some(view(8, false))),
                rank(0, in_kernel, Err("it is too short".to_owned()), None),
                rank(1, ended(Some(7 << 33)), Ok(view(1, false)), None),
                rank(2, ended(None), Ok(view(1, false)), None),
                rank(2, ProcessState::Stopped, Ok(view(1, false)), None),
                rank(2, running, Ok(view(1, false)), None),
            ],
        }
    }

    #[test]
    fn what_a_host_has_observed_comes_back_as_it_was_sent() {
        let (sent, got) = (job(), read(&write(&job())).unwrap());
        assert_eq!(
            (got.size, got.now, got.between),
            (4, sent.now, sent.between)
        );
        assert_eq!(got.ranks.len(), sent.ranks.len());
        for (sent, got) in sent.ranks.iter().zip(&got.ranks) {
            assert_eq!((sent.rank, sent.pid), (got.rank, got.pid));
            assert_eq!(sent.process, got.process);
            let plain = |rank: &ObservedRank| {
                let parts = |view: &RankView| {
                    let (snapshot, flight) = (view.snapshot.clone(), view.flight.clone());
                    (view.is_current, snapshot, flight)
                };
                let view = rank.view.as_ref().map(parts).map_err(Clone::clone);
                (view, rank.before.as_ref().map(parts))
            };
            assert_eq!(plain(sent), plain(got));
        }
        let bytes = write(&job());
        assert!(
            (0..bytes.len()).all(|len| read(&bytes[..len]).is_none_or(|job| job.ranks.len() < 6))
        );
    }

    proptest! {
        #[test]
        fn a_changed_answer_of_a_host_is_read_or_refused(at in any::<usize>(), to in any::<u8>()) {
            let mut bytes = write(&job());
            let length = bytes.len();
            bytes[at % length] = to;
            let _ = read(&bytes);
        }
    }
}
