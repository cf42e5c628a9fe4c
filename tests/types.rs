//! Types of other crates in messages, collectives and windows.

use std::{
    collections::BTreeMap,
    panic::{UnwindSafe, catch_unwind},
};

use half::{bf16, f16};
use nalgebra::{DMatrix, DVector, RowVector2, Vector3};
use ndarray::{Array1, Array2, ArrayD, IxDyn, ShapeBuilder, s};
use num_complex::Complex;
use ripstop::{ErrorKind, Located, prelude::*};
use serde::{Deserialize, Serialize};

#[ripstop::test(ranks = 2)]
async fn complex_numbers_cross_and_are_reduced(world: Comm) -> Result<()> {
    let (me, other) = (world.rank() as f64, 1 - world.rank());
    let sent = world.send(other, 0, vec![Complex::new(me, -1.0); 3]);
    let (got, _) = world.recv::<Complex<f64>>(other, 0).await?;
    assert_eq!(got, [Complex::new(1.0 - me, -1.0); 3]);
    sent.await?;
    let sum = world
        .all_reduce(vec![Complex::new(1.0_f32, 2.0)], Sum)
        .await?;
    assert_eq!(sum, [Complex::new(2.0, 4.0)]);
    let product = world.all_reduce([Complex::<f64>::I], Product).await?;
    assert_eq!(product, [Complex::new(-1.0, 0.0)]);
    Ok(())
}

#[ripstop::test(ranks = 2)]
async fn a_complex_number_is_no_pair_of_numbers(world: Comm) -> Result<()> {
    world.send(world.rank(), 0, Complex::new(1.0, 2.0)).detach();
    let error = world.recv::<[f64; 2]>(world.rank(), 0).await.unwrap_err();
    assert!(
        matches!(error.error.kind, ErrorKind::TypeMismatch { .. }),
        "{}",
        error.error
    );
    let (kept, _) = world
        .recv_into(world.rank(), 0, Complex::<f64>::ZERO)
        .await?;
    assert_eq!(kept, Complex::new(1.0, 2.0));
    Ok(())
}

#[ripstop::test(ranks = 2)]
async fn numbers_of_16_bits_cross_and_are_reduced(world: Comm) -> Result<()> {
    let (me, other) = (world.rank(), 1 - world.rank());
    world.send(other, 0, vec![f16::from_f32(0.5)]).detach();
    let error = world.recv::<bf16>(other, 0).await.unwrap_err();
    let said = error.error.to_string();
    assert!(
        said.contains("holds f16 and this receive expects bf16"),
        "{said}"
    );
    let (got, _) = world.recv::<f16>(other, 0).await?;
    assert_eq!(got, [f16::from_f32(0.5)]);
    let rank = bf16::from_f32(me as f32);
    assert_eq!(world.all_reduce([rank], Max).await?, [bf16::ONE]);
    assert_eq!(
        world.all_reduce([f16::ONE], Sum).await?,
        [f16::from_f32(2.0)]
    );
    Ok(())
}

#[ripstop::test(ranks = 2)]
async fn arrays_cross_whole_and_keep_their_shape(world: Comm) -> Result<()> {
    let (me, other) = (world.rank(), 1 - world.rank());
    let field = Array2::from_shape_fn((3, 4), |(row, column)| {
        (100 * me + 10 * row + column) as f64
    });
    let inbox = world.recv_into(other, 0, Array2::<f64>::zeros((3, 4)));
    let field = world.send(other, 0, field).await?;
    let (got, status) = inbox.await?;
    assert_eq!((got[[2, 3]], status.len), (100.0 * other as f64 + 23.0, 12));
    let sum = world.all_reduce(field, Sum).await?;
    assert_eq!((sum[[1, 2]], sum.shape()), (124.0, &[3, 4][..]));
    let shared = ArrayD::<u8>::zeros(IxDyn(&[2, 1, 2])).into_shared();
    world.send(other, 1, shared.clone()).await?;
    assert_eq!(world.recv::<u8>(other, 1).await?.0.len(), shared.len());
    Ok(())
}

#[ripstop::test(ranks = 2)]
async fn an_array_with_gaps_or_columns_is_refused_everywhere_with_what_to_do(
    world: Comm,
) -> Result<()> {
    let by_columns = || Array2::<f64>::zeros((3, 4).f());
    let gaps = || Array1::<f64>::zeros(8).slice_move(s![..;2]);
    let other = 1 - world.rank();
    let refuses = |error: &Error| {
        let said = error.to_string();
        let what = matches!(error.kind, ErrorKind::InvalidArgument(_));
        assert!(
            what && said.contains("pass `array.as_standard_layout().into_owned()`"),
            "{said}"
        );
    };
    refuses(&world.send(other, 0, by_columns()).await.unwrap_err().error);
    refuses(&world.recv_into(other, 0, gaps()).await.unwrap_err().error);
    world.send(other, 0, [1.0]).await?;
    let matched = world.probe(other, 0).await?;
    refuses(&matched.recv_into(gaps()).await.unwrap_err().error);
    assert_eq!(world.recv::<f64>(other, 0).await?.0, [1.0]);
    let window = Window::<f64>::allocate(&world, 12).await?;
    let window = window.into_passive().await?;
    let locked = window.lock_all().await?;
    refuses(&locked.put(other, 0, by_columns()).await.unwrap_err().error);
    refuses(&locked.get(other, 0, gaps()).await.unwrap_err().error);
    locked.unlock().await;
    for op in [true, false] {
        let comm = world.dup().await?;
        let error = if op {
            comm.all_reduce(gaps(), ReproducibleSum)
                .await
                .unwrap_err()
                .error
        } else {
            comm.bcast(0, by_columns()).await.unwrap_err().error
        };
        refuses(&error);
    }
    Ok(())
}

