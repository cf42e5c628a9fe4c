//! The arguments, and the output files.

use std::{env, error::Error, fs, path::PathBuf, process};

use ripstop::Comm;

use super::{
    options::{AwpOptions, HELP},
    output::{self, SurfaceReceivers},
    wave::{TwoSidedExchange, WaveSolver},
};

fn parse(line: &str, ranks: usize) -> Result<Option<AwpOptions>, String> {
    AwpOptions::parse(line.split_whitespace().map(str::to_owned), ranks)
}

#[test]
fn wrong_arguments_are_named() {
    for (line, words) in [
        ("--n 0", &["--n 0", "at least 1"][..]),
        ("--n x", &["--n x"]),
        ("--n", &["--n needs a value"]),
        ("--n 8 --global 8x8x8", &["--n and --global"]),
        ("--global 8x8", &["--global 8x8", "x, y and z"]),
        ("--n 99999999", &["99999999x", "cells for each rank"]),
        ("--n 9999999999", &["cells for each rank"]),
        (
            "--grid 3x1x1",
            &["--grid 3x1x1", "3 ranks", "has 4", "2x2x1"],
        ),
        ("--grid 0x2x2", &["--grid 0x2x2"]),
        ("--steps 0", &["--steps 0"]),
        (
            "--steps 18446744073709551615",
            &["--steps 1844", "from 1 to 10000000"],
        ),
        ("--mode wet", &["--mode wet", "two-sided-split", "all"]),
        ("--layers two", &["--layers two", "full or needed"]),
        ("--precision f16", &["--precision f16", "f32 or f64"]),
        ("--model jelly", &["--model jelly", "uniform or layered"]),
        ("--source drum", &["--source drum", "explosion"]),
        ("--periodic q", &["--periodic q"]),
        ("--sponge -1", &["--sponge -1"]),
        ("--colour", &["--colour", "--help"]),
        ("--seismogram f.csv", &["did you mean --seismograms?"]),
        ("--mode pscw-spilt", &["did you mean pscw-split?"]),
        ("--png --json", &["--png needs a value, --png FILE"]),
        ("--n 8 16", &["no argument 16"]),
    ] {
        let sentence = parse(line, 4).expect_err(line);
        let all = words.iter().all(|word| sentence.contains(word));
        assert!(all, "{line}: {sentence}");
    }
}

#[test]
fn a_box_with_fewer_than_two_cells_for_a_rank_is_refused_by_name() {
    let options = parse("--global 8x5x8 --grid 1x3x1", 3);
    let options = options.ok().flatten().expect("arguments that fit together");
    let sentence = options.problem(0).unwrap_err();
    assert!(
        sentence.contains("5 cells in y") && sentence.contains("at least 6"),
        "{sentence}"
    );
}

#[test]
fn the_memory_of_a_machine_is_known_before_it_is_taken() {
    let of = |line| parse(line, 2).unwrap().unwrap();
    let bytes = |line| of(line).bytes(1, true);
    let rank = 17 * 4 * (8 + 4) * (10 + 4) * (12 + 4);
    assert_eq!(bytes("--global 16x10x12 --grid 2x1x1"), rank);
    let double = bytes("--global 16x10x12 --grid 2x1x1 --precision f64");
    assert_eq!(double, 2 * rank);
    let whole = 17 * 4 * (16 + 4) * (10 + 4) * (12 + 4);
    let checked = bytes("--global 16x10x12 --grid 2x1x1 --check");
    assert_eq!(checked, rank + whole);
    let checked = of("--global 16x10x12 --grid 2x1x1 --check");
    assert_eq!(checked.bytes(2, true), 2 * rank + whole);
    assert_eq!(checked.bytes(1, false), rank);
}

#[test]
fn the_help_names_every_argument_that_it_shows_in_examples() {
    assert_eq!(parse("--n 8 --help", 1), Ok(None));
    let examples = HELP
        .lines()
        .filter_map(|line| line.split_once("--example awp -- --"));
    let mut seen = 0;
    for (_, arguments) in examples {
        let options = parse(&format!("--{arguments}"), 4);
        assert!(
            options.is_ok_and(|options| options.is_some()),
            "{arguments}"
        );
        seen += 1;
    }
    assert!(seen >= 2, "examples to try");
}

/// The files of four ranks are those of one.
#[ripstop::test(ranks = 4)]
async fn seismograms_and_pictures_do_not_depend_on_the_ranks(world: Comm) -> Outcome {
    let four = files(&world, "2x2x1").await?;
    let first = world
        .split_some((world.rank() == 0).then_some(0), 0)
        .await?;
    let Some(one) = first else {
        return Ok(());
    };
    let alone = files(&one, "1x1x1").await?;
    assert_eq!(four, alone);
    let (table, picture) = four;
    let lines: Vec<&str> = table.lines().collect();
    assert!(lines[0].starts_with("t_s,u_at_"), "{}", lines[0]);
    assert_eq!(lines.len(), 1 + STEPS);
    assert!(
        lines
            .iter()
            .all(|line| line.split(',').count() == 1 + 3 * 8)
    );
    let moves = |line: &str| {
        line.split(',')
            .skip(1)
            .any(|value| value.parse() != Ok(0.0))
    };
    assert!(moves(lines[STEPS]), "the surface moves in the end");
    let drawn = picture
        .windows(3)
        .any(|pixel| pixel[0] > pixel[2].saturating_add(50));
    assert!(drawn, "there is red in the picture");
    Ok(())
}

type Outcome = Result<(), Box<dyn Error>>;

const STEPS: usize = 60;

/// Returns the table and the picture of a small run.
async fn files(comm: &Comm, grid: &str) -> Result<(String, Vec<u8>), Box<dyn Error>> {
    let line = format!("--global 12x10x8 --grid {grid} --precision f64 --mode two-sided-split");
    let options = parse(&line, comm.size())?.ok_or("arguments that ask for help")?;
    let problem = options.problem(comm.rank())?;
    let mode = options.modes[0];
    let layers = mode.layers(options.needed_only);
    let mut halos = TwoSidedExchange::halos(comm, &problem.domain, &layers, false)?;
    let mut solver = WaveSolver::<f64>::new(problem);
    let mut receivers = SurfaceReceivers::new(&problem);
    let after = |solver: &WaveSolver<f64>, _| receivers.record(solver);
    solver
        .run(&mut halos, mode.schedule(), STEPS, after)
        .await?;
    assert!(output::peak(&solver).is_finite());
    let (table, picture) = (path(comm, "csv"), path(comm, "png"));
    receivers.write(comm, &problem, &table).await?;
    output::draw(comm, &solver, &picture).await?;
    if comm.rank() > 0 {
        return Ok((String::new(), Vec::new()));
    }
    let read = (fs::read_to_string(&table)?, fs::read(&picture)?);
    fs::remove_file(table)?;
    fs::remove_file(picture)?;
    Ok(read)
}

fn path(comm: &Comm, kind: &str) -> PathBuf {
    let name = format!(
        "ripstop-awp-{}-{}-{}.{kind}",
        process::id(),
        comm.id(),
        comm.size()
    );
    env::temp_dir().join(name)
}
