//! The projections a binary knows.

use super::definition::Projection;

/// Projections written in Rust, to be handed to [`cli::main`](crate::cli::main).
#[derive(Debug, Default)]
pub struct Registry {
    projections: Vec<Projection>,
}

/// Why a projection cannot be registered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegistryError {
    /// Two projections of one name.
    #[error("projection `{0}` is registered twice")]
    Twice(String),
    /// The definition contradicts itself.
    #[error("projection `{0}`: {1}")]
    Contradiction(String, String),
}

impl Registry {
    /// An empty registry: projections from the configuration file alone.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a projection.
    ///
    /// # Errors
    /// When the name is taken or the definition contradicts itself.
    pub fn register(mut self, projection: Projection) -> Result<Self, RegistryError> {
        if let Some(problem) = projection.problems().into_iter().next() {
            return Err(RegistryError::Contradiction(
                projection.name,
                problem.to_string(),
            ));
        }
        if self.projections.iter().any(|p| p.name == projection.name) {
            return Err(RegistryError::Twice(projection.name));
        }
        self.projections.push(projection);
        Ok(self)
    }

    pub(crate) fn into_projections(self) -> Vec<Projection> {
        self.projections
    }
}
