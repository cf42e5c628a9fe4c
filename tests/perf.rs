//! `ripstop perf` and `ripstop info`, as users start them.

use std::{
    collections::BTreeSet,
    os::{fd::OwnedFd, unix::net::UnixDatagram},
    process::{Command, Output},
};

const RIPSTOP: &str = env!("CARGO_BIN_EXE_ripstop");

/// One measurement on `ranks` ranks; the launcher's time limit guards against a hang.
fn perf(ranks: u32, words: &str) -> Output {
    perf_with(&[], ranks, words)
}

/// Like [`perf`], with variables.
fn perf_with(variables: &[(&str, &str)], ranks: u32, words: &str) -> Output {
    launch(variables, &["-n", &ranks.to_string()], words)
}

/// Like [`perf_with`], with options of the launcher.
fn launch(variables: &[(&str, &str)], options: &[&str], words: &str) -> Output {
    let mut command = Command::new(RIPSTOP);
    command.args(["run", "--timeout", "60"]).args(options);
    command
        .args(["--", RIPSTOP, "perf"])
        .args(words.split_whitespace())
        .envs(variables.iter().copied())
        .output()
        .expect("the command starts")
}

/// Ranks that complain at the same time share a terminal or a pipe. Text written by several writes may be interleaved with
/// others'.
#[test]
fn what_is_wrong_is_said_in_one_piece() {
    for (words, end) in [
        ("perf nonsense", "--help'.\n"),
        ("perf latency", "ripstop perf latency`\n"),
        ("sim barrier --preset none", "bxi-4\n"),
    ] {
        let (ours, theirs) = UnixDatagram::pair().unwrap();
        let status = Command::new(RIPSTOP)
            .args(words.split_whitespace())
            .stderr(OwnedFd::from(theirs))
            .status()
            .unwrap();
        assert!(!status.success(), "{words}");
        let mut piece = [0; 4096];
        let len = ours.recv(&mut piece).unwrap();
        let said = String::from_utf8_lossy(&piece[..len]);
        assert!(said.ends_with(end), "{words}: {said}");
    }
}

fn lines(output: &Output) -> Vec<String> {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().map(str::to_owned).collect()
}

/// Returns the rows of a measurement on two ranks.
fn rows(words: &str) -> Vec<serde_json::Value> {
    let lines = lines(&perf(2, &format!("{words} --json")));
    let row = |line: &String| serde_json::from_str(line).expect("a row");
    lines.iter().map(row).collect()
}

#[test]
fn every_measurement_prints_the_figures_that_the_comparison_reads() {
    let measurements = [
        ("latency --size 8,4096,1M", 3, "\"median_us\":"),
        ("bandwidth --size 8K,256K", 2, "\"mb_per_s\":"),
        ("bibandwidth --size 8K", 1, "\"mb_per_s\":"),
        ("rate", 1, "\"million_per_s\":"),
        ("matching --depth 0,1000", 4, "\"kind\":"),
        ("put --size 8,64K", 2, "\"mb_per_s\":"),
        ("get --size 8,64K", 2, "\"mb_per_s\":"),
    ];
    for (words, count, figure) in measurements {
        let lines = lines(&perf(2, &format!("{words} --iters 20 --json")));
        assert_eq!(lines.len(), count, "{words}: {lines:?}");
        let program = words.split(' ').next().unwrap();
        for line in lines {
            let named = line.contains(&format!("\"program\":\"{program}\""));
            assert!(named && line.contains(figure), "{words}: {line}");
            assert!(
                line.contains("\"allocations_per_message\":"),
                "{words}: {line}"
            );
        }
    }
}

