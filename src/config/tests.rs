use std::collections::BTreeSet;
use std::fs;

use super::directive::Kind;
use super::*;

fn load(args: &[&str]) -> Result<Config, ConfigError> {
    load_with(args, &[], "")
}

fn load_with(
    args: &[&str],
    environment: &[(&str, &str)],
    standard_input: &str,
) -> Result<Config, ConfigError> {
    let args = args.iter().map(|arg| (*arg).to_owned());
    let environment =
        environment.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    match Config::load_from(args, environment, &mut standard_input.as_bytes())? {
        Startup::Run(config) => Ok(config),
        Startup::Help(text) | Startup::Print(text) => panic!("nothing was to be printed: {text}"),
    }
}

/// Returns a configuration that lets protected directives be set.
fn unprotected() -> Config {
    load(&["--enable-protected-configs", "yes"]).unwrap()
}

fn value(config: &Config, name: &str) -> String {
    let found = config.get(&[name.as_bytes()]);
    assert_eq!(found.len(), 1, "{name}");
    found[0].1.clone()
}

fn set(config: &Config, pairs: &[(&str, &str)]) -> Result<Vec<&'static str>, String> {
    let pairs: Vec<(&[u8], &[u8])> =
        pairs.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())).collect();
    config.set(&pairs, true)
}

/// Returns the error of a configuration that must not load.
fn refused(args: &[&str], standard_input: &str) -> ConfigError {
    load_with(args, &[], standard_input).err().unwrap()
}

#[test]
fn names_and_aliases_are_unique_lower_case_words() {
    let mut seen = BTreeSet::new();
    for directive in TABLE {
        for name in [Some(directive.name), directive.alias].into_iter().flatten() {
            assert!(seen.insert(name), "{name} twice");
            assert_eq!(name, name.to_ascii_lowercase());
        }
        assert!(!directive.doc.is_empty(), "{}", directive.name);
    }
}

#[test]
fn every_default_is_canonical() {
    for directive in TABLE {
        let words: Vec<&str> = if directive.is_multi() {
            directive.default.split_whitespace().collect()
        } else {
            vec![directive.default]
        };
        let read = value::canonical(directive, &words, directive.default);
        // An unset `replicaof` has no words.
        if directive.name != "replicaof" {
            assert_eq!(read.as_deref(), Ok(directive.default), "{}", directive.name);
        }
    }
}

/// Settings that CONFIG SET refuses in the reference, too, even with the value that they have.
const IMMUTABLE_THERE: &str = "unixsocket unixsocketgroup unixsocketperm tcp-backlog socket-mark-id aclfile \
    enable-protected-configs enable-debug-command enable-module-command databases logfile \
    syslog-enabled syslog-ident syslog-facility always-show-logo enable-debug-assert \
    rdbchecksum appendfilename appenddirname daemonize supervised pidfile set-proc-title \
    disable-thp server-cpulist bio-cpulist aof-rewrite-cpulist bgsave-cpulist io-threads \
    replicaof cluster-enabled cluster-config-file cluster-port rdma-rx-size \
    rdma-completion-vector";

#[test]
fn config_set_accepts_what_config_get_answers() {
    let config = unprotected();
    for (name, value) in config.get(&[b"*"]) {
        let (index, _) = directives::find(&name).unwrap();
        let answer = set(&config, &[(&name, &value)]);
        if TABLE[index].mutability == Mutability::Immutable {
            assert!(
                IMMUTABLE_THERE.split(' ').any(|there| there == TABLE[index].name),
                "{name} is our own"
            );
            assert!(answer.unwrap_err().ends_with("can't set immutable config"), "{name}");
        } else {
            assert_eq!(answer, Ok(Vec::new()), "{name} {value}");
        }
    }
    assert_eq!(config.generation(), 0);
}

