//! Signatures of Standard Webhooks: HMAC-SHA256 over id, time and body.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

/// The prefix of a secret.
const PREFIX: &str = "whsec_";

/// The shortest and the longest secret, in bytes.
const LENGTHS: std::ops::RangeInclusive<usize> = 24..=64;

/// The secrets that sign a request: none, one, or two while one takes over from the other.
#[derive(Clone, Default)]
pub(crate) struct Signers(Vec<Hmac<Sha256>>);

impl std::fmt::Debug for Signers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Signers({})", self.0.len())
    }
}

impl Signers {
    /// Parses one secret, or several that are separated by spaces: `whsec_` and 24 to 64 bytes in
    /// base64. The error does not repeat it.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let signers = text.split_whitespace().map(|secret| {
            let encoded = secret.strip_prefix(PREFIX).unwrap_or(secret);
            let key = STANDARD.decode(encoded).ok().filter(|key| LENGTHS.contains(&key.len()));
            let key = key.ok_or(
                "a secret is not `whsec_` and 24 to 64 bytes in base64: make one by \
                 `echo whsec_$(openssl rand -base64 32)`",
            )?;
            Hmac::new_from_slice(&key).map_err(|error| error.to_string())
        });
        let signers: Vec<_> = signers.collect::<Result<_, String>>()?;
        if signers.is_empty() { Err("it is empty".to_owned()) } else { Ok(Self(signers)) }
    }

    /// Whether requests are not signed.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The header `webhook-signature` of a request that is sent at `seconds` after 1970; `None`:
    /// requests are not signed.
    pub(super) fn sign(&self, id: &[u8], seconds: &str, body: &[u8]) -> Option<String> {
        let signatures = self.0.iter().map(|signer| {
            let mut signer = signer.clone();
            for part in [id, b".", seconds.as_bytes(), b".", body] {
                signer.update(part);
            }
            format!("v1,{}", STANDARD.encode(signer.finalize().into_bytes()))
        });
        let signatures: Vec<_> = signatures.collect();
        (!signatures.is_empty()).then(|| signatures.join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The specification's example.
    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    const ID: &[u8] = b"msg_p5jXN8AQM9LWM0D4loKWxJek";
    const SIGNATURE: &str = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";

    #[test]
    fn a_signature_is_that_of_the_specification() {
        let sign = |secrets: &str| {
            let signers = Signers::parse(secrets).expect("valid");
            signers.sign(ID, "1614265330", br#"{"test": 2432232314}"#).expect("signed")
        };
        assert_eq!(sign(SECRET), SIGNATURE);
        let other = "whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
        let both = sign(&format!("{other} {SECRET}\n"));
        assert_eq!(both.split(' ').count(), 2);
        assert!(both.ends_with(SIGNATURE) && both.starts_with("v1,"), "{both}");
        assert_eq!(Signers::default().sign(ID, "1", b""), None);
    }

    #[test]
    fn an_invalid_secret_is_an_error_that_does_not_repeat_it() {
        for text in ["", " ", "s3cret", "whsec_s3cret", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2Laaa s3c"]
        {
            let error = Signers::parse(text).expect_err(text);
            assert!(!error.contains("s3c"), "{error}");
        }
    }
}
