//! Runs a model: all of its states, or until a promise breaks.

use std::collections::{HashMap, VecDeque};
use std::fmt::{Debug, Write as _};
use std::hash::Hash;
use std::time::Instant;

use stateright::{Checker, HasDiscoveries, Model};

/// What is asked of a model, beyond what stateright asks.
pub(crate) trait Checkable:
    Model<State: Hash + Eq + Clone + Debug + Send + Sync, Action: Debug + Clone + PartialEq>
    + Debug
    + Clone
    + Send
    + Sync
    + 'static
{
    /// The same with one promise only: the checker then stops where it first breaks.
    fn only(&self, promise: &'static str) -> Self;

    /// A state in a line or two.
    fn tell(&self, state: &Self::State) -> String;

    /// Something that goes wrong or that an operator does: nobody may rely on it to happen.
    fn is_fault(&self, state: &Self::State, action: &Self::Action) -> bool;

    /// All that was to be done is done.
    fn is_done(&self, state: &Self::State) -> bool;
}

/// All promises hold in all states, of which there are so many at least: a model that does nothing
/// breaks nothing.
#[track_caller]
pub(crate) fn holds<M: Checkable>(name: &str, model: M, states_min: usize) {
    let began = Instant::now();
    let checker = model
        .clone()
        .checker()
        .finish_when(HasDiscoveries::AnyFailures);
    let checked = checker.spawn_bfs().join();
    let states = checked.unique_state_count();
    println!(
        "{name}: {states} states, depth {}, {:.1?}",
        checked.max_depth(),
        began.elapsed()
    );
    let mut broken: Vec<&str> = checked.discoveries().into_keys().collect();
    broken.sort_unstable();
    let stories: Vec<String> = broken
        .iter()
        .filter_map(|promise| first_break(&model, promise))
        .collect();
    assert!(
        broken.is_empty(),
        "{name} breaks {broken:?}\n{}",
        stories.join("\n")
    );
    assert!(states >= states_min, "{name} has only {states} states");
}

/// The checker finds how this promise breaks.
#[track_caller]
pub(crate) fn breaks<M: Checkable>(name: &str, model: &M, promise: &'static str) {
    let began = Instant::now();
    let story = first_break(model, promise);
    let took = began.elapsed();
    match story {
        Some(story) => println!("{name}: found in {took:.1?}\n{story}"),
        None => panic!("{name}: nothing was found, yet \"{promise}\" should break: {model:?}"),
    }
}

/// The shortest way to a state in which a promise does not hold, told step by step.
fn first_break<M: Checkable>(model: &M, promise: &str) -> Option<String> {
    let promises = model.properties();
    let promise = promises.iter().find(|p| p.name == promise)?.name;
    let one = model.only(promise);
    let checker = one
        .clone()
        .checker()
        .finish_when(HasDiscoveries::AnyFailures);
    let checked = checker.spawn_bfs().join();
    let path = checked.discovery(promise)?;
    let steps: Vec<(M::State, Option<M::Action>)> = path.into_vec();
    let states: Vec<&M::State> = steps.iter().map(|(state, _)| state).collect();
    let actions: Vec<&M::Action> = steps
        .iter()
        .filter_map(|(_, action)| action.as_ref())
        .collect();
    Some(format!(
        "  not so: {promise}\n{}",
        tell(&one, &states, &actions)
    ))
}

fn tell<M: Checkable>(model: &M, states: &[&M::State], actions: &[&M::Action]) -> String {
    let mut before = model.tell(states[0]);
    let mut story = format!("      begin\n             {before}\n");
    for (number, (action, state)) in actions.iter().zip(&states[1..]).enumerate() {
        let _ = writeln!(story, "  {:>3} {action:?}", number + 1);
        let now = model.tell(state);
        if now != before {
            let _ = writeln!(story, "             {now}");
            before = now;
        }
    }
    story
}

/// From every state that can be reached, faults included, all can still be done without any further
/// fault. Where that is so and every step is taken at some time (the workers wait with jitter), all will be
/// done: in a finite world a way that is always open is taken in the end, however long workers may go in
/// circles before.
///
/// stateright's own `eventually` is not sound for models with circles, and workers that fence each other
/// do go in circles.
#[track_caller]
pub(crate) fn recovers<M: Checkable>(name: &str, model: &M, states_min: usize) {
    let graph = Graph::of(model);
    println!(
        "{name}: from each of {} states there is a way on",
        graph.states.len()
    );
    if let Some(stuck) = graph.first_stuck() {
        panic!("{name} stands still\n{}", graph.story(model, stuck));
    }
    assert!(
        graph.states.len() >= states_min,
        "{name} has only {} states",
        graph.states.len()
    );
}

/// The checker finds how a model comes to stand still.
#[track_caller]
pub(crate) fn stands_still<M: Checkable>(name: &str, model: &M) {
    let graph = Graph::of(model);
    match graph.first_stuck() {
        Some(stuck) => println!("{name}: found\n{}", graph.story(model, stuck)),
        None => panic!("{name}: nothing stands still: {model:?}"),
    }
}

/// All states, breadth first, and the ways between them.
struct Graph<M: Model> {
    states: Vec<M::State>,
    /// How each state was first reached.
    from: Vec<Option<(usize, M::Action)>>,
    /// For each state those that lead to it by a step that is no fault.
    before: Vec<Vec<u32>>,
    done: Vec<usize>,
}

impl<M: Checkable> Graph<M> {
    fn of(model: &M) -> Self {
        let mut graph = Self {
            states: Vec::new(),
            from: Vec::new(),
            before: Vec::new(),
            done: Vec::new(),
        };
        let mut known: HashMap<M::State, usize> = HashMap::new();
        let mut ahead = VecDeque::new();
        let mut add = |graph: &mut Self, ahead: &mut VecDeque<usize>, state: M::State, from| {
            *known.entry(state).or_insert_with_key(|state| {
                let number = graph.states.len();
                if model.is_done(state) {
                    graph.done.push(number);
                }
                graph.states.push(state.clone());
                graph.from.push(from);
                graph.before.push(Vec::new());
                ahead.push_back(number);
                number
            })
        };
        for state in model.init_states() {
            add(&mut graph, &mut ahead, state, None);
        }
        let mut actions = Vec::new();
        while let Some(number) = ahead.pop_front() {
            let state = graph.states[number].clone();
            model.actions(&state, &mut actions);
            for action in actions.drain(..) {
                let fault = model.is_fault(&state, &action);
                let Some(next) = model.next_state(&state, action.clone()) else {
                    continue;
                };
                let next = add(&mut graph, &mut ahead, next, Some((number, action)));
                if !fault {
                    graph.before[next].push(u32::try_from(number).unwrap());
                }
            }
        }
        graph
    }

    /// The first state from which there is no way to one where all is done.
    fn first_stuck(&self) -> Option<usize> {
        let mut can = vec![false; self.states.len()];
        let mut ahead = self.done.clone();
        while let Some(number) = ahead.pop() {
            if !std::mem::replace(&mut can[number], true) {
                ahead.extend(self.before[number].iter().map(|before| *before as usize));
            }
        }
        can.iter().position(|can| !can)
    }

    fn story(&self, model: &M, last: usize) -> String {
        let (mut states, mut actions) = (vec![&self.states[last]], Vec::new());
        let mut at = last;
        while let Some((before, action)) = &self.from[at] {
            at = *before;
            states.push(&self.states[at]);
            actions.push(action);
        }
        states.reverse();
        actions.reverse();
        tell(model, &states, &actions)
    }
}
