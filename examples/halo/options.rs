//! The arguments.

use std::ops::RangeInclusive;

use ripstop::Cart;

use crate::heat::Mode;

/// The parsed arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Options {
    /// Cells of the whole box: z, y, x.
    pub(crate) global: [usize; 3],
    /// Ranks in each dimension: z, y, x.
    pub(crate) grid: [usize; 3],
    /// Edge of every rank's cube, if ranks have cubes.
    pub(crate) n: Option<usize>,
    /// Steps that are timed.
    pub(crate) steps: usize,
    pub(crate) modes: Vec<Mode>,
    pub(crate) check: bool,
    pub(crate) json: bool,
}

/// Arguments as they were given.
#[derive(Debug, Default)]
struct Given {
    n: Option<usize>,
    global: Option<[usize; 3]>,
    grid: Option<[usize; 3]>,
    steps: Option<usize>,
    mode: Option<String>,
    check: Option<bool>,
    json: bool,
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
                "--n" => given.n = Some(number(&arg, &value()?, 2..=usize::MAX)?),
                "--steps" => given.steps = Some(number(&arg, &value()?, 1..=STEPS_MAX)?),
                "--global" => given.global = Some(triple(&arg, &value()?)?),
                "--grid" => given.grid = Some(triple(&arg, &value()?)?),
                "--mode" => given.mode = Some(value()?),
                "--check" => given.check = Some(true),
                "--no-check" => given.check = Some(false),
                "--json" => given.json = true,
                _ => return Err(format!("there is no argument {arg}; see --help")),
            }
        }
        given.complete(ranks).map(Some)
    }

    /// Returns the memory that `ranks` ranks need, without their buffers: two fields with ghosts. In a check, the first rank
    /// also needs those of the whole box.
    pub(crate) fn bytes(&self, ranks: usize, with_first: bool) -> usize {
        let cells = |grid: [usize; 3]| -> usize {
            let edges = self.global.iter().zip(grid);
            edges.map(|(cells, ranks)| cells / ranks + 2).product()
        };
        let alone = if self.check && with_first {
            cells([1; 3])
        } else {
            0
        };
        2 * size_of::<f64>() * (ranks * cells(self.grid) + alone)
    }
}

impl Given {
    fn complete(self, ranks: usize) -> Result<Options, String> {
        let grid = self.grid(ranks)?;
        let (n, global) = match (self.n, self.global) {
            (Some(_), Some(_)) => {
                return Err(
                    "--n and --global say the same in two ways: give one of them".to_owned(),
                );
            }
            (None, Some(global)) => (None, global),
            (n, None) => (Some(n.unwrap_or(64)), cubes(n.unwrap_or(64), grid)?),
        };
        let cells = global
            .iter()
            .try_fold(1_usize, |cells, &edge| cells.checked_mul(edge));
        let cells = cells
            .filter(|&cells| cells / ranks < CELLS_MAX)
            .ok_or_else(|| {
                format!(
                    "a box of {} cells is more than {CELLS_MAX} cells for each rank; \
             take fewer cells or more ranks",
                    shown(global)
                )
            })?;
        let modes = match self.mode.as_deref() {
            None | Some("both") => vec![Mode::Blocking, Mode::Overlap],
            Some("blocking") => vec![Mode::Blocking],
            Some("overlap") => vec![Mode::Overlap],
            Some(other) => return Err(format!("--mode {other}: choose blocking, overlap or both")),
        };
        let steps = self
            .steps
            .unwrap_or_else(|| (UPDATES / (cells / ranks).max(1)).clamp(20, 2000));
        let check = self.check.unwrap_or(cells <= CHECKED_CELLS_MAX);
        Ok(Options {
            global,
            grid,
            n,
            steps,
            modes,
            check,
            json: self.json,
        })
    }

    fn grid(&self, ranks: usize) -> Result<[usize; 3], String> {
        let Some(grid) = self.grid else {
            let dims = Cart::dims_for(ranks, 3);
            return Ok([dims[0], dims[1], dims[2]]);
        };
        let made = grid
            .iter()
            .fold(1_usize, |product, &ranks| product.saturating_mul(ranks));
        if made == ranks {
            return Ok(grid);
        }
        let dims = Cart::dims_for(ranks, 3);
        Err(format!(
            "--grid {} makes {made} ranks, and the job has {ranks}: take for example {}x{}x{}",
            shown(grid),
            dims[2],
            dims[1],
            dims[0]
        ))
    }
}

/// Returns the text of `--help`.
pub(crate) const HELP: &str = "\
A 3-D heat equation, split over the ranks, with the faces exchanged in every step.

  ripstop run -n RANKS --example halo -- [ARGUMENTS]

  --n N              every rank has a cube of N x N x N cells [64]
  --global XxYxZ     or: the size of the whole box, divided as evenly as it goes
  --grid PXxPYxPZ    how the ranks are arranged; by default z is split first, then y, then x
  --steps S          steps to time, after a tenth as many to warm up
  --mode MODE        blocking, overlap or both [both]
  --check            compare with one rank, bit by bit, whatever the size; --no-check: do not
  --json             one line of JSON for each mode

For example:

  ripstop run -n 4 --example halo -- --global 100x80x61 --grid 1x2x2 --steps 500 --mode overlap
";

fn number(name: &str, text: &str, range: RangeInclusive<usize>) -> Result<usize, String> {
    let value = text.parse().ok().filter(|value| range.contains(value));
    let limits = match range.into_inner() {
        (least, usize::MAX) => format!("of at least {least}"),
        (least, most) => format!("from {least} to {most}"),
    };
    value.ok_or_else(|| format!("{name} {text}: give a whole number {limits}"))
}

/// Parses a triple given as x, y, z, and returns it as z, y, x.
fn triple(name: &str, text: &str) -> Result<[usize; 3], String> {
    let numbers: Option<Vec<usize>> = text
        .split('x')
        .map(|part| part.parse().ok().filter(|&value| value > 0))
        .collect();
    match numbers.as_deref() {
        Some(&[x, y, z]) => Ok([z, y, x]),
        _ => Err(format!(
            "{name} {text}: give three whole numbers of at least 1 for x, y and z, such as 2x2x1"
        )),
    }
}

fn cubes(n: usize, grid: [usize; 3]) -> Result<[usize; 3], String> {
    let [z, y, x] = grid.map(|ranks| ranks.checked_mul(n));
    z.zip(y)
        .zip(x)
        .map(|((z, y), x)| [z, y, x])
        .ok_or_else(|| format!("--n {n} is too large: take fewer cells"))
}

/// Parses three numbers.
pub(crate) fn shown([z, y, x]: [usize; 3]) -> String {
    format!("{x}x{y}x{z}")
}

/// Cell updates of each rank by default: a fraction of a second.
const UPDATES: usize = 1 << 28;

/// The largest box that is compared with one rank by default: a fraction of a second too.
const CHECKED_CELLS_MAX: usize = 1 << 23;

/// The most steps. The time of each is kept; more are a typing error.
const STEPS_MAX: usize = 10_000_000;

/// The most cells: 64 GiB for two fields. More is a typing error.
const CELLS_MAX: usize = 1 << 32;
