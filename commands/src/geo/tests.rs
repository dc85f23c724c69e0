//! Replies in both protocols, errors, stored results, and searches of sorted sets that are not in
//! memory.

use crate::DataSettings;
use crate::Stop;
use crate::testing::COMMANDS;
use crate::testing::{run_line, store, try_line};
use flagstone_storage::Store;
use flagstone_storage::store::Part;
use flagstone_storage::value::{decode_entry, encode_meta};
use flagstone_wire::resp::{Args, Proto};

/// Returns settings with limits that few members exceed.
fn settings() -> DataSettings {
    DataSettings { zset_max_listpack_entries: 3, ..DataSettings::default() }
}

fn try_once(store: &mut Store, proto: Proto, command: &str) -> Result<String, Stop> {
    try_line(store, &settings(), proto, command)
}

/// Runs a command that misses nothing; returns its reply, or its error text.
fn run_in(store: &mut Store, proto: Proto, command: &str) -> String {
    run_line(store, &settings(), proto, command)
}

fn run(store: &mut Store, command: &str) -> String {
    run_in(store, Proto::Resp2, command)
}

fn sicily() -> Store {
    let mut store = store(false);
    run(&mut store, "geoadd k 13.361389 38.115556 Palermo 15.087269 37.502669 Catania");
    run(&mut store, "geoadd k 12.758489 38.788135 edge1 17.241510 38.788135 edge2");
    run(&mut store, "set str 1");
    store
}

#[test]
fn replies_have_the_form_of_the_protocol() {
    let mut store = sicily();
    let palermo = "13.36138933897018433";
    for (command, resp2, resp3) in [
        ("geodist k Palermo Catania", "$11 166274.1516", "$11 166274.1516"),
        ("geodist k Palermo Catania km", "$8 166.2742", "$8 166.2742"),
        ("geodist k Palermo Palermo", "$6 0.0000", "$6 0.0000"),
        ("geodist k Palermo x", "$-1", "_"),
        ("geodist none Palermo x", "$-1", "_"),
        (
            "geohash k Palermo x Catania",
            "*3 $11 sqc8b49rny0 $-1 $11 sqdtr74hyu0",
            "*3 $11 sqc8b49rny0 _ $11 sqdtr74hyu0",
        ),
        ("geopos k x", "*1 *-1", "*1 _"),
        ("geopos none", "*0", "*0"),
        (
            "geosearch k fromlonlat 15 37 byradius 200 km desc withdist withhash",
            "*2 *3 $7 Palermo $8 190.4424 :3479099956230698 *3 $7 Catania $7 56.4413 :3479447370796909",
            "*2 *3 $7 Palermo $8 190.4424 :3479099956230698 *3 $7 Catania $7 56.4413 :3479447370796909",
        ),
        ("geosearch none fromlonlat 15 37 byradius 200 km", "*0", "*0"),
        ("georadius k 15 37 200 km asc count 1", "*1 $7 Catania", "*1 $7 Catania"),
        ("georadiusbymember_ro k Palermo 1 m", "*1 $7 Palermo", "*1 $7 Palermo"),
    ] {
        assert_eq!(run(&mut store, command), resp2, "{command}");
        assert_eq!(run_in(&mut store, Proto::Resp3, command), resp3, "{command}");
    }
    let command = "geosearch k frommember Palermo bybox 1 1 m withcoord";
    let place = format!("${} {palermo} $20 38.11555639549629859", palermo.len());
    assert_eq!(run(&mut store, command), format!("*1 *2 $7 Palermo *2 {place}"));
    let resp3 = run_in(&mut store, Proto::Resp3, command);
    assert_eq!(resp3, format!("*1 *2 $7 Palermo *2 ,{palermo} ,38.11555639549629859"));
}

#[test]
fn boxes_have_more_than_circles() {
    let mut store = sicily();
    let circle = "geosearch k fromlonlat 15 37 byradius 200 km asc";
    assert_eq!(run(&mut store, circle), "*2 $7 Catania $7 Palermo");
    let area = "geosearch k fromlonlat 15 37 bybox 400 400 km asc";
    assert_eq!(run(&mut store, area), "*4 $7 Catania $7 Palermo $5 edge2 $5 edge1");
    assert_eq!(
        run(&mut store, &format!("{area} count 3 any")),
        "*3 $7 Catania $7 Palermo $5 edge1"
    );
}

