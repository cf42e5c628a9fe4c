//! The P3DFFT example at small sizes: rounding errors, known spectra and the bits of one rank, on many grids.

#[path = "../examples/common/agree.rs"]
mod agree;
#[path = "../examples/p3dfft/fft/mod.rs"]
mod fft;
#[path = "support/given.rs"]
mod given;
#[path = "../examples/common/memory.rs"]
mod memory;
#[path = "../examples/p3dfft/options.rs"]
mod options;

use std::any::type_name;

use num_complex::Complex;
use ripstop::{Comm, Result};

use agree::agreed;
use fft::{
    FftReal, FftSetup, PencilFft, PencilGrid, TransposeMode,
    check::check,
    clock::{FftPhase, PHASES},
    samples::noise,
};
use given::given;
use options::{FftOptions, FftPrecision, HELP};

/// Even edges; an odd edge in every place; and an odd number of modes, as with every power of two.
const BOXES: [[usize; 3]; 3] = [[12, 10, 14], [9, 7, 11], [8, 8, 8]];

#[ripstop::test(ranks = 1)]
async fn one_rank_transforms_sines_and_noise_exactly_but_for_rounding(world: Comm) -> Result<()> {
    transforms::<f64>(&world, &[[1, 1]]).await?;
    transforms::<f32>(&world, &[[1, 1]]).await
}

#[ripstop::test(ranks = 2)]
async fn two_ranks_give_the_bits_of_one(world: Comm) -> Result<()> {
    transforms::<f64>(&world, &[[1, 2], [2, 1]]).await?;
    transforms::<f32>(&world, &[[1, 2], [2, 1]]).await
}

/// Of the five modes of 8 points, one rank has one and the others two each.
#[ripstop::test(ranks = 3)]
async fn three_ranks_that_split_x_unevenly_give_the_bits_of_one(world: Comm) -> Result<()> {
    transforms::<f64>(&world, &[[3, 1], [1, 3]]).await
}

#[ripstop::test(ranks = 4)]
async fn four_ranks_give_the_bits_of_one(world: Comm) -> Result<()> {
    transforms::<f64>(&world, &[[2, 2], [1, 4], [4, 1]]).await
}

#[ripstop::test(ranks = 6)]
async fn six_ranks_give_the_bits_of_one(world: Comm) -> Result<()> {
    transforms::<f64>(&world, &[[2, 3], [3, 2]]).await
}

#[ripstop::test(ranks = 6, process)]
async fn six_processes_give_the_bits_of_one(world: Comm) -> Result<()> {
    transforms::<f64>(&world, &[[2, 3]]).await
}

/// Blocks of 135 KiB, which go by rendezvous.
#[ripstop::test(ranks = 4, process)]
async fn blocks_that_are_too_long_to_be_sent_at_once_give_the_bits_of_one(
    world: Comm,
) -> Result<()> {
    for mode in MODES {
        holds::<f64>(&world, [64, 64, 64], [2, 2], mode, 2).await?;
    }
    Ok(())
}

/// The result for one variable alone equals its result with others beside it.
#[ripstop::test(ranks = 2)]
async fn every_phase_is_timed_and_variables_do_not_mix(world: Comm) -> Result<()> {
    let grid = PencilGrid::new([8, 6, 10], [2, 1], world.rank(), 2).expect("a good grid");
    let mut spectra = Vec::new();
    for vars in [1, 2] {
        let setup = FftSetup {
            grid: grid.clone(),
            vars,
            mode: TransposeMode::Host,
            tests: 1,
            poison: true,
        };
        let mut transform = PencilFft::<f64>::new(&world, setup).await?;
        let fields: Vec<_> = (0..vars).map(|var| noise(&grid, var)).collect();
        spectra = vec![vec![Complex::default(); grid.spectrum_len()]; vars];
        let times = transform.forward(&fields, &mut spectra).await?;
        for phase in PHASES.iter().filter(|&&phase| phase != FftPhase::Wait) {
            assert!(times[*phase as usize] > 0.0, "{phase:?} in {times:?}");
        }
    }
    assert_ne!(spectra[0], spectra[1]);
    Ok(())
}

