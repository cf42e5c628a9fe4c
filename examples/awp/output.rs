//! Output files: seismograms, and a picture.

use std::{error::Error, fmt::Write, fs, io, path::Path};

use ripstop::Comm;

use crate::{
    png::{diverging, write_png},
    wave::{AwpDim, AwpDomain, CellBox, WaveProblem, WaveReal, WaveSolver, stencil::W},
};

type AwpOutputResult<T, E = Box<dyn Error>> = Result<T, E>;

/// Places of the surface whose velocities are recorded.
#[derive(Debug)]
pub(crate) struct SurfaceReceivers {
    /// Cells in the whole box.
    cells: Vec<[usize; 3]>,
    /// The stations of this rank, by number, with u, v and w of each step.
    own: Vec<(usize, [usize; 3], Vec<f64>)>,
}

impl SurfaceReceivers {
    /// Places stations along x, over the source.
    pub(crate) fn new(problem: &WaveProblem) -> Self {
        let [xs, ys, zs] = problem.domain.global;
        let cells: Vec<[usize; 3]> = (0..RECEIVERS)
            .map(|i| [(2 * i + 1) * xs / (2 * RECEIVERS), ys / 2, zs - 1])
            .collect();
        let local = |(number, &cell)| Some((number, problem.domain.local(cell)?, Vec::new()));
        let own = cells.iter().enumerate().filter_map(local).collect();
        Self { cells, own }
    }

    /// Records another step.
    pub(crate) fn record<T: WaveReal>(&mut self, solver: &WaveSolver<T>) {
        for (_, cell, values) in &mut self.own {
            let velocity = solver.velocity.iter().map(|field| field.get(*cell).wide());
            values.extend(velocity);
        }
    }

    /// Writes a table with a line for each step. Collective; rank 0 writes.
    ///
    /// # Errors
    /// Returns the errors of the messages and of writing.
    pub(crate) async fn write(
        self,
        world: &Comm,
        problem: &WaveProblem,
        path: &Path,
    ) -> AwpOutputResult<()> {
        if world.rank() > 0 {
            for (number, _, values) in self.own {
                world.send(0, tag(number), values).await?;
            }
            return Ok(());
        }
        let mut columns = Vec::new();
        for (number, &cell) in self.cells.iter().enumerate() {
            let own = self.own.iter().find(|(own, ..)| *own == number);
            columns.push(match own {
                Some((_, _, values)) => values.clone(),
                None => world.recv(problem.domain.owner(cell), tag(number)).await?.0,
            });
        }
        fs::write(path, self.table(&columns, problem)?).map_err(|why| at(path, &why))
    }

    fn table(&self, columns: &[Vec<f64>], problem: &WaveProblem) -> AwpOutputResult<String> {
        let mut table = "t_s".to_owned();
        for [x, ..] in &self.cells {
            let x = *x as f64 * problem.spacing;
            write!(table, ",u_at_{x:.0}_m,v_at_{x:.0}_m,w_at_{x:.0}_m")?;
        }
        let steps = columns.first().map_or(0, |values| values.len() / 3);
        for step in 0..steps {
            write!(table, "\n{:.6}", (step as f64 + 0.5) * problem.dt)?;
            for value in columns.iter().flat_map(|values| &values[3 * step..][..3]) {
                write!(table, ",{value:.6e}")?;
            }
        }
        table.push('\n');
        Ok(table)
    }
}

/// Returns the largest velocity of this rank's cells; NaN if any is NaN.
pub(crate) fn peak<T: WaveReal>(solver: &WaveSolver<T>) -> f64 {
    let own = solver.problem.domain.own();
    let values = solver.velocity.iter().flat_map(|field| field.block(own));
    values.map(|value| value.wide().abs()).fold(
        0.0,
        |peak, value| {
            if value <= peak { peak } else { value }
        },
    )
}

