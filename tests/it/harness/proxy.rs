//! A Postgres connection that breaks at the worst moment.
//!
//! Passes bytes on, reads none of them but the client's `COMMIT`, and cuts the connection there: before
//! the server gets it, or after the server has done it and before the client knows. It can also cut all
//! connections at once, and be slow.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// A simple query with the one word, as it is on the wire.
const COMMIT: &[u8] = b"Q\0\0\0\x0bCOMMIT\0";

/// What happens at a COMMIT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    None,
    /// The server never gets it: the transaction is rolled back.
    RequestLost,
    /// The server has committed; the client is never told.
    AnswerLost,
}

/// Listens until the test's process ends.
pub(crate) struct Proxy {
    address: String,
    cuts: Arc<AtomicUsize>,
    line: Arc<Line>,
}

/// What all connections share.
#[derive(Default)]
struct Line {
    /// Both ends of each connection, by its number.
    open: Mutex<BTreeMap<usize, [TcpStream; 2]>>,
    delay_ms: AtomicU64,
}

impl Line {
    fn linger(&self) {
        let delay = self.delay_ms.load(Ordering::Relaxed);
        if delay > 0 {
            thread::sleep(Duration::from_millis(delay));
        }
    }
}

impl Proxy {
    /// `trouble` is asked at every COMMIT, with how many there were before.
    pub(crate) fn to(server: &str, trouble: impl Fn(usize) -> Trouble + Send + 'static) -> Self {
        Self::at("127.0.0.1:0", server, trouble)
    }

    /// Where nobody listens yet.
    pub(crate) fn free_address() -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap().to_string()
    }

    pub(crate) fn at(
        address: &str,
        server: &str,
        trouble: impl Fn(usize) -> Trouble + Send + 'static,
    ) -> Self {
        let listener = TcpListener::bind(address).unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let cuts = Arc::new(AtomicUsize::new(0));
        let (server, counted) = (server.to_owned(), Arc::clone(&cuts));
        let commits = Arc::new(Mutex::new((0, trouble)));
        let line = Arc::new(Line::default());
        let shared = Arc::clone(&line);
        thread::spawn(move || {
            for (number, client) in listener.incoming().enumerate() {
                let (Ok(client), Ok(server)) = (client, TcpStream::connect(&server)) else {
                    continue;
                };
                let (commits, counted) = (Arc::clone(&commits), Arc::clone(&counted));
                let ask = move || {
                    let mut commits = commits.lock().unwrap();
                    let answer = (commits.1)(commits.0);
                    commits.0 += 1;
                    if answer != Trouble::None {
                        counted.fetch_add(1, Ordering::Relaxed);
                    }
                    answer
                };
                serve(number, client, server, &shared, ask);
            }
        });
        Self {
            address,
            cuts,
            line,
        }
    }

    /// Cuts every connection there is. Says how many.
    pub(crate) fn cut_all(&self) -> usize {
        let open = std::mem::take(&mut *self.line.open.lock().unwrap());
        for end in open.values().flatten() {
            let _ = end.shutdown(Shutdown::Both);
        }
        self.cuts.fetch_add(open.len(), Ordering::Relaxed);
        open.len()
    }

    /// How long every message takes from now on, there and back.
    pub(crate) fn delay(&self, by: Duration) {
        let by = u64::try_from(by.as_millis()).unwrap();
        self.line.delay_ms.store(by, Ordering::Relaxed);
    }

    /// `host:port`.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// How many connections were cut.
    pub(crate) fn cuts(&self) -> usize {
        self.cuts.load(Ordering::Relaxed)
    }
}

fn serve(
    number: usize,
    client: TcpStream,
    server: TcpStream,
    line: &Arc<Line>,
    ask: impl FnMut() -> Trouble + Send + 'static,
) {
    let _ = client.set_nodelay(true);
    let _ = server.set_nodelay(true);
    let copy = |of: &TcpStream| of.try_clone().unwrap();
    let (from_server, to_client) = (copy(&server), copy(&client));
    let ends = [copy(&client), copy(&server)];
    line.open.lock().unwrap().insert(number, ends);
    let muted = Arc::new(AtomicUsize::new(0));
    let (silent, slow) = (Arc::clone(&muted), Arc::clone(line));
    thread::spawn(move || answers(from_server, to_client, &slow, &silent));
    let line = Arc::clone(line);
    thread::spawn(move || {
        requests(client, server, &line, &muted, ask);
        line.open.lock().unwrap().remove(&number);
    });
}

/// From the server to the client, until muted.
fn answers(mut server: TcpStream, mut client: TcpStream, line: &Line, muted: &AtomicUsize) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(count @ 1..) = server.read(&mut buffer) {
        if muted.load(Ordering::SeqCst) > 0 {
            break; // the answer to COMMIT: the server has done it
        }
        line.linger();
        if client.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    let _ = client.shutdown(Shutdown::Both);
    let _ = server.shutdown(Shutdown::Both);
}

/// From the client to the server, until a COMMIT that is to get lost.
fn requests(
    mut client: TcpStream,
    mut server: TcpStream,
    line: &Line,
    muted: &AtomicUsize,
    mut ask: impl FnMut() -> Trouble,
) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(count @ 1..) = client.read(&mut buffer) {
        line.linger();
        // The client waits for every answer, so a COMMIT comes alone.
        if &buffer[..count] == COMMIT {
            match ask() {
                Trouble::None => {}
                Trouble::RequestLost => break,
                Trouble::AnswerLost => {
                    muted.store(1, Ordering::SeqCst);
                    let _ = server.write_all(COMMIT);
                    // The other thread cuts once the answer is there.
                    thread::sleep(Duration::from_secs(5));
                    break;
                }
            }
        }
        if server.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    let _ = client.shutdown(Shutdown::Both);
    let _ = server.shutdown(Shutdown::Both);
}
