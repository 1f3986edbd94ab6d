//! The commands that somebody may give over HTTP while the service runs: see `http/admin.rs` for who may.
//!
//! A request's key becomes the id of its row in `operation`, which is written in the transaction that does it. So
//! however often it is repeated, and to however many processes, it is done once; the database decides (I2).

use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};
use sqlx::PgConnection;
use tokio::sync::Mutex;
use uuid::Uuid;

use super::dead_letters::{self, LETTERS_MAX, Which, find, letter_failed};
use super::{
    CODE_CONFIGURATION, CODE_NEEDS_A_PERSON, CODE_TRY_AGAIN, Failed, connect, reposition_failed,
    reset, status,
};
use crate::config::Config;
use crate::engine::backoff;
use crate::engine::redact::Secrets;
use crate::http::{Action, Answered, Answering, Asked, Operations};
use crate::kafka::{Cluster, Connection};
use crate::projection::Projection;
use crate::registry::Registry as SchemaRegistry;
use crate::runtime::{self, BeforeReset, Operator};
use crate::store::dead_letter::{self, Chosen};
use crate::store::operation::{self, Recorded};
use crate::store::{self, Database};

/// Namespace of the ids that requests name themselves.
const REQUESTS: Uuid = Uuid::from_u128(0x5b0c_2f6e_91d4_4c8a_a1f3_7e02_66d9_3c15);
/// What `operation` calls the one action that takes many transactions.
const REDRIVE: &str = "redrive";
/// How often it is tried to record an end.
const RECORD_ATTEMPTS: u32 = 8;

/// What the commands need.
pub(super) struct Remote(Arc<Inner>);

struct Inner {
    projections: Vec<Arc<Projection>>,
    database: Database,
    kafka: Connection,
    schemas: Option<Arc<SchemaRegistry>>,
    secrets: Secrets,
    /// Who redrives or discards holds it: what each has in memory of up to a million letters is not small.
    letters: Mutex<()>,
}

/// What of a request's body is understood.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Body {
    entity: Option<String>,
    reason: Option<String>,
    number: Option<i64>,
    why: Option<String>,
    to: Option<String>,
    #[serde(default)]
    new_log: Vec<String>,
    #[serde(default)]
    dry_run: bool,
    #[serde(default)]
    yes: bool,
}

impl Remote {
    pub(super) fn new(config: &Config, projections: &[Arc<Projection>]) -> Result<Self, Failed> {
        let database = super::database(config)?;
        Ok(Self(Arc::new(Inner {
            projections: projections.to_vec(),
            schemas: super::schema_registry(config, &database)?,
            database,
            kafka: config.kafka.clone(),
            secrets: config.secrets(),
            letters: Mutex::new(()),
        })))
    }
}

impl Operations for Remote {
    fn act(&self, asked: Asked) -> Answering<'_> {
        let inner = Arc::clone(&self.0);
        // It goes on when whoever asked has gone.
        let done = tokio::spawn(async move { inner.act(asked).await });
        Box::pin(async move {
            match done.await {
                Ok(answered) => answered,
                Err(_) => Answered::refused(500, "it has panicked; see the log"),
            }
        })
    }
}

impl Inner {
    async fn act(&self, asked: Asked) -> Answered {
        let done = match asked.action {
            Action::Status => status::read(&self.database, &self.kafka).await,
            _ => Box::pin(self.once(&asked)).await,
        };
        match done {
            Ok(body) => Answered { status: 200, body },
            Err(failed) => Answered::refused(http_status(failed.code), self.told(&failed)),
        }
    }

    /// Does what is asked for, unless it has been done.
    async fn once(&self, asked: &Asked) -> Result<Value, Failed> {
        let id = Uuid::new_v5(&REQUESTS, asked.key.as_bytes());
        let request = json!({
            "action": format!("{:?}", asked.action), "projection": asked.projection, "body": asked.body,
        });
        let mut connection = connect(&self.database).await?;
        if let Some(done) = operation::read(&mut connection, id).await?
            && !(done.has_failed() && is_of(&done, &request))
        {
            return repeated(id, &done, &request);
        }
        let who = format!("HTTP API from {}", asked.from);
        let operator = Operator {
            who: &who,
            operation: id,
            request: Some(&request),
            timeouts: &self.database.timeouts,
        };
        let performed = self.perform(&mut connection, asked, operator).await;
        // Not the same, which was idle for as long as a redrive took.
        let mut connection = connect(&self.database).await?;
        let recorded = operation::read(&mut connection, id).await?;
        match (performed, recorded) {
            (Ok(Ok(result)), Some(done)) => Ok(described(id, &done, false, result)),
            (Ok(Ok(result)), None) => Ok(json!({ "result": result, "repeated": false })),
            // What is recorded was written by this very request.
            (Ok(Err(failed)), recorded) => {
                let again = match recorded.is_some_and(|done| done.has_failed()) {
                    true => "has failed; with the same `Idempotency-Key` it goes on",
                    false => {
                        "has begun and did not end; with another `Idempotency-Key` it is tried again"
                    }
                };
                let why = format!("operation {id} {again}");
                Err(Failed::new(failed.code, failed.error.context(why)))
            }
            // Somebody else may have done it meanwhile, with the same key; or this one, and had no answer to its COMMIT.
            (Err(_), Some(done)) => repeated(id, &done, &request),
            (Err(failed), None) => Err(failed),
        }
    }

