//! The seismic example at small sizes: the bits of one rank in every mode, and what the scheme must conserve and reproduce.

#[path = "../support/given.rs"]
mod given;
#[path = "../../examples/awp/mode.rs"]
mod mode;
#[path = "../../examples/awp/options.rs"]
mod options;
#[path = "../../examples/awp/output.rs"]
mod output;
#[path = "../../examples/common/png.rs"]
mod png;
#[path = "../../examples/awp/wave/mod.rs"]
mod wave;

mod decomposition;
mod energy;
mod program;
mod source;
mod surface;
mod waves;

use wave::{
    AwpDomain, RockModel, RockProperties, SourceMechanism, WaveProblem, WaveSource, dt_max,
};

/// A problem with everything at once: two kinds of rock or more, a sponge, a free surface and a source.
fn earth(domain: AwpDomain, model: RockModel, kind: SourceMechanism) -> WaveProblem {
    let spacing = 100.0;
    let middle = domain.global.map(|cells| cells / 2);
    WaveProblem {
        domain,
        model,
        spacing,
        dt: 0.9 * dt_max(&model, spacing),
        sponge: 3,
        free_surface: true,
        source: Some(WaveSource {
            kind,
            cell: middle,
            width_s: 0.02,
        }),
    }
}

/// A problem of uniform rock without ends and without a source.
fn space(cells: [usize; 3], courant: f64) -> WaveProblem {
    let model = RockModel::Uniform(RockProperties::GRANITE);
    let spacing = 100.0;
    WaveProblem {
        domain: AwpDomain::part(cells, [1; 3], [true; 3], 0).expect("cells enough for one rank"),
        model,
        spacing,
        dt: courant * dt_max(&model, spacing),
        sponge: 0,
        free_surface: false,
        source: None,
    }
}
