//! What the system says of threads: whether the application has others, their names, and their processor time.

use std::{fmt::Display, fs, io};

use ripstop_fabric::registry;

/// Name prefixes of the runtime's own threads, and of those that io_uring adds. Drivers have others.
const OURS: [&str; 2] = ["ripstop-", "iou-"];

fn is_ours(name: &str) -> bool {
    let mut ours = OURS.into_iter().chain(registry::thread_prefixes());
    ours.any(|ours| name.starts_with(ours))
}

/// Returns true if the application has no thread besides the calling one. Returns false if that is not known.
pub(crate) fn is_alone() -> bool {
    others().is_ok_and(|others| others.is_empty())
}

/// Returns the processor time of a thread of a process, which may be `self`, in nanoseconds; `None` if the system does not report
/// it.
pub(crate) fn processor_nanos(process: impl Display, thread: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{process}/task/{thread}/schedstat")).ok()?;
    stat.split(' ').next()?.parse().ok()
}

/// Returns the number of the first thread of a process with this name.
pub(crate) fn thread_named(pid: u32, name: &str) -> Option<u32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    threads.flatten().find_map(|thread| {
        let its = fs::read_to_string(thread.path().join("comm")).ok()?;
        let is_it = its.trim_end() == name;
        is_it
            .then(|| thread.file_name().to_str()?.parse().ok())
            .flatten()
    })
}

/// Returns the ids of the application's other threads.
fn others() -> io::Result<Vec<String>> {
    let me = rustix::thread::gettid().as_raw_nonzero().to_string();
    let mut others = Vec::new();
    for entry in fs::read_dir("/proc/self/task")? {
        let number = entry?.file_name().into_string().unwrap_or_default();
        if number == me {
            continue;
        }
        let name = fs::read_to_string(format!("/proc/self/task/{number}/comm")).unwrap_or_default();
        if !is_ours(&name) {
            others.push(number);
        }
    }
    Ok(others)
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, thread};

    use super::others;

    #[test]
    fn threads_of_this_library_do_not_count() {
        for (name, counts) in [
            ("ripstop-0", false),
            ("verbs-close", false),
            ("named", true),
        ] {
            let (stop, stopped) = mpsc::channel::<()>();
            let (started, start) = mpsc::channel();
            let thread = thread::Builder::new().name(name.to_owned());
            let thread = thread.spawn(move || {
                let number = rustix::thread::gettid().as_raw_nonzero();
                started.send(number.to_string()).expect("the test listens");
                while stopped.recv().is_ok() {}
            });
            let number = start.recv().expect("a thread");
            let others = others().expect("a list of threads");
            assert_eq!(others.contains(&number), counts, "{name}");
            drop(stop);
            thread.expect("a thread").join().expect("a good end");
        }
    }
}
