//! Figures of the runtime: ranks, agents, the way of bytes, layers, failures.

use super::{
    FigureFile,
    flow::FlowChart,
    gantt::{self, GanttGroup, GanttRow},
    svg::{FillShade, SvgPicture},
};

pub(super) fn all() -> Vec<FigureFile> {
    vec![
        FigureFile {
            name: "ranks",
            picture: ranks(),
        },
        FigureFile {
            name: "progress",
            picture: gantt::draw(
                "A transfer beside a computation: without an agent, with an agent, by an adapter",
                14,
                PROGRESS,
            ),
        },
        FigureFile {
            name: "node",
            picture: node(),
        },
        FigureFile {
            name: "launch_choice",
            picture: launch_choice(),
        },
        FigureFile {
            name: "network_choice",
            picture: network_choice(),
        },
        FigureFile {
            name: "recovery",
            picture: gantt::draw(
                "From the death of a rank to a smaller communicator",
                16,
                RECOVERY,
            ),
        },
        FigureFile {
            name: "connections",
            picture: gantt::draw(
                "The first messages of two ranks, by when they connect",
                15,
                CONNECTIONS,
            ),
        },
        FigureFile {
            name: "layers",
            picture: layers(),
        },
        FigureFile {
            name: "transform_schedule",
            picture: gantt::draw(
                "The schedule of a Fourier transform with three pieces",
                18,
                TRANSFORM,
            ),
        },
    ]
}

fn ranks() -> SvgPicture {
    let mut chart = FlowChart::new(
        "One program, four ranks, each with its own memory",
        760,
        260,
    )
    .code_node((300, 20), (160, 44), FillShade::Gray, &["your program"])
    .text((476, 47), "ripstop run -n 4 PROGRAM");
    let shades = super::svg::OF_RANKS.iter().zip(0..);
    for (&shade, rank) in shades {
        let left = 20 + rank * 185;
        let (name, memory) = (format!("rank {rank}"), format!("cells of rank {rank}"));
        chart = chart
            .arrow(&[(380, 64), (left + 80, 104)])
            .area((left, 104), (160, 110), &name)
            .node(
                (left + 12, 136),
                (136, 34),
                FillShade::Gray,
                &["the same code"],
            )
            .node((left + 12, 174), (136, 34), shade, &[&memory]);
        if rank < 3 {
            chart = chart.arrow(&[(left + 160, 150), (left + 185, 150)]);
        }
    }
    chart
        .centered(
            (380, 240),
            "A rank reads no memory of another one: ranks send messages, or open windows.",
        )
        .finish()
}

const WORK: FillShade = FillShade::Blue;
const MOVE: FillShade = FillShade::Green;
const WAIT: FillShade = FillShade::Red;

const PROGRESS: &[GanttGroup] = &[
    GanttGroup {
        heading: "RIPSTOP_PROGRESS=inline: bytes move only while the rank awaits",
        rows: &[
            GanttRow {
                name: "application",
                spans: &[
                    (0, 7, WORK, "computes"),
                    (7, 10, WAIT, "awaits"),
                    (10, 13, WORK, "goes on"),
                ],
            },
            GanttRow {
                name: "its own thread",
                spans: &[(7, 10, MOVE, "copies")],
            },
        ],
        marks: &[],
    },
    GanttGroup {
        heading: "The default: an agent looks after 1 to 2 ms, and copies on a free core",
        rows: &[
            GanttRow {
                name: "application",
                spans: &[(0, 7, WORK, "computes"), (7, 13, WORK, "goes on at once")],
            },
            GanttRow {
                name: "agent",
                spans: &[
                    (0, 2, FillShade::Empty, "sleeps"),
                    (2, 5, MOVE, "copies"),
                    (5, 13, FillShade::Empty, "sleeps"),
                ],
            },
        ],
        marks: &[],
    },
    GanttGroup {
        heading: "An adapter that reads and writes memory by itself: no core is needed",
        rows: &[
            GanttRow {
                name: "application",
                spans: &[(0, 7, WORK, "computes"), (7, 13, WORK, "goes on at once")],
            },
            GanttRow {
                name: "adapter",
                spans: &[(0, 4, MOVE, "moves the bytes")],
            },
        ],
        marks: &[],
    },
];

const RECOVERY: &[GanttGroup] = &[GanttGroup {
    heading: "",
    rows: &[
        GanttRow {
            name: "rank 0",
            spans: &[
                (0, 6, WORK, "step"),
                (6, 8, WAIT, "Revoked"),
                (8, 10, MOVE, "agree"),
                (10, 12, MOVE, "shrink"),
                (12, 16, WORK, "repeats the step"),
            ],
        },
        GanttRow {
            name: "rank 1",
            spans: &[
                (0, 3, WORK, "step"),
                (3, 8, WAIT, "waits for rank 2"),
                (8, 10, MOVE, "agree"),
                (10, 12, MOVE, "shrink"),
                (12, 16, WORK, "repeats the step"),
            ],
        },
        GanttRow {
            name: "rank 2",
            spans: &[
                (0, 3, WORK, "step"),
                (3, 6, WAIT, "PeerFailed"),
                (6, 8, MOVE, "revoke"),
                (8, 10, MOVE, "agree"),
                (10, 12, MOVE, "shrink"),
                (12, 16, WORK, "repeats the step"),
            ],
        },
        GanttRow {
            name: "rank 3",
            spans: &[(0, 2, WORK, "step")],
        },
    ],
    marks: &[(2, "rank 3 dies"), (8, "revoked on all"), (12, "3 ranks")],
}];

