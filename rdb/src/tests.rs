//! Tests of whole payloads. Payloads in hex were accepted by Valkey 8.1.1, or for hashes with field
//! expiry by Redis 8.0; those that `dump` must reproduce were made by them.

use proptest::prelude::*;

use super::*;

fn unhex(hex: &str) -> Vec<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16).unwrap() as u8;
    hex.as_bytes().chunks(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
}

fn string(text: &str) -> Object {
    Object::String(text.into())
}

fn list(elements: &[&str]) -> Object {
    Object::List(elements.iter().map(|&element| element.into()).collect())
}

fn set(form: SetForm, members: &[&str]) -> Object {
    Object::Set(form, members.iter().map(|&member| member.into()).collect())
}

fn zset(form: ZsetForm, members: &[(&str, f64)]) -> Object {
    Object::Zset(form, members.iter().map(|&(member, score)| (member.into(), score)).collect())
}

fn hash(fields: &[(&str, &str, Option<u64>)]) -> Object {
    let field = |&(name, value, expire_at_ms): &(&str, &str, _)| HashField {
        name: name.into(),
        value: value.into(),
        expire_at_ms,
    };
    Object::Hash(fields.iter().map(field).collect())
}

/// Returns `object` with its footer.
fn payload(object: &[u8], version: u16) -> Vec<u8> {
    let mut payload = object.to_vec();
    payload.extend(version.to_le_bytes());
    payload.extend(crc64::checksum(&payload).to_le_bytes());
    payload
}

const EXPIRE_AT_MS: u64 = 1_900_000_000_000;

/// Returns payloads written for values built by commands, with those values.
fn written() -> Vec<(&'static str, Object)> {
    vec![
        ("000568656c6c6f0b000aad620598abc983", string("hello")),
        ("00000b003444e133f2e04b53", string("")),
        ("00c0850b000bd67700a9ec0209", string("-123")),
        ("00c139300b00f44b57546e63e130", string("12345")),
        ("00c22efd69b60b0017661dc825235caa", string("-1234567890")),
        ("00c30a1e02616261e010010161620b00dca2edd06fd3c0c2", string(&"ab".repeat(15))),
        (
            "1203020d0d0000000200816102dfff02ff01c3406f6328016262e0ff00e0ff00e0ff00e0ff00e0ff00e0\
             ff00e0ff00e0ff00e0ff00e0ff00e0ff00e0ff00e0ff00e0ff00e0ff00e0ff00e0ff00e0ff00e0ff00e0\
             ff00e0ff00e0ff00e0ff00e0ff00e0ff00e0ff00e0ff00e0ff00e0ff00e0ff00e0ff00e0ff00e0ff00e0\
             ff00e00b00016262020a0a0000000100c12c02ff0b00cbc4e795181b635b",
            list(&["a", "-1", &"b".repeat(9000), "300"]),
        ),
        (
            "0b0e0200000003000000fbff00002c010b003213dc6ec1187db8",
            set(SetForm::Intset, &["-5", "0", "300"]),
        ),
        (
            "0b10040000000200000090eefeff010000000b00fd7eb89aa470058c",
            set(SetForm::Intset, &["-70000", "1"]),
        ),
        (
            "0bc312180408000000022003a0000180ff600001ff7f0b0009e588f23375f2c5",
            set(SetForm::Intset, &["-9223372036854775808", "9223372036854775807"]),
        ),
        (
            "1410100000000400010103018178020201ff0b00f6f2ee70b47aed0f",
            set(SetForm::Listpack, &["1", "3", "x", "2"]),
        ),
        (
            "112b2b0000000a00816302842d302e35058165028431652d39058161020101816202010181640283696e\
             6604ff0b00f8b7dbf00108283c",
            zset(
                ZsetForm::Listpack,
                &[("c", -0.5), ("e", 1e-9), ("a", 1.0), ("b", 1.0), ("d", f64::INFINITY)],
            ),
        ),
        (
            "0502016e0000000000000040c3094041016d6de03400016d6d000000000000f03f0b00b7a2f60a455909\
             27",
            zset(ZsetForm::Skiplist, &[("n", 2.0), (&"m".repeat(65), 1.0)]),
        ),
        (
            "10121200000004008166028176020101dfff02ff0b002c85f6b862cf4b99",
            hash(&[("f", "v", None), ("1", "-1", None)]),
        ),
        (
            "190038d360ba010000202000000006008162028374776f04f40038d360ba0100000981610201010001ff\
             0c007cb6684308130e6f",
            hash(&[("b", "two", Some(EXPIRE_AT_MS)), ("a", "1", None)]),
        ),
        (
            "180038d360ba010000020001620374776f010161c3094046017676e039000176760c007469ab2e353b5d\
             63",
            hash(&[("b", "two", None), ("a", &"v".repeat(70), Some(EXPIRE_AT_MS))]),
        ),
    ]
}

