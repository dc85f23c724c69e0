//! What clients have sent and seen. Each key is a counter, so its replies tell their order.

use std::collections::BTreeSet;

/// One key.
#[derive(Default)]
struct KeyLedger {
    /// The greatest number that a reply has shown.
    shown: u64,
    /// Increments that have begun.
    begun: u64,
    /// Replies to increments.
    acknowledged: BTreeSet<u64>,
}

/// All keys.
pub(super) struct ClientLedger {
    keys: Vec<KeyLedger>,
    pub(super) reads: u64,
    pub(super) writes: u64,
}

/// A command that was sent.
pub(super) struct SentCommand {
    pub(super) keys: Vec<u64>,
    pub(super) is_write: bool,
    /// The number that a reply must not be below.
    least: u64,
}

impl ClientLedger {
    pub(super) fn new(keys: u64) -> Self {
        let keys = (0..keys).map(|_| KeyLedger::default()).collect();
        Self { keys, reads: 0, writes: 0 }
    }

    /// Notes a command that a client sends.
    pub(super) fn send(&mut self, keys: &[u64], is_write: bool) -> SentCommand {
        let mut least = 0;
        for key in keys {
            let key = &mut self.keys[*key as usize];
            key.begun += u64::from(is_write);
            least = least.max(key.shown + u64::from(is_write));
        }
        SentCommand { keys: keys.to_vec(), is_write, least }
    }

    /// Notes the reply to a command. The error says what is wrong with it.
    pub(super) fn reply(&mut self, command: &SentCommand, number: u64) -> Result<(), String> {
        let SentCommand { keys, is_write, least } = command;
        for at in keys {
            let key = &mut self.keys[*at as usize];
            let kind = if *is_write { "an increment" } else { "a read" };
            if number < *least {
                return Err(format!("{kind} of key {at} shows {number}, and {least} was due"));
            }
            if number > key.begun {
                return Err(format!("{kind} of key {at} shows {number} of {}", key.begun));
            }
            if *is_write && !key.acknowledged.insert(number) {
                return Err(format!("two increments of key {at} have made {number}"));
            }
            key.shown = key.shown.max(number);
        }
        match is_write {
            true => self.writes += 1,
            false => self.reads += 1,
        }
        Ok(())
    }
}
