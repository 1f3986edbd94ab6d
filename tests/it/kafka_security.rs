//! A Kafka that lets in only whom it knows, by certificate, password or token.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use serde_json::json;

use crate::harness::{Authority, KafkaServer, LONG, Launch, Listener, Servers, World, wait_until};

/// Settings of librdkafka.
type Options<'a> = &'a [(&'a str, &'a str)];

const MODULES: &str = "org.apache.kafka.common.security";

/// What user `tidegate` says over PLAIN.
pub(crate) const PLAIN_PASSWORD: &str = "plain-word";

/// A broker with an address for each kind of security, and whose certificates it has and knows.
pub(crate) struct Guarded {
    kafka: KafkaServer,
    pub(crate) authority: Authority,
    folder: tempfile::TempDir,
}

impl Guarded {
    pub(crate) fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let authority = Authority::new(folder.path(), "ca");
        authority.certify("broker", "IP:127.0.0.1");
        authority.certify("elsewhere", "DNS:elsewhere.example");
        authority.certify_in_the_past("expired", "IP:127.0.0.1");
        authority.certify("client", "DNS:client");
        let store =
            |name: &str| format!("ssl.keystore.location={}", authority.bundle(name).display());
        let listener = |name, protocol, settings| Listener {
            name,
            protocol,
            settings,
        };
        let tls = |name: &str| store(name);
        let sasl = format!(
            "sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER
plain.sasl.jaas.config={MODULES}.plain.PlainLoginModule required user_tidegate=\"{PLAIN_PASSWORD}\";
scram-sha-256.sasl.jaas.config={MODULES}.scram.ScramLoginModule required;
scram-sha-512.sasl.jaas.config={MODULES}.scram.ScramLoginModule required;
oauthbearer.sasl.jaas.config={MODULES}.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub=\"broker\";
oauthbearer.connections.max.reauth.ms=3600000
{}
",
            store("broker")
        );
        let listeners = [
            listener("TLS", "SSL", tls("broker")),
            listener(
                "MUTUAL",
                "SSL",
                format!("{}\nssl.client.auth=required", tls("broker")),
            ),
            listener("ELSEWHERE", "SSL", tls("elsewhere")),
            listener("EXPIRED", "SSL", tls("expired")),
            listener("SASL", "SASL_SSL", sasl),
        ];
        let settings = format!(
            "ssl.keystore.type=PEM\nssl.truststore.type=PEM\nssl.truststore.location={}",
            authority.file("ca.pem")
        );
        let users = [("tidegate", "scram-word")];
        Self {
            kafka: KafkaServer::start_listening(&settings, &listeners, &users),
            authority,
            folder,
        }
    }

    pub(crate) fn servers(&self) -> Servers {
        Servers::shared().with_kafka(&self.kafka)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A launch that goes to a listener with these settings beside its authority's certificate.
    pub(crate) fn launch<'w>(
        &self,
        world: &'w World,
        name: &str,
        listener: &str,
        options: &[(&str, &str)],
    ) -> Launch<'w> {
        let protocol = match listener {
            "SASL" => "SASL_SSL",
            _ => "SSL",
        };
        let launch = world
            .launch(name)
            .env(
                "TIDEGATE__KAFKA__BOOTSTRAP_SERVERS",
                self.kafka.address_of(listener),
            )
            .option("reconnect.backoff.max.ms", "500");
        let own = [
            ("security.protocol", protocol),
            ("ssl.ca.location", &*self.authority.file("ca.pem")),
        ];
        let kept = own
            .iter()
            .filter(|(key, _)| !options.iter().any(|(other, _)| other == key));
        kept.chain(options)
            .filter(|(_, value)| !value.is_empty())
            .fold(launch, |launch, (key, value)| launch.option(key, value))
    }
}

fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_secs()
}

/// A token that nobody has signed, as the broker takes it in tests; it expires so many seconds from now.
fn token(seconds: i64) -> String {
    let encoded = |value: serde_json::Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let begun = i64::try_from(now()).unwrap();
    format!(
        "{}.{}.",
        encoded(json!({ "alg": "none" })),
        encoded(json!({ "sub": "tidegate", "iat": begun - 60, "exp": begun + seconds }))
    )
}

/// Puts a token where a reader never finds half of one.
fn put(path: &Path, token: &str) {
    let new = path.with_extension("new");
    fs::write(&new, token).unwrap();
    fs::rename(new, path).unwrap();
}

