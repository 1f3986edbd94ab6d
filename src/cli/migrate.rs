//! `tidegate migrate`.

use super::{CODE_NEEDS_A_PERSON, ConfigArgument, Done, Failed, database_itself, reach};
use crate::store::migration::{self, State};

pub(super) async fn execute(arguments: ConfigArgument) -> Done {
    let config = arguments.load()?;
    let database = database_itself(&config).await?;
    let mut connection = reach(&database).await?;
    match migration::state(&mut connection).await? {
        State::Current => println!("schema tidegate in {} is up to date", database.place()),
        State::Behind { applied, known } => {
            migration::migrate(connection).await?;
            println!(
                "schema tidegate in {}: version {applied} -> {known}",
                database.place()
            );
        }
        State::Ahead { applied, known } => {
            return Err(Failed::new(
                CODE_NEEDS_A_PERSON,
                anyhow::anyhow!(
                    "schema tidegate in {} is at version {applied}; this binary knows only {known}. Use a newer binary",
                    database.place()
                ),
            ));
        }
    }
    Ok(())
}
