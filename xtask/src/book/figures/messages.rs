//! Figures of messages: what owns a buffer, what deadlocks, what ends an operation, and how bytes travel.

use super::{
    FigureFile,
    flow::FlowChart,
    sequence::SequenceDiagram,
    svg::{FillShade, SvgPicture},
};

pub(super) fn all() -> Vec<FigureFile> {
    vec![
        FigureFile {
            name: "buffer_moves",
            picture: buffer_moves(),
        },
        FigureFile {
            name: "deadlock",
            picture: deadlock(),
        },
        FigureFile {
            name: "no_deadlock",
            picture: no_deadlock(),
        },
        FigureFile {
            name: "operation_states",
            picture: operation_states(),
        },
        FigureFile {
            name: "eager",
            picture: eager(),
        },
        FigureFile {
            name: "rendezvous",
            picture: rendezvous(),
        },
        FigureFile {
            name: "matching_order",
            picture: matching_order(),
        },
    ]
}

fn buffer_moves() -> SvgPicture {
    let size = (150, 56);
    FlowChart::new(
        "A vector moves into the operation and comes back from it",
        760,
        214,
    )
    .heading((20, 28), "your code")
    .heading((300, 28), "the operation")
    .heading((580, 28), "your code")
    .node((20, 50), size, FillShade::Blue, &["Vec<f64>"])
    .arrow(&[(170, 78), (300, 78)])
    .centered((235, 70), "send(v)")
    .node((300, 50), size, FillShade::Blue, &["Vec<f64>"])
    .arrow(&[(450, 78), (580, 78)])
    .centered((515, 70), ".await?")
    .node((580, 50), size, FillShade::Blue, &["Vec<f64>"])
    .node(
        (300, 146),
        size,
        FillShade::Gray,
        &["network, or", "the other rank"],
    )
    .dashed(&[(375, 106), (375, 146)])
    .text((385, 132), "reads the vector")
    .centered((95, 132), "no name for it here")
    .centered((95, 150), "while it travels:")
    .centered((95, 168), "no code can change it")
    .centered((655, 132), "the same memory,")
    .centered((655, 150), "never copied to keep it safe")
    .finish()
}

fn deadlock() -> SvgPicture {
    let title = "Both ranks await a long send before they receive: each waits for the other";
    SequenceDiagram::new(title, &["rank 0", "rank 1"], 6, 230)
        .call(1, 0, "send(1, …).await?")
        .call(1, 1, "send(0, …).await?")
        .bar(0, (1, 10), FillShade::Red)
        .bar(1, (1, 10), FillShade::Red)
        .note(0, 1, (2, 4), "I have 1 MiB for you")
        .note(1, 0, (5, 7), "I have 1 MiB for you")
        .remark(7, 0, "waits until rank 1 receives")
        .remark(4, 1, "waits until rank 0 receives")
        .remark(10, 0, "never comes to recv")
        .remark(10, 1, "never comes to recv")
        .finish()
}

fn no_deadlock() -> SvgPicture {
    let title =
        "Both ranks start their receive and their send, and then await both: all goes on at once";
    SequenceDiagram::new(title, &["rank 0", "rank 1"], 6, 230)
        .call(1, 0, "let inbox = recv(1, …)")
        .call(1, 1, "let inbox = recv(0, …)")
        .call(3, 0, "let outbox = send(1, …)")
        .call(3, 1, "let outbox = send(0, …)")
        .bar(0, (3, 10), FillShade::Green)
        .bar(1, (3, 10), FillShade::Green)
        .message(0, 1, (3, 7), "both messages")
        .message(1, 0, (3, 7), "")
        .remark(6, 0, "computes meanwhile")
        .remark(6, 1, "computes meanwhile")
        .call(10, 0, "await both")
        .call(10, 1, "await both")
        .finish()
}

