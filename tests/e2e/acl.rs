//! Users and their rights: who may do what, and the connections that a lost right closes.

use super::Server;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

/// How long something that happens by itself may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

const TWO: [&str; 4] = ["--workers", "2", "--shards", "2"];

/// Keys in different shards of two.
const LEFT: &str = "{a}";
const RIGHT: &str = "{b}";

/// A client that shows replies as text.
struct Asker {
    socket: TcpStream,
    reader: BufReader<TcpStream>,
}

impl Asker {
    fn new(server: &Server) -> Self {
        let socket = server.socket();
        socket.set_read_timeout(Some(PATIENCE)).expect("set");
        let reader = BufReader::new(socket.try_clone().expect("another handle"));
        Self { socket, reader }
    }

    /// A connection of a user.
    fn user(server: &Server, name: &str, password: &str) -> Self {
        let mut asker = Self::new(server);
        assert_eq!(asker.ask(&["AUTH", name, password]), "OK");
        asker
    }

    /// The reply to a command: elements with commas between them; an error begins with `-`.
    fn ask(&mut self, words: &[&str]) -> String {
        let mut command = format!("*{}\r\n", words.len());
        for word in words {
            command.push_str(&format!("${}\r\n{word}\r\n", word.len()));
        }
        // A connection that is closed is found by reading.
        let _ = self.socket.write_all(command.as_bytes());
        self.read().unwrap_or_else(|_| "-closed".to_owned())
    }

    fn read(&mut self) -> std::io::Result<String> {
        let mut line = String::new();
        self.reader.read_line(&mut line)?;
        let Some(line) = line.strip_suffix("\r\n") else {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        };
        let (kind, rest) = line.split_at(1);
        let count: i64 = rest.parse().unwrap_or(-1);
        match (kind, count) {
            ("+" | ":", _) => Ok(rest.to_owned()),
            ("-", _) => Ok(line.to_owned()),
            (_, ..0) => Ok("nil".to_owned()),
            ("$", _) => {
                let mut bytes = vec![0; count as usize + 2];
                self.reader.read_exact(&mut bytes)?;
                Ok(String::from_utf8_lossy(&bytes[..count as usize]).into_owned())
            }
            _ => {
                let parts: std::io::Result<Vec<String>> = (0..count).map(|_| self.read()).collect();
                Ok(parts?.join(","))
            }
        }
    }

    /// Sends a line of words, which must be answered with this.
    fn get(&mut self, line: &str, expected: &str) {
        let words: Vec<&str> = line.split(' ').collect();
        assert_eq!(self.ask(&words), expected, "{line}");
    }

    /// The same; the answer begins with this.
    fn begins(&mut self, line: &str, expected: &str) {
        let words: Vec<&str> = line.split(' ').collect();
        let reply = self.ask(&words);
        assert!(reply.starts_with(expected), "{line}: {reply}");
    }
}

/// A connection that sends and receives bytes.
struct Bytes(TcpStream);

impl Bytes {
    fn new(server: &Server) -> Self {
        let socket = server.socket();
        socket.set_read_timeout(Some(PATIENCE)).expect("set");
        Self(socket)
    }

    fn send(&mut self, line: &str) {
        self.0.write_all(format!("{line}\r\n").as_bytes()).expect("sent");
    }

    /// Returns the bytes that the server sends up to this text.
    fn until(&mut self, end: &str) -> String {
        let mut all = Vec::new();
        let mut byte = [0];
        while !all.ends_with(end.as_bytes()) {
            match self.0.read(&mut byte) {
                Ok(1) => all.push(byte[0]),
                other => panic!("{other:?} after {}", String::from_utf8_lossy(&all)),
            }
        }
        String::from_utf8_lossy(&all).into_owned()
    }

    fn is_closed(&mut self) -> bool {
        match self.0.read_to_end(&mut Vec::new()) {
            Ok(_) => true,
            Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
        }
    }
}

