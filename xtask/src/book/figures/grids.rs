//! Figures of grids: rows and columns of ranks, ghosts, and a layout in a matrix.

use super::{
    FigureFile,
    svg::{FillShade, LINE_HEIGHT, LineLook, OF_RANKS, SvgPicture, SvgPoint, TextAnchor, TextLook},
};

pub(super) fn all() -> Vec<FigureFile> {
    vec![
        FigureFile {
            name: "grid_split",
            picture: grid_split(),
        },
        FigureFile {
            name: "halo_cells",
            picture: halo_cells(),
        },
        FigureFile {
            name: "halo_boxes",
            picture: halo_boxes(),
        },
        FigureFile {
            name: "layout",
            picture: layout(),
        },
        FigureFile {
            name: "decomposition",
            picture: decomposition(),
        },
    ]
}

/// Draws cells of equal size, with the color and the text that a function gives for row and column.
fn cells(
    picture: &mut SvgPicture,
    (left, top): SvgPoint,
    (rows, columns): (i32, i32),
    side: i32,
    cell: impl Fn(i32, i32) -> (FillShade, String),
) {
    for (row, column) in pairs(rows, columns) {
        let (shade, text) = cell(row, column);
        let corner = (left + column * side, top + row * side);
        picture.labeled(corner, (side, side), shade, (TextLook::Plain, &[&text]));
    }
}

fn shade_of(group: i32) -> FillShade {
    let groups = OF_RANKS.iter().zip(0..);
    groups
        .filter(|(_, index)| *index == group % 4)
        .map(|(shade, _)| *shade)
        .next()
        .unwrap_or(FillShade::Gray)
}

/// The color and the text of the rank in a row and a column.
type RankCell = fn(i32, i32) -> (FillShade, String);

fn grid_split() -> SvgPicture {
    let title = "A grid of 4 by 3 ranks, split into its rows and into its columns";
    let mut picture = SvgPicture::new(title, 760, 330);
    let (side, top) = (52, 76);
    let panels: [(i32, &str, &str, RankCell); 3] = [
        (
            30,
            "cart(&[4, 3], …)",
            "rank in the world",
            |row, column| (FillShade::Gray, (row * 3 + column).to_string()),
        ),
        (
            300,
            "sub(&[false, true])",
            "a row: rank in it",
            |row, column| (shade_of(row), column.to_string()),
        ),
        (
            560,
            "sub(&[true, false])",
            "a column: rank in it",
            |row, column| (shade_of(column), row.to_string()),
        ),
    ];
    for (left, code, what, cell) in panels {
        picture.text((left, 32), TextAnchor::Start, TextLook::Code, code);
        picture.text((left, 56), TextAnchor::Start, TextLook::Quiet, what);
        cells(&mut picture, (left, top), (4, 3), side, cell);
    }
    let y = top + 4 * side + 28;
    let text = "Ranks of one color have one communicator. split(row, column) makes the same rows of the world.";
    picture.text((30, y), TextAnchor::Start, TextLook::Quiet, text);
    picture
}

fn halo_cells() -> SvgPicture {
    let title = "The outer cells of each rank fill the ghosts of its neighbor";
    let mut picture = SvgPicture::new(title, 760, 330);
    let (side, top, size) = (36, 60, 6);
    let cell_of = |own: FillShade, other: FillShade, at_right: bool| {
        move |row: i32, column: i32| {
            let edge = |index: i32| index == 0 || index == size - 1;
            let column = if at_right { size - 1 - column } else { column };
            let shade = match (edge(row), edge(column)) {
                (false, false) => own,
                (false, true) if column == size - 1 => other,
                _ => FillShade::Empty,
            };
            (shade, String::new())
        }
    };
    let (left, right) = (60, 484);
    let blue = cell_of(FillShade::Blue, FillShade::Orange, false);
    let orange = cell_of(FillShade::Orange, FillShade::Blue, true);
    cells(&mut picture, (left, top), (size, size), side, blue);
    cells(&mut picture, (right, top), (size, size), side, orange);
    let middle = |corner: i32| (corner + size * side / 2, 36);
    picture.text(middle(left), TextAnchor::Middle, TextLook::Strong, "rank 0");
    picture.text(
        middle(right),
        TextAnchor::Middle,
        TextLook::Strong,
        "rank 1",
    );
    let (blue_edge, orange_edge) = (left + 9 * side / 2, right + 3 * side / 2);
    let (high, low) = (top + 3 * side / 2, top + 7 * side / 2);
    picture.line(
        &[(blue_edge, high), (right + side / 2, high)],
        LineLook::Arrow,
    );
    picture.line(
        &[(orange_edge, low), (left + 11 * side / 2, low)],
        LineLook::Arrow,
    );
    let at = |y: i32| (i32::midpoint(left + size * side, right), y - 8);
    picture.text(
        at(high),
        TextAnchor::Middle,
        TextLook::Plain,
        "its last column of cells",
    );
    picture.text(
        at(low),
        TextAnchor::Middle,
        TextLook::Plain,
        "its first column of cells",
    );
    let remarks = [
        (
            296,
            "In color: the cells that the rank computes, and the ghosts that it gets from this neighbor.",
        ),
        (
            316,
            "Outlined: ghosts that it gets from other neighbors, or that hold a boundary condition.",
        ),
    ];
    for (y, text) in remarks {
        picture.text((24, y), TextAnchor::Start, TextLook::Quiet, text);
    }
    picture
}

