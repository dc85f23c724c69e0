use crate::DataSettings;
use crate::Stop;
use crate::testing::{NOW_MS, store, try_run};
use flagstone_storage::Store;
use flagstone_wire::resp::Proto;

struct World {
    store: Store,
    settings: DataSettings,
    proto: Proto,
}

impl World {
    /// Returns a stream `s` of the entries 1-0 to 5-0, with a group `g` that has read nothing.
    fn new() -> Self {
        let mut world =
            Self { store: store(false), settings: DataSettings::default(), proto: Proto::Resp2 };
        for n in 1..=5 {
            world.run(&format!("xadd s {n}-0 f {n}"));
        }
        assert_eq!(world.run("xgroup create s g 0"), "+OK");
        world
    }

    /// Runs a command `ms` after the others.
    fn after(&mut self, ms: u64, line: &str) -> String {
        let words: Vec<&str> = line.split(' ').collect();
        match try_run(&mut self.store, &self.settings, self.proto, NOW_MS + ms, &words) {
            Ok(reply) => reply.replace("\r\n", " ").trim_end().trim_start_matches('-').to_owned(),
            Err(Stop::Error(text)) => text.to_string(),
            Err(other) => panic!("{line}: {other:?}"),
        }
    }

    fn run(&mut self, line: &str) -> String {
        self.after(0, line)
    }

    /// Runs a command, and returns its reply without the lengths of strings.
    fn plain(&mut self, ms: u64, line: &str) -> String {
        let reply = self.after(ms, line);
        let words = reply.split(' ').filter(|word| !word.starts_with('$') || *word == "$-1");
        words.collect::<Vec<_>>().join(" ")
    }

    /// Returns the number of pending entries, and id, consumer, idle time, deliveries of each.
    fn pending(&mut self, ms: u64) -> String {
        let reply = self.plain(ms, "xpending s g - + 10");
        let (count, entries) = reply.split_once(' ').unwrap();
        format!("{} {}", &count[1..], entries.replace("*4 ", ""))
    }
}

const NEW: &str = "xreadgroup group g a streams s >";

#[test]
fn new_entries_are_delivered_once() {
    let mut world = World::new();
    let first = world.plain(0, "xreadgroup group g a count 2 streams s >");
    assert_eq!(first, "*1 *2 s *2 *2 1-0 *2 f 1 *2 2-0 *2 f 2");
    let rest = world.plain(5, "xreadgroup group g b streams s >");
    assert_eq!(rest, "*1 *2 s *3 *2 3-0 *2 f 3 *2 4-0 *2 f 4 *2 5-0 *2 f 5");
    assert_eq!(world.run(NEW), "*-1");
    assert_eq!(world.run("xack s g 1-0 3-0 4-0 9-9 1-0"), ":3");
    assert_eq!(world.run("xack s g 1-0"), ":0");
    assert_eq!(world.pending(10), "2 2-0 a :10 :1 5-0 b :5 :1");
    assert_eq!(world.plain(0, "xpending s g"), "*4 :2 2-0 5-0 *2 *2 a 1 *2 b 1");
    world.run("xack s g 2-0 5-0");
    assert_eq!(world.plain(0, "xpending s g"), "*4 :0 $-1 $-1 *-1");
}

