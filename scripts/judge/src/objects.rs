//! The operations on one key: a register or a list, as one sequential object.

use serde::Deserialize;
use serde_json::Value as Json;
use todc_utils::linearizability::WGLChecker;
use todc_utils::linearizability::history::{Action, History};
use todc_utils::specifications::Specification;

/// An operation as recorded; without an answer it is open.
#[derive(Debug, Deserialize)]
pub struct Event {
    pub key: String,
    pub process: usize,
    pub call: u64,
    pub back: Option<u64>,
    pub f: String,
    #[serde(default)]
    pub args: Vec<i64>,
    #[serde(default)]
    pub out: Json,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum State {
    Absent,
    Number(i64),
    List(Vec<i64>),
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Get,
    Set(i64),
    Incr,
    GetSet(i64),
    Cas(i64, i64),
    Del,
    LPush(i64),
    RPush(i64),
    LPop,
    RPop,
    LLen,
    LRange,
}

#[derive(Clone, Debug)]
pub struct Operation {
    kind: Kind,
    /// `None`: there was no answer, and any is right.
    out: Option<Json>,
}

struct Key;

impl Specification for Key {
    type State = State;
    type Operation = Operation;

    fn init() -> State {
        State::Absent
    }

    fn apply(operation: &Operation, state: &State) -> (bool, State) {
        match step(operation.kind, state) {
            Some((out, next)) if operation.out.as_ref().is_none_or(|seen| *seen == out) => {
                (true, next)
            }
            _ => (false, state.clone()),
        }
    }
}

fn number(state: &State) -> Json {
    match state {
        State::Number(n) => (*n).into(),
        _ => Json::Null,
    }
}

/// Returns the answer and the key's next state; `None` if the key holds another type.
fn step(kind: Kind, state: &State) -> Option<(Json, State)> {
    match kind {
        Kind::Del => Some((i64::from(*state != State::Absent).into(), State::Absent)),
        Kind::Get | Kind::Set(_) | Kind::Incr | Kind::GetSet(_) | Kind::Cas(..) => {
            register(kind, state)
        }
        _ => list(kind, state),
    }
}

fn register(kind: Kind, state: &State) -> Option<(Json, State)> {
    if matches!(state, State::List(_)) {
        return None;
    }
    let set = |n: i64| State::Number(n);
    Some(match (kind, state) {
        (Kind::Get, _) => (number(state), state.clone()),
        (Kind::Set(n), _) => ("OK".into(), set(n)),
        (Kind::Incr, State::Number(n)) => ((n + 1).into(), set(n + 1)),
        (Kind::Incr, _) => (1.into(), set(1)),
        (Kind::GetSet(n), _) => (number(state), set(n)),
        (Kind::Cas(old, new), State::Number(n)) if *n == old => (1.into(), set(new)),
        _ => (0.into(), state.clone()),
    })
}

fn list(kind: Kind, state: &State) -> Option<(Json, State)> {
    let mut list = match state {
        State::Absent => Vec::new(),
        State::List(list) => list.clone(),
        State::Number(_) => return None,
    };
    let popped = |element: Option<i64>| element.map_or(Json::Null, Json::from);
    let out = match kind {
        Kind::LPush(n) => {
            list.insert(0, n);
            list.len().into()
        }
        Kind::RPush(n) => {
            list.push(n);
            list.len().into()
        }
        Kind::LPop => popped((!list.is_empty()).then(|| list.remove(0))),
        Kind::RPop => popped(list.pop()),
        Kind::LLen => list.len().into(),
        _ => list.clone().into(),
    };
    let next = if list.is_empty() { State::Absent } else { State::List(list) };
    Some((out, next))
}

fn kind_of(event: &Event) -> Result<Kind, String> {
    Ok(match (event.f.as_str(), &event.args[..]) {
        ("get", []) => Kind::Get,
        ("set", [n]) => Kind::Set(*n),
        ("incr", []) => Kind::Incr,
        ("getset", [n]) => Kind::GetSet(*n),
        ("cas", [old, new]) => Kind::Cas(*old, *new),
        ("del", []) => Kind::Del,
        ("lpush", [n]) => Kind::LPush(*n),
        ("rpush", [n]) => Kind::RPush(*n),
        ("lpop", []) => Kind::LPop,
        ("rpop", []) => Kind::RPop,
        ("llen", []) => Kind::LLen,
        ("lrange", []) => Kind::LRange,
        _ => return Err(format!("no operation {event:?}")),
    })
}

/// Returns true if some order of the operations on one key explains all answers. An operation
/// without an answer may happen at any time after its call, even after all others, where no
/// operation sees it.
pub fn linearizable(events: Vec<Event>) -> Result<bool, String> {
    let mut actions = Vec::with_capacity(2 * events.len());
    let processes = events.iter().map(|event| event.process + 1).max().unwrap_or(0);
    for (n, event) in events.into_iter().enumerate() {
        let kind = kind_of(&event)?;
        let out = event.back.map(|_| event.out);
        // A process that got no answer did not continue, so its last operation counts as another
        // process.
        let process = if out.is_some() { event.process } else { processes + n };
        let operation = Operation { kind, out };
        // Events of one instant may have happened in any order.
        actions.push(((event.call, 0), (process, Action::Call(operation.clone()))));
        let back = (event.back.unwrap_or(u64::MAX), 1);
        actions.push((back, (process, Action::Response(operation))));
    }
    actions.sort_by_key(|(at, _)| *at);
    let actions = actions.into_iter().map(|(_, action)| action).collect();
    Ok(WGLChecker::<Key>::is_linearizable(History::from_actions(actions)))
}
