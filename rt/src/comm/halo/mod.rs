//! Exchange of ghosts: [`Halo`] sends the outer layers of each rank's block to the neighbors in a grid of ranks.
//!
//! All messages of an exchange start at once, also those to the neighbors across edges and corners. An exchange dimension by
//! dimension would need fewer messages for corners, but its later dimensions could not start before the earlier ones have
//! arrived, so they could not overlap with a computation.

mod sides;
#[cfg(test)]
#[cfg(not(loom))]
mod tests;

use std::{
    collections::VecDeque,
    fmt, mem,
    panic::Location,
    pin::Pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use self::sides::HaloSide;
use super::{
    Cart, Channel, ChannelRecv, Comm, SendOp, Status, agreement::AgreedArguments, packed::make_room,
};
use crate::{
    buffer::{NestedLayout, Wire},
    error::{Error, ErrorKind, OpError, Result},
    executor::proceed,
    offload::CollectiveSignature,
};

/// The ghosts of a block of an array, exchanged with the neighbors in a [`Cart`] again and again.
///
/// Each rank has a row-major array of the values of its own cells with `width` layers of ghosts around them.
/// [`start`](Self::start) packs the outer own layers and sends them; [`HaloInFlight::finish`] waits for those of the
/// neighbors and writes them to the ghosts. Between the two, the program may compute on the array. At an edge of the grid
/// that does not wrap around there is no neighbor, and the ghosts stay as they are.
///
/// The vectors for packing are made by the first exchange and used again by the next ones. The messages have a communicator
/// of their own, so no receive of the program can take them.
///
/// ```
/// # use ripstop_rt::{sim::Simulation, Comm, Error, Halo};
/// # let report = Simulation::new(4).run(|world: Comm| async move {
/// let cart = world.cart(&[2, 2], &[true, false]).await?;
/// let (rows, columns) = (3, 5);
/// let shape = [rows + 2, columns + 2]; // with one layer of ghosts
/// let mut halo = Halo::new(&cart, &shape, 1).await?;
///
/// let mut u = vec![cart.rank() as f64; shape[0] * shape[1]];
/// for _step in 0..10 {
///     let in_flight = halo.start(&u);
///     // ... compute what needs no ghosts ...
///     in_flight.finish(&mut u).await?;
///     // ... compute the rest ...
/// }
/// let (above, _) = cart.shift(0, 1);
/// assert_eq!(u[1], above.expect("the rows wrap around") as f64);
/// # Ok::<_, Error>(()) });
/// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
/// ```
pub struct Halo<T: Wire> {
    comm: Comm,
    shape: Vec<usize>,
    /// In the order in which this rank sends. The messages to it arrive in the reverse order, as all ranks send in the same one.
    lanes: Vec<HaloLane<T>>,
    /// Error of the first exchange that failed. Its messages may still come, or may be missing at a neighbor, so later
    /// exchanges send and receive nothing, and end in the same error.
    failed: Option<Error>,
}

/// An exchange that has started. Made by [`Halo::start`].
///
/// Dropping it leaves the exchange in flight: it completes in the background, and the next exchange drops what arrived.
#[must_use = "call `finish`: it fills the ghosts"]
pub struct HaloInFlight<'h, T: Wire> {
    halo: &'h mut Halo<T>,
    fields: usize,
    at: &'static Location<'static>,
}

/// The messages to and from one neighbor.
struct HaloLane<T: Wire> {
    outgoing: Channel<T>,
    incoming: Channel<T>,
    layers: NestedLayout,
    ghosts: NestedLayout,
    sending: Option<SendOp<Vec<T>>>,
    /// The receive of the exchange in flight, behind those of exchanges that were not finished. Those must take the messages
    /// that were sent for them.
    receiving: VecDeque<ChannelRecv<Vec<T>>>,
    /// The message of the exchange in flight, if it has arrived and is not unpacked.
    arrived: Option<Status>,
    /// Memory for packing and for receiving, while no operation owns it.
    packed: Vec<T>,
    received: Vec<T>,
}

