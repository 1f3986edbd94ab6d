//! The outbox for transactions that are not Tidegate's.

use sqlx::PgConnection;
use uuid::Uuid;

use crate::store::outbox;
use crate::types::Message;

/// Sends messages from transactions of your own services: what commits is sent, what rolls back is not.
///
/// The relay of a `tidegate` process sends them, at least once and always with the same id, in the order
/// of the commits for each key of a topic. See `docs/outbox.md`.
///
/// ```
/// use sqlx::{Connection as _, PgConnection};
/// use tidegate::Outbox;
/// use tidegate::projection::Message;
///
/// async fn place_order(connection: &mut PgConnection, order: i64) -> sqlx::Result<()> {
///     let mut tx = connection.begin().await?;
///     sqlx::query("INSERT INTO orders (id) VALUES ($1)")
///         .bind(order)
///         .execute(&mut *tx)
///         .await?;
///     let message = Message {
///         topic: "orders".to_owned(),
///         key: Some(order.to_string().into_bytes()),
///         payload: Some(br#"{"state": "placed"}"#.to_vec()),
///         kind: "order.placed".to_owned(),
///         ..Message::default()
///     };
///     Outbox::emit(&mut tx, message).await?;
///     tx.commit().await
/// }
/// ```
#[derive(Debug)]
pub enum Outbox {}

impl Outbox {
    /// Puts a message in the outbox, with `tidegate.emit_bytes`. Returns its id.
    ///
    /// The message gets its place among those of its key when the transaction commits.
    ///
    /// # Errors
    /// Those of the SQL function: 22004 and 22023 for what a message cannot be, 54000 if it is too large,
    /// 25001 below a projection's handler, which has [`Context::emit`](crate::projection::Context::emit).
    pub async fn emit(connection: &mut PgConnection, message: Message) -> sqlx::Result<Uuid> {
        outbox::emit(connection, message).await
    }
}
