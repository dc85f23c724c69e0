use super::*;

/// Returns the output of `render` in RESP2 and in RESP3.
fn both(render: impl Fn(&mut Reply)) -> (String, String) {
    let [two, three] = [Proto::Resp2, Proto::Resp3].map(|proto| {
        let mut reply = Reply::new(proto);
        render(&mut reply);
        reply.into_bytes().escape_ascii().to_string()
    });
    (two, three)
}

#[track_caller]
fn same(render: impl Fn(&mut Reply), expected: &str) {
    differ(render, expected, expected);
}

#[track_caller]
fn differ(render: impl Fn(&mut Reply), resp2: &str, resp3: &str) {
    assert_eq!(both(render), (resp2.to_owned(), resp3.to_owned()));
}

#[test]
fn plain_types() {
    same(|r| r.ok(), r"+OK\r\n");
    same(|r| r.simple("PONG"), r"+PONG\r\n");
    same(|r| r.simple("a\r\nb"), r"+a  b\r\n");
    same(|r| r.error("ERR no\nsuch\rkey"), r"-ERR no such key\r\n");
    same(|r| r.error(b"ERR \xff"), r"-ERR \xff\r\n");
    same(|r| r.bulk(b""), r"$0\r\n\r\n");
    same(|r| r.bulk(b"a\r\nb"), r"$4\r\na\r\nb\r\n");
    same(|r| r.bulk_str("0123456789"), r"$10\r\n0123456789\r\n");
    same(|r| r.bulk_int(-42), r"$3\r\n-42\r\n");
    same(|r| r.bulk_or_null(Some(b"x")), r"$1\r\nx\r\n");
    same(|r| r.append(b":1\r\n"), r":1\r\n");
}

#[test]
fn a_string_in_pieces_has_zeros_between_them() {
    let pieces = |len, pieces: &'static [(usize, &str)]| {
        move |r: &mut Reply| {
            r.int(1);
            r.bulk_of(len, pieces.iter().copied());
        }
    };
    same(pieces(0, &[]), r":1\r\n$0\r\n\r\n");
    same(pieces(3, &[]), r":1\r\n$3\r\n\x00\x00\x00\r\n");
    same(pieces(4, &[(0, "ab"), (2, "cd")]), r":1\r\n$4\r\nabcd\r\n");
    same(pieces(6, &[(1, "a"), (3, "b")]), r":1\r\n$6\r\n\x00a\x00b\x00\x00\r\n");
}

#[test]
fn integers() {
    for value in [0, 1, 9, 10, -1, 255, 256, i64::MAX, i64::MIN] {
        same(|r| r.int(value), &format!(r":{value}\r\n"));
    }
    same(|r| r.count(7), r":7\r\n");
    same(|r| r.count(usize::MAX), r":9223372036854775807\r\n");
}

#[test]
fn types_of_resp3() {
    differ(|r| r.null(), r"$-1\r\n", r"_\r\n");
    differ(|r| r.bulk_or_null(None), r"$-1\r\n", r"_\r\n");
    differ(|r| r.null_array(), r"*-1\r\n", r"_\r\n");
    differ(|r| r.bool(true), r":1\r\n", r"#t\r\n");
    differ(|r| r.bool(false), r":0\r\n", r"#f\r\n");
    differ(|r| r.double(3.25), r"$4\r\n3.25\r\n", r",3.25\r\n");
    differ(|r| r.double(f64::NEG_INFINITY), r"$4\r\n-inf\r\n", r",-inf\r\n");
    differ(|r| r.double(f64::NAN), r"$3\r\nnan\r\n", r",nan\r\n");
    differ(|r| r.long_double(LongDouble::from(3)), r"$1\r\n3\r\n", r",3\r\n");
    differ(|r| r.big_number("123"), r"$3\r\n123\r\n", r"(123\r\n");
    differ(|r| r.verbatim(*b"txt", b"hi"), r"$2\r\nhi\r\n", r"=6\r\ntxt:hi\r\n");
    differ(
        |r| {
            if r.attribute(1) {
                r.int(1);
                r.int(2);
            }
        },
        "",
        r"|1\r\n:1\r\n:2\r\n",
    );
}

#[test]
fn aggregates() {
    same(|r| r.array(0), r"*0\r\n");
    same(|r| r.array(12), r"*12\r\n");
    differ(|r| r.map(6), r"*12\r\n", r"%6\r\n");
    differ(|r| r.set(6), r"*6\r\n", r"~6\r\n");
    differ(|r| r.push(3), r"*3\r\n", r">3\r\n");
}

