//! Methods of wrappers that do the same as those of the driver within.

/// Writes methods of [`Driver`](super::Driver) that call those of the driver in a field of this wrapper:
/// `passes_methods! { FIELD: METHOD, METHOD }`.
///
/// ```
/// use ripstop_fabric::{driver::*, lacks_abilities, passes_abilities, passes_methods};
///
/// #[derive(Debug)]
/// struct CountedPosts {
///     driver: Box<dyn Driver>,
///     posts: u64,
/// }
///
/// impl Driver for CountedPosts {
///     passes_methods! { driver: caps, progress, arm, wait_on, allocate, expose, expect, give_up }
///
///     fn post<'a>(&mut self, command: DriverCommand<'a>) -> PostResult<'a> {
///         self.posts += 1;
///         self.driver.post(command)
///     }
/// }
///
/// impl DriverAbilities for CountedPosts {
///     passes_abilities! {
///         driver: event_counters, task_lists, tag_matching, named_slots, peer_turns, mapped_memory, node_memory, peer_paths,
///         connect_ahead, failure_watch, guarded_memory,
///     }
/// }
/// ```
#[macro_export]
macro_rules! passes_methods {
    ($driver:ident: $($method:ident),+ $(,)?) => {
        $($crate::passed_method! { $driver $method })+
    };
}

/// Writes one method for the macro above.
#[doc(hidden)]
#[macro_export]
macro_rules! passed_method {
    ($driver:ident caps) => {
        fn caps(&self) -> &$crate::driver::Caps {
            self.$driver.caps()
        }
    };
    ($driver:ident post) => {
        fn post<'a>(
            &mut self,
            command: $crate::driver::DriverCommand<'a>,
        ) -> $crate::driver::PostResult<'a> {
            self.$driver.post(command)
        }
    };
    ($driver:ident progress) => {
        fn progress(
            &mut self,
            budget: u32,
            sink: &mut dyn $crate::driver::Sink,
        ) -> $crate::driver::TurnProgress {
            self.$driver.progress(budget, sink)
        }
    };
    ($driver:ident arm) => {
        fn arm(&mut self) -> $crate::driver::ArmResult {
            self.$driver.arm()
        }
    };
    ($driver:ident wait_on) => {
        fn wait_on(&self) -> ::std::vec::Vec<$crate::driver::WakeSource> {
            self.$driver.wait_on()
        }
    };
    ($driver:ident allocate) => {
        fn allocate(&mut self, len: usize) -> ::std::io::Result<$crate::memory::MemoryRegion> {
            self.$driver.allocate(len)
        }
    };
    ($driver:ident expose) => {
        fn expose(
            &mut self,
            range: $crate::driver::LocalRange,
        ) -> Option<$crate::memory::RemoteRegion> {
            self.$driver.expose(range)
        }
    };
    ($driver:ident expect) => {
        fn expect(
            &mut self,
            awaited: &mut dyn FnMut() -> ::std::vec::Vec<$crate::driver::WorldRank>,
        ) {
            self.$driver.expect(awaited);
        }
    };
    ($driver:ident give_up) => {
        fn give_up(
            &mut self,
            peer: $crate::driver::WorldRank,
            how: Option<$crate::driver::DownCause>,
        ) -> $crate::driver::DownCause {
            self.$driver.give_up(peer, how)
        }
    };
}
