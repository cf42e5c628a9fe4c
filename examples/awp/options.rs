//! The arguments.

#[path = "../common/options.rs"]
mod given;

use std::path::PathBuf;

use ripstop::Cart;

use self::given::{AllowedValues, GivenArguments};
use crate::{
    mode::AwpMode,
    wave::{
        AwpDomain, GHOSTS, RockModel, RockProperties, SourceMechanism, WaveProblem, WaveSource,
        dt_max,
    },
};

/// The parsed arguments.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct AwpOptions {
    /// Cells of the whole box: x, y, z.
    pub(crate) global: [usize; 3],
    /// Ranks in each dimension: x, y, z.
    pub(crate) grid: [usize; 3],
    pub(crate) periodic: [bool; 3],
    pub(crate) steps: usize,
    pub(crate) modes: Vec<AwpMode>,
    /// Exchange only layers of ghosts that are read, in modes that do not say so themselves.
    pub(crate) needed_only: bool,
    pub(crate) precision: AwpPrecision,
    pub(crate) model: RockModel,
    pub(crate) source: SourceMechanism,
    pub(crate) sponge: usize,
    pub(crate) free_surface: bool,
    pub(crate) seismograms: Option<PathBuf>,
    pub(crate) png: Option<PathBuf>,
    pub(crate) check: bool,
    pub(crate) json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AwpPrecision {
    Single,
    Double,
}

impl AwpOptions {
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
        let global = global(given)?;
        let cells = global
            .iter()
            .try_fold(1_usize, |cells, &edge| cells.checked_mul(edge));
        if cells.is_none_or(|cells| cells / ranks > CELLS_MAX) {
            return Err(format!(
                "a box of {} cells is more than {CELLS_MAX} cells for each rank: take fewer cells or more ranks",
                format_size(global)
            ));
        }
        let modes = given.read("--mode", &*AwpMode::choices())?;
        let file = |name| given.last(&[name]).map(|(_, file)| file.into());
        Ok(Self {
            global,
            grid,
            periodic: given.read("--periodic", Dimensions)?.unwrap_or_default(),
            steps: given.read("--steps", 1..=STEPS_MAX)?.unwrap_or(100),
            modes: modes.unwrap_or_else(|| vec![AwpMode::PscwSplit]),
            needed_only: given.read("--layers", LAYERS)?.unwrap_or(false),
            precision: given
                .read("--precision", PRECISIONS)?
                .unwrap_or(AwpPrecision::Single),
            model: given.read("--model", MODELS)?.unwrap_or(RockModel::Layered),
            source: given
                .read("--source", SOURCES)?
                .unwrap_or(SourceMechanism::DoubleCouple),
            sponge: given.read("--sponge", 0..=usize::MAX)?.unwrap_or(10),
            free_surface: !given.has("--closed"),
            seismograms: file("--seismograms"),
            png: file("--png"),
            check: given.has("--check"),
            json: given.has("--json"),
        })
    }

    /// Returns the memory that `ranks` ranks need, without their buffers: all quantities and the rock with ghosts. In a check,
    /// the first rank also needs those of the whole box.
    pub(crate) fn bytes(&self, ranks: usize, with_first: bool) -> usize {
        let cells = |grid: [usize; 3]| -> usize {
            let edges = self.global.iter().zip(grid);
            edges
                .map(|(cells, ranks)| cells / ranks + 2 * GHOSTS)
                .product()
        };
        let alone = if self.check && with_first {
            cells([1; 3])
        } else {
            0
        };
        let number = match self.precision {
            AwpPrecision::Single => size_of::<f32>(),
            AwpPrecision::Double => size_of::<f64>(),
        };
        FIELDS * number * (ranks * cells(self.grid) + alone)
    }

    /// Returns the problem of `rank`.
    ///
    /// # Errors
    /// A sentence that says which dimension has too few cells for its ranks.
    pub(crate) fn problem(&self, rank: usize) -> Result<WaveProblem, String> {
        let [x, y, z] = self.global;
        Ok(WaveProblem {
            domain: AwpDomain::part(self.global, self.grid, self.periodic, rank)?,
            model: self.model,
            spacing: SPACING,
            dt: 0.9 * dt_max(&self.model, SPACING),
            sponge: self.sponge,
            free_surface: self.free_surface,
            source: Some(WaveSource {
                kind: self.source,
                cell: [x / 2, y / 2, z * 2 / 3],
                width_s: CELLS_PER_WIDTH * SPACING / self.model.vs_min(),
            }),
        })
    }
}

