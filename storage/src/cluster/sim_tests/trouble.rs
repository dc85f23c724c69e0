//! All that goes wrong while clients send commands.

use super::LEASE;
use super::world::{SimHost, SimWorld};
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Leases that all trouble lasts.
const TROUBLE: u32 = 16;

/// Longest pause between two events.
const PAUSE: Duration = Duration::from_millis(900);

/// Processes that are alive at most.
const MOST: usize = 4;

/// Leases for which a process sleeps, or is cut off, at most.
const LONG: u32 = 3;

impl SimWorld {
    /// Makes trouble for a while.
    pub(super) async fn trouble(self: &Rc<Self>) {
        let begun = tokio::time::Instant::now();
        // Some clusters have many servers, and some few troubles.
        let (most, pause) = (2 + self.sim.below(MOST as u64 - 1) as usize, PAUSE);
        while begun.elapsed() < TROUBLE * LEASE {
            self.wait(pause).await;
            self.check_tasks().await;
            let living = self.living();
            let Some(host) = self.one_of(&living).cloned() else {
                self.start_one();
                continue;
            };
            match self.sim.below(12) {
                0..=2 if living.len() < most => self.start_one(),
                0..=2 if living.len() > 1 || self.sim.below(3) == 0 => self.kill(&host),
                3 | 4 => self.put_to_sleep(&host),
                5 | 6 => self.cut_off(&host),
                7 => self.let_fail(&host),
                8 if self.sim.below(3) == 0 => self.drain(&host),
                _ => {}
            }
        }
    }

    /// Starts a process of a new node, or of one whose process has ended.
    fn start_one(self: &Rc<Self>) {
        let living = self.living();
        let is_free = |node: &u8| living.iter().all(|host| host.node != *node);
        let free: Vec<u8> = (0..self.nodes.get()).filter(is_free).collect();
        let again = self.one_of(&free).copied().filter(|_| self.sim.below(2) == 0);
        let host = self.start(again.unwrap_or(self.nodes.get()));
        if self.sim.below(4) == 0 {
            host.client.die_after(self.sim.below(60));
        }
    }

    /// Lets a process die at one of its next requests.
    fn kill(&self, host: &SimHost) {
        self.count(|seen| seen.deaths += 1);
        self.sim.note(format_args!("a process of node {} is to die", host.node));
        match self.sim.below(3) {
            0 => host.end(),
            _ => host.client.die_after(self.sim.below(120)),
        }
    }

    /// Stops all tasks of a process for a while; what is under way arrives.
    fn put_to_sleep(self: &Rc<Self>, host: &Rc<SimHost>) {
        self.count(|seen| seen.sleeps += 1);
        self.sim.note(format_args!("node {} sleeps", host.node));
        set_asleep(host, true);
        let (world, host) = (self.clone(), host.clone());
        self.spawn(async move {
            world.wait(LONG * LEASE).await;
            world.sim.note(format_args!("node {} goes on", host.node));
            set_asleep(&host, false);
        });
    }

    /// Cuts a process off from the store for a while: requests fail, or hang.
    fn cut_off(self: &Rc<Self>, host: &Rc<SimHost>) {
        self.count(|seen| seen.cuts += 1);
        self.sim.note(format_args!("node {} is cut off", host.node));
        host.client.cut.shut(true);
        let (world, host) = (self.clone(), host.clone());
        self.spawn(async move {
            world.wait(LONG * LEASE).await;
            world.sim.note(format_args!("node {} reaches the store", host.node));
            host.client.cut.shut(false);
        });
    }

    /// Lets requests of a process fail, or arrive late or twice, from now on, or not.
    fn let_fail(&self, host: &SimHost) {
        let faults = [0, 0, 3, 15][self.sim.below(4) as usize];
        host.client.faults.store(faults, Ordering::SeqCst);
        host.client.doubles.store(faults, Ordering::SeqCst);
    }

    /// Lets a server leave.
    fn drain(&self, host: &SimHost) {
        if let Some(server) = &*host.server.borrow() {
            server.is_leaving.set(true);
        }
    }

    /// Ends all trouble: processes that are alive go on.
    pub(super) fn end_trouble(&self) {
        for host in self.living() {
            host.client.die_after(u64::MAX);
            host.client.faults.store(0, Ordering::SeqCst);
            host.client.doubles.store(0, Ordering::SeqCst);
            host.client.cut.shut(false);
            set_asleep(&host, false);
        }
    }
}

fn set_asleep(host: &SimHost, is_asleep: bool) {
    host.process.set_asleep(is_asleep);
    host.client.paused.shut(is_asleep);
}
