//! What a reader behind the guard receives, in any chunks.

use bytes::BufMut as _;
use proptest::collection::vec;
use proptest::prelude::*;
use tokio::io::{AsyncWriteExt as _, DuplexStream, duplex};

use super::*;
use crate::conninfo::{ChannelBinding, RequireAuth};
use crate::property;

fn message(tag: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![tag];
    bytes.put_u32(u32::try_from(body.len()).expect("short") + 4);
    bytes.extend_from_slice(body);
    bytes
}

fn guard() -> (Guard<DuplexStream>, DuplexStream) {
    let (ours, theirs) = duplex(1 << 20);
    let policy =
        Policy { require_auth: RequireAuth::default(), channel_binding: ChannelBinding::Prefer };
    (Guard::new(Line::Plain(ours), policy), theirs)
}

/// All bytes that pass, from a server that sends these chunks and then closes.
fn passed(pieces: &[&[u8]]) -> (Vec<u8>, io::Result<()>, Option<Method>) {
    passed_within(true, pieces)
}

fn passed_within(large_rows: bool, pieces: &[&[u8]]) -> (Vec<u8>, io::Result<()>, Option<Method>) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(async {
        let (mut guard, mut server) = guard();
        let _lifted = large_rows.then(|| guard.answer_limit().lift());
        let method = guard.method();
        let serve = async {
            for piece in pieces {
                // A guard that rejects the session stops reading.
                if server.write_all(piece).await.is_err() {
                    break;
                }
                tokio::task::yield_now().await;
            }
            drop(server);
        };
        let read = async move {
            let (mut seen, mut buffer) = (Vec::new(), [0; 100]);
            loop {
                match guard.read(&mut buffer).await {
                    Ok(0) => return (seen, Ok(())),
                    Ok(count) => seen.extend_from_slice(&buffer[..count]),
                    Err(error) => return (seen, Err(error)),
                }
            }
        };
        let ((), (seen, end)) = tokio::join!(serve, read);
        (seen, end, method.get().copied())
    })
}

fn welcome() -> Vec<u8> {
    [message(b'R', &[0; 4]), message(b'S', b"a\0b\0"), message(b'Z', b"I")].concat()
}

#[test]
fn a_valid_session_passes_in_any_chunks() {
    // Descriptions are parsed, so random ones are excluded.
    let tags = any::<u8>().prop_filter("a description", |tag| !matches!(tag, b'T' | b't'));
    let bodies = vec((tags, vec(any::<u8>(), 0..300)), 0..6);
    let cases = (bodies, vec(1..200_usize, 1..5));
    let name = "a_valid_session_passes_in_any_chunks";
    property::holds(name, 300, &cases, |(messages, lengths)| {
        let mut bytes = welcome();
        for (tag, body) in messages {
            bytes.extend(message(tag, &body));
        }
        let (mut rest, mut pieces) = (bytes.as_slice(), Vec::new());
        for length in lengths.iter().copied().cycle() {
            let (piece, left) = rest.split_at(length.min(rest.len()));
            pieces.push(piece);
            rest = left;
            if rest.is_empty() {
                break;
            }
        }
        let (seen, end, method) = passed(&pieces);
        end.expect("a sound session");
        assert_eq!(seen, bytes);
        assert_eq!(method, Some(Method::None));
    });
}

#[test]
fn any_bytes_pass_or_are_rejected() {
    let cases = vec(vec(any::<u8>(), 0..100), 0..8);
    property::holds("any_bytes_pass_or_are_rejected", 1000, &cases, |pieces| {
        let pieces: Vec<_> = pieces.iter().map(Vec::as_slice).collect();
        let (seen, _, _) = passed(&pieces);
        assert!(pieces.concat().starts_with(&seen));
    });
}

/// The error that the reader gets.
fn refusal(pieces: &[&[u8]]) -> Refused {
    let (_, end, _) = passed(pieces);
    let error = end.expect_err("refused");
    error.get_ref().and_then(|error| error.downcast_ref::<Refused>()).expect("typed").clone()
}

#[test]
fn nothing_after_a_rejected_message_reaches_the_reader() {
    let mut endless = message(b'R', &10_u32.to_be_bytes());
    endless[1..5].copy_from_slice(&(1_u32 << 30).to_be_bytes());
    assert!(matches!(refusal(&[&endless]), Refused::Frame(_)));
    let first = [&11_u32.to_be_bytes()[..], b"r=x,s=y,i=2000000000"].concat();
    let (seen, end, _) = passed(&[&message(b'R', &first)]);
    assert!(seen.is_empty() && end.is_err(), "{seen:?}");
}

#[test]
fn messages_longer_than_postgresqls_limit_are_rejected() {
    let header = |length: u32| [&[b'D'][..], &length.to_be_bytes()].concat();
    for length in [(1 << 30) + 1, u32::MAX, 3] {
        let header = header(length);
        let whole = [welcome(), header.clone()].concat();
        assert!(matches!(refusal(&[&whole]), Refused::Frame(_)), "{length}");
        let (one, other) = header.split_at(3);
        assert!(matches!(refusal(&[&welcome(), one, other]), Refused::Frame(_)), "{length}");
    }
    let (_, end, _) = passed(&[&welcome(), &header(1 << 30), b"body"]);
    end.expect("not too long");
}

