//! Questions to the servers of a registry.

use std::collections::BTreeSet;
use std::time::Duration;

use reqwest::{Certificate, Identity, StatusCode};
use serde::Deserialize;
use uuid::Uuid;

use super::Settings;
use crate::types::escaped;

/// The longest answer that is read, and the most that is read of a schema with those it refers to.
const ANSWER_BYTES_MAX: usize = 8 << 20;
/// The most schemas that one refers to, over all steps.
const REFERENCES_MAX: usize = 200;
/// Namespace of fingerprints.
const FINGERPRINTS: Uuid = Uuid::from_u128(0x6f0d_4a17_9b0e_4f1c_8a3d_51b7_30c2_e94a);

/// How we say who we are.
#[derive(Clone, Default)]
pub(crate) enum Credentials {
    #[default]
    None,
    Basic {
        user: String,
        password: String,
    },
    Bearer(String),
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::None => "None",
            Self::Basic { .. } => "Basic",
            Self::Bearer(_) => "Bearer",
        })
    }
}

/// What a registry says about a number.
#[derive(Debug)]
pub(super) enum Answer {
    Schema {
        text: String,
        /// The texts of the schemas that it refers to.
        references: Vec<String>,
        fingerprint: Uuid,
    },
    /// No server has it.
    Unknown,
    /// It is there and cannot be used, for this reason; what it is, if that will not be otherwise.
    Unusable {
        why: String,
        fingerprint: Option<Uuid>,
    },
}

/// What one server answers.
enum Said<T> {
    This(T),
    /// It has no such thing.
    Nothing,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Registered {
    schema: String,
    schema_type: Option<String>,
    #[serde(default)]
    references: Vec<Reference>,
}

#[derive(Deserialize)]
struct Reference {
    subject: String,
    version: i64,
}

#[derive(Deserialize)]
struct Id {
    id: u32,
}

#[derive(Deserialize)]
struct Refusal {
    error_code: i64,
    #[serde(default)]
    message: String,
}

#[derive(Debug)]
pub(super) struct Client {
    http: reqwest::Client,
    urls: Vec<String>,
    credentials: Credentials,
    timeout: Duration,
}

impl Client {
    pub(super) fn new(settings: Settings) -> Result<Self, String> {
        // Only the first of a process counts; all are the same.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut builder = reqwest::Client::builder()
            .timeout(settings.timeout)
            // Credentials are for the servers that were named.
            .redirect(reqwest::redirect::Policy::none())
            .user_agent(concat!("tidegate/", env!("CARGO_PKG_VERSION")));
        if let Some(pem) = &settings.authorities {
            let authorities = Certificate::from_pem_bundle(pem).map_err(told)?;
            builder = builder.tls_certs_only(authorities);
        }
        if let Some(pem) = &settings.identity {
            builder = builder.identity(Identity::from_pem(pem).map_err(told)?);
        }
        let trimmed = |url: String| url.trim_end_matches('/').to_owned();
        Ok(Self {
            http: builder.build().map_err(told)?,
            urls: settings.urls.into_iter().map(trimmed).collect(),
            credentials: settings.credentials,
            timeout: settings.timeout,
        })
    }

    /// The schema of a number, with those it refers to.
    ///
    /// # Errors
    /// Why no server could say.
    pub(super) async fn schema(&self, id: u32) -> Result<Answer, String> {
        let registered = match self.anyone(&format!("schemas/ids/{id}")).await? {
            Said::Nothing => return Ok(Answer::Unknown),
            Said::This(registered) => registered,
        };
        if let Some(other) = registered.schema_type.filter(|kind| kind != "AVRO") {
            let what = format!("{other}\0{}", registered.schema);
            return Ok(Answer::Unusable {
                why: format!("it is {other}, not Avro"),
                fingerprint: Some(Uuid::new_v5(&FINGERPRINTS, what.as_bytes())),
            });
        }
        let too_much = |why: String| {
            Ok(Answer::Unusable {
                why,
                fingerprint: None,
            })
        };
        let mut references = Vec::new();
        let mut asked = BTreeSet::new();
        let mut bytes = registered.schema.len();
        // Depth first, so that each comes after those that it refers to itself.
        let mut open = vec![(None, registered.references.into_iter())];
        while let Some((_, further)) = open.last_mut() {
            let Some(Reference { subject, version }) = further.next() else {
                references.extend(open.pop().and_then(|(text, _)| text));
                continue;
            };
            // A schema may be referred to on several ways, and even by itself.
            if !asked.insert((subject.clone(), version)) {
                continue;
            }
            if asked.len() > REFERENCES_MAX {
                return too_much(format!("it refers to more than {REFERENCES_MAX} others"));
            }
            let path = format!("subjects/{}/versions/{version}", escaped(&subject));
            match self.anyone(&path).await? {
                Said::This(referred) => {
                    bytes += referred.schema.len();
                    if bytes > ANSWER_BYTES_MAX {
                        return too_much(format!(
                            "it has more than {ANSWER_BYTES_MAX} bytes with those it refers to"
                        ));
                    }
                    open.push((Some(referred.schema), referred.references.into_iter()));
                }
                Said::Nothing => {
                    let why = format!(
                        "it refers to version {version} of `{subject}`, which the registry does not have"
                    );
                    return Err(why);
                }
            }
        }
        // A registry may lay out the same text otherwise after an upgrade.
        let mut all = vec![normal(&registered.schema)];
        let mut others: Vec<String> = references.iter().map(|text| normal(text)).collect();
        others.sort();
        all.append(&mut others);
        Ok(Answer::Schema {
            fingerprint: Uuid::new_v5(&FINGERPRINTS, all.join("\0").as_bytes()),
            text: registered.schema,
            references,
        })
    }

