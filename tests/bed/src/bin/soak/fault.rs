//! The faults: what is killed, how, and how it recovers.

use std::os::unix::process::ExitStatusExt as _;
use std::process::Command;
use std::time::Duration;

use walpost_bed::fixture::{LONG_TIMEOUT, SHORT_TIMEOUT};
use walpost_bed::{Proxy, Stop};

use crate::Broken;
use crate::rng::Rng;
use crate::services::Services;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    WalpostKilled,
    WalpostTerminated,
    WalpostCrashed,
    WalpostFrozen,
    TargetKilled,
    TargetFrozen,
    TargetStopped,
    ServerKilled,
    ServerFrozen,
    ServerStoppedFast,
    ServerStoppedAtOnce,
    IdleServerStoppedFast,
    IdleServerStoppedAtOnce,
    BackendKilled,
    SessionTerminated,
    ServerLinkCut,
    ServerLinkDead,
    TargetLinkCut,
    TargetLinkDead,
}

/// Each fault with its weight: a broker takes seconds to start.
const DECK: [(Fault, usize); 19] = [
    (Fault::WalpostKilled, 3),
    (Fault::WalpostTerminated, 2),
    (Fault::WalpostCrashed, 4),
    (Fault::WalpostFrozen, 1),
    (Fault::TargetKilled, 1),
    (Fault::TargetFrozen, 1),
    (Fault::TargetStopped, 1),
    (Fault::ServerKilled, 1),
    (Fault::ServerFrozen, 1),
    (Fault::ServerStoppedFast, 1),
    (Fault::ServerStoppedAtOnce, 2),
    (Fault::IdleServerStoppedFast, 1),
    (Fault::IdleServerStoppedAtOnce, 1),
    (Fault::BackendKilled, 1),
    (Fault::SessionTerminated, 2),
    (Fault::ServerLinkCut, 2),
    (Fault::ServerLinkDead, 1),
    (Fault::TargetLinkCut, 2),
    (Fault::TargetLinkDead, 1),
];

/// Further crash points of exactly-once mode: before and after the Kafka transaction ends.
const COMMIT_POINTS: [(&str, &str); 2] =
    [("state_acknowledged", "return"), ("committed", "return")];

/// SIGABRT.
const ABORTED: Option<i32> = Some(6);

