//! HELLO and AUTH: protocol version and authentication.

use crate::acl::{DenialContext, DenialReason, DeniedAccess};
use crate::node::Node;
use crate::routing::{Call, CallOutcome, WrongPassword};
use crate::version::{COMPATIBLE_VERSION, REDIS_VERSION};
use flagstone_commands::{ErrorText, arg, error, is_word};
use flagstone_wire::num::parse_i64;
use flagstone_wire::resp::{Args, Proto};
use std::time::Duration;

const WRONG_PASS: &str = "WRONGPASS invalid username-password pair or user is disabled.";
const NO_PASSWORD_SET: &str = "ERR AUTH <password> called without any password configured for \
    the default user. Are you sure your configuration is correct?";
const NOT_AUTHENTICATED: &str = "NOAUTH HELLO must be called with the client already \
    authenticated, otherwise the HELLO <proto> AUTH <user> <pass> option can be used to \
    authenticate the client and select the RESP protocol version at the same time";
const BAD_NAME: &str = "ERR Client names cannot contain spaces, newlines or special characters.";

/// Delay of the error for the first wrong password of a connection, and the maximum.
const FIRST_PENALTY: Duration = Duration::from_millis(50);
const MAX_PENALTY: Duration = Duration::from_secs(3);

/// Options of HELLO.
#[derive(Default)]
struct Hello<'a> {
    version: Option<Proto>,
    /// User and password.
    credentials: Option<(&'a [u8], &'a [u8])>,
    name: Option<String>,
}

impl<'a> Hello<'a> {
    fn parse(args: Args<'a>) -> Result<Self, ErrorText> {
        let mut hello =
            Self { version: args.get(1).map(protocol_version).transpose()?, ..Self::default() };
        let mut at = 2;
        while let Some(option) = args.get(at) {
            let left = args.len() - 1 - at;
            if is_word(option, "auth") && left >= 2 {
                hello.credentials = Some((arg(args, at + 1)?, arg(args, at + 2)?));
                at += 3;
            } else if is_word(option, "setname") && left >= 1 {
                hello.name = Some(client_name(arg(args, at + 1)?)?);
                at += 2;
            } else {
                let option = String::from_utf8_lossy(option);
                return Err(format!("ERR Syntax error in HELLO option '{option}'").into());
            }
        }
        Ok(hello)
    }
}

/// `HELLO [protover [AUTH username password] [SETNAME clientname]]`
pub(super) fn hello(cx: &mut Call<'_>, args: Args<'_>) -> CallOutcome {
    let Hello { version, credentials, name } = Hello::parse(args)?;
    if let Some((user, password)) = credentials {
        authenticate(cx, args, user, password)?;
    }
    if !cx.session.authenticated && cx.node.access.accounts.needs_password() {
        return Err(NOT_AUTHENTICATED.into());
    }
    if let Some(name) = name {
        cx.session.client.labels().name = name;
    }
    if let Some(version) = version {
        change_protocol(cx, version);
    }
    answer(cx);
    Ok(())
}

/// Returns the number of the account that HELLO logs in with, if it tries to.
pub(super) fn hello_account(node: &Node, args: Args<'_>) -> Option<Result<u64, WrongPassword>> {
    let (user, password) = Hello::parse(args).ok()?.credentials?;
    Some(account_number(node, user, password))
}

fn protocol_version(text: &[u8]) -> Result<Proto, ErrorText> {
    match parse_i64(text) {
        None => Err("ERR Protocol version is not an integer or out of range".into()),
        Some(2) => Ok(Proto::Resp2),
        Some(3) => Ok(Proto::Resp3),
        Some(_) => Err("NOPROTO unsupported protocol version".into()),
    }
}

/// Renders replies and messages in another protocol from now on. Messages of before come before the reply.
pub(super) fn change_protocol(cx: &mut Call<'_>, version: Proto) {
    let (session, out) = (&mut *cx.session, &mut *cx.out);
    cx.node.broadcast.pubsub.between_messages(|| {
        session.set_proto(version);
        session.take_pushes(out);
    });
    out.set_proto(version);
}

