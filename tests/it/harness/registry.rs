//! A schema registry that fails in every way a real one does.
//!
//! It speaks as much of Confluent's API as a reader of schemas asks for.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use serde_json::{Value, json};

/// How it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mood {
    Good,
    /// With this status and no more.
    Fails(u16),
    /// Takes the question and never answers.
    Silent,
    /// As one that has not read the newest schemas yet.
    LagsBehind,
}

#[derive(Debug)]
struct State {
    schemas: BTreeMap<u32, Value>,
    versions: BTreeMap<String, Value>,
    mood: Mood,
    asked: Vec<String>,
    /// What the header `Authorization` must be.
    authorization: Option<String>,
}

/// Listens until the test's process ends.
#[derive(Clone)]
pub(crate) struct SchemaRegistry {
    address: String,
    state: Arc<Mutex<State>>,
}

impl SchemaRegistry {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let registry = Self {
            address: listener.local_addr().unwrap().to_string(),
            state: Arc::new(Mutex::new(State {
                schemas: BTreeMap::new(),
                versions: BTreeMap::new(),
                mood: Mood::Good,
                asked: Vec::new(),
                authorization: None,
            })),
        };
        let state = Arc::clone(&registry.state);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let state = Arc::clone(&state);
                thread::spawn(move || serve(client, &state));
            }
        });
        registry
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn set(&self, mood: Mood) {
        self.state.lock().unwrap().mood = mood;
    }

    pub(crate) fn register(&self, id: u32, schema: &str) {
        self.answer(id, json!({ "schema": schema }));
    }

    /// What is answered for an id, word for word.
    pub(crate) fn answer(&self, id: u32, answer: Value) {
        self.state.lock().unwrap().schemas.insert(id, answer);
    }

    /// A schema that others refer to.
    pub(crate) fn version(&self, subject: &str, version: i64, answer: Value) {
        let path = format!("/subjects/{subject}/versions/{version}");
        self.state.lock().unwrap().versions.insert(path, answer);
    }

    pub(crate) fn forget_all(&self) {
        self.state.lock().unwrap().schemas.clear();
    }

    pub(crate) fn lets_in(&self, authorization: &str) {
        self.state.lock().unwrap().authorization = Some(authorization.to_owned());
    }

    /// The paths that were asked for.
    pub(crate) fn asked(&self) -> Vec<String> {
        self.state.lock().unwrap().asked.clone()
    }

    /// How often an id was asked for.
    pub(crate) fn asked_for(&self, id: u32) -> usize {
        let path = format!("/schemas/ids/{id}");
        self.asked().iter().filter(|asked| **asked == path).count()
    }
}

fn serve(mut client: TcpStream, state: &Mutex<State>) {
    let mut request = Vec::new();
    let mut part = [0; 1024];
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        match client.read(&mut part) {
            Ok(0) | Err(_) => return,
            Ok(count) => request.extend_from_slice(&part[..count]),
        }
    }
    let request = String::from_utf8_lossy(&request);
    let path = request.split(' ').nth(1).unwrap_or_default();
    let authorization = request.lines().find_map(|line| {
        line.to_ascii_lowercase()
            .starts_with("authorization: ")
            .then(|| &line[15..])
    });
    let (status, body) = {
        let mut state = state.lock().unwrap();
        state.asked.push(path.to_owned());
        let id = path
            .strip_prefix("/schemas/ids/")
            .and_then(|id| id.parse::<u32>().ok());
        let known = match id {
            Some(id) => state.schemas.get(&id),
            None => state.versions.get(path),
        };
        let missing = json!({"error_code": 40403, "message": "Schema not found"});
        match state.mood {
            Mood::Silent => {
                drop(state);
                // The client gives up, or the test ends.
                let _ = client.read(&mut part);
                return;
            }
            Mood::Fails(status) => (status, json!({"error_code": 50001})),
            _ if state.authorization.is_some()
                && state.authorization.as_deref() != authorization =>
            {
                (401, json!({"error_code": 401}))
            }
            Mood::LagsBehind => (404, missing),
            Mood::Good => known.map_or((404, missing), |found| (200, found.clone())),
        }
    };
    let body = body.to_string();
    let _ = write!(
        client,
        "HTTP/1.1 {status} X\r\ncontent-type: application/vnd.schemaregistry.v1+json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    );
}