/// Returns the ranks in each dimension.
fn grid(given: &GivenArguments, ranks: usize) -> Result<[usize; 3], String> {
    let dims = Cart::dims_for(ranks, 3);
    let balanced = [dims[0], dims[1], dims[2]];
    let grid = given.read("--grid", 1..=usize::MAX)?.unwrap_or(balanced);
    let made = grid
        .iter()
        .fold(1_usize, |product, &ranks| product.saturating_mul(ranks));
    if made == ranks {
        return Ok(grid);
    }
    Err(format!(
        "--grid {} makes {made} ranks, and the job has {ranks}: take for example {}",
        format_size(grid),
        format_size(balanced)
    ))
}

/// Returns the cells of the whole box.
fn global(given: &GivenArguments) -> Result<[usize; 3], String> {
    let n = given.read("--n", 1..=usize::MAX)?;
    let global = given.read("--global", 1..=usize::MAX)?;
    if n.is_some() && global.is_some() {
        return Err("--n and --global say the same in two ways: give one of them".to_owned());
    }
    Ok(global.unwrap_or_else(|| [n.unwrap_or(64); 3]))
}

/// One or more dimensions, such as `xy`.
struct Dimensions;

impl AllowedValues<[bool; 3]> for Dimensions {
    fn read(&self, text: &str) -> Option<[bool; 3]> {
        let is_known = text.bytes().all(|byte| b"xyz".contains(&byte));
        is_known.then(|| ['x', 'y', 'z'].map(|dim| text.contains(dim)))
    }

    fn advice(&self, _: &str) -> String {
        "give one or more of x, y and z, such as xy".to_owned()
    }
}

/// The text of `--help`, which declares the arguments: see `common/options.rs`.
pub(crate) const HELP: &str = "\
Seismic waves in a box of rock, split over the ranks, with the ghosts exchanged twice in every step.

  ripstop run -n RANKS --example awp -- [ARGUMENTS]

  --n N               the box has N x N x N cells [64]
  --global XxYxZ      or: its size in each dimension; z is upwards
  --grid PXxPYxPZ     how the ranks are arranged; by default x is split first, then y, then z
  --steps S           time steps [100]
  --mode MODE         how ghosts are exchanged, or `all` [pscw-split]:
                        two-sided         a message for every quantity and neighbor, after all cells
                        two-sided-split   the cells that a neighbor needs first, the others meanwhile
                        fence             puts between two fences, after all cells
                        pscw              puts between post, start, complete and wait, after all cells
                        pscw-split        the same, with the cells that a neighbor needs first
                        pscw-needed       the same, with the layers of ghosts only that are read
  --layers LAYERS     layers of ghosts: full (two everywhere) or needed (those that are read) [full]
  --precision P       f32 or f64 [f32]

  --model MODEL       uniform or layered rock [layered]
  --source SOURCE     explosion, or double-couple: a vertical fault whose sides move up and down [double-couple]
  --sponge N          cells at the ends that absorb waves; 0 for none [10]
  --closed            the top is an end like the others, not a free surface
  --periodic DIMS     dimensions that wrap around, of x, y and z, such as xy

  --seismograms FILE  the velocities at eight places of the surface, as CSV
  --png FILE          the vertical velocity at the end: the surface, and below it a section through the source
  --check             first compare 20 steps with one rank, bit by bit
  --json              one line of JSON for each mode

For example:

  ripstop run -n 4 --example awp -- --n 96 --steps 200 --mode all --check
  ripstop run -n 4 --example awp -- --global 192x96x96 --steps 250 --png wave.png --seismograms wave.csv
";

/// Returns x, y, z as text.
pub(crate) fn format_size([x, y, z]: [usize; 3]) -> String {
    format!("{x}x{y}x{z}")
}

const LAYERS: &[(&str, bool)] = &[("full", false), ("needed", true)];

const PRECISIONS: &[(&str, AwpPrecision)] =
    &[("f32", AwpPrecision::Single), ("f64", AwpPrecision::Double)];

const MODELS: &[(&str, RockModel)] = &[
    ("uniform", RockModel::Uniform(RockProperties::GRANITE)),
    ("layered", RockModel::Layered),
];

const SOURCES: &[(&str, SourceMechanism)] = &[
    ("explosion", SourceMechanism::Explosion),
    ("double-couple", SourceMechanism::DoubleCouple),
];

/// Edge of a cell, in m.
const SPACING: f64 = 100.0;

/// Number of cells that the slowest wave passes within the width of the source's bell curve: enough for waves without ripples.
const CELLS_PER_WIDTH: f64 = 2.5;

/// The most steps. The time of each is kept; more are a typing error.
const STEPS_MAX: usize = 10_000_000;

/// Fields in a cell: nine quantities, and eight of the rock.
const FIELDS: usize = 17;

/// The most cells: 32 GiB in double precision. More is a typing error.
const CELLS_MAX: usize = 1 << 28;