/// The limit that a reader of small queries reports.
fn too_much(after: &[&[u8]]) -> Option<&'static str> {
    let welcome = welcome();
    let pieces: Vec<_> = [&welcome[..]].into_iter().chain(after.iter().copied()).collect();
    let (_, end, _) = passed_within(false, &pieces);
    let error = end.err()?;
    match error.get_ref().and_then(|error| error.downcast_ref::<Refused>()) {
        Some(Refused::TooMuch { what, .. }) => Some(what),
        Some(Refused::Frame(_)) => Some("a message"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn unsolicited_messages_are_bounded() {
    let parameters = message(b'S', &[b'v'; 1000]).repeat(1200);
    let (some, ready) = (&parameters[..500 * 1005], message(b'Z', b"I"));
    assert_eq!(too_much(&[some]), None);
    assert_eq!(too_much(&[some, &ready, some, &ready, some]), Some("parameters"), "in all");
    let empty = message(b'S', b"").repeat(10_000);
    assert_eq!(too_much(&[&empty]), Some("parameters"), "each takes memory");
    for tag in [b'N', b'A'] {
        let notices = message(tag, &[b'v'; 1000]).repeat(8000);
        assert_eq!(too_much(&[&notices, &ready, &notices]), None, "beside one answer");
        assert_eq!(too_much(&[&notices, &notices]), Some("notices"));
    }
}

#[test]
fn responses_with_collected_rows_are_bounded() {
    let (rows, ready) = (message(b'D', &vec![b'v'; 1 << 20]).repeat(40), message(b'Z', b"I"));
    assert_eq!(too_much(&[&rows, &ready, &rows]), None, "each of its own");
    assert_eq!(too_much(&[&rows, &rows]), Some("rows"));
    let header = [&[b'D'][..], &((16_u32 << 20) + 1).to_be_bytes()].concat();
    assert_eq!(too_much(&[&header]), Some("a message"));
    let (_, end, _) = passed(&[&welcome(), &rows, &rows]);
    end.expect("rows that are taken one by one");
}

/// Whether these bytes are within the limits of a response.
fn follows(lengths: &mut Lengths, bytes: &[u8]) -> bool {
    lengths.follow(bytes).is_ok()
}

#[test]
fn a_response_keeps_the_limit_it_began_with() {
    let (rows, ready) = (message(b'D', &vec![b'v'; 1 << 20]).repeat(70), message(b'Z', b"I"));
    let notice = message(b'N', b"x");
    let mut lengths = Lengths::default();
    let lifted = lengths.limit.lift();
    assert!(follows(&mut lengths, &rows) && follows(&mut lengths, &rows[..1 << 20]));
    drop(lifted);
    assert!(follows(&mut lengths, &rows[1 << 20..]), "what has begun ends in the same way");
    assert!(follows(&mut lengths, &[&ready[..], &notice].concat()));
    let lifted = lengths.limit.lift();
    assert!(follows(&mut lengths, &rows), "a notice begins no answer");
    drop(lifted);
    assert!(follows(&mut lengths, &ready));
    assert!(!follows(&mut lengths, &rows), "the next answer");
}

/// Descriptions of columns and of parameters with these types.
fn descriptions(types: &[u32]) -> [Vec<u8>; 2] {
    let count = u16::try_from(types.len()).expect("few").to_be_bytes();
    let column =
        |oid: &u32| [&b"a column\0"[..], &[0; 6], &oid.to_be_bytes(), &[255; 6], &[0, 1]].concat();
    let columns: Vec<_> = types.iter().map(column).collect();
    let parameters: Vec<_> = types.iter().map(|oid| oid.to_be_bytes()).collect();
    [(b'T', columns.concat()), (b't', parameters.concat())]
        .map(|(tag, rest)| message(tag, &[&count[..], &rest].concat()))
}

#[test]
fn unknown_data_types_are_rejected() {
    for own in descriptions(&[16, 19, 25, 1009, 2249, 3220]) {
        let (seen, end, _) = passed(&[&welcome(), &own, &own]);
        end.expect("PostgreSQL's own");
        assert!(seen.ends_with(&own));
    }
    for foreign in descriptions(&[25, 16384, 25]) {
        for at in 0..foreign.len() {
            let (one, other) = foreign.split_at(at);
            assert_eq!(refusal(&[&welcome(), one, other]), Refused::DataType(16384), "{at}");
        }
        let with_welcome = [welcome(), foreign.clone()].concat();
        assert_eq!(refusal(&[&with_welcome]), Refused::DataType(16384));
        let (seen, ..) = passed(&[&welcome(), &foreign[..10], &foreign[10..]]);
        assert!(seen.len() < welcome().len() + foreign.len(), "it has no end");
    }
}

#[test]
fn an_unreadable_description_is_rejected() {
    for sound in descriptions(&[25, 25]) {
        let short = message(sound[0], &sound[HEADER..sound.len() - 1]);
        let long = message(sound[0], &[&sound[HEADER..], b"x"].concat());
        for wrong in [short, long] {
            let refused = refusal(&[&welcome(), &wrong]);
            assert!(matches!(refused, Refused::OutOfOrder(_)), "{refused:?}: {wrong:?}");
        }
        let endless = [&sound[..1], &(1_u32 << 20).to_be_bytes()].concat();
        assert!(matches!(refusal(&[&welcome(), &endless]), Refused::Frame(_)));
    }
}