#[test]
fn a_consumer_reads_its_history() {
    let mut world = World::new();
    world.run("xreadgroup group g a count 3 streams s >");
    world.run("xdel s 2-0");
    let again = world.plain(7, "xreadgroup group g a streams s 0");
    assert_eq!(again, "*1 *2 s *3 *2 1-0 *2 f 1 *2 2-0 *-1 *2 3-0 *2 f 3");
    assert_eq!(world.pending(9), "3 1-0 a :2 :2 2-0 a :9 :1 3-0 a :2 :2");
    let behind = world.plain(7, "xreadgroup group g a count 1 streams s 1-0");
    assert_eq!(behind, "*1 *2 s *1 *2 2-0 *-1");
    assert_eq!(world.plain(0, "xreadgroup group g b streams s 0"), "*1 *2 s *0");
    // The same stream twice: the second read sees the changes of the first.
    let twice = world.plain(0, "xreadgroup group g b count 1 streams s s > 0");
    assert_eq!(twice, "*2 *2 s *1 *2 4-0 *2 f 4 *2 s *1 *2 4-0 *2 f 4");
    assert_eq!(
        world.plain(0, "xreadgroup group g b noack streams s >"),
        "*1 *2 s *1 *2 5-0 *2 f 5"
    );
    assert_eq!(world.plain(0, "xpending s g - + 9 b"), "*1 *4 4-0 b :0 :2");
    world.proto = Proto::Resp3;
    let resp3 = world.plain(0, "xreadgroup group g a count 2 streams s 0");
    assert_eq!(resp3, "%1 s *2 *2 1-0 *2 f 1 *2 2-0 _");
}

#[test]
fn reading_needs_a_group() {
    let mut world = World::new();
    let no_group = |key, group| {
        format!(
            "NOGROUP No such key '{key}' or consumer group '{group}' in XREADGROUP with GROUP option"
        )
    };
    assert_eq!(world.run("xreadgroup group x a streams s >"), no_group("s", "x"));
    assert_eq!(world.run("xreadgroup group g a streams none >"), no_group("none", "g"));
    assert_eq!(world.run("xreadgroup group g a streams s none > $"), no_group("none", "g"));
    assert!(
        world.run("xreadgroup group g a streams s $").starts_with("ERR The $ ID is meaningless")
    );
    assert!(
        world.run("xreadgroup group g a streams s +").starts_with("ERR The + ID is meaningless")
    );
    assert!(world.run("xreadgroup group g a streams s x").starts_with("ERR Invalid stream ID"));
    world.run("set t x");
    assert!(world.run("xreadgroup group g a streams t >").starts_with("WRONGTYPE"));
    // None of these has created a consumer.
    assert_eq!(world.run("xinfo consumers s g"), "*0");
}

#[test]
fn groups_are_made_and_destroyed() {
    let mut world = World::new();
    assert!(world.run("xgroup create s g $").starts_with("BUSYGROUP"));
    assert!(world.run("xgroup create none g $").starts_with("ERR The XGROUP subcommand requires"));
    assert_eq!(world.run("xgroup create none g $ mkstream"), "+OK");
    assert_eq!(world.run("xlen none"), ":0");
    assert!(
        world.run("xgroup create none h $ entriesread -2").starts_with("ERR value for ENTRIES")
    );
    assert!(world.run("xgroup create none h $ x").starts_with("ERR unknown subcommand or wrong"));
    let no_group = "NOGROUP No such consumer group 'h' for key name 's'";
    assert_eq!(world.run("xgroup setid s h 0"), no_group);
    assert_eq!(world.run("xgroup createconsumer s h c"), no_group);
    assert_eq!(world.run("xgroup delconsumer s h c"), no_group);
    assert_eq!(world.run("xinfo consumers s h"), no_group);
    assert_eq!(world.run("xgroup destroy s h"), ":0");
    world.run(NEW);
    assert_eq!(world.run("xgroup createconsumer s g a"), ":0");
    assert_eq!(world.run("xgroup createconsumer s g b"), ":1");
    assert_eq!(world.run("xgroup delconsumer s g a"), ":5");
    assert_eq!(world.run("xgroup delconsumer s g a"), ":0");
    assert_eq!(world.run("xpending s g - + 9"), "*0");
    assert_eq!(world.run("xgroup setid s g 2"), "+OK");
    assert!(world.plain(0, NEW).starts_with("*1 *2 s *3 *2 3-0"));
    assert_eq!(world.run("xgroup destroy s g"), ":1");
    assert_eq!(world.run("xgroup create s g 0"), "+OK");
    assert_eq!(world.run("xpending s g - + 9"), "*0");
    assert_eq!(world.run("xinfo groups none").split(' ').next(), Some("*1"));
}

