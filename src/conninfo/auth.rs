//! The required authentication: `require_auth` and `channel_binding`.
//!
//! <https://www.postgresql.org/docs/current/libpq-connect.html#LIBPQ-CONNECT-REQUIRE-AUTH>

use std::fmt;

/// An authentication method, as `require_auth` names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AuthMethod {
    /// The password in clear text.
    Password,
    /// An MD5 hash of the password.
    Md5,
    /// Kerberos, by GSSAPI.
    Gss,
    /// Windows' SSPI.
    Sspi,
    /// SCRAM-SHA-256, with or without channel binding.
    ScramSha256,
    /// A bearer token.
    Oauth,
    /// The server requests no authentication.
    None,
}

impl AuthMethod {
    const ALL: [(&'static str, Self); 7] = [
        ("password", Self::Password),
        ("md5", Self::Md5),
        ("gss", Self::Gss),
        ("sspi", Self::Sspi),
        ("scram-sha-256", Self::ScramSha256),
        ("oauth", Self::Oauth),
        ("none", Self::None),
    ];
}

impl fmt::Display for AuthMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, _) = Self::ALL[*self as usize];
        f.write_str(name)
    }
}

/// The methods that the server may request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequireAuth {
    /// One bit per method.
    allowed: u8,
}

impl Default for RequireAuth {
    /// Any method.
    fn default() -> Self {
        Self { allowed: u8::MAX }
    }
}

impl RequireAuth {
    /// The valid values of [`Self::parse`], for errors.
    pub(super) const EXPECTED: &'static str = "a list of password, md5, gss, sspi, scram-sha-256, \
         oauth and none, each once, and either all or none of them with a ! before it";

    /// Parses a list such as `scram-sha-256,none` or `!password,!md5`.
    pub(super) fn parse(list: &str) -> Option<Self> {
        let (mut named, mut negated) = (0_u8, None);
        for item in list.split(',').map(str::trim) {
            let (name, is_negated) =
                item.strip_prefix('!').map_or((item, false), |name| (name, true));
            let (_, method) = AuthMethod::ALL.iter().find(|(known, _)| *known == name)?;
            let bit = 1 << *method as u8;
            if named & bit != 0 || negated.is_some_and(|negated| negated != is_negated) {
                return None;
            }
            named |= bit;
            negated = Some(is_negated);
        }
        let allowed = if negated == Some(true) { !named } else { named };
        Some(Self { allowed })
    }

    /// Whether the server may request that method.
    pub fn allows(self, method: AuthMethod) -> bool {
        self.allowed & 1 << method as u8 != 0
    }
}

/// Whether SCRAM uses channel binding
/// (<https://www.postgresql.org/docs/current/libpq-connect.html#LIBPQ-CONNECT-CHANNEL-BINDING>).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChannelBinding {
    /// Never.
    Disable,
    /// If both sides support it.
    Prefer,
    /// Always: otherwise the session is not opened.
    Require,
}

impl ChannelBinding {
    pub(super) const ALL: [(&'static str, Self); 3] =
        [("disable", Self::Disable), ("prefer", Self::Prefer), ("require", Self::Require)];
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed(list: &str) -> Option<Vec<String>> {
        let parsed = RequireAuth::parse(list)?;
        let all = AuthMethod::ALL.iter().filter(|(_, method)| parsed.allows(*method));
        Some(all.map(|(name, _)| (*name).to_owned()).collect())
    }

    #[test]
    fn each_method_has_its_own_name() {
        for (name, method) in AuthMethod::ALL {
            assert_eq!(method.to_string(), name);
        }
    }

    #[test]
    fn a_list_allows_named_or_not_negated_methods() {
        let list = |text| allowed(text).expect("a list").join(" ");
        assert_eq!(list("scram-sha-256"), "scram-sha-256");
        assert_eq!(list("none, scram-sha-256"), "scram-sha-256 none");
        assert_eq!(list("!password,!md5"), "gss sspi scram-sha-256 oauth none");
        assert_eq!(list("!none"), "password md5 gss sspi scram-sha-256 oauth");
        for wrong in ["scram", "md5,md5", "!md5,password", "md5,", "!", ",", "SCRAM-SHA-256"] {
            assert_eq!(allowed(wrong), None, "{wrong}");
        }
    }
}
