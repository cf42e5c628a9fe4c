//! Figures of one-sided communication: the three synchronizations, and which of them to take.

use super::{
    FigureFile,
    flow::FlowChart,
    sequence::SequenceDiagram,
    svg::{FillShade, SvgPicture},
};

pub(super) fn all() -> Vec<FigureFile> {
    vec![
        FigureFile {
            name: "window_pscw",
            picture: post_start_complete_wait(),
        },
        FigureFile {
            name: "window_fence",
            picture: fence(),
        },
        FigureFile {
            name: "window_lock",
            picture: lock(),
        },
        FigureFile {
            name: "window_choice",
            picture: choice(),
        },
    ]
}

fn post_start_complete_wait() -> SvgPicture {
    let title = "Post, start, complete, wait: the target opens its memory, the origin puts and closes its access";
    SequenceDiagram::new(title, &["origin", "target"], 9, 210)
        .call(1, 1, "post(&[origin])")
        .bar(1, (1, 16), FillShade::Green)
        .remark(8, 1, "the origin may write here")
        .call(1, 0, "start(&[target])")
        .remark(3, 0, "waits for the post")
        .note(1, 0, (2, 4), "posted")
        .bar(0, (4, 13), FillShade::Blue)
        .call(6, 0, "access.put(…)")
        .message(0, 1, (6, 8), "data")
        .call(9, 0, "access.put(…)")
        .message(0, 1, (9, 11), "data")
        .call(13, 0, "access.complete()")
        .note(0, 1, (13, 15), "complete")
        .call(13, 1, "exposure.wait()")
        .remark(16, 1, "its memory, as a slice")
        .finish()
}

fn fence() -> SvgPicture {
    let title = "Fences: between two fences each rank may put to all ranks, and each fence waits for all of them";
    SequenceDiagram::new(title, &["rank 0", "rank 1", "rank 2"], 9, 190)
        .call(2, 0, "window.fence()")
        .across(2)
        .bar(0, (2, 13), FillShade::Blue)
        .bar(1, (2, 13), FillShade::Blue)
        .bar(2, (2, 13), FillShade::Blue)
        .call(4, 0, "put(1, …)")
        .message(0, 1, (4, 6), "data")
        .call(6, 2, "put(1, …)")
        .message(2, 1, (6, 8), "data")
        .message(1, 2, (9, 11), "data")
        .call(13, 0, "fence.end()")
        .across(13)
        .remark(15, 0, "its memory, as a slice")
        .remark(2, 2, "all ranks have come")
        .remark(13, 2, "all data have arrived")
        .finish()
}

fn lock() -> SvgPicture {
    let title = "A lock for the whole program: puts, a flush, and an update that signals the owner, which calls nothing";
    SequenceDiagram::new(title, &["origin", "owner"], 10, 210)
        .call(1, 0, "lock_all()")
        .remark(2, 1, "computes, and calls nothing")
        .bar(1, (1, 19), FillShade::Gray)
        .bar(0, (1, 18), FillShade::Blue)
        .call(3, 0, "put(owner, …)")
        .message(0, 1, (3, 5), "lock, then data")
        .call(6, 0, "put(owner, …)")
        .message(0, 1, (6, 8), "data")
        .call(9, 0, "flush(owner)")
        .note(1, 0, (10, 12), "all is there")
        .call(14, 0, "accumulate(…)")
        .message(0, 1, (14, 16), "signal")
        .call(16, 1, "shared().load(…)")
        .remark(18, 1, "sees signal and data")
        .call(18, 0, "unlock()")
        .finish()
}

fn choice() -> SvgPicture {
    let size = (230, 54);
    FlowChart::new("Which synchronization a window needs", 760, 330)
        .node(
            (20, 20),
            size,
            FillShade::Gray,
            &["Does the owner know when", "others access its memory?"],
        )
        .arrow(&[(250, 47), (500, 47)])
        .centered((375, 40), "no: it has other work")
        .node((500, 20), (240, 54), FillShade::Green, &["locks"])
        .centered((620, 92), "counters, queues, tables")
        .arrow(&[(135, 74), (135, 130)])
        .text((145, 108), "yes")
        .node(
            (20, 130),
            size,
            FillShade::Gray,
            &["Does it know which ranks", "will access its memory?"],
        )
        .arrow(&[(250, 157), (500, 157)])
        .centered((375, 150), "no, or all of them will")
        .node((500, 130), (240, 54), FillShade::Orange, &["fences"])
        .centered((620, 202), "all ranks exchange with all")
        .arrow(&[(135, 184), (135, 240)])
        .text((145, 218), "yes, a few")
        .node(
            (20, 240),
            size,
            FillShade::Blue,
            &["post, start,", "complete, wait"],
        )
        .text((266, 272), "ghost layers, pipelines: most simulations")
        .finish()
}