#[test]
fn settings_hold_the_bounds_of_every_number() {
    for directive in TABLE {
        let (Kind::Integer(range)
        | Kind::Memory(range)
        | Kind::AutoInteger(range)
        | Kind::AutoMemory(range)) = directive.kind
        else {
            continue;
        };
        if directive.check.is_some() {
            continue;
        }
        for bound in [range.0, range.1] {
            let bound = bound.to_string();
            let option = format!("--{}", directive.name);
            match load(&[&option, &bound]) {
                Ok(config) => drop(config.settings()),
                // Beyond the integers of the reference.
                Err(error) => assert!(error.reason.contains("integer"), "{error}"),
            }
        }
    }
}

#[test]
fn defaults_that_are_this_servers_own() {
    let settings = load(&[]).unwrap().settings();
    assert_eq!(settings.appendfsync, AppendFsync::Always);
    assert_eq!(settings.port, 6379);
    assert_eq!(settings.bind, ["*", "-::*"]);
    assert_eq!(settings.handover_interval_ms, 30_000);
    assert_eq!(settings.journal_segment_size, 64 << 20);
    // That is a part of the machine's memory.
    let value_max_made = settings.data.value_max_made;
    let data = flagstone_commands::DataSettings { value_max_made, ..Default::default() };
    assert_eq!(settings.data, data);
    assert_eq!(settings.client_output_buffer_limit.replica.hard_bytes, 256 << 20);
    assert_eq!(settings.maxmemory_clients, ClientMemory::Auto);
    assert!(settings.dir.is_absolute() && settings.dir.ends_with("data"));
    assert!(settings.workers >= 1 && settings.background_workers >= 2);
    assert!(settings.memory_budget > 0);
}

#[test]
fn later_sources_override_earlier_ones() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("flagstone.conf");
    fs::write(&file, "# comment\n\nport 1\nTIMEOUT 1\ncheckpoint-keep 20\ndatabases 3\n").unwrap();
    let environment =
        [("FLAGSTONE_TIMEOUT", "2"), ("FLAGSTONE_CHECKPOINT_KEEP", "30"), ("PATH", "x")];
    let args = [file.to_str().unwrap(), "--checkpoint-keep", "40"];
    let config = load_with(&args, &environment, "").unwrap();
    let settings = config.settings();
    assert_eq!(
        (settings.databases, settings.port, settings.timeout_seconds, settings.checkpoint_keep),
        (3, 1, 2, 40)
    );
    assert_eq!(config.file(), Some(file.as_path()));
}

#[test]
fn command_line_takes_values_as_redis_does() {
    let cases: &[(&[&str], &str, &str)] = &[
        (&["--port", "6380"], "port", "6380"),
        (&["--port 6380"], "port", "6380"),
        (&["--bind", "127.0.0.1", "::1"], "bind", "127.0.0.1 ::1"),
        (&["--bind", "127.0.0.1 ::1"], "bind", "127.0.0.1 ::1"),
        (&["--requirepass", "--secret"], "requirepass", "--secret"),
        (&["--save", "--port", "1"], "save", ""),
        (&["--save"], "save", ""),
        (&["--save", ""], "save", ""),
        (&["--save", "900", "1", "--save", "300 10"], "save", "900 1 300 10"),
        (&["--shutdown-on-sigterm", "nosave", "now"], "shutdown-on-sigterm", "nosave now"),
        (&["--maxmemory", "1gb"], "maxmemory", "1073741824"),
        (&["-", "maxmemory", "2gb", "--port", "1"], "maxmemory", "2147483648"),
        (&["--hash-max-ziplist-entries", "7"], "hash-max-listpack-entries", "7"),
        (&["--list-max-listpack-size", "-1"], "list-max-listpack-size", "-1"),
    ];
    for (args, name, expected) in cases {
        assert_eq!(value(&load(args).unwrap(), name), *expected, "{args:?}");
    }
}

#[test]
fn standard_input_is_a_configuration_file() {
    for args in [&["-", "--timeout", "11"][..], &["--timeout", "11", "-"]] {
        let settings = load_with(args, &[], "port 7\ntimeout 12\n").unwrap().settings();
        assert_eq!((settings.port, settings.timeout_seconds), (7, 11));
    }
    assert_eq!(load(&["--requirepass", "-"]).unwrap().settings().requirepass.as_deref(), Some("-"));
}