/// Returns payloads in forms that are read but not written, with their values.
fn only_read() -> Vec<(&'static str, Object)> {
    vec![
        // Not compressed.
        (
            "0b1808000000020000000000000000000080ffffffffffffff7f0b004102dee1865b02f3",
            set(SetForm::Intset, &["-9223372036854775808", "9223372036854775807"]),
        ),
        // Lengths of more bytes than they need.
        ("00800000000268690b00e416957f792efc81", string("hi")),
        ("0081000000000000000268690b0020fbf104a9a3fe96", string("hi")),
        ("01030161c00701610b006d8d7a8e5b747d51", list(&["a", "7", "a"])),
        (
            "0e0310100000000d000000020000016103f3ff0b0b0000000a0000000000ff0e0e0000000a0000000100\
             000162ff0b00735991d2237ac29e",
            list(&["a", "2", "b"]),
        ),
        // The last node is an empty listpack.
        (
            "1203020e0e0000000200816102f1008003ff0105706c61696e0207070000000000ff0b00ee1d19436161\
             6d3c",
            list(&["a", "-32768", "plain"]),
        ),
        ("02020161c0ff0b008d0c5ae335775bc2", set(SetForm::Table, &["a", "-1"])),
        (
            "0303016103312e350162ff0163fe0b0085a253ff460d6ed1",
            zset(ZsetForm::Skiplist, &[("a", 1.5), ("b", f64::NEG_INFINITY), ("c", f64::INFINITY)]),
        ),
        (
            "05020161000000000000f83f0162000000000000f0ff0b002148c34098018f82",
            zset(ZsetForm::Skiplist, &[("a", 1.5), ("b", f64::NEG_INFINITY)]),
        ),
        (
            "0c20200000001a000000060000016103f20201620303322e350501630303696e66ff0b0087851c854d42\
             023f",
            zset(ZsetForm::Listpack, &[("a", 1.0), ("b", 2.5), ("c", f64::INFINITY)]),
        ),
        (
            "1114140000000400816102010181620283322e3504ff0b00bd93d3d70bdb305e",
            zset(ZsetForm::Listpack, &[("a", 1.0), ("b", 2.5)]),
        ),
        ("040201660176c001000b0014766c441ab4c115", hash(&[("f", "v", None), ("1", "", None)])),
        (
            "091302016103026f6e653f3f026262030074776fff0b0064672dc8bdffdc16",
            hash(&[("a", "one", None), ("bb", "two", None)]),
        ),
        (
            "0d161600000012000000040000016603017603f302feffff0b00bef4e8022e4f2699",
            hash(&[("f", "v", None), ("2", "-1", None)]),
        ),
    ]
}

#[test]
fn payloads_of_other_servers_are_read_and_written_alike() {
    for (hex, object) in written() {
        assert!(restore(&unhex(hex)).as_ref() == Ok(&object), "{hex}");
        assert_eq!(dump(&object, &Limits::default()), unhex(hex), "{object:?}");
    }
}

#[test]
fn every_former_encoding_is_read() {
    for (hex, object) in only_read() {
        assert_eq!(restore(&unhex(hex)), Ok(object), "{hex}");
    }
}

