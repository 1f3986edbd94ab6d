//! How the same events may come: in other batches, after a crash, more than once. Pure.

use std::collections::BTreeSet;

/// One way in which events come. Numbers are places in the list of events; one that comes again is a copy, as of a
/// producer that tries again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Variation {
    /// For a report: "in batches of one".
    pub(super) name: String,
    pub(super) batches: Vec<Vec<usize>>,
    /// Each batch is tried once without committing first.
    pub(super) crash: bool,
    /// Some events come more than once.
    pub(super) copies: bool,
    /// What a difference means, and what helps.
    pub(super) finds: &'static str,
}

const CUTS: &str = "what is written or sent depends on how the events were cut into batches, which nobody decides: \
    write folds, attribute messages to single events, or set `per_event`";
const AGAIN: &str = "the same events give something else the second time: the handler reads a clock, random numbers or \
    a sequence, so a rebuild gives other tables. Take such values from the event";
const CRASH: &str = "a batch that was rolled back has left something behind outside of the database: keep state in \
    tables only";
const COPIES: &str = "an event that its producer sends again is applied again: give the projection a gate or an \
    `event_id`, or say `copies = false` if that cannot happen";

/// All variations of so many events; the first one is what the others are compared with.
pub(super) fn all(events: usize, seed: u64, copies: bool) -> Vec<Variation> {
    let mut random = fastrand::Rng::with_seed(seed);
    let in_order: Vec<usize> = (0..events).collect();
    let one = |name: &str, batches, finds| Variation {
        name: name.to_owned(),
        batches,
        crash: false,
        copies: false,
        finds,
    };
    let mut all = vec![
        one("all in one batch", vec![in_order.clone()], CUTS),
        one(
            "all in one batch, a second time",
            vec![in_order.clone()],
            AGAIN,
        ),
        one(
            "one event at a time",
            in_order.iter().map(|i| vec![*i]).collect(),
            CUTS,
        ),
        one("in random batches", cut(&in_order, &mut random), CUTS),
        Variation {
            crash: true,
            ..one(
                "with a crash in every batch",
                cut(&in_order, &mut random),
                CRASH,
            )
        },
    ];
    if copies {
        let again = with_copies(events, &mut random);
        all.push(Variation {
            copies: true,
            ..one(
                "with events that come again",
                cut(&again, &mut random),
                COPIES,
            )
        });
        let twice: Vec<usize> = (0..events).chain(0..events).collect();
        all.push(Variation {
            copies: true,
            ..one(
                "with all events twice over",
                cut(&twice, &mut random),
                COPIES,
            )
        });
    }
    all
}

/// Cuts a sequence into batches.
fn cut(events: &[usize], random: &mut fastrand::Rng) -> Vec<Vec<usize>> {
    let most = (events.len() / 2).max(2);
    let mut rest = events;
    let mut batches = Vec::new();
    while !rest.is_empty() {
        let (batch, behind) = rest.split_at(random.usize(1..=most.min(rest.len())));
        batches.push(batch.to_vec());
        rest = behind;
    }
    batches
}

/// All events in order, and about a third of them again: at once, or when newer ones have come.
fn with_copies(events: usize, random: &mut fastrand::Rng) -> Vec<usize> {
    let mut sequence = Vec::with_capacity(events * 2);
    for event in 0..events {
        sequence.push(event);
        if random.u8(..3) == 0 {
            sequence.push(random.usize(..=event));
        }
    }
    let distinct: BTreeSet<&usize> = sequence.iter().collect();
    if distinct.len() == sequence.len()
        && let Some(last) = events.checked_sub(1)
    {
        sequence.push(last);
    }
    sequence
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_variation_has_every_event_and_keeps_their_order() {
        for seed in 0..50 {
            for events in 0..12 {
                for variation in all(events, seed, true) {
                    let sequence: Vec<usize> = variation.batches.concat();
                    let mut seen = BTreeSet::new();
                    let first: Vec<usize> = sequence
                        .iter()
                        .copied()
                        .filter(|i| seen.insert(*i))
                        .collect();
                    assert_eq!(first, (0..events).collect::<Vec<_>>(), "{variation:?}");
                    let has_copies = sequence.len() > events;
                    assert_eq!(has_copies, variation.copies && events > 0, "{variation:?}");
                }
            }
        }
    }
}
