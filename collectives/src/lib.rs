//! Non-blocking collectives as offloaded task lists. Today the runtime carries simple ones (`ripstop_rt`); plans come here.
#![forbid(unsafe_code)]