    /// The inner error is of what began, and was recorded before it failed; behind the outer one nothing is.
    async fn perform(
        &self,
        connection: &mut PgConnection,
        asked: &Asked,
        operator: Operator<'_>,
    ) -> Result<Result<Value, Failed>, Failed> {
        let projection = find(&self.projections, &asked.projection)
            .map_err(|failed| Failed::new(NOTHING, failed.error))?;
        let name = projection.name();
        let body: Body = serde_json::from_value(asked.body.clone()).map_err(|error| {
            Failed::new(WRONG, anyhow::Error::new(error).context("the request"))
        })?;
        match asked.action {
            Action::Status => Ok(Ok(Value::Null)),
            Action::Pause | Action::Resume => {
                let running = asked.action == Action::Resume;
                let done = runtime::set_running(connection, name, running, operator).await;
                done.map_err(reposition_failed)?;
                Ok(Ok(json!({ "running": running })))
            }
            Action::Reset => self
                .reset(connection, projection, body, operator)
                .await
                .map(Ok),
            Action::AcceptGap => {
                let entity = body.entity.ok_or_else(|| missing("entity"))?;
                let done = runtime::accept_gap(connection, projection, &entity, operator).await;
                let (_, before, first) = done.map_err(letter_failed)?;
                Ok(Ok(json!({ "after": before, "comes": first })))
            }
            Action::Discard => {
                let why = body.why.clone().ok_or_else(|| missing("why"))?;
                let filter = which(body)?.filter_of(projection);
                let _alone = self.letters.try_lock().map_err(|_| busy())?;
                let letters = dead_letter::choose(connection, &filter, LETTERS_MAX).await?;
                if letters.is_empty() {
                    return Err(Failed::new(
                        NOTHING,
                        anyhow::anyhow!("no such record is parked"),
                    ));
                }
                let done = runtime::discard(connection, projection, &letters, &why, operator).await;
                done.map_err(letter_failed)?;
                Ok(Ok(json!({ "discarded": letters.len() })))
            }
            Action::Redrive => {
                let filter = which(body)?.filter_of(projection);
                let _alone = self.letters.try_lock().map_err(|_| busy())?;
                let letters = dead_letter::choose(connection, &filter, LETTERS_MAX).await?;
                let begun = runtime::begin_redrive(connection, name, letters.len(), operator).await;
                let id = begun.map_err(letter_failed)?;
                Ok(self.redrive(projection, &letters, id).await)
            }
        }
    }

    /// Resets, or says what a reset would do. It is not done by mistake: whoever wants it says so besides.
    async fn reset(
        &self,
        connection: &mut PgConnection,
        projection: &Projection,
        body: Body,
        operator: Operator<'_>,
    ) -> Result<Value, Failed> {
        let to = body.to.ok_or_else(|| missing("to"))?;
        let target = reset::target(&to, &projection.topics)
            .map_err(|why| Failed::new(WRONG, anyhow::anyhow!("`to`: {why}")))?;
        let cluster = Cluster::new(&self.kafka)?;
        // In the middle of a deployment it may be one of either version that is asked.
        let before = BeforeReset::Same;
        if body.dry_run {
            let plan = runtime::plan_reset(connection, &cluster, projection, before, &target);
            let plan = plan.await;
            return Ok(reset::planned(&plan.map_err(reset::failed)?));
        }
        if !body.yes {
            let error = anyhow::anyhow!(
                "a reset empties the tables of `{}`: `\"dry_run\": true` shows what it would do, `\"yes\": true` does it",
                projection.name()
            );
            return Err(Failed::new(WRONG, error));
        }
        let asked = (&target, &*body.new_log);
        let reset = runtime::reset(connection, &cluster, projection, before, asked, operator);
        let limit = operator.timeouts.transaction();
        let done = store::within("the reset", limit, reset).await;
        let done = done.map_err(reset::failed)?;
        Ok(json!({ "generation": done.generation, "new_log": done.made_anew }))
    }

