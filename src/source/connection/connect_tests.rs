//! Client configurations from connection strings, and rejections by an in-memory server.

use bytes::{BufMut, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

use super::*;

fn info(text: &str) -> ConnInfo {
    let environment = |name: &str| (name == "USER").then(|| "me".to_owned());
    ConnInfo::resolve(Some(text), &environment).expect("sound")
}

fn endpoint(conninfo: &ConnInfo) -> Endpoint {
    let host = conninfo.hosts()[0].clone();
    Endpoint { host, address: Some([10, 0, 0, 1].into()), tls: None }
}

#[test]
fn the_replication_session_logs_in_like_the_control_connection() {
    let conninfo =
        info("postgres://u:p@db:7/shop?options=-c%20x%3Dy&application_name=mine&require_auth=md5");
    let login = replication_login(&conninfo, &endpoint(&conninfo), "walpost", "-c datestyle=ISO");
    assert_eq!((login.user, login.dbname, login.application_name), ("u", "shop", "mine"));
    assert_eq!(login.password.map(ExposeSecret::expose_secret), Some("p"));
    assert_eq!(login.options.as_str(), "-c x=y -c datestyle=ISO -c search_path=pg_catalog,pg_temp");
    assert_eq!(login.policy.require_auth, conninfo.require_auth);

    let conninfo = info("host=/run/pg");
    let login = replication_login(&conninfo, &endpoint(&conninfo), "walpost", "");
    assert_eq!(login.application_name, "walpost");
    assert_eq!(login.options, "-c search_path=pg_catalog,pg_temp");
}

#[test]
fn the_control_connection_uses_all_parameters_of_the_connection_string() {
    let conninfo = info("host=db user=u password=p options=-cx=y channel_binding=require");
    let config = control_config(&conninfo, &conninfo.hosts()[0], "walpost");
    assert_eq!(config.get_user(), Some("u"));
    assert_eq!(config.get_password(), Some(b"p".as_slice()));
    assert_eq!(config.get_application_name(), Some("walpost"));
    assert_eq!(config.get_options(), Some("-cx=y -c search_path=pg_catalog,pg_temp"));
    assert_eq!(config.get_channel_binding(), Binding::Require);
}

/// The error of a connection whose server sends this response to the first message.
async fn answered(answer: &[u8], with_tls: bool) -> ConnectError {
    let conninfo = info("host=db user=u");
    let config = control_config(&conninfo, &conninfo.hosts()[0], "walpost");
    let (ours, mut theirs) = duplex(4096);
    let serve = async {
        let mut startup = [0; 8];
        theirs.read_exact(&mut startup).await.expect("a first message");
        theirs.write_all(answer).await.expect("answered");
        theirs.shutdown().await.expect("shut");
        // Reads the rest of the message, so that writing it succeeds.
        let _ = theirs.read_to_end(&mut Vec::new()).await;
    };
    let tls = Tls::new(&conninfo).expect("set up");
    let attempt = async {
        let line = wire::secure(ours, with_tls.then(|| (tls.config(), "db"))).await;
        let line = match line {
            Ok(line) => line,
            Err(error) => return ConnectError::of_wire("db:5432", &error),
        };
        let error = begin(&config, Guard::new(line, policy(&conninfo))).await.err();
        ConnectError::of_control("db:5432", error.expect("refused"))
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
async fn a_servers_rejection_is_classified_by_its_sqlstate() {
    let refused = |sqlstate| async move { answered(&error_response(sqlstate, "no"), false).await };
    assert!(matches!(refused("57P03").await, ConnectError::Transient { .. }));
    let error = refused("28P01").await;
    assert!(matches!(error, ConnectError::Configuration { .. }), "{error}");
    assert!(matches!(refused("XX000").await, ConnectError::Server { .. }));
}

#[tokio::test]
async fn a_server_without_tls_is_distinguished_from_one_that_disconnects() {
    let error = answered(b"N", true).await;
    assert!(matches!(error, ConnectError::Tls { .. }), "{error}");
    assert!(error.to_string().contains("turn ssl on"), "{error}");
    let error = answered(b"S", true).await;
    assert!(error.is_retryable(), "{error:?}");
    let error = answered(b"", false).await;
    assert!(error.is_retryable(), "{error:?}");
}

#[tokio::test]
async fn a_missing_password_and_an_unknown_method_need_an_operator() {
    let authentication = |kind: u8| [b'R', 0, 0, 0, 8, 0, 0, 0, kind];
    let error = answered(&authentication(3), false).await;
    assert!(error.to_string().contains("PGPASSWORD"), "{error}");
    let error = answered(&authentication(2), false).await;
    assert!(error.to_string().contains("pg_hba.conf"), "{error}");
}

#[tokio::test]
async fn all_unreachable_hosts_are_named() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().display();
    let conninfo = info(&format!("host={path},{path} port=1,2 sslmode=disable"));
    let error = control(&conninfo, "walpost").await.err().expect("nothing listens there");
    assert!(error.is_retryable());
    let text = error.to_string();
    assert!(text.contains(&format!("{path}:1")) && text.contains(&format!("{path}:2")), "{text}");
}