#[test]
fn threads_of_both_ranks_exchange_what_they_check_and_end() {
    let rows = rows("threads --threads 1,3 --seconds 0.01");
    let of = |pattern, comms| {
        let is_it = |row: &&serde_json::Value| row["pattern"] == pattern && row["comms"] == comms;
        let threads: Vec<_> = rows
            .iter()
            .filter(is_it)
            .map(|row| &row["threads"])
            .collect();
        assert_eq!(threads, [1, 3], "{pattern} {comms}");
    };
    for pattern in ["ping-pong", "rate"] {
        of(pattern, "one");
        of(pattern, "each");
    }
    for row in rows {
        let figure = |name: &str| row[name].as_f64().unwrap();
        assert_eq!(row["program"], "threads");
        assert!(
            figure("million_per_s") > 0.0 && figure("messages") >= 2.0,
            "{row}"
        );
        // Each thread exchanges something before it looks at the clock.
        assert!(
            figure("least_share") > 0.0 && figure("least_share") <= 1.0,
            "{row}"
        );
        if row["threads"] == 1 {
            assert_eq!(row["least_share"], 1.0, "{row}");
        }
        assert_eq!(row["mean_us"].is_null(), row["pattern"] == "rate", "{row}");
    }
    let refused = perf(2, "threads --threads 0");
    let errors = String::from_utf8_lossy(&refused.stderr);
    assert!(
        !refused.status.success() && errors.contains("--threads"),
        "{errors}"
    );
}

#[test]
fn faces_are_exchanged_sent_and_packed_along_each_axis() {
    let rows = rows("faces --n 2,9 --iters 5");
    let expected = [2, 9].map(|n| ["z", "y", "x"].map(|axis| (n, axis)));
    assert_eq!(rows.len(), expected.as_flattened().len());
    for (row, &(n, axis)) in rows.iter().zip(expected.as_flattened()) {
        assert_eq!((&row["n"], &row["axis"]), (&n.into(), &axis.into()));
        assert_eq!(
            (&row["size"], &row["iters"]),
            (&(8 * n * n).into(), &5.into())
        );
        for figure in [
            "halo_us",
            "by_hand_us",
            "halo_ratio",
            "send_packed_us",
            "pack_us",
            "memcpy_us",
            "pack_speed",
        ] {
            assert!(row[figure].as_f64() > Some(0.0), "{figure}: {row}");
        }
    }
    let refused = perf(2, "faces --n 1");
    let errors = String::from_utf8_lossy(&refused.stderr);
    assert!(
        !refused.status.success() && errors.contains("--n"),
        "{errors}"
    );
}

#[test]
fn both_ways_at_once_takes_as_long_as_the_slower_rank_and_as_often_as_asked() {
    let mut rows = rows("netpipe --min 4K --max 4K --around 0 --iters 7 --warmup 0");
    rows.retain(|row| row["half_bytes"].is_null());
    assert_eq!(rows.len(), 9);
    for row in rows {
        assert_eq!(row["iters"], 7, "{row}");
        let figure = |name: &str| row[name].as_f64().unwrap();
        let blocks = match row["how"].as_str() {
            Some("single") => 1.0,
            Some("stream") => 64.0,
            _ => 128.0,
        };
        let micros = figure("slower_median_us");
        assert!(micros >= figure("median_us") - 1e-6, "{row}");
        assert!(
            (figure("mb_per_s") * micros / (4096.0 * blocks) - 1.0).abs() < 1e-3,
            "{row}"
        );
    }
}

#[test]
fn rows_of_windows_say_what_was_moved() {
    let rows = |words: &str| rows(&format!("{words} --iters 5"));
    for program in ["fetch-add", "cas"] {
        let rows = rows(program);
        assert_eq!((rows.len(), &rows[0]["size"]), (1, &8.into()), "{program}");
        assert!(rows[0]["median_us"].is_number() && rows[0]["mb_per_s"].is_null());
    }
    for words in [
        "lock-flush",
        "put-stream",
        "accumulate",
        "collective all_reduce",
    ] {
        let row = &rows(&format!("{words} --size 9"))[0];
        assert_eq!(row["size"], 16, "{words}");
    }
    assert_eq!(rows("fence --size 9")[0]["size"], 9);
    let refused = perf(2, "cas --size 4K");
    let errors = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && errors.contains("--size 4096"));
}