#[test]
fn entries_are_claimed() {
    let mut world = World::new();
    world.run("xreadgroup group g a count 3 streams s >");
    assert_eq!(world.run("xclaim s g b 11 1-0"), "*0");
    assert_eq!(world.plain(20, "xclaim s g b 11 1-0 4-0 9-0"), "*1 *2 1-0 *2 f 1");
    assert_eq!(world.plain(20, "xclaim s g b 0 2-0 justid idle 5 retrycount 7"), "*1 2-0");
    assert_eq!(world.pending(20), "3 1-0 b :0 :2 2-0 b :5 :7 3-0 a :20 :1");
    // A deleted entry leaves; FORCE claims one that was not pending.
    world.run("xdel s 3-0");
    assert_eq!(world.plain(20, "xclaim s g b 0 3-0 4-0 force justid lastid 4-0"), "*1 4-0");
    assert_eq!(world.pending(20), "3 1-0 b :0 :2 2-0 b :5 :7 4-0 b :0 :1");
    assert!(world.plain(0, NEW).starts_with("*1 *2 s *1 *2 5-0"));
    assert_eq!(world.run("xclaim s g b x 1-0"), "ERR Invalid min-idle-time argument for XCLAIM");
    assert_eq!(
        world.run("xclaim s g b 0 1-0 idle x"),
        "ERR Invalid IDLE option argument for XCLAIM"
    );
    assert_eq!(world.run("xclaim s g b 0 1-0 foo"), "ERR Unrecognized XCLAIM option 'foo'");
    let no_group = "NOGROUP No such key 's' or consumer group 'h'";
    assert_eq!(world.run("xclaim s h b x 1-0"), no_group);
    assert_eq!(world.run("xautoclaim s h b 0 0"), no_group);
    assert_eq!(world.run("xpending s h"), no_group);
}

#[test]
fn entries_are_claimed_one_after_the_other() {
    let mut world = World::new();
    world.run(NEW);
    world.run("xdel s 2-0");
    let first = world.plain(9, "xautoclaim s g b 5 - count 3");
    assert_eq!(first, "*3 4-0 *2 *2 1-0 *2 f 1 *2 3-0 *2 f 3 *1 2-0");
    let rest = world.plain(9, "xautoclaim s g b 5 4-0 justid");
    assert_eq!(rest, "*3 0-0 *2 4-0 5-0 *0");
    assert_eq!(world.pending(9), "4 1-0 b :0 :2 3-0 b :0 :2 4-0 b :0 :1 5-0 b :0 :1");
    assert_eq!(world.plain(9, "xautoclaim s g c 5 - justid"), "*3 0-0 *0 *0");
    assert_eq!(world.run("xautoclaim s g c 5 - count 0"), "ERR COUNT must be > 0");
    assert_eq!(world.plain(0, "xpending s g - + 9 c"), "*0");
}

#[test]
fn pending_entries_are_chosen() {
    let mut world = World::new();
    world.run("xreadgroup group g a count 2 streams s >");
    world.after(10, "xreadgroup group g b count 2 streams s >");
    let ids = |reply: String| -> Vec<String> {
        let is_id = |word: &&str| word.contains("-0");
        reply.split(' ').filter(is_id).map(str::to_owned).collect()
    };
    assert_eq!(ids(world.plain(20, "xpending s g idle 15 - + 9")), ["1-0", "2-0"]);
    assert_eq!(ids(world.plain(20, "xpending s g (1-0 (4-0 9")), ["2-0", "3-0"]);
    assert_eq!(ids(world.plain(20, "xpending s g - + 1 b")), ["3-0"]);
    assert_eq!(ids(world.plain(20, "xpending s g 4 + 9 b")), ["4-0"]);
    assert_eq!(world.run("xpending s g - + 9 nobody"), "*0");
    assert_eq!(world.run("xpending s g - +"), "ERR syntax error");
    assert_eq!(world.run("xpending s g idle 5 - +"), "ERR syntax error");
}

