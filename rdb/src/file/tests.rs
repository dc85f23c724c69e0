//! Tests of whole files.

use super::*;
use crate::{Limits, Object, dump, restore};
use proptest::prelude::*;
use std::io::Cursor;

/// Returns a file's contents as lines, and the error that ends it, if there is one.
fn contents(file: &[u8], max_len: usize) -> (Vec<String>, Option<FileError>) {
    let mut lines = Vec::new();
    let mut file = match File::open(file) {
        Ok(file) => file,
        Err(error) => return (lines, Some(error)),
    };
    loop {
        let told = match file.next_item() {
            Ok(Item::End) => return (lines, None),
            Ok(Item::Key(key)) => describe_key(&mut file, &key, max_len),
            Ok(item) => Ok(format!("{item:?}")),
            Err(error) => Err(error),
        };
        match told {
            Ok(line) => lines.push(line),
            Err(error) => return (lines, Some(error)),
        }
    }
}

fn describe_key(file: &mut File<&[u8]>, key: &Key, max_len: usize) -> FileResult<String> {
    let name = key.name.escape_ascii();
    Ok(match file.value(key, max_len)? {
        Value::Payload(payload) => {
            let object = restore(&payload).expect("it was found to be sound");
            format!("{name} {:?} {object:?}", key.expire_at_ms)
        }
        Value::Large(_) => {
            let object_type = key.object_type;
            let mut sink = Limited { collector: Collector::new(object_type)?, left: 1 << 30 };
            file.parts::<FileError, _>(key, &mut sink)?;
            format!("{name} {:?} {:?}", key.expire_at_ms, sink.collector.finish())
        }
        other => format!("{name} {other:?}"),
    })
}

fn written(objects: &[(&str, Object)]) -> Vec<u8> {
    let mut output = Output::new(Cursor::new(Vec::new())).unwrap();
    output.aux("name", "value").unwrap();
    output.database(0, objects.len() as u64, 0).unwrap();
    for (name, object) in objects {
        let payload = dump(object, &Limits::default());
        output.key(name.as_bytes(), Some(77), payload[0]).unwrap();
        output.object(&payload[1..payload.len() - FOOTER_LEN]).unwrap();
    }
    output.finish().unwrap().1.into_inner()
}

fn some_objects() -> Vec<(&'static str, Object)> {
    let texts = |range: std::ops::Range<u32>| range.map(|n| format!("text {n}").into_bytes());
    let field =
        |name: Vec<u8>, expire_at_ms| crate::HashField { value: name.clone(), name, expire_at_ms };
    vec![
        ("a", Object::String(b"ab".repeat(700_000))),
        ("b", Object::String((0..100_000u32).flat_map(u32::to_be_bytes).collect())),
        ("c", Object::List(texts(0..5000).collect())),
        ("d", Object::Set(crate::SetForm::Table, texts(0..1000).collect())),
        ("e", Object::Hash(texts(0..700).map(|text| field(text, None)).collect())),
        (
            "f",
            Object::Zset(
                crate::ZsetForm::Skiplist,
                texts(0..300).map(|text| (text, 0.5)).rev().collect(),
            ),
        ),
    ]
}

#[test]
fn written_files_are_read_whole_and_in_parts() {
    let file = written(&some_objects());
    assert_eq!(&file[..9], b"REDIS0011");
    let (whole, error) = contents(&file, 8 << 20);
    assert!(error.is_none(), "{error:?}");
    assert_eq!(whole.len(), 2 + 1 + 6);
    assert!(whole[3].starts_with("a Some(77) String("), "{}", &whole[3][..40]);
    for max_len in [0, 1, 30, 1000, 100_000] {
        let (parts, error) = contents(&file, max_len);
        assert!(error.is_none(), "{error:?}");
        assert_eq!(parts, whole);
    }
}

#[test]
fn fields_that_expire_need_the_newer_version() {
    let field = crate::HashField { name: vec![1], value: vec![2], expire_at_ms: Some(9) };
    let file = written(&[("h", Object::Hash(vec![field]))]);
    assert_eq!(&file[..9], b"REDIS0012");
    assert!(contents(&file, 1000).1.is_none());
}