    /// Applies letters again, and records what came of it with the operation that said so.
    async fn redrive(
        &self,
        projection: &Projection,
        letters: &[Chosen],
        id: Uuid,
    ) -> Result<Value, Failed> {
        let done = self.apply_again(projection, letters).await;
        let after = match &done {
            Ok(result) => result.clone(),
            Err(failed) => operation::failed(&self.told(failed)),
        };
        let recorded = self.record(id, &after).await;
        let result = done?;
        recorded.map(|()| result)
    }

    /// Records an end, also behind a short outage: what is not recorded may still be running for all that others know.
    async fn record(&self, id: Uuid, after: &Value) -> Result<(), Failed> {
        let mut failures = 0;
        loop {
            let recorded = async {
                let mut connection = connect(&self.database).await?;
                Ok(operation::ended(&mut connection, id, after).await?)
            };
            failures += 1;
            match recorded.await {
                Err(_) if failures < RECORD_ATTEMPTS => {
                    tokio::time::sleep(backoff::delay(failures, fastrand::f64())).await;
                }
                recorded => return recorded,
            }
        }
    }

    async fn apply_again(
        &self,
        projection: &Projection,
        letters: &[Chosen],
    ) -> Result<Value, Failed> {
        let redriving = dead_letters::Redriving {
            projection,
            database: &self.database,
            schemas: self.schemas.as_ref(),
            secrets: &self.secrets,
            rate: None,
        };
        let total = redriving.redrive(letters, |_, _| {}).await?;
        let failed = total.failed.iter().map(|(number, _)| *number);
        Ok(json!({
            "applied": total.applied, "stale": total.stale, "duplicate": total.duplicate,
            "filtered": total.filtered, "messages": total.messages, "failed_again": failed.collect::<Vec<_>>(),
        }))
    }

    /// Without what must not be shown.
    fn told(&self, failed: &Failed) -> String {
        self.secrets.cleaned(&format!("{:#}", failed.error))
    }
}

fn missing(what: &str) -> Failed {
    Failed::new(WRONG, anyhow::anyhow!("the request has no `{what}`"))
}

fn busy() -> Failed {
    let error = anyhow::anyhow!(
        "this process redrives or discards dead letters already; ask again when it has ended"
    );
    Failed::new(CODE_TRY_AGAIN, error)
}

/// The request cannot be understood.
const WRONG: u8 = 64;
/// There is no such thing.
const NOTHING: u8 = 65;

fn http_status(code: u8) -> u16 {
    match code {
        WRONG => 400,
        NOTHING => 404,
        CODE_NEEDS_A_PERSON | CODE_CONFIGURATION => 409,
        _ => 503,
    }
}

fn which(body: Body) -> Result<Which, Failed> {
    let reason = body.reason.as_deref().map(dead_letters::reason).transpose();
    Ok(Which {
        entity: body.entity,
        reason: reason.map_err(|why| Failed::new(WRONG, anyhow::anyhow!(why)))?,
        number: body.number,
    })
}

fn is_of(done: &Recorded, request: &Value) -> bool {
    done.arguments.get("request") == Some(request)
}

/// What was done when it was asked for first, if it is the same that is asked for now.
fn repeated(id: Uuid, done: &Recorded, request: &Value) -> Result<Value, Failed> {
    if is_of(done, request) {
        if done.kind == REDRIVE && done.after == json!({}) {
            let error = anyhow::anyhow!(
                "this redrive (operation {id}) has begun at {} and has not ended: it is still running, or was interrupted; with another `Idempotency-Key` what still waits is applied again",
                done.at.to_rfc3339()
            );
            return Err(Failed::new(CODE_NEEDS_A_PERSON, error));
        }
        return Ok(described(id, done, true, Value::Null));
    }
    let error = anyhow::anyhow!(
        "this `Idempotency-Key` was used for another request (operation {id}, {} of {})",
        done.kind,
        done.projection
    );
    Err(Failed::new(CODE_NEEDS_A_PERSON, error))
}

fn described(id: Uuid, done: &Recorded, repeated: bool, result: Value) -> Value {
    json!({
        "operation": id.to_string(), "kind": done.kind, "projection": done.projection, "who": done.who,
        "at": done.at.to_rfc3339(), "before": done.before, "after": done.after, "repeated": repeated, "result": result,
    })
}
