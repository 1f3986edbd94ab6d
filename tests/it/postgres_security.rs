//! A Postgres that is reached over TLS, and looked in the eye.

use serde_json::json;

use crate::harness::{Authority, LONG, PostgresServer, Servers, World, wait_until};

struct Guarded {
    postgres: PostgresServer,
    authority: Authority,
    folder: tempfile::TempDir,
}

impl Guarded {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let authority = Authority::new(folder.path(), "ca");
        authority.certify("server", "IP:127.0.0.1");
        authority.certify("elsewhere", "DNS:elsewhere.example");
        authority.certify_in_the_past("expired", "IP:127.0.0.1");
        authority.certify("client", "DNS:client");
        let mut postgres = PostgresServer::start();
        postgres.only_over_tls(&authority, "server");
        Self {
            postgres,
            authority,
            folder,
        }
    }

    fn servers(&self) -> Servers {
        Servers::shared().with_postgres(&self.postgres)
    }
}

#[test]
fn the_database_is_reached_over_tls_and_verified_in_full() {
    let guarded = Guarded::start();
    let world = World::ledger_at(&guarded.servers(), 2);
    let mut stream = world.stream();
    stream.produce(200);
    let process = world.start("a");
    world.assert_exact();
    let all_of_it: bool = world.db.one(
        "SELECT bool_and(s.ssl) FROM pg_stat_ssl s JOIN pg_stat_activity a USING (pid)
         WHERE a.application_name LIKE 'tidegate %'",
    );
    assert!(all_of_it);
    process.stop();

    // By a certificate instead of a password.
    world.db.run("CREATE ROLE client LOGIN SUPERUSER");
    let (certificate, key) = (
        guarded.authority.file("client.pem"),
        guarded.authority.file("client.key"),
    );
    let url = world.db.url().replace("postgres@", "client@");
    let url = format!("{url}&sslcert={certificate}&sslkey={key}");
    stream.produce(200);
    let launch = world.launch("b").env("TIDEGATE__POSTGRES__URL", &url);
    let process = launch.start();
    world.assert_exact();
    let is_client: bool = world.db.one(
        "SELECT bool_and(usename = 'client') FROM pg_stat_activity WHERE application_name LIKE 'tidegate %-%'",
    );
    assert!(is_client);
    process.stop();
    world
        .db
        .run("DROP OWNED BY client; REASSIGN OWNED BY client TO postgres");
}

// I10: it waits, and says what to do.
#[test]
fn a_server_that_is_not_who_it_should_be_is_refused() {
    let guarded = Guarded::start();
    let world = World::journal_at(&guarded.servers(), 1);
    let _stranger = Authority::new(guarded.folder.path(), "stranger");
    let stranger = world.db.url().replace("ca.pem", "stranger.pem");
    let open = world.db.url().replace("verify-full", "disable");
    let url = world.db.url();
    let doctor = |name: &str, url: &str| {
        let launch = world.launch(name).env("TIDEGATE__POSTGRES__URL", url);
        launch.output(&["doctor"])
    };
    let assert_cure = |name: &str, url: &str, cure: &str| {
        let found = doctor(name, url).expect(75).stdout;
        assert!(found.contains(cure), "{name}: {found}");
    };
    doctor("right", &url).expect(0);
    assert_cure("stranger", &stranger, "`sslrootcert` in `postgres.url`");
    assert_cure("open", &open, "no encryption");
    for (certificate, cure) in [
        ("elsewhere", "for another name"),
        ("expired", "has to be renewed"),
    ] {
        guarded.postgres.present(&guarded.authority, certificate);
        // A reload takes its time.
        wait_until(LONG, "the server presents it", || {
            doctor("waiting", &url).code != 0
        });
        assert_cure(certificate, &url, cure);
    }

    let sender = world.sender();
    sender.send_json(0, &json!({ "account": "a" }));
    sender.flush();
    let mut process = world.start("a");
    process.wait_for_log(LONG, &["not started yet", "has to be renewed"]);
    assert!(process.is_running());
    guarded.postgres.present(&guarded.authority, "server");
    wait_until(LONG, "it goes on", || {
        let open = crate::harness::Session::try_open(&url);
        open.is_ok_and(|mut session| {
            let rows: Vec<(i64,)> = session
                .try_rows("SELECT count(*) FROM tidegate.position WHERE next_offset = 1")
                .unwrap_or_default();
            rows == [(1,)]
        })
    });
    process.stop();
}
