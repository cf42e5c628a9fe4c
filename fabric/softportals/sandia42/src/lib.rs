//! `libportals.so.4` for programs that were compiled against the Sandia reference's 4.2 header.

ripstop_softportals::portals_library!(Sandia42);
