//! Ripstop beside itself: runs in several settings, each compared with the first run of the same turn.

use serde_json::{Value, json};

use super::{part, title};
use crate::spread::{ValueSpread, median};

/// Runs that print lines of JSON, and the figures to take from each line.
pub(super) struct SettingsCase {
    pub(super) name: &'static str,
    /// The setting of each run, and its commands in the script.
    pub(super) runs: &'static [(&'static str, &'static str)],
    /// Names of the figures in a line.
    read: fn(&Value) -> Vec<(String, f64)>,
}

impl SettingsCase {
    /// Returns a row for each figure and setting: the median, and its ratio to the first setting's.
    pub(super) fn rows(&self, output: &str, repeats: usize, json: bool) -> Vec<String> {
        let runs: Vec<Vec<Vec<(String, f64)>>> = self
            .runs
            .iter()
            .map(|(run, _)| {
                (0..repeats)
                    .map(|nth| self.figures(output, run, nth))
                    .collect()
            })
            .collect();
        let mut names: Vec<&String> = Vec::new();
        for (name, _) in runs.iter().flatten().flatten() {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        let mut rows = Vec::new();
        for name in names {
            for ((run, _), own) in self.runs.iter().zip(&runs) {
                rows.push(self.row(name, run, own, &runs[0], json));
            }
        }
        for ((run, _), own) in self.runs.iter().zip(&runs) {
            if own.iter().all(Vec::is_empty) {
                let said = part(output, &title(self.name, run, 0)).unwrap_or("");
                rows.push(format!("{} {run}: no figures:\n{said}", self.name));
            }
        }
        rows
    }

    fn figures(&self, output: &str, run: &str, nth: usize) -> Vec<(String, f64)> {
        let printed = part(output, &title(self.name, run, nth)).unwrap_or("");
        let lines = printed.lines().filter(|line| line.starts_with('{'));
        let objects = lines.filter_map(|line| serde_json::from_str::<Value>(line).ok());
        objects.flat_map(|object| (self.read)(&object)).collect()
    }

    fn row(
        &self,
        name: &str,
        run: &str,
        own: &[Vec<(String, f64)>],
        first: &[Vec<(String, f64)>],
        json: bool,
    ) -> String {
        let of = |rows: &Vec<(String, f64)>| {
            let found = rows.iter().find(|(other, _)| other == name);
            found.map(|(_, value)| *value)
        };
        let pairs = own.iter().zip(first);
        let ratios = pairs.filter_map(|(own, first)| Some(of(own)? / of(first)?));
        let Some(ratio) = ValueSpread::of(ratios) else {
            return format!("{:<10}{name:<26}{run:<14}{:>12}", self.name, "-");
        };
        let median = median(own.iter().filter_map(of));
        if json {
            return json!({
                "case": self.name, "figure": name, "run": run, "median": median,
                "ratio": ratio.median, "least": ratio.least, "most": ratio.most,
            })
            .to_string();
        }
        format!(
            "{:<10}{name:<26}{run:<14}{median:>12.2}{:>8.3}{:>8.3}{:>8.3}",
            self.name, ratio.median, ratio.least, ratio.most
        )
    }
}

/// Figures of `ripstop perf netpipe` for one length, or for all of them.
fn by_length(line: &Value) -> Vec<(String, f64)> {
    let how = line["how"].as_str().unwrap_or("");
    if let Some(half) = line["half_bytes"].as_f64() {
        return vec![(format!("{how}, bytes"), half)];
    }
    let (Some(size), Some(us), Some(rate)) = (
        line["size"].as_u64(),
        line["slower_median_us"].as_f64(),
        line["mb_per_s"].as_f64(),
    ) else {
        return Vec::new();
    };
    match how {
        "single" => vec![(format!("single {size}, µs"), us)],
        _ => vec![(format!("{how} {size}, MB/s"), rate)],
    }
}

/// Times of a collective's first call and of later ones, and their ratio.
fn first_call(line: &Value) -> Vec<(String, f64)> {
    let (Some(first), Some(later)) = (line["first_us"].as_f64(), line["mean_us"].as_f64()) else {
        return Vec::new();
    };
    [
        ("first, µs", first),
        ("later, µs", later),
        ("first/later", first / later),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into()
}

fn by_window(line: &Value) -> Vec<(String, f64)> {
    let (Some(size), Some(window), Some(rate)) = (
        line["size"].as_u64(),
        line["window"].as_u64(),
        line["mb_per_s"].as_f64(),
    ) else {
        return Vec::new();
    };
    vec![(format!("{size} by {window}, MB/s"), rate)]
}

/// Times of short messages one way, or their rate per second, and the countable costs of each.
fn short(line: &Value) -> Vec<(String, f64)> {
    let (time, what) = match (
        line["million_per_s"].as_f64(),
        line["median_us"].as_f64(),
        line["size"].as_u64(),
    ) {
        (Some(rate), ..) => (
            ("stream, thousands/s".to_owned(), 1000.0 * rate),
            "stream".to_owned(),
        ),
        (None, Some(us), Some(size)) => ((format!("{size}, µs"), us), size.to_string()),
        _ => return Vec::new(),
    };
    let counts = [
        ("system calls", "system_calls_per_message"),
        ("posts", "posts_per_message"),
        ("interrupts", "interrupts_per_message"),
    ];
    let counts = counts.iter().filter_map(|(name, field)| {
        let count = line[field].as_f64().filter(|count| *count > 0.0)?;
        Some((format!("{what}, {name}"), count))
    });
    [time].into_iter().chain(counts).collect()
}

pub(super) const HEAD: &str =
    "case      figure                    run                 median   ratio   least    most";

pub(super) const CASES: [SettingsCase; 4] = [
    // Lengths are varied where they are timed one by one, as NetPIPE does.
    SettingsCase {
        name: "netpipe",
        runs: &[
            (
                "put",
                "lanes 1 netpipe --what put --how single --max 1M --iters 40 --warmup 5; \
                 lanes 1 netpipe --what put --how stream --around 0 --max 256K --iters 5 --warmup 1",
            ),
            (
                "tag",
                "lanes 1 netpipe --what tag --how single --max 1M --iters 40 --warmup 5; \
                 lanes 1 netpipe --what tag --how stream --around 0 --max 256K --iters 5 --warmup 1",
            ),
            (
                "get",
                "lanes 1 netpipe --what get --how single --max 1M --iters 40 --warmup 5; \
                 lanes 1 netpipe --what get --how stream --around 0 --max 256K --iters 5 --warmup 1",
            ),
        ],
        read: by_length,
    },
    // Over shared memory there is nothing to connect: the extra time of the first call there is that of a program's first
    // steps.
    SettingsCase {
        name: "first",
        runs: &[
            ("shm", "first 8 RIPSTOP_FABRIC=shm"),
            ("all-to-all", "first 8 RIPSTOP_CONNECT=all-to-all"),
            ("on-demand", "first 8 RIPSTOP_CONNECT=on-demand"),
            ("hybrid", "first 8 RIPSTOP_CONNECT=hybrid"),
            ("auto", "first 8 RIPSTOP_CONNECT=auto"),
        ],
        read: first_call,
    },
    // 80 Mbit/s are far below what the emulated processors can carry, even with four lanes.
    SettingsCase {
        name: "window",
        runs: &[
            (
                "1 lane",
                "shaped rate 80mbit delay 2ms -- lanes 1 bandwidth --size 8K,256K --window 1,4,16 --iters 3 --warmup 1",
            ),
            (
                "2 lanes",
                "shaped rate 80mbit delay 2ms -- lanes 2 bandwidth --size 8K,256K --window 1,4,16 --iters 3 --warmup 1",
            ),
            (
                "4 lanes",
                "shaped rate 80mbit delay 2ms -- lanes 4 bandwidth --size 8K,256K --window 1,4,16 --iters 3 --warmup 1",
            ),
        ],
        read: by_window,
    },
    SettingsCase {
        name: "lanes",
        runs: &[
            (
                "1 lane",
                "lanes 1 latency --size 8,4K --iters 1000; lanes 1 rate --iters 100",
            ),
            (
                "2 lanes",
                "lanes 2 latency --size 8,4K --iters 1000; lanes 2 rate --iters 100",
            ),
            (
                "4 lanes",
                "lanes 4 latency --size 8,4K --iters 1000; lanes 4 rate --iters 100",
            ),
        ],
        read: short,
    },
];

#[cfg(test)]
mod tests {
    use super::CASES;

    const LANES: &str = "== lanes 1 lane 0\n{\"size\":8,\"median_us\":100.0}\n\
         {\"size\":8,\"median_us\":9.0,\"million_per_s\":0.5}\n\
         == lanes 2 lanes 0\n{\"size\":8,\"median_us\":102.0}\n\
         == lanes 2 lanes 1\n{\"size\":8,\"median_us\":180.0}\n\
         == lanes 1 lane 1\n{\"size\":8,\"median_us\":200.0}\n";

    fn rows(json: bool) -> Vec<String> {
        let case = CASES.iter().find(|case| case.name == "lanes").unwrap();
        case.rows(LANES, 2, json)
    }

    #[test]
    fn each_setting_is_compared_with_the_first_one_of_its_turn() {
        let rows = rows(false);
        let words = |row: &String| -> Vec<String> {
            row.split_whitespace()
                .rev()
                .take(4)
                .map(str::to_owned)
                .collect()
        };
        assert_eq!(words(&rows[0]), ["1.000", "1.000", "1.000", "150.00"]);
        // 0.9 and 1.02, of 180 and 102.
        assert_eq!(words(&rows[1]), ["1.020", "0.900", "0.960", "141.00"]);
        assert!(
            rows.last()
                .unwrap()
                .starts_with("lanes 4 lanes: no figures"),
            "{rows:?}"
        );
    }

    #[test]
    fn a_row_of_json_has_the_figures_of_the_table() {
        let row: serde_json::Value = serde_json::from_str(&rows(true)[1]).unwrap();
        assert_eq!(
            (row["run"].as_str(), row["ratio"].as_f64()),
            (Some("2 lanes"), Some(0.96))
        );
    }

    #[test]
    fn every_kind_of_line_has_its_figure() {
        for (case, line, name) in [
            (
                "netpipe",
                r#"{"how":"single","size":61,"slower_median_us":2.0,"mb_per_s":3.0}"#,
                "single 61, µs",
            ),
            (
                "netpipe",
                r#"{"how":"stream","size":64,"slower_median_us":2.0,"mb_per_s":3.0}"#,
                "stream 64, MB/s",
            ),
            (
                "netpipe",
                r#"{"how":"stream n1/2","half_bytes":700.0}"#,
                "stream n1/2, bytes",
            ),
            ("first", r#"{"first_us":10.0,"mean_us":2.0}"#, "first, µs"),
            (
                "window",
                r#"{"size":8192,"window":4,"mb_per_s":1.0}"#,
                "8192 by 4, MB/s",
            ),
        ] {
            let case = CASES.iter().find(|of| of.name == case).unwrap();
            let figures = (case.read)(&serde_json::from_str(line).unwrap());
            assert_eq!(figures[0].0, name);
            assert!((case.read)(&serde_json::json!({"program": "other"})).is_empty());
        }
    }
}
