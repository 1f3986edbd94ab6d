//! What all clients do alike: they fetch tokens, and remember why no broker lets them in.
//!
//! librdkafka answers a question that no broker could be asked with "timed out", and tells the cause to its log only.

use std::error::Error;
use std::sync::{Arc, Mutex, PoisonError};

use rdkafka::client::{ClientContext, DefaultClientContext, OAuthToken};
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::ConsumerContext;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use tracing::{debug, error};

use super::oauth::TokenSource;

const TOKEN: &str = "see to the token: `sasl.oauthbearer.token.endpoint.url` and what belongs to it in `kafka.options`";

/// The context of a client.
#[derive(Clone, Debug, Default)]
pub(crate) struct Client {
    tokens: Option<TokenSource>,
    refusal: Arc<Mutex<Option<Refusal>>>,
}

/// Why no broker lets a client in, and what a person can do about it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}; {cure}")]
pub(crate) struct Refusal {
    reason: String,
    cure: &'static str,
}

impl Client {
    pub(super) fn new(tokens: Option<TokenSource>) -> Self {
        // Before librdkafka does, which would have OpenSSL tidy up when the process ends: threads that end at the same
        // moment crashed in it, after a clean stop.
        #[cfg(any(feature = "kafka-tls", feature = "kafka-tls-vendored"))]
        openssl_sys::init();
        Self {
            tokens,
            refusal: Arc::default(),
        }
    }

    /// Takes note of what librdkafka says of its connections. Says whether it was worth one.
    pub(super) fn note(&self, error: &KafkaError, reason: &str) -> bool {
        let code = error.rdkafka_error_code();
        let Some(refusal) = code.and_then(|code| Refusal::of(code, reason)) else {
            return false;
        };
        error!(
            reason = refusal.reason,
            cure = refusal.cure,
            "the broker does not let this process in"
        );
        self.keep(refusal);
        true
    }

    /// Who speaks in clear to a broker that wants TLS, or the other way round, is just cut off.
    fn note_disconnect(&self, message: &str) {
        if message.contains("Disconnected") && message.contains("in state APIVERSION_QUERY") {
            self.keep(Refusal::new(
                message,
                "set `security.protocol` in `kafka.options` to what it speaks at that address, unless it was just stopping",
            ));
        }
    }

    fn keep(&self, refusal: Refusal) {
        *self.refusal.lock().unwrap_or_else(PoisonError::into_inner) = Some(refusal);
    }

    /// For a client that nobody polls.
    pub(super) fn first_token(&self) -> Result<Option<OAuthToken>, KafkaError> {
        let token = self.tokens.as_ref().map(TokenSource::token).transpose();
        token.map_err(|error| KafkaError::ClientCreation(format!("{error}; {TOKEN}")))
    }

    /// What was noted since this was asked last. That there is no token librdkafka says only once for each cause, and
    /// several ask: it holds until there is an answer.
    pub(super) fn take_refusal(&self, answered: bool) -> Option<Refusal> {
        let mut kept = self.refusal.lock().unwrap_or_else(PoisonError::into_inner);
        match &*kept {
            Some(refusal) if refusal.cure == TOKEN && !answered => Some(refusal.clone()),
            _ => kept.take(),
        }
    }
}

impl Refusal {
    fn of(code: RDKafkaErrorCode, reason: &str) -> Option<Self> {
        let has = |words: &[&str]| words.iter().any(|word| reason.contains(word));
        let cure = match code {
            RDKafkaErrorCode::Authentication | RDKafkaErrorCode::SaslAuthenticationFailed => {
                match has(&["OAUTHBEARER", "token"]) {
                    true => TOKEN,
                    false => {
                        "set `sasl.mechanism`, `sasl.username` and `sasl.password` in `kafka.options` to what the broker knows"
                    }
                }
            }
            // It does not say which.
            _ if has(&[
                "certificate verify failed",
                "certificate could not be verified",
            ]) =>
            {
                "nobody whom this process trusts has signed its certificate (set `ssl.ca.location` in `kafka.options` to the file of its authority), it is for another name than in `kafka.bootstrap_servers`, or its time is over: `openssl s_client -connect` shows it"
            }
            _ if has(&[
                "certificate required",
                "bad certificate",
                "unknown ca",
                "certificate unknown",
            ]) =>
            {
                "it wants a certificate of this process that it trusts: set `ssl.certificate.location` and `ssl.key.location` in `kafka.options`"
            }
            RDKafkaErrorCode::SSL => {
                "see that it speaks TLS at that address, and that `kafka.options` has what it wants"
            }
            _ => return None,
        };
        Some(Self::new(reason, cure))
    }

