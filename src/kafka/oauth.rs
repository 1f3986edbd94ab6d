//! Tokens of SASL OAUTHBEARER: from a file that somebody keeps fresh, or from an endpoint of OAuth 2.0.
//!
//! librdkafka could ask an endpoint itself if it were built with curl. It has settings for that, and they mean the
//! same here; as with Java's client the endpoint may be a `file:`. A client asks for its next token when most of the
//! last one's time is over, on the thread that polls it, also when there is nothing else to do.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::net::IpAddr;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rdkafka::client::OAuthToken;
use reqwest::Url;
use serde::Deserialize;

use crate::types::escaped;

/// How long an endpoint may take: a client that waits for it does nothing else.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest token that is taken.
const TOKEN_BYTES_MAX: usize = 1 << 20;

const METHOD: &str = "sasl.oauthbearer.method";
/// Of a setting: its address may have secrets in its query.
pub(crate) const ENDPOINT: &str = "sasl.oauthbearer.token.endpoint.url";
const CLIENT_ID: &str = "sasl.oauthbearer.client.id";
const CLIENT_SECRET: &str = "sasl.oauthbearer.client.secret";
const SCOPE: &str = "sasl.oauthbearer.scope";

/// Whether a setting of librdkafka is for tokens: it is read here and not passed on.
pub(super) fn is_ours(key: &str) -> bool {
    [METHOD, ENDPOINT, CLIENT_ID, CLIENT_SECRET, SCOPE].contains(&key)
}

/// Why such a setting cannot be used.
pub(super) fn refusal(key: &str, value: &str) -> Option<String> {
    match key {
        METHOD if value != "oidc" => Some("write \"oidc\", or leave it out".to_owned()),
        ENDPOINT if !value.starts_with("file:///") => not_an_endpoint(value).map(str::to_owned),
        _ => None,
    }
}

/// The address is not repeated: it may hold a password.
fn not_an_endpoint(address: &str) -> Option<&'static str> {
    const CURE: &str = "write an https:// address, or file:/// and the path of a file with a token";
    let Ok(url) = Url::parse(address) else {
        return Some(CURE);
    };
    if !url.username().is_empty() || url.password().is_some() {
        return Some(
            "it names a user; there are `sasl.oauthbearer.client.id` and `.client.secret`",
        );
    }
    match (url.scheme(), url.host_str()) {
        ("https", Some(_)) => None,
        ("http", Some(host)) if is_this_machine(host) => None,
        ("http", Some(_)) => Some(
            "http:// shows the client's secret and the token to whoever listens; write https://, which only an address of this machine (localhost, 127.0.0.1) may go without",
        ),
        _ => Some(CURE),
    }
}

fn is_this_machine(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || address.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// Where tokens come from.
#[derive(Clone)]
pub(crate) struct TokenSource {
    endpoint: String,
    client: Option<(String, String)>,
    scope: Option<String>,
}

impl fmt::Debug for TokenSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // What is behind its path may be a secret.
        let shown = self.endpoint.split(['?', '#']).next().unwrap_or_default();
        write!(f, "TokenSource({shown})")
    }
}

/// No token was to be had.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error("the token's file {0} cannot be read: {1}")]
    File(String, std::io::Error),
    #[error("the token's endpoint does not answer: {0}")]
    Endpoint(String),
    #[error("the token's endpoint answers {0}")]
    Refused(String),
    #[error("what is said to be a token is none: {0}")]
    NoToken(&'static str),
    #[error("the token has expired; whoever writes its file has not written a new one")]
    Expired,
}

#[derive(Deserialize)]
struct Granted {
    access_token: String,
}

#[derive(Deserialize)]
struct Denied {
    error: String,
}

#[derive(Deserialize)]
struct Claims {
    exp: f64,
    #[serde(default)]
    sub: String,
}

impl TokenSource {
    /// None where there is no endpoint among the settings.
    pub(super) fn new(options: &BTreeMap<String, String>) -> Option<Self> {
        let given = |key: &str| options.get(key).cloned();
        let secret = given(CLIENT_SECRET).unwrap_or_default();
        Some(Self {
            endpoint: given(ENDPOINT)?,
            client: given(CLIENT_ID).map(|id| (id, secret)),
            scope: given(SCOPE),
        })
    }

    /// Blocks.
    pub(super) fn token(&self) -> Result<OAuthToken, Error> {
        let token = match self.endpoint.strip_prefix("file://") {
            Some(path) => {
                fs::read_to_string(path).map_err(|error| Error::File(path.to_owned(), error))?
            }
            // A thread of its own: a client may be asked, or dropped, on one that may not wait for a future.
            None => thread::scope(|scope| scope.spawn(|| self.ask()).join())
                .unwrap_or_else(|_| Err(Error::Endpoint("the question was given up".to_owned())))?,
        };
        read(token.trim(), SystemTime::now())
    }