/// Draws a box of three visible sides, whose front has this upper left corner and this width and height.
fn cuboid(picture: &mut SvgPicture, (x, y): SvgPoint, (width, height): SvgPoint, shade: FillShade) {
    let (dx, dy) = (width * 2 / 5, height * 2 / 5);
    let (right, bottom) = (x + width, y + height);
    picture.polygon(&[(x, y), (right, y), (right, bottom), (x, bottom)], shade);
    picture.polygon(
        &[(x, y), (x + dx, y - dy), (right + dx, y - dy), (right, y)],
        shade,
    );
    let side = [
        (right, y),
        (right + dx, y - dy),
        (right + dx, bottom - dy),
        (right, bottom),
    ];
    picture.polygon(&side, shade);
}

fn halo_boxes() -> SvgPicture {
    let title = "The six neighbors of a box of cells in three dimensions";
    let mut picture = SvgPicture::new(title, 640, 392);
    let (side, center) = (70, (270, 172));
    // From the back to the front, so that nearer boxes cover those behind them.
    let boxes = [
        ((108, -78), FillShade::Green, "y + 1"),
        ((0, 120), FillShade::Purple, "z − 1"),
        ((-190, 0), FillShade::Orange, "x − 1"),
        ((0, 0), FillShade::Blue, "rank"),
        ((190, 0), FillShade::Orange, "x + 1"),
        ((0, -120), FillShade::Purple, "z + 1"),
        ((-108, 78), FillShade::Green, "y − 1"),
    ];
    for ((dx, dy), shade, text) in boxes {
        let corner = (center.0 + dx, center.1 + dy);
        cuboid(&mut picture, corner, (side, side), shade);
        let middle = (corner.0 + side / 2, corner.1 + side / 2 + 5);
        picture.text(middle, TextAnchor::Middle, TextLook::Plain, text);
    }
    picture
}

fn layout() -> SvgPicture {
    let title =
        "A layout in a matrix of 5 rows and 8 columns: offset 10, block 3, stride 8, count 3";
    let mut picture = SvgPicture::new(title, 720, 330);
    let (left, top, side) = (40, 64, 40);
    cells(&mut picture, (left, top), (5, 8), side, |row, column| {
        let taken = (1..4).contains(&row) && (2..5).contains(&column);
        let shade = if taken {
            FillShade::Blue
        } else {
            FillShade::Gray
        };
        (shade, (row * 8 + column).to_string())
    });
    let code = "Layout { offset: 10, block: 3, stride: 8, count: 3 }";
    picture.text((left, 32), TextAnchor::Start, TextLook::Code, code);
    let row_middle = |row: i32| top + row * side + side / 2 + 5;
    let right = left + 8 * side + 20;
    let remarks = [
        (1, "offset: the first block begins at 10"),
        (2, "block: 3 elements each"),
        (3, "stride: the next begins 8 elements later"),
        (4, "count: 3 blocks"),
    ];
    for (row, text) in remarks {
        picture.text(
            (right, row_middle(row)),
            TextAnchor::Start,
            TextLook::Quiet,
            text,
        );
    }
    picture.text(
        (left, top + 5 * side + 30),
        TextAnchor::Start,
        TextLook::Quiet,
        "A message of this layout has the nine blue elements, row by row.",
    );
    picture
}

fn decomposition() -> SvgPicture {
    let title = "A box of cells cut into slabs, pencils and blocks, one for each rank";
    let mut picture = SvgPicture::new(title, 760, 290);
    let cuts: [(i32, [i32; 3], &str, [&str; 2]); 3] = [
        (30, [8, 1, 1], "slabs", ["2 neighbors,", "faces of N²"]),
        (
            280,
            [4, 2, 1],
            "pencils",
            ["4 neighbors,", "faces of about N²/√P"],
        ),
        (
            530,
            [2, 2, 2],
            "blocks",
            ["6 neighbors,", "faces of about N²/∛P²"],
        ),
    ];
    for (left, parts, name, remarks) in cuts {
        cut_box(&mut picture, (left, 82), parts);
        picture.text((left, 28), TextAnchor::Start, TextLook::Strong, name);
        for (text, row) in remarks.iter().zip(0..) {
            let at = (left, 246 + row * LINE_HEIGHT);
            picture.text(at, TextAnchor::Start, TextLook::Quiet, text);
        }
    }
    picture
}

/// Draws the three visible sides of a box that is cut into so many parts along z, y and x.
fn cut_box(picture: &mut SvgPicture, (left, top): SvgPoint, [nz, ny, nx]: [i32; 3]) {
    let (side, depth) = (136, 52);
    // A corner of a part: `x` from the left, `y` from the front, `z` from the top.
    let corner = |z: i32, y: i32, x: i32| {
        let back = y * depth / ny;
        (left + x * side / nx + back, top + z * side / nz - back)
    };
    let shade = |z: i32, y: i32, x: i32| shade_of(z + 2 * y + x);
    for (z, x) in pairs(nz, nx) {
        let front = [
            corner(z, 0, x),
            corner(z, 0, x + 1),
            corner(z + 1, 0, x + 1),
            corner(z + 1, 0, x),
        ];
        picture.polygon(&front, shade(z, 0, x));
    }
    for (y, x) in pairs(ny, nx) {
        let above = [
            corner(0, y, x),
            corner(0, y, x + 1),
            corner(0, y + 1, x + 1),
            corner(0, y + 1, x),
        ];
        picture.polygon(&above, shade(0, y, x));
    }
    for (z, y) in pairs(nz, ny) {
        let right = [
            corner(z, y, nx),
            corner(z, y + 1, nx),
            corner(z + 1, y + 1, nx),
            corner(z + 1, y, nx),
        ];
        picture.polygon(&right, shade(z, y, nx - 1));
    }
}

fn pairs(outer: i32, inner: i32) -> impl Iterator<Item = (i32, i32)> {
    (0..outer).flat_map(move |one| (0..inner).map(move |other| (one, other)))
}
