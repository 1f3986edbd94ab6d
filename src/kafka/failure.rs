//! Why a member ends although nobody told it to.

use rdkafka::error::{KafkaError, RDKafkaErrorCode};

use super::neighbours::DatabaseTag;
use super::settings::GroupProtocol;

/// What ends a member for good. Its process ends with it; the message says what a person can do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum MemberError {
    /// The classic protocol: the newer process wins.
    #[error(
        "another process has joined consumer group `{group}` with this one's `kafka.group_instance_id`, `{id}`, and has taken its place; give each process a value of its own, and do not start this one again as it is: the two would take turns"
    )]
    InstanceIdTaken { group: String, id: String },
    /// The `consumer` protocol: the older process wins.
    #[error(
        "consumer group `{group}` has a member with this process's `kafka.group_instance_id`, `{id}`; give each process a value of its own, or, if that member has crashed, start this one again when its session has ended (45 s, if the brokers have the default)"
    )]
    InstanceIdInUse { group: String, id: String },
    #[error(
        "the members of consumer group `{group}` use another protocol than this process, which has `kafka.group_protocol` `{mine}`; set it to theirs, or stop them all before the first one starts with the new value. They go on"
    )]
    OtherProtocol { group: String, mine: GroupProtocol },
    #[error(
        "consumer group `{group}` has members whose positions are in database `{theirs}`; those of this process are in `{mine}`, so that each side would get a part of the partitions only. Give one of them another `kafka.group_prefix`; if those members have just been stopped, start again when their sessions have ended"
    )]
    OtherDatabase {
        group: String,
        mine: DatabaseTag,
        theirs: DatabaseTag,
    },
    #[error(
        "the brokers do not know `kafka.group_protocol` `consumer`; set it to `classic`, or use Kafka 4.0 or newer"
    )]
    UnknownProtocol,
    #[error("the kafka client has failed for good: {0}")]
    Client(KafkaError),
}

impl MemberError {
    /// What librdkafka's fatal error means, which no retry gets over.
    pub(super) fn fatal(code: RDKafkaErrorCode, group: &str, instance_id: Option<&str>) -> Self {
        let (group, id) = (group.to_owned(), instance_id.unwrap_or_default().to_owned());
        match code {
            RDKafkaErrorCode::FencedInstanceId => Self::InstanceIdTaken { group, id },
            RDKafkaErrorCode::UnreleasedInstanceId => Self::InstanceIdInUse { group, id },
            RDKafkaErrorCode::UnsupportedVersion | RDKafkaErrorCode::UnsupportedFeature => {
                Self::UnknownProtocol
            }
            code => Self::Client(KafkaError::MessageConsumptionFatal(code)),
        }
    }
}
