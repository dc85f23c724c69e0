use std::fs;
use std::os::unix::fs::PermissionsExt;

use super::super::{Config, Startup};
use super::*;

fn started_with(text: &str) -> (tempfile::TempDir, Config) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("flagstone.conf");
    fs::write(&file, text).unwrap();
    let config = restarted(&file);
    (directory, config)
}

fn restarted(file: &Path) -> Config {
    let args = [file.to_str().unwrap().to_owned()];
    match Config::load(args.into_iter(), [].into_iter()).unwrap() {
        Startup::Run(config) => config,
        Startup::Help(text) | Startup::Print(text) => panic!("nothing was to be printed: {text}"),
    }
}

fn set(config: &Config, name: &str, value: &str) {
    config.set(&[(name.as_bytes(), value.as_bytes())], false).unwrap();
}

/// Returns the rewritten file, without the lines that are always written.
fn rewritten_lines(config: &Config) -> Vec<String> {
    config.rewrite().unwrap();
    let text = fs::read_to_string(config.file().unwrap()).unwrap();
    let stated =
        |line: &&str| !line.starts_with("dir ") && !line.starts_with("latency-tracking-info");
    text.lines().filter(stated).map(str::to_owned).collect()
}

#[test]
fn comments_order_and_unknown_parts_stay() {
    let text = "# head\n\nslowlog-max-len 5\n# middle\nPort 7000\n\n\n\nsave 1 2\nsave 3 4\n\
                include /dev/null\n";
    let (_directory, config) = started_with(text);
    set(&config, "timeout", "30");
    set(&config, "slowlog-max-len", "6");
    let expected = [
        "# head",
        "",
        "commandlog-slow-execution-max-len 6",
        "# middle",
        "port 7000",
        "",
        "save 1 2 3 4",
        "",
        "include /dev/null",
        SIGNATURE,
        "timeout 30",
    ];
    assert_eq!(rewritten_lines(&config), expected);
    // A second rewrite changes nothing.
    assert_eq!(rewritten_lines(&config), expected);
}

#[test]
fn values_survive_a_rewrite_and_a_restart() {
    let (_directory, config) = started_with("port 0\nrequirepass old\n");
    let values = [
        ("requirepass", "a \"b\"\\\n\u{e4}"),
        ("save", ""),
        ("bind", "127.0.0.1 -::1"),
        ("notify-keyspace-events", "KEA"),
        ("client-output-buffer-limit", "pubsub 1mb 5 7"),
        ("maxmemory", "3gb"),
        ("maxmemory-clients", "5%"),
        ("shutdown-on-sigterm", "nosave now"),
        ("latency-tracking-info-percentiles", ""),
        ("oom-score-adj-values", "1 2 3"),
        ("cluster-announce-hostname", "host.example"),
        ("appendfsync", "no"),
        ("proc-title-template", "{title} x"),
    ];
    for (name, value) in values {
        set(&config, name, value);
    }
    let lines = rewritten_lines(&config);
    for expected in ["maxmemory 3gb", "client-output-buffer-limit pubsub 1mb 5 7", "save \"\""] {
        assert!(lines.iter().any(|line| line == expected), "{lines:?}");
    }
    assert!(!lines.iter().any(|line| line.contains("limit normal")), "{lines:?}");
    let again = restarted(config.file().unwrap());
    assert_eq!(again.get(&[b"*"]), config.get(&[b"*"]));
}

#[test]
fn values_back_at_their_default_leave_or_show_it() {
    let (_directory, config) = started_with("hz 20\nbind 127.0.0.1\nrequirepass x\nsave \"\"\n");
    set(&config, "hz", "10");
    set(&config, "bind", "* -::*");
    set(&config, "requirepass", "");
    assert_eq!(rewritten_lines(&config), ["hz 10", "", "save \"\"", SIGNATURE]);
}

#[test]
fn user_lines_are_replaced_on_demand() {
    let users = ["c off".to_owned()];
    let lines = rewritten(
        "user a on\nport 6379\nuser b on\n",
        &Values::defaults(),
        Some(&users),
        RewriteScope::Changed,
    );
    assert!(lines.starts_with("user c off\nport 6379\n"), "{lines}");
    assert_eq!(lines.matches("user ").count(), 1, "{lines}");
}

#[test]
fn the_file_keeps_its_permissions_and_its_directory_no_leftover() {
    let (directory, config) = started_with("port 1\n");
    let file = config.file().unwrap();
    fs::set_permissions(file, fs::Permissions::from_mode(0o600)).unwrap();
    config.rewrite().unwrap();
    assert_eq!(fs::metadata(file).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
}

#[test]
fn errors_are_those_of_the_reference() {
    let (directory, config) = started_with("port 1\n");
    drop(directory);
    let error = config.rewrite().unwrap_err();
    assert_eq!(error, "ERR Rewriting config file: No such file or directory");
    match Config::load([].into_iter(), [].into_iter()).unwrap() {
        Startup::Run(config) => assert_eq!(
            config.rewrite().unwrap_err(),
            "ERR The server is running without a config file"
        ),
        Startup::Help(text) | Startup::Print(text) => panic!("nothing was to be printed: {text}"),
    }
}

#[test]
fn lines_that_mean_nothing_become_comments() {
    let lines =
        rewritten("nonsense 1\nport 'x\n", &Values::defaults(), None, RewriteScope::Changed);
    assert!(lines.starts_with("# ??? nonsense 1\n# ??? port 'x\n"), "{lines}");
}

#[test]
fn all_values_are_written_when_all_are_asked_for() {
    let (_directory, config) = started_with("port 0\n");
    let before = config.get(&[b"*"]);
    config.rewrite_with_users(None, RewriteScope::All).expect("written");
    let file = config.file().expect("there is one");
    let text = fs::read_to_string(file).expect("it is there");
    assert!(text.lines().any(|line| line == "timeout 0"), "{text}");
    assert_eq!(restarted(file).get(&[b"*"]), before);
}

#[test]
fn a_host_with_strange_characters_stays_one_word() {
    let (_directory, config) = started_with("replicaof a 1\n");
    for (host, line) in [
        ("10.0.0.1", "replicaof 10.0.0.1 6379"),
        ("x\nenable-debug-command", r#"replicaof "x\nenable-debug-command" 6379"#),
        ("a\"b", r#"replicaof "a\"b" 6379"#),
    ] {
        config.assign("replicaof", &format!("{host} 6379"));
        let lines = rewritten_lines(&config);
        assert!(lines.iter().any(|written| written == line), "{lines:?}");
        assert_eq!(
            restarted(config.file().unwrap()).get(&[b"replicaof"]),
            config.get(&[b"replicaof"])
        );
    }
}