impl<T: Wire> Halo<T> {
    /// Makes the exchange across faces for arrays of `shape` with ghosts of `width` layers at both ends of each dimension.
    /// Collective.
    ///
    /// `shape` is the shape of the whole array, with its ghosts. It may have more dimensions than the grid: the last ones
    /// are then values of one cell, have no ghosts, and travel whole. Blocks of neighbors have the same shape except in the
    /// dimension in which they are neighbors.
    ///
    /// Like [`Comm::dup`], the call starts immediately. It takes O(log ranks) messages.
    ///
    /// # Errors
    /// `InvalidArgument`: `shape` has fewer dimensions than the grid, or no room for its ghosts; `width` is more than the own
    /// layers of the block in a dimension with neighbors. `Mismatch`: ranks pass different widths or element types, or call
    /// another collective. A member failed or finished.
    #[track_caller]
    pub fn new(
        cart: &Cart,
        shape: &[usize],
        width: usize,
    ) -> impl Future<Output = Result<Self>> + Send + use<T> {
        Self::make(cart, shape, width, false)
    }

    /// Like [`new`](Self::new), but also exchanges the ghosts across edges and corners, which stencils with diagonals need:
    /// with up to 8 neighbors in two dimensions and 26 in three. At most 6 dimensions may have neighbors.
    ///
    /// ```
    /// # use ripstop_rt::{sim::Simulation, Comm, Error, Halo};
    /// # let report = Simulation::new(4).run(|world: Comm| async move {
    /// let cart = world.cart(&[2, 2], &[false, false]).await?;
    /// let mut halo = Halo::with_corners(&cart, &[4, 4], 1).await?;
    /// let mut u = [cart.rank(); 16];
    /// halo.start(&u).finish(&mut u).await?;
    /// if cart.rank() == 0 {
    ///     assert_eq!(u[15], 3); // of the rank at the diagonal
    /// }
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    ///
    /// # Errors
    /// The call fails as [`new`](Self::new) does. `InvalidArgument`: `cart` has neighbors in more than 6 dimensions.
    #[track_caller]
    pub fn with_corners(
        cart: &Cart,
        shape: &[usize],
        width: usize,
    ) -> impl Future<Output = Result<Self>> + Send + use<T> {
        Self::make(cart, shape, width, true)
    }

    #[track_caller]
    fn make(
        cart: &Cart,
        shape: &[usize],
        width: usize,
        corners: bool,
    ) -> impl Future<Output = Result<Self>> + Send + use<T> {
        let at = Location::caller();
        let signature = CollectiveSignature::of("halo")
            .with_type::<T>()
            .with(width as u64)
            .with(corners.into());
        let with_corners = if corners { ", with corners" } else { "" };
        let words = format!("width {width}{with_corners}, {}", T::SIG);
        let dup = cart.start_dup("halo", AgreedArguments { signature, words });
        let sides = match sides::wrong_block(cart, shape, width, corners) {
            Some(sentence) => Err(cart
                .error_here("halo", ErrorKind::InvalidArgument(sentence))
                .called_at(at)),
            None => Ok(sides::sides(cart, shape, width, corners)),
        };
        let shape = shape.to_vec();
        async move {
            // A rank with wrong arguments takes part too, because the others wait for it.
            let made = dup.await;
            let (sides, comm) = (sides?, made?);
            let lanes = sides.into_iter().map(|side| HaloLane::new(&comm, side));
            let lanes = lanes.collect::<Result<_>>()?;
            Ok(Self {
                comm,
                shape,
                lanes,
                failed: None,
            })
        }
    }

