//! Signatures by Standard Webhooks: HMAC-SHA-256 over id, time and body, one for each secret.

use std::fmt;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// How a secret is written: this, then base64.
const PREFIX: &str = "whsec_";
/// What the standard asks for, in bytes.
const LENGTHS: std::ops::RangeInclusive<usize> = 24..=64;

/// The secrets of a pool, newest first. A message is signed with each of them, so that a target
/// that knows any can verify it: that is how a secret is changed without a gap. Cheap to clone.
#[derive(Clone, Default, PartialEq)]
pub struct Secrets(Arc<[Secret]>);

#[derive(Clone)]
struct Secret {
    bytes: Vec<u8>,
    /// Ready for a message: the key is worked in once, not for each.
    mac: Hmac<Sha256>,
}

impl PartialEq for Secret {
    fn eq(&self, other: &Self) -> bool {
        self.bytes == other.bytes
    }
}

/// Why a secret is none. Never holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SecretError {
    /// Not base64.
    #[error("a secret is `whsec_` and then base64")]
    Base64,
    /// A key of the other, asymmetric kind.
    #[error("keys of the kind `whsk_` are not supported; give a `whsec_` secret")]
    Asymmetric,
    /// Too short to be safe, or longer than the standard allows.
    #[error("a secret has 24 to 64 bytes; this one has {0}")]
    Length(usize),
}

impl Secrets {
    /// Reads secrets as Standard Webhooks writes them (`whsec_` and base64; the prefix may be
    /// left out).
    ///
    /// # Errors
    /// [`SecretError`] for the first that is none.
    pub fn parse(secrets: impl IntoIterator<Item = impl AsRef<str>>) -> Result<Self, SecretError> {
        let secrets = secrets.into_iter().map(|text| Secret::parse(text.as_ref()));
        Ok(Self(secrets.collect::<Result<_, _>>()?))
    }

    /// Whether there is none: then nothing is signed.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The value of `webhook-signature`: one `v1,` signature for each secret, with spaces between.
    pub(super) fn sign(&self, id: &[u8], timestamp: &[u8], body: &[u8]) -> String {
        let mut value = String::with_capacity(self.0.len() * 48);
        for secret in &*self.0 {
            if !value.is_empty() {
                value.push(' ');
            }
            value.push_str("v1,");
            STANDARD.encode_string(secret.sign(&[id, timestamp, body]), &mut value);
        }
        value
    }

    /// The secrets as they are written, without the prefix.
    pub(super) fn texts(&self) -> impl Iterator<Item = String> {
        self.0.iter().map(|secret| STANDARD.encode(&secret.bytes))
    }
}

impl Secret {
    fn parse(text: &str) -> Result<Self, SecretError> {
        let text = text.trim();
        if text.starts_with("whsk_") {
            return Err(SecretError::Asymmetric);
        }
        let encoded = text.strip_prefix(PREFIX).unwrap_or(text);
        let bytes = STANDARD.decode(encoded).map_err(|_| SecretError::Base64)?;
        if !LENGTHS.contains(&bytes.len()) {
            return Err(SecretError::Length(bytes.len()));
        }
        let mac = Hmac::new_from_slice(&bytes).expect("any length is a key");
        Ok(Self { bytes, mac })
    }

    /// Over the parts with dots between them.
    fn sign(&self, parts: &[&[u8]]) -> impl AsRef<[u8]> + use<> {
        let mut mac = self.mac.clone();
        for (at, part) in parts.iter().enumerate() {
            if at > 0 {
                mac.update(b".");
            }
            mac.update(part);
        }
        mac.finalize().into_bytes()
    }
}

// By hand: a secret is never shown.
impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secrets({} of them)", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_of_the_standard_comes_out() {
        let secrets = Secrets::parse(["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"]).unwrap();
        let signature = secrets.sign(
            b"msg_p5jXN8AQM9LWM0D4loKWxJek",
            b"1614265330",
            b"{\"test\": 2432232314}",
        );
        assert_eq!(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn what_is_no_secret_is_an_error_that_does_not_show_it() {
        for (text, error) in [
            ("whsec_%%%", SecretError::Base64),
            ("whsec_c2hvcnQ=", SecretError::Length(5)),
            ("whsk_c2hvcnQ=", SecretError::Asymmetric),
            ("", SecretError::Length(0)),
        ] {
            assert_eq!(Secrets::parse([text]).err(), Some(error));
            assert!(text.is_empty() || !error.to_string().contains(text));
        }
    }

    #[test]
    fn secrets_are_not_shown() {
        let secrets = Secrets::parse(["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"]).unwrap();
        assert_eq!(format!("{secrets:?}"), "Secrets(1 of them)");
    }
}