#[test]
fn words_quotes_and_escapes() {
    let cases = [
        (r#"requirepass "a b\x41\n\"""#, "a bA\n\""),
        (r"requirepass 'it\'s'", "it's"),
        ("requirepass ''", ""),
        ("  requirepass\tplain  ", "plain"),
        ("requirepass \"\\xc3\\xa4\"", "ä"),
    ];
    for (line, expected) in cases {
        let config = load_with(&["-"], &[], line).unwrap();
        assert_eq!(value(&config, "requirepass"), expected, "{line}");
        let quoted = format!("requirepass {}", parse::quote(expected));
        let config = load_with(&["-"], &[], &quoted).unwrap();
        assert_eq!(value(&config, "requirepass"), expected, "{quoted}");
    }
}

#[test]
fn files_include_files() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    fs::write(path("a.conf"), format!("port 1\ninclude {}\ntimeout 9\n", path("conf.d/*.conf")))
        .unwrap();
    fs::create_dir(path("conf.d")).unwrap();
    fs::write(path("conf.d/1.conf"), "port 2\ntimeout 2\n").unwrap();
    fs::write(path("conf.d/2.conf"), "port 3\n").unwrap();
    fs::write(path("conf.d/other"), "port 4\n").unwrap();
    let settings = load(&[&path("a.conf")]).unwrap().settings();
    assert_eq!((settings.port, settings.timeout_seconds), (3, 9));

    fs::write(path("loop.conf"), format!("include {}\n", path("loop.conf"))).unwrap();
    assert!(load(&[&path("loop.conf")]).err().unwrap().reason.contains("too deeply"));
    fs::write(path("b.conf"), format!("include {}\n", path("missing.conf"))).unwrap();
    let error = load(&[&path("b.conf")]).err().unwrap();
    assert_eq!(error.origin, Origin::File { path: path("b.conf"), line: 1 });
    assert!(error.reason.ends_with("missing.conf': No such file or directory"), "{error}");
}

#[test]
fn refusals_name_origin_directive_and_reason() {
    let cases = [
        ("\nprot 1", 2, "prot 1", "Bad directive or wrong number of arguments"),
        ("port 1 2", 1, "port 1 2", "wrong number of arguments"),
        ("port", 1, "port", "wrong number of arguments"),
        ("port x", 1, "port x", "argument couldn't be parsed into an integer"),
        ("port 65536", 1, "port 65536", "argument must be between 0 and 65535 inclusive"),
        (
            "shards 1025",
            1,
            "shards 1025",
            "argument must be between 1 and 1024 inclusive, or 'auto'",
        ),
        ("requirepass 'x", 1, "requirepass 'x", "Unbalanced quotes in configuration line"),
        ("requirepass a b", 1, "requirepass ***", "wrong number of arguments"),
        ("loadmodule x.so", 1, "loadmodule x.so", "modules are not supported"),
        (
            "tls-protocols TLSv1.1",
            1,
            "tls-protocols TLSv1.1",
            "TLSv1 and TLSv1.1 are not supported: use TLSv1.2 and TLSv1.3",
        ),
    ];
    for (input, line, text, reason) in cases {
        let error = refused(&["-"], input);
        assert_eq!(error.origin, Origin::StandardInput { line }, "{input}");
        assert_eq!((error.text.as_str(), error.reason.as_str()), (text, reason));
    }
    let shown = refused(&["--port", "x"], "").to_string();
    let lines: Vec<&str> = shown.lines().collect();
    assert!(lines[0].starts_with("*** FATAL CONFIG FILE ERROR (Flagstone "));
    assert_eq!(lines[1..3], ["Reading the command line", ">>> 'port \"x\"'"]);
    assert_eq!(refused(&["a.conf", "b.conf"], "").origin, Origin::CommandLine);
    assert_eq!(refused(&["-", "b.conf"], "").text, "b.conf");
    let several = refused(&["--port", "--loglevel", "verbose"], "");
    assert_eq!(several.text, "port \"--loglevel\" \"verbose\"");
    let error = load_with(&[], &[("FLAGSTONE_PORT", "x")], "").err().unwrap();
    assert_eq!(error.origin, Origin::Environment { variable: "FLAGSTONE_PORT".to_owned() });
}

