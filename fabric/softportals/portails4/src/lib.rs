//! `libportals.so.4` for programs that were compiled against the header of Bull's portails4.

ripstop_softportals::portals_library!(Portails4);
ripstop_softportals::portals_bull_extension!();