/// Whether a core was free all the time depends on the machine. A value that was shown once, in a longer computation, counts.
fn shown_in_the_end(is_shown: impl Fn(u64) -> Result<(), String>) {
    let mut trouble = String::new();
    for longer in [1, 4, 16] {
        match is_shown(longer) {
            Ok(()) => return,
            Err(why) => trouble = why,
        }
    }
    panic!("{trouble}");
}

#[test]
fn a_transfer_goes_on_while_either_side_computes() {
    shown_in_the_end(|longer| {
        let compute_ms = 100 * longer;
        let words = format!("overlap --size 1M --compute-ms {compute_ms} --iters 1 --json");
        let lines = lines(&perf(2, &words));
        assert_eq!(lines.len(), 2);
        for (line, busy) in lines.iter().zip(["receiver", "sender"]) {
            assert!(line.contains(&format!("\"busy\":\"{busy}\"")), "{line}");
        }
        let late = lines
            .into_iter()
            .find(|line| !line.contains("\"seen_done\":true"));
        late.map_or(Ok(()), Err)
    });
}

#[test]
fn a_collective_goes_on_while_ranks_are_away() {
    shown_in_the_end(|longer| {
        let away = 60 * longer;
        let words = format!(
            "collective all_to_all all_reduce all_to_all_ragged --size 256K --away {away} --computing 1 --iters 10 --json"
        );
        let lines = lines(&perf(2, &words));
        assert_eq!(lines.len(), 3);
        for line in lines {
            let row: serde_json::Value = serde_json::from_str(&line).unwrap();
            assert_eq!(row["computing"], 1);
            if row["over_percent"].as_f64() < Some(75.0) {
                return Err(line);
            }
        }
        Ok(())
    });
}

#[test]
fn a_flood_is_counted_for_each_sender_and_ends() {
    let lines = lines(&perf(
        4,
        "flood --size 8,64K --seconds 0.2 --window 4 --json",
    ));
    assert_eq!(lines.len(), 2);
    for line in lines {
        let row: serde_json::Value = serde_json::from_str(&line).unwrap();
        let figure = |name: &str| row[name].as_f64().unwrap();
        assert_eq!(row["senders"], 3, "{row}");
        assert!(row["messages"].as_u64() > Some(0), "{row}");
        // Three senders, one of which may have sent everything.
        assert!((0.333..=1.000_001).contains(&figure("fairness")), "{row}");
        let (least, most) = (figure("least_mb_per_s"), figure("most_mb_per_s"));
        assert!(least <= most && most <= figure("mb_per_s"), "{row}");
        assert!(figure("mb_per_s") <= 3.0 * most * 1.001, "{row}");
    }
    let refused = perf(2, "flood --size 2M");
    assert!(!refused.status.success());
}

#[test]
fn ranks_that_meet_at_once_are_counted_and_timed() {
    let tcp = [("RIPSTOP_FABRIC", "tcp")];
    let lines = lines(&perf_with(&tcp, 8, "meet --json"));
    let row: serde_json::Value = serde_json::from_str(&lines[0]).unwrap();
    // Two of 4 × 4 pairs are neighbors, and rank 0 has met two ranks before.
    assert_eq!(
        (&row["ranks"], &row["connections"]),
        (&8.into(), &12.into())
    );
    let figure = |name: &str| row[name].as_f64().unwrap();
    assert!(
        figure("first_us") > 0.0 && figure("connect_ms") > 0.0,
        "{row}"
    );
    assert!(figure("first_us") <= figure("slowest_first_us"), "{row}");
}