#[test]
fn records_and_messages_pass_through_every_kind_of_security() {
    let guarded = Guarded::start();
    let world = World::ledger_at(&guarded.servers(), 2);
    let mut stream = world.stream();
    let token_file = guarded.file("token");
    put(&token_file, &token(600));
    let password = guarded.file("password");
    fs::write(&password, "scram-word\n").unwrap();
    let endpoint = format!("file://{}", token_file.display());
    let (certificate, key) = (
        guarded.authority.file("client.pem"),
        guarded.authority.file("client.key"),
    );
    let mutual = [
        ("ssl.certificate.location", &*certificate),
        ("ssl.key.location", &*key),
    ];
    let plain = [
        ("sasl.mechanism", "PLAIN"),
        ("sasl.username", "tidegate"),
        ("sasl.password", PLAIN_PASSWORD),
    ];
    // The password is in a file that a variable names.
    let scram = |mechanism| [("sasl.mechanism", mechanism), ("sasl.username", "tidegate")];
    let (scram_256, scram_512) = (scram("SCRAM-SHA-256"), scram("SCRAM-SHA-512"));
    let bearer = [
        ("sasl.mechanism", "OAUTHBEARER"),
        ("sasl.oauthbearer.token.endpoint.url", &*endpoint),
    ];
    let kinds: [(&str, &str, Options<'_>); 6] = [
        ("tls", "TLS", &[]),
        ("mutual", "MUTUAL", &mutual),
        ("plain", "SASL", &plain),
        ("scram-256", "SASL", &scram_256),
        ("scram-512", "SASL", &scram_512),
        ("bearer", "SASL", &bearer),
    ];
    for (name, listener, options) in kinds {
        let launch = |what: &str| {
            let launch = guarded.launch(&world, &format!("{name}{what}"), listener, options);
            match name.starts_with("scram") {
                true => launch.env(
                    "TIDEGATE__KAFKA__OPTIONS__SASL__PASSWORD__FILE",
                    password.display(),
                ),
                false => launch,
            }
        };
        stream.produce(100);
        let process = launch("").start();
        world.assert_exact();
        wait_until(LONG, &format!("{name}: all messages are sent"), || {
            let unsent: i64 = world.db.one(
                "SELECT count(*) FROM tidegate.outbox o JOIN tidegate.relay r USING (stream) WHERE o.number > r.sent_through",
            );
            unsent == 0
        });
        let found = launch("-doctor").output(&["doctor"]).expect(0).stdout;
        assert!(found.contains("1 broker"), "{found}");
        process.stop();
    }
    assert!(!world.sent().is_empty());
}

// I10: it waits, and says what to do; nothing else would help.
#[test]
fn who_is_not_let_in_is_told_what_to_do() {
    let guarded = Guarded::start();
    let world = World::journal_at(&guarded.servers(), 1);
    let expired = guarded.file("expired");
    put(&expired, &token(-10));
    let expired = format!("file://{}", expired.display());
    let user = |mechanism, name, word| {
        [
            ("sasl.mechanism", mechanism),
            ("sasl.username", name),
            ("sasl.password", word),
        ]
    };
    let plain = user("PLAIN", "tidegate", "wrong");
    let scram = user("SCRAM-SHA-256", "tidegate", "wrong");
    let nobody = user("SCRAM-SHA-512", "nobody", "scram-word");
    let none = [("ssl.ca.location", "")];
    let open = [("security.protocol", "PLAINTEXT"), ("ssl.ca.location", "")];
    let no_token = [
        ("sasl.mechanism", "OAUTHBEARER"),
        ("sasl.oauthbearer.token.endpoint.url", &*expired),
    ];
    let cases: [(&str, &str, Options<'_>, &str); 9] = [
        ("unknown-authority", "TLS", &none, "set `ssl.ca.location`"),
        ("other-name", "ELSEWHERE", &[], "it is for another name"),
        ("expired", "EXPIRED", &[], "its time is over"),
        (
            "no-certificate",
            "MUTUAL",
            &[],
            "set `ssl.certificate.location`",
        ),
        ("not-encrypted", "TLS", &open, "set `security.protocol`"),
        ("plain", "SASL", &plain, "`sasl.password`"),
        ("scram", "SASL", &scram, "`sasl.password`"),
        ("nobody", "SASL", &nobody, "`sasl.username`"),
        ("no-token", "SASL", &no_token, "see to the token"),
    ];
    let mut wrong = Vec::new();
    thread::scope(|scope| {
        let asked: Vec<_> = cases
            .iter()
            .map(|(name, listener, options, cure)| {
                let launch = guarded.launch(&world, name, listener, options);
                (name, cure, scope.spawn(move || launch.output(&["doctor"])))
            })
            .collect();
        for (name, cure, answer) in asked {
            let answer = answer.join().unwrap();
            if answer.code != 75 || !answer.stdout.contains(cure) {
                wrong.push(format!("{name}: {cure}: {answer:#?}"));
            }
        }
    });
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

// I10: it neither ends nor skips; once it is let in it goes on by itself.
#[test]
fn a_process_that_is_not_let_in_waits_and_goes_on_once_it_is() {
    let guarded = Guarded::start();
    let world = World::journal_at(&guarded.servers(), 1);
    let sender = world.sender();
    sender.send_json(0, &json!({ "account": "a" }));
    sender.flush();
    let file = guarded.file("token");
    put(&file, &token(-10));
    let endpoint = format!("file://{}", file.display());
    let bearer = [
        ("sasl.mechanism", "OAUTHBEARER"),
        ("sasl.oauthbearer.token.endpoint.url", &*endpoint),
    ];
    let mut process = guarded
        .launch(&world, "a", "SASL", &bearer)
        .env("TIDEGATE__HTTP__LISTEN", "127.0.0.1:0")
        .start();
    process.wait_for_log(LONG, &["does not let this process in", "see to the token"]);
    process.wait_for_log(
        LONG,
        &["not started yet", "the token has expired", "failures=2"],
    );
    assert!(process.is_running());
    put(&file, &token(600));
    wait_until(LONG, "it has applied the record", || world.progress() == 1);
    process.stop();
}

/// Keeps a token's file fresh until dropped.
struct Renewal(
    #[expect(dead_code, reason = "dropped, it ends the renewal")] std::sync::mpsc::Sender<()>,
);

impl Renewal {
    fn of(path: PathBuf, seconds: i64) -> Self {
        let (stop, stopped): (_, Receiver<()>) = channel();
        put(&path, &token(seconds));
        thread::spawn(move || {
            let every = Duration::from_secs(1);
            while stopped.recv_timeout(every) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                put(&path, &token(seconds));
            }
        });
        Self(stop)
    }
}

#[test]
fn a_token_is_renewed_while_nothing_happens() {
    const LIFETIME: i64 = 20;
    let guarded = Guarded::start();
    let world = World::ledger_at(&guarded.servers(), 1);
    let file = guarded.file("token");
    let renewal = Renewal::of(file.clone(), LIFETIME);
    let endpoint = format!("file://{}", file.display());
    let bearer = [
        ("sasl.mechanism", "OAUTHBEARER"),
        ("sasl.oauthbearer.token.endpoint.url", &*endpoint),
    ];
    let process = guarded.launch(&world, "a", "SASL", &bearer).start();
    let mut stream = world.stream();
    stream.produce(50);
    world.assert_exact();
    let idle_since = now();
    wait_until(LONG, "two lifetimes of a token are over", || {
        now() > idle_since + 2 * u64::try_from(LIFETIME).unwrap()
    });
    stream.produce(50);
    world.assert_exact();
    assert!(
        !process.log().contains("does not let this process in"),
        "{}",
        process.log()
    );
    drop(renewal);
    process.wait_for_log(
        LONG,
        &["does not let this process in", "the token has expired"],
    );
    process.stop();
}

/// An endpoint of OAuth 2.0: gives a token to whoever knows the secret. The requests that came.
fn endpoint() -> (String, Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, requests) = channel();
    thread::spawn(move || {
        for mut client in listener.incoming().flatten() {
            let mut reader = BufReader::new(client.try_clone().unwrap());
            let (mut head, mut length) = (String::new(), 0);
            loop {
                let mut line = String::new();
                if reader.read_line(&mut line).unwrap() <= 2 {
                    break;
                }
                if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
                    length = value.trim().parse().unwrap();
                }
                head.push_str(&line);
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body).unwrap();
            let known = format!("Basic {}", STANDARD.encode("tidegate:oauth%20word"));
            let (status, answer) = match head.contains(&known) {
                true => (
                    "200 OK",
                    json!({ "access_token": token(300), "token_type": "Bearer" }),
                ),
                false => ("401 Unauthorized", json!({ "error": "invalid_client" })),
            };
            let answer = answer.to_string();
            let _ = write!(
                client,
                "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{answer}",
                answer.len()
            );
            let _ = sender.send(String::from_utf8(body).unwrap());
        }
    });
    (format!("http://{address}/token"), requests)
}

