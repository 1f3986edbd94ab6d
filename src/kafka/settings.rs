//! librdkafka's settings: those that carry a promise are ours, the rest passes through.

use std::collections::BTreeMap;
use std::fmt;

use rdkafka::ClientConfig;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::KafkaError;

use super::client::Client;
use super::oauth::{self, TokenSource};

/// How members of a group agree on who gets which partition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum GroupProtocol {
    /// `cooperative-sticky` among the members.
    #[default]
    Classic,
    /// `range` or `roundrobin` among the members: each rebalance takes everything from everybody first.
    Eager,
    /// KIP-848: the broker decides.
    Consumer,
}

impl fmt::Display for GroupProtocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Classic => "classic",
            Self::Eager => "eager",
            Self::Consumer => "consumer",
        })
    }
}

/// Where the brokers are, and what the user passes through to librdkafka.
#[derive(Clone, Debug)]
pub(crate) struct Connection {
    pub(crate) bootstrap_servers: String,
    pub(crate) options: BTreeMap<String, String>,
}

/// Settings that carry a promise, with what to use instead.
const RESERVED: [(&str, &str); 20] = [
    ("bootstrap.servers", "set `kafka.bootstrap_servers`"),
    ("metadata.broker.list", "set `kafka.bootstrap_servers`"),
    (
        "group.id",
        "set `kafka.group_prefix`; the group is `<prefix>.<projection>`",
    ),
    ("group.protocol", "set `kafka.group_protocol`"),
    (
        "group.instance.id",
        "set `kafka.group_instance_id`, to another value in each process",
    ),
    (
        "partition.assignment.strategy",
        "set `kafka.group_protocol`: `classic` is cooperative-sticky, `eager` is range,roundrobin",
    ),
    (
        "enable.auto.commit",
        "remove it; positions live in Postgres",
    ),
    (
        "enable.auto.offset.store",
        "remove it; positions live in Postgres",
    ),
    (
        "auto.offset.reset",
        "remove it; set `start` of the projection",
    ),
    (
        "isolation.level",
        "remove it; tidegate reads committed records only",
    ),
    ("enable.partition.eof", "remove it"),
    (
        "enable.idempotence",
        "remove it; the relay is always idempotent",
    ),
    (
        "enable.gapless.guarantee",
        "remove it; the relay starts again from the first unacknowledged message",
    ),
    (
        "acks",
        "remove it; the relay waits for all in-sync replicas",
    ),
    (
        "request.required.acks",
        "remove it; the relay waits for all in-sync replicas",
    ),
    (
        "max.in.flight.requests.per.connection",
        "remove it; the relay keeps order",
    ),
    (
        "partitioner",
        "remove it; the relay partitions like the Java client",
    ),
    (
        "transactional.id",
        "remove it; the outbox replaces Kafka transactions",
    ),
    (
        "message.timeout.ms",
        "remove it; the relay waits as long as it holds its lease",
    ),
    (
        "delivery.timeout.ms",
        "remove it; the relay waits as long as it holds its lease",
    ),
];

/// What to use instead of a librdkafka setting that carries a promise.
pub(crate) fn reserved(key: &str) -> Option<&'static str> {
    let found = RESERVED.iter().find(|(known, _)| *known == key);
    found.map(|(_, cure)| *cure)
}

/// Why librdkafka does not take a setting.
pub(crate) fn refusal(key: &str, value: &str) -> Option<String> {
    if oauth::is_ours(key) {
        return oauth::refusal(key, value);
    }
    let refused = ClientConfig::new()
        .set(key, value)
        .create_native_config()
        .err()?;
    Some(match refused {
        KafkaError::ClientConfig(_, why, ..) => why,
        other => other.to_string(),
    })
}

/// Beginnings of settings that only one kind of client knows; the other would warn about them.
const CONSUMER_ONLY: [&str; 9] = [
    "check.crcs",
    "coordinator.query.",
    "fetch.",
    "group.",
    "heartbeat.",
    "max.partition.fetch.",
    "max.poll.",
    "queued.",
    "session.",
];
const PRODUCER_ONLY: [&str; 6] = [
    "batch.",
    "compression.",
    "linger.",
    "queue.buffering.",
    "retries",
    "sticky.",
];