#[test]
fn directives_without_effect_are_noticed() {
    let environment = [
        ("FLAGSTONE_TYPO", "1"),
        ("FLAGSTONE_PORT", "tcp://10.0.0.1:6379"),
        ("FLAGSTONE_SERVICE_HOST", "10.0.0.1"),
    ];
    let config =
        load_with(&["-"], &environment, "io-threads 4\ndynamic-hz yes\ntimeout 20").unwrap();
    let notices = config.notices().join("\n");
    for expected in ["FLAGSTONE_TYPO", "'io-threads'", "'dynamic-hz'"] {
        assert!(notices.contains(expected), "{notices}");
    }
    assert_eq!(config.notices().len(), 3, "{notices}");
    assert_eq!(config.settings().port, 6379);
}

#[test]
fn directives_that_promise_an_absent_feature_are_refused_by_name() {
    let cases = [
        (
            "lua-enable-insecure-api yes",
            "this server does not offer deprecated functions to scripts",
        ),
        ("syslog-enabled yes", "this server does not write to syslog: use logfile"),
        ("replicaof 127.0.0.1 x", "Invalid primary port"),
        (
            "tls-protocols SSLv3",
            "Invalid tls-protocols specified. Use a combination of 'TLSv1.2' and 'TLSv1.3'.",
        ),
    ];
    for (line, reason) in cases {
        let error = refused(&["-"], line);
        assert_eq!(error.reason, reason, "{line}");
        let name = line.split(' ').next().unwrap();
        assert!(error.text.starts_with(name), "{}", error.text);
        assert!(!error.text.contains("secret"), "{}", error.text);
        // CONFIG SET refuses it too, if it may change the directive at all.
        let Some((index, _)) = directives::find(name) else { continue };
        if TABLE[index].mutability == Mutability::Live {
            let value = line.split(' ').nth(1).unwrap();
            let text = set(&unprotected(), &[(name, value)]).unwrap_err();
            assert!(text.ends_with(reason), "{text}");
        }
    }
}

/// Every directive is either read into the settings, or has a reason for its lack of effect.
#[test]
fn every_directive_has_an_effect_or_says_why_it_has_none() {
    let read = include_str!("settings.rs");
    for directive in TABLE {
        let is_read = read.contains(&format!("\"{}\"", directive.name));
        let says_why = directive.inert.is_some();
        assert!(is_read != says_why, "{}", directive.name);
    }
}

#[test]
fn a_change_without_effect_is_noticed() {
    let config = load(&[]).unwrap();
    let notices = |pairs: &[(&[u8], &[u8])]| config.prepare(pairs, true).unwrap().notices;
    assert_eq!(notices(&[(b"hz", b"10"), (b"timeout", b"7")]), [""; 0]);
    let told = notices(&[(b"hz", b"50")]);
    assert_eq!(told, ["directive 'hz' has no effect: background work has a pace of its own"]);
    let limited: [(&[u8], &[u8]); 2] =
        [(b"maxmemory", b"1gb"), (b"maxmemory-policy", b"allkeys-lru")];
    assert_eq!(notices(&limited), [""; 0]);
}

#[test]
fn version_and_help_are_printed() {
    for (arg, expected) in
        [("-v", "flagstone 0"), ("--version", "flagstone "), ("-h", "--port 6379")]
    {
        let args = [arg.to_owned()].into_iter();
        match Config::load_from(args, [].into_iter(), &mut io::empty()).unwrap() {
            Startup::Help(text) | Startup::Print(text) => {
                assert!(text.contains(expected), "{text}");
            }
            Startup::Run(_) => panic!("{arg} is no reason to run"),
        }
    }
}

