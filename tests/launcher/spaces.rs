//! Ranks in namespaces of their own, which do not find each other's descriptors under `/proc`.

use std::{
    collections::BTreeSet,
    io::Write,
    mem::MaybeUninit,
    os::fd::OwnedFd,
    path::PathBuf,
    process::{Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
};

use ripstop::{Collectives, Comm, ErrorKind, Runtime, Sum, Window};
use ripstop_rt::boot::Boot;
use rustix::{
    fs::inotify,
    io::Errno,
    process::{Signal, getpid, kill_process},
};

use crate::{
    Ended, ended, launcher,
    meeting::{is_installed, options_of, skipped},
    roles::{AS_RANK, ROLE},
};

const TALK: &str = "talk";

/// Wraps each rank, or only rank 1, in `unshare OPTIONS`, if the machine allows it.
fn unshared(script: &str) -> Option<String> {
    let all = script.replace("unshare", "unshare -U -r");
    [script.to_owned(), all]
        .into_iter()
        .find(|script| works(script))
}

/// Returns true if the machine allows what a script does; the machines of CI do.
fn works(script: &str) -> bool {
    let allowed = Command::new("sh")
        .args(["-c", &script.replace("PROGRAM", "true")])
        .output();
    let why = match allowed {
        Ok(done) if done.status.success() => return true,
        Ok(done) => String::from_utf8_lossy(&done.stderr).trim().to_owned(),
        Err(why) => why.to_string(),
    };
    if script.contains("-U") {
        assert!(std::env::var_os("CI").is_none(), "{script}: {why}");
        skipped(&format!("`{script}` is forbidden here: {why}"));
    }
    false
}

/// Returns a shell that becomes what `script` says, with a rank as its `PROGRAM`.
fn scripted(mut command: Command, script: &str, role: &str) -> Ended {
    let own = std::env::current_exe().unwrap();
    let rank = format!("{} {}", own.display(), AS_RANK.join(" "));
    let as_root = ["OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"];
    command
        .args(["sh", "-c", &script.replace("PROGRAM", &rank)])
        .env(ROLE, role)
        .envs(as_root.map(|variable| (variable, "1")))
        .stdin(Stdio::null());
    ended(command)
}

/// Starts `ranks` ranks, each as the script says, with both ways to be woken. Returns the names of the sockets by which they have
/// found each other, none of which may be left. Returns `None` if this machine forbids what the script does.
#[track_caller]
fn talk(ranks: u32, script: &str) -> Option<BTreeSet<String>> {
    let script = unshared(script)?;
    let sockets = SocketFolder::new();
    for reactor in ["auto", "epoll"] {
        let mut command = launcher(ranks, &[]);
        command.arg("--").env("RIPSTOP_REACTOR", reactor);
        command.env("XDG_RUNTIME_DIR", &sockets.path);
        let job = scripted(command, &script, TALK);
        job.with(0, &[]);
        for rank in 0..ranks {
            job.says_once(&format!("rank {rank} of {ranks} has talked"));
        }
    }
    let names = sockets.names();
    let folders = ["/dev/shm".as_ref(), "/tmp".as_ref(), sockets.path.as_path()];
    let places = names
        .iter()
        .flat_map(|name| folders.map(|folder| folder.join(name)));
    let left: Vec<PathBuf> = places
        .filter(|path| path.symlink_metadata().is_ok())
        .collect();
    assert!(left.is_empty(), "{left:?}");
    Some(names)
}

/// One of the folders in each of which ranks make their sockets. Only the ranks of one test make them here, so this one tells
/// their names.
struct SocketFolder {
    path: PathBuf,
    events: OwnedFd,
}

impl SocketFolder {
    fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("ripstop-sockets-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        let events = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK);
        let events = events.unwrap();
        inotify::add_watch(&events, &path, inotify::WatchFlags::CREATE).unwrap();
        Self { path, events }
    }

    /// Returns the names of all files that were made here.
    fn names(&self) -> BTreeSet<String> {
        let mut names = BTreeSet::new();
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut events = inotify::Reader::new(&self.events, &mut buffer);
        loop {
            match events.next() {
                Ok(event) => {
                    let name = event.file_name().unwrap();
                    names.insert(name.to_str().unwrap().to_owned());
                }
                Err(Errno::AGAIN) => return names,
                Err(why) => panic!("{why}"),
            }
        }
    }
}

impl Drop for SocketFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

#[test]
fn ranks_in_time_namespaces_of_their_own_live() {
    talk(2, "exec unshare -T --boottime $((1000 + PMI_RANK)) PROGRAM");
    talk(
        2,
        "[ $PMI_RANK = 0 ] && exec PROGRAM; exec unshare -T --boottime 1000 PROGRAM",
    );
}

#[test]
fn ranks_in_user_namespaces_of_their_own_talk() {
    talk(3, "exec unshare -U -r PROGRAM");
    talk(
        3,
        "[ $PMI_RANK != 1 ] && exec PROGRAM; exec unshare -U -r PROGRAM",
    );
    talk(
        2,
        "[ $PMI_RANK != 0 ] && exec PROGRAM; exec unshare -U -r PROGRAM",
    );
}

#[test]
fn ranks_in_pid_namespaces_of_their_own_talk() {
    talk(3, "exec unshare -p -f --kill-child PROGRAM");
    talk(2, "exec unshare -p -f --kill-child --mount-proc PROGRAM");
    talk(
        2,
        "[ $PMI_RANK != 1 ] && exec PROGRAM; exec unshare -p -f --kill-child PROGRAM",
    );
}

#[test]
fn ranks_without_proc_talk() {
    talk(2, "exec unshare -m sh -c 'umount -l /proc; exec PROGRAM'");
    talk(
        2,
        "[ $PMI_RANK != 1 ] && exec PROGRAM; exec unshare -m sh -c 'umount -l /proc; exec PROGRAM'",
    );
}

#[test]
fn ranks_in_networks_of_their_own_talk() {
    talk(2, "exec unshare -n -i -u PROGRAM");
    // From another user namespace, they do not find each other under /proc.
    let names = talk(2, "exec unshare -U -r -n PROGRAM");
    let has_sockets = names.is_none_or(|names| !names.is_empty());
    assert!(has_sockets, "no socket was made in a folder");
}

#[test]
fn ranks_in_namespaces_of_all_kinds_talk() {
    talk(
        3,
        "exec unshare -U -r -m -n -i -u -C -p -f --kill-child --mount-proc PROGRAM",
    );
    talk(
        2,
        "exec unshare -U -r -m -n -i -u -p -f --kill-child sh -c 'umount -l /proc; exec PROGRAM'",
    );
    talk(
        2,
        "[ $PMI_RANK != 1 ] && exec PROGRAM; exec unshare -U -r -m -n -p -f --kill-child PROGRAM",
    );
}

#[test]
fn ranks_in_namespaces_talk_under_other_launchers() {
    let user = "exec unshare -U -r PROGRAM";
    let pid = "exec unshare -U -r -p -f --kill-child PROGRAM";
    let network = "exec unshare -U -r -n -p -f --kill-child PROGRAM";
    let hydra = [user, pid, network];
    // The launcher's own start needs a network.
    let orte = [user, pid];
    for (name, package, scripts) in [
        ("mpiexec.hydra", "mpich", &hydra[..]),
        ("orterun", "openmpi-bin", &orte),
    ] {
        if !is_installed(name, package) {
            continue;
        }
        for script in scripts.iter().filter(|script| works(script)) {
            let mut command = Command::new(name);
            command.args(options_of(name)).args(["-n", "3"]);
            let job = scripted(command, script, TALK);
            job.with(0, &[]);
            for rank in 0..3 {
                job.says_once(&format!("rank {rank} of 3 has talked"));
            }
        }
    }
}

#[test]
fn the_death_of_a_rank_is_heard_in_another_namespace() {
    for script in [
        "exec unshare -U -r PROGRAM",
        "exec unshare -p -f --kill-child PROGRAM",
        "exec unshare -U -r -n -p -f --kill-child --mount-proc PROGRAM",
    ] {
        let Some(script) = unshared(script) else {
            return;
        };
        let mut command = launcher(3, &["--keep-going"]);
        command.arg("--");
        let job = scripted(command, &script, "outlive");
        for rank in [0, 2] {
            job.says_once(&format!("rank {rank} outlived rank 1"));
        }
    }
}

#[test]
fn ranks_of_two_users_are_refused_with_the_reason() {
    if !is_root("starts ranks of two users") {
        return;
    }
    let script = "exec setpriv --reuid=$((65000 + PMI_RANK)) --clear-groups PROGRAM";
    let mut command = launcher(2, &[]);
    command.arg("--");
    let job = scripted(command, script, TALK);
    assert_ne!(job.code, Some(0));
    job.with(
        job.code.unwrap(),
        &["run all ranks of a node as one user", "65000", "65001"],
    );
}

/// Such a program shows its descriptors to root only.
#[test]
fn ranks_with_file_capabilities_talk() {
    if !is_root("gives files capabilities") {
        return;
    }
    let own = std::env::current_exe().unwrap();
    let capable = std::env::temp_dir().join(format!("ripstop-capable-{}", std::process::id()));
    std::fs::copy(&own, &capable).unwrap();
    // Revision 2, effective; CAP_SYS_NICE is number 23.
    let words = [0x0200_0001_u32, 1 << 23, 0, 0, 0];
    let value: Vec<u8> = words.into_iter().flat_map(u32::to_le_bytes).collect();
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(&capable, "security.capability", &value, flags).unwrap();
    let mut command = launcher(2, &[]);
    let nobody = ["--reuid=65534", "--regid=65534", "--clear-groups"];
    command
        .args(["--", "setpriv"])
        .args(nobody)
        .arg(&capable)
        .args(AS_RANK)
        .env(ROLE, TALK);
    let job = ended(command);
    std::fs::remove_file(&capable).unwrap();
    job.with(0, &[]);
    for rank in 0..2 {
        job.says_once(&format!("rank {rank} of 2 has talked"));
    }
}

/// Returns true if this process is root, as in CI.
fn is_root(does: &str) -> bool {
    let is = rustix::process::geteuid().is_root();
    if !is {
        assert!(std::env::var_os("CI").is_none(), "only root {does}");
        skipped(&format!("only root {does}"));
    }
    is
}

/// Ranks whose network namespaces have no interface and that have no folder in common.
const CUT_OFF: &str = "exec unshare -U -r -m -n sh -c 'mount -t tmpfs none /tmp; mount -t tmpfs none /dev/shm; exec PROGRAM'";

#[test]
fn ranks_that_share_neither_memory_nor_a_network_say_so() {
    if !works(CUT_OFF) {
        return;
    }
    for (fabric, said) in [
        (
            "auto",
            &[
                "or in containers that share no memory, and no network is offered by all of them",
                "tcp: not by rank",
            ][..],
        ),
        (
            "shm",
            &[
                "the job has 3 ranks and this node 1 of them",
                "in containers that share /tmp, /dev/shm or the network namespace",
            ],
        ),
    ] {
        let mut command = launcher(3, &[]);
        command.arg("--").env_remove("XDG_RUNTIME_DIR");
        command.env("RIPSTOP_FABRIC", fabric);
        let job = scripted(command, CUT_OFF, TALK);
        job.with(9, said);
    }
}

#[test]
fn the_first_rank_prints_which_ranks_share_no_memory_with_it() {
    if !works(CUT_OFF) {
        return;
    }
    let script = CUT_OFF.replace(
        "exec unshare",
        "[ $PMI_RANK = 1 ] || exec PROGRAM; exec unshare",
    );
    let contained = format!(
        "exec unshare -U -r sh -c \"{}\"",
        script.replace('$', "\\$")
    );
    // Otherwise the first rank that fails ends the others before they have found out.
    let mut command = launcher(3, &["--keep-going"]);
    command.arg("--").env_remove("XDG_RUNTIME_DIR");
    command
        .env("RIPSTOP_FABRIC", "shm")
        .env("RIPSTOP_LOG", "info");
    let job = scripted(command, &contained, TALK);
    let said = "rank 0: info: the launcher says that rank 0 and these ranks are on one node: 1; they share no memory";
    job.with(9, &[said, "the job has 3 ranks and this node 2 of them"]);
}

/// Runs a rank's part, with the runtime.
pub(crate) fn play(role: &str, boot: Boot) {
    let (rank, ranks) = (boot.rank, boot.size);
    let runtime = match Runtime::builder().boot(boot).init() {
        Ok(runtime) => runtime,
        Err(error) => {
            let _closed = writeln!(std::io::stderr(), "{error}");
            std::process::exit(9)
        }
    };
    let world = runtime.world();
    let said = if role == TALK {
        runtime.block_on(talk_with_all(&world));
        format!("rank {rank} of {ranks} has talked\n")
    } else {
        runtime.block_on(outlive(&world));
        format!("rank {rank} outlived rank 1\n")
    };
    drop(world);
    std::io::stdout().write_all(said.as_bytes()).unwrap();
    if role == TALK {
        runtime.close().unwrap();
    }
}

pub(crate) async fn talk_with_all(world: &Comm) {
    let (me, ranks) = (world.rank(), world.size());
    let (next, before) = ((me + 1) % ranks, (me + ranks - 1) % ranks);
    for len in [1, 500, 3000, 70_000, 1_000_000] {
        let inbox = world.recv::<u64>(before, 3);
        world.send(next, 3, vec![me as u64; len]).await.unwrap();
        assert_eq!(inbox.await.unwrap().0, vec![before as u64; len]);
        let all = world.all_gather(vec![me as u64; len]).await.unwrap();
        assert!(
            all.chunks(len)
                .enumerate()
                .all(|(rank, part)| part.iter().all(|&one| one == rank as u64))
        );
    }
    let mut windows = Vec::new();
    for _ in 0..3 {
        let window = Window::<u64>::allocate(world, 4 * ranks).await.unwrap();
        let window = window.into_passive().await.unwrap();
        let locks = window.lock_all().await.unwrap();
        locks.put(next, me, [7]).await.unwrap();
        locks.fetch_add(next, me, 5).await.unwrap();
        locks.flush_all().await;
        drop(locks);
        world.barrier().await.unwrap();
        assert_eq!(window.shared().get(before), 12);
        windows.push(window);
    }
    for window in windows {
        window.free().await.unwrap();
    }
    dynamic(world, me, next, before).await;
}

async fn dynamic(world: &Comm, me: usize, next: usize, before: usize) {
    let mut window = Window::<u64>::dynamic(world).await.unwrap();
    let piece = window.attach(world.alloc(6).unwrap()).unwrap();
    let inbox = world.recv::<u64>(next, 9);
    world.send(before, 9, [piece.at(1) as u64]).await.unwrap();
    let theirs = usize::try_from(inbox.await.unwrap().0[0]).unwrap();
    let exposure = window.post(&[before]).unwrap();
    let access = exposure.start(&[next]).await.unwrap();
    access.put(next, theirs, vec![me as u64; 3]).await.unwrap();
    access.accumulate(next, theirs, [10], Sum).await.unwrap();
    access.complete().await.unwrap();
    exposure.wait().await.unwrap();
    assert_eq!(
        window.piece_mut(piece).unwrap()[1..3],
        [before as u64 + 10, before as u64]
    );
    window.free().await.unwrap();
}

/// Rank 1 is killed when it knows all other ranks.
async fn outlive(world: &Comm) {
    let met = world.barrier().await; // some ranks may learn of the death here
    assert!(met.is_ok() || world.rank() != 1);
    if world.rank() == 1 {
        kill_process(getpid(), Signal::KILL).unwrap();
        // The first process of a PID namespace cannot kill itself.
        std::process::abort();
    }
    let gone = world.recv::<u8>(1, 1).await.unwrap_err();
    let failed = matches!(gone.error.kind, ErrorKind::PeerFailed { rank: 1, .. });
    assert!(failed, "{}", gone.error);
}