/// Waits until CLIENT LIST shows a client of a user with these flags.
fn await_client(admin: &mut Asker, user: &str, flags: &str) {
    let end = Instant::now() + PATIENCE;
    loop {
        let list = admin.ask(&["CLIENT", "LIST"]);
        let (user, flags) = (format!("user={user} "), format!("flags={flags} "));
        if list.lines().any(|line| line.contains(&user) && line.contains(&flags)) {
            return;
        }
        assert!(Instant::now() < end, "{list}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_user_may_do_what_its_rules_allow_and_the_rest_is_logged() {
    let server = Server::start(&TWO);
    let mut admin = Asker::new(&server);
    admin.get("ACL SETUSER ann on >pw ~app:* %R~shared:* +@read +set +multi +exec &news", "OK");
    let mut ann = Asker::user(&server, "ann", "pw");
    ann.get("ACL WHOAMI", "-NOPERM User ann has no permissions to run the 'acl|whoami' command");
    ann.get("SET app:1 v", "OK");
    ann.get("GET app:1", "v");
    ann.get("GET other", "-NOPERM No permissions to access a key");
    ann.get("SET shared:1 v", "-NOPERM No permissions to access a key");
    ann.get("GET shared:1", "nil");
    ann.get("DEL app:1", "-NOPERM User ann has no permissions to run the 'del' command");
    // Arity and unknown commands come first.
    ann.begins("GET", "-ERR wrong number of arguments");
    ann.begins("NOSUCH x", "-ERR unknown command");
    ann.get("CONFIG GET x", "-NOPERM User ann has no permissions to run the 'config|get' command");
    let log = admin.ask(&["ACL", "LOG", "1"]);
    assert!(
        log.starts_with("count,1,reason,command,context,toplevel,object,config|get,username,ann,"),
        "{log}"
    );
    assert!(log.contains(" user=ann "), "{log}");
    let info = admin.ask(&["INFO", "stats"]);
    assert!(info.contains("acl_access_denied_cmd:3\r\n"), "{info}");
    assert!(info.contains("acl_access_denied_key:2\r\n"), "{info}");
    admin.get("AUTH ann wrong", "-WRONGPASS invalid username-password pair or user is disabled.");
    admin.get("AUTH nobody pw", "-WRONGPASS invalid username-password pair or user is disabled.");
    admin.begins("ACL LOG 1", "count,1,reason,auth,context,toplevel,object,AUTH,username,nobody,");
    assert!(admin.ask(&["INFO", "stats"]).contains("acl_access_denied_auth:2\r\n"));
    admin.get("CONFIG RESETSTAT", "OK");
    assert!(admin.ask(&["INFO", "stats"]).contains("acl_access_denied_auth:0\r\n"));
    admin.get("ACL SETUSER ann off", "OK");
    // A client that is logged in goes on; no other one may log in.
    ann.get("GET app:1", "v");
    admin.get("AUTH ann pw", "-WRONGPASS invalid username-password pair or user is disabled.");
}

#[test]
fn the_keys_of_migrate_are_those_that_it_sends() {
    let server = Server::start(&TWO);
    let mut admin = Asker::new(&server);
    admin.get("ACL SETUSER ann on +@all %R~read* %W~write* %RW~rw*", "OK");
    for (words, denied) in [
        (&["rw"][..], None),
        (&["read"], Some("read")),
        (&["write"], Some("write")),
        (&["", "KEYS", "rw"], None),
        (&["", "KEYS", "rw", "read"], Some("read")),
        (&["", "AUTH", "KEYS", "KEYS", "rw"], None),
        (&["", "AUTH", "KEYS", "KEYS", "write"], Some("write")),
        (&["", "AUTH2", "KEYS", "123", "KEYS", "rw"], None),
        (&["", "AUTH2", "USER", "KEYS", "KEYS", "read"], Some("read")),
        (&["", "COPY", "REPLACE", "KEYS", "rw", "rw2"], None),
        (&["", "COPY", "KEYS"], Some("")),
        (&["read", "KEYS", "write"], None),
    ] {
        let mut all = vec!["ACL", "DRYRUN", "ann", "MIGRATE", "host", "1", words[0], "0", "500"];
        all.extend(&words[1..]);
        let expected = match denied {
            None => "OK".to_owned(),
            Some(key) => format!("User ann has no permissions to access the '{key}' key"),
        };
        assert_eq!(admin.ask(&all), expected, "{words:?}");
    }
}

#[test]
fn a_transaction_is_checked_when_it_is_queued_and_when_it_runs() {
    let server = Server::start(&TWO);
    let mut admin = Asker::new(&server);
    admin.get("ACL SETUSER ann on nopass ~* &* +@all -flushall", "OK");
    let mut ann = Asker::user(&server, "ann", "x");
    ann.get("MULTI", "OK");
    ann.begins("FLUSHALL", "-NOPERM");
    ann.get("EXEC", "-EXECABORT Transaction discarded because of previous errors.");
    admin.begins("ACL LOG 1", "count,1,reason,command,context,multi,object,flushall,");
    let changed = "-NOPERM ACLs rules changed between the moment the transaction was accumulated \
        and the EXEC call. This command is no longer allowed for the following reason: ";
    for (rule, reason) in [
        ("-set", "no permission to execute the command or subcommand"),
        ("resetkeys", "no permission to touch the specified keys"),
    ] {
        admin.get("ACL SETUSER ann reset on nopass ~* &* +@all", "OK");
        ann.get("MULTI", "OK");
        // On both workers, and one that needs the connection.
        ann.get(&format!("SET {LEFT} 1"), "QUEUED");
        ann.get(&format!("SET {RIGHT} 1"), "QUEUED");
        ann.get("CLIENT GETNAME", "QUEUED");
        ann.get("PING", "QUEUED");
        admin.ask(&["ACL", "SETUSER", "ann", rule, "-client|getname"]);
        let error = format!("{changed}{reason}");
        let name = format!("{changed}no permission to execute the command or subcommand");
        ann.get("EXEC", &[&error[..], &error, &name, "PONG"].join(","));
        admin.get(&format!("EXISTS {LEFT} {RIGHT}"), "0");
    }
    ann.get("MULTI", "OK");
    ann.get("PING", "QUEUED");
    admin.get("ACL SETUSER ann -exec", "OK");
    ann.get(
        "EXEC",
        "-EXECABORT Transaction discarded because of: NOPERM User ann has no permissions to run \
        the 'exec' command",
    );
}

#[test]
fn commands_of_a_transaction_run_with_the_rights_of_the_login_before_them() {
    for options in [&["--workers", "1"][..], &TWO] {
        let server = Server::start(options);
        let mut admin = Asker::new(&server);
        admin.get("ACL SETUSER ann on nopass ~app:* +@all", "OK");
        let changed = "-NOPERM ACLs rules changed between the moment the transaction was \
            accumulated and the EXEC call. This command is no longer allowed for the following \
            reason: no permission to touch the specified keys";
        let script = "EVAL return{redis.acl_check_cmd('get',ARGV[1])and(1)or(0)} 0 other";
        let mut client = Asker::new(&server);
        client.get("MULTI", "OK");
        for command in [
            &format!("SET {LEFT} 1")[..],
            "AUTH ann x",
            &format!("SET {LEFT} 2"),
            "SET app:1 v",
            script,
            "HELLO 2 AUTH default x SETNAME n,m",
            &format!("SET {RIGHT} 1"),
            "AUTH bob x",
            &format!("SET {RIGHT} 2"),
        ] {
            client.get(command, "QUEUED");
        }
        let wrong = "-WRONGPASS invalid username-password pair or user is disabled.";
        let replies = client.ask(&["EXEC"]);
        let begins = ["OK", "OK", changed, "OK", "0", "server,"].join(",");
        let ends = [",OK", wrong, "OK"].join(",");
        assert!(replies.starts_with(&begins) && replies.ends_with(&ends), "{replies}");
        admin.get(&format!("MGET {LEFT} {RIGHT} app:1"), "1,2,v");
        client.get("ACL WHOAMI", "default");
        // Behind a wrong password no other one is tried, for the commands on keys neither.
        client.get("MULTI", "OK");
        for command in ["AUTH bob x", "AUTH ann x", "HELLO 2 AUTH ann x", "GET app:1", "PING"] {
            client.get(command, "QUEUED");
        }
        client.get("EXEC", &[wrong, wrong, wrong, "v", "PONG"].join(","));
        client.get("ACL WHOAMI", "default");
        let tries = admin.ask(&["ACL", "LOG"]);
        assert_eq!(tries.matches("reason,auth").count(), 1, "{tries}");
        client.get("AUTH ann x", "OK");
        client.get("AUTH default x", "OK");
        // A transaction that does not run logs nobody in.
        client.get(&format!("WATCH {LEFT}"), "OK");
        client.get("MULTI", "OK");
        client.get("AUTH ann x", "QUEUED");
        client.get(&format!("SET {LEFT} 3"), "QUEUED");
        admin.get(&format!("SET {LEFT} 4"), "OK");
        client.get("EXEC", "nil");
        client.get("ACL WHOAMI", "default");
    }
}

#[test]
fn scripts_and_functions_run_under_the_caller() {
    let server = Server::start(&TWO);
    let mut admin = Asker::new(&server);
    let code = "#!lua name=lib\nredis.register_function('put', function(k, a) \
        return redis.call('set', k[1] or a[1], 'v') end)";
    assert_eq!(admin.ask(&["FUNCTION", "LOAD", code]), "lib");
    admin.get("ACL SETUSER ann on nopass ~app:* +eval +evalsha +fcall +get +set -del", "OK");
    let mut ann = Asker::user(&server, "ann", "x");
    let set = "return redis.call('set', KEYS[1] or ARGV[1], 'v')";
    assert_eq!(ann.ask(&["EVAL", set, "1", "app:1"]), "OK");
    let denied = ann.ask(&["EVAL", set, "0", "other"]);
    assert!(denied.contains("ACL failure in script: No permissions to access a key"), "{denied}");
    assert!(ann.ask(&["EVAL", set, "1", "other"]).starts_with("-NOPERM No permissions"));
    let denied = ann.ask(&["EVAL", "return redis.pcall('del', 'app:1')", "0"]);
    assert!(denied.contains("User ann has no permissions to run the 'del' command"), "{denied}");
    admin.begins("ACL LOG 1", "count,1,reason,command,context,lua,object,del,username,ann,");
    assert_eq!(ann.ask(&["FCALL", "put", "1", "app:2"]), "OK");
    assert!(ann.ask(&["FCALL", "put", "0", "other"]).contains("ACL failure in script"));
    let check = "return {redis.acl_check_cmd('set', ARGV[1], 'v') and 1 or 0, \
        redis.acl_check_cmd('SET', ARGV[2], 'v') and 1 or 0, \
        redis.acl_check_cmd('del', ARGV[1]) and 1 or 0}";
    assert_eq!(ann.ask(&["EVAL", check, "0", "app:x", "other"]), "1,0,0");
    assert_eq!(admin.ask(&["EVAL", check, "0", "app:x", "other"]), "1,1,1");
    assert!(
        ann.ask(&["EVAL", "return redis.acl_check_cmd('nosuch')", "0"])
            .contains("Invalid command passed")
    );
    // The same holds for a script that runs on a thread of its own.
    let long = "for i = 1, 2000000 do end return redis.call('set', ARGV[1], 'v')";
    assert!(ann.ask(&["EVAL", long, "0", "other"]).contains("ACL failure in script"));
    assert_eq!(admin.ask(&["EXISTS", "other"]), "0");
    assert!(admin.ask(&["INFO", "stats"]).contains("acl_access_denied_key:4\r\n"));
}

#[test]
fn keys_that_are_not_declared_are_read_only_with_a_right_to_all() {
    let server = Server::start(&TWO);
    let mut admin = Asker::new(&server);
    admin.get("RPUSH list 1 2", "2");
    admin.get("MSET w_1 9 w_2 1", "OK");
    admin.get("ACL SETUSER ann on nopass ~list ~w_* +@all", "OK");
    admin.get("ACL SETUSER bob on nopass %R~* +@all", "OK");
    let by = "-ERR BY option of SORT denied due to insufficient ACL permissions.";
    let get = "-ERR GET option of SORT denied due to insufficient ACL permissions.";
    let mut ann = Asker::user(&server, "ann", "x");
    ann.get("SORT list", "1,2");
    ann.get("SORT list BY nosort", "1,2");
    ann.get("SORT list BY w_*", by);
    ann.get("SORT_RO list GET w_*", get);
    ann.get("SORT list GET #", get);
    ann.get("SORT list STORE other", "-NOPERM No permissions to access a key");
    let script = "return redis.pcall('sort', 'list', 'by', 'w_*')";
    assert_eq!(ann.ask(&["EVAL", script, "1", "list"]), by);
    ann.get("MULTI", "OK");
    ann.get("SORT list BY w_*", "QUEUED");
    ann.get("EXEC", by);
    let mut bob = Asker::user(&server, "bob", "x");
    bob.get("SORT list BY w_*", "2,1");
    bob.get("SORT list GET w_*", "9,1");
    assert_eq!(bob.ask(&["EVAL", script, "0"]), "2,1");
}

#[test]
fn a_blocked_command_is_checked_again_when_it_is_served() {
    for options in [&["--workers", "1"][..], &TWO] {
        let server = Server::start(options);
        let mut admin = Asker::new(&server);
        for (key, rule) in [(LEFT, "resetkeys"), (RIGHT, "-blpop")] {
            admin.get("ACL SETUSER ann reset on nopass ~* +@all", "OK");
            let mut ann = Bytes::new(&server);
            ann.send("AUTH ann x");
            ann.until("+OK\r\n");
            ann.send(&format!("BLPOP {LEFT} {RIGHT} 0"));
            await_client(&mut admin, "ann", "b");
            admin.ask(&["ACL", "SETUSER", "ann", rule]);
            admin.get(&format!("RPUSH {key} v"), "1");
            let error = ann.until("\r\n");
            assert!(error.starts_with("-NOPERM"), "{error}");
            admin.get(&format!("LRANGE {key} 0 -1"), "v");
            admin.get("FLUSHALL", "OK");
        }
        // The default user, too; and others are served behind it.
        admin.get("ACL SETUSER bob on nopass allkeys +@all", "OK");
        let mut first = Bytes::new(&server);
        first.send(&format!("BLPOP {LEFT} 0"));
        await_client(&mut admin, "default", "b");
        let mut second = Bytes::new(&server);
        second.send("AUTH bob x");
        second.until("+OK\r\n");
        second.send(&format!("BLPOP {LEFT} 0"));
        await_client(&mut admin, "bob", "b");
        admin.get("ACL SETUSER default -blpop", "OK");
        admin.get(&format!("RPUSH {LEFT} v"), "1");
        assert!(first.until("\r\n").starts_with("-NOPERM"));
        assert!(second.until("v\r\n").starts_with("*2"));
    }
}

#[test]
fn a_lost_right_to_a_channel_closes_who_listens_and_nobody_else() {
    let server = Server::start(&TWO);
    let mut admin = Asker::new(&server);
    admin.get("ACL SETUSER ann on nopass +@all &news:* &more", "OK");
    let mut listeners = Vec::new();
    for subscription in
        ["SUBSCRIBE news:1", "PSUBSCRIBE news:*", "SSUBSCRIBE news:2", "SUBSCRIBE more"]
    {
        let mut listener = Bytes::new(&server);
        listener.send("AUTH ann x");
        listener.until("+OK\r\n");
        listener.send(subscription);
        listener.until(":1\r\n");
        listeners.push(listener);
    }
    let mut bystander = Bytes::new(&server);
    bystander.send("SUBSCRIBE news:1");
    bystander.until(":1\r\n");
    // More rights close nobody.
    admin.get("ACL SETUSER ann &other", "OK");
    admin.get("PUBLISH news:1 m", "3");
    admin.get("ACL SETUSER ann resetchannels &more &news:1", "OK");
    assert!(listeners.remove(2).is_closed(), "news:2 is not allowed any more");
    assert!(listeners.remove(1).is_closed(), "the pattern is not allowed any more");
    admin.get("PUBLISH news:1 again", "2");
    listeners[0].until("again\r\n");
    admin.get("ACL SETUSER ann resetchannels", "OK");
    assert!(listeners.remove(0).is_closed());
    bystander.until("again\r\n");
    admin.get("PUBLISH news:1 last", "1");
    bystander.until("last\r\n");
}

#[test]
fn a_removed_user_s_connections_are_closed() {
    let server = Server::start(&TWO);
    let mut admin = Asker::new(&server);
    for user in ["ann", "bob", "eve"] {
        admin.get(&format!("ACL SETUSER {user} on nopass ~* &* +@all"), "OK");
    }
    let mut connections: Vec<Bytes> = (0..4).map(|_| Bytes::new(&server)).collect();
    for (connection, command) in
        connections.iter_mut().zip(["PING", "MULTI", "BLPOP k 0", "SUBSCRIBE c"])
    {
        connection.send("AUTH ann x");
        connection.until("+OK\r\n");
        connection.send(command);
    }
    await_client(&mut admin, "ann", "b");
    admin.get("ACL DELUSER default", "-ERR The 'default' user cannot be removed");
    admin.get("ACL DELUSER nobody", "0");
    let mut bob = Asker::user(&server, "bob", "x");
    admin.get("ACL DELUSER ann nobody", "1");
    assert!(connections.iter_mut().all(Bytes::is_closed));
    admin.get("RPUSH k v", "1");
    bob.get("ACL WHOAMI", "bob");
    // A client that removes its own user gets the reply.
    bob.get("ACL DELUSER bob", "1");
    assert!(bob.ask(&["PING"]).starts_with('-'));
    admin.get("CLIENT KILL USER nobody", "-ERR No such user 'nobody'");
    let mut eve = Asker::user(&server, "eve", "x");
    admin.get("CLIENT KILL USER eve", "1");
    assert!(eve.ask(&["PING"]).starts_with('-'));
}

#[test]
fn requirepass_is_the_default_user_s_password() {
    let server = Server::start(&["--requirepass", "first"]);
    let mut stranger = Asker::new(&server);
    stranger.begins("PING", "-NOAUTH");
    stranger.begins("HELLO 3", "-NOAUTH HELLO must be called");
    stranger.get("AUTH first", "OK");
    let mut admin = stranger;
    admin.get("ACL SETUSER default >second", "OK");
    admin.get("AUTH second", "OK");
    admin.get("CONFIG GET requirepass", "requirepass,first");
    admin.get("CONFIG SET requirepass third", "OK");
    admin.begins("AUTH first", "-WRONGPASS");
    admin.begins("AUTH second", "-WRONGPASS");
    admin.get("AUTH default third", "OK");
    admin.get("ACL SETUSER default nopass", "OK");
    admin.begins("AUTH third", "-ERR AUTH <password> called without any password");
    Asker::new(&server).get("PING", "PONG");
    admin.get("ACL SETUSER ann on >pw +@all", "OK");
    admin.get("ACL SETUSER default off", "OK");
    let mut ann = Asker::new(&server);
    ann.begins("PING", "-NOAUTH");
    ann.get("AUTH ann pw", "OK");
    ann.get("ACL WHOAMI", "ann");
    ann.get("RESET", "RESET");
    ann.begins("ACL WHOAMI", "-NOAUTH");
    // A user without rights may still log in as another, and leave.
    admin.get("ACL SETUSER none on >pw", "OK");
    let mut none = Asker::user(&server, "none", "pw");
    none.begins("PING", "-NOPERM");
    none.get("AUTH ann pw", "OK");
    none.get("PING", "PONG");
}

#[test]
fn users_are_in_the_configuration_and_config_rewrite_keeps_them() {
    let mut server = Server::start(&[]);
    server.stop();
    let conf = server.dir().join("flagstone.conf");
    fs::write(
        &conf,
        "user ann on >pw ~app:* +@read (~other:* +set)\nuser default on >admin ~* &* +@all\n",
    )
    .expect("written");
    server.restart_from(&conf);
    let mut admin = Asker::new(&server);
    admin.begins("PING", "-NOAUTH");
    admin.get("AUTH admin", "OK");
    assert_eq!(
        admin.ask(&["ACL", "SETUSER", "bob", "on", "~it's\"x", "+get", "(~q\"q +get)"]),
        "-ERR Error in ACL SETUSER modifier '(~q\"q +get)': Syntax error"
    );
    assert_eq!(
        admin.ask(&["ACL", "SETUSER", "bob", "on", "~it's\"x", "+get", "(~\"q\\\"q\" +get)"]),
        "OK"
    );
    let users = admin.ask(&["ACL", "LIST"]);
    admin.get("CONFIG REWRITE", "OK");
    let text = fs::read_to_string(&conf).expect("read");
    assert!(!text.contains(">pw") && text.contains("user ann on sanitize-payload #"), "{text}");
    drop(admin);
    server.stop();
    server.restart();
    let mut admin = Asker::user(&server, "default", "admin");
    assert_eq!(admin.ask(&["ACL", "LIST"]), users);
    let mut ann = Asker::user(&server, "ann", "pw");
    ann.get("SET other:1 v", "OK");
    ann.begins("SET app:1 v", "-NOPERM");
    admin.begins("ACL SAVE", "-ERR This instance is not configured to use an ACL file.");
    server.stop();
    for (text, reason) in [
        ("user ann on\nuser ann off\n", "Duplicate user found"),
        ("user ann on >secret %%\n", "Syntax error"),
        ("user ann on >secret +nothing\n", "Unknown command or category name in ACL"),
        ("user ann (on\n", "Unmatched parenthesis"),
        ("user\n", "wrong number of arguments"),
    ] {
        fs::write(&conf, text).expect("written");
        let said = server.refused(&[]);
        assert!(said.contains(reason) && !said.contains("secret"), "{said}");
    }
}

#[test]
fn users_are_in_a_file_which_is_loaded_and_saved() {
    let mut server = Server::start(&[]);
    server.stop();
    let file = server.dir().join("users.acl");
    fs::write(&file, "user ann on >pw ~* +@all &news\nuser bob on >pw +@all\n").expect("written");
    let path = file.display().to_string();
    let options = ["--aclfile", &path, "--requirepass", "admin"];
    server.restart_with(&options);
    let mut admin = Asker::new(&server);
    // The file does not name the default user, which keeps the configured password.
    admin.begins("PING", "-NOAUTH");
    admin.get("AUTH admin", "OK");
    admin.get("ACL USERS", "ann,bob,default");
    let mut ann = Asker::user(&server, "ann", "pw");
    let mut bob = Asker::user(&server, "bob", "pw");
    admin.get("ACL SETUSER eve on nopass ~x +get", "OK");
    admin.get("ACL SAVE", "OK");
    let mode = fs::metadata(&file).expect("a file").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let saved = fs::read_to_string(&file).expect("read");
    assert!(
        saved.contains("user eve on nopass sanitize-payload ~x resetchannels -@all +get\n"),
        "{saved}"
    );
    // A wrong file changes nothing.
    fs::write(&file, "user ann on\nuser bob +nothing\n").expect("written");
    admin.begins("ACL LOAD", &format!("-ERR {path}:2: Error in applying operation '+nothing'"));
    ann.get("PING", "PONG");
    // A right file closes the connections of removed users, and changes the others.
    fs::write(&file, "user ann on >new +ping\nuser default on nopass ~* &* +@all\n")
        .expect("written");
    admin.get("ACL LOAD", "OK");
    ann.get("PING", "PONG");
    ann.begins("GET x", "-NOPERM");
    assert!(bob.ask(&["PING"]).starts_with('-'));
    admin.get("ACL USERS", "ann,default");
    admin.get("ACL SAVE", "OK");
    server.stop();
    server.restart_with(&options);
    let mut admin = Asker::new(&server);
    admin.get("ACL USERS", "ann,default");
    admin.get("CONFIG SET requirepass x", "OK");
    server.stop();
    // A file that is not there is refused.
    let said = server.refused(&["--aclfile", "/nonexistent/users.acl"]);
    assert!(said.contains("opening file '/nonexistent/users.acl'"), "{said}");
}

#[test]
fn rights_cannot_be_gained_by_other_ways() {
    let server = Server::start(&TWO);
    let mut admin = Asker::new(&server);
    admin.get("SET secret s", "OK");
    let rules = "on nopass ~app:* %W~out:* %R~in:* &mine +@all -@dangerous -@admin +sort";
    admin.get(&format!("ACL SETUSER ann {rules}"), "OK");
    admin.get("GEOADD in:g 0 0 m", "1");
    let mut ann = Asker::user(&server, "ann", "x");
    let key = "-NOPERM No permissions to access a key";
    ann.get("SET app:1 v", "OK");
    for line in [
        "RENAME secret app:2",
        "RENAME app:1 secret",
        "COPY secret app:2",
        "COPY app:1 secret REPLACE",
        "copy secret app:2 DB 1",
        "MOVE secret 1",
        "GeTsEt secret x",
        "SUBSTR secret 0 1",
        "OBJECT ENCODING secret",
        "DUMP secret",
        "LCS secret app:1",
        "BITOP NOT app:2 secret",
        "GEORADIUS app:g 0 0 1 km STORE app:2 STORE secret",
        "GEORADIUS in:g 0 0 1 km STORE app:2 STORE in:g",
        "GEORADIUS in:g 0 0 1 km STORE app:2 STOREDIST app:2 STOREDIST in:g",
        "GEORADIUSBYMEMBER in:g m 1 km STORE app:2 STORE in:g",
        "SORT in:g STORE app:2 STORE in:g",
        "GEOSEARCHSTORE secret app:g FROMLONLAT 0 0 BYRADIUS 1 km",
        "ZUNIONSTORE app:2 2 app:1 secret",
        "XREAD STREAMS secret 0",
        "XREAD COUNT 1 STREAMS app:1 secret 0 0",
        "EVAL x 1 secret",
        "PFMERGE secret",
        "PFCOUNT secret",
        "WATCH secret",
        "SET out:1 v GET",
        "GETDEL out:1",
        "RENAME out:1 app:3",
        "SMOVE app:1 secret m",
        "LMPOP 2 app:1 secret LEFT",
        "SINTERCARD 2 app:1 secret",
        "MSETNX app:1 x secret y",
    ] {
        ann.get(line, key);
    }
    // Not only the first part of a name counts.
    assert_eq!(ann.ask(&["GET", "secret\0app:1"]), key);
    ann.get("SUBSCRIBE other", "-NOPERM No permissions to access a channel");
    ann.get("PSUBSCRIBE *", "-NOPERM No permissions to access a channel");
    ann.get("SSUBSCRIBE other", "-NOPERM No permissions to access a channel");
    ann.begins("ACL SETUSER ann +@all", "-NOPERM");
    ann.begins("acl|setuser ann +@all", "-ERR unknown command");
    ann.begins("CONFIG SET requirepass x", "-NOPERM");
    ann.begins("FLUSHALL", "-NOPERM");
    ann.begins("KEYS *", "-NOPERM");
    let script = "return redis.pcall('acl', 'setuser', 'ann', '+@all')";
    assert!(ann.ask(&["EVAL", script, "0"]).contains("not allowed from script"));
    let script = "return redis.pcall('get', 'secret')";
    assert!(ann.ask(&["EVAL", script, "1", "app:1"]).contains("ACL failure"));
    admin.get("GET secret", "s");
    admin.get("EXISTS app:2 app:3 out:1", "0");
    assert_eq!(admin.ask(&["ZCARD", "in:g"]), "1");
    // Another protocol, and a failed log-in, change no right.
    admin.get("ACL SETUSER default >pw", "OK");
    ann.begins("HELLO 3 AUTH default wrong", "-WRONGPASS");
    ann.get("GET secret", key);
}

#[test]
fn a_file_of_users_that_may_be_cut_off_is_told() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("users.acl");
    let path = file.display().to_string();
    let whole = "user default on nopass ~* &* +@all\nuser u on nopass ~* +@all -@admin\n";
    fs::write(&file, whole).expect("written");
    let server = Server::start(&["--aclfile", &path]);
    assert!(!server.log().contains("cut off") && !server.log().contains("the default user"));
    let mut admin = Asker::new(&server);
    for (length, told) in [
        (whole.len() - " -@admin\n".len(), "the last line of the aclfile"),
        (0, "does not name the default user, which therefore has all rights without a password"),
    ] {
        fs::write(&file, &whole[..length]).expect("written");
        admin.get("ACL LOAD", "OK");
        let deadline = Instant::now() + PATIENCE;
        while !server.log().contains(told) {
            assert!(Instant::now() < deadline, "{}", server.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
