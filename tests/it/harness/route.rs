//! An address that leads to a server, for now.
//!
//! Where it leads can be changed, as a failover does; and it can forget its connections, as a network does
//! that tells nobody: both ends stay open, and neither hears anything any more.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

/// Listens until the test's process ends.
pub(crate) struct Route {
    address: String,
    line: Arc<Line>,
}

struct Line {
    server: Mutex<String>,
    open: Mutex<Vec<Connection>>,
}

struct Connection {
    ends: [TcpStream; 2],
    forgotten: Arc<AtomicBool>,
}

impl Route {
    /// `server` is `host:port`.
    pub(crate) fn to(server: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let line = Arc::new(Line {
            server: Mutex::new(server.to_owned()),
            open: Mutex::new(Vec::new()),
        });
        let own = Arc::clone(&line);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                own.serve(client);
            }
        });
        Self { address, line }
    }

    /// `host:port`.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Cuts all connections; new ones go to this server.
    pub(crate) fn lead_to(&self, server: &str) {
        *self.line.server.lock().unwrap() = server.to_owned();
        let open = std::mem::take(&mut *self.line.open.lock().unwrap());
        for end in open.iter().flat_map(|connection| &connection.ends) {
            let _ = end.shutdown(Shutdown::Both);
        }
    }

    /// Swallows what is said on the connections there are, and that one has ended. New ones get through.
    pub(crate) fn forget(&self) {
        for connection in &*self.line.open.lock().unwrap() {
            connection.forgotten.store(true, Ordering::SeqCst);
        }
    }
}

impl Line {
    fn serve(&self, client: TcpStream) {
        let mut open = self.open.lock().unwrap();
        let Ok(server) = TcpStream::connect(&*self.server.lock().unwrap()) else {
            return; // nobody listens: closed at once
        };
        let copy = |end: &TcpStream| end.try_clone().unwrap();
        let forgotten = Arc::new(AtomicBool::new(false));
        open.push(Connection {
            ends: [copy(&client), copy(&server)],
            forgotten: Arc::clone(&forgotten),
        });
        pass_on(copy(&client), copy(&server), Arc::clone(&forgotten));
        pass_on(server, client, forgotten);
    }
}

/// In one direction, until either end closes.
fn pass_on(mut from: TcpStream, mut to: TcpStream, forgotten: Arc<AtomicBool>) {
    let _ = to.set_nodelay(true);
    thread::spawn(move || {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            if !forgotten.load(Ordering::SeqCst) && to.write_all(&buffer[..count]).is_err() {
                break;
            }
        }
        if !forgotten.load(Ordering::SeqCst) {
            let _ = to.shutdown(Shutdown::Both);
            let _ = from.shutdown(Shutdown::Both);
        }
    });
}