    /// Asks one server after the other. Only if each of them says so there is nothing.
    async fn anyone(&self, path: &str) -> Result<Said<Registered>, String> {
        let mut failures = Vec::new();
        for url in &self.urls {
            match self.ask(url, path).await {
                Ok(Said::This(found)) => return Ok(Said::This(found)),
                Ok(Said::Nothing) => {}
                Err(why) => failures.push(format!("{url}: {why}")),
            }
        }
        match failures.is_empty() {
            true => Ok(Said::Nothing),
            false => Err(failures.join("; ")),
        }
    }

    /// The id of a schema under a subject.
    pub(super) async fn id_of(
        &self,
        subject: &str,
        schema: &str,
        register: bool,
    ) -> Result<u32, String> {
        let versions = if register { "/versions" } else { "" };
        let path = format!("subjects/{}{versions}", escaped(subject));
        let body = serde_json::json!({ "schema": schema }).to_string();
        let mut failures = Vec::new();
        for url in &self.urls {
            let request = self.http.post(format!("{url}/{path}"));
            let request = request
                .header("Content-Type", "application/vnd.schemaregistry.v1+json")
                .body(body.clone());
            match self.answer::<Id>(request).await {
                Ok(Said::This(Id { id })) => return Ok(id),
                Ok(Said::Nothing) => failures.push(format!("{url}: it is not registered")),
                Err(why) => failures.push(format!("{url}: {why}")),
            }
        }
        Err(failures.join("; "))
    }

    async fn ask(&self, url: &str, path: &str) -> Result<Said<Registered>, String> {
        self.answer(self.http.get(format!("{url}/{path}"))).await
    }

    async fn answer<T: serde::de::DeserializeOwned>(
        &self,
        request: reqwest::RequestBuilder,
    ) -> Result<Said<T>, String> {
        let accept = "application/vnd.schemaregistry.v1+json, application/json";
        let request = request.header("Accept", accept);
        let request = match &self.credentials {
            Credentials::None => request,
            Credentials::Basic { user, password } => request.basic_auth(user, Some(password)),
            Credentials::Bearer(token) => request.bearer_auth(token),
        };
        let mut response = request
            .send()
            .await
            .map_err(|error| match error.is_timeout() {
                true => format!("no answer within {:?}", self.timeout),
                false => told(error),
            })?;
        let status = response.status();
        let mut body = Vec::new();
        while let Some(part) = response.chunk().await.map_err(told)? {
            if body.len() + part.len() > ANSWER_BYTES_MAX {
                return Err(format!("an answer of more than {ANSWER_BYTES_MAX} bytes"));
            }
            body.extend_from_slice(&part);
        }
        if status == StatusCode::NOT_FOUND {
            // Anything may say 404; only a registry says which thing it does not have.
            return match serde_json::from_slice::<Refusal>(&body) {
                Ok(refusal) if (40_401..=40_403).contains(&refusal.error_code) => Ok(Said::Nothing),
                _ => Err(
                    "404, as a server says that is no schema registry; is the URL right?"
                        .to_owned(),
                ),
            };
        }
        if !status.is_success() {
            return Err(match status {
                StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                    format!(
                        "{status}: it does not let us in; see `user`, `password` and `token` of [schema_registry]"
                    )
                }
                _ => match serde_json::from_slice::<Refusal>(&body) {
                    Ok(Refusal { message, .. }) if !message.is_empty() => {
                        let message: String = message.chars().take(500).collect();
                        format!("{status}: {message}")
                    }
                    _ => status.to_string(),
                },
            });
        }
        serde_json::from_slice(&body)
            .map(Said::This)
            .map_err(|error| format!("an answer that is not a schema registry's: {error}"))
    }
}

/// What went wrong, with its causes, and without the address.
fn told(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut text = error.to_string();
    let mut source = std::error::Error::source(&error);
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

/// The same text for the same JSON.
fn normal(text: &str) -> String {
    match serde_json::from_str::<serde_json::Value>(text) {
        Ok(json) => json.to_string(),
        Err(_) => text.to_owned(),
    }
}
