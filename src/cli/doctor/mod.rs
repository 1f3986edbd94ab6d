//! `tidegate doctor`: looks at everything outside, and says which guarantee results.
//!
//! It only reads. What is found is judged by pure functions in [`findings`].

mod findings;

use std::collections::BTreeSet;
use std::sync::Arc;

use chrono::Utc;
use serde_json::json;

use super::output::counted;
use super::{
    CODE_NEEDS_A_PERSON, CODE_TRY_AGAIN, ConfigArgument, Done, Failed, database, projections,
};
use crate::config::Config;
use crate::kafka::{Cluster, TopicFacts, Topics};
use crate::projection::{First, Gate, Projection, Registry};
use crate::store::migration;
use crate::store::server::{self, Facts};
use crate::store::{self, Database};
use findings::{Finding, Incoming, Level, Of, Pooler};

#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    config: ConfigArgument,
    /// One JSON object instead of text
    #[arg(long)]
    json: bool,
}

pub(super) async fn execute(arguments: Arguments, registry: Registry) -> Done {
    let mut config = arguments.config.load()?;
    let outgoing: BTreeSet<String> = config
        .projections
        .iter()
        .flat_map(|configured| configured.sql.emits.iter().map(|emit| emit.topic.clone()))
        .collect();
    let projections = projections(&mut config, registry)?;
    let mut found = vec![Finding::good(
        Of::Configuration,
        format!(
            "{}: {}",
            arguments.config.config.display(),
            counted(projections.len(), "projection")
        ),
    )];
    found.extend(findings::of_configuration(config.apply.synchronous_commit));
    let reached = [
        look_at_postgres(&config, &projections, &mut found).await,
        look_at_kafka(&config, &projections, outgoing, &mut found).await,
    ];
    show(&found, arguments.json);
    if reached.contains(&false) {
        let error = anyhow::anyhow!("not everything could be reached");
        return Err(Failed::new(CODE_TRY_AGAIN, error));
    }
    match found
        .iter()
        .filter(|finding| finding.level == Level::Bad)
        .count()
    {
        0 => Ok(()),
        bad => {
            let error = anyhow::anyhow!(
                "{} must be changed before it can work",
                counted(bad, "thing")
            );
            Err(Failed::new(CODE_NEEDS_A_PERSON, error))
        }
    }
}

/// Says whether it could be reached.
async fn look_at_postgres(
    config: &Config,
    projections: &[Arc<Projection>],
    found: &mut Vec<Finding>,
) -> bool {
    let looked = async {
        let database = database(config).map_err(|failed| failed.error)?;
        ask_postgres(&database, config, projections).await
    };
    match looked.await {
        Ok(findings) => {
            found.extend(findings);
            true
        }
        Err(error) => {
            found.push(Finding::bad(
                Of::Postgres,
                format!("{error:#}"),
                "see that it runs, and that `postgres.url` is right",
            ));
            false
        }
    }
}

async fn ask_postgres(
    database: &Database,
    config: &Config,
    projections: &[Arc<Projection>],
) -> anyhow::Result<Vec<Finding>> {
    let mut connection = database.connect("tidegate doctor").await?;
    let before = Utc::now();
    let facts = server::facts(&mut connection).await?;
    let ours = before + (Utc::now() - before) / 2;
    // While the first one is open: only a pooler answers both with one process.
    let mut second = database.connect("tidegate doctor").await?;
    let shares = server::facts(&mut second).await?.pid == facts.pid;
    let pooler = match (shares, server::facts(&mut connection).await) {
        (_, Err(error)) if error.is_of_a_pooler() => Pooler::Forgets,
        (_, Err(error)) => return Err(error.into()),
        (true, Ok(_)) => Pooler::Seen,
        (false, Ok(_)) => Pooler::NotSeen,
    };
    if pooler == Pooler::Forgets {
        connection = database.connect("tidegate doctor").await?;
    }
    let state = migration::state(&mut connection).await?;
    let mut found = vec![Finding::good(
        Of::Postgres,
        format!(
            "{}: version {}, as {}",
            database.place(),
            facts.version_name,
            facts.role
        ),
    )];
    let needed = connections(config, projections.len());
    found.extend(findings::of_server(
        &facts,
        ours,
        (pooler, config.pooled),
        needed,
    ));
    found.push(findings::of_schema(state));
    if state == migration::State::Current {
        let missing = missing(&mut connection, &facts).await?;
        found.extend(findings::of_privileges(&facts, &missing));
    }
    Ok(found)
}