    /// Packs the outer own layers of `field` and sends them to the neighbors. The field is free when this call returns.
    ///
    /// # Panics
    /// Panics if the length of `field` is not that of an array of the halo's shape.
    #[track_caller]
    pub fn start(&mut self, field: &[T]) -> HaloInFlight<'_, T> {
        self.start_all(&[field])
    }

    /// Like [`start`](Self::start), for several arrays of the same shape: each neighbor gets one message for all of them.
    /// All ranks pass the same number of arrays.
    ///
    /// ```
    /// # use ripstop_rt::{sim::Simulation, Comm, Error, Halo};
    /// # let report = Simulation::new(2).run(|world: Comm| async move {
    /// let cart = world.cart(&[2], &[true]).await?;
    /// let mut halo = Halo::new(&cart, &[6], 2).await?;
    /// let (mut u, mut v) = (vec![cart.rank(); 6], vec![10 + cart.rank(); 6]);
    /// halo.start_all(&[&u, &v]).finish_all(&mut [&mut u, &mut v]).await?;
    /// # let other = 1 - cart.rank();
    /// assert_eq!((u[0], v[5]), (other, 10 + other));
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    ///
    /// # Panics
    /// Panics if the length of a field is not that of an array of the halo's shape.
    #[track_caller]
    pub fn start_all<F: AsRef<[T]>>(&mut self, fields: &[F]) -> HaloInFlight<'_, T> {
        for field in fields {
            self.check_len("start", field.as_ref().len());
        }
        if self.failed.is_none() {
            let ended = self.lanes.iter_mut().try_for_each(HaloLane::take_ended);
            self.failed = ended.err();
        }
        if self.failed.is_none() {
            // All receives are posted first, so that no message of a fast neighbor has to be kept.
            for lane in &mut self.lanes {
                lane.start_recv(fields.len());
            }
            for lane in &mut self.lanes {
                lane.start_send(fields);
            }
        }
        HaloInFlight {
            halo: self,
            fields: fields.len(),
            at: Location::caller(),
        }
    }

    /// Returns the error of the exchange that failed, if one did.
    fn usable(&self) -> Result<()> {
        self.failed
            .as_ref()
            .map_or(Ok(()), |error| Err(error.clone()))
    }

    #[track_caller]
    fn check_len(&self, op: &str, len: usize) {
        let expected: usize = self.shape.iter().product();
        assert_eq!(
            len, expected,
            "{op}: a `field` of another length than the {expected} elements of the halo's shape {:?}",
            self.shape
        );
    }
}

