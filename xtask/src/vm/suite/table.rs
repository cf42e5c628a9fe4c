//! The programs that run in the guest.

use std::borrow::Cow;

/// A program that runs in the guest, with its arguments and variables.
#[derive(Clone, Debug)]
pub(super) struct VmSuite {
    pub(super) package: &'static str,
    pub(super) kind: SuiteKind,
    /// Filter and options of a test program, as a shell takes them; or an example's arguments.
    pub(super) args: Cow<'static, str>,
    /// Variables, as a shell takes them.
    pub(super) env: Cow<'static, str>,
}

/// The kind of program.
#[derive(Clone, Copy, Debug)]
pub(super) enum SuiteKind {
    /// The tests inside the library.
    Library,
    /// A test by its name.
    Test(&'static str),
    /// An example by its name, started on 4 ranks by the launcher.
    Example(&'static str),
}

impl VmSuite {
    const fn of_fabric(what: SuiteKind, args: &'static str, env: &'static str) -> Self {
        Self {
            package: "ripstop-fabric",
            kind: what,
            args: Cow::Borrowed(args),
            env: Cow::Borrowed(env),
        }
    }

    const fn test(name: &'static str, args: &'static str, env: &'static str) -> Self {
        Self {
            package: "ripstop",
            kind: SuiteKind::Test(name),
            args: Cow::Borrowed(args),
            env: Cow::Borrowed(env),
        }
    }

    const fn example(name: &'static str, args: &'static str, env: &'static str) -> Self {
        Self {
            package: "ripstop",
            kind: SuiteKind::Example(name),
            args: Cow::Borrowed(args),
            env: Cow::Borrowed(env),
        }
    }

    /// Returns a title that differs from those of all other suites.
    pub(super) fn title(&self) -> String {
        let what = match self.kind {
            SuiteKind::Library => "library".to_owned(),
            SuiteKind::Test(name) => name.to_owned(),
            SuiteKind::Example(name) => format!("example {name}"),
        };
        let words = [self.package, &what, &self.env, &self.args];
        let words = words.into_iter().filter(|word| !word.is_empty());
        words.collect::<Vec<_>>().join(" ")
    }
}

/// All ranks on one device, which loops back internally; or, without a name, each on its own with the wire between them, as
/// ranks take turns among the devices. A rank may wait long for one of the guest's processors.
const ONE: &str = "RIPSTOP_FABRIC=verbs RIPSTOP_DETECT_MS=20000 RIPSTOP_VERBS_DEVICE=rxe0";
/// Each rank with two devices.
const TWO_LANES: &str =
    "RIPSTOP_FABRIC=verbs RIPSTOP_DETECT_MS=20000 RIPSTOP_VERBS_DEVICE=rxe0,rxe1";
/// Short messages go as datagrams until ranks exchange much data.
const HYBRID: &str =
    "RIPSTOP_FABRIC=verbs RIPSTOP_DETECT_MS=20000 RIPSTOP_REACTOR=epoll RIPSTOP_CONNECT=hybrid";
/// Two nodes of two ranks, with the devices between them.
const NODES: &str = "RIPSTOP_FABRIC=shm+verbs RIPSTOP_SHM_RANKS=2 RIPSTOP_DETECT_MS=20000";
const ACROSS: &str = "RIPSTOP_FABRIC=verbs RIPSTOP_DETECT_MS=20000 RIPSTOP_REACTOR=epoll";
/// Some deaths, during which a rank may wait long, too.
const DYING: &str =
    "RIPSTOP_FABRIC=verbs RIPSTOP_DETECT_MS=20000 RIPSTOP_REACTOR=epoll KILLS=3 GUARD_S=300";
/// The first of the cases that a test computes in many ways; each takes seconds.
const FIRST: &str = "RIPSTOP_FABRIC=verbs RIPSTOP_DETECT_MS=20000 RIPSTOP_REACTOR=epoll CASES=1";
/// One death of each kind, detected as soon as devices and pings report it.
const KILLED: &str = "RIPSTOP_FABRIC=verbs RIPSTOP_REACTOR=epoll KILLS=1 GUARD_S=300";
/// Cables are pulled for good, and a rank behind one is declared dead as soon as a slow guest allows.
const PULLED: &str = "RIPSTOP_DETECT_MS=10000";

/// The programs that run in the guest after a check of the guest itself. They take minutes if the guest is emulated, so long
/// tests are shortened, and some are left out by name.
pub(super) const SUITES: &[VmSuite] = &[
    VmSuite::of_fabric(SuiteKind::Library, "--include-ignored verbs::", ""),
    // Ranks that come and go open a device each, which takes a tenth of a second. The same claims for ranks on one device are
    // run by hand.
    VmSuite::of_fabric(
        SuiteKind::Test("conformance"),
        "--include-ignored on_verbs --skip lanes:: --skip on_verbs::",
        "ROUNDS=10",
    ),
    // Claims that differ for ranks with several devices, and one of each other kind. The rest is run by hand, and so are lists,
    // which use only the first lane.
    VmSuite::of_fabric(
        SuiteKind::Test("conformance"),
        "--include-ignored on_verbs_by_two_lanes::a_message_posted_just on_verbs_by_two_lanes::a_put_is_visible \
         on_verbs_by_two_lanes::a_full_post on_verbs_by_two_lanes::bodies_up_to on_verbs_by_two_lanes::many_commands \
         on_verbs_by_two_lanes::memory_from_elsewhere on_verbs_by_two_lanes::no_wake_up_is_lost_in_a_game_of_counts \
         on_verbs_by_two_lanes::put_and_get_between on_verbs_by_two_lanes::the_key_to_a_dropped \
         on_verbs_by_two_lanes::the_end_of_a_peer on_verbs_by_two_lanes::threads_exchange \
         on_verbs_by_two_lanes::a_reader_that_sees on_verbs_by_four_lanes::put_and_get_between \
         on_verbs_by_four_lanes::ranks_that_close on_verbs_by_four_lanes::the_only_messages",
        "ROUNDS=5",
    ),
    // In these, one cable after the other is pulled for good, so their duration does not matter. The test that plugs a cable in
    // again in time is run by hand, because it depends on the guest's speed.
    VmSuite::of_fabric(
        SuiteKind::Test("conformance"),
        "--include-ignored --test-threads 1 verbs::lanes verbs::torn_lists verbs::cables verbs::waking_lists \
         --skip pulled_for_a_moment",
        "",
    ),
    VmSuite::of_fabric(
        SuiteKind::Test("conformance"),
        "--include-ignored --test-threads 1 verbs:: --skip on_verbs --skip cables:: --skip lanes:: --skip _lists::",
        "ROUNDS=10 SLEEPS=2000",
    ),
    VmSuite::test("messages", "", ONE),
    VmSuite::test("messages", "", ACROSS),
    VmSuite::test("messages", "", TWO_LANES),
    VmSuite::test("messages", "", HYBRID),
    VmSuite::test("messages", "", NODES),
    VmSuite::test("scope", "", ONE),
    VmSuite::test("scope", "", ACROSS),
    VmSuite::test("communicators", "--skip at_every_size", ONE),
    VmSuite::test("communicators", "--skip at_every_size", ACROSS),
    VmSuite::test("communicators", "--skip at_every_size", HYBRID),
    VmSuite::test("operations", "races", ONE),
    // Tens of thousands of messages take minutes.
    VmSuite::test("operations", "--skip flood --skip races", ACROSS),
    VmSuite::test("errors", "", ONE),
    VmSuite::test("recovery", "", ONE),
    // The other tests run thousands of programs, or simulated ranks.
    VmSuite::test("programs", "failing going_on --skip simulator", ONE),
    // The ranks of `graphs` and `ends` are simulated: no device takes part, and it takes minutes. A million pieces take as
    // long.
    VmSuite::test(
        "windows",
        "--skip graphs:: --skip ends:: --skip more_pieces_come",
        ONE,
    ),
    VmSuite::test(
        "windows",
        "--skip graphs:: --skip ends:: --skip more_pieces_come",
        ACROSS,
    ),
    VmSuite::test("collectives", "forms ragged into:: wakes", ONE),
    VmSuite::test("collectives", "failing killed", DYING),
    // A stopped rank must catch up on a thousand long messages, which takes minutes there.
    VmSuite::test("failures", "--skip stopped_for_longer", KILLED),
    // If each rank has two devices, a lane takes half a minute to fail: run by hand.
    VmSuite::test("cables", "--include-ignored stays_pulled", PULLED),
    // Other numbers of ranks take a minute more each and are run by hand, and so are blocks of 135 KiB.
    VmSuite::test(
        "awp",
        "--test-threads 1 oneself four_ranks as_processes seismograms",
        FIRST,
    ),
    VmSuite::test("p3dfft", "--test-threads 1 four_ranks six_processes", FIRST),
    VmSuite::example("halo", "--n 16 --steps 20", ACROSS),
    VmSuite::example("halo", "--n 16 --steps 20", NODES),
];
