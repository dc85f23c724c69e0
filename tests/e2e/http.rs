//! The HTTP port: health, metrics, commands, who may ask, and hostile requests.

use super::{Server, free_port};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

const JSON: &str = "Content-Type: application/json";

/// A server with an HTTP port.
pub(crate) struct Web {
    pub(crate) server: Server,
    port: u16,
}

/// An answer: the status, the headers as they came, and the body.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    head: String,
    pub(crate) body: String,
}

impl Web {
    pub(crate) fn start(options: &[&str]) -> Self {
        let port = free_port();
        let text = port.to_string();
        let mut all = vec!["--http-port", &text];
        all.extend_from_slice(options);
        Self { server: Server::start(&all), port }
    }

    /// A server that was started with this port for HTTP.
    pub(crate) fn of(server: Server, port: u16) -> Self {
        Self { server, port }
    }

    fn socket(&self) -> TcpStream {
        connect(self.port)
    }

    pub(crate) fn ask(&self, method: &str, path: &str, headers: &[&str], body: &str) -> Reply {
        let host = format!("Host: localhost:{}", self.port);
        let mut all = vec![&*host];
        all.extend_from_slice(headers);
        self.ask_as(method, path, &all, body)
    }

    /// The same without a Host header of its own.
    fn ask_as(&self, method: &str, path: &str, headers: &[&str], body: &str) -> Reply {
        let mut socket = self.socket();
        let lines: String = headers.iter().map(|line| format!("{line}\r\n")).collect();
        let len = body.len();
        let head = format!("{method} {path} HTTP/1.1\r\n{lines}Connection: close\r\n");
        // The server may refuse it before it has all.
        let _ = write!(socket, "{head}Content-Length: {len}\r\n\r\n{body}");
        read(socket)
    }

    pub(crate) fn get(&self, path: &str) -> Reply {
        self.ask("GET", path, &[], "")
    }

    fn post(&self, path: &str, body: &str) -> Reply {
        self.ask("POST", path, &[JSON], body)
    }
}

fn connect(port: u16) -> TcpStream {
    let socket = TcpStream::connect(("127.0.0.1", port)).expect("a connection");
    socket.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
    socket
}

fn read(mut socket: TcpStream) -> Reply {
    let mut bytes = Vec::new();
    // The server may reset the connection behind its answer.
    let _ = socket.read_to_end(&mut bytes);
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    Reply { status, head: head.to_lowercase(), body: body.to_owned() }
}

impl Reply {
    #[track_caller]
    fn is(&self, status: u16, body: &str) {
        assert_eq!((self.status, &*self.body), (status, body), "{}", self.head);
    }

    #[track_caller]
    pub(crate) fn refused(&self, status: u16, word: &str) {
        assert!(self.status == status && self.body.contains(word), "{self:?}");
    }
}

#[test]
fn health_is_told_to_everybody() {
    let web = Web::start(&["--requirepass", "secret"]);
    web.get("/healthz").is(200, "ok\n");
    web.get("/readyz").is(200, "ready\n");
    web.ask_as("GET", "/readyz", &["Host: evil.example"], "").is(200, "ready\n");
    let mut client =
        redis::Client::open(format!("redis://:secret@127.0.0.1:{}/", web.server.port()))
            .and_then(|client| client.get_connection())
            .expect("a connection");
    let paused = redis::cmd("CLIENT").arg(&["PAUSE", "60000"]).exec(&mut client);
    paused.expect("paused");
    web.get("/readyz").refused(503, "clients are paused");
    web.get("/healthz").is(200, "ok\n");
    let no_store: Vec<_> = web.get("/healthz").head.lines().map(str::to_owned).collect();
    for header in ["cache-control: no-store", "x-content-type-options: nosniff"] {
        assert!(no_store.iter().any(|line| line == header), "{no_store:?}");
    }
}

#[test]
fn not_ready_is_told_with_the_reason_while_writes_are_refused() {
    let mut web = Web::start(&["--min-replicas-to-write", "1"]);
    web.get("/readyz").refused(503, "NOREPLICAS");
    assert!(web.get("/metrics").body.contains("flagstone_ready 0\n"));
    web.server.stop();
}

/// Value of a sample of the metrics.
pub(crate) fn sample(text: &str, name: &str) -> f64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {name} in {text}")).parse().expect("a number")
}