#[test]
fn config_get_finds_names_aliases_and_patterns() {
    let config = load(&[]).unwrap();
    let names = |patterns: &[&[u8]]| -> Vec<String> {
        config.get(patterns).into_iter().map(|(name, _)| name).collect()
    };
    assert_eq!(names(&[b"port", b"PORT", b"nothing"]), ["port", "PORT"]);
    assert_eq!(names(&[b"slowlog-max-len"]), ["slowlog-max-len"]);
    assert_eq!(
        names(&[b"HASH-max-*-entries", b"hash-max-listpack-entries"]),
        ["hash-max-listpack-entries", "hash-max-ziplist-entries"]
    );
    let spelled = |n: u32| -> String {
        let upper =
            |(at, c): (usize, char)| if n >> at & 1 == 1 { c.to_ascii_uppercase() } else { c };
        "maxmemory".chars().enumerate().map(upper).collect()
    };
    let spellings: Vec<String> = (0..512).map(spelled).collect();
    let all: Vec<&[u8]> = spellings.iter().chain(&spellings).map(String::as_bytes).collect();
    assert_eq!(names(&all), spellings);
    // Hidden directives are found only by their exact names.
    assert!(names(&[b"watchdog-*"]).is_empty());
    assert_eq!(names(&[b"watchdog-period"]), ["watchdog-period"]);
}

#[test]
fn config_set_refuses_in_the_words_of_the_reference() {
    let failed = |name: &str, reason: &str| {
        format!("ERR CONFIG SET failed (possibly related to argument '{name}') - {reason}")
    };
    let one_of = "argument(s) must be one of the following: everysec, always, no";
    let cases: &[(&[(&str, &str)], String)] = &[
        (
            &[("hz", "1"), ("Foo", "1")],
            "ERR Unknown option or number of arguments for CONFIG SET - 'Foo'".to_owned(),
        ),
        (&[("DATABASES", "1")], failed("DATABASES", "can't set immutable config")),
        (&[("dbfilename", "x")], failed("dbfilename", "can't set protected config")),
        (&[("hz", "1"), ("HZ", "2")], failed("HZ", "duplicate parameter")),
        (&[("activerehashing", "1")], failed("activerehashing", "argument must be 'yes' or 'no'")),
        (&[("appendfsync", "x")], failed("appendfsync", one_of)),
        (&[("maxmemory", "-1")], failed("maxmemory", "argument must be a memory value")),
        (
            &[("maxmemory-clients", "101%")],
            failed("maxmemory-clients", "percentage argument must be less or equal to 100"),
        ),
        (
            &[("maxmemory-clients", "x")],
            failed("maxmemory-clients", "argument must be a memory or percent value"),
        ),
        (
            &[("MAXCLIENTS", "0")],
            failed("maxclients", "argument must be between 1 and 4294967295 inclusive"),
        ),
        (&[("save", "100")], failed("save", "Invalid save parameters")),
        (
            &[("notify-keyspace-events", "q")],
            failed(
                "notify-keyspace-events",
                "Invalid event class character. Use 'Ag$lshzxeKEtmdn'.",
            ),
        ),
        (
            &[("client-output-buffer-limit", "master 0 0 0")],
            failed(
                "client-output-buffer-limit",
                "Invalid client class specified in buffer limit configuration.",
            ),
        ),
        (
            &[("shutdown-on-sigint", "save nosave")],
            failed(
                "shutdown-on-sigint",
                "shutdown options SAVE and NOSAVE can't be used simultaneously",
            ),
        ),
        (&[("workers", "1000")], failed("workers", "can't set immutable config")),
    ];
    let config = load(&[]).unwrap();
    let before = config.get(&[b"*"]);
    for (pairs, expected) in cases {
        assert_eq!(set(&config, pairs).as_ref(), Err(expected));
    }
    assert_eq!(config.get(&[b"*"]), before);
}

