use proptest::prelude::*;

use super::*;

/// Contents of a whole stream: its commands, and the error that ends it.
type Outcome = (Vec<Vec<Vec<u8>>>, Option<ProtocolError>);

/// Parses a stream that arrives in `chunks`.
fn parse_chunks<'a>(chunks: impl IntoIterator<Item = &'a [u8]>, limits: &Limits) -> Outcome {
    let mut parser = Parser::new();
    let mut buf = BytesMut::new();
    let mut commands = Vec::new();
    for chunk in chunks {
        buf.extend_from_slice(chunk);
        loop {
            match parser.parse(&buf, limits) {
                Ok(Parsed::Command) => {
                    let by_args: Vec<_> = parser.args(&buf).iter().map(<[u8]>::to_vec).collect();
                    let (source, ranges) = parser.take(&mut buf);
                    let taken: Vec<_> =
                        Args::new(&source, &ranges).iter().map(<[u8]>::to_vec).collect();
                    assert_eq!(by_args, taken);
                    commands.push(taken);
                }
                Ok(Parsed::Empty) => buf.advance(parser.consumed()),
                Ok(Parsed::Incomplete { need }) => {
                    assert!(need > 0);
                    break;
                }
                Err(error) => return (commands, Some(error)),
            }
        }
    }
    (commands, None)
}

fn parse_all(input: &[u8]) -> Outcome {
    parse_chunks([input], &Limits::default())
}

fn error_of(input: &[u8]) -> String {
    let (_, error) = parse_all(input);
    error.map(|error| error.to_string()).unwrap_or_default()
}

fn encode(args: &[Vec<u8>]) -> Vec<u8> {
    let mut out = format!("*{}\r\n", args.len()).into_bytes();
    for arg in args {
        out.extend(format!("${}\r\n", arg.len()).into_bytes());
        out.extend_from_slice(arg);
        out.extend_from_slice(b"\r\n");
    }
    out
}

#[test]
fn arguments_of_any_length_come_back_wherever_the_stream_is_cut() {
    for len in [0, 1, 9, 10, 99, 100, 101, 999, 1000] {
        for limits in [
            Limits { max_bulk: SHORT - 1, ..Limits::default() },
            Limits { authenticated: false, ..Limits::default() },
            Limits::default(),
        ] {
            let args = [b"SET".to_vec(), vec![b'$'; len], vec![b'\r'; len]];
            let stream = encode(&args).repeat(2);
            let error = (len > limits.max_bulk).then_some(ProtocolError::InvalidBulkLength);
            let commands = if error.is_some() { vec![] } else { vec![args.to_vec(); 2] };
            for cut in 0..stream.len() {
                let (front, rest) = stream.split_at(cut);
                let parsed = parse_chunks([front, rest], &limits);
                assert_eq!(parsed, (commands.clone(), error), "{len} bytes, cut at {cut}");
            }
        }
    }
}

#[test]
fn a_multibulk_command_is_found_in_place() {
    let buf = b"*3\r\n$3\r\nSET\r\n$3\r\nkey\r\n$5\r\nva\r\nl\r\n*1\r\n";
    let mut parser = Parser::new();
    assert_eq!(parser.parse(buf, &Limits::default()), Ok(Parsed::Command));
    assert_eq!(parser.argv().as_slice(), [(8, 11), (17, 20), (26, 31)]);
    assert_eq!(parser.consumed(), 33);
    let args = parser.args(buf);
    assert_eq!(args.len(), 3);
    assert_eq!(args.get(2), Some(&b"va\r\nl"[..]));
    assert_eq!(args.get(3), None);
    assert!(!parser.is_inline() && !args.is_empty());

    assert_eq!(parser.parse(&buf[33..], &Limits::default()), Ok(Parsed::Incomplete { need: 1 }));
    assert!(parser.in_request());
}

#[test]
fn an_incomplete_argument_says_how_much_is_missing() {
    let mut parser = Parser::new();
    let parsed = parser.parse(b"*1\r\n$10\r\nabc", &Limits::default());
    assert_eq!(parsed, Ok(Parsed::Incomplete { need: 9 }));
    assert_eq!((parser.missing(12), parser.missing(20)), (9, 1));
    let parsed = parser.parse(b"*1\r\n$10\r\nabcdefghij\r", &Limits::default());
    assert_eq!(parsed, Ok(Parsed::Incomplete { need: 1 }));
    let parsed = parser.parse(b"*1\r\n$10\r\nabcdefghij\r\n", &Limits::default());
    assert_eq!(parsed, Ok(Parsed::Command));
    assert_eq!(parser.missing(0), 0, "it is whole");
}

#[test]
fn empty_requests_are_no_commands() {
    let (commands, error) = parse_all(b"*0\r\n*-1\r\n\r\n\n  \r\n*-10\r\nPING\r\n");
    assert_eq!(commands, [[b"PING"]]);
    assert_eq!(error, None);
}

#[test]
fn inline_commands() {
    let (commands, error) = parse_all(b"SET k \"a\\x00b\"\r\nGET k\n");
    assert_eq!(error, None);
    assert_eq!(commands[0], [&b"SET"[..], b"k", b"a\0b"]);
    assert_eq!(commands[1], [&b"GET"[..], b"k"]);
}