#[test]
fn long_entries_of_former_encodings() {
    let long = "L".repeat(300);
    let hex = format!(
        "0a416969010000600100000a0000016103412c{}fe2f010000c02c0108f000008005d00000008006e000\
         000000000100000afe8003f102fd0280000000026869ff0b000ad3a7f52c234eeb",
        "4c".repeat(300)
    );
    let elements =
        ["a", &long, "300", "-8388608", "-2147483648", "1099511627776", "-128", "0", "12", "hi"];
    assert_eq!(restore(&unhex(&hex)), Ok(list(&elements)));
    let hex = format!(
        "09411202016103026f6e653f3f026262fefe00000000{}ff0b00af7779cf877cf321",
        "76".repeat(254)
    );
    let value = "v".repeat(254);
    assert_eq!(restore(&unhex(&hex)), Ok(hash(&[("a", "one", None), ("bb", &value, None)])));
}

#[test]
fn a_dump_follows_the_limits() {
    let of = |limits: &Limits, object: &Object| dump(object, limits)[0];
    let default = Limits::default();
    let none = Limits { hash_max_listpack_entries: 0, ..Limits::default() };
    let hash = hash(&[("a", "b", None)]);
    assert_eq!(of(&default, &hash), object_type::HASH_LISTPACK);
    assert_eq!(of(&none, &hash), object_type::HASH);
    let text = string(&"ab".repeat(15));
    let uncompressed = dump(&text, &Limits { compression: false, ..Limits::default() });
    assert_eq!(uncompressed.len(), 2 + 30 + FOOTER_LEN);
    let elements = list(&["a", "b", "c"]);
    let by_count = dump(&elements, &Limits { list_max_listpack_size: 2, ..Limits::default() });
    assert_eq!(by_count[..2], [object_type::LIST_QUICKLIST_2, 2]);
    assert_eq!(restore(&by_count), Ok(elements));
}

#[test]
fn a_set_is_dumped_in_its_form() {
    for (form, object_type) in [
        (SetForm::Intset, object_type::SET_INTSET),
        (SetForm::Listpack, object_type::SET_LISTPACK),
        (SetForm::Table, object_type::SET),
    ] {
        let payload = dump(&set(form, &["2", "1"]), &Limits::default());
        assert_eq!(payload[0], object_type);
        let order = if form == SetForm::Intset { ["1", "2"] } else { ["2", "1"] };
        assert_eq!(restore(&payload), Ok(set(form, &order)));
    }
}

#[test]
fn newer_versions_are_read_when_asked_for() {
    let wrong = Err(RestoreError::BadChecksumOrVersion);
    for (version, strict, relaxed) in [(12, true, true), (13, false, false), (80, false, true)] {
        let payload = payload(b"\0\x03bar", version);
        let right = Ok(string("bar"));
        assert_eq!(restore(&payload), if strict { right.clone() } else { wrong.clone() });
        assert_eq!(restore_newer(&payload), if relaxed { right } else { wrong.clone() });
    }
}

#[test]
fn version_and_checksum_are_checked() {
    let wrong = Err(RestoreError::BadChecksumOrVersion);
    for version in [0, 6, 11, 12] {
        assert_eq!(restore(&payload(b"\0\x01a", version)), Ok(string("a")));
    }
    assert_eq!(restore(&payload(b"\0\x01a", 13)), wrong);
    assert_eq!(restore(&payload(b"\0\x01a", 0x0100)), wrong);
    assert_eq!(restore(b""), wrong);
    assert_eq!(restore(&[0; 9]), wrong);
    assert_eq!(restore(&payload(b"", 11)), Err(RestoreError::BadFormat));
    let mut flipped = payload(b"\0\x01a", 11);
    flipped[2] ^= 1;
    assert_eq!(restore(&flipped), wrong);
    assert_eq!(
        RestoreError::BadChecksumOrVersion.to_string(),
        "ERR DUMP payload version or checksum are wrong"
    );
    assert_eq!(RestoreError::BadFormat.to_string(), "ERR Bad data format");
}

