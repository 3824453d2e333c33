//! Timelines: a promoted standby begins a new one at the end of what it has of the former.
//!
//! <https://www.postgresql.org/docs/current/continuous-archiving.html#BACKUP-TIMELINES>

use crate::lsn::Lsn;

/// The history file of a server's timeline; `None` for the first timeline, or if the server has none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::source) struct Timelines(pub(in crate::source) Option<String>);

impl Timelines {
    /// The end of that timeline in this server's history, if it descends from it.
    pub(in crate::source) fn end_of(&self, timeline: u32) -> Option<Lsn> {
        end_of(timeline, self.0.as_deref()?)
    }
}

/// Where timeline `of` ends in a history file, if the file's timeline descends from it.
///
/// A line is the id of a timeline, the LSN at which the next one begins, and a reason; a comment
/// begins with `#`
/// ([timeline.c](https://doxygen.postgresql.org/timeline_8c_source.html), `readTimeLineHistory`).
fn end_of(of: u32, history: &str) -> Option<Lsn> {
    history.lines().map(str::trim).filter(|line| !line.starts_with('#')).find_map(|line| {
        let mut fields = line.split_ascii_whitespace();
        let id: u32 = fields.next()?.parse().ok()?;
        let end = fields.next()?.parse().ok()?;
        (id == of).then_some(end)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeline_ends_where_the_next_one_begins() {
        let history = "1\t0/3000148\tno recovery target specified\n\n# by hand\n\
                       3\t1/A0\tafter transaction 26\n";
        assert_eq!(end_of(1, history), Some(Lsn::new(0x300_0148)));
        assert_eq!(end_of(3, history), Some(Lsn::new(0x1_0000_00A0)));
        for (of, history) in [(2, history), (4, history), (1, ""), (1, "1"), (1, "1\tnow")] {
            assert_eq!(end_of(of, history), None, "{of} in {history}");
        }
    }
}
