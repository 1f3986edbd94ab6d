//! What can be changed over HTTP, and who may.
//!
//! A router: it finds out what is asked for and whether it may be, and whoever serves it does it. A request that
//! changes something names itself by `Idempotency-Key`. That is what makes a repeated one act once, and no page in a
//! browser can send it without having asked first.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use http_body_util::{BodyExt as _, Limited};
use hyper::body::{Body, Bytes};
use hyper::header::{AUTHORIZATION, HOST};
use hyper::{HeaderMap, Method, Request, StatusCode};
use serde_json::{Value, json};

/// The longest request.
const BODY_MAX: usize = 64 << 10;
const KEY_HEADER: &str = "idempotency-key";
const KEY_MAX: usize = 200;
const PREFIX: &str = "/admin/";

/// What can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Status,
    Pause,
    Resume,
    Reset,
    Redrive,
    Discard,
    AcceptGap,
}

/// Every route, in the order of docs/openapi.yaml. What stands in braces is the projection.
pub(super) const ROUTES: [(Method, &str, Action); 7] = [
    (Method::GET, "/admin/status", Action::Status),
    (
        Method::POST,
        "/admin/projections/{projection}/pause",
        Action::Pause,
    ),
    (
        Method::POST,
        "/admin/projections/{projection}/resume",
        Action::Resume,
    ),
    (
        Method::POST,
        "/admin/projections/{projection}/reset",
        Action::Reset,
    ),
    (
        Method::POST,
        "/admin/projections/{projection}/dead-letters/redrive",
        Action::Redrive,
    ),
    (
        Method::POST,
        "/admin/projections/{projection}/dead-letters/discard",
        Action::Discard,
    ),
    (
        Method::POST,
        "/admin/projections/{projection}/gate/accept-gap",
        Action::AcceptGap,
    ),
];

/// What is to be done.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) action: Action,
    /// Empty where none is named.
    pub(crate) projection: String,
    /// By which it is known again; empty where nothing changes.
    pub(crate) key: String,
    pub(crate) body: Value,
    /// From where it came.
    pub(crate) from: String,
}

/// What became of it: a status of HTTP, and JSON.
#[derive(Clone, Debug)]
pub(crate) struct Answered {
    pub(crate) status: u16,
    pub(crate) body: Value,
}

impl Answered {
    pub(crate) fn refused(status: u16, why: impl Into<String>) -> Self {
        let why: String = why.into();
        Self {
            status,
            body: json!({ "error": why }),
        }
    }
}

pub(crate) type Answering<'a> = Pin<Box<dyn Future<Output = Answered> + Send + 'a>>;

/// Whoever does what is asked for.
pub(crate) trait Operations: Send + Sync {
    fn act(&self, asked: Asked) -> Answering<'_>;
}

/// Who may ask, and who does it.
#[derive(Clone)]
pub(crate) struct Admin {
    /// None only where nobody from elsewhere can reach it.
    pub(crate) token: Option<String>,
    pub(crate) operations: Arc<dyn Operations>,
}

pub(super) fn is_admin(path: &str) -> bool {
    path.starts_with(PREFIX)
}

impl Admin {
    pub(super) async fn answer<B>(&self, request: Request<B>, from: &str) -> Answered
    where
        B: Body<Data = Bytes> + Send,
        B::Error: std::error::Error + Send + Sync + 'static,
    {
        if let Some(refused) = self.refuse(request.headers()) {
            return refused;
        }
        let (action, projection) = match find(request.method(), request.uri().path()) {
            Ok(found) => found,
            Err(status) => {
                return Answered::refused(
                    status.as_u16(),
                    "docs/openapi.yaml has what can be asked for",
                );
            }
        };
        let key = request.headers().get(KEY_HEADER);
        let key = key.and_then(|key| key.to_str().ok()).unwrap_or_default();
        let key = key.trim_matches('"').to_owned();
        if action != Action::Status && !(1..=KEY_MAX).contains(&key.len()) {
            let why = "say `Idempotency-Key: <up to 200 characters, others for each request>`: a request that is repeated with the same one acts once";
            return Answered::refused(400, why);
        }
        let body = match Limited::new(request.into_body(), BODY_MAX).collect().await {
            Ok(body) => body.to_bytes(),
            Err(error) => {
                return Answered::refused(400, format!("the request cannot be read: {error}"));
            }
        };
        let body = match body.is_empty() {
            true => Ok(json!({})),
            false => serde_json::from_slice(&body),
        };
        let body = match body {
            Ok(body @ Value::Object(_)) => body,
            Ok(_) => return Answered::refused(400, "the request is no JSON object"),
            Err(error) => {
                return Answered::refused(400, format!("the request is no JSON: {error}"));
            }
        };
        let from = from.to_owned();
        let asked = Asked {
            action,
            projection,
            key,
            body,
            from,
        };
        self.operations.act(asked).await
    }

