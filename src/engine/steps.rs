//! Cuts a batch into steps: in which no entity occurs twice, or of which every entity has only one kind of event.

/// Splits `by_entity` (events by entity, then in arrival order) so that the n-th event of each
/// entity is in the n-th step. Order within a step stays; an entity's events are in step order.
///
/// `same` says whether two events are of one entity.
pub(crate) fn one_event_per_entity<T: Copy>(
    by_entity: &[T],
    same: impl Fn(T, T) -> bool,
) -> Vec<Vec<T>> {
    runs(by_entity, same, |_, _| false)
}

/// Splits `by_entity` so that the n-th run of each entity's events of one kind is in the n-th step. Order within a
/// step stays; an entity's events are in step order.
///
/// `same` says whether two events are of one entity, `alike` whether they are of one kind.
pub(crate) fn runs<T: Copy>(
    by_entity: &[T],
    same: impl Fn(T, T) -> bool,
    alike: impl Fn(T, T) -> bool,
) -> Vec<Vec<T>> {
    let mut steps: Vec<Vec<T>> = Vec::new();
    let mut step = 0;
    let mut before: Option<T> = None;
    for &event in by_entity {
        step = match before {
            Some(before) if same(before, event) && alike(before, event) => step,
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

    #[test]
    fn events_of_one_kind_stay_together_as_long_as_no_other_comes_between() {
        let events = [
            ("a", 'x', 1),
            ("a", 'x', 2),
            ("a", 'y', 3),
            ("a", 'x', 4),
            ("b", 'y', 5),
            ("b", 'x', 6),
            ("c", 'x', 7),
        ];
        let steps = runs(&events, |a, b| a.0 == b.0, |a, b| a.1 == b.1);
        let numbers = |step: &Vec<(&str, char, u32)>| step.iter().map(|e| e.2).collect();
        let steps: Vec<Vec<u32>> = steps.iter().map(numbers).collect();
        assert_eq!(steps, [vec![1, 2, 5, 7], vec![3, 6], vec![4]]);
    }

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