const CONNECTIONS: &[GanttGroup] = &[
    GanttGroup {
        heading: "all-to-all: the start takes longer, and no message waits",
        rows: &[GanttRow {
            name: "the ranks",
            spans: &[
                (0, 2, FillShade::Gray, "start"),
                (2, 6, WAIT, "connect all"),
                (6, 10, WORK, "compute"),
                (10, 11, MOVE, "1"),
                (11, 12, MOVE, "2"),
                (12, 13, MOVE, "3"),
            ],
        }],
        marks: &[],
    },
    GanttGroup {
        heading: "on-demand: the first message of a pair waits",
        rows: &[GanttRow {
            name: "the ranks",
            spans: &[
                (0, 2, FillShade::Gray, "start"),
                (2, 6, WORK, "compute"),
                (6, 9, WAIT, "connect"),
                (9, 10, MOVE, "1"),
                (10, 11, MOVE, "2"),
                (11, 12, MOVE, "3"),
            ],
        }],
        marks: &[],
    },
    GanttGroup {
        heading: "hybrid: datagrams (orange) until the pair has exchanged sixteen messages",
        rows: &[
            GanttRow {
                name: "the ranks",
                spans: &[
                    (0, 2, FillShade::Gray, "start"),
                    (2, 6, WORK, "compute"),
                    (6, 7, FillShade::Orange, "1"),
                    (7, 8, FillShade::Orange, "2"),
                    (8, 9, FillShade::Orange, "…"),
                    (9, 10, FillShade::Orange, "16"),
                    (10, 11, FillShade::Orange, "17"),
                    (11, 12, FillShade::Orange, "18"),
                    (12, 13, FillShade::Orange, "19"),
                    (13, 14, MOVE, "20"),
                ],
            },
            GanttRow {
                name: "their adapters",
                spans: &[(10, 13, FillShade::Gray, "connect")],
            },
        ],
        marks: &[],
    },
];

const TRANSFORM: &[GanttGroup] = &[GanttGroup {
    heading: "A piece is transformed while the pieces before it change places",
    rows: &[
        GanttRow {
            name: "the rank",
            spans: &[
                (0, 2, FillShade::Blue, "x 0"),
                (2, 4, FillShade::Orange, "x 1"),
                (4, 6, FillShade::Blue, "y 0"),
                (6, 8, FillShade::Green, "x 2"),
                (8, 10, FillShade::Orange, "y 1"),
                (10, 12, FillShade::Blue, "z 0"),
                (12, 14, FillShade::Green, "y 2"),
                (14, 16, FillShade::Orange, "z 1"),
                (16, 18, FillShade::Green, "z 2"),
            ],
        },
        GanttRow {
            name: "in the row",
            spans: &[
                (2, 4, FillShade::Blue, "row 0"),
                (4, 6, FillShade::Orange, "row 1"),
                (8, 10, FillShade::Green, "row 2"),
            ],
        },
        GanttRow {
            name: "in the column",
            spans: &[
                (6, 8, FillShade::Blue, "column 0"),
                (10, 12, FillShade::Orange, "column 1"),
                (14, 16, FillShade::Green, "column 2"),
            ],
        },
    ],
    marks: &[],
}];

fn node() -> SvgPicture {
    let mut chart = FlowChart::new(
        "A node of eight cores with four ranks, and a core for each agent",
        760,
        260,
    )
    .area(
        (16, 16),
        (728, 150),
        "node: --ntasks-per-node=4 --cpus-per-task=2",
    );
    let shades = super::svg::OF_RANKS.iter().zip(0..);
    for (&shade, rank) in shades {
        let left = 32 + rank * 178;
        let name = format!("rank {rank}");
        chart = chart
            .node((left, 56), (80, 60), shade, &[&name, "computes"])
            .node((left + 84, 56), (80, 60), FillShade::Gray, &["its agent"])
            .centered((left + 40, 140), &format!("core {}", 2 * rank))
            .centered((left + 124, 140), &format!("core {}", 2 * rank + 1));
    }
    chart
        .text(
            (20, 194),
            "The agent sleeps while its rank awaits, and moves messages while its rank computes.",
        )
        .text(
            (20, 216),
            "With one core for a rank, the agent takes its time from the computation.",
        )
        .text(
            (20, 238),
            "Ranks of a node share memory; messages to other nodes go through the network.",
        )
        .finish()
}