#[test]
fn groups_tell_how_far_they_are() {
    let mut world = World::new();
    let info = |world: &mut World| world.plain(0, "xinfo groups s");
    let expected = |last, read, lag, pending| {
        format!(
            "*1 *12 name g consumers :1 pending :{pending} last-delivered-id {last} entries-read \
             {read} lag {lag}"
        )
    };
    world.run("xreadgroup group g a count 1 streams s >");
    assert_eq!(info(&mut world), expected("1-0", ":1", ":4", 1));
    world.run("xreadgroup group g a count 1 streams s >");
    assert_eq!(info(&mut world), expected("2-0", ":2", ":3", 2));
    // With a deletion ahead the lag is unknown.
    world.run("xdel s 4-0");
    assert_eq!(info(&mut world), expected("2-0", ":2", "$-1", 2));
    world.run("xreadgroup group g a streams s >");
    assert_eq!(info(&mut world), expected("5-0", ":5", ":0", 4));
    world.run("xgroup setid s g 1-0");
    assert_eq!(info(&mut world), expected("1-0", "$-1", "$-1", 4));
    world.run("xgroup setid s g 5-0 entriesread 3");
    assert_eq!(info(&mut world), expected("5-0", ":3", ":2", 4));
}

#[test]
fn everything_is_shown() {
    let mut world = World::new();
    world.run("xreadgroup group g a count 2 streams s >");
    world.after(3, "xgroup createconsumer s g b");
    let consumers = world.plain(10, "xinfo consumers s g");
    let expected = "*2 *8 name a pending :2 idle :10 inactive :10 \
                    *8 name b pending :0 idle :7 inactive :-1";
    assert_eq!(consumers, expected);
    let full = world.plain(10, "xinfo stream s full count 1");
    let groups = full.split_once(" groups ").unwrap().1;
    let expected = "*1 *14 name g last-delivered-id 2-0 entries-read :2 lag :3 pel-count :2 \
                    pending *1 *4 1-0 a :1000000 :1 consumers *2 \
                    *10 name a seen-time :1000000 active-time :1000000 pel-count :2 \
                    pending *1 *3 1-0 :1000000 :1 \
                    *10 name b seen-time :1000003 active-time :-1 pel-count :0 pending *0";
    assert_eq!(groups, expected);
    let before = world.plain(0, "xinfo stream s full");
    assert_eq!(world.run("copy s t"), ":1");
    world.run("xack s g 1-0");
    assert_eq!(world.plain(0, "xinfo stream t full"), before);
}

/// Each naming of the stream read all of its entries before the first was answered: five billion.
#[test]
fn a_stream_that_is_named_many_times_is_read_once() {
    const NAMED: usize = 100_000;
    const ENTRIES: usize = 50_000;
    let mut world = World::new();
    for n in 1..=ENTRIES {
        world.run(&format!("xadd big {n}-0 f v"));
    }
    world.run("xgroup create big g 0");
    let streams = format!("{}{}>", "big ".repeat(NAMED), "> ".repeat(NAMED - 1));
    let reply = world.plain(0, &format!("xreadgroup group g a streams {streams}"));
    assert!(reply.starts_with("*1 *2 big *50000 *2 1-0 *2 f v "), "{}", &reply[..50]);
    assert!(reply.ends_with(" 50000-0 *2 f v"));
    // Names of another id are read behind the changes of the first.
    let twice = "xreadgroup group g a count 1 streams big big big 0 > 1-0";
    assert_eq!(world.plain(0, twice), "*2 *2 big *1 *2 1-0 *2 f v *2 big *1 *2 2-0 *2 f v");
}
