//! Whether a rebuild can work, before anything is made.

use sqlx::PgConnection;
use uuid::Uuid;

use super::{RebuildError, Rebuilder};
use crate::engine::rebuild;
use crate::kafka::{ClusterError, Topics, Watermarks};
use crate::projection::Gate;
use crate::runtime::reset::topic_ids;
use crate::runtime::start::made;
use crate::runtime::topic_watch::TopicIds;
use crate::store::generation::{self, Beside};
use crate::store::position::{self, Mark, Stood};
use crate::store::projection::Live;
use crate::store::{dead_letter, swap};
use crate::types::TopicPartition;

/// Why a rebuild cannot work, and what helps.
#[derive(Clone, Debug)]
pub(crate) struct Obstacle {
    pub(crate) what: String,
    pub(crate) cure: String,
    /// An operator may go on all the same, on record.
    pub(crate) may_be_accepted: bool,
}

/// What a partition's part of a build will be.
#[derive(Clone, Debug)]
pub(crate) struct Planned {
    pub(crate) partition: TopicPartition,
    pub(crate) from: i64,
    /// Where the live generation stands.
    pub(crate) to: i64,
    pub(super) incarnation: i32,
    pub(super) topic_id: Option<Uuid>,
}

/// A rebuild before it is begun.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) live: i32,
    pub(crate) building: Option<Beside>,
    pub(crate) former: Vec<Beside>,
    pub(crate) partitions: Vec<Planned>,
    /// Bytes that the live tables take: about as many more are needed.
    pub(crate) size: i64,
    pub(crate) obstacles: Vec<Obstacle>,
}

impl Plan {
    /// Offsets to read: no more records than this.
    pub(crate) fn records(&self) -> i64 {
        self.partitions.iter().map(|p| (p.to - p.from).max(0)).sum()
    }

    /// Where the new generation begins.
    pub(super) fn starts(&self) -> Vec<Stood> {
        let start = |planned: &Planned| Stood {
            topic: planned.partition.topic().to_owned(),
            partition: planned.partition.partition(),
            next_offset: planned.from,
            incarnation: planned.incarnation,
            topic_id: planned.topic_id,
            epoch: 0,
            in_doubt: false,
        };
        self.partitions.iter().map(start).collect()
    }
}

impl Rebuilder {
    /// Looks at definition, logs and schema, for all tables or for the rows of one entity. Changes nothing.
    pub(crate) async fn plan(&self, connection: &mut PgConnection) -> Result<Plan, RebuildError> {
        let live = self.live(connection).await?;
        let mut beside = generation::beside(connection, self.name()).await?;
        let building = beside.iter().position(Beside::is_building);
        let building = building.map(|at| beside.remove(at));
        let marks = position::marks(connection, self.name(), &[live.generation]).await?;
        let topics = &self.projection.topics;
        let logs = self.service.cluster.logs(topics).await?;
        let ids = topic_ids(&self.service.cluster, topics).await?;

        let mut obstacles = Vec::new();
        match self.entity() {
            None => self.of_definition(&live, &marks, &mut obstacles),
            Some(_) => self.of_same_definition(&live, &mut obstacles),
        }
        obstacles.extend(of_logs(self.name(), &marks, &ids));
        // Only an entity may be read from some of the partitions alone.
        let chosen = &self.projection.only_in;
        self.of_choice(chosen, &logs, &mut obstacles);
        let mut partitions = Vec::new();
        for mark in marks.iter().filter(|mark| topics.contains(&mark.topic)) {
            let partition = mark.of();
            let log = logs.iter().find(|(known, _)| *known == partition);
            let Some((_, log)) = log else {
                obstacles.push(refused(
                    format!("{partition} is not in Kafka any more, so no build could come to stand where the live generation stands"),
                    "`tidegate reset` makes the tables anew in place".to_owned(),
                ));
                continue;
            };
            partitions.push(match chosen.is_empty() || chosen.contains(&partition) {
                true => self.planned(mark, *log, &mut obstacles),
                // Followed from here on: the entity may come there yet.
                false => Planned {
                    partition,
                    from: mark.next_offset,
                    to: mark.next_offset,
                    incarnation: mark.incarnation,
                    topic_id: mark.topic_id,
                },
            });
        }
        let compacted = self.compacted().await?;
        self.of_compaction(&compacted, &mut obstacles);
        if building.is_none() {
            let begin: Vec<_> = partitions
                .iter()
                .map(|p| (p.partition.clone(), p.incarnation, p.from))
                .collect();
            let generation = live.generation;
            self.of_letters(
                connection,
                generation,
                None,
                &begin,
                &compacted,
                &mut obstacles,
            )
            .await?;
        }
        match self.entity() {
            None => self.of_schema(connection, &live, &mut obstacles).await?,
            Some(_) => {
                self.of_tables(connection, &live, &mut obstacles).await?;
                self.of_rights(connection, &live, &mut obstacles).await?;
            }
        }
        Ok(Plan {
            live: live.generation,
            building,
            former: beside,
            partitions,
            size: swap::size(connection, live.schema_oid).await?,
            obstacles,
        })
    }

