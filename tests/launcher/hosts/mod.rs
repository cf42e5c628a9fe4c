//! `ripstop run` with a list of hosts.
//!
//! All hosts are this machine. A script stands for ssh: it gets the name of a host and a command, and runs the command. So the
//! ranks of a job are on several nodes without a network between them, and only start-up is common to them.

mod everyday;
pub(crate) mod fake;
mod faults;
mod helper;
mod kubernetes;
mod rankfile;
mod starters;

use std::fs::{self, File, Permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::roles::{AS_RANK, ROLE};
use crate::{Ended, GUARD, RIPSTOP, ended};

fn hosts(words: &[&str]) -> Ended {
    let mut command = Command::new(RIPSTOP);
    command.arg("run").args(words);
    command.env_remove("RIPSTOP_START_WITH");
    ended(command)
}

/// A folder of one test.
struct Folder {
    path: PathBuf,
}

impl Folder {
    fn new(test: &str) -> Self {
        let name = format!("hosts-{test}-{}", std::process::id());
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::create_dir_all(&path).unwrap();
        Self { path }
    }

    /// Makes a starter: `$1` is the host, and the other arguments are the helper's command.
    fn starter(&self, script: &str) -> String {
        let here = self.path.display();
        let text = format!("#!/bin/sh\ncd {here}\nhost=$1\nshift\n{script}");
        self.program("starter", &text)
    }

    /// Makes an executable file.
    fn program(&self, name: &str, text: &str) -> String {
        let path = self.path.join(name);
        let mut file = File::create(&path).unwrap();
        writeln!(file, "{text}").unwrap();
        file.set_permissions(Permissions::from_mode(0o755)).unwrap();
        path.to_str().unwrap().to_owned()
    }

    fn read(&self, file: &str) -> String {
        fs::read_to_string(self.path.join(file)).unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Like ssh: the words become one line of a shell, and start-up files print something first.
const LIKE_SSH: &str = "echo Welcome to $host; export TEST_HOST=$host; exec sh -c \"exec $*\"";

/// `ripstop run` on hosts that `starter` starts, with these further options.
fn on_hosts(starter: &str, list: &str, options: &[&str]) -> Command {
    let mut command = Command::new(RIPSTOP);
    command.args(["run", "--hosts", list, "--start-with", starter]);
    if !options.contains(&"--timeout") {
        command.args(GUARD);
    }
    command.args(options).stdin(Stdio::null());
    command
}

/// The same, of a shell's script.
fn script(starter: &str, list: &str, options: &[&str], script: &str) -> Command {
    let mut command = on_hosts(starter, list, options);
    command.args(["--", "sh", "-c", script]);
    command
}

/// The same, of this program as ranks with this role.
fn role(starter: &str, list: &str, options: &[&str], role: &str) -> Command {
    let mut command = on_hosts(starter, list, options);
    let program = std::env::current_exe().unwrap();
    command.arg("--").arg(program).args(AS_RANK);
    command.env(ROLE, role);
    command
}

#[test]
fn the_plan_of_a_job_is_printed_and_nothing_runs() {
    let list = ["--hosts", "h1:2,localhost,h[2-3]:2"];
    let plan = |more: &[&str]| hosts(&[&list, more, &["--print-hosts"]].concat());
    let starter = ["--start-with", "no-such-starter --in %h"];
    let all = plan(&starter);
    all.with(0, &[]);
    let expected = format!(
        "ranks: 7, hosts: 4\n\
         h1: ranks 0 and 1: no-such-starter --in h1 {RIPSTOP} node 1\n\
         localhost: rank 2: {RIPSTOP} node 1\n\
         h2: ranks 3 and 4: no-such-starter --in h2 {RIPSTOP} node 1\n\
         h3: ranks 5 and 6: no-such-starter --in h3 {RIPSTOP} node 1\n"
    );
    assert_eq!(all.out, expected);
    let few = plan(&["-n", "4", "--per-host", "3"]);
    assert!(few.out.contains("h1: ranks 0-2: ssh "), "{}", few.out);
    assert!(few.out.contains("localhost: rank 3: "), "{}", few.out);
    let over = plan(&["-n", "8"]);
    over.with(
        2,
        &["8 ranks on hosts with places for 7", "--oversubscribe"],
    );
    let over = plan(&["-n", "8", "--oversubscribe"]);
    assert!(over.out.contains("h1: ranks 0, 1 and 7: "), "{}", over.out);
}

#[test]
fn several_programs_over_hosts_are_one_job() {
    let folder = Folder::new("programs");
    let starter = folder.starter(LIKE_SSH);
    // The second program has a rank on each of the two hosts.
    let mut command = on_hosts(&starter, "h1:2,h2:2", &["-n", "1"]);
    let program = std::env::current_exe().unwrap();
    command.arg(&program).args(AS_RANK);
    let second = "echo \"second has rank $PMI_RANK\"; exec \"$@\"";
    command.args([":", "-n", "2", "sh", "-c", second, "sh"]);
    command.arg(&program).args(AS_RANK);
    command.args([":", "-n", "1"]).arg(&program).args(AS_RANK);
    command.env(ROLE, "exchange");
    let job = ended(command);
    job.with(0, &[]);
    for rank in 0..4 {
        job.says_once(&format!("rank {rank} of 4"));
    }
    job.says_once("second has rank 1");
    job.says_once("second has rank 2");
    // Only the host that runs a program looks for it.
    let mut command = on_hosts(&starter, "h1:2,h2:2", &["-n", "2"]);
    command.args(["true", ":", "-n", "2", "no-such-program"]);
    let missing = "host h2: no program no-such-program in PATH";
    ended(command).with(127, &[missing]);
}

#[test]
fn an_allocation_names_its_hosts_and_decides_how_they_are_reached() {
    let folder = Folder::new("allocation");
    fs::write(folder.path.join("nodes"), "n1\nn1\nn2\n").unwrap();
    let nodes = folder.path.join("nodes").display().to_string();
    let plan = |variables: &[(&str, &str)], code: i32, saying: &[&str]| {
        let mut command = Command::new(RIPSTOP);
        command.args(["run", "--allocation", "--print-hosts"]);
        command.env_clear().envs(variables.iter().copied());
        ended(command).with(code, saying).out.clone()
    };
    let slurm = [
        ("SLURM_JOB_NODELIST", "n[1-2]"),
        ("SLURM_TASKS_PER_NODE", "2,1"),
    ];
    let slurm = plan(&slurm, 0, &[]);
    assert!(slurm.contains("n1: ranks 0 and 1: srun "), "{slurm}");
    let pbs = plan(&[("PBS_NODEFILE", &nodes)], 0, &[]);
    assert!(pbs.contains("n1: ranks 0 and 1: ssh "), "{pbs}");
    folder.program("pbs_tmrsh", "#!/bin/sh");
    let path = folder.path.display().to_string();
    let pbs = plan(&[("PBS_NODEFILE", &nodes), ("PATH", &path)], 0, &[]);
    assert!(pbs.contains("n2: rank 2: pbs_tmrsh n2 "), "{pbs}");
    plan(&[("FLUX_JOB_ID", "f1")], 2, &["flux run -n N PROGRAM"]);
}

#[test]
fn a_bad_list_is_a_mistake_in_the_command_line() {
    for (words, why) in [
        (["--hosts", "-oProxyCommand=x"], "begins with a dash"),
        (["--hosts", "$(reboot)"], "the name of a host consists of"),
        (["--hostfile", "-"], "belongs to rank 0"),
        (
            ["--hostfile", "/no/such/file"],
            "--hostfile /no/such/file: ",
        ),
        (["-n", "2"], "--hostfile <FILE>"),
    ] {
        let job = hosts(&[&words[..], &["--per-host", "1", "--print-hosts"]].concat());
        job.with(2, &[why]);
        assert_eq!(job.out, "", "{words:?}");
    }
}

#[test]
fn ranks_of_all_hosts_exchange_values_and_know_their_node() {
    let folder = Folder::new("exchange");
    let starter = folder.starter(LIKE_SSH);
    let job = ended(role(&starter, "h1:2,h2:2,h3", &[], "exchange"));
    job.with(0, &[]);
    for (rank, node) in [
        (0, "[0, 1]"),
        (1, "[0, 1]"),
        (2, "[2, 3]"),
        (3, "[2, 3]"),
        (4, "[4]"),
    ] {
        job.says_once(&format!("rank {rank} of 5 (pmi-1), node {node}"));
    }
}

#[test]
fn a_rank_sees_its_place_and_the_same_variables_on_all_hosts() {
    let folder = Folder::new("place");
    let starter = folder.starter(LIKE_SSH);
    let says = "echo $PMI_RANK of $PMI_SIZE, $MPI_LOCALRANKID of $MPI_LOCALNRANKS, $TEST_A$TEST_B$SSH_X$TEST_HOST, $PWD";
    let options = ["--label", "--env", "TEST_B=b", "--wdir", "/"];
    let mut command = script(&starter, "h1:2,localhost", &options, says);
    command.env("TEST_A", "a").env("SSH_X", "x");
    let job = ended(command);
    job.with(2, &["never joined the job"]);
    for line in [
        "[0@h1] 0 of 3, 0 of 2, ab, /\n",
        "[1@h1] 1 of 3, 1 of 2, ab, /\n",
        "[2@localhost] 2 of 3, 0 of 1, ab, /\n",
    ] {
        job.says_once(line);
    }
    let mut command = script(
        &starter,
        "h1",
        &["--no-env", "--env", "TEST_A"],
        "env | sort",
    );
    command.env("TEST_A", "a").env("TEST_C", "c");
    let job = ended(command);
    assert!(job.out.contains("\nTEST_A=a\n"), "{}", job.out);
    assert!(
        job.out.contains("PATH=") && !job.out.contains("TEST_C"),
        "{}",
        job.out
    );
}

#[test]
fn the_ranks_of_each_host_are_bound_to_its_first_cpus() {
    let folder = Folder::new("bind");
    let starter = folder.starter(LIKE_SSH);
    let says = "grep Cpus_allowed_list /proc/self/status";
    let job = ended(script(&starter, "h1,h2", &["--bind", "core"], says));
    let cpus: Vec<&str> = job.out.lines().collect();
    assert_eq!(cpus.len(), 2, "{}{}", job.out, job.err);
    assert_eq!(cpus[0], cpus[1]);
    let cpu = cpus[0].split_whitespace().last().unwrap();
    assert!(cpu.parse::<u32>().is_ok(), "one CPU: {cpu}");
}

#[test]
fn a_variable_that_the_user_sets_replaces_that_of_the_host() {
    let folder = Folder::new("variable");
    let starter = folder.starter(&format!("export TMPDIR=/of-host HOST=$host\n{LIKE_SSH}"));
    let says = "echo $TMPDIR on $HOST";
    let set = ["--env", "TMPDIR=/of-user"];
    let job = ended(script(&starter, "h1", &set, says));
    assert_eq!(job.out, "/of-user on h1\n", "{}", job.err);
    let job = ended(script(&starter, "h1", &["--no-env"], says));
    assert_eq!(job.out, "/of-host on h1\n", "{}", job.err);
}

#[test]
fn input_of_any_size_reaches_rank_0_and_its_output_comes_back() {
    let folder = Folder::new("input");
    let starter = folder.starter(LIKE_SSH);
    let data: Vec<u8> = (0_u32..700_000)
        .flat_map(|word| (word.wrapping_mul(2_654_435_761)).to_ne_bytes())
        .collect();
    fs::write(folder.path.join("data"), &data).unwrap();
    let cat = "[ $PMI_RANK = 0 ] && exec cat; exec cat >&2";
    let mut command = script(&starter, "h1,h2", &[], cat);
    command.stdin(File::open(folder.path.join("data")).unwrap());
    let output = command.output().unwrap();
    assert!(output.stdout == data, "{} bytes", output.stdout.len());
    // By a pipe, with a rank that stops reading.
    let mut command = script(
        &starter,
        "h2,h1",
        &[],
        "[ $PMI_RANK = 0 ] && head -c 9; exit 0",
    );
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    let writer = std::thread::spawn(move || input.write_all(&data).is_err());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.stdout.len(), 9);
    assert!(writer.join().unwrap(), "all input was taken");
}

#[test]
fn output_is_complete_however_slowly_it_is_read() {
    let folder = Folder::new("output");
    let starter = folder.starter(LIKE_SSH);
    let command = script(&starter, "h1,h2:2", &[], "yes $PMI_RANK | head -c 1000000");
    let job = ended(command);
    assert_eq!(job.out.len(), 3_000_000);
    for rank in ["0", "1", "2"] {
        assert_eq!(job.out.matches(rank).count(), 500_000, "{rank}");
    }
}

#[test]
fn a_closed_output_ends_the_job_like_sigpipe() {
    let folder = Folder::new("pipe");
    let starter = folder.starter(LIKE_SSH);
    let mut command = script(&starter, "h1,h2", &[], "exec yes");
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(141));
}
