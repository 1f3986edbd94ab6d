//! Who else is in a group: a process must not share one with members whose positions are in another
//! database, since each side would get a part of the partitions and nobody would notice.
//!
//! Members tell their database in their client ids. Only who comes looks, before it joins and a little later:
//! of two that come at once, at least one sees the other one, and who was there before is left alone. Of a
//! group whose members the brokers assign (KIP-848) nothing is seen.

use std::fmt;
use std::future::pending;
use std::time::Duration;

use tokio::time::sleep;
use tracing::debug;
use uuid::Uuid;

use super::cluster::Cluster;
use super::failure::MemberError;
use super::settings::GroupProtocol;

/// How long it takes at most until a member that was looking when this one joined has joined itself.
const LOOK_AGAIN_AFTER: Duration = Duration::from_secs(5);
/// How often Kafka is asked when it does not answer.
const LOOKS_MAX: usize = 12;
const NAME_MAX: usize = 40;

/// A database, as a client id tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DatabaseTag(String);

impl DatabaseTag {
    /// `system_identifier` is the Postgres cluster's: a copy that was restored from a dump has another one.
    pub(crate) fn new(name: &str, system_identifier: &str) -> Self {
        let hashed = format!("{system_identifier}\0{name}");
        let hash = Uuid::new_v5(&Uuid::NAMESPACE_OID, hashed.as_bytes()).simple();
        let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
        let name: String = name.chars().take(NAME_MAX).map(plain).collect();
        Self(format!("{name}.{}", &hash.to_string()[..12]))
    }

    /// What a client id tells; none if it is not one of ours.
    fn of(client_id: &str) -> Option<Self> {
        let (_, tag) = client_id.strip_prefix("tidegate-")?.rsplit_once('@')?;
        Some(Self(tag.to_owned()))
    }
}

impl fmt::Display for DatabaseTag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The client id of a process.
pub(crate) fn client_id(owner: &str, database: Option<&DatabaseTag>) -> String {
    match database {
        Some(tag) => format!("tidegate-{owner}@{tag}"),
        None => format!("tidegate-{owner}"),
    }
}

/// What a process goes by when it looks who is in a group.
pub(crate) struct Neighbours<'a> {
    pub(crate) cluster: &'a Cluster,
    pub(crate) group: &'a str,
    pub(crate) protocol: GroupProtocol,
    pub(crate) database: Option<&'a DatabaseTag>,
}

impl Neighbours<'_> {
    /// Before joining. When Kafka does not say, the second look does.
    ///
    /// # Errors
    /// When the group is another database's.
    pub(crate) async fn before_joining(&self) -> Result<(), MemberError> {
        match self.cluster.members(self.group).await {
            Ok(client_ids) => self.stranger(&client_ids).map_or(Ok(()), Err),
            Err(error) => {
                debug!(group = self.group, %error, "not known who is in the group");
                Ok(())
            }
        }
    }

    /// After joining: resolves if this process must not be a member, or is none.
    pub(crate) async fn after_joining(&self) -> MemberError {
        let mut left_outside = false;
        for _ in 0..LOOKS_MAX {
            sleep(LOOK_AGAIN_AFTER).await;
            let Ok(client_ids) = self.cluster.members(self.group).await else {
                continue;
            };
            if let Some(stranger) = self.stranger(&client_ids) {
                return stranger;
            }
            // The brokers do not let it in, and librdkafka does not tell; it tries again and again.
            let is_outside = self.protocol == GroupProtocol::Consumer && !client_ids.is_empty();
            if !is_outside {
                break;
            }
            if left_outside {
                return MemberError::OtherProtocol {
                    group: self.group.to_owned(),
                    mine: self.protocol,
                };
            }
            left_outside = true;
        }
        // Whoever comes now sees this process.
        pending().await
    }

    fn stranger(&self, client_ids: &[String]) -> Option<MemberError> {
        let mine = self.database?;
        let theirs = client_ids.iter().filter_map(|id| DatabaseTag::of(id));
        let theirs = theirs.into_iter().find(|tag| tag != mine)?;
        Some(MemberError::OtherDatabase {
            group: self.group.to_owned(),
            mine: mine.clone(),
            theirs,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_id_tells_its_database() {
        let tag = DatabaseTag::new("shop", "7301");
        let client_id = client_id("host-1-ab12", Some(&tag));
        assert!(
            client_id.starts_with("tidegate-host-1-ab12@shop."),
            "{client_id}"
        );
        assert_eq!(DatabaseTag::of(&client_id), Some(tag));
    }

    #[test]
    fn databases_differ_by_name_and_by_cluster() {
        let tag = DatabaseTag::new("shop", "7301");
        for (name, cluster) in [("shop_test", "7301"), ("shop", "7302"), ("shøp", "7301")] {
            assert_ne!(DatabaseTag::new(name, cluster), tag);
        }
        assert_ne!(DatabaseTag::new("a b", "1"), DatabaseTag::new("a_b", "1"));
    }

    #[test]
    fn what_is_not_ours_tells_nothing() {
        for client_id in ["", "rdkafka", "a@b", "tidegate-host-1-ab12"] {
            assert_eq!(DatabaseTag::of(client_id), None, "{client_id}");
        }
    }
}
