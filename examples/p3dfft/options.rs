//! The arguments.

use std::{ops::RangeInclusive, path::PathBuf};

use ripstop::Cart;

use crate::fft::Mode;

/// The parsed arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Options {
    /// Points in x, y and z.
    pub(crate) points: [usize; 3],
    /// M1 and M2.
    pub(crate) grid: [usize; 2],
    pub(crate) vars: usize,
    pub(crate) modes: Vec<Mode>,
    pub(crate) chunks: usize,
    pub(crate) tests: usize,
    /// Number of timed transforms there and back.
    pub(crate) iters: usize,
    pub(crate) precision: Precision,
    pub(crate) check: bool,
    pub(crate) json: bool,
    pub(crate) png: Option<PathBuf>,
}

/// The precision of the numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Precision {
    Single,
    #[default]
    Double,
}

/// Arguments as they were given.
#[derive(Debug, Default)]
struct Given {
    points: Option<[usize; 3]>,
    grid: Option<[usize; 2]>,
    vars: Option<usize>,
    modes: Option<Vec<Mode>>,
    chunks: Option<usize>,
    tests: Option<usize>,
    iters: Option<usize>,
    precision: Precision,
    check: Option<bool>,
    json: bool,
    png: Option<PathBuf>,
}

impl Options {
    /// Parses the arguments of a job of `ranks`; `None` asks for help.
    ///
    /// # Errors
    /// A sentence that names the argument and says what to do.
    pub(crate) fn parse(
        args: impl IntoIterator<Item = String>,
        ranks: usize,
    ) -> Result<Option<Self>, String> {
        let mut given = Given::default();
        let mut args = args.into_iter();
        while let Some(arg) = args.next() {
            let mut value = || {
                args.next()
                    .ok_or_else(|| format!("{arg} needs a value; see --help"))
            };
            match arg.as_str() {
                "--help" | "-h" => return Ok(None),
                "--n" => given.points = Some(points(&arg, &value()?)?),
                "--grid" => given.grid = Some(pair(&arg, &value()?)?),
                "--vars" => given.vars = Some(number(&arg, &value()?, 1..=VARS_MAX)?),
                "--mode" => given.modes = Some(modes(&arg, &value()?)?),
                "--chunks" => given.chunks = Some(number(&arg, &value()?, 1..=CHUNKS_MAX)?),
                "--tests" => given.tests = Some(number(&arg, &value()?, 0..=TIMES_MAX)?),
                "--iters" => given.iters = Some(number(&arg, &value()?, 1..=TIMES_MAX)?),
                "--precision" => given.precision = precision(&arg, &value()?)?,
                "--check" => given.check = Some(true),
                "--no-check" => given.check = Some(false),
                "--json" => given.json = true,
                "--png" => given.png = Some(value()?.into()),
                _ => return Err(format!("there is no argument {arg}; see --help")),
            }
        }
        given.complete(ranks).map(Some)
    }

    /// Returns the real numbers of one variable.
    pub(crate) fn volume(&self) -> usize {
        self.points.iter().product()
    }

    /// Returns the memory that each of `ranks` needs: all fields, before and after, their spectra, and the buffers of
    /// transposes.
    pub(crate) fn bytes(&self, ranks: usize) -> usize {
        let [nx, ny, nz] = self.points;
        let spectrum = 2 * (nx / 2 + 1) * ny * nz;
        let each = 2 * self.volume() + spectrum;
        let alone = if self.check { each } else { 0 };
        let number = match self.precision {
            Precision::Single => size_of::<f32>(),
            Precision::Double => size_of::<f64>(),
        };
        number * ((self.vars * each + self.buffers(spectrum)) / ranks + alone)
    }

    /// Returns the numbers in the buffers of a row and a column on all ranks, in the mode that has most.
    fn buffers(&self, spectrum: usize) -> usize {
        let waits = self.modes.iter().all(|&mode| mode == Mode::Blocking);
        let vars = if waits { 1 } else { self.vars.min(2) };
        let [m1, m2] = self.grid;
        // Both ends are counted, but a block that does not travel only once; a row of one rank has a plane.
        let row = if m1 == 1 {
            0
        } else {
            spectrum * (2 * m1 - 1) / m1
        };
        vars * (row + spectrum * (2 * m2 - 1) / m2)
    }
}

impl Given {
    fn complete(self, ranks: usize) -> Result<Options, String> {
        let points = self.points.unwrap_or([128; 3]);
        let vars = self.vars.unwrap_or(1);
        let numbers = points
            .iter()
            .try_fold(vars, |product, &edge| product.checked_mul(edge));
        let numbers = numbers.filter(|&numbers| numbers / ranks < NUMBERS_MAX).ok_or_else(|| {
            let [x, y, z] = points;
            format!(
                "--n {x}x{y}x{z} with {vars} variables is more than {NUMBERS_MAX} numbers for each rank; \
                 take fewer points or more ranks"
            )
        })?;
        Ok(Options {
            points,
            grid: grid(self.grid, ranks)?,
            vars,
            modes: self.modes.unwrap_or_else(|| ALL_MODES.to_vec()),
            chunks: self
                .chunks
                .unwrap_or(if vars == 1 { CHUNKS_OF_ONE } else { 1 }),
            tests: self.tests.unwrap_or(8),
            iters: self
                .iters
                .unwrap_or_else(|| (TRANSFORMED / numbers).clamp(5, 200)),
            precision: self.precision,
            check: self.check.unwrap_or(numbers <= CHECKED_MAX),
            json: self.json,
            png: self.png,
        })
    }
}

