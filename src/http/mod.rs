//! Answers questions about this process: what it does, and whether it is well.
//!
//! Only questions, unless `http.admin` is on: nothing else can be changed here, and nothing that is answered holds a
//! payload or a secret. Questions need no password, so whoever can reach the address can read names of topics and
//! texts of errors; the address is the operator's choice, and none is the default. A connection that says nothing is
//! closed, and there are never more than a few.

mod admin;
mod answers;
mod exposition;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, WWW_AUTHENTICATE};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use metrics_exporter_prometheus::PrometheusHandle;
use serde_json::Value;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tracing::{debug, info, warn};

pub(crate) use admin::{Action, Admin, Answered, Answering, Asked, Operations};

use crate::health::{Board, Reason, Snapshot, Verdict};
use crate::telemetry;

/// How long a client may take to ask.
const ASK_WITHIN: Duration = Duration::from_secs(10);
/// How long a connection lives, asking and answering.
const CONNECTION_MAX: Duration = Duration::from_secs(300);
const CONNECTIONS_MAX: usize = 64;
/// What can be asked.
const QUESTIONS: [&str; 4] = ["/metrics", "/livez", "/readyz", "/progress"];
const JSON: &str = "application/json";
const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Listens, and does not answer yet.
#[derive(Debug)]
pub(crate) struct Server {
    listener: TcpListener,
}

/// What questions are answered from.
struct State {
    board: Board,
    verdict: Verdict,
    counters: Option<PrometheusHandle>,
    admin: Option<Admin>,
}

impl Server {
    pub(crate) async fn bind(address: SocketAddr) -> std::io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        info!(address = %listener.local_addr()?, "http: answering /metrics, /livez, /readyz and /progress");
        Ok(Self { listener })
    }

    /// Answers for as long as the process lives, while it stops too.
    pub(crate) fn serve(self, board: Board, verdict: Verdict, admin: Option<Admin>) {
        let state = Arc::new(State {
            board,
            verdict,
            counters: telemetry::recorder(),
            admin,
        });
        tokio::spawn(async move {
            let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
            loop {
                let Ok(place) = Arc::clone(&places).acquire_owned().await else {
                    return;
                };
                match self.listener.accept().await {
                    Ok((stream, from)) => {
                        let state = Arc::clone(&state);
                        tokio::spawn(async move {
                            converse(stream, state, from).await;
                            drop(place);
                        });
                    }
                    Err(error) => {
                        warn!(%error, "http: no connection can be taken");
                        tokio::time::sleep(Duration::from_secs(1)).await;
                    }
                }
            }
        });
    }
}

async fn converse(stream: TcpStream, state: Arc<State>, from: SocketAddr) {
    let answer = service_fn(move |request: Request<Incoming>| {
        let state = Arc::clone(&state);
        async move {
            Ok::<_, Infallible>(match &state.admin {
                Some(admin) if admin::is_admin(request.uri().path()) => {
                    act(admin, request, from).await
                }
                _ => answer(&state, request.method(), request.uri().path()),
            })
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(ASK_WITHIN)
        .serve_connection(TokioIo::new(stream), answer);
    let conversed = tokio::time::timeout(CONNECTION_MAX, connection).await;
    if let Ok(Err(error)) = conversed {
        debug!(%error, "http: a connection has ended");
    }
}

async fn act(admin: &Admin, request: Request<Incoming>, from: SocketAddr) -> Response<Full<Bytes>> {
    let answered = admin.answer(request, &from.ip().to_string()).await;
    let status = StatusCode::from_u16(answered.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = reply(status, JSON, format!("{:#}\n", answered.body));
    if status == StatusCode::UNAUTHORIZED {
        let bearer = hyper::header::HeaderValue::from_static("Bearer");
        response.headers_mut().insert(WWW_AUTHENTICATE, bearer);
    }
    response
}

fn answer(state: &State, method: &Method, path: &str) -> Response<Full<Bytes>> {
    if !matches!(*method, Method::GET | Method::HEAD) {
        let mut response = reply(
            StatusCode::METHOD_NOT_ALLOWED,
            TEXT,
            "only GET\n".to_owned(),
        );
        let get = hyper::header::HeaderValue::from_static("GET, HEAD");
        response.headers_mut().insert(ALLOW, get);
        return response;
    }
    let seen = state.board.snapshot();
    let verdict = &state.verdict;
    let verdict_of = |reasons: Vec<Reason>, body: fn(&Snapshot, &[Reason]) -> Value| {
        let status = match reasons.is_empty() {
            true => StatusCode::OK,
            false => StatusCode::SERVICE_UNAVAILABLE,
        };
        reply(status, JSON, format!("{:#}\n", body(&seen, &reasons)))
    };
    match path {
        "/livez" => verdict_of(verdict.dead(&seen), answers::alive),
        "/readyz" => verdict_of(verdict.unable(&seen), answers::ready),
        "/progress" => verdict_of(verdict.stalled(&seen), answers::progress),
        "/metrics" => {
            let mut text = state
                .counters
                .as_ref()
                .map(PrometheusHandle::render)
                .unwrap_or_default();
            exposition::write(&mut text, &seen, verdict);
            reply(StatusCode::OK, TEXT, text)
        }
        _ => reply(
            StatusCode::NOT_FOUND,
            TEXT,
            format!("known are {}\n", QUESTIONS.join(", ")),
        ),
    }
}

fn reply(status: StatusCode, kind: &'static str, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, hyper::header::HeaderValue::from_static(kind));
    headers.insert(
        CACHE_CONTROL,
        hyper::header::HeaderValue::from_static("no-store"),
    );
    response
}
