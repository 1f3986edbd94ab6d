//! A schema registry that fails in every way a real one does.
//!
//! It speaks as much of Confluent's API as a reader of schemas asks for.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

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
    /// Takes the question and answers it after so long.
    Slow(Duration),
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
    let body_at = loop {
        if let Some(at) = request.windows(4).position(|end| end == b"\r\n\r\n") {
            break at + 4;
        }
        match client.read(&mut part) {
            Ok(0) | Err(_) => return,
            Ok(count) => request.extend_from_slice(&part[..count]),
        }
    };
    let head = String::from_utf8_lossy(&request[..body_at]).into_owned();
    let header = |name: &str| {
        let of = |line: &str| {
            line.get(..name.len())
                .is_some_and(|n| n.eq_ignore_ascii_case(name))
        };
        head.lines()
            .find(|line| of(line))
            .map(|line| &line[name.len()..])
    };
    let length: usize = header("content-length: ").map_or(0, |length| length.parse().unwrap());
    while request.len() < body_at + length {
        match client.read(&mut part) {
            Ok(0) | Err(_) => return,
            Ok(count) => request.extend_from_slice(&part[..count]),
        }
    }
    let body = String::from_utf8_lossy(&request[body_at..]).into_owned();
    let path = head.split(' ').nth(1).unwrap_or_default();
    let authorization = header("authorization: ");
    let mood = {
        let mut state = state.lock().unwrap();
        state.asked.push(path.to_owned());
        state.mood
    };
    if let Mood::Slow(answers_after) = mood {
        thread::sleep(answers_after);
    }
    let (status, body) = {
        let mut state = state.lock().unwrap();
        let missing = json!({"error_code": 40403, "message": "Schema not found"});
        match mood {
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
            Mood::Good | Mood::Slow(_) => match state.answer(path, &body) {
                Some(found) => (200, found),
                None => (404, missing),
            },
        }
    };
    let body = body.to_string();
    let _ = write!(
        client,
        "HTTP/1.1 {status} X\r\ncontent-type: application/vnd.schemaregistry.v1+json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    );
}

impl State {
    /// What is there under a path; or under a schema that is to have an id.
    fn answer(&mut self, path: &str, body: &str) -> Option<Value> {
        if let Some(id) = path.strip_prefix("/schemas/ids/") {
            return self.schemas.get(&id.parse().ok()?).cloned();
        }
        let Ok(body) = serde_json::from_str::<Value>(body) else {
            return self.versions.get(path).cloned();
        };
        let known = self
            .schemas
            .iter()
            .find(|(_, known)| known["schema"] == body["schema"])
            .map(|(id, _)| *id);
        let id = match (known, path.ends_with("/versions")) {
            (Some(id), _) => id,
            (None, true) => {
                let id = 100 + u32::try_from(self.schemas.len()).unwrap();
                self.schemas.insert(id, json!({ "schema": body["schema"] }));
                id
            }
            (None, false) => return None,
        };
        Some(json!({ "id": id }))
    }
}
