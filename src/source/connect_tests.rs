//! Configurations from connection strings, and refusals by a server that is
//! a few bytes in memory.

use bytes::{BufMut, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

use super::*;

fn info(text: &str) -> ConnInfo {
    let environment = |name: &str| (name == "USER").then(|| "me".to_owned());
    ConnInfo::resolve(Some(text), &environment).expect("sound")
}

fn endpoint(conninfo: &ConnInfo, protection: Protection) -> Endpoint {
    Endpoint { host: conninfo.hosts()[0].clone(), address: Some([10, 0, 0, 1].into()), protection }
}

fn replication(text: &str, protection: Protection) -> ReplicationConfig {
    let conninfo = info(text);
    let endpoint = endpoint(&conninfo, protection);
    replication_config(&conninfo, &endpoint, "slot", "publication", "walpost", "-c datestyle=ISO")
}

fn tls(name: &str, root_file: Option<&str>) -> Protection {
    Protection::Tls { name: name.to_owned(), root_file: root_file.map(PathBuf::from) }
}

#[test]
fn names_reach_the_replication_command_as_quoted_identifiers() {
    let conninfo = info("host=db");
    let endpoint = endpoint(&conninfo, Protection::Plain);
    let config = replication_config(&conninfo, &endpoint, "a\"b", "Mine, it's", "walpost", "");
    assert_eq!(config.slot, "\"a\"\"b\"");
    assert_eq!(config.publication.names(), ["\"Mine, it's\""]);
    assert_eq!(config.options.as_deref(), Some("-c search_path=pg_catalog,pg_temp"));
}

#[test]
fn the_replication_session_goes_where_the_control_connection_went() {
    let config = replication(
        "postgres://u:p@db:7/shop?options=-c%20x%3Dy&application_name=mine",
        tls("db", None),
    );
    assert_eq!((config.host.as_str(), config.port), ("10.0.0.1", 7));
    assert_eq!((config.user.as_str(), config.password.as_str()), ("u", "p"));
    assert_eq!(config.database, "shop");
    assert_eq!(
        config.options.as_deref(),
        Some("-c x=y -c datestyle=ISO -c search_path=pg_catalog,pg_temp")
    );
    assert_eq!(config.application_name.as_deref(), Some("mine"));
    assert_eq!(config.tls.mode, ReplicationSslMode::Require);
    assert_eq!(config.tls.sni_hostname.as_deref(), Some("db"));

    let conninfo = info("host=/run/pg");
    let host = conninfo.hosts()[0].clone();
    let endpoint = Endpoint { host, address: None, protection: Protection::Plain };
    let config = replication_config(&conninfo, &endpoint, "s", "p", "walpost", "");
    assert_eq!(config.unix_socket_path().to_str(), Some("/run/pg/.s.PGSQL.5432"));
    assert_eq!(config.application_name.as_deref(), Some("walpost"));
}

#[test]
fn the_replication_session_is_protected_as_the_control_connection_is() {
    use ReplicationSslMode::{Disable, Require, VerifyCa, VerifyFull};
    let verify_ca = concat!(
        "host=db sslmode=verify-ca sslrootcert=",
        env!("CARGO_MANIFEST_DIR"),
        "/src/source/testdata/other-ca.pem"
    );
    for (text, protection, mode) in [
        ("host=db sslmode=prefer", Protection::Plain, Disable),
        ("host=db sslmode=prefer", tls("db", None), Require),
        ("host=db sslmode=require", tls("db", None), Require),
        (verify_ca, tls("db", Some("/ca.pem")), VerifyCa),
        ("host=db sslmode=verify-full", tls("db", Some("/ca.pem")), VerifyFull),
    ] {
        let verifies = mode.verifies_certificate();
        let config = replication(text, protection);
        assert_eq!(config.tls.mode, mode, "{text}");
        assert_eq!(config.tls.ca_pem_path.is_some(), verifies, "{text}");
    }
}

#[test]
fn the_control_connection_takes_all_that_the_string_says() {
    let conninfo =
        info("host=db hostaddr=10.0.0.9 user=u password=p keepalives_count=9 options=-cx=y");
    let address = Some([10, 0, 0, 9].into());
    let config = control_config(&conninfo, &conninfo.hosts()[0], address, "walpost");
    assert_eq!(config.get_user(), Some("u"));
    assert_eq!(config.get_password(), Some(b"p".as_slice()));
    assert_eq!(config.get_hostaddrs(), [IpAddr::from([10, 0, 0, 9])]);
    assert_eq!(config.get_keepalives_retries(), Some(9));
    assert_eq!(config.get_application_name(), Some("walpost"));
    assert_eq!(config.get_options(), Some("-cx=y -c search_path=pg_catalog,pg_temp"));
}

/// What becomes of a connection whose server answers the first message so.
async fn answered(answer: &[u8], mode: ControlSslMode) -> ConnectError {
    let conninfo = info("host=db user=u");
    let mut config = control_config(&conninfo, &conninfo.hosts()[0], None, "walpost");
    config.ssl_mode(mode);
    let (ours, mut theirs) = duplex(4096);
    let serve = async {
        let mut startup = [0; 8];
        theirs.read_exact(&mut startup).await.expect("a first message");
        theirs.write_all(answer).await.expect("answered");
        theirs.shutdown().await.expect("shut");
        // What is left of the message is read, so that writing it succeeds.
        let _ = theirs.read_to_end(&mut Vec::new()).await;
    };
    let mut connector = MakeRustlsConnect::new(Tls::new(&conninfo).expect("set up").config);
    let connector =
        <MakeRustlsConnect as MakeTlsConnect<tokio::io::DuplexStream>>::make_tls_connect(
            &mut connector,
            "db",
        )
        .expect("cannot fail");
    let attempt = async {
        let error = config.connect_raw(ours, connector).await.err().expect("refused");
        ConnectError::of_control("db:5432", error)
    };
    tokio::join!(serve, attempt).1
}

fn error_response(sqlstate: &str, message: &str) -> BytesMut {
    let fields = format!("SFATAL\0VFATAL\0C{sqlstate}\0M{message}\0\0");
    let mut response = BytesMut::new();
    response.put_u8(b'E');
    response.put_i32(i32::try_from(fields.len() + 4).expect("short"));
    response.put_slice(fields.as_bytes());
    response
}

#[tokio::test]
async fn a_servers_refusal_is_classed_by_its_sqlstate() {
    let refused = |sqlstate| async move {
        answered(&error_response(sqlstate, "no"), ControlSslMode::Disable).await
    };
    assert!(matches!(refused("57P03").await, ConnectError::Transient { .. }));
    let error = refused("28P01").await;
    assert!(matches!(error, ConnectError::Configuration { .. }), "{error}");
    assert!(matches!(refused("XX000").await, ConnectError::Server { .. }));
}

#[tokio::test]
async fn a_server_without_tls_is_told_from_one_that_hangs_up() {
    let error = answered(b"N", ControlSslMode::Require).await;
    assert!(matches!(error, ConnectError::Tls { .. }), "{error}");
    assert!(error.to_string().contains("turn ssl on"), "{error}");
    let error = answered(b"S", ControlSslMode::Require).await;
    assert!(error.is_worth_another_try(), "{error:?}");
    let error = answered(b"", ControlSslMode::Disable).await;
    assert!(error.is_worth_another_try(), "{error:?}");
}

#[tokio::test]
async fn a_missing_password_and_an_unknown_method_are_for_the_operator() {
    let authentication = |kind: u8| [b'R', 0, 0, 0, 8, 0, 0, 0, kind];
    let error = answered(&authentication(3), ControlSslMode::Disable).await;
    assert!(error.to_string().contains("PGPASSWORD"), "{error}");
    let error = answered(&authentication(2), ControlSslMode::Disable).await;
    assert!(error.to_string().contains("pg_hba.conf"), "{error}");
}

#[tokio::test]
async fn hosts_that_cannot_be_reached_are_all_named() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().display();
    let conninfo = info(&format!("host={path},{path} port=1,2 sslmode=disable"));
    let error = control(&conninfo, "walpost").await.err().expect("nobody there");
    assert!(error.is_worth_another_try());
    let text = error.to_string();
    assert!(text.contains(&format!("{path}:1")) && text.contains(&format!("{path}:2")), "{text}");
}