#[test]
fn metrics_are_whole_and_count() {
    let web = Web::start(&["--workers", "2", "--shards", "2"]);
    let mut client = web.server.client();
    for n in 0..100 {
        redis::cmd("SET").arg(n).arg("a-value-of-ours").exec(&mut client).expect("set");
    }
    redis::cmd("INCR").arg(1).exec(&mut client).expect_err("no number");
    // Workers publish some figures ten times a second.
    std::thread::sleep(Duration::from_millis(500));
    let open = web.ask("GET", "/metrics", &["Accept: application/openmetrics-text;q=0.5"], "");
    assert!(open.head.contains("content-type: application/openmetrics-text; version=1.0.0;"));
    assert!(
        open.body.contains("# TYPE flagstone_build info\n") && open.body.ends_with("\n# EOF\n")
    );
    let plain = web.get("/metrics");
    assert!(plain.head.contains("content-type: text/plain; version=0.0.4;"), "{}", plain.head);
    let text = plain.body;
    assert!(text.contains("# TYPE flagstone_build_info gauge\n") && !text.contains("# EOF"));
    assert_eq!(sample(&text, "flagstone_command_calls_total{command=\"set\"}"), 100.0);
    assert_eq!(sample(&text, "flagstone_command_failures_total{command=\"incr\"}"), 1.0);
    assert_eq!(sample(&text, "flagstone_errors_total{code=\"ERR\"}"), 1.0);
    assert_eq!(sample(&text, "flagstone_ready"), 1.0);
    assert!(sample(&text, "flagstone_journal_appends_total") >= 100.0);
    assert!(sample(&text, "flagstone_disk_free_bytes") > 0.0);
    assert_eq!(sample(&text, "flagstone_replicas{state=\"online\"}"), 0.0);
    assert!(!text.contains("flagstone_replica_link_up"), "it follows no server");
    assert_eq!(sample(&text, "flagstone_shard_stalled{shard=\"1\"}"), 0.0);
    let pending =
        [0, 1].map(|n| sample(&text, &format!("flagstone_worker_changes_total{{worker=\"{n}\"}}")));
    assert!(
        pending.iter().sum::<f64>() >= 100.0 && pending[0] > 0.0 && pending[1] > 0.0,
        "{pending:?}"
    );
    // No key, value or name of a client is a label.
    assert!(!text.contains("a-value-of-ours"), "{text}");
    let mut families = std::collections::BTreeSet::new();
    for line in text.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
        let (name, _) = line.split_once(' ').expect("a type");
        assert!(families.insert(name.to_owned()), "{name} twice");
        assert!(text.contains(&format!("# HELP {name} ")), "{name}");
    }
    assert!(families.len() > 80, "{}", families.len());
    assert!(!text.contains(CLUSTER), "it is no server of a cluster");
}

/// Families that are there only if there is something to tell.
const SOMETIMES: &[&str] = &[
    "flagstone_checkpoint_time_seconds",
    "flagstone_disk_full_in_seconds",
    "flagstone_replica_link_up",
    "flagstone_replicas_behind_bytes",
];

/// Beginning of the names of families that only servers of a cluster have.
pub(crate) const CLUSTER: &str = "flagstone_cluster_";

#[test]
fn alerts_and_dashboards_name_metrics_that_exist() {
    let web = Web::start(&[]);
    // Its latency has a histogram.
    let () = redis::cmd("PING").query(&mut web.server.client()).expect("an answer");
    let text = web.get("/metrics").body;
    let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let has = |name: &str| {
        text.lines().filter_map(|line| line.strip_prefix(name)).any(|rest| rest.starts_with([' ', '{']))
            // Counters without samples yet, such as errors.
            || text.contains(&format!("# TYPE {name} "))
    };
    let mut seen = 0;
    for file in ["alerts.yml", "grafana.json"] {
        let path = format!("{}/docs/monitoring/{file}", env!("CARGO_MANIFEST_DIR"));
        let rules = std::fs::read_to_string(path).expect("the file");
        for (at, _) in rules.match_indices("flagstone_") {
            let name = rules[at..].split(|c| !is_name(c)).next().expect("a name");
            // Those of a cluster are not there; `sight` has a test of them.
            let is_known = has(name) || SOMETIMES.contains(&name) || name.starts_with(CLUSTER);
            assert!(is_known, "{file}: {name} in {text}");
            seen += 1;
        }
    }
    assert!(seen > 40, "{seen}");
    // The page reads these by their names.
    let script = web.get("/dashboard.js").body;
    for line in script.lines() {
        for (at, call) in line.match_indices("(now, \"").chain(line.match_indices("now.sum(\"")) {
            let name = line[at + call.len()..].split('"').next().expect("a name");
            let name = format!("flagstone_{name}");
            let sometimes = SOMETIMES.contains(&&*name) || name.contains("lease_left");
            assert!(has(&name) || sometimes, "dashboard.js: {name}");
        }
    }
}

