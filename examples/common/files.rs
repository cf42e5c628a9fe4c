//! Checks that an output file can be written, before hours of computing.

use std::path::Path;

/// Refuses a path that cannot become a file: one in a missing directory, or a directory itself.
///
/// # Errors
/// A sentence that names `argument`.
pub(crate) fn check(argument: &str, file: &Path) -> Result<(), String> {
    let shown = file.display();
    let above = file.parent().filter(|above| !above.as_os_str().is_empty());
    if let Some(above) = above.filter(|above| !above.is_dir()) {
        let above = above.display();
        return Err(format!(
            "{argument} {shown}: there is no directory {above}; make it, or take another"
        ));
    }
    if file.is_dir() {
        return Err(format!(
            "{argument} {shown} is a directory; name a file in it"
        ));
    }
    Ok(())
}
