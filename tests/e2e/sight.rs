//! A cluster as its servers show it over HTTP.

use super::Server;
use super::bucket::Bucket;
use super::free_port;
use super::http::{CLUSTER, Web, sample};
use super::servers::{Cluster, asked, client, fill, settle, shards_of, until};
use serde_json::Value;
use std::fs;

fn sight(web: &Web) -> Value {
    let status = web.get("/status");
    assert_eq!(status.status, 200, "{status:?}");
    let status: Value = serde_json::from_str(&status.body).expect("JSON");
    status["cluster"].clone()
}

fn id(web: &Web) -> String {
    asked(&web.server, ["CLUSTER", "MYID"])
}

fn figure(web: &Web, name: &str) -> f64 {
    sample(&web.get("/metrics").body, &format!("{CLUSTER}{name}"))
}

/// Returns what a server says of another one.
fn of_server(sight: &Value, id: &str) -> Value {
    let servers = sight["servers"].as_array().expect("servers");
    let mut open = servers.iter().filter(|it| it["node"] == id && it["state"] != "sealed");
    open.next_back().unwrap_or_else(|| panic!("no {id} in {sight}")).clone()
}

fn two(cluster: &Cluster) -> [Web; 2] {
    let webs = [cluster.web(&[]), cluster.web(&[])];
    settle(&webs.each_ref().map(|web| &web.server));
    webs
}

