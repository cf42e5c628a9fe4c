//! The arguments.

#[path = "../common/options.rs"]
mod given;

use ripstop::Cart;

use self::given::GivenArguments;
use crate::heat::HaloMode;

/// The parsed arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HaloOptions {
    /// Cells of the whole box: z, y, x.
    pub(crate) global: [usize; 3],
    /// Ranks in each dimension: z, y, x.
    pub(crate) grid: [usize; 3],
    /// Edge of every rank's cube, if ranks have cubes.
    pub(crate) n: Option<usize>,
    /// Steps that are timed.
    pub(crate) steps: usize,
    pub(crate) modes: Vec<HaloMode>,
    pub(crate) check: bool,
    pub(crate) json: bool,
}

impl HaloOptions {
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
        let grid = grid(given, ranks)?;
        let (n, global) = global(given, grid)?;
        let cells = global
            .iter()
            .try_fold(1_usize, |cells, &edge| cells.checked_mul(edge));
        let cells = cells
            .filter(|&cells| cells / ranks < CELLS_MAX)
            .ok_or_else(|| {
                format!(
                    "a box of {} cells is more than {CELLS_MAX} cells for each rank; \
             take fewer cells or more ranks",
                    format_size(global)
                )
            })?;
        let modes = given.read("--mode", MODES)?;
        let steps = given.read("--steps", 1..=STEPS_MAX)?;
        let check = given.last(&["--check", "--no-check"]);
        Ok(Self {
            global,
            grid,
            n,
            steps: steps.unwrap_or_else(|| (UPDATES / (cells / ranks).max(1)).clamp(20, 2000)),
            modes: modes.unwrap_or(BOTH).to_vec(),
            check: check.map_or(cells <= CHECKED_CELLS_MAX, |(name, _)| name == "--check"),
            json: given.has("--json"),
        })
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

/// Returns the ranks in each dimension.
fn grid(given: &GivenArguments, ranks: usize) -> Result<[usize; 3], String> {
    let dims = Cart::dims_for(ranks, 3);
    let Some(grid) = given.read("--grid", 1..=usize::MAX)?.map(turned) else {
        return Ok([dims[0], dims[1], dims[2]]);
    };
    let made = grid
        .iter()
        .fold(1_usize, |product, &ranks| product.saturating_mul(ranks));
    if made == ranks {
        return Ok(grid);
    }
    Err(format!(
        "--grid {} makes {made} ranks, and the job has {ranks}: take for example {}x{}x{}",
        format_size(grid),
        dims[2],
        dims[1],
        dims[0]
    ))
}

/// Returns the edge of every rank's cube, if ranks have cubes, and the cells of the whole box.
fn global(given: &GivenArguments, grid: [usize; 3]) -> Result<(Option<usize>, [usize; 3]), String> {
    let n = given.read("--n", 2..=usize::MAX)?;
    let global = given.read("--global", 1..=usize::MAX)?.map(turned);
    match (n, global) {
        (Some(_), Some(_)) => {
            Err("--n and --global say the same in two ways: give one of them".to_owned())
        }
        (None, Some(global)) => Ok((None, global)),
        (n, None) => Ok((Some(n.unwrap_or(64)), cubes(n.unwrap_or(64), grid)?)),
    }
}

/// The text of `--help`, which declares the arguments: see `common/options.rs`.
pub(crate) const HELP: &str = "\
A 3-D heat equation, split over the ranks, with the faces exchanged in every step.

  ripstop run -n RANKS --example halo -- [ARGUMENTS]

  --n N              every rank has a cube of N x N x N cells [64]
  --global XxYxZ     or: the size of the whole box, divided as evenly as possible
  --grid PXxPYxPZ    how the ranks are arranged; by default z is split first, then y, then x
  --steps S          steps to time, after a tenth as many to warm up
  --mode MODE        blocking, overlap or both [both]
  --check            compare with one rank, bit by bit, whatever the size
  --no-check         do not compare; without either, small boxes are compared
  --json             one line of JSON for each mode, and one of what overlap gains

For example:

  ripstop run -n 4 --example halo -- --global 100x80x61 --grid 1x2x2 --steps 500 --mode overlap
";

/// Turns x, y, z into z, y, x.
fn turned([x, y, z]: [usize; 3]) -> [usize; 3] {
    [z, y, x]
}

fn cubes(n: usize, grid: [usize; 3]) -> Result<[usize; 3], String> {
    let [z, y, x] = grid.map(|ranks| ranks.checked_mul(n));
    z.zip(y)
        .zip(x)
        .map(|((z, y), x)| [z, y, x])
        .ok_or_else(|| format!("--n {n} is too large: take fewer cells"))
}

/// Returns z, y, x as text in the order of the arguments.
pub(crate) fn format_size([z, y, x]: [usize; 3]) -> String {
    format!("{x}x{y}x{z}")
}

const BOTH: &[HaloMode] = &[HaloMode::Blocking, HaloMode::Overlap];

const MODES: &[(&str, &[HaloMode])] = &[
    ("blocking", &[HaloMode::Blocking]),
    ("overlap", &[HaloMode::Overlap]),
    ("both", BOTH),
];

/// Cell updates of each rank by default: a fraction of a second.
const UPDATES: usize = 1 << 28;

/// The largest box that is compared with one rank by default: a fraction of a second too.
const CHECKED_CELLS_MAX: usize = 1 << 23;

/// The most steps. The time of each is kept; more are a typing error.
const STEPS_MAX: usize = 10_000_000;

/// The most cells: 64 GiB for two fields. More is a typing error.
const CELLS_MAX: usize = 1 << 32;
