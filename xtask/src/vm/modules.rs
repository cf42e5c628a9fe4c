//! Selects the kernel modules that the guest loads, and their order.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use super::kernel;

/// Copies the modules that the guest loads into `to`, unpacked, with numbers before the names that give the order.
pub(super) fn collect(tree: &Path, to: &Path) -> Result<(), String> {
    let mut files = BTreeMap::new();
    walk(tree, &mut files)?;
    let built_in = built_in(&files);
    let work = to.join("work");
    fs::create_dir_all(&work).map_err(|why| format!("{}: {why}", to.display()))?;
    let mut loader = ModuleLoader {
        files: &files,
        built_in: &built_in,
        work: &work,
        seen: BTreeSet::new(),
        order: Vec::new(),
    };
    WANTED.iter().try_for_each(|name| loader.load(name))?;
    let order = loader.order;
    for (number, (name, file)) in order.iter().enumerate() {
        let numbered = to.join(format!("{number:02}-{name}.ko"));
        fs::rename(file, &numbered).map_err(|why| format!("{}: {why}", numbered.display()))?;
    }
    fs::remove_dir(&work).map_err(|why| format!("{}: {why}", work.display()))
}

/// Returns the module files of a tree by module name, and `modules.builtin` by its own name.
fn walk(folder: &Path, files: &mut BTreeMap<String, PathBuf>) -> Result<(), String> {
    let entries = fs::read_dir(folder).map_err(|why| format!("{}: {why}", folder.display()))?;
    for entry in entries.flatten() {
        let path = entry.path();
        let name = entry.file_name().to_string_lossy().into_owned();
        if path.is_dir() && !path.is_symlink() {
            walk(&path, files)?;
        } else if name == BUILT_IN {
            files.insert(name, path);
        } else if let Some((name, _)) = name.split_once(".ko") {
            files.insert(canonical(name), path);
        }
    }
    Ok(())
}

fn built_in(files: &BTreeMap<String, PathBuf>) -> BTreeSet<String> {
    let list = files
        .get(BUILT_IN)
        .and_then(|file| fs::read_to_string(file).ok());
    let names = |list: String| list.lines().filter_map(name_of).collect();
    list.map(names).unwrap_or_default()
}

/// Returns the name of a module: `kernel/lib/crc32-generic.ko` is `crc32_generic`.
fn name_of(path: &str) -> Option<String> {
    let file = path.rsplit('/').next()?;
    Some(canonical(file.split_once(".ko")?.0))
}

/// Names are written with `-` or `_`, and mean the same.
fn canonical(name: &str) -> String {
    name.replace('-', "_")
}

struct ModuleLoader<'a> {
    files: &'a BTreeMap<String, PathBuf>,
    built_in: &'a BTreeSet<String>,
    work: &'a Path,
    seen: BTreeSet<String>,
    order: Vec<(String, PathBuf)>,
}

impl ModuleLoader<'_> {
    /// Adds a module after all modules on which it depends.
    fn load(&mut self, name: &str) -> Result<(), String> {
        if self.built_in.contains(name) || !self.seen.insert(name.to_owned()) {
            return Ok(());
        }
        let Some(file) = self.files.get(name) else {
            return if MAY_LACK.contains(&name) {
                Ok(())
            } else {
                Err(format!("the kernel has no module {name}"))
            };
        };
        let unpacked = self.work.join(format!("{name}.ko"));
        unpack(file, &unpacked)?;
        let bytes = fs::read(&unpacked).map_err(|why| format!("{}: {why}", unpacked.display()))?;
        for needed in depends(&bytes) {
            self.load(&needed)?;
        }
        self.order.push((name.to_owned(), unpacked));
        Ok(())
    }
}

fn unpack(file: &Path, to: &Path) -> Result<(), String> {
    let named = |why: std::io::Error| format!("{}: {why}", file.display());
    let bytes = fs::read(file).map_err(named)?;
    match file.extension().and_then(|extension| extension.to_str()) {
        Some("xz") => kernel::decompress("xz", &bytes, to),
        Some("zst") => kernel::decompress("zstd", &bytes, to),
        Some("gz") => kernel::decompress("gzip", &bytes, to),
        _ => fs::write(to, bytes).map_err(named),
    }
}

/// Returns what a module says about itself: strings, each followed by a zero byte.
fn depends(module: &[u8]) -> Vec<String> {
    let list = module
        .split(|&byte| byte == 0)
        .find_map(|entry| entry.strip_prefix(b"depends="))
        .unwrap_or_default();
    String::from_utf8_lossy(list)
        .split(',')
        .filter(|name| !name.is_empty())
        .map(canonical)
        .collect()
}

const BUILT_IN: &str = "modules.builtin";

/// Modules that the guest needs. `crc32_generic` provides soft-RoCE's checksum: the module that multiplies is slow in emulation.
const WANTED: [&str; 12] = [
    "virtio_pci",
    "virtio_console",
    "9pnet_virtio",
    "9p",
    "overlay",
    "veth",
    "bridge",
    "sch_netem",
    "crc32_generic",
    "ib_uverbs",
    "rdma_ucm",
    "rdma_rxe",
];

/// Modules that may be missing, because newer kernels have them as a library.
const MAY_LACK: [&str; 1] = ["crc32_generic"];

#[cfg(test)]
mod tests {
    use super::{depends, name_of};

    #[test]
    fn a_module_names_what_it_depends_on() {
        let module = b"\x7fELF..\0license=GPL\0depends=ib-core,udp_tunnel\0name=rdma_rxe\0";
        assert_eq!(depends(module), ["ib_core", "udp_tunnel"]);
        assert!(depends(b"\0depends=\0").is_empty());
        assert!(depends(b"").is_empty());
    }

    #[test]
    fn a_module_is_known_by_one_name() {
        assert_eq!(
            name_of("kernel/crypto/crc32-generic.ko").unwrap(),
            "crc32_generic"
        );
        assert_eq!(name_of("kernel/net/9p/9p.ko.xz").unwrap(), "9p");
        assert_eq!(name_of("modules.order"), None);
    }
}
