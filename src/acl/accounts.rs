//! The accounts of the node: names with their users, and the changes to them.

use super::password::PasswordHash;
use super::selector::Denied;
use super::user::{User, has_blanks};
use crate::command::Command;
use arc_swap::{ArcSwap, Guard};
use flagstone_wire::resp::Args;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};

/// Name of the account that new connections have.
const DEFAULT: &[u8] = b"default";

/// Memory in bytes of an account beside its name and its user's rules.
const ACCOUNT_BYTES: usize = 400;

const BAD_NAME: &[u8] = b"Usernames can't contain spaces or null characters";
const NO_ROOM: &[u8] = b"OOM the ACL users take all the memory they may";

/// A name under which connections are logged in, with its present user.
#[derive(Debug)]
pub struct Account {
    pub name: Box<[u8]>,
    /// Its number, which no other account ever has; not 0.
    pub number: u64,
    user: ArcSwap<User>,
    /// True if the user may do everything.
    is_free: AtomicBool,
    /// True if clients need not log in, provided it is the default account.
    is_open: AtomicBool,
}

impl Account {
    fn new(name: &[u8], number: u64, user: Arc<User>) -> Self {
        Self {
            name: name.into(),
            number,
            is_free: AtomicBool::new(user.is_free()),
            is_open: AtomicBool::new(user.is_open()),
            user: ArcSwap::new(user),
        }
    }

    /// Returns true if its user may do everything, so that nothing need be checked.
    #[inline]
    pub fn is_free(&self) -> bool {
        self.is_free.load(Ordering::Relaxed)
    }

    /// Returns its present user.
    pub fn user(&self) -> Guard<Arc<User>> {
        self.user.load()
    }

    /// Returns its number for requests, which is 0 if nothing need be checked.
    #[inline]
    pub fn checked_number(&self) -> u64 {
        if self.is_free() { 0 } else { self.number }
    }

    /// Returns its name as text.
    pub fn shown_name(&self) -> std::borrow::Cow<'_, str> {
        String::from_utf8_lossy(&self.name)
    }

    fn set(&self, user: Arc<User>) {
        // A user that loses rights is checked before it can lose them.
        if !user.is_free() {
            self.is_free.store(false, Ordering::Relaxed);
        }
        self.is_open.store(user.is_open(), Ordering::Relaxed);
        self.user.store(user.clone());
        self.is_free.store(user.is_free(), Ordering::Release);
    }

    /// Takes all rights, because the account was removed.
    fn end(&self) {
        self.set(Arc::new(User::new(false)));
    }

    fn memory(&self) -> usize {
        memory_of(&self.name, &self.user())
    }
}

fn memory_of(name: &[u8], user: &User) -> usize {
    ACCOUNT_BYTES + 2 * name.len() + user.size().1
}

/// A change of an account's user.
#[derive(Debug)]
pub struct AccountChange {
    pub account: Arc<Account>,
    pub before: Arc<User>,
    pub after: Arc<User>,
}

/// Result of an exchange of all accounts.
#[derive(Debug)]
pub struct ExchangedAccounts {
    pub removed: Vec<Arc<Account>>,
    /// Changes of those that stay.
    pub changes: Vec<AccountChange>,
}

#[derive(Debug, Default)]
struct AccountTable {
    by_name: BTreeMap<Box<[u8]>, Arc<Account>>,
    by_number: HashMap<u64, Arc<Account>>,
}

impl AccountTable {
    fn insert(&mut self, account: Arc<Account>) {
        self.by_number.insert(account.number, account.clone());
        self.by_name.insert(account.name.clone(), account);
    }

    fn remove(&mut self, name: &[u8]) -> Option<Arc<Account>> {
        let account = self.by_name.remove(name)?;
        self.by_number.remove(&account.number);
        Some(account)
    }
}

/// All accounts of the node.
#[derive(Debug)]
pub struct Accounts {
    table: RwLock<AccountTable>,
    default: Arc<Account>,
    /// Number of the last account.
    numbers: AtomicU64,
    /// Memory of all accounts in bytes, and its maximum. Held while accounts change.
    bytes: Mutex<usize>,
    max_bytes: usize,
}

impl Accounts {
    /// Creates the default account. All accounts may take `max_bytes` of memory.
    pub fn new(password: Option<&[u8]>, max_bytes: usize) -> Self {
        let user = Arc::new(User::default_user(password));
        let default = Arc::new(Account::new(DEFAULT, 1, user));
        let mut table = AccountTable::default();
        table.insert(default.clone());
        Self {
            bytes: Mutex::new(default.memory()),
            table: RwLock::new(table),
            default,
            numbers: AtomicU64::new(1),
            max_bytes,
        }
    }

    fn table(&self) -> RwLockReadGuard<'_, AccountTable> {
        self.table.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the account of new connections.
    pub fn default_account(&self) -> &Arc<Account> {
        &self.default
    }

    /// Returns true if a new connection has to log in.
    #[inline]
    pub fn needs_password(&self) -> bool {
        !self.default.is_open.load(Ordering::Relaxed)
    }

    pub fn get(&self, name: &[u8]) -> Option<Arc<Account>> {
        self.table().by_name.get(name).cloned()
    }

    /// Returns all accounts in the order of their names.
    pub fn all(&self) -> Vec<Arc<Account>> {
        self.table().by_name.values().cloned().collect()
    }

