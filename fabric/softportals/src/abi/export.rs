//! The symbols that a C program links to.

/// Turns the calling package into a `libportals.so.4` of one family: `portals_library!(Sandia42)`.
#[macro_export]
macro_rules! portals_library {
    ($profile:ident) => {
        use std::ffi::{c_int, c_uint, c_void};
        use $crate::abi::{
            PtlCtEvent, PtlNiLimits, PtlMd, PtlMe, CPollFd, PtlProcess, FamilyAbi,
            calls::{self, PtlMdOffset, PtlOperation, PtlTarget},
        };

        type P = $crate::abi::$profile;
        type H = <P as FamilyAbi>::Handle;
        type Small = <P as FamilyAbi>::Small;
        type Time = <P as FamilyAbi>::Time;
        type Le = <P as FamilyAbi>::Le;
        type Event = <P as FamilyAbi>::Event;

        $crate::portals_functions! {
            PtlInit() = calls::init();
            PtlNIInit(iface: c_uint, options: c_uint, pid: u32, desired: *const PtlNiLimits, actual: *mut PtlNiLimits, ni: *mut H)
                = calls::ni_init::<P>(iface, options, pid, desired, actual, ni);
            PtlNIFini(ni: H) = calls::ni_fini::<P>(ni);
            PtlNIStatus(ni: H, index: c_uint, value: *mut c_int) = calls::ni_status::<P>(ni, index, value);
            PtlNIHandle(any: H, ni: *mut H) = calls::ni_handle::<P>(any, ni);
            PtlSetMap(ni: H, size: u64, map: *const PtlProcess) = calls::set_map::<P>(ni, size, map);
            PtlGetMap(ni: H, size: u64, map: *mut PtlProcess, actual: *mut u64)
                = calls::get_map::<P>(ni, size, map, actual);
            PtlPTAlloc(ni: H, options: c_uint, eq: H, wanted: u32, index: *mut u32)
                = calls::pt_alloc::<P>(ni, options, eq, wanted, index);
            PtlPTFree(ni: H, index: u32) = calls::pt_free::<P>(ni, index);
            PtlPTDisable(ni: H, index: u32) = calls::pt_disable::<P>(ni, index);
            PtlPTEnable(ni: H, index: u32) = calls::pt_enable::<P>(ni, index);
            PtlGetUid(ni: H, uid: *mut u32) = calls::get_uid::<P>(ni, uid);
            PtlGetId(ni: H, id: *mut PtlProcess) = calls::get_id::<P>(ni, false, id);
            PtlGetPhysId(ni: H, id: *mut PtlProcess) = calls::get_id::<P>(ni, true, id);
            PtlMDBind(ni: H, md: *const PtlMd<H>, place: *mut H) = calls::md_bind::<P>(ni, md, place);
            PtlMDRelease(md: H) = calls::md_release::<P>(md);
            PtlLEAppend(ni: H, index: u32, le: *const Le, list: Small, user: *mut c_void, place: *mut H)
                = calls::le_append::<P>(ni, index, le, list, user, place);
            PtlLEUnlink(le: H) = calls::unlink::<P>(le);
            PtlLESearch(ni: H, index: u32, le: *const Le, mode: Small, user: *mut c_void)
                = calls::le_search::<P>(ni, index, le, mode, user);
            PtlMEAppend(ni: H, index: u32, me: *const PtlMe<H>, list: Small, user: *mut c_void, place: *mut H)
                = calls::me_append::<P>(ni, index, me, list, user, place);
            PtlMEUnlink(me: H) = calls::unlink::<P>(me);
            PtlMESearch(ni: H, index: u32, me: *const PtlMe<H>, mode: Small, user: *mut c_void)
                = calls::me_search::<P>(ni, index, me, mode, user);
            PtlEQAlloc(ni: H, count: u64, eq: *mut H) = calls::eq_alloc::<P>(ni, count, eq);
            PtlEQFree(eq: H) = calls::eq_free::<P>(eq);
            PtlEQGet(eq: H, event: *mut Event)
                = calls::eq_take::<P>(eq, event, Some(std::time::Duration::ZERO));
            PtlEQWait(eq: H, event: *mut Event) = calls::eq_take::<P>(eq, event, None);
            PtlEQPoll(eqs: *const H, count: c_uint, timeout: Time, event: *mut Event, which: *mut c_uint)
                = calls::eq_poll::<P>(eqs, count, timeout, event, which);
            PtlCTAlloc(ni: H, ct: *mut H) = calls::ct_alloc::<P>(ni, ct);
            PtlCTFree(ct: H) = calls::ct_free::<P>(ct);
            PtlCTCancelTriggered(ct: H) = calls::ct_cancel::<P>(ct);
            PtlCTGet(ct: H, event: *mut PtlCtEvent) = calls::ct_wait::<P>(ct, 0, event);
            PtlCTWait(ct: H, test: u64, event: *mut PtlCtEvent) = calls::ct_wait::<P>(ct, test, event);
            PtlCTPoll(
                cts: *const H, tests: *const u64, count: c_uint, timeout: Time, event: *mut PtlCtEvent, which: *mut c_uint
            ) = calls::ct_poll::<P>(cts, tests, count, timeout, event, which);
            PtlCTSet(ct: H, value: PtlCtEvent) = calls::ct_set::<P>(ct, value);
            PtlCTInc(ct: H, by: PtlCtEvent) = calls::ct_inc::<P>(ct, by);
            PtlAtomicSync() = calls::atomic_sync::<P>();
            PtlStartBundle(ni: H) = calls::bundle::<P>(ni);
            PtlEndBundle(ni: H) = calls::bundle::<P>(ni);
            PtlNFDs(ni: H) = calls::n_fds::<P>(ni);
            PtlPollFDs(ni: H, fds: *mut CPollFd, events: c_int) = calls::poll_fds::<P>(ni, fds, events);
            PtlPollEvents(ni: H, fds: *mut CPollFd) = calls::poll_events::<P>(ni, fds);
            PtlHandleIsEqual(a: H, b: H) = calls::handle_is_equal::<P>(a, b);
        }

        $crate::portals_operations! {
            PtlPut, PtlTriggeredPut(
                md: H, local: u64, length: u64, ack: Small, process: PtlProcess, pt_index: u32, match_bits: u64, offset: u64,
                user_ptr: *mut c_void, hdr_data: u64
            ) = PtlOperation::Put(
                PtlMdOffset { md, offset: local },
                PtlTarget { process, pt_index, match_bits, offset, length, user_ptr, hdr_data },
                ack
            );
            PtlGet, PtlTriggeredGet(
                md: H, local: u64, length: u64, process: PtlProcess, pt_index: u32, match_bits: u64, offset: u64,
                user_ptr: *mut c_void
            ) = PtlOperation::Get(
                PtlMdOffset { md, offset: local },
                PtlTarget { process, pt_index, match_bits, offset, length, user_ptr, hdr_data: 0 }
            );
            PtlAtomic, PtlTriggeredAtomic(
                md: H, local: u64, length: u64, ack: Small, process: PtlProcess, pt_index: u32, match_bits: u64, offset: u64,
                user_ptr: *mut c_void, hdr_data: u64, operator: Small, datatype: Small
            ) = PtlOperation::Atomic(
                PtlMdOffset { md, offset: local },
                PtlTarget { process, pt_index, match_bits, offset, length, user_ptr, hdr_data },
                ack,
                [operator, datatype]
            );
            PtlFetchAtomic, PtlTriggeredFetchAtomic(
                get: H, get_offset: u64, put: H, put_offset: u64, length: u64, process: PtlProcess, pt_index: u32,
                match_bits: u64, offset: u64, user_ptr: *mut c_void, hdr_data: u64, operator: Small, datatype: Small
            ) = PtlOperation::FetchAtomic(
                PtlMdOffset { md: get, offset: get_offset },
                PtlMdOffset { md: put, offset: put_offset },
                PtlTarget { process, pt_index, match_bits, offset, length, user_ptr, hdr_data },
                [operator, datatype]
            );
            PtlSwap, PtlTriggeredSwap(
                get: H, get_offset: u64, put: H, put_offset: u64, length: u64, process: PtlProcess, pt_index: u32,
                match_bits: u64, offset: u64, user_ptr: *mut c_void, hdr_data: u64, operand: *const c_void,
                operator: Small, datatype: Small
            ) = PtlOperation::Swap(
                PtlMdOffset { md: get, offset: get_offset },
                PtlMdOffset { md: put, offset: put_offset },
                PtlTarget { process, pt_index, match_bits, offset, length, user_ptr, hdr_data },
                operand,
                [operator, datatype]
            );
        }

        $crate::portals_functions! {
            PtlTriggeredCTInc(ct: H, by: PtlCtEvent, trigger: H, threshold: u64)
                = calls::start::<P>(PtlOperation::CtInc(ct, by), Some((trigger, threshold)));
            PtlTriggeredCTSet(ct: H, to: PtlCtEvent, trigger: H, threshold: u64)
                = calls::start::<P>(PtlOperation::CtSet(ct, to), Some((trigger, threshold)));
        }

        /// Returns the name of the family as a C string.
        ///
        /// The symbols of BXI's extension exist here as well, so they alone do not identify a library.
        #[unsafe(no_mangle)]
        pub extern "C" fn RipstopPortalsAbi() -> *const std::ffi::c_char {
            <P as FamilyAbi>::NAME.as_ptr()
        }

        /// Returns how often the host was interrupted for messages, for benchmarks. In any mode but `generic`, returns the
        /// largest number.
        #[unsafe(no_mangle)]
        pub extern "C" fn RipstopPortalsInterrupts(ni: H) -> u64 {
            calls::interrupts::<P>(ni)
        }

        /// Returns 1 if operations to a dead process complete, otherwise 0.
        #[unsafe(no_mangle)]
        pub extern "C" fn RipstopPortalsEndsToDead(ni: H) -> c_int {
            calls::ends_to_dead::<P>(ni)
        }

        $crate::portals_functions! {
            RipstopPortalsHabits(habits: *const std::ffi::c_char) = calls::adopt::<P>(habits);
        }

        /// See the specification.
        #[unsafe(no_mangle)]
        pub extern "C" fn PtlFini() {
            calls::fini();
        }
    };
}