#[test]
fn lengths_that_come_later() {
    differ(
        |r| {
            r.ok();
            let map = r.begin_map();
            for key in 0..6 {
                r.int(key);
                let set = r.begin_set();
                r.int(1);
                r.end(set, 1);
            }
            r.end(map, 6);
            r.ok();
        },
        &format!(r"+OK\r\n*12\r\n{}+OK\r\n", pairs('*')),
        &format!(r"+OK\r\n%6\r\n{}+OK\r\n", pairs('~')),
    );
    differ(
        |r| {
            let push = r.begin_push();
            r.end(push, 0);
        },
        r"*0\r\n",
        r">0\r\n",
    );
    same(
        |r| {
            let array = r.begin_array();
            (0..100).for_each(|_| r.int(5));
            r.end(array, 100);
        },
        &format!(r"*100\r\n{}", r":5\r\n".repeat(100)),
    );
}

fn pairs(set: char) -> String {
    (0..6).map(|key| format!(r":{key}\r\n{set}1\r\n:1\r\n")).collect()
}

#[test]
fn taking_back() {
    let mut reply = Reply::with_capacity(Proto::Resp2, 64);
    reply.ok();
    let len = reply.len();
    reply.int(1);
    reply.truncate(len);
    let mark = reply.begin_array();
    reply.int(1);
    reply.discard(mark);
    assert_eq!(reply.as_bytes(), b"+OK\r\n");
    reply.clear();
    assert!(reply.is_empty());

    reply.set_proto(Proto::Resp3);
    assert_eq!(reply.proto(), Proto::Resp3);
    reply.null();
    assert_eq!(reply.as_bytes(), b"_\r\n");
    reply.clear();
    assert_eq!(reply.len(), 0);
}

#[test]
fn a_lack_of_room_is_forgotten_with_the_reply_that_lacked_it() {
    let mut reply = Reply::new(Proto::Resp2);
    reply.ok();
    let (first, attempt) = (reply.len(), |reply: &mut Reply| {
        reply.int(1);
        let part = reply.len();
        reply.discard_rest();
        reply.int(2);
        assert!(reply.replace_lost(part) && reply.lacks_room());
        part
    });
    // The part that lacked room is replaced by its error: the lack stays.
    let part = attempt(&mut reply);
    reply.truncate(part);
    assert!(reply.lacks_room());
    // The whole attempt is repeated.
    reply.truncate(first);
    assert!(!reply.lacks_room());
    attempt(&mut reply);
    let mut all = Reply::new(Proto::Resp2);
    all.ok();
    all.take_lack(&mut reply);
    assert!(all.lacks_room() && !reply.lacks_room());
    all.clear();
    assert!(!all.lacks_room());
}

#[test]
fn a_reply_without_room_is_an_error_in_its_own_place() {
    let mut reply = Reply::new(Proto::Resp2);
    reply.ok();
    let mark = reply.len();
    let array = reply.begin_array();
    reply.bulk(b"there is room");
    // As if there were no room from here on.
    reply.discard_rest();
    reply.bulk(&[b'x'; 1000]);
    reply.int(5);
    reply.end(array, 100);
    assert!(reply.is_lost() && reply.len() < 100);
    assert!(!reply.replace_lost(reply.len()), "what was lost before is not of this reply");
    assert!(reply.replace_lost(mark) && !reply.is_lost());
    let text = String::from_utf8_lossy(reply.as_bytes()).into_owned();
    assert!(text.starts_with("+OK\r\n-ERR the command has run, but its reply"), "{text}");
    reply.int(1);
    assert!(reply.as_bytes().ends_with(b"\r\n:1\r\n"));
    reply.discard_rest();
    assert!(reply.into_bytes().starts_with(b"-ERR the command has run"));
}

#[test]
fn pieces_end_where_they_were_ended() {
    let mut out = Reply::new(Proto::Resp2);
    assert_eq!(out.pieces().count(), 0);
    out.int(1);
    out.end_piece();
    out.array(1);
    out.ok();
    out.end_piece();
    let whole = |out: &Reply| out.pieces().map(<[u8]>::to_vec).collect::<Vec<_>>();
    assert_eq!(whole(&out), [&b":1\r\n"[..], b"*1\r\n+OK\r\n"]);
    out.truncate(4);
    assert_eq!(whole(&out), [b":1\r\n"], "what is removed is no piece");
    out.null();
    out.end_piece();
    assert_eq!(whole(&out), [&b":1\r\n"[..], b"$-1\r\n"]);
    out.clear();
    assert_eq!(out.pieces().count(), 0);
}