#[test]
fn servers_show_who_is_there_and_who_has_which_shards() {
    let cluster = Cluster::new();
    let webs = two(&cluster);
    let ids = webs.each_ref().map(id);
    until("all journals of former owners are stored", || {
        figure(&webs[0], "shards{state=\"unflushed\"}") == 0.0
    });
    let sight = sight(&webs[0]);
    assert_eq!((sight["node"].as_str(), sight["lease_ms"].as_u64()), (Some(&*ids[0]), Some(300)));
    for (id, web) in ids.iter().zip(&webs) {
        let server = of_server(&sight, id);
        assert_eq!(
            (&server["state"], &server["shards"], &server["target"]),
            (&"well".into(), &3.into(), &3.into())
        );
        assert_eq!(server["port"], web.server.port());
    }
    assert!(of_server(&sight, &ids[0])["silence_ms"].is_null());
    assert!(of_server(&sight, &ids[1])["silence_ms"].as_u64() < Some(5000));
    let shards = sight["shards"].as_array().expect("shards");
    let slots: Vec<u64> =
        shards.iter().map(|it| it["slots"][0].as_u64().expect("a slot")).collect();
    assert!(shards.len() == 6 && slots[0] == 0 && slots.is_sorted(), "{slots:?}");
    assert_eq!(shards.iter().filter(|it| it["here"] == "served").count(), 3);
    assert!(shards.iter().all(|it| (it["here"] == "served") == (it["owner"] == sight["life"])));
    assert!(!sight.to_string().contains("secret"), "{sight}");
    let text = webs[0].get("/metrics").body;
    for (name, value) in [
        ("servers{state=\"open\"}", 2.0),
        ("servers{state=\"silent\"}", 0.0),
        ("shards{state=\"all\"}", 6.0),
        ("shards{state=\"parked\"}", 0.0),
        ("own_shards{state=\"served\"}", 3.0),
        ("shard_changes_total{change=\"given\"}", 3.0),
        ("takeovers_total", 0.0),
    ] {
        assert_eq!(sample(&text, &format!("{CLUSTER}{name}")), value, "{name}");
    }
    assert!(sample(&text, &format!("{CLUSTER}map_age_seconds")) < 5.0);
    let alerts = format!("{}/docs/monitoring/alerts.yml", env!("CARGO_MANIFEST_DIR"));
    let alerts = fs::read_to_string(alerts).expect("the alerts");
    let mut seen = 0;
    for (at, _) in alerts.match_indices(CLUSTER) {
        let end = |c: char| !c.is_ascii_lowercase() && c != '_';
        let name = alerts[at..].split(end).next().expect("a name");
        let has =
            |line: &str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', '{']));
        assert!(text.lines().any(has), "{name}");
        seen += 1;
    }
    assert!(seen > 5, "{seen}");
}

#[test]
fn shards_that_a_user_has_moved_are_shown_as_pinned() {
    let cluster = Cluster::new();
    let webs = two(&cluster);
    cluster.told(&["move", "0,1", "--to", &id(&webs[1])]);
    for web in &webs {
        until("the pins are known", || figure(web, "shards{state=\"pinned\"}") == 2.0);
        let pinned = |shard: usize| sight(web)["shards"][shard]["pinned"] == true;
        assert_eq!([0, 1, 2].map(pinned), [true, true, false]);
    }
    cluster.told(&["balance", "--unpin"]);
    until("there are no pins", || figure(&webs[0], "shards{state=\"pinned\"}") == 0.0);
}

#[test]
fn a_server_that_cannot_be_taken_over_is_shown_with_the_reason() {
    let cluster = Cluster::new();
    let [mut lost, left] = two(&cluster);
    let name = id(&lost);
    let life = of_server(&sight(&left), &name)["life"].as_u64().expect("a life").to_string();
    lost.server.kill();
    let journal = cluster.bucket.path().join(format!("data/lives/{life:0>20}"));
    fs::remove_dir_all(journal).expect("removed");
    until("the reason is shown", || {
        sight(&left)["unsealed"][&life].as_str().is_some_and(|why| why.contains("is missing"))
    });
    assert!(
        ["silent", "suspected"]
            .contains(&of_server(&sight(&left), &name)["state"].as_str().expect("a word"))
    );
    assert_eq!(figure(&left, "servers{state=\"unsealed\"}"), 1.0);
    assert_eq!(figure(&left, "servers{state=\"silent\"}"), 1.0);
    cluster.told(&["give-up", &life, "--lose-writes"]);
    until("it is taken over", || figure(&left, "own_shards{state=\"served\"}") == 6.0);
    assert_eq!(figure(&left, "takeovers_total"), 1.0);
    assert_eq!(sight(&left)["unsealed"], serde_json::json!({}));
    assert!(figure(&left, "shard_changes_total{change=\"taken\"}") >= 6.0);
}

#[test]
fn a_shard_that_cannot_be_taken_is_shown_with_the_reason() {
    let cluster = Cluster::new();
    let [mut lost, left] = two(&cluster);
    fill(&mut client(&[&lost.server, &left.server]), 1);
    let damaged = shards_of(&cluster.map(), &id(&lost))[0];
    lost.server.kill();
    let shard = cluster.bucket.path().join(format!("data/shard-{damaged}"));
    fs::rename(&shard, shard.with_extension("away")).expect("renamed");
    let reason = format!("shard {damaged} of this server cannot be taken: ");
    until("it is told", || left.get("/readyz").body.contains(&reason));
    until("all others are served", || figure(&left, "own_shards{state=\"served\"}") == 5.0);
    let sight_now = sight(&left);
    let why = sight_now["untaken"][damaged.to_string()].as_str().unwrap_or_default();
    assert!(why.contains("are missing"), "{sight_now}");
    assert_eq!(figure(&left, "own_shards{state=\"untaken\"}"), 1.0);
    assert!(figure(&left, "shard_change_failures_total") >= 1.0);
    fs::rename(shard.with_extension("away"), &shard).expect("renamed");
    until("it is served", || left.get("/readyz").status == 200);
    assert_eq!(sight(&left)["untaken"], serde_json::json!({}));
}

#[test]
fn only_users_with_the_right_to_ask_see_the_cluster() {
    let cluster = Cluster::new();
    let web = cluster.web(&["--requirepass", "secret"]);
    web.get("/status").refused(401, "NOAUTH");
    web.ask("GET", "/status", &["Authorization: Bearer wrong"], "").refused(401, "WRONGPASS");
    let secret = "Authorization: Bearer secret";
    let rules = r#"["ACL","SETUSER","app","on",">pw","~*","+get"]"#;
    let json = "Content-Type: application/json";
    assert_eq!(web.ask("POST", "/", &[secret, json], rules).status, 200);
    web.ask("GET", "/status", &["Authorization: Bearer app:pw"], "").refused(403, "NOPERM");
    let shown = web.ask("GET", "/status", &[secret], "");
    assert!(shown.status == 200 && shown.body.contains("\"map_age_ms\""), "{shown:?}");
}

#[test]
fn without_the_bucket_a_server_says_how_old_its_map_is() {
    let bucket = Bucket::start();
    let port = free_port();
    let server = Server::start_in(
        bucket.environment(),
        &[
            "--cluster-enabled",
            "yes",
            "--store",
            "s3://bucket/data",
            "--shards",
            "2",
            "--cluster-lease-ms",
            "300",
            "--http-port",
            &port.to_string(),
        ],
    );
    let web = Web::of(server, port);
    until("it serves", || figure(&web, "own_shards{state=\"served\"}") == 2.0);
    bucket.set_away(true);
    until("the map is old", || figure(&web, "map_age_seconds") > 2.0);
    let seen = sight(&web);
    assert!(seen["map_age_ms"].as_u64() > Some(2000) && seen["lease_left_ms"] == 0, "{seen}");
    bucket.set_away(false);
    until("it is read again", || figure(&web, "map_age_seconds") < 1.5);
}