impl Fault {
    /// A shuffled deck, dealt from its end: one fault of each kind, then the usual ones again.
    pub(crate) fn deck(rng: &mut Rng) -> Vec<Self> {
        let repeats = |(fault, times): (Self, usize)| std::iter::repeat_n(fault, times - 1);
        let mut deck: Vec<_> = DECK.into_iter().flat_map(repeats).collect();
        let mut kinds = DECK.map(|(fault, _)| fault);
        rng.shuffle(&mut deck);
        rng.shuffle(&mut kinds);
        deck.extend(kinds);
        deck
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::WalpostKilled => "walpost, kill -9",
            Self::WalpostTerminated => "walpost, SIGTERM",
            Self::WalpostCrashed => "walpost, at a crash point",
            Self::WalpostFrozen => "walpost, SIGSTOP for seconds",
            Self::TargetKilled => "destination, kill -9",
            Self::TargetFrozen => "destination, SIGSTOP for seconds",
            Self::TargetStopped => "destination, clean stop",
            Self::ServerKilled => "PostgreSQL, kill -9",
            Self::ServerFrozen => "PostgreSQL, SIGSTOP for seconds",
            Self::ServerStoppedFast => "PostgreSQL, fast restart",
            Self::ServerStoppedAtOnce => "PostgreSQL, immediate restart",
            Self::IdleServerStoppedFast => "PostgreSQL without events, fast restart",
            Self::IdleServerStoppedAtOnce => "PostgreSQL without events, immediate restart",
            Self::BackendKilled => "PostgreSQL, kill -9 of a backend",
            Self::SessionTerminated => "walsender, pg_terminate_backend",
            Self::ServerLinkCut => "link to PostgreSQL, cut",
            Self::ServerLinkDead => "link to PostgreSQL, dead for seconds",
            Self::TargetLinkCut => "link to the destination, cut",
            Self::TargetLinkDead => "link to the destination, dead for seconds",
        }
    }

    /// Whether walpost is gone once it is committed.
    pub(crate) fn ends_walpost(self) -> bool {
        matches!(self, Self::WalpostKilled | Self::WalpostTerminated | Self::WalpostCrashed)
    }

    /// Whether it comes once a walpost has started that has no events to receive.
    pub(crate) fn comes_while_idle(self) -> bool {
        matches!(self, Self::IdleServerStoppedFast | Self::IdleServerStoppedAtOnce)
    }

    /// Injects it; on return everything else is up again, though walpost may not know yet.
    pub(crate) async fn inject(self, services: &mut Services, rng: &mut Rng) -> Result<(), Broken> {
        let moment = Duration::from_millis(rng.of(0..500));
        let seconds = Duration::from_millis(rng.of(1000..4500));
        match self {
            Self::WalpostKilled => services.walpost.kill9().await,
            Self::WalpostTerminated => {
                services.walpost.terminate();
                let status = services.walpost.wait(SHORT_TIMEOUT).await;
                if status.and_then(|status| status.code()) != Some(0) {
                    return Err(services.said(&format!("SIGTERM: {status:?}")));
                }
            }
            Self::WalpostCrashed => crash(services, rng).await?,
            // Its session may have ended meanwhile, and what it has sent is answered.
            Self::WalpostFrozen => {
                services.walpost.pause();
                tokio::time::sleep(seconds).await;
                services.walpost.resume();
            }
            Self::TargetKilled => {
                services.target.kill9().await;
                services.meanwhile(moment, rng).await;
                services.target.start_again().await;
            }
            Self::TargetFrozen => {
                services.target.pause();
                services.meanwhile(seconds, rng).await;
                services.target.resume();
            }
            Self::TargetStopped => {
                if !services.target.stop(LONG_TIMEOUT).await {
                    return Err("the destination does not stop".to_owned());
                }
                services.meanwhile(moment, rng).await;
                services.target.start_again().await;
            }
            Self::ServerKilled => {
                services.fixture().postgres.kill9().await;
                services.fixture().postgres.start_again().await;
            }
            Self::ServerFrozen => {
                services.fixture().postgres.pause();
                services.meanwhile(seconds, rng).await;
                services.fixture().postgres.resume();
            }
            Self::ServerStoppedFast | Self::IdleServerStoppedFast => {
                services.fixture().postgres.restart(Stop::Fast).await;
            }
            Self::ServerStoppedAtOnce | Self::IdleServerStoppedAtOnce => {
                services.fixture().postgres.restart(Stop::Immediate).await;
            }
            Self::BackendKilled => kill_a_backend(services, rng).await?,
            Self::SessionTerminated => {
                let terminate = "SELECT pg_terminate_backend(pid) FROM pg_stat_replication";
                services.ask(terminate).await?;
            }
            Self::ServerLinkCut => services.postgres_link.cut(),
            Self::TargetLinkCut => services.target_link.cut(),
            Self::ServerLinkDead | Self::TargetLinkDead => {
                self.link(services).blackhole();
                services.meanwhile(seconds, rng).await;
                self.link(services).restore();
            }
        }
        Ok(())
    }

    fn link(self, services: &Services) -> &Proxy {
        if self == Self::ServerLinkDead { &services.postgres_link } else { &services.target_link }
    }
}

/// It starts with a point armed and dies there.
async fn crash(services: &mut Services, rng: &mut Rng) -> Result<(), Broken> {
    let in_commit = services.target.has_transactions() && rng.of(0..2) == 0;
    let points = if in_commit { COMMIT_POINTS.to_vec() } else { services.target.points() };
    let (point, how) = rng.one_of(&points);
    // The first commit is that of the claim.
    let before = rng.of(if in_commit { 0..20 } else { 0..200 });
    let armed = format!("{point}={before}*off->{how}");
    services.walpost.kill9().await;
    services.start_walpost(Some(&armed));
    let status = services.walpost.wait(LONG_TIMEOUT).await;
    if status.and_then(|status| status.signal()) != ABORTED {
        return Err(services.said(&format!("{armed}: {status:?}")));
    }
    Ok(())
}

/// The server then ends all sessions and recovers without help.
async fn kill_a_backend(services: &mut Services, rng: &mut Rng) -> Result<(), Broken> {
    let whose = rng.one_of(&["backend_type = 'walsender'", "application_name = 'writer'"]);
    // The one that is always there is last.
    let query = format!(
        "SELECT pid FROM pg_stat_activity WHERE {whose} OR backend_type = 'checkpointer' \
         ORDER BY backend_type = 'checkpointer' LIMIT 1"
    );
    let pid = services.ask(&query).await?;
    let killed = Command::new("kill").args(["-KILL", &pid]).status();
    killed.map_err(|error| format!("kill: {error}"))?;
    services.ask("SELECT 1").await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_soak_has_a_fault_of_each_kind() {
        for seed in 0..100 {
            let mut deck = Fault::deck(&mut Rng::new(seed));
            assert_eq!(deck.len(), DECK.iter().map(|(_, times)| times).sum::<usize>());
            let mut first = deck.split_off(deck.len() - DECK.len());
            first.sort_unstable();
            assert!(first.is_sorted_by(|one, next| one < next), "{seed}: {first:?}");
        }
    }
}
