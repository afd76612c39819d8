//! A message of the broker as a body with key, id and headers.

use std::sync::Arc;

use bytes::Bytes;
use fe2o3_amqp::types::messaging::{
    AmqpSequence, AmqpValue, ApplicationProperties, Body, Data, Message, MessageId, Properties,
};
use fe2o3_amqp::types::primitives::{SimpleValue, Value};

use crate::message::Key;

/// What a message holds.
pub(super) struct Content {
    /// Its own id, as text.
    pub(super) id: Option<String>,
    pub(super) key: Option<Key>,
    pub(super) body: Bytes,
    pub(super) headers: Vec<(Arc<str>, Arc<str>)>,
}

impl From<Message<Body<Value>>> for Content {
    fn from(message: Message<Body<Value>>) -> Self {
        let properties = message.properties.unwrap_or_default();
        let headers = headers(&properties, message.application_properties);
        Self {
            id: properties.message_id.map(id),
            key: properties.group_id.map(Key::new),
            body: body(message.body),
            headers,
        }
    }
}

/// Ids of different types are different ids.
fn id(id: MessageId) -> String {
    match id {
        MessageId::String(text) => text,
        MessageId::Ulong(number) => format!("ulong:{number}"),
        MessageId::Uuid(uuid) => format!("uuid:{}", hex(uuid.as_ref())),
        MessageId::Binary(bytes) => format!("binary:{}", hex(&bytes)),
    }
}

fn headers(
    properties: &Properties,
    own: Option<ApplicationProperties>,
) -> Vec<(Arc<str>, Arc<str>)> {
    let content_type = properties.content_type.as_ref();
    let content_type = content_type.map(|kind| ("content-type".into(), kind.as_str().into()));
    let own = own.into_iter().flat_map(|own| own.0);
    let own = own.filter_map(|(name, value)| Some((name.into(), text(value)?.into())));
    content_type.into_iter().chain(own).collect()
}

/// What can be said in a header.
fn text(value: SimpleValue) -> Option<String> {
    match Value::from(value) {
        Value::String(text) => Some(text),
        Value::Null | Value::Binary(_) => None,
        other => Some(match json(other) {
            serde_json::Value::String(text) => text,
            other => other.to_string(),
        }),
    }
}

/// Text and bytes as they are; what has no bytes of its own as JSON.
fn body(body: Body<Value>) -> Bytes {
    match body {
        Body::Empty | Body::Value(AmqpValue(Value::Null)) => Bytes::new(),
        Body::Data(parts) => {
            let mut parts: Vec<Data> = parts.into_iter().collect();
            match parts.len() {
                1 => parts.remove(0).0.into_vec().into(),
                _ => parts
                    .iter()
                    .flat_map(|part| part.0.iter().copied())
                    .collect(),
            }
        }
        Body::Value(AmqpValue(Value::String(text))) => text.into(),
        Body::Value(AmqpValue(Value::Binary(bytes))) => bytes.into_vec().into(),
        Body::Value(AmqpValue(value)) => json(value).to_string().into(),
        Body::Sequence(parts) => {
            let values = parts.into_iter().flat_map(|AmqpSequence(values)| values);
            let values = values.map(json).collect();
            serde_json::Value::Array(values).to_string().into()
        }
    }
}

fn json(value: Value) -> serde_json::Value {
    match value {
        Value::Null => serde_json::Value::Null,
        Value::Described(described) => json(described.value),
        Value::Bool(value) => value.into(),
        Value::Ubyte(value) => value.into(),
        Value::Ushort(value) => value.into(),
        Value::Uint(value) => value.into(),
        Value::Ulong(value) => value.into(),
        Value::Byte(value) => value.into(),
        Value::Short(value) => value.into(),
        Value::Int(value) => value.into(),
        Value::Long(value) => value.into(),
        Value::Float(value) => value.0.into(),
        Value::Double(value) => value.0.into(),
        Value::Char(value) => value.to_string().into(),
        Value::String(text) => text.into(),
        Value::Symbol(text) => text.0.into(),
        Value::Timestamp(time) => time.milliseconds().into(),
        Value::Uuid(uuid) => hex(uuid.as_ref()).into(),
        Value::Binary(bytes) => hex(&bytes).into(),
        Value::Decimal32(value) => hex(&value.into_inner()).into(),
        Value::Decimal64(value) => hex(&value.into_inner()).into(),
        Value::Decimal128(value) => hex(&value.into_inner()).into(),
        Value::List(values) => values.into_iter().map(json).collect(),
        Value::Array(values) => values.0.into_iter().map(json).collect(),
        Value::Map(entries) => {
            let entry = |(name, value)| match json(name) {
                serde_json::Value::String(name) => (name, json(value)),
                name => (name.to_string(), json(value)),
            };
            let entries = entries.into_iter().map(entry);
            serde_json::Value::Object(entries.collect())
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use fe2o3_amqp::types::messaging::Batch;
    use fe2o3_amqp::types::primitives::{Binary, OrderedMap};

    use super::*;

    fn content(body: Body<Value>) -> Bytes {
        let message = Message::builder().body(body).build();
        Content::from(message).body
    }

    #[test]
    fn text_and_bytes_are_the_body_as_they_are() {
        let text = Body::Value(AmqpValue(Value::String("{\"a\": 1}".into())));
        assert_eq!(content(text), "{\"a\": 1}");
        let data = |bytes: &[u8]| Data(Binary::from(bytes.to_vec()));
        let parts = Batch::new(vec![data(b"\xff\0"), data(b"b")]);
        assert_eq!(content(Body::Data(parts)), b"\xff\0b".as_slice());
        assert_eq!(content(Body::Empty), "");
        assert_eq!(content(Body::Value(AmqpValue(Value::Null))), "");
    }

    #[test]
    fn maps_lists_and_numbers_are_json() {
        let mut map = OrderedMap::new();
        let list = Value::List(vec![Value::Int(1), Value::Bool(true), Value::Null]);
        map.insert(Value::String("list".into()), list);
        map.insert(Value::Long(7), Value::Binary(Binary::from(vec![1, 255])));
        let map = Body::Value(AmqpValue(Value::Map(map)));
        assert_eq!(content(map), r#"{"7":"01ff","list":[1,true,null]}"#);
        assert_eq!(
            content(Body::Value(AmqpValue(Value::Double(0.5.into())))),
            "0.5"
        );
        let values = AmqpSequence(vec![Value::String("a".into()), Value::Ulong(2)]);
        assert_eq!(
            content(Body::Sequence(Batch::new(vec![values]))),
            r#"["a",2]"#
        );
    }

    #[test]
    fn key_id_and_headers_come_from_the_properties() {
        let own = ApplicationProperties::builder()
            .insert("traceparent", "00-ab")
            .insert("tries", 3_i32)
            .build();
        let properties = Properties::builder()
            .message_id(5_u64)
            .group_id("k".to_owned())
            .content_type("application/json")
            .build();
        let message = Message::builder()
            .properties(properties)
            .application_properties(own)
            .body(Body::Empty)
            .build();
        let content = Content::from(message);
        assert_eq!(content.id.as_deref(), Some("ulong:5"));
        assert_eq!(content.key, Some(Key::from("k")));
        let headers = content.headers.iter();
        let headers: Vec<_> = headers
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        assert_eq!(
            headers,
            [
                "content-type=application/json",
                "traceparent=00-ab",
                "tries=3"
            ]
        );
    }
}
