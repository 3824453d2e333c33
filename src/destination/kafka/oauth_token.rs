//! Reads SASL/OAUTHBEARER tokens from a file that another program refreshes: a projected service
//! account token of Kubernetes, or the output of an agent.
//!
//! librdkafka requests a token at the start and after four fifths of the last one's lifetime. It
//! passes `sasl.oauthbearer.config`, whose format the application defines: here `file=PATH`. The
//! file has a JSON Web Token (<https://www.rfc-editor.org/rfc/rfc7519>). The broker verifies the
//! signature. No error shows any part of the token.

use std::error::Error;
use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rdkafka::client::OAuthToken;
use rdkafka::config::ClientConfig;
use serde::Deserialize;

/// The property whose format is described above.
pub(crate) const PROPERTY: &str = "sasl.oauthbearer.config";

/// The principal of a token without a subject: only librdkafka's own log lines show it.
const NOBODY: &str = "walpost";

/// The claims of a token that walpost reads.
#[derive(Deserialize)]
struct Claims {
    /// Seconds since 1970; a fraction is allowed.
    exp: f64,
    sub: Option<String>,
}

/// The file that the property names, if it names one.
pub(crate) fn file(config: &str) -> Option<&str> {
    config.trim().strip_prefix("file=").filter(|path| !path.is_empty())
}

/// Whether a client with this configuration presents a token from a file.
pub(crate) fn is_from_file(config: &ClientConfig) -> bool {
    config.get(PROPERTY).is_some_and(|value| file(value).is_some())
}

/// The token for a client with that `sasl.oauthbearer.config`.
pub(crate) fn token(config: Option<&str>) -> Result<OAuthToken, Box<dyn Error>> {
    let path = config.and_then(file).ok_or("set sasl.oauthbearer.config to file=PATH")?;
    let text = fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))?;
    Ok(of_text(&text, SystemTime::now()).map_err(|reason| format!("{path}: {reason}"))?)
}

fn of_text(text: &str, now: SystemTime) -> Result<OAuthToken, String> {
    let text = text.trim();
    let claims = text.split('.').nth(1).and_then(|part| {
        let json = URL_SAFE_NO_PAD.decode(part.trim_end_matches('=')).ok()?;
        serde_json::from_slice::<Claims>(&json).ok()
    });
    let claims = claims.ok_or("it holds no JSON Web Token with an `exp`")?;
    let now = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    if claims.exp <= now {
        return Err("its token has expired: see to what renews it".to_owned());
    }
    // The milliseconds of any plausible date fit; larger values are capped.
    #[allow(clippy::cast_possible_truncation)]
    let lifetime_ms = (claims.exp * 1000.0) as i64;
    let principal_name = claims.sub.filter(|name| !name.contains('\0'));
    Ok(OAuthToken {
        token: text.to_owned(),
        principal_name: principal_name.unwrap_or_else(|| NOBODY.to_owned()),
        lifetime_ms,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn jwt(claims: &str) -> String {
        let part = |text| URL_SAFE_NO_PAD.encode(text);
        format!("{}.{}.c2lnbmVk", part(r#"{"alg":"RS256"}"#), part(claims))
    }

    fn read(text: &str) -> Result<OAuthToken, String> {
        of_text(text, UNIX_EPOCH + Duration::from_secs(1000))
    }

    #[test]
    fn token_has_its_expiry_and_subject() {
        let text = jwt(r#"{"sub":"system:serviceaccount:a:b","exp":1001,"aud":["kafka"]}"#);
        let token = read(&format!("{text}\n")).expect("sound");
        assert_eq!((token.token.as_str(), token.lifetime_ms), (text.as_str(), 1_001_000));
        assert_eq!(token.principal_name, "system:serviceaccount:a:b");
        let token = read(&jwt(r#"{"exp":1e9}"#)).expect("sound");
        assert_eq!((token.principal_name.as_str(), token.lifetime_ms), (NOBODY, 1_000_000_000_000));
    }

    #[test]
    fn invalid_or_expired_token_is_reported_without_showing_it() {
        for (text, part) in [
            (String::new(), "no JSON Web Token"),
            ("s3cret".to_owned(), "no JSON Web Token"),
            ("s3cret.s3cret.s3cret".to_owned(), "no JSON Web Token"),
            (jwt("{}"), "no JSON Web Token"),
            (jwt(r#"{"exp":"s3cret"}"#), "no JSON Web Token"),
            (jwt(r#"{"exp":1000}"#), "has expired"),
        ] {
            let reason = read(&text).err().expect("refused");
            assert!(reason.contains(part), "{text}: {reason}");
            assert!(!reason.contains("s3cret"), "{reason}");
        }
    }

    #[test]
    fn only_file_is_accepted() {
        assert_eq!(file("file=/a=b"), Some("/a=b"));
        for other in ["", "file=", "principal=walpost", "/a"] {
            assert_eq!(file(other), None, "{other}");
        }
        assert!(token(Some("file=/nowhere/at/all")).is_err());
    }
}
