//! A slice of a field that the transform has smoothed.

use std::path::Path;

use num_complex::Complex;
use ripstop::Comm;

use crate::{
    FftResult,
    fft::{FftSetup, PencilFft, PencilGrid, TransposeMode, check::modes, samples::noise},
    png,
};

/// Damps the waves of noise as turbulence does, and writes the slice in the middle of z to `file`. Collective.
///
/// # Errors
/// A rank failed, or the file cannot be written.
pub(crate) async fn draw(world: &Comm, grid: &PencilGrid, file: &Path) -> FftResult<()> {
    let setup = FftSetup {
        grid: grid.clone(),
        vars: 1,
        mode: TransposeMode::Blocking,
        tests: 0,
        poison: false,
    };
    let mut transform = PencilFft::<f64>::new(world, setup).await?;
    let mut fields = [noise(grid, 0)];
    let mut spectra = [vec![Complex::default(); grid.spectrum_len()]];
    transform.forward(&fields, &mut spectra).await?;
    damp(grid, &mut spectra[0]);
    transform.backward(&spectra, &mut fields).await?;
    match slice(world, grid, &fields[0]).await? {
        Some(rows) => write(grid, &rows, file),
        None => Ok(()),
    }
}

/// Energy as the −5/3rd power of the wave number, spread over a sphere.
fn damp(grid: &PencilGrid, spectrum: &mut [Complex<f64>]) {
    let wave = |k: usize, n: usize| k.min(n - k) as f64;
    let [nx, ny, nz] = grid.points;
    for ([kx, ky, kz], coefficient) in modes(grid).zip(spectrum) {
        let square = wave(kx, nx).powi(2) + wave(ky, ny).powi(2) + wave(kz, nz).powi(2);
        *coefficient *= if square > 0.0 {
            square.powf(-11.0 / 12.0)
        } else {
            0.0
        };
    }
}

/// Gathers all rows of the slice on rank 0.
async fn slice(world: &Comm, grid: &PencilGrid, field: &[f64]) -> FftResult<Option<Vec<f64>>> {
    let [m1, m2] = grid.ranks;
    let middle = grid.points[2] / 2;
    let mut sent = None;
    if grid.z().contains(&middle) {
        let plane = grid.y_in_row().len() * grid.points[0];
        let rows = &field[(middle - grid.z().start) * plane..][..plane];
        sent = Some(world.send(0, TAG, rows.to_vec()));
    }
    let mut all = Vec::new();
    if world.rank() == 0 {
        let j = (0..m2)
            .find(|&j| grid.z_of(j).contains(&middle))
            .unwrap_or(0);
        for i in 0..m1 {
            all.extend(world.recv::<f64>(i + j * m1, TAG).await?.0);
        }
    }
    if let Some(sent) = sent {
        sent.await?;
    }
    Ok((world.rank() == 0).then_some(all))
}

fn write(grid: &PencilGrid, rows: &[f64], file: &Path) -> FftResult<()> {
    let (width, height) = (grid.points[0], grid.points[1]);
    let zoom = (PIXELS_WANTED / width.max(height)).max(1);
    let strongest = rows
        .iter()
        .fold(0.0_f64, |strongest, value| strongest.max(value.abs()));
    let mut rgb = Vec::with_capacity(3 * rows.len() * zoom * zoom);
    for row in rows.chunks_exact(width) {
        let colours = row.iter().map(|value| png::diverging(value / strongest));
        let line: Vec<u8> = colours.flat_map(|colour| colour.repeat(zoom)).collect();
        rgb.extend(line.repeat(zoom));
    }
    png::write_png(file, width * zoom, height * zoom, &rgb)
        .map_err(|error| format!("--png {}: {error}", file.display()).into())
}

const TAG: u32 = 40;

/// Scale of a picture: a small field is drawn larger.
const PIXELS_WANTED: usize = 512;