#[test]
fn a_rank_outlives_those_whose_deaths_it_times() {
    let tcp = [("RIPSTOP_FABRIC", "tcp")];
    let options = ["-n", "4", "--keep-going=ok"];
    let lines = lines(&launch(&tcp, &options, "death --json"));
    let row: serde_json::Value = serde_json::from_str(&lines[0]).unwrap();
    assert_eq!(row["deaths"], 3, "{row}");
    let figure = |name: &str| row[name].as_f64().unwrap();
    assert!(figure("notice_ms") > 0.0, "{row}");
    assert!(figure("notice_ms") <= figure("slowest_notice_ms"), "{row}");
}

#[test]
fn every_collective_can_be_measured_as_a_plan_which_allocates_nothing_by_messages() {
    let rows = |words: &str| rows(&format!("collective {words}"));
    let every = rows("--size 8 --iters 3 --plan");
    let names: BTreeSet<_> = every.iter().map(|row| row["collective"].as_str()).collect();
    assert_eq!((every.len(), names.len()), (20, 20));
    assert!(every.iter().all(|row| row["plan"] == true));
    let quick = rows("barrier all_reduce all_to_all --size 8 --iters 2000 --plan");
    for row in quick {
        // A rank that waits for long may sleep, which costs some.
        let allocations = row["allocations_per_call"].as_f64().unwrap();
        assert!(allocations < 0.5, "{row}");
    }
    assert_eq!(rows("bcast --size 8 --iters 3")[0]["plan"], false);
}

#[test]
fn what_has_no_plan_is_measured_by_calls_and_refused_as_a_plan() {
    let rows = rows("collective --size 8 --iters 3 --overlap --tests 2");
    let names: BTreeSet<_> = rows.iter().map(|row| row["collective"].as_str()).collect();
    assert_eq!((rows.len(), names.len()), (24, 24));
    for row in &rows {
        assert!(row["osu_overlap"].is_number(), "{row}");
    }
    for name in [
        "gather_ragged",
        "scatter_ragged",
        "all_gather_ragged",
        "all_to_all_ragged",
    ] {
        assert!(names.contains(&Some(name)), "{names:?}");
        let refused = perf(2, &format!("collective {name} --plan"));
        let errors = String::from_utf8_lossy(&refused.stderr);
        assert!(
            !refused.status.success() && errors.contains(name),
            "{errors}"
        );
    }
    for (ranks, size) in [(3, "8"), (4, "64K")] {
        let names = "reduce_scatter neighbor_all_gather_v neighbor_all_to_all_v \
             gather_ragged scatter_ragged all_to_all_ragged";
        let words = format!("collective {names} --size {size} --iters 3 --json");
        for line in lines(&perf(ranks, &words)) {
            let row: serde_json::Value = serde_json::from_str(&line).unwrap();
            assert!(row["mean_us"].as_f64() > Some(0.0), "{row}");
        }
    }
}

#[test]
fn a_computation_may_test_now_and_then_for_the_end_of_a_collective() {
    let words = "collective all_to_all all_to_all_ragged --size 64K --overlap --iters 5 --json";
    for (tests, said) in [("", 0), ("--tests 10", 10), ("--tests 1000", 1000)] {
        for line in lines(&perf(2, &format!("{words} {tests}"))) {
            let row: serde_json::Value = serde_json::from_str(&line).unwrap();
            assert_eq!(row["tests"], said, "{row}");
            assert_eq!(row["tests_us"].as_f64() > Some(0.0), said > 0, "{row}");
        }
    }
    let table = lines(&perf(2, "collective barrier --overlap --tests 3 --iters 5"));
    assert!(table[0].contains("tests µs"), "{table:?}");
    let refused = perf(2, "collective barrier --tests 3");
    let errors = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && errors.contains("--overlap"));
}

