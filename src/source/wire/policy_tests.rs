//! Session starts that a server may attempt.

use bytes::BufMut as _;

use super::Binding::{EndPoint, Unencrypted, Unknown};
use super::*;

fn policy(require_auth: &str, channel_binding: ChannelBinding) -> Policy {
    let text = format!("require_auth='{require_auth}'");
    let environment = |name: &str| (name == "USER").then(|| "me".to_owned());
    let conninfo = crate::conninfo::ConnInfo::resolve(Some(&text), &environment).expect("sound");
    Policy { require_auth: conninfo.require_auth, channel_binding }
}

fn request(code: u32, data: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    body.put_u32(code);
    body.put_slice(data);
    body
}

const SCRAM: &[u8] = b"SCRAM-SHA-256\0\0";
const BOTH: &[u8] = b"SCRAM-SHA-256-PLUS\0SCRAM-SHA-256\0\0";

/// The result for a server that sends these authentication requests.
fn judged(policy: Policy, binding: Binding, requests: &[(u32, &[u8])]) -> Result<Method, Refused> {
    let mut checker = Checker::new(policy, binding);
    for (code, data) in requests {
        checker.check(b'R', &request(*code, data))?;
    }
    checker.check(b'Z', b"I")?;
    assert!(checker.is_ready());
    Ok(checker.method())
}

#[test]
fn the_method_is_the_one_the_server_requested() {
    let any = policy("", ChannelBinding::Prefer);
    let scram: &[(u32, &[u8])] = &[(10, BOTH), (11, b"r=x,s=y,i=4096"), (12, b"v=z"), (0, b"")];
    assert_eq!(judged(any, Unencrypted, &[(0, b"")]), Ok(Method::None));
    assert_eq!(judged(any, Unencrypted, &[(3, b""), (0, b"")]), Ok(Method::Password));
    assert_eq!(judged(any, Unencrypted, &[(5, b"salt"), (0, b"")]), Ok(Method::Md5));
    assert_eq!(judged(any, EndPoint, scram), Ok(Method::ScramPlus));
    assert_eq!(judged(any, Unknown, scram), Ok(Method::Scram));
    let unbound = policy("", ChannelBinding::Disable);
    assert_eq!(judged(unbound, EndPoint, scram), Ok(Method::Scram));
}

#[test]
fn only_required_methods_are_accepted() {
    let scram = policy("scram-sha-256", ChannelBinding::Prefer);
    for (code, asked) in [
        (3, AuthMethod::Password),
        (5, AuthMethod::Md5),
        (7, AuthMethod::Gss),
        (9, AuthMethod::Sspi),
    ] {
        let refused = judged(scram, EndPoint, &[(code, b"salt")]);
        assert_eq!(refused, Err(Refused::Method { asked }));
    }
    assert_eq!(judged(scram, EndPoint, &[(0, b"")]), Err(Refused::Unasked));
    let no_clear = policy("!password,!md5", ChannelBinding::Prefer);
    assert_eq!(judged(no_clear, EndPoint, &[(0, b"")]), Ok(Method::None));
    assert!(judged(no_clear, EndPoint, &[(3, b""), (0, b"")]).is_err());
}

#[test]
fn required_channel_binding_is_enforced() {
    let bound = policy("", ChannelBinding::Require);
    let scram: &[(u32, &[u8])] = &[(10, SCRAM), (12, b""), (0, b"")];
    let both: &[(u32, &[u8])] = &[(10, BOTH), (12, b""), (0, b"")];
    assert_eq!(judged(bound, EndPoint, both), Ok(Method::ScramPlus));
    for (binding, requests) in [
        (EndPoint, scram),
        (Unknown, both),
        (Unencrypted, scram),
        (EndPoint, &[(0, b"".as_slice())]),
        (EndPoint, &[(3, b"")]),
    ] {
        let refused = judged(bound, binding, requests);
        assert!(matches!(refused, Err(Refused::Unbound(_))), "{refused:?}");
    }
}

#[test]
fn a_server_that_skips_its_scram_proof_is_rejected() {
    let any = policy("", ChannelBinding::Prefer);
    for requests in
        [[(10, SCRAM), (0, b"")].as_slice(), &[(10, SCRAM), (3, b"")], &[(3, b""), (3, b"")]]
    {
        let refused = judged(any, Unencrypted, requests);
        assert!(matches!(refused, Err(Refused::OutOfOrder(_))), "{refused:?}");
    }
    let mut checker = Checker::new(any, Unencrypted);
    assert!(matches!(checker.check(b'R', b"\0\0"), Err(Refused::OutOfOrder(_))));
    for (size, enough) in [(10_000, 200), (0, 10_000)] {
        let mut checker = Checker::new(any, Unencrypted);
        let flood = (0..enough).try_for_each(|_| checker.check(b'N', &vec![0; size]));
        assert_eq!(flood, Err(Refused::Flood), "messages of {size} bytes");
    }
}

#[test]
fn too_many_scram_iterations_are_rejected() {
    for (count, is_refused) in [
        ("4096", false),
        ("100000", false),
        ("100001", true),
        ("4294967295", true),
        ("99999999999999999999999999", true),
        ("-1", false),
        ("", false),
    ] {
        let refused = iterations(format!("r=abc,s=def,i={count}").as_bytes());
        assert_eq!(refused.is_err(), is_refused, "{count}");
    }
    assert_eq!(iterations(b"\xff,i=\xff,i=100001"), Err(Refused::Iterations("100001".into())));
}

/// 26 ms in an optimised build on a processor with SHA-256 instructions; the margin is for busy
/// machines.
#[test]
fn the_maximum_scram_iterations_are_fast() {
    use postgres_protocol::authentication::sasl::{ChannelBinding, ScramSha256};

    let mut scram = ScramSha256::new(b"secret", ChannelBinding::unsupported());
    let first = String::from_utf8(scram.message().to_vec()).expect("ASCII");
    let (_, nonce) = first.split_once("r=").expect("a nonce");
    let answer = |count: u32| format!("r={nonce}more,s=c2FsdA==,i={count}");
    assert_eq!(iterations(answer(SCRAM_ITERATIONS).as_bytes()), Ok(()));
    let since = std::time::Instant::now();
    scram.update(answer(SCRAM_ITERATIONS).as_bytes()).expect("as many are computed");
    let took = since.elapsed();
    assert!(took.as_secs() < 5, "{took:?}");
}
