//! `walpost man [DIRECTORY]`: the manual pages, generated from `--help`.

use std::fs;
use std::path::Path;

use clap::CommandFactory;
use clap_mangen::Man;

use super::args::Arguments;
use super::{Exit, complain};

/// walpost(1).
pub(super) fn page() -> String {
    let mut commands = commands();
    String::from_utf8_lossy(&render(&man(commands.remove(0)))).into_owned()
}

/// Writes walpost.1 and a page per command.
pub(super) fn write_all(directory: &Path) -> Exit {
    let written = fs::create_dir_all(directory).and_then(|()| {
        commands().into_iter().try_for_each(|command| {
            let man = man(command);
            fs::write(directory.join(man.get_filename()), render(&man))
        })
    });
    match written {
        Ok(()) => Exit::Ok,
        Err(error) => {
            complain(&format!("cannot write to {}: {error}", directory.display()));
            Exit::Failure
        }
    }
}

/// All commands, walpost itself first. A built command knows the name of its page.
fn commands() -> Vec<clap::Command> {
    let mut walpost = Arguments::command().disable_help_subcommand(true);
    walpost.build();
    let commands: Vec<_> = walpost.get_subcommands().cloned().collect();
    [vec![walpost], commands].concat()
}

fn man(command: clap::Command) -> Man {
    Man::new(command).source(concat!("walpost ", env!("CARGO_PKG_VERSION"))).manual("walpost")
}

fn render(man: &Man) -> Vec<u8> {
    let mut page = Vec::new();
    man.render(&mut page).expect("memory can be written to");
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_a_page_for_walpost_and_for_each_command() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(write_all(directory.path()), Exit::Ok);
        let read = |page: &str| fs::read_to_string(directory.path().join(page)).unwrap();
        for command in Arguments::command().get_subcommands() {
            let page = read(&format!("walpost-{}.1", command.get_name()));
            assert!(page.contains(".SH SYNOPSIS"), "{page}");
        }
        assert!(read("walpost-run.1").contains("drain\\-timeout"));
        assert_eq!(read("walpost.1"), page());
        assert!(page().contains("walpost\\-import\\-debezium(1)"), "{}", page());
    }

    #[test]
    fn a_directory_that_cannot_be_created_is_a_failure() {
        assert_eq!(write_all(Path::new("/dev/null/man")), Exit::Failure);
    }
}