    /// Why nobody may ask so.
    fn refuse(&self, headers: &HeaderMap) -> Option<Answered> {
        let Some(token) = &self.token else {
            // A name that leads here could belong to anybody.
            let host = headers.get(HOST).and_then(|host| host.to_str().ok());
            return (!host.is_some_and(is_loopback)).then(|| {
                Answered::refused(
                    403,
                    "without `http.admin_token` only `localhost` is answered",
                )
            });
        };
        let given = headers
            .get(AUTHORIZATION)
            .and_then(|value| value.to_str().ok());
        let given = given.and_then(|value| {
            let (scheme, token) = value.split_once(' ')?;
            scheme
                .eq_ignore_ascii_case("bearer")
                .then_some(token.trim())
        });
        (!given.is_some_and(|given| is_same(given, token)))
            .then(|| Answered::refused(401, "say `Authorization: Bearer <http.admin_token>`"))
    }
}

fn is_loopback(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => host,
    };
    matches!(name, "localhost" | "127.0.0.1" | "[::1]")
}

/// How long it takes says nothing of where the two differ.
fn is_same(given: &str, token: &str) -> bool {
    let (given, token) = (given.as_bytes(), token.as_bytes());
    let differ = given
        .iter()
        .zip(token)
        .fold(0, |differ, (a, b)| differ | (a ^ b));
    given.len() == token.len() && differ == 0
}

/// The action, and the projection that the path names.
fn find(method: &Method, path: &str) -> Result<(Action, String), StatusCode> {
    let mut found = Err(StatusCode::NOT_FOUND);
    for (wanted, template, action) in &ROUTES {
        let Some(projection) = matches(template, path) else {
            continue;
        };
        if wanted == method {
            return Ok((*action, projection.to_owned()));
        }
        found = Err(StatusCode::METHOD_NOT_ALLOWED);
    }
    found
}

