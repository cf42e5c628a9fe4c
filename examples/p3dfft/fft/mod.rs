//! A parallel 3-D Fourier transform of real numbers, on a grid of ranks.
//!
//! Every rank has whole lines of one dimension at a time: pencils along x, then y, then z. Between them blocks change places
//! among the ranks of a row (x and y) and of a column (y and z). Neither direction divides: there and back is a factor of
//! Nx·Ny·Nz.
//!
//! ```text
//! field [z][y][x]  --r2c x-->  row  --c2c y-->  column  --c2c z-->  spectrum [x][y][z]
//! ```

pub(crate) mod check;
pub(crate) mod clock;
mod exchange;
mod grid;
mod lines;
mod pieces;
mod real;
pub(crate) mod samples;
mod slot;
mod stages;
mod tile;

use num_complex::Complex;
use ripstop::{Comm, Result};

use self::{
    clock::{PhaseClock, PhaseTimes},
    lines::LineTransforms,
    pieces::{FftPiece, GridAxis, PencilTranspose},
};
pub(crate) use self::{exchange::TransposeMode, grid::PencilGrid, real::FftReal};

/// Parameters of the transform.
#[derive(Clone, Debug)]
pub(crate) struct FftSetup {
    pub(crate) grid: PencilGrid,
    /// Number of variables that are transformed at a time.
    pub(crate) vars: usize,
    pub(crate) mode: TransposeMode,
    /// Polls in a stage, in [`TransposeMode::Host`].
    pub(crate) tests: usize,
    /// Fills buffers with NaN before data is received into them, so that a read too early shows in every later result.
    pub(crate) poison: bool,
}

/// This rank's part of the transform, with all buffers.
#[derive(Debug)]
pub(crate) struct PencilFft<T: FftReal> {
    setup: FftSetup,
    lines: LineTransforms<T>,
    row: PencilTranspose<T>,
    column: PencilTranspose<T>,
    /// Number of steps between the start of a piece's transpose and its end; other pieces are computed meanwhile.
    lag: usize,
    /// True if X and Y go together plane by plane, because a row is one rank.
    is_fused: bool,
    watch: PhaseClock,
}

impl<T: FftReal> PencilFft<T> {
    /// Makes the transform. Collective.
    ///
    /// # Errors
    /// There is no memory, or a rank failed.
    pub(crate) async fn new(world: &Comm, setup: FftSetup) -> Result<Self> {
        let [i, j] = setup.grid.at;
        let row = world.split(j, i).await?;
        let column = world.split(i, j).await?;
        let lag = usize::from(setup.mode != TransposeMode::Blocking);
        let sets = (1 + lag).min(setup.vars);
        Ok(Self {
            lines: LineTransforms::new(&setup.grid),
            row: PencilTranspose::of_row(row, &setup.grid, sets)?,
            column: PencilTranspose::of_column(column, &setup.grid, sets)?,
            is_fused: setup.grid.ranks[0] == 1,
            setup,
            lag,
            watch: PhaseClock::start(),
        })
    }

    /// Transforms each of the `fields` to a spectrum: this rank's `[z][y][x]` to its `[x][y][z]`.
    ///
    /// # Errors
    /// A rank failed or finished; the transform is unusable afterwards.
    ///
    /// # Panics
    /// Panics if there are more variables than were set up, or one is not as long as [`PencilGrid`] says.
    pub(crate) async fn forward(
        &mut self,
        fields: &[Vec<T>],
        spectra: &mut [Vec<Complex<T>>],
    ) -> Result<PhaseTimes> {
        self.expect(fields, spectra);
        self.watch = PhaseClock::start();
        let pieces = fields.len() * self.setup.grid.chunks;
        for step in 0..pieces + 2 * self.lag {
            if let Some(piece) = self.piece(step, 0, pieces) {
                self.forward_x(piece, &fields[piece.var]);
            }
            if let Some(piece) = self.piece(step, 1, pieces) {
                self.finish_transpose(GridAxis::Row, piece).await?;
                self.forward_y(piece, &fields[piece.var]);
            }
            if let Some(piece) = self.piece(step, 2, pieces) {
                self.finish_transpose(GridAxis::Column, piece).await?;
                if piece.chunk + 1 == self.setup.grid.chunks {
                    self.forward_z(piece, &mut spectra[piece.var]);
                }
            }
        }
        Ok(self.watch.spans_us())
    }

    /// Transforms each of the `spectra`, which it leaves unchanged, to a field that is larger by a factor of Nx·Ny·Nz.
    ///
    /// # Errors
    /// Returns the errors of [`forward`](Self::forward).
    ///
    /// # Panics
    /// Panics like [`forward`](Self::forward).
    pub(crate) async fn backward(
        &mut self,
        spectra: &[Vec<Complex<T>>],
        fields: &mut [Vec<T>],
    ) -> Result<PhaseTimes> {
        self.expect(fields, spectra);
        self.watch = PhaseClock::start();
        let pieces = fields.len() * self.setup.grid.chunks;
        for step in 0..pieces + 2 * self.lag {
            if let Some(piece) = self.piece(step, 0, pieces)
                && piece.chunk == 0
            {
                self.backward_z(piece, &spectra[piece.var]);
            }
            if let Some(piece) = self.piece(step, 1, pieces) {
                self.finish_transpose(GridAxis::Column, piece).await?;
                self.backward_y(piece, &mut fields[piece.var]);
            }
            if let Some(piece) = self.piece(step, 2, pieces) {
                self.finish_transpose(GridAxis::Row, piece).await?;
                self.backward_x(piece, &mut fields[piece.var]);
            }
        }
        Ok(self.watch.spans_us())
    }

    fn expect(&self, fields: &[Vec<T>], spectra: &[Vec<Complex<T>>]) {
        let FftSetup { grid, vars, .. } = &self.setup;
        let (field, spectrum) = (grid.field_len(), grid.spectrum_len());
        assert!(
            fields.len() == spectra.len() && fields.len() <= *vars,
            "{} fields and {} spectra, set up for {vars}",
            fields.len(),
            spectra.len()
        );
        assert!(
            fields.iter().all(|one| one.len() == field),
            "fields of {field} numbers"
        );
        assert!(
            spectra.iter().all(|one| one.len() == spectrum),
            "spectra of {spectrum} coefficients"
        );
    }

    /// Returns the piece that stage number `stage` works on in a step.
    fn piece(&self, step: usize, stage: usize, pieces: usize) -> Option<FftPiece> {
        let number = step
            .checked_sub(stage * self.lag)
            .filter(|&number| number < pieces)?;
        let chunks = self.setup.grid.chunks;
        Some(FftPiece {
            number,
            var: number / chunks,
            chunk: number % chunks,
        })
    }
}