/// Adds the extras of Bull's header to a [`portals_library!`](crate::portals_library): 4.3's `PtlAbort`, and texts.
#[macro_export]
macro_rules! portals_bull_extension {
    () => {
        /// See the specification, 4.3.
        #[unsafe(no_mangle)]
        pub extern "C" fn PtlAbort() {
            calls::abort();
        }

        /// Returns the name of a return code (`what` is 0), an event (1) or a failure (2).
        #[unsafe(no_mangle)]
        pub extern "C" fn PtlToStr(number: c_int, what: c_uint) -> *const std::ffi::c_char {
            calls::text::<P>(number, what).as_ptr()
        }

        /// Returns the number of failures that have a name.
        #[unsafe(no_mangle)]
        pub extern "C" fn PtlFailTypeSize() -> c_int {
            calls::fail_names()
        }

        $crate::portals_functions! {
            PtlEvToStr(ni_options: c_uint, event: *const Event, text: *mut std::ffi::c_char)
                = calls::describe(ni_options, event, text);
        }
    };
}

/// Defines functions that return a code.
#[doc(hidden)]
#[macro_export]
macro_rules! portals_functions {
    ($($name:ident($($arg:ident: $type:ty),*) = $call:expr;)+) => {
        $(
            /// See the specification.
            ///
            /// # Safety
            /// Pointers are what the specification says.
            #[unsafe(no_mangle)]
            #[allow(unused_unsafe, reason = "some take no pointer")]
            pub unsafe extern "C" fn $name($($arg: $type),*) -> c_int {
                // SAFETY: the caller's promise is the callee's.
                unsafe { $call }
            }
        )+
    };
}

/// Defines operations with and without a trigger.
#[doc(hidden)]
#[macro_export]
macro_rules! portals_operations {
    ($($name:ident, $triggered:ident($($arg:ident: $type:ty),*) = $operation:expr;)+) => {
        $(
            $crate::portals_functions! {
                $name($($arg: $type),*) = calls::start::<P>($operation, None);
                $triggered($($arg: $type,)* trigger: H, threshold: u64)
                    = calls::start::<P>($operation, Some((trigger, threshold)));
            }
        )+
    };
}