fn matches<'p>(template: &str, path: &'p str) -> Option<&'p str> {
    let Some((before, after)) = template.split_once("{projection}") else {
        return (template == path).then_some("");
    };
    let name = path.strip_prefix(before)?.strip_suffix(after)?;
    (!name.is_empty() && !name.contains('/')).then_some(name)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use http_body_util::Full;

    use super::*;

    struct Echo;

    impl Operations for Echo {
        fn act(&self, asked: Asked) -> Answering<'_> {
            let body =
                json!({ "projection": asked.projection, "key": asked.key, "body": asked.body });
            Box::pin(async move { Answered { status: 200, body } })
        }
    }

    fn ask(
        token: Option<&str>,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> (u16, Value) {
        let admin = Admin {
            token: token.map(str::to_owned),
            operations: Arc::new(Echo),
        };
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request
            .body(Full::new(Bytes::from(body.to_owned())))
            .unwrap();
        let answered =
            futures_util::FutureExt::now_or_never(admin.answer(request, "here")).unwrap();
        (answered.status, answered.body)
    }

    const PAUSE: &str = "/admin/projections/p/pause";

    #[test]
    fn only_who_has_the_token_is_answered() {
        let with = |authorization: &str| {
            let headers = [
                ("authorization", authorization),
                ("idempotency-key", "k"),
                ("host", "localhost"),
            ];
            ask(Some("a-long-token"), Method::POST, PAUSE, &headers, "").0
        };
        assert_eq!(with("Bearer a-long-token"), 200);
        assert_eq!(with("bearer a-long-token"), 200);
        for wrong in [
            "",
            "a-long-token",
            "Bearer",
            "Bearer a-long-toke",
            "Bearer a-long-token1",
            "Basic a-long-token",
        ] {
            assert_eq!(with(wrong), 401, "{wrong}");
        }
        assert_eq!(
            ask(Some("a-long-token"), Method::GET, "/admin/status", &[], "").0,
            401
        );
    }

    #[test]
    fn without_a_token_only_this_machine_is_answered() {
        for (host, status) in [
            ("localhost:9600", 200),
            ("127.0.0.1", 200),
            ("[::1]:9600", 200),
            ("shop.example", 403),
            ("localhost.shop.example:80", 403),
        ] {
            let headers = [("host", host), ("idempotency-key", "k")];
            assert_eq!(
                ask(None, Method::POST, PAUSE, &headers, "").0,
                status,
                "{host}"
            );
        }
        assert_eq!(ask(None, Method::GET, "/admin/status", &[], "").0, 403);
    }

    #[test]
    fn what_changes_something_needs_a_key_and_what_is_sent_must_be_json() {
        let headers = [("host", "localhost"), ("idempotency-key", "\"k\"")];
        assert_eq!(ask(None, Method::POST, PAUSE, &headers[..1], "").0, 400);
        let (status, body) = ask(None, Method::POST, PAUSE, &headers, r#"{"a": 1}"#);
        assert_eq!(status, 200);
        assert_eq!(
            body,
            json!({ "projection": "p", "key": "k", "body": { "a": 1 } })
        );
        for wrong in ["{", "[]", "1"] {
            assert_eq!(
                ask(None, Method::POST, PAUSE, &headers, wrong).0,
                400,
                "{wrong}"
            );
        }
        let long = format!("{{\"a\": \"{}\"}}", "x".repeat(BODY_MAX));
        assert_eq!(ask(None, Method::POST, PAUSE, &headers, &long).0, 400);
    }

    #[test]
    fn a_path_is_found_or_not() {
        assert_eq!(
            find(&Method::GET, "/admin/status"),
            Ok((Action::Status, String::new()))
        );
        assert_eq!(
            find(&Method::POST, PAUSE),
            Ok((Action::Pause, "p".to_owned()))
        );
        assert_eq!(
            find(&Method::GET, PAUSE),
            Err(StatusCode::METHOD_NOT_ALLOWED)
        );
        for wrong in [
            "/admin/",
            "/admin/projections//pause",
            "/admin/projections/a/b/pause",
            "/admin/projections/p",
        ] {
            assert_eq!(
                find(&Method::POST, wrong),
                Err(StatusCode::NOT_FOUND),
                "{wrong}"
            );
        }
    }

    #[test]
    fn the_openapi_file_has_every_route_and_no_other() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/openapi.yaml");
        let text = std::fs::read_to_string(path).unwrap();
        let (_, paths) = text.split_once("\npaths:\n").unwrap();
        let (paths, _) = paths.split_once("\ncomponents:\n").unwrap();
        let mut documented = Vec::new();
        let mut current = "";
        for line in paths.lines() {
            if let Some(path) = line.strip_prefix("  /") {
                current = path.trim_end_matches(':');
            } else if let Some(method) = line.strip_prefix("    ").filter(|l| !l.starts_with(' ')) {
                let method = method.trim_end_matches(':');
                if matches!(method, "get" | "post" | "put" | "delete" | "patch") {
                    documented.push(format!("{} /{current}", method.to_uppercase()));
                }
            }
        }
        let questions = crate::http::QUESTIONS
            .iter()
            .map(|path| format!("GET {path}"));
        let admin = ROUTES
            .iter()
            .map(|(method, path, _)| format!("{method} {path}"));
        let routes: Vec<String> = questions.chain(admin).collect();
        assert_eq!(documented, routes);
    }
}
