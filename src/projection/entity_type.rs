//! Which type entities are of.

use std::borrow::Cow;
use std::fmt;

use uuid::Uuid;

/// Which type entities are of: as keys of tables, and as `_entity` in SQL.
///
/// Values that are equal in Postgres are one entity, however their events spell them: of type `uuid` upper and lower
/// case, of type `bigint` the number 7 and the string `"007"`. What is no value of the type cannot be applied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EntityType {
    /// As it stands in the event, byte by byte.
    #[default]
    Text,
    /// A whole number of 64 bits.
    Bigint,
    /// A UUID.
    Uuid,
}

impl EntityType {
    /// By their names.
    pub(crate) const ALL: [(&'static str, Self); 3] = [
        (Self::Text.sql(), Self::Text),
        (Self::Bigint.sql(), Self::Bigint),
        (Self::Uuid.sql(), Self::Uuid),
    ];

    /// The name of the type in SQL.
    pub(crate) const fn sql(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Bigint => "bigint",
            Self::Uuid => "uuid",
        }
    }

    /// Its object id in Postgres.
    pub(super) fn oid(self) -> u32 {
        match self {
            Self::Text => 25,
            Self::Bigint => 20,
            Self::Uuid => 2950,
        }
    }

    /// An entity as Postgres writes it, so that there is one spelling of each.
    ///
    /// # Errors
    /// What it is instead of a value of the type.
    pub(crate) fn spelled(self, entity: Cow<'_, str>) -> Result<Cow<'_, str>, String> {
        let spelled = match self {
            Self::Text => return Ok(entity),
            Self::Bigint => {
                let number: Result<i64, _> = entity.parse();
                number.map(|number| number.to_string()).ok()
            }
            Self::Uuid => {
                let uuid = Uuid::try_parse(&entity).ok();
                uuid.map(|uuid| uuid.hyphenated().to_string())
            }
        };
        match spelled {
            Some(spelled) if *spelled == *entity => Ok(entity),
            Some(spelled) => Ok(Cow::Owned(spelled)),
            None => Err(format!("it is not a {self} (`entity_type`)")),
        }
    }

    /// A parameter of texts as an array of this type.
    pub(super) fn array(self, parameter: &str) -> String {
        match self {
            Self::Text => parameter.to_owned(),
            _ => format!("{parameter}::text[]::{self}[]"),
        }
    }

    /// A column of this type as text.
    pub(super) fn as_text(self, column: &str) -> String {
        match self {
            Self::Text => column.to_owned(),
            _ => format!("{column}::text"),
        }
    }

    /// As Postgres sends it; only of what was spelled before.
    pub(super) fn binary(self, entity: &str) -> Option<Cow<'_, [u8]>> {
        Some(match self {
            Self::Text => Cow::Borrowed(entity.as_bytes()),
            Self::Bigint => Cow::Owned(entity.parse::<i64>().ok()?.to_be_bytes().to_vec()),
            Self::Uuid => Cow::Owned(Uuid::try_parse(entity).ok()?.as_bytes().to_vec()),
        })
    }
}

impl fmt::Display for EntityType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.sql())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entity_has_one_spelling() {
        let uuid = "67e55044-10b1-426f-9247-bb680e5fe0c8";
        for (entity_type, entity, spelled) in [
            (EntityType::Text, "007", Some("007")),
            (EntityType::Bigint, "7", Some("7")),
            (EntityType::Bigint, "007", Some("7")),
            (EntityType::Bigint, "+7", Some("7")),
            (EntityType::Bigint, "-0", Some("0")),
            (
                EntityType::Bigint,
                "-9223372036854775808",
                Some("-9223372036854775808"),
            ),
            (EntityType::Bigint, "9223372036854775808", None),
            (EntityType::Bigint, "7.0", None),
            (EntityType::Bigint, " 7", None),
            (EntityType::Uuid, uuid, Some(uuid)),
            (EntityType::Uuid, &uuid.to_uppercase(), Some(uuid)),
            (EntityType::Uuid, &uuid.replace('-', ""), Some(uuid)),
            (EntityType::Uuid, "7", None),
        ] {
            let found = entity_type.spelled(Cow::Borrowed(entity));
            assert_eq!(
                found.as_deref().ok(),
                spelled,
                "{entity_type} {entity}: {found:?}"
            );
        }
    }
}