fn operation_states() -> SvgPicture {
    let (step, end) = ((150, 50), (194, 60));
    FlowChart::new("The states of a send or a receive, and what ends it early", 850, 290)
        .node((20, 30), step, FillShade::Blue, &["started"])
        .arrow(&[(170, 55), (340, 55)])
        .centered((255, 47), "the other side came")
        .node((340, 30), step, FillShade::Blue, &["matched"])
        .arrow(&[(490, 55), (680, 55)])
        .centered((585, 47), "the bytes are there")
        .node((680, 30), step, FillShade::Green, &["done"])
        .text((680, 98), "gives data and buffer")
        .arrow(&[(50, 80), (50, 150)])
        .text((58, 142), "you drop it")
        .node((20, 150), end, FillShade::Gray, &["a receive is taken back;", "a send goes on"])
        .arrow(&[(120, 80), (120, 114), (250, 114), (250, 150)])
        .text((258, 142), "its time is over")
        .node((222, 150), end, FillShade::Orange, &["TimedOut,", "with the buffer"])
        .arrow(&[(380, 80), (380, 114), (450, 114), (450, 150)])
        .text((458, 142), "a rank dies")
        .node((424, 150), end, FillShade::Red, &["PeerFailed,", "with the buffer"])
        .arrow(&[(450, 80), (450, 98), (650, 98), (650, 150)])
        .text((658, 142), "length or type is wrong")
        .node((626, 150), end, FillShade::Red, &["Truncated, TypeMismatch,", "with the buffer"])
        .text((20, 246), "A receive that is taken back loses no message: one that had arrived returns to its place in the queue.")
        .text((20, 268), "After a wrong length or type the message stays in the queue, and can be received again.")
        .finish()
}

fn eager() -> SvgPicture {
    let title =
        "A short message leaves at once, and waits at the receiver if no receive is there yet";
    SequenceDiagram::new(title, &["sender", "receiver"], 5, 220)
        .call(1, 0, "send(…)")
        .message(0, 1, (1, 4), "header and bytes")
        .bar(0, (1, 2), FillShade::Blue)
        .remark(3, 0, "the buffer is free")
        .remark(4, 1, "stored as unexpected,")
        .remark(5, 1, "if no receive fits")
        .bar(1, (4, 8), FillShade::Orange)
        .call(8, 1, "recv(…)")
        .remark(9, 1, "takes a copy from there")
        .finish()
}

fn rendezvous() -> SvgPicture {
    let title = "A long message is offered; the receiver reads it from the sender's memory once a receive fits";
    SequenceDiagram::new(title, &["sender", "receiver"], 9, 220)
        .call(1, 0, "send(…)")
        .bar(0, (1, 15), FillShade::Blue)
        .note(0, 1, (1, 3), "offer: length, key to memory")
        .call(5, 1, "recv(…): the offer fits")
        .bar(1, (5, 12), FillShade::Blue)
        .note(1, 0, (5, 7), "get")
        .message(0, 1, (9, 12), "bytes, straight into the buffer")
        .remark(13, 1, "the message is there")
        .note(1, 0, (13, 15), "I have them")
        .remark(16, 0, "the buffer is free")
        .finish()
}

fn matching_order() -> SvgPicture {
    let size = (150, 34);
    FlowChart::new("Messages of one sender and the receives that take them", 720, 236)
        .heading((20, 28), "sent by rank 0, in order")
        .heading((430, 28), "receives of rank 1, in order")
        .node((20, 46), size, FillShade::Blue, &["1st: tag 7"])
        .node((20, 96), size, FillShade::Orange, &["2nd: tag 8"])
        .node((20, 146), size, FillShade::Blue, &["3rd: tag 7"])
        .code_node((430, 46), (260, 34), FillShade::Orange, &["recv(0, 8)"])
        .code_node((430, 96), (260, 34), FillShade::Blue, &["recv(Source::Any, 7)"])
        .code_node((430, 146), (260, 34), FillShade::Blue, &["recv(0, Tag::Any)"])
        .arrow(&[(170, 63), (430, 113)])
        .arrow(&[(170, 113), (430, 63)])
        .arrow(&[(170, 163), (430, 163)])
        .text((20, 212), "Each message goes to the first receive that it fits, and messages of one sender match in their order.")
        .finish()
}
