//! Ways to wait for a runtime, other than its own `block_on`. Two ranks; a step is 800 bytes around the ring and an
//! `all_reduce` of one number.
//!
//! `cargo bench --features tokio --bench driving`. The ways take turns; the output has medians, and ratios of them. A number
//! after `--` sets the rounds, 7 by default.
#![expect(clippy::print_stdout, reason = "what it measures is what it prints")]
#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
#![expect(clippy::unwrap_used, reason = "two ranks of one process do not fail")]

use std::{
    pin::pin,
    sync::{Arc, Mutex},
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
    time::Instant,
};

use ripstop::{
    __private::{on_tokio, run_ranks},
    Collectives, Comm, Runtime, Sum,
};
use tokio::runtime::Builder;

const STEPS: u32 = 2_000;
const WARM_UP: u32 = 200;

struct Way {
    name: &'static str,
    progress: &'static str,
    /// Returns the microseconds of a step.
    run: fn(&Runtime) -> f64,
}

const WAYS: [Way; 7] = [
    Way {
        name: "#[ripstop::main]",
        progress: "thread",
        run: |runtime| runtime.block_on(steps(runtime.world())),
    },
    Way {
        name: "#[ripstop::main(tokio)]",
        progress: "thread",
        run: |runtime| {
            let world = runtime.world();
            runtime.block_on(on_tokio!(world, steps))
        },
    },
    Way {
        name: "drive_on_tokio, #[tokio::main]",
        progress: "tokio",
        run: |runtime| {
            Builder::new_multi_thread()
                .enable_all()
                .build()
                .unwrap()
                .block_on(driven(runtime))
        },
    },
    Way {
        name: "drive_on_tokio, in a spawned task",
        progress: "tokio",
        run: |runtime| {
            let tokio = Builder::new_multi_thread().enable_all().build().unwrap();
            tokio.spawn(runtime.drive_on_tokio());
            let task = tokio.spawn(steps(runtime.world()));
            tokio.block_on(task).unwrap()
        },
    },
    Way {
        name: "drive_on_tokio, current_thread",
        progress: "tokio",
        run: |runtime| {
            Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap()
                .block_on(driven(runtime))
        },
    },
    Way {
        name: "#[tokio::main], by the agent",
        progress: "thread",
        run: |runtime| {
            Builder::new_multi_thread()
                .enable_all()
                .build()
                .unwrap()
                .block_on(steps(runtime.world()))
        },
    },
    Way {
        name: "a parker, by the agent",
        progress: "thread",
        run: |runtime| parked(steps(runtime.world())),
    },
];

fn main() {
    let rounds = std::env::args().find_map(|word| word.parse().ok());
    let rounds: u32 = rounds.unwrap_or(7);
    for reactor in ["uring", "epoll"] {
        let mut figures = WAYS.map(|_| Vec::new());
        for _ in 0..rounds {
            for (way, figures) in WAYS.iter().zip(&mut figures) {
                figures.push(measure(way, reactor));
            }
        }
        println!("RIPSTOP_REACTOR={reactor}: µs a step, and how many times the first");
        let medians = figures.map(median);
        for (way, median) in WAYS.iter().zip(medians) {
            println!("  {:36} {median:8.2} {:8.2}", way.name, median / medians[0]);
        }
    }
}

fn measure(way: &'static Way, reactor: &'static str) -> f64 {
    let took = Arc::new(Mutex::new(0.0));
    let slowest = Arc::clone(&took);
    run_ranks(2, move |_, builder| {
        let builder = builder.set("RIPSTOP_PROGRESS", way.progress);
        let runtime = builder.set("RIPSTOP_REACTOR", reactor).init().unwrap();
        let mine = (way.run)(&runtime);
        let mut slowest = slowest.lock().unwrap();
        *slowest = mine.max(*slowest);
    });
    *took.lock().unwrap()
}

async fn driven(runtime: &Runtime) -> f64 {
    let driver = tokio::spawn(runtime.drive_on_tokio());
    let took = steps(runtime.world()).await;
    driver.abort();
    took
}

async fn steps(world: Comm) -> f64 {
    let (size, me) = (world.size(), world.rank());
    let (left, right) = ((me + size - 1) % size, (me + 1) % size);
    let (mut out, mut into) = (vec![1.0_f64; 100], vec![0.0_f64; 100]);
    let mut begin = Instant::now();
    for step in 0..WARM_UP + STEPS {
        if step == WARM_UP {
            begin = Instant::now();
        }
        let inbox = world.recv_into(left, 1, into);
        out = world.send(right, 1, out).await.unwrap();
        into = inbox.await.unwrap().0;
        assert_eq!(world.all_reduce([1_u64], Sum).await.unwrap(), [size as u64]);
    }
    begin.elapsed().as_secs_f64() * 1e6 / f64::from(STEPS)
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

/// Waits like small executors: a thread that parks.
fn parked<F: Future>(future: F) -> F::Output {
    struct Unpark(Thread);

    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let (mut future, mut cx) = (pin!(future), Context::from_waker(&waker));
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return output;
        }
        thread::park();
    }
}