    /// What of the definition keeps a build from being one of the same read model.
    fn of_definition(&self, live: &Live, marks: &[Mark], obstacles: &mut Vec<Obstacle>) {
        let projection = &self.projection;
        if projection.writes_elsewhere {
            obstacles.push(refused(
                "it writes to tables outside its schema (`writes_elsewhere`), so what is in them would be counted twice".to_owned(),
                "fill those from a projection of their own".to_owned(),
            ));
        }
        let mine = made(projection);
        let other_statements = !live.statements.is_empty() && live.statements != mine.statements;
        if live.definition == mine.definition && (live.setup != mine.setup || other_statements) {
            obstacles.push(refused(
                "the setup or the statements have changed and `version` has not: processes that still have the old ones could not be told apart, and would go on in the new tables".to_owned(),
                "raise `version` of the projection".to_owned(),
            ));
        }
        for topic in &projection.topics {
            if !marks.iter().any(|mark| mark.topic == *topic) {
                obstacles.push(refused(
                    format!("topic {topic} is not read by the live generation, which a build never passes"),
                    "`tidegate reset` begins with it in place, or make it a projection of its own".to_owned(),
                ));
            }
        }
    }

    pub(super) fn planned(
        &self,
        mark: &Mark,
        log: Watermarks,
        obstacles: &mut Vec<Obstacle>,
    ) -> Planned {
        let partition = mark.of();
        let first = mark.first_offset.unwrap_or(0);
        let reads = rebuild::Partition {
            low: log.low,
            first,
            next: mark.next_offset,
            from_the_oldest: !self.projection.may_begin_anywhere(),
        }
        .reads();
        if reads.is_truncated {
            obstacles.push(Obstacle {
                what: format!(
                    "{partition} begins at {}, and the live generation has read from {first} on: its history is not complete any more",
                    log.low
                ),
                cure: "say --accept-truncated if the rest is enough".to_owned(),
                may_be_accepted: true,
            });
        }
        if mark.incarnation > mark.first_incarnation {
            obstacles.push(Obstacle {
                what: format!(
                    "{partition} was made anew while the live generation read it: what that has of the former log is not in this one"
                ),
                cure: "say --accept-truncated if the rest is enough".to_owned(),
                may_be_accepted: true,
            });
        }
        Planned {
            partition,
            from: reads.from,
            to: mark.next_offset,
            incarnation: mark.incarnation,
            topic_id: mark.topic_id,
        }
    }

