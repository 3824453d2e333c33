//! No cycle of imports among the files of `src`.
//!
//! Files that import each other can only be read, tested and moved together. One kind of import
//! does not count: that of a file by its own sub-files (of `cli/status.rs` by
//! `cli/status/screen.rs`). A sub-file is a part of its file that was split off for length or by
//! subject: it extends the file's types, or uses what the parts have in common, so file and sub-file
//! refer to each other.
//!
//! An import is a `use` or a path in the code. A re-export (`pub use`) leads to the file that has
//! the item; it is an import of the re-exporting file only if that file uses the item itself. Test
//! modules do not count.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs;

use regex::Regex;

use crate::{root, rust_files};

/// A module's path from the crate, such as `["relay", "core"]`; the crate itself is empty.
type Module = Vec<String>;

#[test]
fn source_files_have_no_import_cycles() {
    for (package, least) in [("", 500), ("crates/core/", 100)] {
        let own = rust_files().into_iter().filter_map(|path| {
            let inside = path.strip_prefix(package)?.to_owned();
            inside.starts_with("src/").then_some((path, inside))
        });
        let files: Vec<_> = own
            .map(|(path, inside)| {
                let text =
                    fs::read_to_string(root().join(path)).expect("a source file can be read");
                (inside, text)
            })
            .collect();
        let graph = Graph::of(files.iter().map(|(path, text)| (path.as_str(), text.as_str())));
        let imports: usize = graph.imports.values().map(BTreeSet::len).sum();
        assert!(imports > least, "only {imports} imports were found in {package}src");
        let cycles = graph.cycles();
        assert!(cycles.is_empty(), "\n{}", cycles.join("\n"));
    }
}

#[test]
fn import_cycles_are_reported() {
    let cycle = "a -> b -> a";
    for (a, b) in [
        ("use crate::b::B;", "use super::a::A;"),
        ("use crate::{c, b::{B as X}};", "fn f() { crate::a::f() }"),
        ("fn f() {\n    use crate::b::f;\n}", "pub use crate::{\n    a::A,\n};\nfn f(a: A) {}"),
        // Through the crate's re-export of B.
        ("use crate::B;", "use crate::a::A;"),
    ] {
        let lib = "pub use b::B;";
        let files = [("src/lib.rs", lib), ("src/a.rs", a), ("src/b.rs", b), ("src/c/mod.rs", "")];
        assert_eq!(Graph::of(files).cycles(), [cycle], "{a} {b}");
    }
    for (files, cycle) in [
        (
            [
                ("src/e/mod.rs", "fn f() { d::f() }"),
                ("src/e/d.rs", "use super::g::G;"),
                ("src/e/g.rs", "use super::d;"),
            ],
            "e::d -> e::g -> e::d",
        ),
        (
            [
                ("src/a.rs", "use crate::e::E;"),
                ("src/e.rs", "pub use d::D;\nfn f(d: D) {}"),
                ("src/e/d.rs", "use crate::a::A;"),
            ],
            "a -> e -> e::d -> a",
        ),
    ] {
        assert_eq!(Graph::of(files).cycles(), [cycle]);
    }
}

#[test]
fn files_without_import_cycles_pass() {
    for (a, b) in [
        ("use crate::b::B;", "//! Of crate::a.\n// use crate::a::A;"),
        ("use crate::b::B;", "#[cfg(test)]\nmod tests {\n    use crate::a::A;\n}\n"),
        ("use crate::b::B;", "use crate::c::A;"),
        // A re-export is no import.
        ("pub use crate::b::B;", "use crate::a::A;"),
    ] {
        let files = [("src/a.rs", a), ("src/b.rs", b), ("src/c/mod.rs", "")];
        assert_eq!(Graph::of(files).cycles(), [""; 0], "{a} {b}");
    }
    let files = [
        ("src/e.rs", "use self::d::D;\nfn f() { g::f() }\n#[cfg(test)]\nmod tests;"),
        ("src/e/d.rs", "use super::{E, tests::T};"),
        ("src/e/g.rs", "use super::E;"),
        ("src/e/tests.rs", "use super::d::D;"),
    ];
    assert_eq!(Graph::of(files).cycles(), [""; 0]);
}