/// Draws the vertical velocity: the surface from above, and below it a section along x through the source. Collective; rank 0
/// writes.
///
/// # Errors
/// Returns the errors of the messages and of writing.
pub(crate) async fn draw<T: WaveReal>(
    world: &Comm,
    solver: &WaveSolver<T>,
    path: &Path,
) -> AwpOutputResult<()> {
    let [xs, ys, zs] = solver.problem.domain.global;
    let surface = plane(world, solver, AwpDim::Z, zs - 1, 0).await?;
    let section = plane(world, solver, AwpDim::Y, ys / 2, 1).await?;
    if world.rank() > 0 {
        return Ok(());
    }
    let scale = (PIXELS / xs).max(1);
    let mut picture = Picture::new(xs, scale);
    picture.push(&surface, ys);
    picture.gap();
    picture.push(&section, zs);
    let (width, height) = (xs * scale, picture.rgb.len() / (3 * xs * scale));
    write_png(path, width, height, &picture.rgb).map_err(|why| at(path, &why))
}

/// Returns the vertical velocity in a plane of the whole box, on rank 0; x slowest.
async fn plane<T: WaveReal>(
    world: &Comm,
    solver: &WaveSolver<T>,
    dim: usize,
    index: usize,
    tag: u32,
) -> AwpOutputResult<Vec<f64>> {
    let domain = &solver.problem.domain;
    let within = |part: &AwpDomain| part.in_whole().plane(dim, index);
    let mine = domain
        .own()
        .plane(dim, index.wrapping_sub(domain.before[dim]));
    let block = mine.map(|region| solver.velocity[W].block(region));
    if world.rank() > 0 {
        if let Some(block) = block {
            world.send(0, PLANES + tag, block).await?;
        }
        return Ok(Vec::new());
    }
    let whole = domain.whole();
    let all = within(&whole).map_or(0, |region| region.len());
    let mut plane = vec![0.0; all];
    for rank in 0..world.size() {
        let Some(region) = within(&domain.of(rank)) else {
            continue;
        };
        let block: Vec<T> = match &block {
            Some(block) if rank == 0 => block.clone(),
            _ => world.recv(rank, PLANES + tag).await?.0,
        };
        place(&mut plane, &whole, dim, region, &block);
    }
    Ok(plane)
}

fn place<T: WaveReal>(
    plane: &mut [f64],
    whole: &AwpDomain,
    dim: usize,
    region: CellBox,
    block: &[T],
) {
    let across = if dim == AwpDim::Z {
        AwpDim::Y
    } else {
        AwpDim::Z
    };
    let first = whole.own().cell(0);
    for (i, value) in block.iter().enumerate() {
        let cell = region.cell(i);
        let at = (cell[AwpDim::X] - first[AwpDim::X]) * whole.cells[across] + cell[across]
            - first[across];
        plane[at] = value.wide();
    }
}

/// Rows of pixels.
#[derive(Debug)]
struct Picture {
    width: usize,
    scale: usize,
    rgb: Vec<u8>,
}

impl Picture {
    fn new(width: usize, scale: usize) -> Self {
        Self {
            width,
            scale,
            rgb: Vec::new(),
        }
    }

    /// Adds `height` rows of values, x slowest, the last row uppermost. All but one in two hundred are within the range of
    /// colors.
    fn push(&mut self, values: &[f64], height: usize) {
        let mut sizes: Vec<f64> = values.iter().map(|value| value.abs()).collect();
        sizes.sort_by(f64::total_cmp);
        let full = sizes
            .get(sizes.len() * 199 / 200)
            .copied()
            .unwrap_or_default();
        let full = full.max(f64::MIN_POSITIVE);
        for row in (0..height * self.scale).rev() {
            for column in 0..self.width * self.scale {
                let value = values[column / self.scale * height + row / self.scale];
                self.rgb.extend(diverging(value / full));
            }
        }
    }

    fn gap(&mut self) {
        let pixels = self.width * self.scale * GAP;
        self.rgb.extend([0; 3].repeat(pixels));
    }
}

fn at(path: &Path, why: &io::Error) -> Box<dyn Error> {
    format!("{}: {why}", path.display()).into()
}

fn tag(receiver: usize) -> u32 {
    u32::try_from(receiver).unwrap_or(u32::MAX)
}

const RECEIVERS: usize = 8;

/// The width of a picture of few cells.
const PIXELS: usize = 576;

/// Rows between the two panels.
const GAP: usize = 3;

const PLANES: u32 = 100;