fn begins_with_one(key: &str, beginnings: &[&str]) -> bool {
    beginnings
        .iter()
        .any(|beginning| key.starts_with(beginning))
}

/// Less is not fetched ahead of a partition.
pub(crate) const PREFETCH_MIN: usize = 16 << 10;
/// What librdkafka needs for a record besides its bytes.
const RECORD_OVERHEAD: usize = 512;

impl Connection {
    /// What every client is made with.
    pub(crate) fn client(&self) -> Client {
        Client::new(TokenSource::new(&self.options))
    }

    fn base(&self, client_id: &str, not_known: &[&str]) -> ClientConfig {
        let mut config = ClientConfig::new();
        config
            .set("client.id", client_id)
            .set("socket.keepalive.enable", "true")
            .set("allow.auto.create.topics", "false")
            .set("enable.metrics.push", "false");
        for (key, value) in &self.options {
            if !begins_with_one(key, not_known) && !oauth::is_ours(key) {
                config.set(key, value);
            }
        }
        config.set("bootstrap.servers", &self.bootstrap_servers);
        config
    }

    /// A member of a projection's group. `prefetch` is what it may fetch ahead of one partition, in bytes: with one
    /// queue per partition librdkafka's limits count per partition. A queue is filled until a limit is passed, so
    /// what it has beyond is a fetch; and each record takes some hundred bytes besides its own.
    pub(crate) fn consumer(
        &self,
        client_id: &str,
        group: &str,
        protocol: GroupProtocol,
        instance_id: Option<&str>,
        prefetch: usize,
    ) -> ClientConfig {
        let mut config = self.base(client_id, &PRODUCER_ONLY);
        let queue = (prefetch / 2).clamp(PREFETCH_MIN, 4 << 20);
        let fetch = (prefetch / 8).clamp(PREFETCH_MIN, 1 << 20);
        let records = (prefetch / RECORD_OVERHEAD).clamp(100, 20_000);
        for (key, value) in [
            ("queued.min.messages", records),
            ("queued.max.messages.kbytes", queue >> 10),
            ("fetch.message.max.bytes", fetch),
        ] {
            if !self.options.contains_key(key) {
                config.set(key, value.to_string());
            }
        }
        for (key, value) in [
            ("fetch.queue.backoff.ms", "10"),
            ("fetch.wait.max.ms", "50"),
            ("topic.metadata.refresh.interval.ms", "30000"),
            ("check.crcs", "true"),
        ] {
            if !self.options.contains_key(key) {
                config.set(key, value);
            }
        }
        config
            .set("group.id", group)
            .set("enable.auto.commit", "false")
            .set("enable.auto.offset.store", "false")
            .set("auto.offset.reset", "error")
            .set("isolation.level", "read_committed")
            .set("enable.partition.eof", "false");
        match protocol {
            GroupProtocol::Classic => {
                config.set("partition.assignment.strategy", "cooperative-sticky")
            }
            GroupProtocol::Eager => config.set("partition.assignment.strategy", "range,roundrobin"),
            GroupProtocol::Consumer => config.set("group.protocol", "consumer"),
        };
        // Only by its heartbeat a member learns that another one has left: by default after up to 3 s. librdkafka sends
        // them in turns of a second, so this makes it one second at most. Of `consumer` the brokers say it.
        let heartbeat = "heartbeat.interval.ms";
        if protocol != GroupProtocol::Consumer && !self.options.contains_key(heartbeat) {
            config.set(heartbeat, "500");
        }
        if let Some(id) = instance_id {
            config.set("group.instance.id", id);
        }
        config
    }