/// An edge of two points is too short for a sine.
#[ripstop::test(ranks = 1)]
async fn a_spectrum_that_was_not_checked_is_not_said_to_be_right(world: Comm) -> Result<()> {
    for (points, checked) in [([8, 2, 8], false), ([8, 3, 8], true)] {
        let setup = FftSetup {
            grid: PencilGrid::new(points, [1, 1], 0, 1).expect("a good grid"),
            vars: 1,
            mode: TransposeMode::Blocking,
            tests: 0,
            poison: true,
        };
        let told = check::<f64>(&world, &setup, false).await?.summary();
        assert_eq!(told.contains("in the spectrum"), checked, "{told}");
        assert!(told.contains("in energy"), "{told}");
    }
    Ok(())
}

/// `None` asks for help.
fn parse(line: &str, ranks: usize) -> std::result::Result<Option<FftOptions>, String> {
    FftOptions::parse(line.split_whitespace().map(str::to_owned), ranks)
}

#[test]
fn all_arguments_are_understood_and_in_the_help() {
    let line = "--n 12x10x14 --grid 2x3 --vars 5 --mode host --chunks 3 --tests 64 --iters 7 \
                --precision f32 --check --json --png f.png";
    let options = parse(line, 6)
        .expect("good arguments")
        .expect("no help was asked for");
    let expected = FftOptions {
        points: [12, 10, 14],
        grid: [2, 3],
        vars: 5,
        modes: vec![TransposeMode::Host],
        chunks: 3,
        tests: 64,
        iters: 7,
        precision: FftPrecision::Single,
        check: true,
        json: true,
        png: Some("f.png".into()),
    };
    assert_eq!(options, expected);
    assert_eq!(options.volume(), 12 * 10 * 14);
    let names = line
        .split_whitespace()
        .filter(|word| word.starts_with("--"));
    names.for_each(|name| assert!(HELP.contains(name), "{name} is not in the help"));
    assert_eq!(parse("--iters 3 --help", 1), Ok(None));
}

#[test]
fn a_grid_is_as_square_as_it_goes_unless_another_is_given() {
    let grid = |ranks| parse("", ranks).expect("defaults").expect("no help").grid;
    assert_eq!(
        [1, 2, 4, 6, 12].map(grid),
        [[1, 1], [1, 2], [2, 2], [2, 3], [3, 4]]
    );
}

#[test]
fn a_bad_argument_is_named_and_what_to_do_is_said() {
    for (line, named) in [
        ("--n 0", "--n 0: give a whole number"),
        ("--n 8x8", "--n 8x8: give"),
        ("--n 99999x99999x99999", "take fewer points"),
        ("--grid 2x2", "take for example 2x3"),
        ("--grid 6", "--grid 6: give two"),
        ("--vars 0", "--vars 0"),
        (
            "--vars 1001 --n 8",
            "--vars 1001: give a whole number from 1 to 1000",
        ),
        (
            "--chunks 101",
            "--chunks 101: give a whole number from 1 to 100",
        ),
        ("--tests 1000001", "from 0 to 1000000"),
        ("--iters 18446744073709551615", "from 1 to 1000000"),
        ("--mode fast", "choose blocking, host, offload or all"),
        ("--precision f16", "choose f32 or f64"),
        ("--png", "--png needs a value"),
        ("--fast", "--fast"),
        (
            "--iter 3",
            "there is no argument --iter: did you mean --iters?",
        ),
        ("--mode ofload", "; did you mean offload?"),
    ] {
        let error = parse(line, 6).expect_err("refused");
        assert!(error.contains(named), "{line}: {error}");
    }
}

