//! What the authentication must be: `require_auth` and `channel_binding`.
//!
//! <https://www.postgresql.org/docs/current/libpq-connect.html#LIBPQ-CONNECT-REQUIRE-AUTH>

use std::fmt;

/// A way to authenticate, as `require_auth` names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AuthMethod {
    /// The password in clear.
    Password,
    /// MD5 of the password.
    Md5,
    /// Kerberos.
    Gss,
    /// Windows' form of it.
    Sspi,
    /// SCRAM-SHA-256, with channel binding or without.
    ScramSha256,
    /// A bearer token.
    Oauth,
    /// The server asks for nothing.
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

/// The methods that the server may ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequireAuth {
    /// A bit for each method.
    allowed: u8,
}

impl Default for RequireAuth {
    /// Any.
    fn default() -> Self {
        Self { allowed: u8::MAX }
    }
}

impl RequireAuth {
    /// What [`Self::parse`] expects, for an error.
    pub(super) const EXPECTED: &'static str = "a list of password, md5, gss, sspi, scram-sha-256, \
         oauth and none, each once, and either all or none of them with a ! before it";

    /// Reads a list such as `scram-sha-256,none` or `!password,!md5`.
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

    /// Whether the server may ask for that.
    pub fn allows(self, method: AuthMethod) -> bool {
        self.allowed & 1 << method as u8 != 0
    }
}

/// Whether SCRAM is bound to the TLS channel
/// (<https://www.postgresql.org/docs/current/libpq-connect.html#LIBPQ-CONNECT-CHANNEL-BINDING>).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChannelBinding {
    /// Never.
    Disable,
    /// Where both ends can.
    Prefer,
    /// Always: without it there is no session.
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
    fn a_list_allows_what_it_names_or_what_it_does_not_negate() {
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
