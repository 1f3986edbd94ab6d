//! What the demo works in and takes away again: a folder, topics, and a database of its own.
//!
//! Everything carries the run's random suffix, so that a run left standing with `--keep` and a new one
//! never meet. What an interrupted or kept run has left is removed by the next one, once nobody is
//! connected to its database; a comment on the database says that it is the demo's, and names its topics.

use std::path::Path;
use std::time::Duration;

use sqlx::PgConnection;

use super::Arguments;
use super::folder::{self, Names, PROJECTIONS};
use super::services::Launch;
use super::tables;
use super::written::Format;
use crate::cli::{CODE_CONFIGURATION, CODE_TRY_AGAIN, Failed, database, reach};
use crate::config::{self, Config};
use crate::kafka::{Cluster, Connection, MockBroker, Topics};
use crate::store::{Database, Timeouts};

const KAFKA: &str = "TIDEGATE__KAFKA__BOOTSTRAP_SERVERS";
const POSTGRES: &str = "TIDEGATE__POSTGRES__URL";
pub(super) const REGISTRY: &str = "TIDEGATE__SCHEMA_REGISTRY__URL";
const TIMEOUTS: Timeouts = Timeouts {
    statement: Duration::from_secs(60),
    lock: Duration::from_secs(10),
    idle_in_transaction: Duration::from_secs(60),
};
const TOPIC_LIMIT: Duration = Duration::from_secs(10);

/// A stage that is set.
pub(super) struct Stage {
    pub(super) names: Names,
    pub(super) config: Config,
    pub(super) connection: PgConnection,
    pub(super) cluster: Cluster,
    pub(super) launch: Launch,
    /// Where databases are made and dropped.
    admin: Database,
    mock: Option<MockBroker>,
}

impl Stage {
    /// Makes folder, topics and database.
    pub(super) async fn set(arguments: &Arguments, events: u64) -> Result<Self, Failed> {
        let postgres = required(POSTGRES)?;
        let names = Names::new();
        let partitions = i32::from(arguments.partitions);
        let mock = match arguments.mock {
            true => Some(mock(&names, partitions)?),
            false => None,
        };
        let kafka = match &mock {
            Some(mock) => mock.bootstrap_servers().to_owned(),
            None => required(KAFKA)?,
        };
        let mut environment = vec![
            (KAFKA, kafka),
            (POSTGRES, with_database(&postgres, &names.database)),
        ];
        if arguments.format == Format::Avro {
            environment.push((REGISTRY, required(REGISTRY)?));
        }
        let example = folder::write_example(&names, events, arguments.format);
        let path = example.map_err(failed("the demo's folder"))?;
        let config = load(&path, &environment)?;
        let cluster = Cluster::new(&config.kafka)?;
        let admin = Database::new(&postgres, TIMEOUTS)
            .map_err(|error| Failed::new(CODE_CONFIGURATION, error))?;
        let left = make_database(&admin, &names).await?;
        let mut connection = reach(&database(&config)?).await?;
        let topics = match mock {
            Some(_) => Vec::new(), // they end with this process
            None => vec![&*names.entries, &*names.overdrafts],
        };
        // Marked before there are topics: whatever happens, the next demo knows what to take away.
        let marked = tables::mark_database(&mut connection, &names.database, &topics).await;
        marked.map_err(failed("the demo's database"))?;
        if mock.is_none() {
            make_topics(&config.kafka, &cluster, &names, partitions).await?;
            delete_topics(&config.kafka, &left).await;
        }
        let launch = Launch {
            folder: names.folder.clone(),
            config: path,
            environment,
            projections: PROJECTIONS.to_vec(),
        };
        Ok(Self {
            names,
            config,
            connection,
            cluster,
            launch,
            admin,
            mock,
        })
    }

    pub(super) fn is_mock(&self) -> bool {
        self.mock.is_some()
    }

    pub(super) fn folder(&self) -> &Path {
        &self.names.folder
    }

    /// Takes all away but the folder, which has the logs. The processes have ended before.
    pub(super) async fn strike(self) -> anyhow::Result<()> {
        let Self {
            names,
            config,
            connection,
            admin,
            mock,
            ..
        } = self;
        drop(connection);
        if mock.is_none() {
            let topics = [names.entries.clone(), names.overdrafts.clone()];
            delete_topics(&config.kafka, &topics).await;
            let groups = names.groups();
            let groups: Vec<&str> = groups.iter().map(String::as_str).collect();
            if let Ok(topics) = Topics::new(&config.kafka) {
                let _ = topics.delete_groups(&groups).await; // offsets age out by themselves
            }
        }
        let mut connection = admin.connect("tidegate demo").await?;
        tables::drop_database(&mut connection, &names.database).await?;
        Ok(())
    }
}

