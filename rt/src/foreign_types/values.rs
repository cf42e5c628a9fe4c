//! Values of any shape in messages, by `serde`: [`Comm::send_value`] and [`Comm::recv_value`].
#![expect(
    unsafe_code,
    reason = "promises that a byte has no padding and no invalid bits"
)]

use std::{
    fmt,
    marker::PhantomData,
    panic::Location,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytemuck::{Pod, Zeroable};
use serde::{Serialize, de::DeserializeOwned};

use crate::{
    buffer::{TypeSig, Wire},
    comm::{Comm, RecvOp, SendCopyOp, Source, Status, Tag},
    error::{ErrorKind, OpError, Result},
};

impl Comm {
    /// Sends a value of any type that `serde` serializes: strings, enums, maps, nested vectors. Needs the cargo feature
    /// `serde`.
    ///
    /// The value is encoded at once, in the compact format of the crate `postcard`, so the caller keeps it. Numbers and
    /// structs that are [`Wire`] travel faster by [`send`](Self::send), without an encoding. O(length of the encoding). If `to`
    /// is `None`, nothing is sent.
    ///
    /// Output: `()`, like that of [`send_copy`](Self::send_copy).
    ///
    /// ```
    /// # use std::collections::BTreeMap;
    /// # let runtime = ripstop_rt::Runtime::init()?;
    /// # let world = runtime.world();
    /// # runtime.block_on(async {
    /// let settings = BTreeMap::from([("solver".to_owned(), vec![1, 2])]);
    /// let inbox = world.recv_value::<BTreeMap<String, Vec<u32>>>(0, 7);
    /// world.send_value(0, 7, &settings).await?;
    /// assert_eq!(inbox.await?.0, settings);
    /// # Ok::<(), ripstop_rt::Error>(()) })?;
    /// # Ok::<(), ripstop_rt::Error>(())
    /// ```
    ///
    /// # Errors
    /// The call fails as [`send_copy`](Self::send_copy) does. It also fails if the value cannot be encoded, for example
    /// because a sequence does not know its length.
    #[track_caller]
    pub fn send_value<V: Serialize + ?Sized>(
        &self,
        to: impl Into<Option<usize>>,
        tag: u32,
        value: &V,
    ) -> SendCopyOp<EncodedByte> {
        match postcard::to_allocvec(value) {
            Ok(bytes) => {
                let bytes = bytemuck::allocation::cast_vec(bytes);
                SendCopyOp::in_flight(self.send(to, tag, bytes))
            }
            Err(why) => {
                let sentence = format!("`value` cannot be encoded: {why}");
                let error = self.error_here("send_value", ErrorKind::InvalidArgument(sentence));
                SendCopyOp::failed(error.called_at(Location::caller()))
            }
        }
    }

    /// Receives a value that was sent by [`send_value`](Self::send_value). Needs the cargo feature `serde`.
    ///
    /// Output: `(V, Status)`. The length in the status is that of the encoding in bytes.
    ///
    /// ```
    /// # let runtime = ripstop_rt::Runtime::init()?;
    /// # let world = runtime.world();
    /// # runtime.block_on(async {
    /// world.send_value(0, 7, "a name of any length").await?;
    /// let (name, status) = world.recv_value::<String>(0, 7).await?;
    /// assert_eq!((name.as_str(), status.source), ("a name of any length", 0));
    /// # Ok::<(), ripstop_rt::Error>(()) })?;
    /// # Ok::<(), ripstop_rt::Error>(())
    /// ```
    ///
    /// # Errors
    /// The call fails as [`recv`](Self::recv) does. It also fails with [`ErrorKind::Undecodable`] if the bytes are no
    /// `V`: both ranks must name the same type, which the encoding does not contain. From no rank no value comes, so
    /// `None` is refused (`InvalidArgument`).
    #[track_caller]
    pub fn recv_value<V: DeserializeOwned>(
        &self,
        from: impl Into<Source>,
        tag: impl Into<Tag>,
    ) -> RecvValueOp<V> {
        let (from, at) = (from.into(), Location::caller());
        let encoded = if from == Source::NoRank {
            let error = self.names_no_rank().renamed("recv_value").called_at(at);
            RecvOp::failed(OpError {
                error,
                buf: Vec::new(),
            })
        } else {
            self.recv(from, tag)
        };
        RecvValueOp {
            encoded,
            comm: self.clone(),
            at,
            value: PhantomData,
        }
    }
}

/// A posted receive of a value. It proceeds whether or not it is polled.
///
/// Dropping it cancels the receive, and a message that it has already matched returns to its place in the queue.
#[must_use = "await it; dropping it takes the receive back"]
pub struct RecvValueOp<V> {
    encoded: RecvOp<Vec<EncodedByte>>,
    comm: Comm,
    at: &'static Location<'static>,
    value: PhantomData<fn() -> V>,
}

impl<V> RecvValueOp<V> {
    /// Returns true if awaiting this would not wait.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.encoded.is_done()
    }

    /// Gives up after `limit`. The error is then `TimedOut`.
    pub fn timeout(self, limit: Duration) -> Self {
        let encoded = self.encoded.timeout(limit);
        Self { encoded, ..self }
    }
}

impl<V: DeserializeOwned> Future for RecvValueOp<V> {
    type Output = Result<(V, Status)>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let (encoded, status) = ready!(Pin::new(&mut self.encoded).poll(cx))?;
        Poll::Ready(match decode(bytemuck::cast_slice(&encoded)) {
            Ok(value) => Ok((value, status)),
            Err(sentence) => {
                let kind = ErrorKind::Undecodable(sentence);
                let mut error = self.comm.error_here("recv_value", kind).called_at(self.at);
                (error.peer, error.tag) = (Some(status.source), Some(status.tag));
                Err(error)
            }
        })
    }
}

impl<V> fmt::Debug for RecvValueOp<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecvValueOp")
            .field("done", &self.is_done())
            .finish()
    }
}

/// A byte of an encoded value. Its signature is its own, so that no receive of `u8` takes such a message for bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct EncodedByte(u8);

// SAFETY: the structure is a byte, and zero is a valid value.
unsafe impl Zeroable for EncodedByte {}

// SAFETY: the structure is a byte, and any bits are a valid value.
unsafe impl Pod for EncodedByte {}

// SAFETY: the type is `Pod` and not empty, and no other type has the signature.
unsafe impl Wire for EncodedByte {
    const SIG: TypeSig = TypeSig::ENCODED;
}

fn decode<V: DeserializeOwned>(bytes: &[u8]) -> Result<V, String> {
    let name = std::any::type_name::<V>();
    match postcard::take_from_bytes(bytes) {
        Ok((value, [])) => Ok(value),
        Ok((_, rest)) => Err(format!(
            "a {name} takes {} of the {} bytes that were sent: receive the type that was sent",
            bytes.len() - rest.len(),
            bytes.len()
        )),
        Err(why) => Err(format!(
            "the {} bytes that were sent are no {name} ({why}): receive the type that was sent",
            bytes.len()
        )),
    }
}