fn answer(cx: &mut Call<'_>) {
    let settings = cx.worker.settings();
    let out = &mut *cx.out;
    let zone = settings.availability_zone.as_str();
    out.map(7 + usize::from(!zone.is_empty()));
    let (server, version) = if settings.extended_redis_compatibility {
        ("redis", REDIS_VERSION)
    } else {
        ("valkey", COMPATIBLE_VERSION)
    };
    out.bulk_str("server");
    out.bulk_str(server);
    out.bulk_str("version");
    out.bulk_str(version);
    out.bulk_str("proto");
    out.int(if out.is_resp3() { 3 } else { 2 });
    out.bulk_str("id");
    out.int(cx.session.client.id.cast_signed());
    out.bulk_str("mode");
    out.bulk_str(if settings.cluster_enabled { "cluster" } else { "standalone" });
    out.bulk_str("role");
    out.bulk_str(if cx.node.health.replica.has_primary() { "replica" } else { "master" });
    out.bulk_str("modules");
    out.array(0);
    if !zone.is_empty() {
        out.bulk_str("availability_zone");
        out.bulk_str(zone);
    }
}

/// `AUTH [username] password`
pub(super) fn auth(cx: &mut Call<'_>, args: Args<'_>) -> CallOutcome {
    let (user, password) = credentials(cx.node, args)?;
    authenticate(cx, args, user, password)?;
    cx.out.ok();
    Ok(())
}

/// Returns the user and the password among the arguments of AUTH.
fn credentials<'a>(node: &Node, args: Args<'a>) -> Result<(&'a [u8], &'a [u8]), ErrorText> {
    match args.len() {
        2 if node.access.accounts.default_account().user().nopass => Err(NO_PASSWORD_SET.into()),
        2 => Ok((b"default", arg(args, 1)?)),
        3 => Ok((arg(args, 1)?, arg(args, 2)?)),
        _ => Err(error::SYNTAX.into()),
    }
}

/// Returns the number of the account that AUTH logs in with, if it tries to.
pub(super) fn auth_account(node: &Node, args: Args<'_>) -> Option<Result<u64, WrongPassword>> {
    let (user, password) = credentials(node, args).ok()?;
    Some(account_number(node, user, password))
}

fn account_number(node: &Node, user: &[u8], password: &[u8]) -> Result<u64, WrongPassword> {
    let account = node.access.accounts.log_in(user, password);
    account.map(|account| account.number).ok_or(WrongPassword)
}

/// Logs the connection in, if the password is right; otherwise it stays as it was.
fn authenticate(cx: &mut Call<'_>, args: Args<'_>, user: &[u8], password: &[u8]) -> CallOutcome {
    let session = &mut *cx.session;
    // The delay for a wrong password comes behind EXEC: until then, no other one is tried.
    if session.in_exec && session.penalty.is_some() {
        return Err(WRONG_PASS.into());
    }
    let Some(account) = cx.node.access.accounts.log_in(user, password) else {
        cx.node.clients.refusals.wrong_password(&session.client.addr);
        session.penalty = Some(penalty(session.wrong_passwords));
        session.wrong_passwords = session.wrong_passwords.saturating_add(1);
        let context = match session.in_exec {
            true => DenialContext::Multi,
            false => DenialContext::TopLevel,
        };
        let object = args.get(0).unwrap_or_default();
        let access = DeniedAccess::new(DenialReason::Auth, context, object, user);
        cx.node.log_denial(access, 1, Some(&session.client), &cx.worker.settings());
        return Err(WRONG_PASS.into());
    };
    session.log_in(account);
    cx.node.clients.befriend(&session.client);
    Ok(())
}

/// Returns the delay of the error for a wrong password after so many others in a row, to slow down
/// guessing. Other connections are not affected.
fn penalty(before: u32) -> Duration {
    (FIRST_PENALTY * 2_u32.pow(before.min(10))).min(MAX_PENALTY)
}

/// Parses the name of a connection, which may be empty.
pub(super) fn client_name(name: &[u8]) -> Result<String, ErrorText> {
    if !is_printable(name) {
        return Err(BAD_NAME.into());
    }
    Ok(String::from_utf8_lossy(name).into_owned())
}

/// Returns true if CLIENT LIST can show a text as one word.
pub(super) fn is_printable(text: &[u8]) -> bool {
    text.iter().all(|byte| (b'!'..=b'~').contains(byte))
}
