//! The arguments.

#[path = "../common/options.rs"]
mod given;

use std::path::PathBuf;

use ripstop::Cart;

use self::given::{AllowedValues, GivenArguments};
use crate::fft::TransposeMode;

/// The parsed arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FftOptions {
    /// Points in x, y and z.
    pub(crate) points: [usize; 3],
    /// M1 and M2.
    pub(crate) grid: [usize; 2],
    pub(crate) vars: usize,
    pub(crate) modes: Vec<TransposeMode>,
    pub(crate) chunks: usize,
    pub(crate) tests: usize,
    /// Number of timed transforms there and back.
    pub(crate) iters: usize,
    pub(crate) precision: FftPrecision,
    pub(crate) check: bool,
    pub(crate) json: bool,
    pub(crate) png: Option<PathBuf>,
}

/// The precision of the numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FftPrecision {
    Single,
    Double,
}

impl FftOptions {
    /// Parses the arguments of a job of `ranks`; `None` asks for help.
    ///
    /// # Errors
    /// A sentence that names the argument and says what to do.
    pub(crate) fn parse(
        args: impl IntoIterator<Item = String>,
        ranks: usize,
    ) -> Result<Option<Self>, String> {
        let given = GivenArguments::sort(HELP, args)?;
        given.map(|given| Self::of(&given, ranks)).transpose()
    }

    fn of(given: &GivenArguments, ranks: usize) -> Result<Self, String> {
        let points = given.read("--n", Points)?.unwrap_or([128; 3]);
        let vars = given.read("--vars", 1..=VARS_MAX)?.unwrap_or(1);
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
        let chunks = if vars == 1 { CHUNKS_OF_ONE } else { 1 };
        let iters = (TRANSFORMED / numbers).clamp(5, 200);
        let check = given.last(&["--check", "--no-check"]);
        Ok(Self {
            points,
            grid: grid(given.read("--grid", 1..=usize::MAX)?, ranks)?,
            vars,
            modes: given.read("--mode", MODES)?.unwrap_or(ALL_MODES).to_vec(),
            chunks: given.read("--chunks", 1..=CHUNKS_MAX)?.unwrap_or(chunks),
            tests: given.read("--tests", 0..=TIMES_MAX)?.unwrap_or(8),
            iters: given.read("--iters", 1..=TIMES_MAX)?.unwrap_or(iters),
            precision: given
                .read("--precision", PRECISIONS)?
                .unwrap_or(FftPrecision::Double),
            check: check.map_or(numbers <= CHECKED_MAX, |(name, _)| name == "--check"),
            json: given.has("--json"),
            png: given.last(&["--png"]).map(|(_, file)| file.into()),
        })
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
            FftPrecision::Single => size_of::<f32>(),
            FftPrecision::Double => size_of::<f64>(),
        };
        number * ((self.vars * each + self.buffers(spectrum)) / ranks + alone)
    }

    /// Returns the numbers in the buffers of a row and a column on all ranks, in the mode that has most.
    fn buffers(&self, spectrum: usize) -> usize {
        let waits = self
            .modes
            .iter()
            .all(|&mode| mode == TransposeMode::Blocking);
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

/// The text of `--help`, which declares the arguments: see `common/options.rs`.
pub(crate) const HELP: &str = "\
A 3-D Fourier transform of real numbers, there and back, on a grid of ranks.

  ripstop run -n RANKS --example p3dfft -- [ARGUMENTS]

  --n N              N x N x N points [128]; or NXxNYxNZ
  --grid M1xM2       M1 ranks share every plane of z, M2 share the planes [as square as possible, M1 <= M2]
  --vars V           variables that are transformed together [1]
  --mode MODE        blocking: transposes are waited for; host: advanced by a few tests in every stage, and by the agent
                     if no test comes for a millisecond (RIPSTOP_PROGRESS=inline: by the tests alone);
                     offload: advanced by the runtime or the adapter while this rank computes; all: one after the other [all]
  --chunks C         pieces of a variable, one of which is computed while another travels [4 for one variable, else 1]
  --tests T          tests in every stage, in mode host [8]
  --iters I          times there and back that are timed [about a second's worth]
  --precision P      f32 or f64 [f64]
  --check            transform sines and noise, compare with one rank bit by bit, whatever the size
  --no-check         do not check; without either, small transforms are checked
  --json             one line of JSON for each mode
  --png FILE         a picture: noise that was made smooth in the space of its waves, cut in the middle of z

For example:

  ripstop run -n 4 --example p3dfft -- --n 128 --vars 4 --mode offload
  ripstop run -n 6 --example p3dfft -- --n 120x100x140 --grid 2x3 --precision f32 --check
  ripstop run -n 2 --example p3dfft -- --n 256 --mode blocking --json --png field.png
";

/// One number of points for all dimensions, or one for each.
struct Points;

impl AllowedValues<[usize; 3]> for Points {
    fn read(&self, text: &str) -> Option<[usize; 3]> {
        let edge = 1..=usize::MAX;
        let each = edge.read(text);
        each.or_else(|| edge.read(text).map(|n: usize| [n; 3]))
    }

    fn advice(&self, _: &str) -> String {
        "give a whole number of at least 1, or three such as 120x100x140".to_owned()
    }
}

const ALL_MODES: &[TransposeMode] = &[
    TransposeMode::Blocking,
    TransposeMode::Host,
    TransposeMode::Offload,
];

const MODES: &[(&str, &[TransposeMode])] = &[
    ("blocking", &[TransposeMode::Blocking]),
    ("host", &[TransposeMode::Host]),
    ("offload", &[TransposeMode::Offload]),
    ("all", ALL_MODES),
];

const PRECISIONS: &[(&str, FftPrecision)] =
    &[("f32", FftPrecision::Single), ("f64", FftPrecision::Double)];

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