#[ripstop::test(ranks = 2)]
async fn matrices_and_vectors_cross(world: Comm) -> Result<()> {
    let (me, other) = (world.rank(), 1 - world.rank());
    let matrix = DMatrix::from_fn(2, 3, |row, column| (row * 3 + column + 10 * me) as f64);
    let inbox = world.recv_into(other, 0, DMatrix::<f64>::zeros(2, 3));
    world.send(other, 0, matrix).await?;
    let (got, _) = inbox.await?;
    assert_eq!(got[(1, 2)], 5.0 + 10.0 * other as f64);
    let sum = world
        .all_reduce(DVector::from_element(4, 0.5_f32), Sum)
        .await?;
    assert_eq!(sum, DVector::from_element(4, 1.0));
    world
        .send(other, 1, vec![Vector3::new(1.0, 2.0, 3.0); 2])
        .await?;
    let (points, _) = world.recv::<Vector3<f64>>(other, 1).await?;
    assert_eq!(points, [Vector3::new(1.0, 2.0, 3.0); 2]);
    assert_eq!(<RowVector2<u8> as Wire>::SIG, <[[u8; 1]; 2] as Wire>::SIG);
    Ok(())
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
enum Task {
    Stop,
    Solve {
        name: String,
        weights: BTreeMap<u32, f64>,
    },
}

#[ripstop::test(ranks = 2)]
async fn values_of_any_shape_cross(world: Comm) -> Result<()> {
    let other = 1 - world.rank();
    let solve = || Task::Solve {
        name: "poisson".to_owned(),
        weights: (0..5000).map(|at| (at, f64::from(at) / 3.0)).collect(),
    };
    for task in [solve(), Task::Stop] {
        let inbox = world.recv_value::<Task>(other, 3);
        let sent = world.send_value(other, 3, &task);
        assert_eq!(inbox.await?.0, task);
        sent.await?;
    }
    Ok(())
}

#[ripstop::test(ranks = 2)]
async fn bytes_that_are_no_value_of_the_type_are_an_error_that_names_it(world: Comm) -> Result<()> {
    let me = world.rank();
    world.send_value(me, 0, "naïve").detach();
    let error = world.recv::<u8>(me, 0).await.unwrap_err().error;
    assert!(
        matches!(error.kind, ErrorKind::TypeMismatch { .. }),
        "{error}"
    );
    let error = world.recv_value::<String>(None, 0).await.unwrap_err();
    let said = error.to_string();
    assert!(
        matches!(error.kind, ErrorKind::InvalidArgument(_)),
        "{said}"
    );
    assert!(
        said.contains("`from` names no rank") && said.contains("tests/types.rs"),
        "{said}"
    );
    world.send_value(None, 0, "beyond the edge").await?;
    for longer in [true, false] {
        let error = if longer {
            world.recv_value::<(String, u64)>(me, 0).await.unwrap_err()
        } else {
            world.send_value(me, 0, "naïve").detach();
            world.recv_value::<u8>(me, 0).await.unwrap_err()
        };
        let said = error.to_string();
        assert!(matches!(error.kind, ErrorKind::Undecodable(_)), "{said}");
        assert!(
            said.contains("tests/types.rs") && said.contains("receive the type that was sent"),
            "{said}"
        );
    }
    Ok(())
}

#[test]
fn a_part_or_layout_of_an_unusable_array_panics_with_the_reason() {
    let array = || Array2::<f64>::zeros((3, 4).f());
    let column = Layout::subarray(&[3, 4], &[0..3, 0..1]);
    let calls: [Box<dyn FnOnce() + UnwindSafe>; 3] = [
        Box::new(move || drop(array().part(2..4))),
        Box::new({
            let column = column.clone();
            move || drop(array().strided(column))
        }),
        Box::new(move || drop(array().strided_in(column, Vec::new()))),
    ];
    for call in calls {
        let panic = catch_unwind(call).expect_err("it is not in standard layout");
        let said = panic.downcast_ref::<String>().expect("a sentence");
        assert!(said.contains("not in standard layout"), "{said}");
    }
}

#[ripstop::test(ranks = 3)]
async fn operators_combine_arrays_element_by_element(world: Comm) -> Result<()> {
    let rank = world.rank() as u64;
    let me = i32::try_from(rank).expect("one of three");
    let [sum] = world.all_reduce(vec![[me, 1, -me]], Sum).await?[..] else {
        panic!("one")
    };
    assert_eq!(sum, [3, 3, -3]);
    assert_eq!(world.all_reduce(vec![[me, -me]], Max).await?, [[2, 0]]);
    assert_eq!(world.all_reduce(vec![[[me, -me]]], Min).await?, [[[0, -2]]]);
    assert_eq!(
        world.all_reduce(vec![[2.0, 3.0]], Product).await?,
        [[8.0, 27.0]]
    );
    let mine = [Located::new(me, 7), Located::new(-me, 8 + rank)];
    let [first, second] = world.all_reduce(vec![mine], MinLoc).await?[0];
    assert_eq!(
        (first.value(), first.at(), second.value(), second.at()),
        (0, 7, -2, 10)
    );
    Ok(())
}
