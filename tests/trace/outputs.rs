//! The files that `ripstop trace` writes.

use std::{fs, io::Read};

use flate2::read::GzDecoder;

use super::{
    TraceFolder, ripstop,
    roles::{CROWD, EPOCHS, STREAM},
    text_of,
};

/// A field of a protobuf message.
enum ProtoField<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// Returns the fields of a message with their numbers.
fn fields(mut bytes: &[u8]) -> Vec<(u64, ProtoField<'_>)> {
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes);
        let field = match key & 7 {
            0 => ProtoField::Number(varint(&mut bytes)),
            1 => {
                let (value, rest) = bytes.split_at(8);
                bytes = rest;
                ProtoField::Number(u64::from_le_bytes(value.try_into().unwrap()))
            }
            2 => {
                let len = usize::try_from(varint(&mut bytes)).unwrap();
                let (value, rest) = bytes.split_at(len);
                bytes = rest;
                ProtoField::Bytes(value)
            }
            other => panic!("wire type {other}"),
        };
        all.push((key >> 3, field));
    }
    all
}

fn varint(bytes: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first().unwrap();
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            break;
        }
    }
    value
}

pub(crate) fn number(message: &[u8], field: u64) -> Option<u64> {
    fields(message)
        .into_iter()
        .find_map(|(its, value)| match value {
            ProtoField::Number(value) if its == field => Some(value),
            _ => None,
        })
}

pub(crate) fn messages(message: &[u8], field: u64) -> Vec<&[u8]> {
    let all = fields(message).into_iter();
    all.filter_map(|(its, value)| match value {
        ProtoField::Bytes(value) if its == field => Some(value),
        _ => None,
    })
    .collect()
}

#[test]
fn the_file_for_perfetto_has_every_operation_and_an_arrow_for_every_message() {
    let folder = TraceFolder::new("perfetto");
    let trace = folder.trace(2, "stream");
    let output = ripstop(&["trace"], &trace);
    assert!(output.status.success(), "{}", text_of(&output));
    let packed = fs::read(folder.path("run.pftrace.gz")).unwrap();
    let bytes = unpacked(&packed);
    let (mut begins, mut ends, mut instants) = (0, 0, 0);
    let (mut leaves, mut reaches) = (Vec::new(), Vec::new());
    for packet in messages(&bytes, 1) {
        for event in messages(packet, 11) {
            match number(event, 9).unwrap() {
                1 => begins += 1,
                2 => ends += 1,
                3 => instants += 1,
                other => panic!("an event of type {other}"),
            }
            leaves.extend(number(event, 36));
            reaches.extend(number(event, 42));
        }
    }
    assert!(
        begins + instants >= 2 * (2 * STREAM + 1) && begins == ends,
        "{begins}, {instants} and {ends}"
    );
    leaves.sort_unstable();
    reaches.sort_unstable();
    assert_eq!(leaves, (1..=2 * STREAM as u64).collect::<Vec<_>>());
    assert_eq!(leaves, reaches);
    let raw = [0, 1].map(|rank| {
        fs::metadata(folder.path(&format!("run.{rank}")))
            .unwrap()
            .len()
    });
    let raw = usize::try_from(raw.iter().sum::<u64>()).unwrap();
    for (what, len, most) in [
        ("of the ranks", raw, 50),
        // Receives that were posted long before have a field and a slice more.
        ("unpacked", bytes.len(), 140),
        ("packed", packed.len(), 60),
    ] {
        let each = len / (2 * STREAM);
        assert!(each <= most, "{each} bytes for each message, {what}");
    }
}

#[test]
fn two_arrows_join_an_exposure_and_its_access() {
    let folder = TraceFolder::new("epoch-arrows");
    let trace = folder.trace(3, "epochs");
    let output = ripstop(&["trace"], &trace);
    assert!(output.status.success(), "{}", text_of(&output));
    let bytes = unpacked(&fs::read(folder.path("run.pftrace.gz")).unwrap());
    // The numbers of the arrows that leave or arrive, at the beginnings of slices and at their ends.
    let mut arrows = [[36, 1], [42, 1], [36, 2], [42, 2]].map(|key| (key, Vec::new()));
    for packet in messages(&bytes, 1) {
        for event in messages(packet, 11) {
            for ([field, kind], numbers) in &mut arrows {
                if number(event, 9) == Some(*kind) {
                    numbers.extend(number(event, *field));
                }
            }
        }
    }
    let [posts, posted, completes, completed] = arrows.map(|(_, mut numbers)| {
        numbers.sort_unstable();
        numbers
    });
    let epochs = usize::try_from(2 * EPOCHS).unwrap();
    assert_eq!((posted.len(), completes.len()), (epochs, epochs));
    assert!(posted.iter().all(|number| posts.contains(number)));
    assert!(completes.iter().all(|number| completed.contains(number)));
}

pub(super) fn unpacked(packed: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    GzDecoder::new(packed).read_to_end(&mut bytes).unwrap();
    bytes
}