fn failed(what: &'static str) -> impl Fn(anyhow::Error) -> Failed {
    move |error| Failed::new(CODE_TRY_AGAIN, error.context(what))
}

fn required(variable: &str) -> Result<String, Failed> {
    match std::env::var(variable) {
        Ok(value) if !value.trim().is_empty() => Ok(value),
        _ => Err(Failed::new(
            CODE_CONFIGURATION,
            anyhow::anyhow!(
                "{variable} is not set; run `deploy/local/demo`, which brings all that is needed up first, or set it to one you have"
            ),
        )),
    }
}

/// The same server, another database.
fn with_database(url: &str, name: &str) -> String {
    let (base, options) = match url.split_once('?') {
        Some((base, options)) => (base, format!("?{options}")),
        None => (url, String::new()),
    };
    let server = base.find("://").map_or(0, |scheme| scheme + 3);
    let end = base[server..]
        .find('/')
        .map_or(base.len(), |path| server + path);
    format!("{}/{name}{options}", &base[..end])
}

fn mock(names: &Names, partitions: i32) -> Result<MockBroker, Failed> {
    let topics = vec![
        (names.entries.clone(), partitions),
        (names.overdrafts.clone(), partitions),
    ];
    MockBroker::start(topics).map_err(|error| failed("the mock broker")(error.into()))
}

/// Reads the configuration as the processes will.
fn load(path: &Path, environment: &[(&'static str, String)]) -> Result<Config, Failed> {
    let ours = environment
        .iter()
        .map(|(k, v)| ((*k).to_owned(), v.clone()));
    let others = std::env::vars().filter(|(name, _)| name != KAFKA && name != POSTGRES);
    config::load(path, others.chain(ours)).map_err(|error| Failed::new(CODE_CONFIGURATION, error))
}

async fn make_topics(
    kafka: &Connection,
    cluster: &Cluster,
    names: &Names,
    partitions: i32,
) -> Result<(), Failed> {
    let failed = |error: rdkafka::error::KafkaError| {
        let error = anyhow::Error::new(error);
        let what = format!(
            "kafka at {}: topics cannot be made",
            kafka.bootstrap_servers
        );
        Failed::new(CODE_TRY_AGAIN, error.context(what))
    };
    let topics = [
        (&*names.entries, partitions),
        (&*names.overdrafts, partitions),
    ];
    let made = Topics::new(kafka).map_err(failed)?;
    made.create(&topics).await.map_err(failed)?;
    // Brokers learn of a topic one after the other.
    let until = tokio::time::Instant::now() + TOPIC_LIMIT;
    for (topic, _) in topics {
        while let Err(error) = cluster.partitions(topic).await {
            if tokio::time::Instant::now() >= until {
                return Err(error.into());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    Ok(())
}

async fn delete_topics(kafka: &Connection, topics: &[String]) {
    let topics: Vec<&str> = topics.iter().map(String::as_str).collect();
    if topics.is_empty() {
        return;
    }
    // Only tidying up: a topic that stays has a name that nobody uses.
    if let Ok(made) = Topics::new(kafka) {
        let _ = made.delete(&topics).await;
    }
}

/// Makes the database, and drops those of earlier runs; returns the topics that they had.
async fn make_database(admin: &Database, names: &Names) -> Result<Vec<String>, Failed> {
    let mut connection = reach(admin).await?;
    let left = tables::drop_left_databases(&mut connection)
        .await
        .map_err(failed("databases of earlier demos"))?;
    tables::create_database(&mut connection, &names.database)
        .await
        .map_err(failed(
            "a database cannot be created (the user needs CREATEDB)",
        ))?;
    Ok(left)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_database_is_named_in_the_path_of_the_url() {
        for (url, expected) in [
            ("postgres://u:p@h:1/postgres", "postgres://u:p@h:1/demo"),
            ("postgres://h", "postgres://h/demo"),
            (
                "postgres://h/?sslmode=require",
                "postgres://h/demo?sslmode=require",
            ),
        ] {
            assert_eq!(with_database(url, "demo"), expected);
        }
    }
}
