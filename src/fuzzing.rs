//! Bytes of anybody into each decoder, for `fuzz/` and for the test of what was found there.

use std::sync::Arc;

use crate::avro::{Limits, Plan, Schema, Wanted};
use crate::codec::Decoder;
use crate::projection::{
    Avro, Column, ColumnType, EntityType, Format, Framing, Gate, Projection, Source,
};
use crate::sql_projection::{SqlProjection, SqlText, Statement, script_problem};
use crate::types::{Header, RecordBuilder, TopicPartition};

/// As the projection of the demo has it, and with all that Avro has.
const READER: &str = include_str!("../tests/fixtures/fuzz/reader.avsc");
const WRITERS: [&str; 2] = [READER, include_str!("../tests/fixtures/fuzz/writer.avsc")];
/// What is read of every value.
const PATHS: [&str; 12] = [
    "/id",
    "/a",
    "/a/b",
    "/a/0",
    "/list",
    "/list/1/id",
    "/map/x",
    "/choice",
    "/choice/id",
    "/time",
    "/amount",
    "/more/next/next",
];

/// A projection that wants much of a record and does nothing with it.
fn projection(format: Format) -> Projection {
    let handler = SqlProjection {
        applies: Vec::new(),
        emits: Vec::new(),
    };
    let mut projection = Projection::with_handler("p", 1, &["t"], Gate::Newest, Arc::new(handler));
    let types = ColumnType::ALL.iter().map(|(_, of)| *of);
    let columns = types.zip(PATHS.iter().cycle()).chain(
        // Each of them as JSON too.
        PATHS.iter().map(|path| (ColumnType::Jsonb, path)),
    );
    projection.columns = columns
        .map(|(column_type, path)| Column {
            name: "v".to_owned(),
            column_type,
            source: Source::Pointer((*path).to_owned()),
            nullable: true,
            default: None,
            unit: None,
        })
        .collect();
    projection.format = format;
    projection
}

/// Reads a record. What is before the first and the second byte 0xff of the input is its key and a header.
fn decode(decoder: &Decoder, headers: &[&str], input: &[u8]) {
    let mut parts = input.splitn(3, |byte| *byte == 0xff).collect::<Vec<_>>();
    let value = parts.pop().unwrap_or_default();
    let mut parts = parts.into_iter();
    let key = parts.next();
    let header = parts.next();
    let headers = headers.iter().map(|name| Header {
        name: (*name).to_owned(),
        value: header.map(<[u8]>::to_vec),
    });
    let record = RecordBuilder {
        key,
        value: (!value.is_empty()).then_some(value),
        headers: headers.collect(),
        ..RecordBuilder::default()
    };
    let partition = TopicPartition::new("t", 0);
    let records = [record.build()];
    let _ = decoder.decode(&[(&partition, &records[..])]);
}

thread_local! {
    static JSON: Decoder = {
        let mut projection = projection(Format::Json);
        projection.entity = Some(Source::Pointer("/id".to_owned()));
        projection.sequence = Some(Source::Pointer("/seq".to_owned()));
        projection.event_id = Some(Source::Pointer("/a/b".to_owned()));
        Decoder::new(&projection, None)
    };
    static CLOUD_EVENTS: Decoder = {
        let mut projection = projection(Format::CloudEvents);
        projection.entity = Some(Source::Attribute("subject".to_owned()));
        projection.sequence = Some(Source::Attribute("sequence".to_owned()));
        projection.event_id = Some(Source::Attribute("id".to_owned()));
        Decoder::new(&projection, None)
    };
    static DEBEZIUM: [Decoder; 2] = {
        let schema = schema(include_str!("../tests/fixtures/fuzz/change.avsc"));
        let avro = Avro::new(Arc::clone(&schema), Framing::Raw(schema));
        [None, Some(avro)].map(|format| {
            let mut projection = projection(Format::Debezium(format));
            projection.entity = Some(Source::Pointer("/id".to_owned()));
            projection.change_defaults();
            Decoder::new(&projection, None)
        })
    };
    static AVRO: [Decoder; 4] = {
        let [own, other] = WRITERS.map(schema);
        let framings = [
            Framing::Confluent,
            Framing::SingleObject(vec![Arc::clone(&other)]),
            Framing::Raw(Arc::clone(&own)),
            Framing::Raw(Arc::clone(&other)),
        ];
        framings.map(|framing| {
            let is_confluent = matches!(framing, Framing::Confluent);
            let avro = Avro::new(Arc::clone(&own), framing);
            let mut projection = projection(Format::Avro(avro));
            projection.entity = Some(Source::Pointer("/id".to_owned()));
            projection.sequence = Some(Source::Pointer("/seq".to_owned()));
            let decoder = Decoder::new(&projection, None);
            if is_confluent {
                decoder.knows(1, &own);
                decoder.knows(2, &other);
            }
            decoder
        })
    };
}

