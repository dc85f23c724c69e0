//! Compares this VM's replies to scripts with the reference's.

use super::*;

/// Scripts, and the replies of Valkey 8.1.1 to EVAL. Bytes are characters of the same number; the
/// location of an error is ` at source:line`.
const REPLIES: &str = include_str!("../../../tests/data/lua_replies.json");

#[test]
fn scripts_are_answered_as_by_the_reference() {
    let lua = vm();
    let replies: Vec<serde_json::Value> = serde_json::from_str(REPLIES).unwrap();
    assert!(replies.len() > 500);
    let mut wrong = Vec::new();
    for case in &replies {
        let text = |name: &str| case[name].as_str().unwrap();
        let (script, kind, reply) = (text("script"), text("kind"), text("reply"));
        let source: Vec<u8> = script.chars().map(|c| u8::try_from(u32::from(c)).unwrap()).collect();
        let (got_kind, got) = match eval(&lua, source) {
            Ok(value) if value == NIL => ("nil", String::new()),
            Ok(value) => ("value", value),
            Err(error) => ("error", error.replace(['\r', '\n'], " ")),
        };
        if (got_kind, got.as_str()) != (kind, reply) {
            wrong.push(format!(
                "{script}\n  expected {kind} {reply:?}\n  got      {got_kind} {got:?}"
            ));
        }
    }
    assert!(wrong.is_empty(), "{} replies differ:\n{}", wrong.len(), wrong.join("\n"));
}
