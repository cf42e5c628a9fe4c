//! The buffers of a transpose, and the collective in flight between them.

use ripstop::{Collectives, Result, Tuned, buffer::RegBuf, collectives::op::ExchangeOp};

/// A buffer for each end of a transpose, which goes from one to the other.
pub(super) struct TransposeSlot {
    counts: [Vec<usize>; 2],
    /// The buffers; `None` while a collective owns them.
    ends: [Option<TransposeBuffer>; 2],
    flight: Option<(
        ExchangeOp<TransposeBuffer, TransposeBuffer>,
        TransposeDirection,
    )>,
}

type TransposeBuffer = RegBuf<f64>;

/// The direction of a transform.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TransposeDirection {
    There,
    Back,
}

impl TransposeSlot {
    /// Makes a slot with blocks of `counts` numbers at both ends.
    pub(super) fn new(comm: &Tuned, counts: &[Vec<usize>; 2]) -> Result<Self> {
        let buffer = |counts: &[usize]| comm.communicator().alloc(counts.iter().sum());
        Ok(Self {
            counts: counts.clone(),
            ends: [Some(buffer(&counts[0])?), Some(buffer(&counts[1])?)],
            flight: None,
        })
    }

    pub(super) fn start(&mut self, comm: &Tuned, direction: TransposeDirection) {
        let [x_counts, z_counts] = &self.counts;
        let [x_side, z_side] = self.ends.each_mut().map(Option::take);
        let (Some(x_side), Some(z_side)) = (x_side, z_side) else {
            unreachable!("a slot that was waited for");
        };
        let exchange = match direction {
            TransposeDirection::There => comm.all_to_all_v_into(x_side, x_counts, z_side, z_counts),
            TransposeDirection::Back => comm.all_to_all_v_into(z_side, z_counts, x_side, x_counts),
        };
        self.flight = Some((exchange, direction));
    }

    /// Waits until the buffers are back.
    pub(super) async fn finish(&mut self) -> Result<()> {
        if let Some((exchange, direction)) = self.flight.take() {
            let (sent, received) = exchange.await?;
            self.ends = match direction {
                TransposeDirection::There => [sent, received],
                TransposeDirection::Back => [received, sent],
            }
            .map(Some);
        }
        Ok(())
    }
}