fn launch_choice() -> SvgPicture {
    let question = (240, 44);
    FlowChart::new("Which command starts the ranks", 780, 330)
        .node((20, 20), question, FillShade::Gray, &["One machine?"])
        .arrow(&[(260, 42), (340, 42)])
        .text((282, 36), "yes")
        .code_node(
            (340, 20),
            (420, 44),
            FillShade::Green,
            &["ripstop run -n 4 PROGRAM"],
        )
        .arrow(&[(140, 64), (140, 96)])
        .text((150, 85), "no")
        .node(
            (20, 96),
            question,
            FillShade::Gray,
            &["A batch system with srun?"],
        )
        .arrow(&[(260, 118), (340, 118)])
        .text((282, 112), "yes")
        .code_node(
            (340, 96),
            (420, 44),
            FillShade::Green,
            &["srun --mpi=pmi2 --cpus-per-task=2 PROGRAM"],
        )
        .arrow(&[(140, 140), (140, 172)])
        .text((150, 161), "no")
        .node(
            (20, 172),
            question,
            FillShade::Gray,
            &["MPICH, Open MPI or Flux?"],
        )
        .arrow(&[(260, 194), (340, 194)])
        .text((282, 188), "yes")
        .code_node(
            (340, 172),
            (420, 44),
            FillShade::Green,
            &["mpiexec.hydra, mpirun, flux run -n 4 …"],
        )
        .arrow(&[(140, 216), (140, 248)])
        .text((150, 237), "no")
        .node(
            (20, 248),
            question,
            FillShade::Gray,
            &["Hosts that ssh reaches"],
        )
        .arrow(&[(260, 270), (340, 270)])
        .code_node(
            (340, 248),
            (420, 44),
            FillShade::Green,
            &["ripstop run --hosts a:4,b:4 PROGRAM"],
        )
        .text(
            (20, 316),
            "The same binary runs under all of them. The network is chosen when the job starts.",
        )
        .finish()
}

fn layers() -> SvgPicture {
    let (left, width) = (20, 560);
    FlowChart::new("The layers of Ripstop and the threads of a rank", 800, 330)
        .node((left, 20), (width, 44), FillShade::Blue, &["your program: async tasks"])
        .node((left, 72), (276, 44), FillShade::Green, &["collectives: all_reduce, …"])
        .node((left + 284, 72), (276, 44), FillShade::Green, &["rma: windows and epochs"])
        .node((left, 124), (width, 44), FillShade::Orange, &["rt: messages, matching, operations, the executor"])
        .node((left, 176), (width, 44), FillShade::Purple, &["fabric: one contract for all drivers"])
        .node((left, 228), (106, 44), FillShade::Gray, &["shm"])
        .node((left + 113, 228), (107, 44), FillShade::Gray, &["verbs"])
        .node((left + 227, 228), (106, 44), FillShade::Gray, &["portals"])
        .node((left + 340, 228), (107, 44), FillShade::Gray, &["tcp"])
        .node((left + 454, 228), (106, 44), FillShade::Gray, &["simulated"])
        .text((left, 300), "memory, sockets and adapters of the operating system; no MPI library and no C compiler")
        .heading((610, 46), "threads of a rank")
        .text((610, 76), "the thread in block_on:")
        .text((610, 94), "computes and awaits")
        .text((610, 130), "the agent: makes")
        .text((610, 148), "progress while that")
        .text((610, 166), "thread computes")
        .text((610, 202), "threads of your own:")
        .text((610, 220), "may send and receive")
        .finish()
}

fn network_choice() -> SvgPicture {
    const QUESTIONS: [(&str, &str); 4] = [
        ("All ranks on one node?", "shared memory: nothing to set"),
        (
            "InfiniBand or RoCE on all nodes?",
            "taken by itself, or RIPSTOP_FABRIC=shm+verbs",
        ),
        (
            "A Portals 4 library (BXI)?",
            "taken by itself, or RIPSTOP_FABRIC=shm+portals",
        ),
        (
            "Any IP network?",
            "taken by itself, or RIPSTOP_FABRIC=shm+tcp",
        ),
    ];
    let mut chart = FlowChart::new("Which network carries the messages", 780, 330);
    for ((question, answer), row) in QUESTIONS.iter().zip(0..) {
        let (top, middle) = (20 + 76 * row, 42 + 76 * row);
        chart = chart
            .node((20, top), (260, 44), FillShade::Gray, &[question])
            .arrow(&[(280, middle), (340, middle)])
            .text((298, middle - 6), "yes")
            .code_node((340, top), (420, 44), FillShade::Green, &[answer]);
        if row < 3 {
            chart = chart
                .arrow(&[(150, top + 44), (150, top + 76)])
                .text((160, top + 65), "no");
        }
    }
    chart
        .text(
            (20, 316),
            "Ethernet, Slingshot, Omni-Path and EFA all carry TCP. There is no driver for the latter three.",
        )
        .finish()
}