    fn ask(&self) -> Result<String, Error> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| Error::Endpoint(error.to_string()))?;
        runtime.block_on(self.grant())
    }

    async fn grant(&self) -> Result<String, Error> {
        let told = |error: reqwest::Error| {
            let error = error.without_url();
            let mut text = error.to_string();
            let mut source = std::error::Error::source(&error);
            while let Some(cause) = source {
                text = format!("{text}: {cause}");
                source = cause.source();
            }
            Error::Endpoint(text)
        };
        // Only the first of a process counts; all are the same.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let http = reqwest::Client::builder()
            .timeout(ANSWER_TIMEOUT)
            // The secret is for the server that was named.
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .map_err(told)?;
        let mut form = "grant_type=client_credentials".to_owned();
        if let Some(scope) = &self.scope {
            form = format!("{form}&scope={}", escaped(scope));
        }
        let mut request = http
            .post(&self.endpoint)
            .header("content-type", "application/x-www-form-urlencoded")
            .header("accept", "application/json")
            .body(form);
        if let Some((id, secret)) = &self.client {
            // Escaped first, as RFC 6749 has it.
            request = request.basic_auth(escaped(id), Some(escaped(secret)));
        }
        let answer = request.send().await.map_err(told)?;
        let status = answer.status();
        let body = answer.bytes().await.map_err(told)?;
        if !status.is_success() {
            // Of all that it may say only the bounded word.
            let denied = serde_json::from_slice::<Denied>(&body);
            let word = denied.map(|denied| denied.error).unwrap_or_default();
            let plain =
                word.len() < 60 && word.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
            return Err(Error::Refused(match plain && !word.is_empty() {
                true => format!("{status}, {word}"),
                false => status.to_string(),
            }));
        }
        let granted: Granted = serde_json::from_slice(&body)
            .map_err(|_| Error::NoToken("the answer has no access_token"))?;
        Ok(granted.access_token)
    }
}

/// Reads whose a token is, and until when. Whether it is genuine is for the broker to say.
fn read(token: &str, now: SystemTime) -> Result<OAuthToken, Error> {
    const SHAPE: Error = Error::NoToken("it is not three parts in base64, as a JWT is");
    if token.len() > TOKEN_BYTES_MAX {
        return Err(Error::NoToken("it is longer than 1 MiB"));
    }
    let mut parts = token.split('.');
    let (Some(_), Some(claims), Some(_), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err(SHAPE);
    };
    let claims = URL_SAFE_NO_PAD
        .decode(claims.trim_end_matches('='))
        .map_err(|_| SHAPE)?;
    let claims: Claims = serde_json::from_slice(&claims)
        .map_err(|_| Error::NoToken("its claims say no `exp`, when it expires"))?;
    let ends = Duration::try_from_secs_f64(claims.exp)
        .map_err(|_| Error::NoToken("its `exp` is no time"))?;
    if UNIX_EPOCH + ends <= now {
        return Err(Error::Expired);
    }
    Ok(OAuthToken {
        token: token.to_owned(),
        principal_name: claims.sub,
        lifetime_ms: i64::try_from(ends.as_millis()).unwrap_or(i64::MAX),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(claims: &str) -> String {
        format!("e30.{}.", URL_SAFE_NO_PAD.encode(claims))
    }

    #[track_caller]
    fn refused(token: &str, words: &str) {
        let now = UNIX_EPOCH + Duration::from_secs(1_000);
        match read(token, now) {
            Ok(_) => panic!("it was taken"),
            Err(error) => assert!(error.to_string().contains(words), "{error}"),
        }
    }

    #[test]
    fn a_token_says_whose_it_is_and_until_when() {
        let now = UNIX_EPOCH + Duration::from_secs(1_000);
        let read = read(&token(r#"{"sub":"tidegate","exp":1060.5,"more":[1]}"#), now).unwrap();
        assert_eq!(read.principal_name, "tidegate");
        assert_eq!(read.lifetime_ms, 1_060_500);
    }

    // A text that is no token may be anything, so it is never repeated.
    #[test]
    fn what_is_no_token_is_not_taken() {
        refused("", "three parts");
        refused("secret", "three parts");
        refused("a.b.c.d", "three parts");
        refused("a.!.c", "three parts");
        refused(&token("{}"), "no `exp`");
        refused(&token(r#"{"exp":-1}"#), "no time");
        refused(&token(r#"{"exp":1000}"#), "expired");
    }

    #[test]
    fn an_endpoint_shows_no_secret_and_is_asked_in_clear_on_this_machine_only() {
        let check = |address: &str, words: &str| match refusal(ENDPOINT, address) {
            None => assert_eq!(words, "", "{address}"),
            Some(why) => {
                assert!(!words.is_empty() && why.contains(words), "{address}: {why}");
                assert!(!why.contains("hunter2"), "{why}");
            }
        };
        check("https://idp.example/token?tenant=a", "");
        check("http://localhost:8080/token", "");
        check("http://127.0.0.2/token", "");
        check("http://[::1]:1/token", "");
        check("file:///run/a@b/token", "");
        check("http://idp.example/token", "write https://");
        check("http://localhost.example/token", "write https://");
        check("https://u:hunter2@idp.example/token", "names a user");
        check("https://hunter2@idp.example/token", "names a user");
        check("idp.example/token", "write an https:// address");
        check("file://token", "write an https:// address");
        check("", "write an https:// address");
        let endpoint = "https://idp.example/token?client_secret=hunter2".to_owned();
        let options = BTreeMap::from([(ENDPOINT.to_owned(), endpoint)]);
        let source = TokenSource::new(&options);
        assert_eq!(
            format!("{source:?}"),
            "Some(TokenSource(https://idp.example/token))"
        );
    }

    // Nobody listens at port 1.
    #[test]
    fn an_endpoint_that_does_not_answer_is_told_of_without_its_address() {
        let endpoint = "http://127.0.0.1:1/token?client_secret=hunter2".to_owned();
        let options = BTreeMap::from([(ENDPOINT.to_owned(), endpoint)]);
        let error = TokenSource::new(&options).unwrap().token().err().unwrap();
        let error = error.to_string();
        assert!(error.contains("does not answer"), "{error}");
        assert!(!error.contains("hunter2"), "{error}");
    }

    #[test]
    fn a_secret_is_escaped_as_in_a_form() {
        assert_eq!(escaped("a b:c/é"), "a%20b%3Ac%2F%C3%A9");
    }
}
