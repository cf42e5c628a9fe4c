//! Ripstop beside perftest: the ratio of each two consecutive runs, and its target.

use serde_json::{Value, json};

use super::{part, title};
use crate::spread::{ValueSpread, median};

/// Two contestants, their figures, and the target of the ratio.
pub(super) struct RatioCase {
    pub(super) name: &'static str,
    unit: &'static str,
    theirs: ScriptRun,
    ours: ScriptRun,
    /// The target of the ratio of Ripstop's figure to perftest's.
    target: RatioBound,
    pub(super) parallel: bool,
}

/// Program that one contestant runs.
#[derive(Clone, Copy)]
struct ScriptRun {
    /// Command in the script.
    command: &'static str,
    /// Position of the figure in the command's output.
    figure: FigurePosition,
}

impl ScriptRun {
    const fn new(command: &'static str, figure: FigurePosition) -> Self {
        Self { command, figure }
    }
}

/// The position of a figure.
#[derive(Clone, Copy)]
enum FigurePosition {
    /// A column of the last line of perftest's table, and a factor.
    Column(usize, f64),
    /// A field of a JSON object.
    Field(&'static str),
}

#[derive(Clone, Copy)]
enum RatioBound {
    AtMost(f64),
    AtLeast(f64),
}

impl RatioCase {
    pub(super) fn turns(&self) -> Vec<(&'static str, &'static str)> {
        vec![(THEIRS, self.theirs.command), (OURS, self.ours.command)]
    }