#[allow(clippy::panic, reason = "the schema is a file of ours")]
fn schema(text: &str) -> Arc<Schema> {
    Arc::new(Schema::parse(text, &[]).unwrap_or_else(|why| panic!("{why}")))
}

/// A value in JSON.
pub fn json(input: &[u8]) {
    JSON.with(|decoder| decode(decoder, &[], input));
}

/// A CloudEvent, in binary or structured mode: the header is its content type too.
pub fn cloud_events(input: &[u8]) {
    let headers = [
        "content-type",
        "ce_specversion",
        "ce_id",
        "ce_source",
        "ce_sequence",
    ];
    CLOUD_EVENTS.with(|decoder| decode(decoder, &headers, input));
}

/// A change event, in JSON or, if its first byte is odd, in Avro.
pub fn debezium(input: &[u8]) {
    let Some((which, input)) = input.split_first() else {
        return;
    };
    DEBEZIUM.with(|decoders| decode(&decoders[usize::from(which & 1)], &[], input));
}

/// A value in Avro, framed as its first byte says.
pub fn avro(input: &[u8]) {
    let Some((which, input)) = input.split_first() else {
        return;
    };
    AVRO.with(|decoders| decode(&decoders[usize::from(which & 3)], &[], input));
}

/// A schema, behind those it refers to, with zero bytes between; behind a last one a datum of it.
pub fn avro_schema(input: &[u8]) {
    let mut parts: Vec<&[u8]> = input.split(|byte| *byte == 0).collect();
    let datum = parts.pop().unwrap_or_default();
    let texts: Result<Vec<&str>, _> = parts.into_iter().map(std::str::from_utf8).collect();
    let Some((text, references)) = texts.as_ref().ok().and_then(|texts| texts.split_last()) else {
        return;
    };
    let Ok(writer) = Schema::parse(text, references) else {
        return;
    };
    writer.fingerprint();
    let _ = writer.check_defaults();
    let reader = schema(READER);
    let wanted = ["", "/id", "/a/b", "/list/1/id", "/more/next/next"];
    let wanted: Vec<Wanted> = (0..)
        .zip(wanted)
        .map(|(slot, path)| Wanted {
            path: path.split('/').skip(1).map(str::to_owned).collect(),
            slot,
        })
        .collect();
    let limits = Limits {
        nesting_max: 64,
        items_max: 10_000,
        text_bytes_max: 1 << 20,
    };
    for reader in [&writer, &reader] {
        if let Ok(plan) = Plan::new(&writer, reader, &wanted) {
            let _ = plan.extract(datum, limits, &mut vec![None; wanted.len()]);
        }
    }
}

/// The text of a statement, and of a script.
pub fn sql(input: &[u8]) {
    let Ok(sql) = std::str::from_utf8(input) else {
        return;
    };
    let _ = script_problem(sql);
    let text = || SqlText {
        sql: sql.to_owned(),
        label: "apply 1".to_owned(),
        per_event: false,
        types: None,
    };
    let column = Column {
        name: "id".to_owned(),
        column_type: ColumnType::Text,
        source: Source::Key,
        nullable: false,
        default: None,
        unit: None,
    };
    for gate_in in [false, true] {
        let _ = Statement::new(
            text(),
            std::slice::from_ref(&column),
            gate_in,
            EntityType::Text,
        );
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    /// Everything that ever made a decoder panic, hang or grow, and the seeds.
    #[test]
    fn what_was_found_by_fuzzing_does_no_harm_any_more() {
        type Target = fn(&[u8]);
        let targets: [(&str, Target); 6] = [
            ("json", super::json),
            ("cloud_events", super::cloud_events),
            ("debezium", super::debezium),
            ("avro", super::avro),
            ("avro_schema", super::avro_schema),
            ("sql", super::sql),
        ];
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus");
        for (target, read) in targets {
            let files = std::fs::read_dir(corpus.join(target)).unwrap();
            let mut count = 0;
            for file in files {
                read(&std::fs::read(file.unwrap().path()).unwrap());
                count += 1;
            }
            assert!(count > 0, "{target} has no corpus");
        }
    }
}
