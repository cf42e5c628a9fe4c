//! `cargo xtask bench calibrate`: does the simulator predict this machine?
//!
//! Six constants are fitted to five figures measured on shared memory. Then the simulator predicts measured figures, including
//! some that were not fitted, and both are printed side by side.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use serde_json::Value;

use crate::{
    spread::median,
    step::{MEASURED_PROFILE, target_dir},
};

/// Measures, fits, predicts.
pub(crate) fn run(root: &Path, args: &[String]) -> Result<(), String> {
    match args {
        [] => {}
        [word] if word == "--help" => {
            println!("{HELP}");
            return Ok(());
        }
        _ => return Err(HELP.to_owned()),
    }
    let tools = CalibrationTools::build(root)?;
    let measured = tools.measure()?;
    let model = measured.fit();
    let file = tools.target.join("calibrated.toml");
    fs::write(&file, &model).map_err(|why| format!("{}: {why}", file.display()))?;
    println!(
        "{model}\n{:<28}{:>12}{:>12}{:>9}",
        "", "measured", "predicted", "ratio"
    );
    for figure in &measured.figures {
        let predicted = tools.predict(&file, figure)?;
        println!(
            "{:<28}{:>12.3}{:>12.3}{:>9.2}",
            figure.name,
            figure.value,
            predicted,
            predicted / figure.value
        );
    }
    println!("{REASONS}\n\nmodel: {}", file.display());
    Ok(())
}

const HELP: &str = "\
cargo xtask bench calibrate

Fits the simulator's constants to this machine's shared memory, and shows what it then predicts beside what was measured.
Needs two processors that are otherwise idle. The model is written to target/calibrated.toml, for `ripstop sim --model`.";

struct CalibrationTools {
    ripstop: PathBuf,
    halo: PathBuf,
    target: PathBuf,
}

/// A measured figure, and the simulation that predicts it.
struct PredictedFigure {
    name: String,
    value: f64,
    words: Vec<String>,
    /// The simulator's figure, and the factor to the measured unit.
    field: &'static str,
    scale: f64,
    /// Time to add that is not communication.
    plus: f64,
}

struct MeasuredMachine {
    /// Time one way, in µs, of 8, 4 096, 65 536 and 1 048 576 bytes.
    one_way: [f64; 4],
    /// Millions of messages of 8 bytes per second.
    rate: f64,
    figures: Vec<PredictedFigure>,
}

/// Arguments of a prediction. Messages are eager up to the length up to which the real chooser makes them eager.
const PREDICTED: [&str; 6] = [
    "--ranks",
    "2",
    "--set",
    "RIPSTOP_EAGER_MAX=8192",
    "--json",
    "--model",
];

/// Effects that the model leaves out, and where they show.
const REASONS: &str = "
Where it is off by more than a quarter: 256 KiB lie in the caches and are moved by both processors at a time, which makes them
faster than the slope from 64 KiB to 1 MiB; in a stream of long messages the processor that copies one cannot begin the next,
but a simulated node copies beside its processors.";

const SIZES: [usize; 4] = [8, 4096, 65_536, 1_048_576];

impl CalibrationTools {
    fn build(root: &Path) -> Result<Self, String> {
        let words = [
            "build",
            "--quiet",
            "--profile",
            MEASURED_PROFILE,
            "-p",
            "ripstop",
            "--features",
            "cli",
            "--bins",
            "--examples",
        ];
        let built = Command::new("cargo").args(words).current_dir(root).status();
        if !built.is_ok_and(|status| status.success()) {
            return Err(format!(
                "`cargo build --profile {MEASURED_PROFILE} -p ripstop --features cli --bins --examples` fails"
            ));
        }
        let target = target_dir(root);
        let optimized = target.join(MEASURED_PROFILE);
        Ok(Self {
            ripstop: optimized.join("ripstop"),
            halo: optimized.join("examples/halo"),
            target,
        })
    }

    fn measure(&self) -> Result<MeasuredMachine, String> {
        let perf = |words: &[&str]| {
            let ripstop = self.ripstop.display().to_string();
            let words = [&[ripstop.as_str(), "perf"], words].concat();
            self.job(&words)
        };
        let latency = |size: usize| {
            let size = size.to_string();
            let us = || number(&perf(&["latency", "--size", &size, "--json"])?, "median_us");
            Ok::<_, String>(median([us()?, us()?, us()?]))
        };
        let mut one_way = [0.0; 4];
        for (time, size) in one_way.iter_mut().zip(SIZES) {
            *time = latency(size)?;
        }
        let rate = number(&perf(&["rate", "--json"])?, "million_per_s")?;
        let mut figures: Vec<_> = SIZES
            .iter()
            .zip(one_way)
            .map(|(&size, time)| PredictedFigure::ping_pong(size, time))
            .collect();
        for size in [1024, 16_384, 262_144] {
            figures.push(PredictedFigure::ping_pong(size, latency(size)?));
        }
        figures.push(PredictedFigure::stream(
            "rate, 8 B, million/s",
            8,
            rate,
            1.0,
        ));
        for size in [4096, 65_536, 1_048_576] {
            let text = size.to_string();
            let rate = number(
                &perf(&["bandwidth", "--size", &text, "--json"])?,
                "mb_per_s",
            )?;
            let name = format!("bandwidth, {size} B, MB/s");
            figures.push(PredictedFigure::stream(&name, size, rate, size as f64));
        }
        for n in [64, 128] {
            figures.push(self.halo_step(n)?);
        }
        Ok(MeasuredMachine {
            one_way,
            rate,
            figures,
        })
    }