    pub(super) fn row(&self, output: &str, repeats: usize, json: bool) -> String {
        let of = |who: &str, run: ScriptRun, nth: usize| {
            run.figure.read(part(output, &title(self.name, who, nth))?)
        };
        let both = |nth| Some((of(THEIRS, self.theirs, nth)?, of(OURS, self.ours, nth)?));
        let pairs: Vec<(f64, f64)> = (0..repeats).filter_map(both).collect();
        let Some(ratio) = ValueSpread::of(pairs.iter().map(|(theirs, ours)| ours / theirs)) else {
            let said =
                [THEIRS, OURS].map(|who| part(output, &title(self.name, who, 0)).unwrap_or(""));
            return format!("{:<10}no figures:\n{}", self.name, said.join("\n"));
        };
        let theirs = median(pairs.iter().map(|pair| pair.0));
        let ours = median(pairs.iter().map(|pair| pair.1));
        let (met, target) = match self.target {
            RatioBound::AtMost(most) => (ratio.median <= most, format!("<= {most}")),
            RatioBound::AtLeast(least) => (ratio.median >= least, format!(">= {least}")),
        };
        if json {
            return json!({
                "case": self.name, "unit": self.unit, "perftest": theirs, "ripstop": ours,
                "ratio": ratio.median, "least": ratio.least, "most": ratio.most, "target": target, "met": met,
            })
            .to_string();
        }
        format!(
            "{:<10}{:>7}{:>12.2}{:>12.2}{:>8.2}{:>8.2}{:>8.2}{target:>9}{:>8}",
            self.name,
            self.unit,
            theirs,
            ours,
            ratio.median,
            ratio.least,
            ratio.most,
            if met { "met" } else { "missed" },
        )
    }
}

impl FigurePosition {
    fn read(self, text: &str) -> Option<f64> {
        match self {
            Self::Column(column, factor) => {
                let digit =
                    |line: &&str| line.trim_start().starts_with(|c: char| c.is_ascii_digit());
                let line = text.lines().rfind(digit)?;
                let value: f64 = line.split_whitespace().nth(column)?.parse().ok()?;
                Some(value * factor)
            }
            Self::Field(name) => {
                let objects = text.lines().filter(|line| line.starts_with('{'));
                let mut objects =
                    objects.filter_map(|line| serde_json::from_str::<Value>(line).ok());
                objects.find_map(|object| object.get(name)?.as_f64())
            }
        }
    }
}

const THEIRS: &str = "theirs";
const OURS: &str = "ours";

pub(super) const HEAD: &str =
    "case         unit    perftest     ripstop   ratio   least    most   target";

const TYPICAL_US: FigurePosition = FigurePosition::Column(4, 1.0);
/// perftest counts in units of 10^9 bits if it is asked to.
const MEAN_MB_PER_S: FigurePosition = FigurePosition::Column(3, 125.0);

pub(super) const CASES: [RatioCase; 8] = [
    RatioCase {
        name: "events",
        unit: "µs",
        theirs: ScriptRun::new("theirs ib_send_lat -e -s 8 -n 1000", TYPICAL_US),
        ours: ScriptRun::new(
            "sleeping latency --size 8 --iters 1000",
            FigurePosition::Field("median_us"),
        ),
        target: RatioBound::AtMost(1.3),
        parallel: false,
    },
    RatioCase {
        name: "messages",
        unit: "MB/s",
        theirs: ScriptRun::new(
            "theirs ib_write_bw -s 1048576 -n 256 --report_gbits",
            MEAN_MB_PER_S,
        ),
        ours: ScriptRun::new(
            "sleeping bandwidth --size 1MiB --iters 4 --warmup 1",
            FigurePosition::Field("mb_per_s"),
        ),
        target: RatioBound::AtLeast(0.9),
        parallel: false,
    },
    // Buffers that are registered once, like perftest's.
    RatioCase {
        name: "buffers",
        unit: "MB/s",
        theirs: ScriptRun::new(
            "theirs ib_write_bw -s 1048576 -n 256 --report_gbits",
            MEAN_MB_PER_S,
        ),
        ours: ScriptRun::new(
            "sleeping bandwidth --registered --size 1MiB --iters 4 --warmup 1",
            FigurePosition::Field("mb_per_s"),
        ),
        target: RatioBound::AtLeast(0.9),
        parallel: false,
    },
    RatioCase {
        name: "puts",
        unit: "MB/s",
        theirs: ScriptRun::new(
            "theirs ib_write_bw -s 1048576 -n 256 --report_gbits",
            MEAN_MB_PER_S,
        ),
        ours: ScriptRun::new(
            "sleeping put-stream --size 1MiB --iters 4 --warmup 1",
            FigurePosition::Field("mb_per_s"),
        ),
        target: RatioBound::AtLeast(0.9),
        parallel: false,
    },
    // The same on two devices, with the wire between them.
    RatioCase {
        name: "ev-apart",
        unit: "µs",
        theirs: ScriptRun::new("apart theirs ib_send_lat -e -s 8 -n 1000", TYPICAL_US),
        ours: ScriptRun::new(
            "apart sleeping latency --size 8 --iters 1000",
            FigurePosition::Field("median_us"),
        ),
        target: RatioBound::AtMost(1.3),
        parallel: false,
    },
    RatioCase {
        name: "me-apart",
        unit: "MB/s",
        theirs: ScriptRun::new(
            "apart theirs ib_write_bw -s 1048576 -n 256 --report_gbits",
            MEAN_MB_PER_S,
        ),
        ours: ScriptRun::new(
            "apart sleeping bandwidth --size 1MiB --iters 4 --warmup 1",
            FigurePosition::Field("mb_per_s"),
        ),
        target: RatioBound::AtLeast(0.9),
        parallel: false,
    },
    RatioCase {
        name: "polling",
        unit: "µs",
        theirs: ScriptRun::new("theirs ib_send_lat -s 8 -n 1000", TYPICAL_US),
        ours: ScriptRun::new(
            "polling latency --size 8 --iters 1000",
            FigurePosition::Field("median_us"),
        ),
        target: RatioBound::AtMost(1.3),
        parallel: true,
    },
    // Queue pairs by two threads beside one thread: this shows what can be gained, and compares no libraries.
    RatioCase {
        name: "pairs",
        unit: "µs",
        theirs: ScriptRun::new("$pairs rxe0 2000 1", FigurePosition::Field("us_each")),
        ours: ScriptRun::new("$pairs rxe0 2000 2", FigurePosition::Field("us_each")),
        target: RatioBound::AtMost(0.67),
        parallel: true,
    },
];

#[cfg(test)]
mod tests {
    use super::{
        super::{part, title},
        CASES, FigurePosition, TYPICAL_US,
    };

    const LATENCY: &str = "== events theirs 0\n\
         #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]\n \
         8       300          99.26          956.66       107.50         127.90\n\
         ------\n\
         == events ours 0\n{\"median_us\":129.0,\"size\":8}\n";

    #[test]
    fn figures_are_found_in_tables_and_in_objects() {
        let theirs = part(LATENCY, &title("events", "theirs", 0)).unwrap();
        let ours = part(LATENCY, &title("events", "ours", 0)).unwrap();
        assert_eq!(TYPICAL_US.read(theirs), Some(107.5));
        assert_eq!(FigurePosition::Field("median_us").read(ours), Some(129.0));
        assert_eq!(FigurePosition::Field("median_us").read(theirs), None);
        assert_eq!(TYPICAL_US.read("failed"), None);
    }

    #[test]
    fn a_row_has_the_ratio_and_whether_it_is_as_wanted() {
        let row = CASES[0].row(LATENCY, 3, false);
        assert!(row.contains("1.20") && row.ends_with("met"), "{row}");
        let slow = LATENCY.replace("129.0", "150.0");
        assert!(CASES[0].row(&slow, 3, false).ends_with("missed"));
        assert!(CASES[1].row(LATENCY, 3, false).contains("no figures"));
    }
}