#[test]
fn malformed_objects_are_refused() {
    let nan = f64::NAN.to_le_bytes();
    let cases: &[(&str, &[u8])] = &[
        ("unknown type", b"\x08\x01a"),
        ("trailing bytes", b"\0\x01ab"),
        ("cut string", b"\0\x02a"),
        ("length beyond all memory", b"\0\x81\xff\xff\xff\xff\xff\xff\xff\xff"),
        ("unknown length encoding", b"\0\x82\0"),
        ("unknown string encoding", b"\0\xc4\0"),
        ("an encoding for a length", b"\x01\xc1\x01a"),
        ("compressed beyond its length", b"\0\xc3\x04\x02\0a\x20\0"),
        ("compressed with an empty text", b"\0\xc3\x02\0\0a"),
        ("compressed with a length it cannot give", b"\0\xc3\x02\x80\xff\xff\xff\xff\0a"),
        ("empty list", b"\x01\0"),
        ("list with too many announced", b"\x01\x81\xff\xff\xff\xff\xff\xff\xff\xff\x01a"),
        ("empty quicklist", b"\x12\0"),
        ("quicklist of an empty node", b"\x12\x01\x02\x07\x07\0\0\0\0\0\xff"),
        ("quicklist of an unknown node", b"\x12\x01\x03\x01a"),
        ("quicklist of an empty plain node", b"\x12\x02\x01\0\x01\x01a"),
        ("empty list ziplist", b"\x0a\x0b\x0b\0\0\0\x0a\0\0\0\0\0\xff"),
        ("empty set", b"\x02\0"),
        ("set with a duplicate", b"\x02\x02\x01a\x01a"),
        ("set with a duplicate of another encoding", b"\x02\x02\xc0\x01\x011"),
        ("empty intset", b"\x0b\x08\x02\0\0\0\0\0\0\0"),
        ("intset in disorder", b"\x0b\x0c\x02\0\0\0\x02\0\0\0\x02\0\x01\0"),
        ("empty set listpack", b"\x14\x07\x07\0\0\0\0\0\xff"),
        ("set listpack with a duplicate", b"\x14\x0c\x0c\0\0\0\x02\0\x811\x02\x01\x01\xff"),
        ("empty zset", b"\x05\0"),
        ("zset listpack with no last score", b"\x11\x09\x09\0\0\0\x01\0\x01\x01\xff"),
        ("zset listpack with a text for a score", b"\x11\x0c\x0c\0\0\0\x02\0\x01\x01\x81x\x02\xff"),
        ("zset with NaN as text", b"\x03\x01\x01a\x03nan"),
        ("zset with NaN", b"\x03\x01\x01a\xfd"),
        ("zset with a duplicate", b"\x03\x02\x01a\x011\x01a\x012"),
        ("empty hash", b"\x04\0"),
        ("hash with a duplicate", b"\x04\x02\x01a\x01b\x01a\x01c"),
        ("hash with no last value", b"\x04\x01\x01a"),
        ("empty zipmap", b"\x09\x02\0\xff"),
        ("zipmap with a wrong count", b"\x09\x07\x02\x01a\x01\0b\xff"),
        ("zipmap beyond its end", b"\x09\x07\x01\x01a\x01\x03b\xff"),
        ("hash listpack with no last value", b"\x10\x09\x09\0\0\0\x01\0\x01\x01\xff"),
        ("field expiry too far", b"\x18\xff\xff\xff\xff\xff\xff\0\0\x01\x01\x01a\x01b"),
        ("field expiry overflows", b"\x18\xff\xff\xff\xff\xff\xff\xff\xff\x01\x02\x01a\x01b"),
        (
            "field expiry is negative",
            b"\x19\0\0\0\0\0\0\0\0\x0f\x0e\0\0\0\x03\0\x01\x01\x01\x01\xdf\xff\x02\xff",
        ),
        (
            "field expiry is a text",
            b"\x19\0\0\0\0\0\0\0\0\x0e\x0e\0\0\0\x03\0\x01\x01\x01\x01\x81x\x02\xff",
        ),
    ];
    for (name, object) in cases {
        assert_eq!(restore(&payload(object, 12)), Err(RestoreError::BadFormat), "{name}");
    }
    let with_nan = [b"\x05\x01\x01a".as_slice(), &nan].concat();
    assert_eq!(restore(&payload(&with_nan, 11)), Err(RestoreError::BadFormat));
}

