//! Which topics there are by their ids: a topic that was deleted and made again has another one.
//!
//! librdkafka goes on reading a topic made anew from the old offset, without a word. A claim therefore
//! compares the id, and a writer looks at it every second; between the making of the new topic and that
//! look records of it may have been applied, and are named when the partition halts.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::sync::watch;
use tracing::{debug, warn};
use uuid::Uuid;

use crate::kafka::Cluster;

const ASK_EVERY: Duration = Duration::from_secs(2);

/// The ids of topics that Kafka has answered for; none for a topic that has no id.
pub(super) type TopicIds = BTreeMap<String, Option<Uuid>>;

/// Asks for the ids of `topics` until nobody listens any more.
pub(super) async fn watch(cluster: Cluster, topics: Vec<String>, ids: watch::Sender<TopicIds>) {
    let mut trouble = String::new();
    while !ids.is_closed() {
        for topic in &topics {
            match cluster.topic_id(topic).await {
                Ok(id) => {
                    ids.send_if_modified(|known| known.insert(topic.clone(), id) != Some(id));
                }
                // Not an answer: what is known stays. A topic that is gone has no records either.
                Err(error) => {
                    let new = error.to_string();
                    if new == trouble {
                        debug!(topic, %error, "the topic's id is not known");
                    } else {
                        warn!(topic, %error, "the topic's id is not known; asking again");
                        trouble = new;
                    }
                }
            }
        }
        tokio::select! {
            () = ids.closed() => return,
            () = tokio::time::sleep(ASK_EVERY) => {}
        }
    }
}
