//! Notices partitions that stand still although there are records.
//!
//! A client that has lost a partition says nothing; silence is all there is to go by. So whatever was quiet
//! for a while is compared with the end of its log. That end is the last stable offset: an open transaction
//! holds records back rightly. The end of a transaction is no record either; librdkafka counts that it has
//! passed it.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::time::Duration;

use tokio::time::sleep;

use super::cluster::Cluster;
use super::member::Member;
use crate::types::{NextOffset, TopicPartition};

/// How long a partition is quiet before its log is looked at, and between two looks.
const QUIET: Duration = Duration::from_secs(30);
/// How long a record that has just been written may be on its way.
const ON_ITS_WAY: Duration = Duration::from_secs(5);

/// Watches what a member fetches. A queue that stands still says so to whoever polls it.
pub(crate) async fn watch(member: Member, cluster: Cluster) -> Infallible {
    let mut before: BTreeMap<TopicPartition, NextOffset> = BTreeMap::new();
    // Whatever the reason is, if fetching again brings nothing, then only a longer log is news.
    let mut told: BTreeMap<TopicPartition, i64> = BTreeMap::new();
    loop {
        sleep(QUIET).await;
        let mut behind = Vec::new();
        for (partition, progress) in member.fetching() {
            let next = progress.next();
            if before.get(&partition) != Some(&next) {
                continue;
            }
            // An outage is told elsewhere.
            let Ok(log) = cluster.watermarks(&partition).await else {
                break;
            };
            if log.high > next.get()
                && told.get(&partition) != Some(&log.high)
                && !has_passed(&member, &partition, log.high).await
            {
                behind.push((partition, progress, next, log.high));
            }
        }
        if !behind.is_empty() {
            sleep(ON_ITS_WAY).await;
        }
        for (partition, progress, next, end) in behind {
            if progress.next() == next {
                progress.stands_still_before(end);
                told.insert(partition, end);
            }
        }
        let fetching = member.fetching().into_iter();
        before = fetching.map(|(p, progress)| (p, progress.next())).collect();
    }
}

async fn has_passed(member: &Member, partition: &TopicPartition, end: i64) -> bool {
    let passed = member.passed(partition).await;
    passed.is_ok_and(|passed| passed.get() >= end)
}
