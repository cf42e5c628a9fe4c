//! The two ways to exchange ghosts: messages, and puts into windows.

use ripstop::{
    Comm, RecvOp, Result, SendOp, Window,
    buffer::RegBuf,
    rma::{Access, RemoteOp},
};

use super::ghosts::{GhostFace, GhostFaces};
use crate::sim::app_workload::TimeSpent;

/// The exchange of the velocities or of the stresses.
pub(super) struct HaloExchange {
    lanes: GhostFaces,
    /// The ranks of all neighbors, each once.
    neighbors: Vec<usize>,
    outbox: Vec<HaloBuffer>,
    way: HaloTransport,
}

/// The buffer of one operation; `None` while the operation owns it.
type HaloBuffer = Option<RegBuf<f32>>;

enum HaloTransport {
    Messages {
        tag: u32,
        inbox: Vec<HaloBuffer>,
        receives: Vec<RecvOp<RegBuf<f32>>>,
    },
    Window(Box<Window<f32>>),
}

impl HaloExchange {
    /// Makes the exchange. Collective.
    pub(super) async fn new(world: &Comm, lanes: GhostFaces, puts: bool, tag: u32) -> Result<Self> {
        let mut neighbors: Vec<usize> = lanes.incoming.iter().map(|lane| lane.peer).collect();
        neighbors.sort_unstable();
        neighbors.dedup();
        let way = if puts {
            HaloTransport::Window(Box::new(Window::allocate(world, lanes.len()).await?))
        } else {
            HaloTransport::Messages {
                tag,
                inbox: buffers(world, &lanes.incoming)?,
                receives: Vec::new(),
            }
        };
        Ok(Self {
            outbox: buffers(world, &lanes.outgoing)?,
            neighbors,
            lanes,
            way,
        })
    }

    /// Lets the neighbors send from now on.
    pub(super) fn open(&mut self, world: &Comm) -> Result<()> {
        match &mut self.way {
            HaloTransport::Messages {
                tag,
                inbox,
                receives,
            } => {
                let parts = self.lanes.incoming.iter().zip(inbox);
                let receive = |(lane, part): (&GhostFace, &mut HaloBuffer)| {
                    let part = part.take().expect("a buffer that came home");
                    world.recv_into(lane.peer, *tag + lane.number, part)
                };
                receives.extend(parts.map(receive));
            }
            HaloTransport::Window(window) => drop(window.post(&self.neighbors)?),
        }
        Ok(())
    }

    /// Waits until this rank may send, and returns the outgoing side.
    pub(super) async fn start<'a>(
        &'a mut self,
        world: &'a Comm,
        spent: &mut TimeSpent,
    ) -> Result<OutgoingHalo<'a>> {
        let how = match &self.way {
            HaloTransport::Messages { tag, .. } => HaloSends::Messages {
                world,
                tag: *tag,
                sends: Vec::new(),
            },
            HaloTransport::Window(window) => {
                let start = window.start(&self.neighbors);
                HaloSends::Puts {
                    access: spent.waiting(world, start).await?,
                    puts: Vec::new(),
                }
            }
        };
        Ok(OutgoingHalo {
            lanes: &self.lanes.outgoing,
            outbox: &mut self.outbox,
            how,
        })
    }

    /// Waits for the data of the neighbors.
    pub(super) async fn finish(&mut self, world: &Comm, spent: &mut TimeSpent) -> Result<()> {
        match &mut self.way {
            HaloTransport::Messages {
                inbox, receives, ..
            } => {
                for (part, receive) in inbox.iter_mut().zip(receives.drain(..)) {
                    let (buffer, _) = spent.waiting(world, receive).await?;
                    *part = Some(buffer);
                }
            }
            HaloTransport::Window(window) => {
                let exposure = window.resume().expect("opened before");
                spent.waiting(world, exposure.wait()).await?;
            }
        }
        Ok(())
    }
}

/// The data that goes to the neighbors.
pub(super) struct OutgoingHalo<'a> {
    lanes: &'a [GhostFace],
    outbox: &'a mut [HaloBuffer],
    how: HaloSends<'a>,
}

enum HaloSends<'a> {
    /// Each send has the index of its face.
    Messages {
        world: &'a Comm,
        tag: u32,
        sends: Vec<(usize, SendOp<RegBuf<f32>>)>,
    },
    Puts {
        access: Access<'a, f32>,
        puts: Vec<(usize, RemoteOp<RegBuf<f32>>)>,
    },
}

impl OutgoingHalo<'_> {
    pub(super) fn send(&mut self, quantity: usize) {
        let lanes = self.lanes.iter().enumerate();
        for (index, lane) in lanes.filter(|(_, lane)| lane.quantity == quantity) {
            let part = self.outbox[index].take().expect("a buffer that came home");
            match &mut self.how {
                HaloSends::Messages { world, tag, sends } => {
                    sends.push((index, world.send(lane.peer, *tag + lane.number, part)));
                }
                HaloSends::Puts { access, puts } => {
                    puts.push((index, access.put(lane.peer, lane.at, part)));
                }
            }
        }
    }

    /// Ends the sending of all quantities, and waits until the buffers are free.
    pub(super) async fn complete(self, world: &Comm, spent: &mut TimeSpent) -> Result<()> {
        match self.how {
            HaloSends::Messages { sends, .. } => {
                for (index, send) in sends {
                    self.outbox[index] = Some(spent.waiting(world, send).await?);
                }
            }
            HaloSends::Puts { access, puts } => {
                for (index, put) in puts {
                    self.outbox[index] = Some(spent.waiting(world, put).await?);
                }
                spent.waiting(world, access.complete()).await?;
            }
        }
        Ok(())
    }
}

/// Returns a buffer for each face, all in one piece of memory.
fn buffers(world: &Comm, lanes: &[GhostFace]) -> Result<Vec<HaloBuffer>> {
    let lens: Vec<usize> = lanes.iter().map(|lane| lane.len).collect();
    if lens.is_empty() {
        return Ok(Vec::new());
    }
    let memory = world.alloc::<f32>(lens.iter().sum())?;
    Ok(memory.split_into(&lens).into_iter().map(Some).collect())
}