    /// A step of the halo example without overlap. Its computation is taken from the measurement, and the time of its exchange
    /// is predicted.
    fn halo_step(&self, n: usize) -> Result<PredictedFigure, String> {
        let (halo, n_text) = (self.halo.display().to_string(), n.to_string());
        let words = [
            halo.as_str(),
            "--n",
            &n_text,
            "--steps",
            "200",
            "--mode",
            "blocking",
            "--json",
            "--no-check",
        ];
        let line = self.job(&words)?;
        let (step, exchange) = (number(&line, "median_us")?, number(&line, "comm_us")?);
        let face = (n * n * 8).to_string();
        Ok(PredictedFigure {
            name: format!("halo step, {n}³, µs"),
            value: step,
            words: ["stencil", "--iters", "20", "--size", &face]
                .map(str::to_owned)
                .into(),
            field: "exchange_us",
            scale: 1.0,
            plus: step - exchange,
        })
    }

    /// Runs two ranks on two processors, and returns the last line of JSON.
    fn job(&self, words: &[&str]) -> Result<Value, String> {
        let mut command = Command::new(&self.ripstop);
        command
            .args(["run", "-n", "2", "--bind", "core", "--timeout", "120", "--"])
            .args(words);
        last_line(command)
    }

    fn predict(&self, model: &Path, figure: &PredictedFigure) -> Result<f64, String> {
        let mut command = Command::new(&self.ripstop);
        command
            .arg("sim")
            .args(&figure.words)
            .args(PREDICTED)
            .arg(model);
        Ok(number(&last_line(command)?, figure.field)? * figure.scale + figure.plus)
    }
}

impl PredictedFigure {
    fn ping_pong(size: usize, time: f64) -> Self {
        Self {
            name: format!("one way, {size} B, µs"),
            value: time,
            words: words("pingpong", size, 100),
            field: "one_way_us",
            scale: 1.0,
            plus: 0.0,
        }
    }

    fn stream(name: &str, size: usize, value: f64, scale: f64) -> Self {
        Self {
            name: name.to_owned(),
            value,
            words: words("stream", size, 640),
            field: "rate_per_us",
            scale,
            plus: 0.0,
        }
    }
}

impl MeasuredMachine {
    /// Fits the constants. o_r limits the rate, and o_s is half of it. L is the rest of a short message's time. The time per
    /// byte is the slope of long messages; the additional slope of short messages is the copy at both ends. What a message of
    /// 64 KiB takes beyond all this is the cost of a get.
    fn fit(&self) -> String {
        let [short, eager, long, longest] = self.one_way;
        let recv_ns = 1e3 / self.rate;
        let send_ns = recv_ns / 2.0;
        let latency_ns = (short * 1e3 - recv_ns - send_ns).max(0.0);
        let byte_ps = (longest - long) * 1e6 / (SIZES[3] - SIZES[2]) as f64;
        let eager_ps = (eager - short) * 1e6 / (SIZES[1] - SIZES[0]) as f64;
        let copy_byte_ps = ((eager_ps - byte_ps) / 2.0).max(0.0);
        // The offer, the round trip of the get, and the notice of its end do not delay the receiver: three times L in all.
        let hops_ns = 3.0 * latency_ns + 2.0 * (send_ns + recv_ns);
        let access_ns = (long * 1e3 - SIZES[2] as f64 * byte_ps / 1e3 - hops_ns).max(0.0);
        format!(
            "# Fitted to this machine by `cargo xtask bench calibrate`.\nbase = \"shm\"\nname = \"calibrated\"\n\
             [host]\nsend_ns = {send_ns:.0}\nrecv_ns = {recv_ns:.0}\npolls = true\ncopy_byte_ps = {copy_byte_ps:.0}\n\
             [node]\nlatency_ns = {latency_ns:.0}\nbyte_ps = {byte_ps:.0}\ngap_ns = 1\naccess_ns = {access_ns:.0}\n"
        )
    }
}

fn words(scenario: &str, size: usize, iters: u32) -> Vec<String> {
    let (size, iters) = (size.to_string(), iters.to_string());
    [scenario, "--size", &size, "--iters", &iters]
        .map(str::to_owned)
        .into()
}

fn number(line: &Value, field: &str) -> Result<f64, String> {
    line[field]
        .as_f64()
        .ok_or_else(|| format!("no `{field}` in {line}"))
}

fn last_line(mut command: Command) -> Result<Value, String> {
    let shown = format!("{command:?}");
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|why| format!("{shown}: {why}"))?;
    if !output.status.success() {
        return Err(format!(
            "{shown}: {}",
            String::from_utf8_lossy(&output.stderr)
        ));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let mut json = text
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok());
    json.next_back()
        .ok_or_else(|| format!("{shown} printed no JSON"))
}

#[cfg(test)]
mod tests {
    use super::MeasuredMachine;

    #[test]
    fn the_constants_give_the_figures_back_that_they_are_made_of() {
        let measured = MeasuredMachine {
            one_way: [0.2, 1.0, 4.0, 34.0],
            rate: 10.0,
            figures: Vec::new(),
        };
        let model = measured.fit();
        for line in [
            "recv_ns = 100",
            "send_ns = 50",
            "latency_ns = 50",
            "byte_ps = 31",
            "copy_byte_ps = 83",
        ] {
            assert!(
                model.lines().any(|other| other == line),
                "{line} is not in\n{model}"
            );
        }
    }
}
