//! Restrictions of containers and administrators, made for real: the same messages arrive, and the report names what is used
//! instead.

#![expect(
    unsafe_code,
    reason = "a filter of system calls is installed in a child, before its program starts"
)]
#![expect(
    clippy::print_stdout,
    reason = "what was chosen is for the test that started this one"
)]

use std::{
    io,
    os::unix::process::CommandExt,
    process::{Command, Output},
};

use ripstop::{Comm, Result};
use ripstop_rt::internal::CommInternals;
use rustix::process::{Resource, Rlimit, setrlimit};

/// Length in words of 8 bytes.
const SIZES: [u64; 5] = [0, 1, 1000, 12_500, 1 << 17];

/// What the restricted processes run.
#[ripstop::test(ranks = 2, process)]
async fn messages_of_all_lengths_cross(world: Comm) -> Result<()> {
    let choices = world.choices();
    println!("reactor {}: {}", choices.reactor, choices.reactor_why);
    println!("single copy: {:?}", choices.single_copy);
    let (me, other) = (u64::from(world.rank() == 1), 1 - world.rank());
    for len in SIZES {
        let content = |rank| (0..len).map(|at| 3 * at + rank).collect::<Vec<u64>>();
        let sent = world.send(other, 1, content(me));
        let (got, _) = world.recv::<u64>(other, 1).await?;
        assert!(got == content(1 - me), "{len} words");
        sent.await?;
    }
    Ok(())
}

#[test]
fn without_process_vm_calls_bodies_are_copied_twice_and_the_reason_is_said() {
    let said =
        passes(crossing().forbid(&[libc::SYS_process_vm_readv, libc::SYS_process_vm_writev]));
    assert!(
        said.contains("single copy: Err(\"process_vm_readv fails"),
        "{said}"
    );
}

#[test]
fn without_io_uring_ranks_sleep_on_epoll_and_the_reason_is_said() {
    for call in [libc::SYS_io_uring_setup, libc::SYS_io_uring_enter] {
        let said = passes(crossing().forbid(&[call]));
        assert!(
            said.contains("reactor epoll: epoll, because io_uring is forbidden here"),
            "{said}"
        );
    }
}

#[test]
fn without_membarrier_and_pidfds_messages_cross() {
    passes(crossing().forbid(&[libc::SYS_membarrier, libc::SYS_pidfd_open]));
}

#[test]
fn no_locked_memory_is_enough() {
    passes(crossing().limit(Resource::Memlock, 0));
}

#[test]
fn the_doctor_names_what_is_forbidden_and_what_is_lost() {
    let calls = [libc::SYS_io_uring_setup, libc::SYS_process_vm_readv];
    let words = ["kernel.io_uring", "copying.single", "processors.quota"];
    let said = passes(doctor(&words).forbid(&calls));
    for (check, word) in [
        ("kernel.io_uring", "epoll"),
        ("copying.single", "copied twice"),
    ] {
        assert!(said.contains(&format!("warn  {check} ")), "{said}");
        assert!(said.contains(word), "{said}");
    }
    assert!(!said.contains("warn  processors.quota"), "{said}");
    let strict = doctor(&["--strict", "kernel"]).forbid(&calls).output();
    assert_eq!(strict.unwrap().status.code(), Some(1));
}

#[test]
fn the_doctor_fails_where_ranks_cannot_share_memory() {
    let output = doctor(&["memory"])
        .forbid(&[libc::SYS_memfd_create])
        .output()
        .unwrap();
    let said = text(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.starts_with("fail  memory.shared "), "{said}");
    assert!(said.contains("allow memfd_create"), "{said}");
}

#[test]
fn the_doctor_judges_limits_by_the_values_that_hold() {
    let said = passes(doctor(&["memory"]).limit(Resource::Nofile, 256));
    let warning = "warn  memory.descriptors     a process may open 256 files";
    assert!(said.contains(warning), "{said}");
    let said = passes(doctor(&["memory.locked"]).limit(Resource::Memlock, 64 << 10));
    assert!(said.contains("64 KiB"), "{said}");
}

/// Returns `ripstop doctor` with these arguments.
fn doctor(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ripstop"));
    command.arg("doctor").args(words);
    command.env_remove("RIPSTOP_FABRIC");
    command
}

#[test]
fn too_few_descriptors_are_an_error_that_says_what_to_raise() {
    let output = crossing().limit(Resource::Nofile, 8).output().unwrap();
    let said = text(&output);
    assert!(
        !output.status.success() && said.contains("ulimit -n"),
        "{said}"
    );
}

/// The job does not fall back to another fabric than the one that was asked for.
#[test]
fn verbs_without_a_device_is_an_error_that_says_what_to_look_at_and_what_to_load() {
    let mut hidden = without(
        "/sys/class/infiniband",
        "mount -t tmpfs none /sys/class/infiniband",
    );
    fails_with(
        &mut hidden,
        &[
            "no RDMA device was found",
            "ls /sys/class/infiniband",
            "load the module",
            "choose another fabric",
        ],
    );
}