#[test]
fn the_dashboard_is_a_page_of_its_own() {
    let web = Web::start(&["--requirepass", "secret"]);
    let page = web.get("/");
    assert!(page.status == 200 && page.body.starts_with("<!doctype html>"), "{page:?}");
    assert!(page.body.contains("data-password=\"needed\""));
    let policy =
        "content-security-policy: default-src 'none'; script-src 'self'; style-src 'self';";
    assert!(page.head.contains(policy), "{}", page.head);
    assert!(
        !page.body.contains("<style")
            && !page.body.contains("style=")
            && !page.body.contains("onclick")
    );
    for (path, kind) in [("/dashboard.css", "text/css"), ("/dashboard.js", "text/javascript")] {
        let asset = web.get(path);
        assert!(asset.status == 200 && asset.head.contains(kind), "{path}: {}", asset.head);
        assert!(page.body.contains(path));
        let elsewhere = asset.body.replace("http://www.w3.org/2000/svg", "");
        assert!(!elsewhere.contains("http://") && !elsewhere.contains("https://"), "{path}");
        assert!(!asset.body.contains("innerHTML"), "{path}");
    }
    web.get("/status").refused(401, "NOAUTH");
    let status = web.ask("GET", "/status", &["Authorization: Bearer secret"], "");
    let status: serde_json::Value = serde_json::from_str(&status.body).expect("JSON");
    assert_eq!(status["reasons"], serde_json::json!([]));
    assert_eq!(status["appendfsync"], "always");
    assert!(status["cluster"].is_null());
    assert!(Web::start(&[]).get("/").body.contains("data-password=\"none\""));
}

