//! Files that are cut off, damaged, hostile or missing, and disks that are full.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
};

use proptest::prelude::{Strategy, any, prop};
use proptest::test_runner::{Config, TestRunner};
use ripstop_rt::internal::trace::format::TraceContent;

use super::{TraceFolder, ripstop, ripstop_json, roles::STREAM, text_of};

#[test]
fn a_killed_rank_leaves_all_but_its_last_records() {
    let folder = TraceFolder::new("killed");
    let output = folder.run(2, "killed");
    assert!(!output.status.success());
    let content = folder.content(1);
    assert!(!content.is_complete && content.damaged == 0);
    // A block of 16 KiB has at most 1260 operations of 13 bytes, and what was in the last one is lost.
    let recorded = content.ops.len();
    assert!(
        (2 * STREAM - 1260..=2 * STREAM).contains(&recorded),
        "{recorded}"
    );
    let output = ripstop(&["trace", "--json"], &folder.path("run"));
    assert!(output.status.success());
    assert!(
        text_of(&output).contains(" has no end: the rank was killed"),
        "{}",
        text_of(&output)
    );
}

#[test]
fn a_full_disk_costs_the_records_and_nothing_else() {
    let folder = TraceFolder::new("full");
    let output = folder.run(2, "full");
    let text = text_of(&output);
    assert!(output.status.success(), "{text}");
    let lost = "records of the trace of rank 0 are lost, because";
    assert!(
        text.contains(lost) && text.contains("File too large"),
        "{text}"
    );
    let [short, whole] = [0, 1].map(|rank| folder.content(rank));
    assert!(whole.is_complete && whole.lost == 0);
    // The last record tells the reader how many others are missing.
    assert!(short.is_complete && short.damaged == 0, "{short:?}");
    assert!(text.contains(&format!("{} {lost}", short.lost)), "{text}");
    assert!(short.lost > 0 && short.ops.len() as u64 + short.lost > 2 * STREAM as u64);
}

#[test]
fn a_trace_is_written_neither_through_a_link_nor_into_a_file_of_others() {
    let folder = TraceFolder::new("links");
    let other = folder.path("other");
    fs::write(&other, "kept").unwrap();
    symlink(&other, folder.path("run.0")).unwrap();
    fs::write(folder.path("run.1"), "older").unwrap();
    fs::set_permissions(folder.path("run.1"), fs::Permissions::from_mode(0o666)).unwrap();
    folder.trace(2, "imbalance");
    assert_eq!(fs::read_to_string(&other).unwrap(), "kept");
    for rank in 0..2 {
        let found = fs::symlink_metadata(folder.path(&format!("run.{rank}"))).unwrap();
        assert!(found.is_file());
        assert_eq!(found.permissions().mode() & 0o777, 0o600);
        assert!(folder.content(rank).is_complete);
    }
}

#[test]
fn only_regular_files_with_the_number_of_a_rank_count() {
    let folder = TraceFolder::new("names");
    folder.trace(2, "imbalance");
    fs::write(folder.path("run"), "another file of the job").unwrap();
    fs::write(folder.path("run.00"), "no trace").unwrap();
    fs::create_dir(folder.path("run.5")).unwrap();
    let output = ripstop(&["trace", "--json"], &folder.path("run"));
    assert!(output.status.success(), "{}", text_of(&output));
    let output = ripstop(&["trace", "--json"], &folder.path("run.1"));
    let text = text_of(&output);
    assert!(
        output.status.success() && text.contains("there is no file of rank 0"),
        "{text}"
    );
}

/// Places of fields in the head of a file.
const SIZE: usize = 16;
const BOOT: usize = 40;
const HOST: usize = 80;
const HEAD_LEN: usize = 144;

#[test]
fn what_the_head_of_a_file_says_is_not_believed() {
    let folder = TraceFolder::new("heads");
    folder.trace(2, "imbalance");
    let file = folder.path("run.0");
    let sound = fs::read(&file).unwrap();
    let mut bytes = sound.clone();
    bytes[SIZE..SIZE + 4].fill(0xff);
    bytes[HOST..HOST + 6].copy_from_slice(b"a\x1b[2Jb");
    fs::write(&file, &bytes).unwrap();
    let output = ripstop(&["trace", "--json"], &file);
    let text = text_of(&output);
    assert!(output.status.success(), "{text}");
    assert!(
        text.contains("there is no file of ranks 1-4294967294"),
        "{text}"
    );
    assert!(text.contains("\"a?[2Jb\""), "{text}");
    // Without the id of a start, hosts tell machines apart.
    let mut bytes = sound;
    bytes[BOOT..HOST].fill(0);
    fs::write(&file, &bytes).unwrap();
    let content = folder.content(0);
    assert!(!content.boot.is_empty() && content.boot == content.host);
}