#[test]
fn error_texts() {
    let cases: &[(&[u8], &str)] = &[
        (b"*x\r\n", "invalid multibulk length"),
        (b"*\r\n", "invalid multibulk length"),
        (b"*01\r\n", "invalid multibulk length"),
        (b"*3000000000\r\n", "invalid multibulk length"),
        (b"*1048577\r\n", "invalid multibulk length"),
        (b"*99999999999999999999\r\n", "invalid multibulk length"),
        (b"*1\r\n$x\r\n", "invalid bulk length"),
        (b"*1\r\n$-1\r\n", "invalid bulk length"),
        (b"*1\r\n$\r\n", "invalid bulk length"),
        (b"*1\r\n$00\r\n", "invalid bulk length"),
        (b"*1\r\n$536870913\r\n", "invalid bulk length"),
        (b"*1\r\n$2000000000\r\n", "invalid bulk length"),
        (b"*3\r\n$3\r\nSET\r\n:1\r\n", "expected '$', got ':'"),
        (b"*1\r\nfoo\r\n", "expected '$', got 'f'"),
        (b"*1\r\n12\r\n", "expected '$', got '1'"),
        (b"get \"a\r\n", "unbalanced quotes in request"),
        (b"get 'a'b\r\n", "unbalanced quotes in request"),
    ];
    for (input, text) in cases {
        let expected = format!("ERR Protocol error: {text}");
        assert_eq!(error_of(input), expected, "{}", input.escape_ascii());
    }
    assert_eq!(
        ProtocolError::ExpectedDollar(0xff).reply_text(),
        b"ERR Protocol error: expected '$', got '\xff'"
    );
    assert_eq!(
        ProtocolError::InvalidBulkLength.reply_text(),
        b"ERR Protocol error: invalid bulk length"
    );
}

#[test]
fn endless_lines_are_refused() {
    let digits = vec![b'1'; 70_000];
    assert_eq!(error_of(&digits), "ERR Protocol error: too big inline request");
    let count = [b"*", &digits[..]].concat();
    assert_eq!(error_of(&count), "ERR Protocol error: too big mbulk count string");
    let length = [b"*1\r\n$", &digits[..]].concat();
    assert_eq!(error_of(&length), "ERR Protocol error: too big bulk count string");

    let longest = [&[b'a'; 64 * 1024][..], b"\n"].concat();
    assert_eq!(parse_all(&longest).0[0][0].len(), 64 * 1024);
}

#[test]
fn before_authentication_less_is_allowed() {
    let limits = Limits { authenticated: false, ..Limits::default() };
    let error = |input: &[u8]| {
        let (_, error) = parse_chunks([input], &limits);
        error.map(|error| error.to_string()).unwrap_or_default()
    };
    assert_eq!(error(b"*11\r\n"), "ERR Protocol error: unauthenticated multibulk length");
    assert_eq!(error(b"*1\r\n$16385\r\n"), "ERR Protocol error: unauthenticated bulk length");
    assert_eq!(error(b"*10\r\n$16384\r\n"), "");
}

#[test]
fn announced_lengths_take_no_memory() {
    let limits = Limits { max_bulk: usize::MAX, max_args: usize::MAX, ..Limits::default() };
    let mut parser = Parser::new();
    for input in [&b"*1000000000\r\n"[..], b"*1000000000\r\n$1000000000\r\nabc"] {
        assert!(matches!(parser.parse(input, &limits), Ok(Parsed::Incomplete { .. })));
        assert_eq!(parser.args.capacity(), 8);
    }
    let (_, error) = parse_chunks([&b"*1\r\n$4294967290\r\n"[..]], &limits);
    assert_eq!(error, Some(ProtocolError::InvalidBulkLength));
}

#[test]
fn a_long_argument_list_is_given_back() {
    let many = encode(&vec![b"x".to_vec(); 5000]);
    let mut parser = Parser::new();
    assert_eq!(parser.parse(&many, &Limits::default()), Ok(Parsed::Command));
    assert_eq!(parser.argv().len(), 5000);
    assert_eq!(parser.parse(b"*0\r\n", &Limits::default()), Ok(Parsed::Empty));
    assert_eq!(parser.args.capacity(), 8);
}

/// Returns a stream of valid, odd and broken requests.
fn stream() -> impl Strategy<Value = Vec<u8>> {
    let args = proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..120), 1..12);
    let request = prop_oneof![
        6 => args.prop_map(|args| encode(&args)),
        2 => "[a-c\"'\\\\x0-9 ]{0,20}\r?\n".prop_map(String::into_bytes),
        1 => "[*$][0-9-]{0,3}\r\n".prop_map(String::into_bytes),
        1 => proptest::collection::vec(any::<u8>(), 0..10),
    ];
    proptest::collection::vec(request, 0..8).prop_map(|requests| requests.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn any_split_gives_the_same(input in stream(), cuts in proptest::collection::vec(1usize..40, 1..40)) {
        let whole = parse_all(&input);
        let bytes = parse_chunks(input.chunks(1), &Limits::default());
        prop_assert_eq!(&bytes, &whole);

        let mut chunks = Vec::new();
        let mut rest = &input[..];
        for cut in cuts.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (chunk, after) = rest.split_at(rest.len().min(*cut));
            chunks.push(chunk);
            rest = after;
        }
        prop_assert_eq!(&parse_chunks(chunks, &Limits::default()), &whole);
    }

    #[test]
    fn small_limits_split_the_same(input in stream()) {
        let limits = Limits { max_bulk: 50, max_args: 4, max_inline: 6, authenticated: true };
        prop_assert_eq!(
            parse_chunks(input.chunks(1), &limits),
            parse_chunks([&input[..]], &limits)
        );
    }

    #[test]
    fn encoded_commands_come_back(
        args in proptest::collection::vec(any::<Vec<u8>>(), 1..20)
    ) {
        prop_assert_eq!(parse_all(&encode(&args)), (vec![args], None));
    }
}
