//! The configuration of the sink, and where it is read again.

use std::path::PathBuf;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD as BASE64;
use secrecy::{ExposeSecret as _, SecretString};

use super::secrets;
use super::signature::Signers;
use super::url::HttpUrl;
use crate::sink::Reread;

/// Instead of an answer that repeats what may be secret.
const WITHHELD: &str = "(its text is not shown: it repeats what may be secret in the request)";

/// What has so many bytes is no plain word.
const LONG_WORD: usize = 16;

/// The endpoint, and what it is sent.
#[derive(Debug, Clone)]
pub struct HttpConfig {
    /// The endpoint.
    pub url: HttpUrl,
    /// The certificates of the authorities that sign the server's; `None`: there are none.
    pub roots: Option<PathBuf>,
    /// What signs the requests.
    pub signers: Signers,
    /// The value of the header `authorization`.
    pub authorization: Option<SecretString>,
    /// How many requests may be in flight.
    pub lanes: u16,
    /// How long an answer may take.
    pub timeout: Duration,
    /// The topic of dead letters.
    pub dead_letters: String,
}

impl HttpConfig {
    /// The beginning of what an endpoint says, unless it repeats what may be secret in walpost's own
    /// request: some show its path, or its headers.
    pub(super) fn shown(&self, said: &str, signs_max: usize) -> String {
        let visible: String = said.chars().take(signs_max).collect();
        if secrets::are_repeated(&self.authorization_secrets(), &visible, secrets::SHORT)
            || secrets::are_repeated(&self.url_secrets(), &visible, secrets::LONG)
        {
            return WITHHELD.to_owned();
        }
        crate::excerpt::at_most(signs_max, said)
    }

    /// What stands behind the scheme, if there is one; and the password of an encoded login, or its name
    /// if that is no plain word, or alone.
    fn authorization_secrets(&self) -> Vec<String> {
        let value = self.authorization.as_ref().map_or("", |secret| secret.expose_secret()).trim();
        let is_scheme =
            |word: &str| word.bytes().all(|byte| byte.is_ascii_alphabetic() || byte == b'-');
        let (scheme, rest) = match value.split_once(char::is_whitespace) {
            Some((word, rest)) if is_scheme(word) => (word, rest),
            _ => ("", value),
        };
        let login = decoded(rest.trim()).filter(|_| scheme.eq_ignore_ascii_case("basic"));
        let parts = match login.as_deref().map(|login| login.split_once(':').ok_or(login)) {
            None => Vec::new(),
            Some(Err(login)) => vec![login],
            Some(Ok((name, password))) if password.is_empty() || is_token(name) => {
                vec![name, password]
            }
            Some(Ok((_, password))) => vec![password],
        };
        rest.split_whitespace().chain(parts).map(str::to_owned).collect()
    }

    /// The parts of path and query that are no plain words, as `webhooks` is one.
    fn url_secrets(&self) -> Vec<String> {
        let text = self.url.path_and_query().replace("{topic}", "/");
        let parts = text.split(['/', '?', '&', '=']);
        parts.filter(|part| is_token(part)).map(str::to_owned).collect()
    }
}

/// Base64 of either alphabet, with or without padding.
fn decoded(text: &str) -> Option<String> {
    let text = text.trim_end_matches('=').replace('-', "+").replace('_', "/");
    let bytes = BASE64.decode(text).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// Whether it is no plain word, but may be a key.
fn is_token(text: &str) -> bool {
    let has = |is: fn(&u8) -> bool| text.as_bytes().iter().any(is);
    has(u8::is_ascii_digit)
        || has(u8::is_ascii_uppercase) && has(u8::is_ascii_lowercase)
        || text.len() >= LONG_WORD
}

/// Where the endpoint is read again.
pub type HttpSource = Reread<HttpConfig>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_that_repeat_secrets_are_not_shown() {
        let config = |url: &str, authorization: &str| HttpConfig {
            url: HttpUrl::parse(url).expect("a URL"),
            roots: None,
            signers: Signers::default(),
            authorization: Some(authorization.to_owned().into()),
            lanes: 1,
            dead_letters: String::new(),
            timeout: Duration::from_secs(1),
        };
        let bearer = config(
            "https://h/hooks/{topic}/T0K3NT0K3N?key=QU3RYS3CRET",
            "Bearer a/S3CRETs3cret+b==",
        );
        let basic = config("https://h/webhooks", "Basic dXNlcjpwQDVzL3crMHJk");
        let beside = config("https://h/hooks/T0K3N7-{topic}", "Bearer none");
        let named = config("https://h", "Basic c2tfbGl2ZV9BYmNkRWY6"); // sk_live_AbcdEf, no password
        let unpadded = config("https://h", "Basic dXNlcjpodW50ZXIyc2VjcmU3"); // user:hunter2secre7
        let key = config("https://h", "ApiKey id=7 key=T0PS3CRET v=1");
        let bare = config("https://h/aB3_xY9-kL2_mN8", "abcd1234efgh secretpart2");
        let long =
            config("https://h/hooks/qwertyuiopasdfghjkl", "Basic dTrQv9Cw0YDQvtC70Ywt0LrQu9GO0Yc=");
        for (config, said, is_shown) in [
            (&bearer, "no such topic", true),
            (&bearer, "Bearer is expected at /hooks/", true),
            (&bearer, "you sent a/S3CRETs3cret+b==", false),
            (&named, "no customer sk_live_AbcdEf", false),
            (&unpadded, "the password hunter2secre7 is wrong", false),
            (&bearer, r#"{"sent":"a\/S3CRETs3cret+b=="}"#, false),
            (&bearer, "a%2FS3CRETs3cret%2Bb%3D%3D", false),
            (&bearer, "A&#x2F;S3CRETS3CRET", false),
            (&bearer, "it begins with a/S3CRE...", false),
            (&bearer, "Cannot POST /hooks/orders/T0K3NT0K3N", false),
            (&bearer, "?key=qu3rys3cret", false),
            (&bearer, "T%30%4b3NT0K3N", false),
            (&beside, "Cannot POST /hooks/T0K3N7-outbox.event.order", false),
            (&beside, "Cannot POST /hooks/outbox.event.order", true),
            (&basic, "webhooks are not accepted", true),
            (&basic, "no Basic login, user", true),
            (&basic, "dXNlcjpwQDVzL3crMHJk", false),
            (&basic, "wrong password: p@5s/w+0rd", false),
            (&basic, "wrong password: p%405s%2Fw%2B0rd", false),
            (&basic, "wrong password: p&#64;5s&#x2F;w+0rd", false),
            (&basic, r"wrong password: p@5s\/w+0rd", false),
            (&basic, r"wrong password: p\u00405s\u002fw+0rd", false),
            (&key, "what is ApiKey?", true),
            (&key, "v=1 key=T0PS3CRET", false),
            (&bare, "who is abcd1234efgh?", false),
            (&bare, "who is s e c r e t p a r t 2?", false),
            (&bare, "/aB3_xY9-kL2_mN8 is not there", false),
            (&long, "no qwertyuiopasdfg", false),
            (&long, "пароль-ключ", false),
        ] {
            let shown = if is_shown { said } else { WITHHELD };
            assert_eq!(config.shown(said, 200), shown, "{said}");
        }
    }
}