#[test]
fn ranks_may_sleep_while_others_compute_beside_a_collective() {
    let words = "collective all_to_all --size 64K --overlap --computing 1 --iters 3 --json";
    let lines = lines(&perf(3, words));
    let row: serde_json::Value = serde_json::from_str(&lines[0]).unwrap();
    assert_eq!((&row["computing"], &row["ranks"]), (&1.into(), &3.into()));
    assert!(row["osu_overlap"].is_number() && row["list_words"].is_number());
    let refused = perf(2, "collective all_to_all --computing 1");
    let errors = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && errors.contains("--overlap or --away"));
}

#[test]
fn a_long_message_goes_there_and_back_in_one_buffer() {
    let words = "netpipe --what tag --how single --min 512M --max 512M --around 0 --iters 1 --warmup 0 --json";
    let lines = lines(&perf(2, words));
    let row: serde_json::Value = serde_json::from_str(&lines[0]).unwrap();
    assert_eq!(row["size"], 512 << 20, "{row}");
    assert!(row["mb_per_s"].as_f64() > Some(0.0), "{row}");
}

#[test]
fn idle_ranks_are_measured_however_many_there_are() {
    let lines = lines(&perf(3, "idle --seconds 0.2 --json"));
    assert!(
        lines[0].contains("\"ranks\":3") && lines[0].contains("\"cpu_percent\":"),
        "{lines:?}"
    );
}

#[test]
fn the_table_has_a_heading_and_a_line_per_size() {
    let lines = lines(&perf(2, "latency --size 8,64 --iters 20"));
    assert_eq!(lines.len(), 3);
    assert!(lines[0].contains("median µs") && lines[2].contains("64 B"));
}

#[test]
fn the_wrong_number_of_ranks_is_an_error_with_the_command_to_use() {
    for ranks in [1, 3] {
        for program in ["latency", "put"] {
            let output = perf(ranks, program);
            assert_eq!(output.status.code(), Some(1), "{program} on {ranks}");
            let errors = String::from_utf8_lossy(&output.stderr);
            let advice = format!("`ripstop run -n 2 -- ripstop perf {program}`");
            assert!(errors.contains(&advice), "{errors}");
        }
    }
}

#[test]
fn what_measures_shared_memory_refuses_to_stand_for_another_fabric() {
    let fabric = |name| [("RIPSTOP_FABRIC", name)];
    let portals = fabric("portals");
    for (variables, words, instead) in [
        (&portals[..], "put --size 8 --iters 5", "lock-flush"),
        (&fabric("shm+verbs"), "get --size 8 --iters 5", "get-flush"),
        (&portals[..], "get --size 8 --iters 5", "get-stream"),
    ] {
        let output = perf_with(variables, 2, words);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{words}");
        assert!(errors.contains(instead), "{words}: {errors}");
    }
    for variables in [&[][..], &fabric("shm")] {
        let lines = lines(&perf_with(variables, 2, "put --size 8 --iters 5 --json"));
        assert!(lines[0].contains("\"fabric\":\"shm\""), "{lines:?}");
    }
}

#[test]
fn info_says_what_was_chosen_and_where_settings_came_from() {
    let info = |words: &[&str]| {
        let mut command = Command::new(RIPSTOP);
        command
            .arg("info")
            .args(words)
            .env("RIPSTOP_REACTOR", "epoll");
        lines(&command.output().expect("the command starts")).join("\n")
    };
    let all = info(&[]);
    for part in [
        "version",
        "launcher",
        "io_uring",
        "single copy",
        "rendezvous",
        "in contact",
    ] {
        assert!(all.contains(part), "{part}: {all}");
    }
    let settings = info(&["--settings"]);
    let row = settings
        .lines()
        .find(|line| line.starts_with("RIPSTOP_REACTOR"));
    assert!(row.is_some_and(|row| row.contains("epoll") && row.contains("environment")));
    assert!(!settings.contains("io_uring"), "{settings}");
    assert!(info(&["--memory", "--json"]).contains("\"per_pair_in_contact_bytes\":"));
}