/// Which file imports which.
struct Graph {
    imports: BTreeMap<Module, BTreeSet<Module>>,
}

impl Graph {
    fn of<'a>(files: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let mut sources: BTreeMap<_, _> = files
            .into_iter()
            .filter(|(path, _)| *path != "src/main.rs" && !path.ends_with("_tests.rs"))
            .map(|(path, text)| (module_of(path), Source::of(text)))
            .collect();
        let tests = sources.iter().flat_map(|(module, source)| {
            source
                .tests
                .iter()
                .map(move |name| [module.as_slice(), std::slice::from_ref(name)].concat())
        });
        let tests: Vec<_> = tests.collect();
        sources.retain(|module, _| !tests.iter().any(|test| module.starts_with(test)));
        let of_crate = Crate::of(&sources);
        let imports = sources.iter().map(|(module, source)| {
            let uses =
                source.uses.iter().filter(|one| !one.is_public || source.mentions(&one.name));
            let paths = uses.map(|one| &one.path).chain(&source.paths);
            let found = paths.filter_map(|path| of_crate.absolute(path, module));
            let found =
                found.map(|path| of_crate.file_of(path)).filter(|it| !module.starts_with(it));
            (module.clone(), found.collect())
        });
        Self { imports: imports.collect() }
    }

    /// One for each import that closes a cycle, as `a -> b -> a`; each cycle once.
    fn cycles(&self) -> Vec<String> {
        let mut seen = BTreeSet::new();
        let mut cycles = Vec::new();
        for (from, targets) in &self.imports {
            for to in targets {
                let Some(back) = self.way_back(to, from) else { continue };
                let files: BTreeSet<_> = back.iter().cloned().collect();
                if seen.insert(files) {
                    let names: Vec<_> = [from].into_iter().chain(&back).map(name).collect();
                    cycles.push(names.join(" -> "));
                }
            }
        }
        cycles
    }

    /// The shortest way of imports between two files, both ends included.
    fn way_back(&self, from: &Module, to: &Module) -> Option<Vec<Module>> {
        let mut before: BTreeMap<&Module, &Module> = BTreeMap::new();
        let mut queue = VecDeque::from([from]);
        while let Some(module) = queue.pop_front() {
            for next in self.imports.get(module).into_iter().flatten() {
                if next == from || before.contains_key(next) {
                    continue;
                }
                before.insert(next, module);
                queue.push_back(next);
            }
        }
        let mut way = vec![to.clone()];
        let mut at = to;
        while at != from {
            at = before.get(at)?;
            way.push(at.clone());
        }
        way.reverse();
        Some(way)
    }
}

/// The files of a crate and what they re-export.
struct Crate<'a> {
    sources: &'a BTreeMap<Module, Source>,
    /// The item that a module re-exports by a name.
    exports: BTreeMap<(Module, String), Module>,
}

impl<'a> Crate<'a> {
    fn of(sources: &'a BTreeMap<Module, Source>) -> Self {
        let mut all = Self { sources, exports: BTreeMap::new() };
        for (module, source) in sources {
            for one in source.uses.iter().filter(|one| one.is_public) {
                if let Some(path) = all.absolute(&one.path, module) {
                    all.exports.insert((module.clone(), one.name.clone()), path);
                }
            }
        }
        all
    }

    /// A path as seen from a module, from the crate on; `None` if it leads to another crate.
    fn absolute(&self, path: &[String], module: &Module) -> Option<Module> {
        let first = path.first()?.as_str();
        if first == "crate" {
            return Some(path[1..].to_vec());
        }
        let mut base = module.clone();
        let ups = path.iter().take_while(|part| ["super", "self"].contains(&part.as_str()));
        let ups = ups
            .inspect(|part| {
                if *part == "super" {
                    base.pop();
                }
            })
            .count();
        let child = [module.as_slice(), &path[..1]].concat();
        (ups > 0 || self.sources.contains_key(&child)).then(|| [&base, &path[ups..]].concat())
    }