#[test]
fn the_clock_of_another_machine_is_compared_by_messages_and_its_error_is_said() {
    let folder = TraceFolder::new("clocks");
    let trace = folder.trace(2, "stream");
    let file = folder.path("run.1");
    let mut bytes = fs::read(&file).unwrap();
    bytes[BOOT..BOOT + 6].copy_from_slice(b"second");
    fs::write(&file, &bytes).unwrap();
    let table = ripstop_json(&["trace", "--json"], &trace);
    let clock = &table["nodes"][1];
    let (offset, error) = (clock["offset_ns"].as_i64(), clock["error_ns"].as_u64());
    let (offset, error) = (offset.unwrap(), error.unwrap());
    // In truth, it is the clock of the same machine.
    assert!(error > 0 && offset.unsigned_abs() <= error, "{table}");
    assert_eq!(table["backward"], 0, "{table}");
    let text = text_of(&ripstop(&["trace"], &trace));
    assert!(
        text.contains(": at most ") && text.contains(" us wrong"),
        "{text}"
    );
}

#[test]
fn a_file_that_cannot_be_made_is_an_error_that_names_the_variable() {
    let folder = TraceFolder::new("unmade");
    let output = folder.run_with(1, "stream", &[("RIPSTOP_TRACE", "no/such/folder/run")]);
    let text = text_of(&output);
    assert!(!output.status.success());
    assert!(
        text.contains("RIPSTOP_TRACE is no/such/folder/run, and rank 0 cannot make the file"),
        "{text}"
    );
}

#[test]
fn the_files_of_two_jobs_are_told_apart() {
    let folder = TraceFolder::new("two");
    folder.trace(3, "imbalance");
    folder.trace(2, "imbalance");
    let output = ripstop(&["trace"], &folder.path("run"));
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text_of(&output).contains("delete the files of the older job"),
        "{}",
        text_of(&output)
    );
    let output = ripstop(&["trace"], &folder.path("walk"));
    assert!(
        text_of(&output).contains("there is no file"),
        "{}",
        text_of(&output)
    );
}

/// Changes of a file: places that get other bytes, and the length at which it is cut off.
fn damage() -> impl Strategy<Value = (Vec<(prop::sample::Index, u8)>, prop::sample::Index)> {
    let bytes = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..60);
    (bytes, any::<prop::sample::Index>())
}

#[test]
fn no_bytes_make_the_reader_panic() {
    let folder = TraceFolder::new("damaged");
    folder.trace(2, "imbalance");
    let sound = fs::read(folder.path("run.0")).unwrap();
    // It prints the seed and the smallest case when it fails.
    let mut runner = TestRunner::new(Config::with_cases(2000));
    let outcome = runner.run(&damage(), |(changes, end)| {
        let mut bytes = sound.clone();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        bytes.truncate(end.index(bytes.len() + 1));
        let _ = TraceContent::read(&bytes[..]);
        Ok(())
    });
    outcome.unwrap();
    let random = prop::collection::vec(any::<u8>(), 0..4096);
    runner
        .run(&random, |bytes| {
            let _ = TraceContent::read(&bytes[..]);
            Ok(())
        })
        .unwrap();
}

#[test]
fn the_command_survives_damaged_files() {
    let folder = TraceFolder::new("survives");
    folder.trace(2, "late_sender");
    let sound = fs::read(folder.path("run.0")).unwrap();
    let mut runner = TestRunner::new(Config::with_cases(40));
    let out = [
        folder.path("x.html"),
        folder.path("x.svg"),
        folder.path("x.gz"),
    ];
    let [html, svg, gz] = out.each_ref().map(|path| path.to_str().unwrap());
    let outcome = runner.run(&damage(), |(changes, end)| {
        let mut bytes = sound.clone();
        for (at, byte) in changes {
            // The head stays, so that records are read.
            let at = HEAD_LEN + at.index(bytes.len() - HEAD_LEN);
            bytes[at] = byte;
        }
        bytes.truncate(HEAD_LEN + end.index(bytes.len() + 1 - HEAD_LEN));
        fs::write(folder.path("run.0"), &bytes).unwrap();
        let words = ["trace", "--html", html, "--svg", svg, "-o", gz];
        for words in [&words[..], &["profile"]] {
            let output = ripstop(words, &folder.path("run"));
            assert!(
                matches!(output.status.code(), Some(0 | 1)),
                "{}",
                text_of(&output)
            );
        }
        Ok(())
    });
    outcome.unwrap();
}
