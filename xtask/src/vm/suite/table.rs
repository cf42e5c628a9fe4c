//! What runs in the guest.

/// Something that runs in the guest, and with what.
#[derive(Clone, Copy, Debug)]
pub(super) struct Suite {
    pub(super) package: &'static str,
    pub(super) what: What,
    /// What a test program is told to run, as a shell takes it, and how; or an example's arguments.
    pub(super) args: &'static str,
    /// Variables, as a shell takes them.
    pub(super) env: &'static str,
}

/// Which program.
#[derive(Clone, Copy, Debug)]
pub(super) enum What {
    /// The tests inside the library.
    Library,
    /// A test by its name.
    Test(&'static str),
    /// An example by its name, started on 4 ranks by the launcher.
    Example(&'static str),
}

impl Suite {
    const fn of_fabric(what: What, args: &'static str) -> Self {
        Self {
            package: "ripstop-fabric",
            what,
            args,
            env: "",
        }
    }

    const fn test(name: &'static str, args: &'static str, env: &'static str) -> Self {
        Self {
            package: "ripstop",
            what: What::Test(name),
            args,
            env,
        }
    }

    const fn example(name: &'static str, args: &'static str, env: &'static str) -> Self {
        Self {
            package: "ripstop",
            what: What::Example(name),
            args,
            env,
        }
    }

    /// Differs from those of all others.
    pub(super) fn title(&self) -> String {
        let what = match self.what {
            What::Library => "library".to_owned(),
            What::Test(name) => name.to_owned(),
            What::Example(name) => format!("example {name}"),
        };
        let words = [self.package, &what, self.env, self.args];
        let words = words.into_iter().filter(|word| !word.is_empty());
        words.collect::<Vec<_>>().join(" ")
    }
}

/// All ranks on one device, which loops what they say back inside; and each on its own, with the wire between them, as ranks
/// take turns among the devices. A rank may have to wait long for one of the guest's processors.
const ONE: &str = "RIPSTOP_FABRIC=verbs RIPSTOP_DETECT_MS=20000 RIPSTOP_VERBS_DEVICE=rxe0";
const ACROSS: &str = "RIPSTOP_FABRIC=verbs RIPSTOP_DETECT_MS=20000 RIPSTOP_REACTOR=epoll";
/// One death of each kind, and heard of as soon as devices and pings say so.
const KILLED: &str = "RIPSTOP_FABRIC=verbs RIPSTOP_REACTOR=epoll KILLS=1";

/// What runs in the guest after a look at the guest itself. It takes minutes where the guest is emulated, so the longest tests
/// are left out: floods, large collectives, and deaths of ranks but for one of each kind. So are ranks with fewer connections
/// than peers, which were not run often enough.
pub(super) const SUITES: &[Suite] = &[
    Suite::of_fabric(What::Library, "verbs::"),
    // Without the claim that opens a thousand devices: it takes as long as all others together.
    Suite::of_fabric(
        What::Test("conformance"),
        "--include-ignored on_verbs --skip ranks_that_close_at_once --skip few_connections",
    ),
    // How long a cable is out is a matter of the guest's speed, so the tests that pull them are run by hand.
    Suite::of_fabric(
        What::Test("conformance"),
        "--include-ignored --test-threads 1 verbs:: --skip on_verbs --skip cables:: --skip scarce::",
    ),
    Suite::test("messages", "", ONE),
    Suite::test("messages", "", ACROSS),
    Suite::test("scope", "", ONE),
    Suite::test("scope", "", ACROSS),
    Suite::test("communicators", "--skip at_every_size", ONE),
    Suite::test("communicators", "--skip at_every_size", ACROSS),
    Suite::test("operations", "races", ONE),
    Suite::test("operations", "races", ACROSS),
    Suite::test("windows", "pscw", ONE),
    // Long puts are copied by the host only where memory is mapped, and random graphs compute for minutes.
    Suite::test("windows", "--skip graphs --skip overlap", ACROSS),
    Suite::test("collectives", "forms", ONE),
    Suite::test("collectives", "failing", ONE),
    Suite::test("failures", "_is_killed", KILLED),
    Suite::example("halo", "--n 16 --steps 20", ACROSS),
    Suite::example("awp", "--n 12 --steps 4 --check", ACROSS),
    Suite::example("p3dfft", "--n 8 --vars 1 --iters 1 --check", ACROSS),
];