    /// The relay's producer. No message times out: one that did would let later ones of its key pass.
    pub(crate) fn producer(&self, client_id: &str) -> ClientConfig {
        let mut config = self.base(client_id, &CONSUMER_ONLY);
        for (key, value) in [
            ("linger.ms", "5"),
            ("compression.type", "lz4"),
            // The broker's default; librdkafka's own is lower, and counts headers and framing too.
            ("message.max.bytes", "1048588"),
            // A topic that is deleted while messages to it are under way holds up the others for so long.
            ("topic.metadata.propagation.max.ms", "5000"),
        ] {
            if !self.options.contains_key(key) {
                config.set(key, value);
            }
        }
        config
            .set("enable.idempotence", "true")
            // Otherwise what is behind a refused message is renumbered, and sent before it.
            .set("enable.gapless.guarantee", "true")
            .set("acks", "all")
            .set("message.timeout.ms", "0")
            .set("partitioner", "murmur2_random");
        config
    }

    /// A client that asks questions.
    pub(crate) fn questions(&self, client_id: &str) -> ClientConfig {
        let mut config = self.base(client_id, &PRODUCER_ONLY);
        // Why a broker hangs up is told to the log alone, also where nobody reads it.
        config.set_log_level(RDKafkaLogLevel::Info);
        config
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connection(options: &[(&str, &str)]) -> Connection {
        Connection {
            bootstrap_servers: "127.0.0.1:1".to_owned(),
            options: options
                .iter()
                .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
                .collect(),
        }
    }

    #[test]
    fn a_setting_that_carries_a_promise_cannot_be_overridden() {
        let config = connection(&[
            ("enable.auto.commit", "true"),
            ("auto.offset.reset", "latest"),
        ])
        .consumer("c", "g", GroupProtocol::Classic, None, 64 << 20);
        assert_eq!(config.get("enable.auto.commit"), Some("false"));
        assert_eq!(config.get("auto.offset.reset"), Some("error"));
        assert_eq!(config.get("group.instance.id"), None);
    }

    #[test]
    fn what_is_fetched_ahead_stays_within_its_share() {
        let queue = |options: &[(&str, &str)], prefetch| {
            let of = connection(options).consumer("c", "g", GroupProtocol::Classic, None, prefetch);
            let number = |key| of.get(key).unwrap().parse::<usize>().unwrap();
            let bytes =
                (number("queued.max.messages.kbytes") << 10) + number("fetch.message.max.bytes");
            (bytes, number("queued.min.messages"))
        };
        assert_eq!(
            queue(&[], 64 << 20),
            (5 << 20, 20_000),
            "no more than is of use"
        );
        assert_eq!(queue(&[], 1 << 20), (640 << 10, 2_048));
        assert_eq!(queue(&[], 0), (32 << 10, 100), "one partition of very many");
        let own = [
            ("queued.max.messages.kbytes", "1024"),
            ("fetch.message.max.bytes", "0"),
        ];
        assert_eq!(queue(&own, 64 << 20).0, 1 << 20, "who sets it, has it");
    }

    // Who stays learns of a stop by its heartbeat.
    #[test]
    fn heartbeats_are_sent_twice_a_second_unless_somebody_else_says_how_often() {
        let of = |options: &[(&str, &str)], protocol| {
            let config = connection(options).consumer("c", "g", protocol, None, 64 << 20);
            config.get("heartbeat.interval.ms").map(str::to_owned)
        };
        let own = [("heartbeat.interval.ms", "3000")];
        assert_eq!(of(&[], GroupProtocol::Classic).as_deref(), Some("500"));
        assert_eq!(of(&[], GroupProtocol::Eager).as_deref(), Some("500"));
        assert_eq!(of(&own, GroupProtocol::Classic).as_deref(), Some("3000"));
        assert_eq!(of(&[], GroupProtocol::Consumer), None, "the brokers say it");
    }

    #[test]
    fn other_settings_pass_through() {
        let config = connection(&[("fetch.wait.max.ms", "7"), ("security.protocol", "SSL")])
            .consumer("c", "g", GroupProtocol::Consumer, Some("i"), 64 << 20);
        assert_eq!(config.get("fetch.wait.max.ms"), Some("7"));
        assert_eq!(config.get("security.protocol"), Some("SSL"));
        assert_eq!(config.get("group.protocol"), Some("consumer"));
        assert_eq!(config.get("partition.assignment.strategy"), None);
        assert_eq!(config.get("group.instance.id"), Some("i"));
    }
}
