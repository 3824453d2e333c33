//! The configuration of the sink, and where it is read again.

use std::path::PathBuf;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use secrecy::{ExposeSecret as _, SecretString};

use super::signature::Signers;
use super::url::HttpUrl;
use crate::sink::Reread;

/// Instead of an answer that repeats what may be secret.
const WITHHELD: &str = "(its text is not shown: it repeats what may be secret in the request)";

/// The shortest word of `http.authorization`, and the shortest run of letters and digits, that are
/// looked for in an answer; and the shortest run without a digit of `http.url`.
const SHORTEST: usize = 4;
const RUN: usize = 8;
const LONG_RUN: usize = 16;

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
}

impl HttpConfig {
    /// What an endpoint says, unless it repeats what may be secret in walpost's own request: some show
    /// its path, or its headers.
    pub(super) fn shown<'a>(&self, said: &'a str) -> &'a str {
        let lowercase = said.to_lowercase();
        if self.secrets().iter().any(|secret| lowercase.contains(secret)) {
            return WITHHELD;
        }
        said
    }

    /// What an answer must not have to be shown, in lower case.
    fn secrets(&self) -> Vec<String> {
        let mut secrets = Vec::new();
        let value = self.authorization.as_ref().map_or("", |secret| secret.expose_secret());
        // What stands behind the scheme; a login is encoded.
        let (scheme, rest) = value.split_once(char::is_whitespace).unwrap_or(("", value));
        let login =
            BASE64.decode(rest.trim()).ok().filter(|_| scheme.eq_ignore_ascii_case("basic"));
        let login = login.map(|login| String::from_utf8_lossy(&login).into_owned());
        let password = login.as_deref().and_then(|login| Some(login.split_once(':')?.1));
        for text in [Some(rest), password].into_iter().flatten() {
            let words = text.split_whitespace().filter(|word| word.len() >= SHORTEST);
            secrets.extend(words.map(str::to_lowercase));
            secrets.extend(runs(text));
        }
        // Words of a URL's path are no secrets, as `webhooks`: tokens have digits, or are longer.
        let is_token =
            |run: &String| run.len() >= LONG_RUN || run.bytes().any(|byte| byte.is_ascii_digit());
        secrets.extend(runs(self.url.path_and_query()).filter(is_token));
        secrets
    }
}

/// Letters and digits that follow each other, in lower case: however an endpoint encodes a text that it
/// repeats, they remain.
fn runs(text: &str) -> impl Iterator<Item = String> {
    let runs = text.split(|sign: char| !sign.is_ascii_alphanumeric());
    runs.filter(|run| run.len() >= RUN).map(str::to_lowercase)
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
            timeout: Duration::from_secs(1),
        };
        let bearer = config(
            "https://h/hooks/{topic}/T0K3NT0K3N?key=QU3RYS3CRET",
            "Bearer a/S3CRETs3cret+b==",
        );
        let basic = config("https://h/webhooks", "Basic dXNlcjpzM2MtcjN0");
        let key = config("https://h", "ApiKey id=7 key=T0PS3CRET v=1");
        for (config, said, is_shown) in [
            (&bearer, "no such topic", true),
            (&bearer, "Bearer is expected at /hooks/", true),
            (&bearer, "you sent a/S3CRETs3cret+b==", false),
            (&bearer, r#"{"sent":"a\/S3CRETs3cret+b=="}"#, false),
            (&bearer, "a%2FS3CRETs3cret%2Bb%3D%3D", false),
            (&bearer, "A&#x2F;S3CRETS3CRET", false),
            (&bearer, "Cannot POST /hooks/orders/T0K3NT0K3N", false),
            (&bearer, "?key=qu3rys3cret", false),
            (&basic, "webhooks are not accepted", true),
            (&basic, "no Basic login, user", true),
            (&basic, "dXNlcjpzM2MtcjN0", false),
            (&basic, "wrong password: s3c-r3t", false),
            (&key, "what is ApiKey?", true),
            (&key, "v=1 key=T0PS3CRET", false),
        ] {
            let shown = if is_shown { said } else { WITHHELD };
            assert_eq!(config.shown(said), shown, "{said}");
        }
    }
}