#[test]
fn damaged_groups_of_streams_are_refused() {
    // An empty stream of type 1; a group `g` that has read up to 0-0.
    let group = [&[15, 0, 0, 0, 0][..], &[1, 1, b'g', 0, 0]].concat();
    let id = [0; 16];
    let pending = [&id[..], &[0; 8], &[1]].concat();
    let consumer = [&[1, b'c'][..], &[0; 8]].concat();
    let is_read = |parts: &[&[u8]]| {
        let object = [&group[..], &parts.concat()].concat();
        restore(&payload(&object, 11)).map(drop)
    };
    assert_eq!(is_read(&[&[1], &pending, &[1], &consumer, &[1], &id]), Ok(()));
    let bad = Err(RestoreError::BadFormat);
    // Pending with no consumer; twice; with two; an entry that is pending nowhere else.
    assert_eq!(is_read(&[&[1], &pending, &[0]]), bad);
    assert_eq!(is_read(&[&[2], &pending, &pending, &[1], &consumer, &[1], &id]), bad);
    assert_eq!(is_read(&[&[1], &pending, &[1], &consumer, &[2], &id, &id]), bad);
    assert_eq!(is_read(&[&[0], &[1], &consumer, &[1], &id]), bad);
    // Two consumers, and two groups, of one name.
    assert_eq!(is_read(&[&[0], &[2], &consumer, &[0], &consumer, &[0]]), bad);
    let twice = [&[15, 0, 0, 0, 0][..], &[2], &[1, b'g', 0, 0, 0, 0], &[1, b'g', 0, 0, 0, 0]];
    assert_eq!(restore(&payload(&twice.concat(), 11)), Err(RestoreError::BadFormat));
}

/// In this form, times are absolute, and no least time precedes them.
#[test]
fn hashes_of_former_candidates_are_read() {
    let expected = || hash(&[("a", "b", None), ("c", "d", Some(9))]);
    let table = payload(b"\x16\x02\0\x01a\x01b\x09\x01c\x01d", 12);
    assert_eq!(restore(&table), Ok(expected()));
    let listpack =
        b"\x17\x17\x17\0\0\0\x06\0\x81a\x02\x81b\x02\0\x01\x81c\x02\x81d\x02\x09\x01\xff";
    assert_eq!(restore(&payload(listpack, 12)), Ok(expected()));
    // In later versions of Valkey these types mean something else.
    assert_eq!(restore_newer(&payload(listpack, 80)), Err(RestoreError::BadFormat));
}

/// In a payload of Redis, zero stands for no expiry, also as a sum.
#[test]
fn a_field_whose_expiry_adds_up_to_zero_does_not_expire() {
    let table = payload(b"\x18\0\0\0\0\0\0\0\0\x03\0\x01a\x01b\x01\x01c\x01d\x03\x01e\x01f", 12);
    let object = restore(&table).unwrap();
    assert_eq!(object, hash(&[("a", "b", None), ("c", "d", None), ("e", "f", Some(2))]));
    assert_eq!(
        restore(&dump(&object, &Limits::default())),
        Ok(hash(&[("e", "f", Some(2)), ("a", "b", None), ("c", "d", None),]))
    );
}

#[test]
fn modules_are_told_apart() {
    for object in [&[6, 0][..], &[7, 0]] {
        let object_type = object[0];
        let unsupported = RestoreError::Unsupported(object_type);
        assert_eq!(restore(&payload(object, 11)), Err(unsupported));
        assert_eq!(unsupported.to_string(), "ERR Bad data format");
    }
}

fn any_text() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        any::<i64>().prop_map(|i| i.to_string().into_bytes()),
        (-300i64..300).prop_map(|i| i.to_string().into_bytes()),
        proptest::collection::vec(any::<u8>(), 0..40),
        proptest::collection::vec(b'a'..b'c', 0..300),
    ]
}