    pub fn len(&self) -> usize {
        self.table().by_name.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the account of a client that gives a name and a password, if they are right. A name
    /// that does not exist takes as long as a wrong password.
    pub fn log_in(&self, name: &[u8], password: &[u8]) -> Option<Arc<Account>> {
        let given = PasswordHash::of(password);
        let account = self.get(name);
        let is_right = account.as_ref().unwrap_or(&self.default).user().accepts(&given);
        account.filter(|_| is_right)
    }

    /// Checks a command of the account with a number, which may have changed since it was sent, or
    /// be gone. 0 needs no check.
    ///
    /// # Errors
    /// The account's name and the reason.
    pub fn check(
        &self,
        number: u64,
        command: &Command,
        args: Args<'_>,
    ) -> Result<(), (Box<[u8]>, Denied)> {
        if number == 0 || (number == self.default.number && self.default.is_free()) {
            return Ok(());
        }
        match self.numbered(number) {
            Some(account) if account.is_free() => Ok(()),
            Some(account) => {
                account.user().check(command, args).map_err(|denied| (account.name.clone(), denied))
            }
            None => Err((Box::default(), Denied::COMMAND)),
        }
    }

    fn numbered(&self, number: u64) -> Option<Arc<Account>> {
        self.table().by_number.get(&number).cloned()
    }

    /// Returns true if the account with a number may run a command and read every key with it.
    pub fn reads_all(&self, number: u64, command: &Command, args: Args<'_>) -> bool {
        number == 0
            || self
                .numbered(number)
                .is_some_and(|account| account.is_free() || account.user().reads_all(command, args))
    }

    /// Changes an account by rules, or creates it (ACL SETUSER). `all_channels`: the default of
    /// `acl-pubsub-default`.
    ///
    /// # Errors
    /// The text of the error, without its code. Nothing has changed.
    pub fn change(
        &self,
        name: &[u8],
        rules: &[&[u8]],
        all_channels: bool,
    ) -> Result<Option<AccountChange>, Vec<u8>> {
        if has_blanks(name) {
            return Err(BAD_NAME.to_vec());
        }
        let mut bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        let account = self.get(name);
        let mut user = match &account {
            Some(account) => User::clone(&account.user()),
            None => User::new(all_channels),
        };
        user.apply_all(rules, all_channels)?;
        let before = account.as_ref().map_or(0, |account| account.memory());
        let after = memory_of(name, &user);
        if after > before && *bytes + (after - before) > self.max_bytes {
            return Err(NO_ROOM.to_vec());
        }
        *bytes = *bytes + after - before;
        let user = Arc::new(user);
        match account {
            Some(account) => Ok(Some(self.replace(account, user))),
            None => {
                self.create(name, user);
                Ok(None)
            }
        }
    }

    /// Creates an account.
    fn create(&self, name: &[u8], user: Arc<User>) {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed) + 1;
        let account = Arc::new(Account::new(name, number, user));
        self.table.write().unwrap_or_else(PoisonError::into_inner).insert(account);
    }

    /// Exchanges an account's user.
    fn replace(&self, account: Arc<Account>, after: Arc<User>) -> AccountChange {
        let before = account.user.load_full();
        account.set(after.clone());
        AccountChange { account, before, after }
    }

    /// Removes accounts, and returns those that were there; the default account stays.
    pub fn remove<'a>(&self, names: impl Iterator<Item = &'a [u8]>) -> Vec<Arc<Account>> {
        let mut bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        let mut removed = Vec::new();
        for name in names.filter(|name| *name != DEFAULT) {
            let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
            let Some(account) = table.remove(name) else { continue };
            drop(table);
            *bytes -= account.memory().min(*bytes);
            account.end();
            removed.push(account);
        }
        removed
    }

    /// Sets the default account's only password, or none (`requirepass`).
    pub fn set_default_password(&self, password: Option<&[u8]>) {
        let _bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        let mut user = User::clone(&self.default.user());
        user.set_password(password);
        self.replace(self.default.clone(), Arc::new(user));
    }

    /// Exchanges all accounts (ACL LOAD): those that are not among `users` are removed. Returns the
    /// removed accounts, and the changes of the others.
    ///
    /// # Errors
    /// They take too much memory. Nothing has changed.
    pub fn exchange(&self, users: BTreeMap<Box<[u8]>, User>) -> Result<ExchangedAccounts, Vec<u8>> {
        let sum: usize = users.iter().map(|(name, user)| memory_of(name, user)).sum();
        if sum > self.max_bytes {
            return Err(NO_ROOM.to_vec());
        }
        let gone: Vec<_> =
            self.all().into_iter().filter(|known| !users.contains_key(&known.name)).collect();
        let removed = self.remove(gone.iter().map(|account| &*account.name));
        let mut bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        let mut changes = Vec::new();
        for (name, user) in users {
            match self.get(&name) {
                Some(account) => changes.push(self.replace(account, Arc::new(user))),
                None => self.create(&name, Arc::new(user)),
            }
        }
        *bytes = self.all().iter().map(|account| account.memory()).sum();
        Ok(ExchangedAccounts { removed, changes })
    }
}

#[cfg(test)]
#[path = "accounts_tests.rs"]
mod tests;