fn grid(given: Option<[usize; 2]>, ranks: usize) -> Result<[usize; 2], String> {
    let dims = Cart::dims_for(ranks, 2);
    let usual = [dims[0].min(dims[1]), dims[0].max(dims[1])];
    let Some([m1, m2]) = given else {
        return Ok(usual);
    };
    if m1.checked_mul(m2) == Some(ranks) {
        return Ok([m1, m2]);
    }
    Err(format!(
        "--grid {m1}x{m2} is not a grid of {ranks} ranks, as many as the job has: take for example {}x{}",
        usual[0], usual[1]
    ))
}

/// Returns the text of `--help`.
pub(crate) const HELP: &str = "\
A 3-D Fourier transform of real numbers, there and back, on a grid of ranks.

  ripstop run -n RANKS --example p3dfft -- [ARGUMENTS]

  --n N              N x N x N points [128]; or NXxNYxNZ
  --grid M1xM2       M1 ranks share every plane of z, M2 share the planes [as square as it goes, M1 <= M2]
  --vars V           variables that are transformed together [1]
  --mode MODE        blocking: transposes are waited for; host: moved on by a few tests in every stage, and by the agent
                     where none comes for a millisecond (RIPSTOP_PROGRESS=inline: by the tests alone);
                     offload: moved on by somebody else while this rank computes; all: one after the other [all]
  --chunks C         pieces of a variable, one of which is computed while another travels [4 for one variable, else 1]
  --tests T          tests in every stage, in mode host [8]
  --iters I          times there and back that are timed [about a second's worth]
  --precision P      f32 or f64 [f64]
  --check            transform sines and noise, compare with one rank bit by bit, whatever the size; --no-check: do not
  --json             one line of JSON for each mode
  --png FILE         a picture: noise that was made smooth in the space of its waves, cut in the middle of z

For example:

  ripstop run -n 4 --example p3dfft -- --n 128 --vars 4 --mode offload
  ripstop run -n 6 --example p3dfft -- --n 120x100x140 --grid 2x3 --precision f32 --check
  ripstop run -n 2 --example p3dfft -- --n 256 --mode blocking --json --png field.png
";

fn number(name: &str, text: &str, range: RangeInclusive<usize>) -> Result<usize, String> {
    let value = text.parse().ok().filter(|value| range.contains(value));
    let (least, most) = range.into_inner();
    value.ok_or_else(|| format!("{name} {text}: give a whole number from {least} to {most}"))
}

fn points(name: &str, text: &str) -> Result<[usize; 3], String> {
    match product(text).as_deref() {
        Some(&[n]) => Ok([n; 3]),
        Some(&[x, y, z]) => Ok([x, y, z]),
        _ => Err(format!(
            "{name} {text}: give a whole number of at least 1, or three such as 120x100x140"
        )),
    }
}

fn pair(name: &str, text: &str) -> Result<[usize; 2], String> {
    match product(text).as_deref() {
        Some(&[m1, m2]) => Ok([m1, m2]),
        _ => Err(format!(
            "{name} {text}: give two whole numbers of at least 1, such as 2x3"
        )),
    }
}

/// Parses numbers of at least 1, with `x` between them.
fn product(text: &str) -> Option<Vec<usize>> {
    let parts = text
        .split('x')
        .map(|part| part.parse().ok().filter(|&value| value > 0));
    parts.collect()
}

fn modes(name: &str, text: &str) -> Result<Vec<Mode>, String> {
    match text {
        "blocking" => Ok(vec![Mode::Blocking]),
        "host" => Ok(vec![Mode::Host]),
        "offload" => Ok(vec![Mode::Offload]),
        "all" => Ok(ALL_MODES.to_vec()),
        _ => Err(format!(
            "{name} {text}: choose blocking, host, offload or all"
        )),
    }
}

fn precision(name: &str, text: &str) -> Result<Precision, String> {
    match text {
        "f32" => Ok(Precision::Single),
        "f64" => Ok(Precision::Double),
        _ => Err(format!("{name} {text}: choose f32 or f64")),
    }
}

const ALL_MODES: [Mode; 3] = [Mode::Blocking, Mode::Host, Mode::Offload];

/// Chunks if there are no other variables to compute while one travels: a quarter is left exposed at the end.
const CHUNKS_OF_ONE: usize = 4;

/// Numbers that are transformed there and back by default: about a second's worth.
const TRANSFORMED: usize = 1 << 28;

/// The most numbers that are checked by default: a fraction of a second too.
const CHECKED_MAX: usize = 1 << 22;

/// The most variables and rounds. More are typing errors.
const VARS_MAX: usize = 1000;
const TIMES_MAX: usize = 1_000_000;

/// The most chunks: each has up to eight buffers, and a rank can have 1024.
const CHUNKS_MAX: usize = 100;

/// The most numbers: 64 GiB for a field and its spectrum. More is a typing error.
const NUMBERS_MAX: usize = 1 << 32;