#[test]
fn the_page_needs_nothing_but_itself() {
    let folder = TraceFolder::new("page");
    let trace = folder.trace(2, "late_sender");
    let page = folder.path("run.html");
    let output = ripstop(&["trace", "--html", page.to_str().unwrap()], &trace);
    assert!(output.status.success(), "{}", text_of(&output));
    let html = fs::read_to_string(page).unwrap();
    for outside in ["http:", "https:", "src=", "href=", "fetch(", "import "] {
        assert!(!html.contains(outside), "{outside}");
    }
    assert!(html.contains("tests/trace/roles.rs:") && html.contains(r"recv \u003c- 1 #7"));
    assert!(
        !folder.path("run.pftrace.gz").exists(),
        "only what was asked for"
    );
}

#[test]
fn the_heat_map_has_a_square_for_each_pair_that_exchanges() {
    let folder = TraceFolder::new("heat-map");
    let trace = folder.trace(2, "stream");
    let out = folder.path("pairs.svg");
    let output = ripstop(&["profile", "--svg", out.to_str().unwrap()], &trace);
    assert!(output.status.success(), "{}", text_of(&output));
    let picture = fs::read_to_string(&out).unwrap();
    for [from, to] in [[0, 1], [1, 0]] {
        let square = format!(
            "<title>rank {from} to rank {to}: {STREAM} messages, {} bytes<",
            8 * STREAM
        );
        assert!(picture.contains(&square), "{picture}");
    }
    assert_eq!(picture.matches("<title>rank").count(), 2);
}

#[test]
fn ranks_and_times_are_cut_out_and_what_is_left_out_is_said() {
    let folder = TraceFolder::new("cut");
    let trace = folder.trace(2, "stream");
    let out = folder.path("x.svg");
    let svg = out.to_str().unwrap();
    let output = ripstop(&["trace", "--ranks", "1", "--svg", svg], &trace);
    let text = text_of(&output);
    assert!(output.status.success(), "{text}");
    let picture = fs::read_to_string(&out).unwrap();
    assert!(picture.contains(">rank 1<") && !picture.contains(">rank 0<"));
    let output = ripstop(&["trace", "--max-mib", "1", "--svg", svg], &trace);
    let text = text_of(&output);
    // A mebibyte has room for so many, except those that began in the same nanosecond as the first one that has none. Each rank
    // has sent and received, and then has been in a barrier.
    let (room, all) = ((1 << 20) / 300, 2 * (2 * STREAM + 1));
    let (_, said) = text.split_once("the first ").expect("how many are shown");
    let (shown, said) = said.split_once(' ').expect("a number");
    let shown: usize = shown.parse().unwrap();
    assert!((room - 64..=room).contains(&shown), "{text}");
    let said = said.starts_with(&format!("of {all} operations and spans"));
    assert!(text.contains("cut at ") && said, "{text}");
    let output = ripstop(&["trace", "--ranks", "7"], &trace);
    assert_eq!(output.status.code(), Some(1));
    assert!(text_of(&output).contains("--ranks names 7, and there are ranks 0..2"));
}

#[test]
fn values_of_options_that_select_nothing_are_mistakes_in_the_command_line() {
    let folder = TraceFolder::new("options");
    let trace = folder.trace(1, "imbalance");
    for (words, sentence) in [
        (&["--ranks", "3-2"][..], "\"3-2\" is no range of ranks"),
        (&["--ranks", ""], "\"\" is no rank"),
        (
            &["--from", "NaN"],
            "expected seconds since the first operation",
        ),
        (&["--from=-1"], "expected seconds since the first operation"),
        (
            &["--to", "inf"],
            "expected seconds since the first operation",
        ),
        (
            &["--to", "1e12"],
            "expected seconds since the first operation",
        ),
        (&["--from", "2", "--to", "1"], "--from is behind --to"),
        (&["--max-mib", "0"], "0 is not in 1.."),
        (&["--max-mib", "x"], "invalid value 'x' for '--max-mib"),
    ] {
        let output = ripstop(&[&["trace"], words].concat(), &trace);
        let text = text_of(&output);
        assert_eq!(output.status.code(), Some(2), "{words:?}: {text}");
        assert!(text.contains(sentence), "{words:?}: {text}");
        assert!(!folder.path("run.pftrace.gz").exists(), "{words:?}");
    }
}

#[test]
fn operations_without_a_lane_are_counted_and_have_no_arrows() {
    let folder = TraceFolder::new("crowd");
    let trace = folder.trace(2, "crowd");
    let out = folder.path("x.svg");
    let output = ripstop(&["trace", "--svg", out.to_str().unwrap()], &trace);
    let text = text_of(&output);
    let lanes = 32;
    let left_out = 2 * (CROWD as usize - lanes);
    assert!(
        text.contains(&format!("{left_out} operations are not drawn")),
        "{text}"
    );
    let picture = fs::read_to_string(&out).unwrap();
    assert_eq!(picture.matches("class=\"m\"").count(), 2 * lanes);
}