#[test]
fn options_are_checked_in_order() {
    let mut store = sicily();
    let from = "fromlonlat 15 37";
    for (command, want) in [
        ("geoadd k nx xx 1 1 a", "ERR syntax error"),
        ("geoadd k ch 1 1", "ERR syntax error"),
        ("geoadd k ch nx ch", "ERR syntax error"),
        ("geoadd k 1 x a", "ERR value is not a valid float"),
        ("geoadd k 200 100 a", "ERR invalid longitude,latitude pair 200.000000,100.000000"),
        ("geodist k a b yd", "ERR unsupported unit provided. please use M, KM, FT, MI"),
        ("geodist str a b yd", "ERR unsupported unit provided. please use M, KM, FT, MI"),
        ("geodist k a b m m", "ERR syntax error"),
        ("georadius k 1 1 x km", "ERR need numeric radius"),
        ("georadius k 1 1 -1 km", "ERR radius cannot be negative"),
        ("georadius_ro k 1 1 1 km store t", "ERR syntax error"),
        (
            "georadius k 1 1 1 km store t withdist",
            "ERR STORE option in GEORADIUS is not compatible with WITHDIST, WITHHASH and \
             WITHCOORD options",
        ),
        ("georadiusbymember k x 1 km", "ERR could not decode requested zset member"),
        ("georadius k 1 1 1 km count 0", "ERR COUNT must be > 0"),
        ("georadius k 1 1 1 km count x", "ERR value is not an integer or out of range"),
        ("georadius k 1 1 1 km any", "ERR the ANY argument requires COUNT argument"),
        ("georadius k 1 1 1 km count", "ERR syntax error"),
        ("georadius k 1 1 1 km byradius 1 km", "ERR syntax error"),
        (
            "GeoSearch k byradius 1 km asc asc",
            "ERR exactly one of FROMMEMBER or FROMLONLAT can be specified for GeoSearch",
        ),
        (
            &format!("geosearch k {from} asc asc asc"),
            "ERR exactly one of BYRADIUS and BYBOX can be specified for geosearch",
        ),
        (&format!("geosearch k {from} frommember Palermo byradius 1 km"), "ERR syntax error"),
        (&format!("geosearch k {from} byradius 1 km bybox 1 1 km"), "ERR syntax error"),
        (&format!("geosearch k {from} bybox 1 x km"), "ERR need numeric height"),
        (&format!("geosearch k {from} bybox x 1 km"), "ERR need numeric width"),
        (&format!("geosearch k {from} bybox 1 -1 km"), "ERR height or width cannot be negative"),
        (&format!("geosearch k {from} byradius 1 km storedist"), "ERR syntax error"),
        (
            &format!("geosearchstore t k {from} byradius 1 km withdist"),
            "ERR GEOSEARCHSTORE is not compatible with WITHDIST, WITHHASH and WITHCOORD options",
        ),
        (
            "geosearch str nonsense and more of it",
            "WRONGTYPE Operation against a key holding the wrong kind of value",
        ),
    ] {
        assert_eq!(run(&mut store, command), want, "{command}");
    }
}

#[test]
fn found_members_are_stored() {
    let mut store = sicily();
    for (command, want, least) in [
        (
            "geosearchstore t k fromlonlat 15 37 byradius 200 km",
            ":2",
            "*2 $7 Palermo $16 3479099956230698",
        ),
        (
            "geosearchstore t k fromlonlat 15 37 bybox 400 400 km count 3 storedist",
            ":3",
            "*2 $7 Catania $16 56.4412578701582",
        ),
        ("georadius k 15 37 200 km store str", ":2", "*0"),
        (
            "georadius k 15 37 200 km store x storedist t",
            ":2",
            "*2 $7 Catania $16 56.4412578701582",
        ),
        ("georadiusbymember k Palermo 1 km store k", ":1", "*2 $7 Catania $16 56.4412578701582"),
        ("geosearchstore t none fromlonlat 15 37 byradius 200 km", ":0", "*0"),
    ] {
        assert_eq!(run(&mut store, command), want, "{command}");
        if least != "*0" {
            assert_eq!(run(&mut store, "zrange t 0 0 withscores"), least, "{command}");
        }
    }
    assert!(!store.exists(0, b"t").unwrap());
    assert!(!store.exists(0, b"x").unwrap());
    assert_eq!(run(&mut store, "zcard str"), ":2");
    assert_eq!(run(&mut store, "geohash k Palermo"), "*1 $11 sqc8b49rny0");
    store.seal();
    assert_eq!(run(&mut store, "geoadd k xx 1 1 x"), ":0");
    assert_eq!(run(&mut store, "geosearchstore t k fromlonlat 1 1 byradius 1 m"), ":0");
    assert!(store.seal().ops.is_empty());
}

#[test]
fn every_key_to_store_to_is_known_before() {
    let command = COMMANDS.lookup(b"georadius").unwrap();
    let words = ["georadius", "k", "1", "1", "1", "km", "STORE", "a", "store", "b", "STOREDIST"];
    let (bytes, mut end) = (words.concat(), 0);
    let ranges: Vec<(u32, u32)> = words
        .iter()
        .map(|word| {
            end += word.len() as u32;
            (end - word.len() as u32, end)
        })
        .collect();
    let keys = command.keys(Args::new(bytes.as_bytes(), &ranges), 0);
    for key in ["k", "a", "b"] {
        assert!(keys.contains(&(0, key.as_bytes())), "{key}");
    }
}

#[test]
fn a_search_asks_for_the_cells_around() {
    let mut disk = sicily();
    disk.seal();
    disk.entry_for_part(0, b"k").unwrap().value.unpack(7);
    let mut row = Vec::new();
    encode_meta(&mut row, disk.entry(0, b"k").unwrap().unwrap());
    let mut cold = store(true);
    cold.apply_loaded(0, decode_entry(b"k", 0, &row).unwrap());
    let mut need = |command: &str| match try_once(&mut cold, Proto::Resp2, command) {
        Err(Stop::Miss(mut needs)) => needs.pop().and_then(|need| need.part).unwrap(),
        other => panic!("{command}: {other:?}"),
    };
    let names = Part::Fields(vec![b"Palermo"[..].into()]);
    assert_eq!(need("geosearch k frommember Palermo byradius 1 km"), names);
    assert_eq!(need("geopos k Palermo"), names);
    assert_eq!(need("geoadd k 1 1 Palermo"), names);
    let search = "geosearch k fromlonlat 13.361389 38.115556 byradius 1 km";
    let Part::Page { range, .. } = need(search) else { panic!("it is no page") };
    let element = |score: f64| [&[1][..], &(score.to_bits() | 1 << 63).to_be_bytes()].concat();
    assert!(range.contains(&element(3_479_099_956_230_698.0)));
    assert!(!range.contains(&element(3_479_447_370_796_909.0)));
}