#[test]
#[ignore = "needs an RDMA device: run it in the virtual machine"]
fn verbs_without_its_library_is_an_error_that_says_what_to_install() {
    // The upper entry hides the file below it.
    let hide = "mount -t tmpfs none /mnt && mknod /mnt/libibverbs.so.1 c 0 0 && \
                mount -t overlay none -o lowerdir=/mnt:$L $L";
    let hide = format!(
        "L=$(dirname $(readlink -f $(ldconfig -p | sed -n 's/.*libibverbs.so.1 .*=> //p'))); {hide}"
    );
    fails_with(
        &mut without("/", &hide),
        &[
            "libibverbs.so.1",
            "cannot open shared object file",
            "install rdma-core",
            "libibverbs1",
            "ibverbs-providers",
        ],
    );
}

/// Runs the ranks of the test above over verbs, where existing devices are hidden.
fn without(what: &str, hide: &str) -> Command {
    let program = crossing();
    let mut command = if std::path::Path::new(what).exists() {
        let mut command = Command::new("unshare");
        command.args([
            "--mount",
            "sh",
            "-c",
            &format!("{hide}; exec \"$0\" \"$@\""),
        ]);
        command.arg(program.get_program()).args(program.get_args());
        command
    } else {
        crossing()
    };
    command
        .env_remove("RIPSTOP_REACTOR")
        .env("RIPSTOP_FABRIC", "verbs")
        .env("RUST_TEST_NOCAPTURE", "1");
    command
}

#[track_caller]
fn fails_with(command: &mut Command, words: &[&str]) {
    let output = command.output().expect("it starts");
    let said = text(&output);
    assert!(!output.status.success(), "{said}");
    for word in ["InfiniBand verbs"].iter().chain(words) {
        assert!(said.contains(word), "no {word:?} in {said}");
    }
}

/// Runs this program again, with only the test above.
fn crossing() -> Command {
    let mut command = Command::new(std::env::current_exe().expect("its path"));
    command.args(["messages_of_all_lengths_cross", "--exact", "--nocapture"]);
    command
        .env_remove("RIPSTOP_REACTOR")
        .env_remove("RIPSTOP_FABRIC")
        .env("RUST_TEST_NOCAPTURE", "1"); // for its ranks
    command
}

#[track_caller]
fn passes(command: &mut Command) -> String {
    let output = command.output().expect("it starts");
    let said = text(&output);
    assert!(output.status.success(), "{}: {said}", output.status);
    said
}

fn text(output: &Output) -> String {
    let (out, err) = (&output.stdout, &output.stderr);
    format!(
        "{}{}",
        String::from_utf8_lossy(out),
        String::from_utf8_lossy(err)
    )
}

trait Confine {
    /// Answers these system calls with `EPERM`, as Docker's default profile does.
    fn forbid(&mut self, calls: &[libc::c_long]) -> &mut Self;
    fn limit(&mut self, resource: Resource, most: u64) -> &mut Self;
}

impl Confine for Command {
    fn forbid(&mut self, calls: &[libc::c_long]) -> &mut Self {
        let program = filter(calls);
        // SAFETY: between fork and exec it makes only two system calls, on memory that was filled before.
        unsafe { self.pre_exec(move || install(&program)) }
    }

    fn limit(&mut self, resource: Resource, most: u64) -> &mut Self {
        let limit = Rlimit {
            current: Some(most),
            maximum: Some(most),
        };
        // SAFETY: between fork and exec it makes only one system call, on memory that it owns.
        unsafe { self.pre_exec(move || Ok(setrlimit(resource, limit)?)) }
    }
}

/// Loads the call's number, jumps to the end if it is one of them, allows it otherwise, and refuses at the end.
fn filter(calls: &[libc::c_long]) -> Vec<libc::sock_filter> {
    let step = |code: u32, jt: usize, k: u32| libc::sock_filter {
        code: u16::try_from(code).expect("16 bits"),
        jt: u8::try_from(jt).expect("a short filter"),
        jf: 0,
        k,
    };
    let mut program = vec![step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0)];
    program.extend(calls.iter().enumerate().map(|(at, &call)| {
        let number = u32::try_from(call).expect("a call's number");
        step(
            libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
            calls.len() - at,
            number,
        )
    }));
    program.push(step(
        libc::BPF_RET | libc::BPF_K,
        0,
        libc::SECCOMP_RET_ALLOW,
    ));
    let refuse = libc::SECCOMP_RET_ERRNO | u32::try_from(libc::EPERM).expect("an errno");
    program.push(step(libc::BPF_RET | libc::BPF_K, 0, refuse));
    program
}

fn install(filter: &[libc::sock_filter]) -> io::Result<()> {
    let program = libc::sock_fprog {
        len: u16::try_from(filter.len()).map_err(io::Error::other)?,
        filter: filter.as_ptr().cast_mut(),
    };
    // SAFETY: the call takes no pointers.
    answer(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) })?;
    // SAFETY: the kernel reads the program, which outlives the call.
    answer(unsafe {
        libc::prctl(
            libc::PR_SET_SECCOMP,
            libc::SECCOMP_MODE_FILTER,
            &raw const program,
        )
    })
}

fn answer(status: libc::c_int) -> io::Result<()> {
    if status == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
