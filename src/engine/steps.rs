//! Cuts a batch into steps in which no entity occurs twice.

/// Splits `by_entity` (events by entity, then in arrival order) so that the n-th event of each
/// entity is in the n-th step. Order within a step stays; an entity's events are in step order.
///
/// `same` says whether two events are of one entity.
pub(crate) fn one_event_per_entity<T: Copy>(
    by_entity: &[T],
    same: impl Fn(T, T) -> bool,
) -> Vec<Vec<T>> {
    let mut steps: Vec<Vec<T>> = Vec::new();
    let mut step = 0;
    let mut before: Option<T> = None;
    for &event in by_entity {
        step = match before {
            Some(before) if same(before, event) => step + 1,
            _ => 0,
        };
        if steps.len() == step {
            steps.push(Vec::new());
        }
        steps[step].push(event);
        before = Some(event);
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(events: &[(&'static str, u32)], expected: &[&[u32]]) {
        let steps = one_event_per_entity(events, |a, b| a.0 == b.0);
        let steps: Vec<Vec<u32>> = steps
            .into_iter()
            .map(|step| step.into_iter().map(|(_, n)| n).collect())
            .collect();
        assert_eq!(steps, expected);
    }

    #[test]
    fn different_entities_share_a_step() {
        check(&[("a", 1), ("b", 2), ("c", 3)], &[&[1, 2, 3]]);
    }

    #[test]
    fn an_entity_has_one_event_in_each_step_in_order() {
        check(
            &[("a", 1), ("a", 4), ("a", 9), ("b", 2), ("c", 3), ("c", 5)],
            &[&[1, 2, 3], &[4, 5], &[9]],
        );
    }

    #[test]
    fn nothing_makes_no_step() {
        check(&[], &[]);
    }
}