    /// The file that has the item of that path.
    fn file_of(&self, mut path: Module) -> Module {
        // Each round follows one re-export; more than a few in a row would be a cycle of these.
        for _ in 0..8 {
            let inner = (0..=path.len()).rev().find(|n| self.sources.contains_key(&path[..*n]));
            let inner = inner.unwrap_or(0);
            let module = path[..inner].to_vec();
            let Some(item) = path.get(inner) else { return module };
            match self.exports.get(&(module.clone(), item.clone())) {
                Some(target) => path.clone_from(target),
                None => return module,
            }
        }
        panic!("re-exports lead in a circle: {path:?}");
    }
}

/// What a file imports, and the rest of its code.
struct Source {
    uses: Vec<Use>,
    /// The sub-files that are compiled only for tests.
    tests: Vec<String>,
    /// The paths in the code.
    paths: Vec<Vec<String>>,
    code: String,
}

struct Use {
    is_public: bool,
    path: Vec<String>,
    /// By which it is known in the file.
    name: String,
}

impl Source {
    fn of(text: &str) -> Self {
        let lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
        let code = lines.collect::<Vec<_>>().join("\n");
        let file = Regex::new(r"#\[cfg\(test\)\]\s*(?:pub(?:\([^)]*\))? )?mod (\w+);");
        let file = file.expect("a pattern");
        let tests = file.captures_iter(&code).map(|found| found[1].to_owned()).collect();
        let inline = Regex::new(r"(?ms)^#\[cfg\(test\)\]\nmod \w+ \{$.*?^\}").expect("a pattern");
        let code = inline.replace_all(&code, "");
        let item = Regex::new(r"(?m)^[ \t]*(pub(?:\([^)]*\))?\s+)?use\s+([^;]+);");
        let item = item.expect("a pattern");
        let uses = item.captures_iter(&code).flat_map(|found| {
            let is_public = found.get(1).is_some();
            let leaves = leaves(&found[2]).into_iter();
            leaves.map(move |(path, name)| Use { is_public, path, name })
        });
        let uses = uses.collect();
        let code = item.replace_all(&code, "").into_owned();
        let path = Regex::new(r"(?:^|[^:\w])(\w+(?:::\w+)+)").expect("a pattern");
        let paths = path.captures_iter(&code).map(|found| parts(&found[1])).collect();
        Self { uses, tests, paths, code }
    }

    /// Whether the code, imports aside, has that word.
    fn mentions(&self, name: &str) -> bool {
        self.code.split(|sign: char| !sign.is_alphanumeric() && sign != '_').any(|it| it == name)
    }
}

/// The items of a `use`, with the names by which they are known.
fn leaves(tree: &str) -> Vec<(Vec<String>, String)> {
    let tree = tree.trim();
    let Some((prefix, group)) = tree.split_once('{') else {
        let (path, alias) = tree.split_once(" as ").unwrap_or((tree, ""));
        let path = parts(path);
        let last = path.last().cloned().unwrap_or_default();
        let name = if alias.is_empty() { last } else { alias.trim().to_owned() };
        return if path.is_empty() { vec![] } else { vec![(path, name)] };
    };
    let group = group.trim_end().strip_suffix('}').expect("a group of imports is closed");
    let mut depth = 0;
    let members = group.split(|sign| {
        match sign {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        sign == ',' && depth == 0
    });
    let members = members.flat_map(leaves);
    members.map(|(path, name)| ([parts(prefix), path].concat(), name)).collect()
}

fn parts(path: &str) -> Vec<String> {
    path.split("::").map(str::trim).filter(|part| !part.is_empty()).map(str::to_owned).collect()
}

fn module_of(path: &str) -> Module {
    let path = path.strip_prefix("src/").and_then(|it| it.strip_suffix(".rs"));
    let mut module: Module = path.expect("a file of src").split('/').map(str::to_owned).collect();
    if module.last().is_some_and(|last| ["mod", "lib"].contains(&last.as_str())) {
        module.pop();
    }
    module
}

fn name(module: &Module) -> String {
    if module.is_empty() { "lib".to_owned() } else { module.join("::") }
}
