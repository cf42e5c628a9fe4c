//! Which parts of the engine may name each other. All stand on the commons, and none names what joins them.

/// A folder of `rt/src/engine`, and its type.
struct EnginePart {
    folder: &'static str,
    /// What others would call; the commons are for all.
    kind: Option<&'static str>,
    /// Folders that it may name besides the commons.
    knows: &'static [&'static str],
    because: &'static str,
}

/// Returns why this file may not name this path, if the path leads into another part of the engine.
pub(super) fn refuse(file: &str, path: &str) -> Option<&'static str> {
    let folder = file.strip_prefix("rt/src/engine/")?.split('/').next()?;
    let named = path.strip_prefix("crate::engine::")?.split("::").next()?;
    let own = PARTS.iter().find(|part| part.folder == folder)?;
    let is_other = |part: &EnginePart| {
        part.folder != folder && part.kind.is_some() && !own.knows.contains(&part.folder)
    };
    let is_named = |part: &EnginePart| part.folder == named || part.kind == Some(named);
    let is_refused =
        [WHOLE, FACE].contains(&named) || PARTS.iter().any(|part| is_other(part) && is_named(part));
    is_refused.then_some(own.because)
}

/// Returns true if the tests in this file run without the other parts, and are checked like the part itself.
pub(super) fn is_of_part_alone(file: &str) -> bool {
    let folders = ["point_to_point", "window"].map(|part| format!("rt/src/engine/{part}/tests/"));
    folders.iter().any(|folder| file.starts_with(folder))
}

/// The type that joins all parts.
const WHOLE: &str = "EngineCore";

/// The type that has the driver too, which the application calls.
const FACE: &str = "Engine";

const PARTS: [EnginePart; 5] = [
    EnginePart {
        folder: "commons",
        kind: None,
        knows: &[],
        because: "all parts of the engine stand on the commons, which know none of them",
    },
    EnginePart {
        folder: "point_to_point",
        kind: Some("PointToPoint"),
        knows: &[],
        because: "point-to-point can be read and tested without the other parts",
    },
    EnginePart {
        folder: "collective",
        kind: Some("CollectivePart"),
        knows: &["point_to_point"],
        because: "collectives stand on point-to-point; what joins parts is the engine's",
    },
    EnginePart {
        folder: "window",
        kind: Some("WindowPart"),
        knows: &[],
        because: "windows can be read and tested without the other parts",
    },
    EnginePart {
        folder: "recovery",
        kind: Some("RecoveryPart"),
        knows: &[],
        because: "recovery stands on the commons; what joins parts is the engine's",
    },
];

#[cfg(test)]
mod tests {
    use super::refuse;

    #[test]
    fn parts_name_the_commons_and_what_they_stand_on() {
        let is_refused = |file: &str, path: &str| {
            let file = format!("rt/src/engine/{file}.rs");
            refuse(&file, &format!("crate::{path}")).is_some()
        };
        for (file, path) in [
            ("window/ops", "engine::commons::peer"),
            ("window/ops", "engine::window::WindowPart"),
            ("collective/run", "engine::point_to_point"),
            ("collective/run", "engine::PointToPoint"),
            ("window/ops", "comm::Comm"),
            ("flush", "engine::EngineCore"),
            ("point_to_point/tests/alone", "engine::EngineSetup"),
        ] {
            assert!(!is_refused(file, path), "{file} {path}");
        }
        for (file, path) in [
            ("commons/peer", "engine::PointToPoint"),
            ("point_to_point/recv", "engine::collective::run"),
            ("window/ops", "engine::point_to_point"),
            ("recovery/mod", "engine::WindowPart"),
            ("collective/run", "engine::EngineCore"),
            ("collective/run", "engine::Engine"),
            ("point_to_point/send", "engine::Engine"),
            ("window/ops", "engine::Engine"),
            ("recovery/agreements", "engine::Engine"),
            ("window/tests/alone", "engine::Engine"),
            ("point_to_point/tests/alone", "engine::EngineCore"),
            ("point_to_point/tests/alone", "engine::Engine"),
        ] {
            assert!(is_refused(file, path), "{file} {path}");
        }
    }
}
