//! The machine of a simulated process: no threads, and chance from the seed.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use keylane_router::lease::LeaseClock;
use keylane_router::machine::{Machine, Work};

use super::case::{Call, Effect};
use super::world::{Pass, World};

/// One process's machine.
#[derive(Clone)]
pub(crate) struct SimulatedMachine(pub(crate) Arc<World>);

impl Machine for SimulatedMachine {
    fn wall(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(1_800_000_000) + self.0.lease_now()
    }

    fn random(&self) -> u64 {
        self.0.with_chance(|chance| chance.next())
    }

    fn run(&self, work: Work) {
        let world = self.0.clone();
        let takes = world.with_chance(|chance| match chance.one_in(8) {
            true => chance.millis(0, 30),
            false => chance.millis(0, 2),
        });
        tokio::spawn(async move {
            tokio::time::sleep(takes).await;
            if world.is_open() {
                work();
                world.work_done();
            }
        });
    }

    fn has_threads(&self) -> bool {
        false
    }

    fn commits(&self) -> bool {
        match self.0.pass(Call::Commit, &[]) {
            Pass::Go => true,
            Pass::Fails(Effect::CrashAfter) => {
                self.0.crash_when_done();
                true
            }
            Pass::Fails(_) | Pass::Never => false,
        }
    }
}

/// The clock of leases: it goes on while the machine sleeps.
pub(crate) struct SimulatedLeases(pub(crate) Arc<World>);

impl LeaseClock for SimulatedLeases {
    fn now(&self) -> Duration {
        self.0.lease_now()
    }
}