#[test]
fn nothing_is_left_of_a_key_that_was_taken_back() {
    let field = crate::HashField { name: vec![1], value: vec![2], expire_at_ms: Some(9) };
    let hash = dump(&Object::Hash(vec![field]), &Limits::default());
    let objects = some_objects();
    let mut output = Output::new(Cursor::new(Vec::new())).unwrap();
    output.aux("name", "value").unwrap();
    output.database(0, objects.len() as u64, 0).unwrap();
    for (name, object) in &objects {
        let mark = output.mark();
        output.key(b"taken back", None, hash[0]).unwrap();
        output.object(&hash[1..hash.len() - FOOTER_LEN]).unwrap();
        output.rewind(mark).unwrap();
        let bytes = output.bytes() as usize;
        output.file_mut().get_mut().truncate(bytes);
        let payload = dump(object, &Limits::default());
        output.key(name.as_bytes(), Some(77), payload[0]).unwrap();
        output.object(&payload[1..payload.len() - FOOTER_LEN]).unwrap();
    }
    let (version, file) = output.finish().unwrap();
    assert_eq!(version, VERSION);
    assert!(file.into_inner() == written(&objects));
}

#[test]
fn everything_beside_keys() {
    let mut file = b"REDIS0004".to_vec();
    file.extend(b"\xfa\x01a\xc0\x05"); // aux
    file.extend(b"\xf4\x01\x02\x03"); // slot info
    file.extend(b"\xf5\x04code"); // a library
    file.extend(b"\xfe\x07\xfb\x02\x01"); // database, sizes
    file.extend(b"\xfd\x05\0\0\0\xf8\x09\xf9\x08\0\x01k\x01v"); // expiry in s, idle, freq
    file.extend(b"\xfc\xff\xff\xff\xff\xff\xff\xff\xff\0\x01l\x01v"); // no expiry
    file.extend(b"\xf7\x81\x00\x10\x83\x10\x51\x87\x20\x00\x02\x01\x05\x02ab\x00"); // a module's
    file.extend(b"\x07\x01m\x81\x00\x10\x83\x10\x51\x87\x20\x00\x01\x05\x03aaaa\x04bbbbbbbb\x00");
    file.extend(b"\x02\x01e\0\xff"); // an empty set, and the end
    let (lines, error) = contents(&file, 1000);
    assert!(error.is_none(), "{error:?}");
    assert_eq!(
        lines,
        [
            "Aux([97], [53])",
            "Function([99, 111, 100, 101])",
            "Database(7)",
            "Keys(2)",
            "k Some(5000) String([118])",
            "l None String([118])",
            "ModuleAux(\"ABCDEFGHI\")",
            "m Module(\"ABCDEFGHI\")",
            "e Empty",
        ]
    );
}

#[test]
fn wrong_files_are_refused() {
    let refused = |file: &[u8]| contents(file, 1000).1.map(|error| error.to_string());
    for (file, reason) in [
        (&b""[..], "the file ends in the middle"),
        (b"RIFF00000", "it is no RDB file"),
        (b"REDIS0013", "RDB version 0013 is not known: 1 to 12 are"),
        (b"VALKEY080", "RDB version 080 is not known: 1 to 12 are"),
        (b"REDIS0011", "the file ends in the middle"),
        (b"REDIS0011\x08\x01a", "8 is nothing that is known"),
        (
            b"REDIS0011\xf6",
            "libraries of functions of release candidates of Redis 7.0 are not understood",
        ),
        (
            b"REDIS0011\x06\x01a",
            "values of modules of release candidates of Redis 4.0 are not understood",
        ),
        (b"REDIS0011\0\x01a\x81\0\0\0\xff\0\0\0\0", "the file ends in the middle"),
        (
            b"REDIS0011\x02\x01a\x01\x81\0\0\0\xff\0\0\0\0",
            "a string of 1095216660480 bytes is too long",
        ),
        (b"REDIS0011\x02\x01a\x02\x01a\x01a", "the value is malformed"),
    ] {
        assert_eq!(refused(file).as_deref(), Some(reason), "{}", file.escape_ascii());
    }
    let mut file = written(&[("k", Object::String(b"v".to_vec()))]);
    assert_eq!(refused(&file), None);
    *file.last_mut().unwrap() ^= 1;
    assert!(refused(&file).unwrap().starts_with("the checksum is wrong"));
    let len = file.len();
    file[len - 8..].fill(0);
    assert_eq!(refused(&file), None, "there is no checksum");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// With any change, the file is read to its end or to an error, in little memory; and the
    /// checksum detects every change that is not an error itself.
    #[test]
    fn no_change_of_a_file_does_harm(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0u8..4), 1..4),
        max_len in prop_oneof![Just(0usize), Just(200), Just(1 << 20)],
    ) {
        let objects = &some_objects()[2..];
        let good = written(objects);
        let mut file = good.clone();
        for (at, byte, kind) in changes {
            let at = at.index(file.len());
            match kind {
                0 => file.insert(at, byte),
                1 => drop(file.remove(at)),
                2 => file.truncate(at.max(1)),
                _ => file[at] = byte,
            }
        }
        let (_, error) = contents(&file, max_len);
        prop_assert!(error.is_some() || file == good || file[file.len() - 8..] == [0; 8]);
    }
}