    fn new(reason: &str, cure: &'static str) -> Self {
        Self {
            // Without what differs from try to try.
            reason: reason.split(" (after ").next().unwrap_or(reason).to_owned(),
            cure,
        }
    }
}

/// It calls fatal what another client mends, and whoever is needed for the rest is told so by us.
fn no_worse_than_a_warning(level: RDKafkaLogLevel) -> RDKafkaLogLevel {
    match level {
        RDKafkaLogLevel::Emerg
        | RDKafkaLogLevel::Alert
        | RDKafkaLogLevel::Critical
        | RDKafkaLogLevel::Error => RDKafkaLogLevel::Warning,
        RDKafkaLogLevel::Warning
        | RDKafkaLogLevel::Notice
        | RDKafkaLogLevel::Info
        | RDKafkaLogLevel::Debug => level,
    }
}

impl ClientContext for Client {
    const ENABLE_REFRESH_OAUTH_TOKEN: bool = true;

    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        // It warns of settings that it calls experimental, each time a client is made; they are chosen.
        if facility == "CONFWARN" {
            debug!(message, "kafka");
        } else {
            if facility == "FAIL" {
                self.note_disconnect(message);
            }
            DefaultClientContext.log(no_worse_than_a_warning(level), facility, message);
        }
    }

    fn error(&self, error: KafkaError, reason: &str) {
        if !self.note(&error, reason) {
            debug!(%error, reason, "kafka");
        }
    }

    fn generate_oauth_token(&self, _: Option<&str>) -> Result<OAuthToken, Box<dyn Error>> {
        match &self.tokens {
            Some(tokens) => Ok(tokens.token()?),
            None => {
                Err("set `sasl.oauthbearer.token.endpoint.url` in `kafka.options` to where tokens come from".into())
            }
        }
    }
}

impl ConsumerContext for Client {}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(code: RDKafkaErrorCode, reason: &str, cure: Option<&str>) {
        let found = Refusal::of(code, reason);
        match (found, cure) {
            (Some(found), Some(cure)) => assert!(found.cure.contains(cure), "{found}"),
            (found, cure) => assert_eq!(found.is_some(), cure.is_some(), "{found:?}"),
        }
    }

    // As librdkafka words it; tests against a real broker make it say so.
    #[test]
    fn each_way_of_not_being_let_in_has_its_cure() {
        use RDKafkaErrorCode::{AllBrokersDown, Authentication, BrokerTransportFailure, SSL};
        check(
            Authentication,
            "sasl_ssl://h:1/1: SASL authentication error: Authentication failed: Invalid username or password (after 9ms in state AUTH_REQ)",
            Some("sasl.password"),
        );
        check(
            SSL,
            "ssl://h:1/b: SSL handshake failed: error:0A000086:SSL routines::certificate verify failed: broker certificate could not be verified, verify that ssl.ca.location is correctly configured",
            Some("ssl.ca.location"),
        );
        check(
            SSL,
            "ssl://h:1/b: SSL transport error: error:0A00045C:SSL routines::tlsv13 alert certificate required",
            Some("ssl.certificate.location"),
        );
        check(AllBrokersDown, "1/1 brokers are down", None);
        check(
            BrokerTransportFailure,
            "h:1/b: Connect to ipv4#h:1 failed: Connection refused",
            None,
        );
    }

    #[test]
    fn a_broker_that_hangs_up_at_once_speaks_something_else() {
        let client = Client::default();
        client.note_disconnect(
            "h:1/b: Disconnected: connection closed by peer (after 0ms in state UP)",
        );
        assert_eq!(client.take_refusal(false), None);
        client.note_disconnect(
            "h:1/b: Disconnected: connection closed by peer (after 0ms in state APIVERSION_QUERY)",
        );
        let refusal = client.take_refusal(false).unwrap().to_string();
        assert!(refusal.contains("`security.protocol`"), "{refusal}");
        assert_eq!(client.take_refusal(false), None);
    }

    #[test]
    fn that_there_is_no_token_holds_until_a_broker_answers() {
        let client = Client::default();
        let reason = "Failed to acquire SASL OAUTHBEARER token: it has expired";
        client.keep(Refusal::of(RDKafkaErrorCode::Authentication, reason).unwrap());
        assert!(client.take_refusal(false).is_some());
        assert!(client.take_refusal(false).is_some());
        assert!(client.take_refusal(true).is_some());
        assert_eq!(client.take_refusal(false), None);
    }
}