async fn missing(
    connection: &mut sqlx::PgConnection,
    facts: &Facts,
) -> Result<Vec<String>, store::Error> {
    match facts.superuser {
        true => Ok(Vec::new()),
        false => server::missing_privileges(connection).await,
    }
}

/// Connections of one process: a writer has one, and a second one while it waits for a lock.
fn connections(config: &Config, projections: usize) -> usize {
    const HELPERS: usize = 4;
    projections * config.apply.writers * 2 + HELPERS
}

async fn look_at_kafka(
    config: &Config,
    projections: &[Arc<Projection>],
    outgoing: BTreeSet<String>,
    found: &mut Vec<Finding>,
) -> bool {
    match ask_kafka(config, projections, outgoing).await {
        Ok(findings) => {
            found.extend(findings);
            true
        }
        Err(error) => {
            let cure = "see that it runs, and that `kafka.bootstrap_servers` and `kafka.options` are right";
            found.push(Finding::bad(Of::Kafka, format!("{error:#}"), cure));
            false
        }
    }
}

async fn ask_kafka(
    config: &Config,
    projections: &[Arc<Projection>],
    outgoing: BTreeSet<String>,
) -> anyhow::Result<Vec<Finding>> {
    let cluster = Cluster::new(&config.kafka)?;
    let topics = Topics::new(&config.kafka)?;
    let servers = &config.kafka.bootstrap_servers;
    let mut found = vec![Finding::good(
        Of::Kafka,
        format!("{servers}: {}", counted(cluster.brokers().await?, "broker")),
    )];
    for projection in projections {
        for topic in &projection.topics {
            let facts = ask_topic(&cluster, &topics, topic).await?;
            let begins = match &facts {
                Some(_) => lowest(&cluster, topic).await?,
                None => 0,
            };
            let incoming = Incoming {
                projection: projection.name(),
                topic,
                begins,
                needs_every_event: matches!(
                    projection.gate,
                    Gate::Next {
                        first: First::At(_)
                    }
                ),
            };
            for finding in findings::of_incoming(&incoming, facts.as_ref()) {
                // What is wrong with a topic is said once, however many read it.
                if !found.contains(&finding) {
                    found.push(finding);
                }
            }
        }
    }
    let letters = projections
        .iter()
        .filter_map(|projection| projection.dead_letter_topic.clone());
    for topic in outgoing.into_iter().chain(letters) {
        let facts = ask_topic(&cluster, &topics, &topic).await?;
        found.extend(findings::of_outgoing(&topic, facts.as_ref()));
    }
    Ok(found)
}

async fn ask_topic(
    cluster: &Cluster,
    topics: &Topics,
    topic: &str,
) -> anyhow::Result<Option<TopicFacts>> {
    match cluster.copies(topic).await? {
        None => Ok(None),
        Some(copies) => Ok(Some(topics.facts(topic, copies).await?)),
    }
}

/// The highest offset that a log of the topic begins at.
async fn lowest(cluster: &Cluster, topic: &str) -> anyhow::Result<i64> {
    let logs = cluster.logs(&[topic.to_owned()]).await?;
    Ok(logs.into_iter().map(|(_, log)| log.low).max().unwrap_or(0))
}

fn show(found: &[Finding], as_json: bool) {
    if as_json {
        let findings = found.iter().map(|finding| {
            json!({
                "of": finding.of.name(), "level": finding.level.name(), "text": finding.text, "cure": finding.cure,
            })
        });
        let json = json!({ "findings": findings.collect::<Vec<_>>(), "weakened": findings::is_weakened(found) });
        println!("{json:#}");
        return;
    }
    for of in [Of::Configuration, Of::Postgres, Of::Kafka] {
        println!("{}", of.name());
        for finding in found.iter().filter(|finding| finding.of == of) {
            println!("  {:<5} {}", finding.level.name(), finding.text);
            if !finding.cure.is_empty() {
                println!("        {}", finding.cure);
            }
        }
    }
    println!("\nguarantee");
    println!(
        "  Effects, positions and messages of a batch commit together, once, and only by a partition's newest owner."
    );
    match findings::is_weakened(found) {
        true => println!("  It is weakened by what is marked `weak`."),
        false => println!("  Nothing was found that weakens it."),
    }
}
