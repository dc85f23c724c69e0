use proptest::prelude::*;

use super::*;

fn split(line: &str) -> Option<Vec<String>> {
    let args = split_args(line.as_bytes()).ok()?;
    Some(args.iter().map(|arg| arg.escape_ascii().to_string()).collect())
}

#[test]
fn arguments() {
    let cases: &[(&str, &[&str])] = &[
        ("", &[]),
        (" \t ", &[]),
        ("PING", &["PING"]),
        ("  set  k\tv ", &["set", "k", "v"]),
        (r#""a b" 'c d'"#, &["a b", "c d"]),
        (r#""" ''"#, &["", ""]),
        (r#"a"b c""#, &["ab c"]),
        (r#"a'b c'"#, &["ab c"]),
        (r#""\n\r\t\b\a\"\\\q""#, &[r#"\n\r\t\x08\x07\"\\q"#]),
        (r#""\x41\xfF\xzz""#, &[r"A\xffxzz"]),
        (r#"'\n\''"#, &[r"\\n\'"]),
        (r"a\nb", &[r"a\\nb"]),
        (r#""it's""#, &[r"it\'s"]),
    ];
    for (line, args) in cases {
        assert_eq!(split(line).as_deref(), Some(&args.map_string()[..]), "{line}");
    }
}

trait MapString {
    fn map_string(&self) -> Vec<String>;
}

impl MapString for &[&str] {
    fn map_string(&self) -> Vec<String> {
        self.iter().map(|text| (*text).to_owned()).collect()
    }
}

#[test]
fn unbalanced_quotes() {
    for line in [r#"""#, "'", r#""a"#, "'a", r#""a"b"#, "'a'b", r#""a\"#, r#""a\""#, r#""a"'b'"#] {
        assert_eq!(split(line), None, "{line}");
    }
}

proptest! {
    #[test]
    fn quoted_arguments_come_back(args in proptest::collection::vec(any::<Vec<u8>>(), 0..6)) {
        let mut line = String::new();
        for arg in &args {
            line.push('"');
            arg.iter().for_each(|byte| line.push_str(&format!("\\x{byte:02x}")));
            line.push_str("\" ");
        }
        prop_assert_eq!(split_args(line.as_bytes()), Ok(args));
    }

    #[test]
    fn any_bytes_are_fine(line: Vec<u8>) {
        let _ = split_args(&line);
    }
}