#[test]
fn a_token_comes_from_an_endpoint_too() {
    let guarded = Guarded::start();
    let world = World::journal_at(&guarded.servers(), 1);
    let (url, requests) = endpoint();
    let bearer = |secret: &'static str| {
        [
            ("sasl.mechanism", "OAUTHBEARER"),
            ("sasl.oauthbearer.method", "oidc"),
            ("sasl.oauthbearer.client.id", "tidegate"),
            ("sasl.oauthbearer.scope", "kafka read"),
            ("sasl.oauthbearer.client.secret", secret),
        ]
    };
    let launch = |name, secret| {
        let launch = guarded.launch(&world, name, "SASL", &bearer(secret));
        launch.option("sasl.oauthbearer.token.endpoint.url", &url)
    };
    let refused = launch("wrong", "wrong word").output(&["doctor"]).expect(75);
    assert!(
        refused.stdout.contains("401 Unauthorized, invalid_client")
            && refused.stdout.contains("see to the token"),
        "{}",
        refused.stdout
    );
    let process = launch("right", "oauth word").start();
    let sender = world.sender();
    sender.send_json(0, &json!({ "account": "a" }));
    sender.flush();
    wait_until(LONG, "it has applied the record", || world.progress() == 1);
    process.stop();
    for request in requests.try_iter() {
        assert_eq!(request, "grant_type=client_credentials&scope=kafka%20read");
    }
}