impl<T: Wire> HaloInFlight<'_, T> {
    /// Waits for the layers of the neighbors and writes them to the ghosts of `field`, which may be another array than that
    /// of [`Halo::start`].
    ///
    /// If this future is dropped before it completes, some ghosts may be written; the next exchange works as usual.
    ///
    /// # Errors
    /// A neighbor failed or finished. `InvalidArgument`: a neighbor sends another number of elements than there are ghosts for
    /// them, because its block has another shape or it exchanges another number of fields. Only the number is compared. The
    /// ghosts are undefined then, and the halo is of no further use: every later exchange ends in the same error, and sends
    /// nothing.
    ///
    /// # Panics
    /// Panics if the length of `field` is not that of an array of the halo's shape, or if the exchange was started with
    /// [`Halo::start_all`] for another number of fields than one.
    #[track_caller]
    pub fn finish(self, field: &mut [T]) -> impl Future<Output = Result<()>> {
        let mut fields = [field];
        self.check_fields(&mut fields);
        async move { self.fill(&mut fields).await }
    }

    /// Like [`finish`](Self::finish), for the fields of [`Halo::start_all`] in the same order.
    ///
    /// # Errors
    /// The call fails as [`finish`](Self::finish) does.
    ///
    /// # Panics
    /// Panics if there are more or fewer fields than in `start_all`, or if one has another length.
    #[track_caller]
    pub fn finish_all<F: AsMut<[T]>>(self, fields: &mut [F]) -> impl Future<Output = Result<()>> {
        self.check_fields(fields);
        self.fill(fields)
    }

    #[track_caller]
    fn check_fields<F: AsMut<[T]>>(&self, fields: &mut [F]) {
        assert_eq!(
            fields.len(),
            self.fields,
            "finish: `fields` has another number of fields than the {} of `start`",
            self.fields
        );
        for field in fields {
            self.halo.check_len("finish", field.as_mut().len());
        }
    }

    async fn fill<F: AsMut<[T]>>(mut self, fields: &mut [F]) -> Result<()> {
        self.complete(|lane| lane.unpack(fields)).await
    }

    /// Waits until [`finish`](Self::finish) has nothing to wait for, and writes no ghosts: for programs that measure how long
    /// they wait, or that still read the old ghosts.
    ///
    /// ```
    /// # use ripstop_rt::{sim::Simulation, Comm, Error, Halo};
    /// # use std::time::Duration;
    /// # let report = Simulation::new(2).run(|world: Comm| async move {
    /// let cart = world.cart(&[2], &[true]).await?;
    /// let mut halo = Halo::new(&cart, &[4], 1).await?;
    /// let mut u = [-1, 5, 6, -1];
    /// let mut in_flight = halo.start(&u).timeout(Duration::from_secs(60));
    /// in_flight.wait().await?;
    /// assert!(in_flight.is_done() && u[0] == -1);
    /// in_flight.finish(&mut u).await?;
    /// assert_eq!(u, [6, 5, 6, 5]);
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    ///
    /// # Errors
    /// The call fails as [`finish`](Self::finish) does, and `finish` then ends in the same error.
    pub async fn wait(&mut self) -> Result<()> {
        self.complete(|_| ()).await
    }

    /// Waits for all messages, and calls `arrived` for each lane whose message has arrived. Ends in the error of the first
    /// exchange of this halo that failed.
    async fn complete(&mut self, arrived: impl FnMut(&HaloLane<T>)) -> Result<()> {
        proceed().await; // without neighbors there is nothing else to wait for
        if self.halo.failed.is_none() {
            self.halo.failed = self.complete_lanes(arrived).await.err();
        }
        self.halo.usable()
    }

    async fn complete_lanes(&mut self, mut arrived: impl FnMut(&HaloLane<T>)) -> Result<()> {
        let Halo { comm, lanes, .. } = &mut *self.halo;
        // While one message is unpacked, the neighbor packs the next one.
        for lane in lanes.iter_mut().rev() {
            let status = lane.receive().await?;
            let expected = self.fields * lane.ghosts.len();
            if status.len != expected {
                let kind = another_shape(status.source, status.len, expected);
                let mut error = comm.error_here("halo", kind).called_at(self.at);
                error.peer = Some(status.source);
                return Err(error);
            }
            arrived(lane);
        }
        for lane in lanes {
            lane.sent().await?;
        }
        Ok(())
    }

    /// Returns true if `finish` would not wait.
    #[must_use]
    pub fn is_done(&self) -> bool {
        let mut lanes = self.halo.lanes.iter();
        let all_done = lanes.all(|lane| {
            lane.receiving.iter().all(ChannelRecv::is_done)
                && lane.sending.as_ref().is_none_or(SendOp::is_done)
        });
        all_done || self.halo.failed.is_some()
    }

    /// Gives up after `limit`: [`finish`](Self::finish) then fails with `TimedOut`, and the halo is of no further use.
    ///
    /// ```
    /// # use ripstop_rt::{sim::Simulation, Comm, Error, ErrorKind, Halo};
    /// # use std::time::Duration;
    /// # let report = Simulation::new(2).run(|world: Comm| async move {
    /// let cart = world.cart(&[2], &[false]).await?;
    /// let mut halo = Halo::new(&cart, &[4], 1).await?;
    /// let mut u = [0.0; 4];
    /// if cart.rank() == 0 {
    ///     let in_flight = halo.start(&u).timeout(Duration::from_millis(10));
    ///     let error = in_flight.finish(&mut u).await.expect_err("the neighbor has not started");
    ///     assert!(matches!(error.kind, ErrorKind::TimedOut));
    ///     world.send(1, 7, [0_u8]).await?;
    /// } else {
    ///     world.recv::<u8>(0, 7).await?;
    /// }
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    pub fn timeout(self, limit: Duration) -> Self {
        for lane in &mut self.halo.lanes {
            lane.receiving = mem::take(&mut lane.receiving)
                .into_iter()
                .map(|recv| recv.timeout(limit))
                .collect();
            lane.sending = lane.sending.take().map(|send| send.timeout(limit));
        }
        self
    }
}

impl<T: Wire> HaloLane<T> {
    fn new(comm: &Comm, side: HaloSide) -> Result<Self> {
        Ok(Self {
            outgoing: comm.channel(side.peer, side.send_tag)?,
            incoming: comm.channel(side.peer, side.recv_tag)?,
            layers: side.layers,
            ghosts: side.ghosts,
            sending: None,
            receiving: VecDeque::new(),
            arrived: None,
            packed: Vec::new(),
            received: Vec::new(),
        })
    }