fn any_object() -> impl Strategy<Value = Object> {
    use proptest::collection::{hash_map, hash_set, vec};
    let score = any::<f64>().prop_filter("a score", |score| !score.is_nan());
    let field = (any_text(), proptest::option::of(1..=FIELD_EXPIRY_MAX_MS));
    let text_form = prop_oneof![Just(SetForm::Listpack), Just(SetForm::Table)];
    let zset_form = prop_oneof![Just(ZsetForm::Listpack), Just(ZsetForm::Skiplist)];
    let to_field = |(name, (value, expire_at_ms))| HashField { name, value, expire_at_ms };
    prop_oneof![
        vec(any_text(), 1..30).prop_map(|texts| Object::String(texts.concat())),
        vec(any_text(), 1..200).prop_map(Object::List),
        (text_form, hash_set(any_text(), 1..200))
            .prop_map(|(form, members)| Object::Set(form, Vec::from_iter(members))),
        hash_set(any::<i16>().prop_map(|i| i.to_string().into_bytes()), 1..200)
            .prop_map(|members| Object::Set(SetForm::Intset, Vec::from_iter(members))),
        (zset_form, hash_map(any_text(), score, 1..200))
            .prop_map(|(form, members)| Object::Zset(form, Vec::from_iter(members))),
        hash_map(any_text(), any_text(), 1..200).prop_map(move |fields| Object::Hash(
            fields.into_iter().map(|(name, value)| to_field((name, (value, None)))).collect()
        )),
        hash_map(any_text(), field, 1..200)
            .prop_map(move |fields| Object::Hash(fields.into_iter().map(to_field).collect())),
        any_stream(),
    ]
}

type Entry = (u64, u64, Vec<(Vec<u8>, Vec<u8>)>, bool);

fn any_stream() -> impl Strategy<Value = Object> {
    use proptest::collection::vec;
    let pair = (prop_oneof![Just(b"a".to_vec()), any_text()], any_text());
    let entry = (0u64..1 << 40, 1u64..9, vec(pair, 1..4), any::<bool>());
    let nodes = vec(vec(entry, 1..6), 0..6);
    let stream = (nodes, any::<u64>(), (any::<u64>(), any::<u64>())).prop_map(
        |(nodes, entries_added, max_deleted_id)| {
            let mut last_id = (0, 0);
            let mut node = |entries: Vec<Entry>| {
                let names: Vec<_> = entries[0].2.iter().map(|(name, _)| name.clone()).collect();
                let own = names.clone();
                let named = move |fields: Vec<(Vec<u8>, Vec<u8>)>| {
                    let shares = fields.iter().map(|(name, _)| name).eq(&own);
                    let name = |(name, value)| (Some(name).filter(|_| !shares), value);
                    fields.into_iter().map(name).collect()
                };
                let mut first = None;
                let entry = |(ms, seq, fields, is_deleted)| {
                    last_id = if ms % 2 == 0 {
                        (last_id.0 + ms, seq)
                    } else {
                        (last_id.0, last_id.1 + seq)
                    };
                    last_id = last_id.max((last_id.0, seq));
                    first = first.or(Some(last_id));
                    (last_id, named(fields), is_deleted)
                };
                let entries = entries.into_iter().map(entry).collect();
                StreamNode { first: first.unwrap(), names, entries }
            };
            let mut nodes: Vec<_> = nodes.into_iter().map(&mut node).collect();
            let mut seen = None;
            for node in &mut nodes {
                node.entries.retain(|(id, ..)| seen.replace(*id) < Some(*id));
            }
            nodes.retain(|node| !node.entries.is_empty());
            nodes.iter_mut().for_each(|node| node.first = node.entries[0].0);
            let ids = nodes.iter().flat_map(|node| &node.entries);
            let first_id = ids.clone().find(|(.., is_deleted)| !is_deleted).map(|(id, ..)| *id);
            let last_id = ids.map(|(id, ..)| *id).max().unwrap_or_default();
            let first_id = first_id.unwrap_or_default();
            let groups = Vec::new();
            StreamObject { nodes, last_id, first_id, max_deleted_id, entries_added, groups }
        },
    );
    (stream, vec(any_group(), 0..3)).prop_map(|(stream, mut groups)| {
        groups.sort_by(|a, b| a.name.cmp(&b.name));
        groups.dedup_by(|a, b| a.name == b.name);
        Object::Stream(Box::new(StreamObject { groups, ..stream }))
    })
}