    /// The topics that are compacted.
    pub(super) async fn compacted(&self) -> Result<Vec<&str>, RebuildError> {
        let topics = Topics::new(&self.service.config.kafka).map_err(ClusterError::from)?;
        let mut compacted = Vec::new();
        for topic in &self.projection.topics {
            if topics
                .is_compacted(topic)
                .await
                .map_err(ClusterError::from)?
            {
                compacted.push(&**topic);
            }
        }
        Ok(compacted)
    }

    /// A compacted topic has the last record of each key: enough for `newest`, and for nothing that adds up. An entity's
    /// rows need not be made of its last event alone.
    pub(super) fn of_compaction(&self, compacted: &[&str], obstacles: &mut Vec<Obstacle>) {
        let gate = self.projection.gate;
        if gate == Gate::Newest && self.entity().is_none() {
            return;
        }
        let needed = match gate {
            Gate::Newest => "and with them rows that only they have made".to_owned(),
            _ => format!("and under gate `{gate}` all are needed"),
        };
        for topic in compacted {
            obstacles.push(Obstacle {
                what: format!(
                    "topic {topic} is compacted: older events of an entity may be gone, {needed}"
                ),
                cure: "say --accept-truncated if the rest is enough".to_owned(),
                may_be_accepted: true,
            });
        }
    }

    /// A dead letter whose record the new generation does not meet, or has skipped, would be out of sight after the cut-over, and its
    /// message never sent (I5, I6).
    pub(super) async fn of_letters(
        &self,
        connection: &mut PgConnection,
        live: i32,
        built: Option<i32>,
        begin: &[(TopicPartition, i32, i64)],
        compacted: &[&str],
        obstacles: &mut Vec<Obstacle>,
    ) -> Result<(), RebuildError> {
        let name = self.name();
        let unreachable = dead_letter::unreachable(
            connection,
            name,
            live,
            begin,
            compacted,
            self.entity(),
            built,
        )
        .await?;
        if unreachable > 0 {
            obstacles.push(refused(
                format!("{unreachable} dead letters wait whose records the log does not have any more, or may not have when they are read, or which the build has skipped"),
                format!("`tidegate dead-letters redrive {name}` or `discard` them first"),
            ));
        }
        Ok(())
    }

    /// What stands in the way of the schemas changing places.
    pub(super) async fn of_schema(
        &self,
        connection: &mut PgConnection,
        live: &Live,
        obstacles: &mut Vec<Obstacle>,
    ) -> Result<(), RebuildError> {
        self.of_rights(connection, live, obstacles).await?;
        for dependent in swap::dependents(connection, live.schema_oid).await? {
            obstacles.push(refused(
                format!("{dependent} depends on the live tables, and would stay with them when others take their place"),
                "drop it, and make it again after the cut-over".to_owned(),
            ));
        }
        Ok(())
    }

    async fn of_rights(
        &self,
        connection: &mut PgConnection,
        live: &Live,
        obstacles: &mut Vec<Obstacle>,
    ) -> Result<(), RebuildError> {
        for what in swap::missing_rights(connection, live.schema_oid).await? {
            obstacles.push(refused(
                format!("the role that is connected may not {what}"),
                "grant it, or connect as another role".to_owned(),
            ));
        }
        Ok(())
    }
}

pub(super) fn refused(what: String, cure: String) -> Obstacle {
    Obstacle {
        what,
        cure,
        may_be_accepted: false,
    }
}

/// The live generation must know its logs.
pub(super) fn of_logs(projection: &str, marks: &[Mark], ids: &TopicIds) -> Vec<Obstacle> {
    let is_another = |mark: &&Mark| {
        let present = ids.get(&mark.topic).copied().flatten();
        let differs = present.is_some() && mark.topic_id.is_some() && present != mark.topic_id;
        differs || mark.in_doubt
    };
    let another = marks.iter().filter(is_another);
    another
        .map(|mark| {
            refused(
                format!(
                    "{} is another log than the live generation has read",
                    mark.of()
                ),
                format!("`tidegate accept-topic {projection} {}` first", mark.topic),
            )
        })
        .collect()
}