    /// Takes what has ended of earlier exchanges that were not finished, so that its memory is used again. What has not is
    /// left behind: each receive must take the message that was sent for it.
    fn take_ended(&mut self) -> Result<()> {
        self.arrived = None;
        while let Some(recv) = self.receiving.front_mut().filter(|recv| recv.is_done()) {
            let Some(received) = output_of(recv) else {
                break;
            };
            self.receiving.pop_front();
            self.received = received.map_err(|failed| self.received_nothing(failed))?.0;
        }
        match &mut self.sending {
            Some(send) if send.is_done() => match output_of(send) {
                Some(sent) => self.take_sent(sent),
                None => Ok(()),
            },
            _ => Ok(()),
        }
    }

    #[track_caller]
    fn start_recv(&mut self, fields: usize) {
        let mut scratch = mem::take(&mut self.received);
        make_room(&mut scratch, fields * self.ghosts.len());
        self.receiving.push_back(self.incoming.recv_into(scratch));
    }

    #[track_caller]
    fn start_send<F: AsRef<[T]>>(&mut self, fields: &[F]) {
        let mut packed = mem::take(&mut self.packed);
        let len = self.layers.len();
        make_room(&mut packed, fields.len() * len);
        for (nth, field) in fields.iter().enumerate() {
            let packed = &mut packed[nth * len..][..len];
            self.layers.pack_into(field.as_ref(), packed);
        }
        // A send of an exchange that was not finished is detached here, if it is still in flight.
        self.sending = Some(self.outgoing.send(packed));
    }

    /// Waits for all messages of the neighbor, and keeps the last one. Each is taken out of the queue only when it has
    /// arrived, so that no message is lost if this future is dropped.
    async fn receive(&mut self) -> Result<Status> {
        while let Some(recv) = self.receiving.front_mut() {
            let received = recv.await;
            self.receiving.pop_front();
            let (received, status) = received.map_err(|failed| self.received_nothing(failed))?;
            self.received = received;
            self.arrived = Some(status);
        }
        Ok(self.arrived.expect("a message of the exchange in flight"))
    }

    fn received_nothing(&mut self, failed: OpError<Vec<T>>) -> Error {
        self.received = failed.buf;
        error_of_exchange(failed.error)
    }

    fn unpack<F: AsMut<[T]>>(&self, fields: &mut [F]) {
        let len = self.ghosts.len();
        for (nth, field) in fields.iter_mut().enumerate() {
            self.ghosts
                .unpack(&self.received[nth * len..][..len], field.as_mut());
        }
    }

    async fn sent(&mut self) -> Result<()> {
        let Some(send) = &mut self.sending else {
            return Ok(());
        };
        let sent = send.await;
        self.take_sent(sent)
    }

    fn take_sent(&mut self, sent: Result<Vec<T>, OpError<Vec<T>>>) -> Result<()> {
        self.sending = None;
        self.packed = sent.map_err(|failed| error_of_exchange(failed.error))?;
        Ok(())
    }
}

/// Returns the output of an operation that is done.
fn output_of<F: Future + Unpin>(op: &mut F) -> Option<F::Output> {
    let mut poll = || match Pin::new(&mut *op).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    };
    poll().or_else(poll) // the first poll may have to give way to other work
}

/// Returns the error kind for a message of another length than the ghosts.
fn another_shape(peer: usize, len: usize, ghosts: usize) -> ErrorKind {
    ErrorKind::InvalidArgument(format!(
        "rank {peer} sent {len} elements for {ghosts} ghosts: neighbors need the same `shape` except in the dimension in \
         which they are neighbors, and the same number of fields"
    ))
}

/// Returns the error of a part of an exchange.
fn error_of_exchange(failed: Error) -> Error {
    let mut error = failed.renamed("halo");
    if let (&ErrorKind::Truncated { sent, room }, Some(peer)) = (&error.kind, error.peer) {
        error.kind = another_shape(peer, sent, room);
        error.tag = None; // the number of a direction, which is not the program's
    }
    error
}

impl<T: Wire> fmt::Debug for Halo<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Halo")
            .field("comm", &self.comm)
            .field("shape", &self.shape)
            .field("neighbors", &self.lanes.len())
            .finish()
    }
}

impl<T: Wire> fmt::Debug for HaloInFlight<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HaloInFlight")
            .field("fields", &self.fields)
            .field("done", &self.is_done())
            .finish()
    }
}