fn any_group() -> impl Strategy<Value = StreamGroup> {
    use proptest::collection::{btree_map, vec};
    let consumer = (any_text(), any::<u64>(), proptest::option::of(0u64..1 << 50));
    let id = (any::<u64>(), any::<u64>());
    let entry = (any::<u64>(), any::<u64>(), any::<usize>());
    let read = prop_oneof![Just(EntriesRead::Unknown), (0..i64::MAX).prop_map(EntriesRead::Known)];
    (any_text(), id, read, vec(consumer, 0..4), btree_map((any::<u64>(), 0u64..9), entry, 0..9))
        .prop_map(|(name, last_id, entries_read, mut consumers, pending)| {
            consumers.sort();
            consumers.dedup_by(|a, b| a.0 == b.0);
            let pending = pending.into_iter().filter(|_| !consumers.is_empty());
            let pending = pending.map(|(id, (delivered_ms, deliveries, owner))| StreamPending {
                id,
                delivered_ms,
                deliveries,
                consumer: owner % consumers.len(),
            });
            let pending = pending.collect();
            let consumer = |(name, seen_ms, active_ms)| StreamConsumer { name, seen_ms, active_ms };
            let consumers = consumers.into_iter().map(consumer).collect();
            StreamGroup { name, last_id, entries_read, pending, consumers }
        })
}

/// Returns `object` with unordered parts sorted.
fn sorted(mut object: Object) -> Object {
    match &mut object {
        Object::String(_) | Object::List(_) | Object::Stream(_) => (),
        Object::Set(_, members) => members.sort(),
        Object::Zset(_, members) => members.sort_by(|a, b| a.0.cmp(&b.0)),
        Object::Hash(fields) => fields.sort_by(|a, b| a.name.cmp(&b.name)),
    }
    object
}

proptest! {
    #[test]
    fn any_object_comes_back(object in any_object()) {
        let payload = dump(&object, &Limits::default());
        prop_assert_eq!(restore(&payload).map(sorted), Ok(sorted(object)));
    }

    /// A payload with any change and a right checksum is either refused, or an object that dumps.
    #[test]
    fn no_change_of_a_payload_does_harm(
        fixture in any::<prop::sample::Index>(),
        changes in proptest::collection::vec(
            (any::<prop::sample::Index>(), any::<u8>(), 0u8..4), 1..4
        ),
    ) {
        let mut fixtures = written();
        fixtures.extend(only_read());
        let mut object = unhex(fixtures[fixture.index(fixtures.len())].0);
        object.truncate(object.len() - FOOTER_LEN);
        for (at, byte, kind) in changes {
            let at = at.index(object.len());
            match kind {
                0 => object.insert(at, byte),
                1 if object.len() > 1 => drop(object.remove(at)),
                2 => object[at] = object[at].wrapping_add(byte % 3).wrapping_sub(1),
                _ => object[at] = byte,
            }
        }
        if let Ok(restored) = restore(&payload(&object, 12)) {
            let again = dump(&restored, &Limits::default());
            prop_assert_eq!(restore(&again).map(sorted), Ok(sorted(restored)));
        }
    }

    #[test]
    fn any_bytes_are_restored_or_refused(
        object in proptest::collection::vec(any::<u8>(), 0..200), object_type in 0u8..26
    ) {
        let object = [&[object_type], object.as_slice()].concat();
        let _ = restore(&payload(&object, 12));
    }
}