#[test]
fn what_does_not_fit_the_machine_is_refused_by_name() {
    let bytes = |line| parse(line, 2).unwrap().unwrap().bytes(2);
    let (volume, spectrum) = (8 * 10 * 12, 2 * 5 * 10 * 12);
    // A row of one rank; in a column, one of two blocks stays; and two variables are in flight.
    let buffers = |vars: usize| 8 * vars * (spectrum * 3 / 2) / 2;
    let fields = 8 * 3 * (2 * volume + spectrum) / 2;
    let held = fields + buffers(2);
    assert_eq!(bytes("--n 8x10x12 --vars 3 --no-check"), held);
    assert_eq!(
        bytes("--n 8x10x12 --vars 3 --no-check --mode blocking"),
        fields + buffers(1)
    );
    let both = |grid| parse(&format!("--n 8 --no-check --grid {grid}"), 4).unwrap();
    let both = |grid| both(grid).unwrap().bytes(4) - 8 * (2 * 512 + 640) / 4;
    assert_eq!(both("2x2"), 8 * 2 * (640 * 3 / 2) / 4);
    assert_eq!(
        bytes("--n 8x10x12 --vars 3 --no-check --precision f32"),
        held / 2
    );
    assert_eq!(
        bytes("--n 8x10x12 --vars 3 --check"),
        held + 8 * (2 * volume + spectrum)
    );
    assert_eq!(memory::check("--n 8", 2 * held, 2), Ok(()));
    let sentence = memory::check("--n 9999", usize::MAX, 2).unwrap_err();
    assert!(
        sentence.starts_with("--n 9999 needs at least 17179869184 GiB for 2 ranks"),
        "{sentence}"
    );
}

/// All ranks of a test are on one machine, and the first rank that refuses reports it.
#[ripstop::test(ranks = 3)]
async fn no_rank_begins_a_run_that_one_machine_refuses_and_one_rank_says_why(
    world: Comm,
) -> Result<()> {
    let all = |refusing: &'static [usize]| {
        let mine = if refusing.contains(&world.rank()) {
            Err("too little".to_owned())
        } else {
            Ok(())
        };
        agreed(&world, |_| mine)
    };
    assert!(all(&[]).await.expect("none refuses"));
    for refusing in [&[0, 1, 2][..], &[1, 2], &[2]] {
        match all(refusing).await {
            Ok(begins) => assert!(!begins && world.rank() != refusing[0]),
            Err(why) => assert_eq!(
                (world.rank(), why.to_string().as_str()),
                (refusing[0], "too little")
            ),
        }
    }
    Ok(())
}

/// More ranks than threads, on a network that takes time.
#[ripstop::sim(ranks = 24, fabric = "qdr")]
async fn twenty_four_simulated_ranks_give_the_bits_of_one(world: Comm) -> Result<()> {
    for mode in MODES {
        holds::<f64>(&world, [12, 10, 14], [4, 6], mode, 2).await?;
    }
    Ok(())
}

async fn transforms<T: FftReal>(world: &Comm, grids: &[[usize; 2]]) -> Result<()> {
    let boxes = BOXES
        .into_iter()
        .flat_map(|points| [2, 1, 100].map(|chunks| (points, chunks)));
    for ((points, chunks), _) in boxes.zip(0..given("CASES", u64::MAX)) {
        for &ranks in grids {
            for mode in MODES {
                holds::<T>(world, points, ranks, mode, chunks).await?;
            }
        }
    }
    Ok(())
}

/// With three variables: one more than there are slots for.
async fn holds<T: FftReal>(
    world: &Comm,
    points: [usize; 3],
    ranks: [usize; 2],
    mode: TransposeMode,
    chunks: usize,
) -> Result<()> {
    let grid = PencilGrid::new(points, ranks, world.rank(), chunks)
        .expect("boxes large enough for their grids");
    let setup = FftSetup {
        grid,
        vars: 3,
        mode,
        tests: 3,
        poison: true,
    };
    let errors = check::<T>(world, &setup, true).await?;
    let complaint = errors.complaint();
    assert!(
        complaint.is_none(),
        "{points:?} on {ranks:?}, {mode:?}, {chunks} chunks, {}: {complaint:?}",
        type_name::<T>()
    );
    Ok(())
}

const MODES: [TransposeMode; 3] = [
    TransposeMode::Blocking,
    TransposeMode::Host,
    TransposeMode::Offload,
];
