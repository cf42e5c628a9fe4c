//! The part of the box that each rank has, in each of the three layouts.

use std::ops::Range;

/// The box, the grid of ranks, and this rank's place in it.
///
/// Rank `i + j·M1` is at (i, j). Ranks with the same j are a row, those with the same i a column.
#[derive(Clone, Debug)]
pub(crate) struct PencilGrid {
    /// Points in x, y and z.
    pub(crate) points: [usize; 3],
    /// M1 and M2.
    pub(crate) ranks: [usize; 2],
    /// This rank's i and j.
    pub(crate) at: [usize; 2],
    /// Number of pieces into which every rank cuts its z, to transform one while another travels.
    pub(crate) chunks: usize,
}

impl PencilGrid {
    /// Makes the grid of one rank of a job.
    ///
    /// # Errors
    /// A sentence that names the argument and the dimension in which a rank would have no data.
    pub(crate) fn new(
        points: [usize; 3],
        ranks: [usize; 2],
        rank: usize,
        chunks: usize,
    ) -> Result<Self, String> {
        let [nx, ny, nz] = points;
        let [m1, m2] = ranks;
        if nx < 2 {
            return Err(format!("--n {nx} in x: a real transform needs at least 2"));
        }
        let least = [
            ("x", nx / 2 + 1, m1, "coefficients"),
            ("y", ny, m1.max(m2), "points"),
            ("z", nz, m2, "points"),
        ];
        for (dim, have, parts, what) in least {
            if have < parts {
                return Err(format!(
                    "--grid {m1}x{m2} splits the {have} {what} in {dim} into {parts} parts: \
                     take a larger --n, or another grid"
                ));
            }
        }
        Ok(Self {
            points,
            ranks,
            at: [rank % m1, rank / m1],
            // No chunk of any rank is empty.
            chunks: chunks.clamp(1, nz / m2),
        })
    }

    /// Returns the same box on one rank.
    pub(crate) fn single_rank(&self) -> Self {
        Self {
            ranks: [1, 1],
            at: [0, 0],
            chunks: 1,
            ..*self
        }
    }

    /// Returns how many coefficients are kept in x; the others are their conjugates.
    pub(crate) fn modes(&self) -> usize {
        self.points[0] / 2 + 1
    }

    /// Returns x of the Y and Z pencils of the ranks at `i`.
    pub(crate) fn x_of(&self, i: usize) -> Range<usize> {
        part(self.modes(), self.ranks[0], i)
    }

    /// Returns y of the X pencils of the ranks at `i`.
    pub(crate) fn y_of_row(&self, i: usize) -> Range<usize> {
        part(self.points[1], self.ranks[0], i)
    }

    /// Returns y of the Z pencils of the ranks at `j`.
    pub(crate) fn y_of_column(&self, j: usize) -> Range<usize> {
        part(self.points[1], self.ranks[1], j)
    }

    /// Returns z of the X and Y pencils of the ranks at `j`.
    pub(crate) fn z_of(&self, j: usize) -> Range<usize> {
        part(self.points[2], self.ranks[1], j)
    }

    /// Returns the piece `chunk` of [`z_of`](Self::z_of).
    pub(super) fn z_of_chunk(&self, j: usize, chunk: usize) -> Range<usize> {
        let z = self.z_of(j);
        let piece = part(z.len(), self.chunks, chunk);
        z.start + piece.start..z.start + piece.end
    }

    /// Returns this rank's [`x_of`](Self::x_of); the methods below are alike.
    pub(crate) fn x(&self) -> Range<usize> {
        self.x_of(self.at[0])
    }

    pub(crate) fn y_in_row(&self) -> Range<usize> {
        self.y_of_row(self.at[0])
    }

    pub(crate) fn y_in_column(&self) -> Range<usize> {
        self.y_of_column(self.at[1])
    }

    pub(crate) fn z(&self) -> Range<usize> {
        self.z_of(self.at[1])
    }

    /// Returns the real numbers of this rank: `[z][y][x]`, x fastest.
    pub(crate) fn field_len(&self) -> usize {
        self.z().len() * self.y_in_row().len() * self.points[0]
    }

    /// Returns how many `(x, y)` the spectrum has here.
    pub(crate) fn lines_of_z(&self) -> usize {
        self.x().len() * self.y_in_column().len()
    }

    /// Returns the coefficients of this rank: `[x][y][z]`, z fastest.
    pub(crate) fn spectrum_len(&self) -> usize {
        self.lines_of_z() * self.points[2]
    }
}

/// Returns the part `index` of `n`; the last `n mod parts` parts are longer by one.
fn part(n: usize, parts: usize, index: usize) -> Range<usize> {
    let short = n / parts;
    let first_long = parts - n % parts;
    let start = |index: usize| index * short + index.saturating_sub(first_long);
    start(index)..start(index + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_follow_each_other_and_the_last_ones_are_longer() {
        assert_eq!([0, 1, 2].map(|index| part(5, 3, index)), [0..1, 1..3, 3..5]);
        assert_eq!([0, 1].map(|index| part(5, 2, index)), [0..2, 2..5]);
        for (n, parts) in [(1, 1), (7, 7), (10, 3), (65, 8)] {
            let ranges: Vec<_> = (0..parts).map(|index| part(n, parts, index)).collect();
            assert!(
                ranges
                    .windows(2)
                    .all(|two| two[0].end == two[1].start && two[0].len() <= two[1].len())
            );
            assert_eq!((ranges[0].start, ranges[parts - 1].end), (0, n));
        }
    }

    #[test]
    fn a_grid_that_leaves_a_rank_with_nothing_is_refused_by_name() {
        let refused = |points, ranks| PencilGrid::new(points, ranks, 0, 1).expect_err("refused");
        assert!(refused([4, 8, 8], [4, 1]).contains("3 coefficients in x"));
        assert!(refused([8, 3, 8], [1, 4]).contains("3 points in y"));
        assert!(refused([8, 8, 2], [1, 3]).contains("2 points in z"));
        assert!(refused([1, 8, 8], [1, 1]).contains("at least 2"));
    }

    #[test]
    fn no_chunk_is_empty() {
        let grid = PencilGrid::new([8, 8, 11], [1, 3], 2, 100).expect("a good grid");
        assert_eq!(grid.chunks, 3);
        for j in 0..3 {
            let chunks: Vec<_> = (0..3).map(|chunk| grid.z_of_chunk(j, chunk)).collect();
            assert!(chunks.iter().all(|z| !z.is_empty()));
            assert_eq!(chunks[0].start..chunks[2].end, grid.z_of(j));
        }
    }
}