#[test]
fn small_payloads_of_large_objects_are_refused_beyond_a_limit() {
    const COUNT: u64 = 200_000;
    let digits = || vec![b"1".to_vec(); COUNT as usize];
    let names = || (0..COUNT).map(|n| n.to_string().into_bytes());
    let entries = (1..=COUNT).map(|n| ((n, 0), vec![(Some(b"a".to_vec()), b"b".to_vec())], false));
    let node = StreamNode { first: (1, 0), names: Vec::new(), entries: entries.collect() };
    let stream = StreamObject {
        nodes: vec![node],
        last_id: (COUNT, 0),
        first_id: (1, 0),
        max_deleted_id: (0, 0),
        entries_added: COUNT,
        groups: Vec::new(),
    };
    let field = |name| HashField { name, value: Vec::new(), expire_at_ms: None };
    for object in [
        Object::String(vec![b'a'; 5_000_000]),
        Object::List(digits()),
        Object::Set(SetForm::Table, names().collect()),
        Object::Zset(ZsetForm::Skiplist, names().map(|name| (name, 0.0)).collect()),
        Object::Hash(names().map(field).collect()),
        Object::Stream(Box::new(stream)),
    ] {
        let payload = dump(&object, &Limits::default());
        assert!(payload.len() < 4_000_000, "{}", payload.len());
        let within = |more| restore_within(&payload, false, Allowance { more, string: 0 });
        assert_eq!(within(1 << 20), Err(RestoreError::TooLarge));
        // Sorted sets come back in the other order.
        let whole = restore(&payload).unwrap();
        assert!(within(512 << 20).unwrap() == whole);
        assert_eq!(dump(&whole, &Limits::default()).len(), payload.len());
    }
}

#[test]
fn strings_may_be_as_long_as_they_may_be_without_a_payload() {
    let object = Object::String(vec![b'a'; 5_000_000]);
    let payload = dump(&object, &Limits::default());
    assert!(payload.len() < 100_000);
    let within = |string| restore_within(&payload, false, Allowance { more: 1 << 20, string });
    assert_eq!(within(4_999_999), Err(RestoreError::TooLarge));
    assert_eq!(within(5_000_000).as_ref(), Ok(&object));
    let list = dump(&Object::<Vec<u8>>::List(vec![vec![b'a'; 5_000_000]]), &Limits::default());
    let allowance = Allowance { more: 1 << 20, string: 5_000_000 };
    assert_eq!(restore_within(&list, false, allowance), Err(RestoreError::TooLarge));
}

/// The nodes of a stream count as they are kept, not as they are decoded.
#[test]
fn packed_nodes_count_as_many_bytes_as_they_are_said_to_take() {
    const NODES: u64 = 1000;
    let node = |at: u64| {
        let entries = (1..=100).map(|n| ((at, n), vec![(None, b"b".to_vec())], false));
        StreamNode { first: (at, 1), names: vec![b"a".to_vec()], entries: entries.collect() }
    };
    let stream = StreamObject {
        nodes: (1..=NODES).map(node).collect(),
        last_id: (NODES, 100),
        first_id: (1, 1),
        max_deleted_id: (0, 0),
        entries_added: 100 * NODES,
        groups: Vec::new(),
    };
    let object = Object::Stream(Box::new(stream.clone()));
    let limits = Limits { compression: false, ..Limits::default() };
    let payload = dump(&object, &limits);
    let restored = |more, each: usize| {
        let mut nodes = Vec::new();
        let allowance = Allowance { more, string: 0 };
        let object = restore_packing(&payload, false, allowance, |node| {
            nodes.push(node);
            each
        });
        object.map(|object| (object, nodes))
    };
    let each = payload.len() / NODES as usize;
    assert_eq!(
        restore_within(&payload, false, Allowance { more: 1 << 20, string: 0 }),
        Err(RestoreError::TooLarge)
    );
    let (head, nodes) = restored(1 << 20, each).expect("it is small");
    assert_eq!(nodes, stream.nodes);
    assert_eq!(head, Object::Stream(Box::new(StreamObject { nodes: Vec::new(), ..stream })));
    assert_eq!(restored(1 << 20, each + 2000), Err(RestoreError::TooLarge));
}
