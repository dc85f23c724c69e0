//! Exceptions from lints say why.

use crate::settle;
use crate::source::{Kind, all_files, closing, root, tokens};
use std::fs;

#[test]
fn exceptions_from_lints_have_a_reason() {
    let mut files = Vec::new();
    all_files(root(), &mut files);
    let mut complaints = Vec::new();
    for path in files {
        let tokens = tokens(fs::read_to_string(&path).unwrap().leak());
        for at in 0..tokens.len().saturating_sub(2) {
            let in_attribute = tokens[at].is("[") || tokens[at].is(",") || tokens[at].is("(");
            let exception = tokens[at + 1].is("allow") || tokens[at + 1].is("expect");
            if !(in_attribute && exception && tokens[at + 2].is("(")) {
                continue;
            }
            // A call of a function by the name takes no path of a lint without `::`.
            let inside = &tokens[at + 3..closing(&tokens, at + 2)];
            let is_attribute = tokens[at].is("[") || inside.iter().any(|token| token.is("clippy"));
            let reason = inside.iter().any(|token| token.is("reason"));
            let has_text = inside.iter().any(|token| token.kind == Kind::Text);
            if is_attribute && !(reason && has_text) {
                let path = path.strip_prefix(root()).unwrap().display();
                let line = tokens[at + 1].line;
                complaints.push(format!(
                    "{path}:{line}: `{}` without a reason. Add `reason = \"…\"`, or do as the lint \
                     says.",
                    tokens[at + 1].text
                ));
            }
        }
    }
    settle("An exception from a lint has a reason.", complaints);
}