#[test]
fn metrics_need_the_password_and_the_right_to_see() {
    let web = Web::start(&["--requirepass", "secret"]);
    web.get("/metrics").refused(401, "NOAUTH");
    let basic = |pair: &str| format!("Authorization: Basic {pair}");
    // default:secret and default:wrong
    let right = web.ask("GET", "/metrics", &[&basic("ZGVmYXVsdDpzZWNyZXQ=")], "");
    assert!(right.status == 200 && right.body.contains("flagstone_ready 1\n"));
    let wrong = web.ask("GET", "/metrics", &[&basic("ZGVmYXVsdDp3cm9uZw==")], "");
    wrong.refused(401, "WRONGPASS");
    assert!(wrong.head.contains("www-authenticate: bearer"), "{}", wrong.head);
    assert!(!wrong.head.contains("www-authenticate: basic"), "{}", wrong.head);
    assert_eq!(web.ask("GET", "/metrics", &["Authorization: Bearer secret"], "").status, 200);
    assert_eq!(
        web.ask("GET", "/metrics", &["Authorization: Bearer default:secret"], "").status,
        200
    );
    web.ask("GET", "/metrics", &["Authorization: Digest x"], "").refused(401, "Basic nor Bearer");
    let began = Instant::now();
    for _ in 0..4 {
        web.ask("GET", "/get/x", &["Authorization: Bearer wrong"], "").refused(401, "WRONGPASS");
    }
    assert!(began.elapsed() > Duration::from_millis(700), "guesses are not slowed");
    let line = "clients turned away: ";
    let deadline = Instant::now() + Duration::from_secs(30);
    while !web.server.log().lines().any(|l| l.contains(line) && l.contains("wrong passwords")) {
        assert!(Instant::now() < deadline, "{}", web.server.log());
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Clients behind a proxy share its address.
#[test]
fn wrong_passwords_keep_no_health_check_of_their_address_out() {
    let web = Web::start(&["--requirepass", "secret"]);
    let login = ["Authorization: Bearer secret"];
    let deadline = Instant::now() + Duration::from_secs(120);
    let mut guessing = Vec::new();
    loop {
        for _ in 0..150 {
            let mut socket = web.socket();
            let _ = socket.write_all(
                b"GET /get/x HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer wrong\r\n\r\n",
            );
            guessing.push(socket);
        }
        web.get("/healthz").is(200, "ok\n");
        std::thread::sleep(Duration::from_millis(100));
        // No password is looked at while so many answers wait.
        let reply = web.ask("GET", "/metrics", &login, "");
        if reply.status == 429 {
            reply.refused(429, "too many wrong passwords");
            break;
        }
        assert!(Instant::now() < deadline, "{reply:?}");
        guessing.clear();
    }
    web.get("/healthz").is(200, "ok\n");
    while web.ask("GET", "/get/x", &login, "").status != 200 {
        assert!(Instant::now() < deadline, "the password is not looked at any more");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Asks for the pages that show figures, which are answered although no command is.
#[track_caller]
fn shows_figures(web: &Web, is_ready: f64, reason: &str) {
    let login = ["Authorization: Bearer secret"];
    let metrics = web.ask("GET", "/metrics", &login, "");
    assert_eq!(metrics.status, 200, "{metrics:?}");
    assert_eq!(sample(&metrics.body, "flagstone_ready"), is_ready);
    let status = web.ask("GET", "/status", &login, "");
    assert!(status.status == 200 && status.body.contains(reason), "{status:?}");
    assert_eq!(web.ask("GET", "/profile?seconds=1", &login, "").status, 200);
    web.get("/metrics").refused(401, "NOAUTH");
    web.ask("GET", "/metrics", &["Authorization: Bearer wrong"], "").refused(401, "WRONGPASS");
}

#[test]
fn figures_are_shown_while_no_command_is_answered() {
    let client = |web: &Web| {
        redis::Client::open(format!("redis://:secret@127.0.0.1:{}/", web.server.port()))
            .and_then(|client| client.get_connection())
            .expect("a connection")
    };
    let web = Web::start(&["--requirepass", "secret"]);
    let paused = redis::cmd("CLIENT").arg(&["PAUSE", "600000", "ALL"]).exec(&mut client(&web));
    paused.expect("paused");
    shows_figures(&web, 0.0, "clients are paused");

    let web = Web::start(&["--requirepass", "secret", "--busy-reply-threshold", "100"]);
    let (mut running, mut asking) = (client(&web), client(&web));
    let script = std::thread::spawn(move || {
        redis::cmd("EVAL").arg("while true do end").arg(0).exec(&mut running)
    });
    let deadline = Instant::now() + Duration::from_secs(30);
    while redis::cmd("GET").arg("k").exec(&mut asking).is_ok() {
        assert!(Instant::now() < deadline, "the script is not told of");
        std::thread::sleep(Duration::from_millis(20));
    }
    shows_figures(&web, 0.0, "script");
    redis::cmd("SCRIPT").arg("KILL").exec(&mut asking).expect("killed");
    script.join().expect("joined").expect_err("killed");

    let web = Web::start(&["--requirepass", "secret", "--maxclients", "4"]);
    let clients: Vec<_> = (0..4).map(|_| client(&web)).collect();
    let login = ["Authorization: Bearer secret"];
    web.ask("GET", "/get/x", &login, "").refused(503, "max number of clients");
    shows_figures(&web, 1.0, "");
    drop(clients);
}

#[test]
fn denials_of_pages_are_logged_as_those_of_commands() {
    let web = Web::start(&[]);
    let mut admin = web.server.client();
    let mut setuser = redis::cmd("ACL");
    setuser.arg(&["SETUSER", "app", "on", ">pw", "~*", "+get"][..]);
    setuser.exec(&mut admin).expect("set");
    web.ask("GET", "/metrics", &["Authorization: Bearer app:pw"], "").refused(403, "NOPERM");
    web.ask("GET", "/metrics", &["Authorization: Bearer app:no"], "").refused(401, "WRONGPASS");
    let log: redis::Value = redis::cmd("ACL").arg("LOG").query(&mut admin).expect("the log");
    let log = format!("{log:?}");
    for word in ["\"info\"", "\"auth\"", "\"app\"", "addr=127.0.0.1:"] {
        assert!(log.contains(word), "{word} in {log}");
    }
}

#[test]
fn a_request_runs_under_the_user_that_it_names() {
    let web = Web::start(&[]);
    let mut admin = web.server.client();
    let rules = "ACL SETUSER app on >pw ~app:* +@read +@write";
    let mut setuser = redis::cmd("ACL");
    setuser.arg(rules.split(' ').skip(1).collect::<Vec<_>>());
    let () = setuser.query(&mut admin).expect("set");
    let app = "Authorization: Bearer app:pw";
    web.ask("GET", "/set/app:1/v", &[app], "").is(200, r#"{"result":"OK"}"#);
    web.ask("GET", "/get/app:1", &[app], "").is(200, r#"{"result":"v"}"#);
    let denied = web.ask("GET", "/get/other", &[app], "");
    assert!(denied.status >= 400 && denied.body.contains("NOPERM"), "{denied:?}");
    let denied = web.ask("POST", "/multi-exec", &[app, JSON], r#"[["GET","app:1"]]"#);
    assert!(denied.status >= 400 && denied.body.contains("NOPERM"), "{denied:?}");
    web.ask("GET", "/metrics", &[app], "").refused(403, "NOPERM");
    web.ask("GET", "/get/app:1", &["Authorization: Bearer app:no"], "").refused(401, "WRONGPASS");
    // Without all rights, or a password, the default user is as anybody else.
    let () = redis::cmd("ACL")
        .arg(&["SETUSER", "default", "resetpass"][..])
        .query(&mut admin)
        .expect("set");
    web.get("/get/app:1").refused(401, "NOAUTH");
    web.ask("GET", "/get/app:1", &[app], "").is(200, r#"{"result":"v"}"#);
}

#[test]
fn without_a_password_the_host_must_be_loopback_and_the_origin_its_own() {
    let web = Web::start(&[]);
    let host = format!("Host: 127.0.0.1:{}", web.port);
    web.ask_as("GET", "/get/x", &[&host], "").is(200, r#"{"result":null}"#);
    for host in ["Host: evil.example", "Host: 127.0.0.1.evil.example", "Host: 10.1.2.3"] {
        web.ask_as("GET", "/get/x", &[host], "").refused(403, "Host header");
        web.ask_as("GET", "/metrics", &[host], "").refused(403, "Host header");
        let bearer = "Authorization: Bearer x";
        web.ask_as("GET", "/get/x", &[host, bearer], "").refused(403, "Host header");
    }
    let own = format!("Origin: http://localhost:{}", web.port);
    web.ask("GET", "/get/x", &[&own], "").is(200, r#"{"result":null}"#);
    let body = r#"["SET","x","1"]"#;
    for other in ["Origin: http://evil.example", "Origin: null", "Sec-Fetch-Site: cross-site"] {
        web.ask("GET", "/get/x", &[other], "").refused(403, "of a page of another");
        web.ask("POST", "/", &[JSON, other], body).refused(403, "of a page of another");
    }
    // A form or an image of another site sends such requests.
    web.ask("POST", "/", &["Content-Type: text/plain"], body).refused(403, "application/json");
    web.get("/set/x/1").refused(403, "Authorization header");
    web.get("/get/x").is(200, r#"{"result":null}"#);
    // There is no password, so any is right.
    web.ask("GET", "/set/x/1", &["Authorization: Bearer any"], "").is(200, r#"{"result":"OK"}"#);
    web.get("/get/x").is(200, r#"{"result":"1"}"#);
}

#[test]
fn commands_are_answered_as_upstash_does() {
    let web = Web::start(&[]);
    web.post("/", r#"["SET","k","a \"b\"",  "EX", 100]"#).is(200, r#"{"result":"OK"}"#);
    web.get("/get/k").is(200, "{\"result\":\"a \\\"b\\\"\"}");
    web.post("/set/other?EX=50", "body").is(200, r#"{"result":"OK"}"#);
    web.post("/", r#"["TTL","other"]"#).is(200, r#"{"result":50}"#);
    web.post("/", r#"["INCR","k"]"#).refused(400, "not an integer");
    web.post("/", r#"["NOSUCH"]"#).refused(400, "unknown command");
    web.get("/no/such").refused(404, "no such page");
    web.post("/pipeline", r#"[["RPUSH","l",1,2],["LRANGE","l",0,-1],["INCR","l"],["GET","none"]]"#).is(
        200,
        r#"[{"result":2},{"result":["1","2"]},{"error":"WRONGTYPE Operation against a key holding the wrong kind of value"},{"result":null}]"#,
    );
    web.post("/multi-exec", r#"[["SET","a",1],["INCR","a"],["LPUSH","a",1]]"#).is(
        200,
        r#"[{"result":"OK"},{"result":2},{"error":"WRONGTYPE Operation against a key holding the wrong kind of value"}]"#,
    );
    web.post("/multi-exec", r#"[["SET","a",9],["NOSUCH"]]"#).refused(400, "unknown command");
    web.get("/get/a").is(200, r#"{"result":"2"}"#);
    let base64 = "Upstash-Encoding: base64";
    web.ask("POST", "/", &[JSON, base64], r#"["GET","a"]"#).is(200, r#"{"result":"Mg=="}"#);
    web.ask(
        "POST",
        "/pipeline",
        &[JSON, base64],
        r#"[["SET","a","hi"],["KEYS","a"],["INCR","n"]]"#,
    )
    .is(200, r#"[{"result":"OK"},{"result":["YQ=="]},{"result":1}]"#);
    // Numbers are stored as they are written.
    for number in ["123456789012345678901234567890", "1e308", "0.10"] {
        web.post("/", &format!(r#"["SET","n",{number}]"#)).is(200, r#"{"result":"OK"}"#);
        web.get("/get/n").is(200, &format!(r#"{{"result":"{number}"}}"#));
    }
    for wrong in ["", "[", "{}", "[]", "[[1]]", r#"["GET",["a"]]"#, r#"["GET","a"] x"#] {
        let reply = web.post("/", wrong);
        assert!([400, 404].contains(&reply.status), "{wrong}: {reply:?}");
    }
    // Each request is a session of its own.
    web.post("/", r#"["MULTI"]"#).is(200, r#"{"result":"OK"}"#);
    web.post("/", r#"["SET","a","3"]"#).is(200, r#"{"result":"OK"}"#);
    let mut client = web.server.client();
    let clients: String = redis::cmd("CLIENT").arg("LIST").query(&mut client).expect("a list");
    let deadline = Instant::now() + Duration::from_secs(10);
    while redis::cmd("CLIENT")
        .arg("LIST")
        .query::<String>(&mut client)
        .expect("a list")
        .lines()
        .count()
        > 1
    {
        assert!(Instant::now() < deadline, "sessions do not end: {clients}");
    }
}

#[test]
fn commands_are_answered_as_webdis_does() {
    let web = Web::start(&[]);
    let login = "Authorization: Bearer any";
    let ask = |method: &str, path: &str, body: &str| web.ask(method, path, &[login], body);
    ask("GET", "/SET/hello/world", "").is(200, r#"{"SET":[true,"OK"]}"#);
    ask("GET", "/GET/hello", "").is(200, r#"{"GET":"world"}"#);
    ask("GET", "/GET/hello.json", "").is(200, r#"{"GET":"world"}"#);
    ask("GET", "/GET/hello.txt", "").is(200, "world");
    ask("GET", "/GET/hello.raw", "").is(200, "$5\r\nworld\r\n");
    ask("PUT", "/SET/slash%2Fkey", "from the body").is(200, r#"{"SET":[true,"OK"]}"#);
    ask("POST", "/", "GET/slash%2Fkey").is(200, r#"{"GET":"from the body"}"#);
    let failed = r#"{"INCR":[false,"ERR value is not an integer or out of range"]}"#;
    ask("GET", "/INCR/hello", "").is(200, failed);
    ask("DELETE", "/GET/hello", "").refused(405, "method");
}

#[test]
fn commands_obey_the_gate_of_every_session() {
    let web = Web::start(&["--requirepass", "secret", "--maxclients", "4"]);
    let login = "Authorization: Bearer secret";
    web.post("/", r#"["GET","x"]"#).refused(401, "NOAUTH");
    web.ask("POST", "/", &[JSON, login], r#"["DEBUG","SLEEP","0"]"#).refused(400, "DEBUG");
    let clients: Vec<TcpStream> = (0..4)
        .map(|_| {
            let mut socket = web.server.socket();
            socket.write_all(b"AUTH secret\r\n").expect("sent");
            socket.read_exact(&mut [0; 5]).expect("answered");
            socket
        })
        .collect();
    web.ask("GET", "/get/x", &[login], "").refused(503, "max number of clients");
    drop(clients);
    let deadline = Instant::now() + Duration::from_secs(10);
    while web.ask("GET", "/get/x", &[login], "").status != 200 {
        assert!(Instant::now() < deadline, "no place is given back");
    }
    let info = web.ask("POST", "/", &[JSON, login], r#"["INFO","commandstats"]"#).body;
    assert!(info.contains("cmdstat_get:calls="), "{info}");
}

#[test]
fn no_reply_is_left_out() {
    let web = Web::start(&[]);
    let began = Instant::now();
    for mode in ["OFF", "SKIP", "ON"] {
        let body = format!(r#"["CLIENT","REPLY","{mode}"]"#);
        web.post("/", &body).refused(400, "CLIENT REPLY is not allowed over HTTP");
    }
    let body = r#"[["CLIENT","REPLY","OFF"],["INCR","n"],["RESET"],["CLIENT","REPLY","SKIP"],["GET","n"]]"#;
    let reply = web.post("/pipeline", body);
    assert!(reply.status == 200, "{reply:?}");
    assert_eq!(reply.body.matches("CLIENT REPLY is not allowed").count(), 2, "{reply:?}");
    assert!(reply.body.ends_with(r#",{"result":"1"}]"#), "{reply:?}");
    let body = r#"[["CLIENT","REPLY","OFF"],["INCR","n"],["CLIENT","REPLY","ON"]]"#;
    let reply = web.post("/multi-exec", body);
    assert!(reply.status == 200 && reply.body.contains(r#"{"result":2}"#), "{reply:?}");
    assert_eq!(reply.body.matches("CLIENT REPLY is not allowed").count(), 2, "{reply:?}");
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
}

#[test]
fn large_and_binary_values_come_back_and_too_large_ones_are_refused() {
    let web = Web::start(&[]);
    let value = "x".repeat(7 << 20);
    web.ask("POST", "/set/big", &[JSON], &value).is(200, r#"{"result":"OK"}"#);
    let back = web.get("/get/big");
    assert!(back.status == 200 && back.body == format!("{{\"result\":\"{value}\"}}"));
    let refused = web.ask("POST", "/set/big", &[JSON], &"x".repeat(9 << 20));
    // The answer is lost if the client is still sending.
    assert!([413, 0].contains(&refused.status), "{refused:?}");
    web.get("/strlen/big").is(200, &format!("{{\"result\":{}}}", 7 << 20));
    let mut client = web.server.client();
    redis::cmd("SET").arg("b").arg(&[0_u8, 255, b'"', 10][..]).exec(&mut client).expect("set");
    web.get("/get/b").is(200, "{\"result\":\"\\u0000\u{fffd}\\\"\\n\"}");
    web.ask("GET", "/get/b", &["Upstash-Encoding: base64"], "").is(200, r#"{"result":"AP8iCg=="}"#);
    redis::cmd("SETRANGE").arg("huge").arg(40 << 20).arg("x").exec(&mut client).expect("set");
    web.get("/get/huge").refused(413, "ask for less");
}

#[test]
fn bodies_of_many_numbers_take_a_few_times_their_bytes_and_count_as_memory_of_clients() {
    let mut web = Web::start(&[]);
    let before = web.server.rss();
    let body =
        |number: &str| format!("[\"RPUSH\",\"l\"{}]", format!(",{number}").repeat(1_300_000));
    let reply = web.post("/", &body("1e308"));
    assert!(reply.status >= 400, "more arguments than a command may have: {reply:?}");
    let peak = web.server.peak_rss();
    assert!(peak < before + (200 << 20), "{before} then {peak}");
    web.server.stop();
    let web = Web::start(&["--maxmemory-clients", "8mb"]);
    web.post("/", &body("1")).refused(503, "more memory");
    web.post("/", r#"["PING"]"#).is(200, r#"{"result":"PONG"}"#);
}

/// Asks for a path on a connection that stays open, and returns the beginning of the answer.
fn begin_reading(web: &Web, path: &str) -> (TcpStream, String) {
    let mut socket = web.socket();
    write!(socket, "GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("sent");
    let mut line = [0; 12];
    let _ = socket.read_exact(&mut line);
    (socket, String::from_utf8_lossy(&line).into_owned())
}

#[test]
fn replies_count_as_memory_until_they_are_read() {
    let web = Web::start(&["--maxmemory-clients", "60mb"]);
    let mut client = web.server.client();
    redis::cmd("SETRANGE").arg("big").arg(15 << 20).arg("x").exec(&mut client).expect("set");
    for path in ["/GET/big.raw", "/GET/big.txt"] {
        let deadline = Instant::now() + Duration::from_secs(60);
        while begin_reading(&web, path).1 != "HTTP/1.1 200" {
            assert!(Instant::now() < deadline, "{path}: memory is not given back");
            std::thread::sleep(Duration::from_millis(50));
        }
        // None of them reads more than the first line.
        let unread: Vec<_> = (0..20).map(|_| begin_reading(&web, path)).collect();
        let answered = unread.iter().filter(|(_, line)| line == "HTTP/1.1 200").count();
        assert!((1..10).contains(&answered), "{path}: {answered} of 20");
    }
}

#[test]
fn hostile_requests_are_refused_and_harm_nobody() {
    let web = Web::start(&[]);
    let peak = web.server.rss();
    for (head, status) in [
        ("\0\0\0\r\n\r\n".to_owned(), 400),
        ("GET / HTTP/9.9\r\n\r\n".to_owned(), 400),
        (format!("GET /{} HTTP/1.1\r\nHost: localhost\r\n\r\n", "a".repeat(60_000)), 431),
        (format!("GET /healthz HTTP/1.1\r\nX: {}\r\n\r\n", "a".repeat(60_000)), 431),
        (format!("GET /healthz HTTP/1.1\r\n{}\r\n", "A: b\r\n".repeat(1000)), 431),
        ("GET /get/%00%ff HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".to_owned(), 200),
        ("GET /get/% HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".to_owned(), 400),
        ("GET /../../etc/passwd HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".to_owned(), 404),
        ("GET //get//x HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".to_owned(), 400),
        ("PING\r\n\r\n".to_owned(), 400),
        (
            "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\nx"
                .to_owned(),
            403,
        ),
        (
            "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
            Content-Length: 99999999999\r\n\r\n[".to_owned(),
            413,
        ),
    ] {
        let mut socket = web.socket();
        socket.write_all(head.as_bytes()).expect("sent");
        if status >= 400 {
            // The server waits for no more bytes of a request that is broken off.
            let _ = socket.shutdown(Shutdown::Write);
        }
        let reply = read(socket);
        let shown: String = head.chars().take(60).collect();
        assert!(reply.status == status || reply.status == 0 && status >= 400, "{shown:?}: {reply:?}");
    }
    web.get("/healthz").is(200, "ok\n");
    // Deep JSON needs no deep stack.
    web.post("/", &"[".repeat(1 << 20)).refused(400, "failed to parse");
    let many = format!("[{}]", vec!["[\"PING\"]"; 20_000].join(","));
    web.post("/pipeline", &many).refused(400, "more than");
    assert!(web.server.rss() < peak + (200 << 20), "{} then {}", peak, web.server.rss());
}

#[test]
fn slow_clients_and_crowds_leave_room_again() {
    let web = Web::start(&[]);
    // Headers that never end.
    let slow: Vec<TcpStream> = (0..200)
        .map(|_| {
            let mut socket = web.socket();
            // Connections beyond the limit are closed at once.
            let _ = socket.write_all(b"GET /healthz HTTP/1.1\r\nX-A: ");
            socket
        })
        .collect();
    let began = Instant::now();
    let deadline = began + Duration::from_secs(40);
    loop {
        let mut socket = web.socket();
        let _ = socket.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        if read(socket).status == 200 {
            break;
        }
        assert!(Instant::now() < deadline, "slow clients keep the port");
        std::thread::sleep(Duration::from_millis(200));
    }
    // The server itself was not affected.
    redis::cmd("PING").exec(&mut web.server.client()).expect("answered");
    drop(slow);
    assert!(sample(&web.get("/metrics").body, "flagstone_http_refused_connections_total") > 0.0);
}

/// Asks on a connection that stays open, and reads the answer's first bytes.
fn keep_asking(socket: &mut TcpStream) -> String {
    let _ = socket.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n");
    let mut bytes = [0; 4096];
    let read = socket.read(&mut bytes).unwrap_or(0);
    String::from_utf8_lossy(&bytes[..read]).into_owned()
}

#[test]
fn who_takes_all_places_keeps_nobody_out_and_ends_no_command() {
    let web = Web::start(&[]);
    let port = web.port;
    let waiting = std::thread::spawn(move || {
        let mut socket = connect(port);
        let body = r#"["BLPOP","queue","20"]"#;
        let head = format!("POST / HTTP/1.1\r\nHost: localhost\r\n{JSON}\r\nConnection: close\r\n");
        write!(socket, "{head}Content-Length: {}\r\n\r\n{body}", body.len()).expect("sent");
        read(socket)
    });
    let mut client = web.server.client();
    let deadline = Instant::now() + Duration::from_secs(10);
    while !redis::cmd("INFO")
        .arg("clients")
        .query::<String>(&mut client)
        .expect("answered")
        .contains("blocked_clients:1")
    {
        assert!(Instant::now() < deadline, "the command does not wait");
        std::thread::sleep(Duration::from_millis(10));
    }
    // None of these connections needs a password, and none of them ends.
    let mut crowd: Vec<TcpStream> = (0..200).map(|_| web.socket()).collect();
    for _ in 0..3 {
        let began = Instant::now();
        let answered = crowd
            .iter_mut()
            .filter_map(|socket| keep_asking(socket).contains("200 OK").then_some(()));
        assert!(answered.count() > 0, "the crowd is served");
        web.get("/healthz").is(200, "ok\n");
        web.post("/", r#"["PING"]"#).is(200, r#"{"result":"PONG"}"#);
        assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
        crowd.extend((0..50).map(|_| web.socket()));
    }
    redis::cmd("RPUSH").arg("queue").arg("x").exec(&mut client).expect("stored");
    waiting.join().expect("an answer").is(200, r#"{"result":["queue","x"]}"#);
    assert!(sample(&web.get("/metrics").body, "flagstone_http_refused_connections_total") > 0.0);
}

#[test]
fn a_port_in_use_is_told_at_the_start() {
    let web = Web::start(&[]);
    let mut other = Server::start(&[]);
    let port = web.port.to_string();
    other.stop();
    let told = other.refused(&["--http-port", &port]);
    assert!(told.contains("http-port") && told.contains(&port), "{told}");
    let told = other.refused(&["--http-port", &port, "--http-bind", "no.such.host.invalid"]);
    assert!(told.contains("http-bind no.such.host.invalid"), "{told}");
}

#[test]
fn the_shutdown_ends_waiting_requests_and_closes_the_port() {
    let mut web = Web::start(&[]);
    let mut waiting = web.socket();
    let body = r#"["BLPOP","none","0"]"#;
    let host = "Host: localhost\r\nContent-Type: application/json";
    let len = body.len();
    write!(waiting, "POST / HTTP/1.1\r\n{host}\r\nContent-Length: {len}\r\n\r\n{body}")
        .expect("sent");
    let mut idle = web.socket();
    write!(idle, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").expect("sent");
    std::thread::sleep(Duration::from_millis(300));
    let began = Instant::now();
    web.server.stop();
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    let reply = read(waiting);
    assert!(reply.status == 503 || reply.status == 0, "{reply:?}");
    assert!(TcpStream::connect(("127.0.0.1", web.port)).is_err(), "it is still open");
}

#[test]
fn beyond_loopback_a_password_is_needed() {
    let web = Web::start(&["--http-bind", "0.0.0.0"]);
    assert!(web.server.log().contains("http-bind names addresses beyond loopback"));
    web.get("/get/x").is(200, r#"{"result":null}"#);
    let settings = redis::cmd("CONFIG").arg(&["GET", "http-*"]).query(&mut web.server.client());
    let settings: Vec<String> = settings.expect("settings");
    assert!(settings.contains(&"0.0.0.0".to_owned()), "{settings:?}");
}