#[test]
fn config_set_normalises_values() {
    let cases = [
        ("notify-keyspace-events", "KEA", "AKE"),
        ("notify-keyspace-events", "Elg$shzxetd", "AE"),
        ("notify-keyspace-events", "KnA", "AnK"),
        ("notify-keyspace-events", "mKE$l", "$lKEm"),
        ("maxmemory", "2mb", "2097152"),
        ("maxmemory-clients", "5%", "5%"),
        ("APPENDFSYNC", "EverySec", "everysec"),
        ("save", "", ""),
        ("bind", "", ""),
        ("latency-tracking-info-percentiles", "50.0 99.90 100", "50 99.9 100"),
        ("hz", "100000", "500"),
        ("shutdown-on-sigint", "now nosave", "nosave now"),
        (
            "client-output-buffer-limit",
            "replica 1mb 0 60 normal 1k 2 3",
            "normal 1000 2 3 slave 1048576 0 60 pubsub 33554432 8388608 60",
        ),
    ];
    let config = unprotected();
    for (name, value_set, expected) in cases {
        set(&config, &[(name, value_set)]).unwrap();
        assert_eq!(value(&config, name), expected, "{name} {value_set}");
    }
}

#[test]
fn config_set_changes_all_or_nothing() {
    let config = load(&[]).unwrap();
    let kept = config.settings();
    assert!(set(&config, &[("timeout", "5"), ("hz", "x")]).is_err());
    assert_eq!((config.generation(), config.settings().timeout_seconds), (0, 0));
    let changed = set(&config, &[("timeout", "5"), ("slowlog-max-len", "9"), ("hz", "10")]);
    assert_eq!(changed, Ok(vec!["timeout", "commandlog-slow-execution-max-len"]));
    assert_eq!(config.generation(), 1);
    assert_eq!((kept.timeout_seconds, config.settings().command_logs[0].max_len), (0, 9));
}

#[test]
fn a_change_keeps_what_was_assigned_since_it_was_prepared() {
    let config = load(&["--replicaof", "10.0.0.1 6379"]).unwrap();
    let change = config.prepare(&[(b"timeout", b"5"), (b"hz", b"100000")], true).unwrap();
    config.assign("replicaof", "");
    config.commit(change);
    assert_eq!((value(&config, "timeout"), value(&config, "hz")), ("5".into(), "500".into()));
    assert_eq!(
        (value(&config, "replicaof"), config.settings().replicaof.is_none()),
        ("".into(), true)
    );
    let change = config.prepare(&[(b"timeout", b"6")], true).unwrap();
    config.assign("replicaof", "10.0.0.2 6379");
    config.commit(change);
    assert_eq!(config.settings().timeout_seconds, 6);
    assert_eq!(value(&config, "replicaof"), "10.0.0.2 6379");
}

#[test]
fn addresses_have_no_characters_that_could_end_their_line() {
    let config = unprotected();
    let before = value(&config, "bind");
    for wrong in
        ["x\nenable-debug-command yes", "x\r", "\t", "a\"b", "a'b", "a\\n", "\u{85}x", "\0"]
    {
        let refused = set(&config, &[("bind", wrong)]).expect_err(wrong);
        assert!(refused.ends_with("a character that no address has"), "{wrong:?}: {refused}");
    }
    assert_eq!(value(&config, "bind"), before);
    set(&config, &[("bind", "127.0.0.1 -::1 fe80::1%eth0 *")]).unwrap();
    let refused = refused(&["--http-bind", "a", "b\"c"], "");
    assert!(refused.to_string().contains("a character that no address has"), "{refused}");
}

#[test]
fn protected_directives_open_to_local_clients() {
    let config = load(&["--enable-protected-configs", "local"]).unwrap();
    let pair: [(&[u8], &[u8]); 1] = [(b"dbfilename", b"x.rdb")];
    assert!(config.set(&pair, false).unwrap_err().ends_with("can't set protected config"));
    assert_eq!(config.set(&pair, true), Ok(vec!["dbfilename"]));
}
