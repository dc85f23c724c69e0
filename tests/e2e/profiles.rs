//! Profiles of CPU time over HTTP: who may take one, one at a time, of a server that goes on serving.

use super::http::Web;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const BUSY: &str = "local n = 0 for i = 1, 100000 do n = n + #tostring(i) end return n";

#[test]
fn a_profile_names_what_takes_cpu_time_and_the_server_goes_on() {
    let web = Web::start(&["--workers", "2", "--shards", "2"]);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for n in 0..2 {
            let (mut client, stop) = (web.server.client(), &stop);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let mut eval = redis::cmd("EVAL");
                    eval.arg(BUSY).arg(1).arg(n).query::<i64>(&mut client).expect("it runs");
                    redis::cmd("INCR").arg(n).query::<i64>(&mut client).expect("it runs");
                }
            });
        }
        let first = scope.spawn(|| web.get("/profile?seconds=2"));
        let deadline = Instant::now() + Duration::from_secs(20);
        while !web.server.log().contains("a profile of CPU time is taken") {
            assert!(Instant::now() < deadline, "{}", web.server.log());
            std::thread::sleep(Duration::from_millis(20));
        }
        web.get("/profile?seconds=1").refused(409, "try again later");
        let taken = first.join().expect("an answer");
        assert_eq!(taken.status, 200, "{}", taken.body);
        let mut samples = 0;
        for line in taken.body.lines() {
            let (stack, count) = line.rsplit_once(' ').expect("a count");
            samples += count.parse::<u32>().expect("a number");
            assert!(!stack.is_empty(), "{line}");
        }
        assert!(samples > 0, "there is none");
        // Scripts run on the workers, or on threads of their own if they take long.
        let is_lua = |line: &str| line.contains(";lua_") || line.contains(";luaV_execute");
        assert!(taken.body.lines().any(is_lua), "{}", taken.body);
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(web.get("/profile?seconds=1").status, 200, "the next one");
    let count: i64 = redis::cmd("INCR").arg(0).query(&mut web.server.client()).expect("it serves");
    assert!(count > 1);
}

#[test]
fn profiles_are_for_administrators_and_short() {
    let web = Web::start(&["--requirepass", "secret"]);
    let admin = ["Authorization: Bearer secret", "Content-Type: application/json"];
    let user = r#"["ACL","SETUSER","app","on",">pw","~*","+@all","-@admin"]"#;
    assert_eq!(web.ask("POST", "/", &admin, user).status, 200);
    web.get("/profile").refused(401, "NOAUTH");
    let app = ["Authorization: Bearer app:pw"];
    web.ask("GET", "/profile?seconds=1", &app, "").refused(403, "NOPERM");
    for wrong in ["0", "21", "x", ""] {
        let path = format!("/profile?seconds={wrong}");
        web.ask("GET", &path, &admin, "").refused(400, "seconds has to be 1 to 20");
    }
    assert_eq!(web.ask("GET", "/profile?seconds=1", &admin, "").status, 200);
}
