//! A delivery of RabbitMQ as a message: its key, its headers, and what it is known by.

use std::sync::Arc;

use lapin::message::Delivery;
use lapin::types::{AMQPValue, DecimalValue};

use super::options::{IdentityFrom, Options};
use crate::message::{BrokerId, Key};
use crate::recent::{Recent, Seen};
use crate::source::MALFORMED;

/// The ordering key: of the first header that has one, else the routing key if that was asked for.
///
/// # Errors
/// Why the message is malformed: the header has a value that is no text, and the message must not
/// run as if it had no key.
pub(super) fn key(options: &Options, delivery: &Delivery) -> Result<Option<Key>, String> {
    let mut blank = None;
    if let Some(headers) = delivery.properties.headers() {
        for name in &options.key_headers {
            let value = headers.inner().get(name.as_str());
            let Some(key) = value.map_or(Ok(None), |value| key_of(name, value))? else {
                continue;
            };
            if !key.as_bytes().trim_ascii().is_empty() {
                return Ok(Some(key));
            }
            blank = Some(key);
        }
    }
    let routing_key = delivery.routing_key.as_str();
    if options.key_from_routing_key && !routing_key.is_empty() {
        return Ok(Some(Key::from(routing_key)));
    }
    Ok(blank)
}

fn key_of(name: &str, value: &AMQPValue) -> Result<Option<Key>, String> {
    match value {
        AMQPValue::Void => Ok(None),
        AMQPValue::LongString(text) => Ok(Some(Key::new(text.as_bytes()))),
        AMQPValue::ByteArray(bytes) => Ok(Some(Key::new(bytes.as_slice()))),
        other => match text(other) {
            Some(text) => Ok(Some(Key::new(text))),
            None => Err(format!(
                "the key header `{name}` is {}, which has no text to keep order by; send the key as a string",
                kind(other)
            )),
        },
    }
}

/// What a value without a text is.
fn kind(value: &AMQPValue) -> &'static str {
    match value {
        AMQPValue::FieldArray(_) => "a list",
        AMQPValue::FieldTable(_) => "a table",
        _ => "of an unknown type",
    }
}

/// Headers that are text or can be written as text, and the properties that targets ask for; before
/// them, what makes the message malformed.
pub(super) fn headers(delivery: &Delivery, malformed: Option<String>) -> Vec<(Arc<str>, Arc<str>)> {
    let mut headers = Vec::new();
    if let Some(why) = malformed {
        headers.push((MALFORMED.into(), why.into()));
    }
    if let Some(table) = delivery.properties.headers() {
        for (name, value) in table.inner() {
            if let Some(value) = text(value) {
                headers.push((name.as_str().into(), value.into()));
            }
        }
    }
    if let Some(kind) = delivery.properties.content_type() {
        headers.push(("content-type".into(), kind.as_str().into()));
    }
    headers
}

fn text(value: &AMQPValue) -> Option<String> {
    match value {
        AMQPValue::LongString(text) => std::str::from_utf8(text.as_bytes()).ok().map(Into::into),
        AMQPValue::ShortString(text) => Some(text.as_str().to_owned()),
        AMQPValue::Boolean(value) => Some(value.to_string()),
        AMQPValue::ShortShortInt(value) => Some(value.to_string()),
        AMQPValue::ShortShortUInt(value) => Some(value.to_string()),
        AMQPValue::ShortInt(value) => Some(value.to_string()),
        AMQPValue::ShortUInt(value) => Some(value.to_string()),
        AMQPValue::LongInt(value) => Some(value.to_string()),
        AMQPValue::LongUInt(value) => Some(value.to_string()),
        AMQPValue::LongLongInt(value) => Some(value.to_string()),
        AMQPValue::Timestamp(value) => Some(value.to_string()),
        // The shortest text that reads as the same number.
        AMQPValue::Float(value) => Some(value.to_string()),
        AMQPValue::Double(value) => Some(value.to_string()),
        AMQPValue::DecimalValue(value) => Some(decimal(value)),
        AMQPValue::FieldArray(_) | AMQPValue::FieldTable(_) => None,
        AMQPValue::ByteArray(_) | AMQPValue::Void => None,
    }
}

/// Equal decimals are the same text, whatever their scale.
fn decimal(value: &DecimalValue) -> String {
    let scale = usize::from(value.scale);
    let digits = format!("{:0>width$}", value.value, width = scale + 1);
    let (whole, part) = digits.split_at(digits.len() - scale);
    match part.trim_end_matches('0') {
        "" => whole.to_owned(),
        part => format!("{whole}.{part}"),
    }
}

/// Says what messages are known by.
pub(super) struct Names {
    from: IdentityFrom,
    /// Begins the names of deliveries that have no other: never the same in another process.
    own: String,
    /// What was handed out lately.
    recent: Recent<Seen>,
    /// Two messages had one id: none is looked at any more, because another that comes again may be
    /// taken for one that was acked, and be lost.
    repeated: bool,
    warned: bool,
}

/// Which delivery it was.
#[derive(Clone, Copy)]
pub(super) struct Which {
    pub(super) link: u64,
    pub(super) shard: usize,
    pub(super) tag: u64,
}

impl Names {
    pub(super) fn new(from: IdentityFrom) -> Self {
        Self {
            from,
            own: format!("~{}", uuid::Uuid::now_v7().simple()),
            recent: Recent::default(),
            repeated: false,
            warned: false,
        }
    }

    /// The name of a delivery. A `message-id` that is known is another message's if the broker has
    /// never handed this one out before, if it came over the same link, where nothing comes twice,
    /// or if its body was another. Then it gets a name of its own, and so does every later one, so
    /// that none is taken for another and lost.
    pub(super) fn name(&mut self, source: &str, delivery: &Delivery, which: Which) -> BrokerId {
        let id = match self.from {
            IdentityFrom::MessageId => delivery.properties.message_id().as_ref(),
            IdentityFrom::Nothing => None,
        };
        let Some(id) = id.filter(|id| !id.as_str().is_empty()) else {
            if self.from == IdentityFrom::MessageId {
                self.warn(source, "a message has no `message-id`: should the connection be lost while it is out it counts as another message, and may be delivered twice; let the publisher set one");
            }
            return BrokerId::Text(self.own_name("", which));
        };
        if self.repeated {
            return BrokerId::Text(self.own_name(id.as_str(), which));
        }
        let named = BrokerId::Text(id.as_str().into());
        let (data, again) = (&delivery.data, delivery.redelivered);
        if !self.recent.came(&named, which.link, data, again) {
            self.repeated = true;
            tracing::warn!(
                source,
                id = id.as_str(),
                "two messages have the same `message-id`: from now on none of this source is looked at, and what comes again after a lost connection may be delivered again; let the publisher set another for each, or set identity = \"none\""
            );
            return BrokerId::Text(self.own_name(id.as_str(), which));
        }
        named
    }

    fn own_name(&self, id: &str, which: Which) -> Arc<str> {
        let Which { link, shard, tag } = which;
        format!("{id}{}.{link}.{shard}.{tag}", self.own).into()
    }

    fn warn(&mut self, source: &str, text: &str) {
        if !self.warned {
            self.warned = true;
            tracing::warn!(source, "{text}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lapin::BasicProperties;
    use lapin::types::FieldTable;

    fn delivery(properties: BasicProperties, redelivered: bool) -> Delivery {
        let mut delivery = Delivery::mock(1, "".into(), "rk".into(), redelivered, Vec::new());
        delivery.properties = properties;
        delivery
    }

    fn with_headers(pairs: &[(&str, AMQPValue)]) -> BasicProperties {
        let mut table = FieldTable::default();
        for (name, value) in pairs {
            table.insert((*name).into(), value.clone());
        }
        BasicProperties::default().with_headers(table)
    }

    fn long(text: &str) -> AMQPValue {
        AMQPValue::LongString(text.into())
    }

    fn keyed(key: &str) -> Result<Option<Key>, String> {
        Ok(Some(Key::from(key)))
    }

    /// A key is a key, whatever type its publisher gave it.
    #[test]
    fn every_value_that_has_a_text_is_a_key() {
        let options = Options::new("amqp://localhost", "q");
        let of = |value: AMQPValue| {
            let pairs = [("x-group-id", value), ("JMSXGroupID", long("next"))];
            key(&options, &delivery(with_headers(&pairs), false))
        };
        let decimal = |scale, value| AMQPValue::DecimalValue(DecimalValue { scale, value });
        assert_eq!(of(AMQPValue::Boolean(true)), keyed("true"));
        assert_eq!(of(AMQPValue::ShortShortInt(-1)), keyed("-1"));
        assert_eq!(of(AMQPValue::LongUInt(7)), keyed("7"));
        assert_eq!(of(AMQPValue::Double(1.5)), keyed("1.5"));
        assert_eq!(of(AMQPValue::Float(0.1)), keyed("0.1"));
        assert_eq!(of(AMQPValue::Double(1e21)), keyed("1000000000000000000000"));
        assert_eq!(of(AMQPValue::Timestamp(1_700_000_000)), keyed("1700000000"));
        assert_eq!(of(decimal(2, 150)), keyed("1.5"));
        assert_eq!(of(decimal(1, 15)), keyed("1.5"));
        assert_eq!(of(decimal(3, 5)), keyed("0.005"));
        assert_eq!(of(decimal(0, 10)), keyed("10"));
        assert_eq!(of(AMQPValue::ByteArray(b"k".to_vec().into())), keyed("k"));
        // Nothing there: the next header is asked.
        assert_eq!(of(AMQPValue::Void), keyed("next"));
        assert_eq!(of(long("  ")), keyed("next"));
    }

    #[test]
    fn a_key_that_has_no_text_makes_the_message_malformed() {
        let options = Options::new("amqp://localhost", "q");
        let list = AMQPValue::FieldArray(vec![long("a")].into());
        let table = AMQPValue::FieldTable(FieldTable::default());
        for (value, kind) in [(list, "a list"), (table, "a table")] {
            let pairs = [("x-group-id", value), ("JMSXGroupID", long("next"))];
            let malformed = delivery(with_headers(&pairs), false);
            let why = key(&options, &malformed).expect_err(kind);
            assert!(why.contains("`x-group-id`") && why.contains(kind), "{why}");
            let headers = headers(&malformed, Some(why.clone()));
            assert_eq!(headers[0], (MALFORMED.into(), why.into()));
        }
    }

    #[test]
    fn the_first_header_that_is_not_blank_is_the_key() {
        let options = Options::new("amqp://localhost", "q");
        let both = [("JMSXGroupID", long("jms")), ("x-group-id", long("own"))];
        let own = delivery(with_headers(&both), false);
        assert_eq!(key(&options, &own), keyed("own"));
        let blank = [("JMSXGroupID", long("jms")), ("x-group-id", long(" "))];
        let jms = delivery(with_headers(&blank), false);
        assert_eq!(key(&options, &jms), keyed("jms"));
        let number = [("x-group-id", AMQPValue::LongLongInt(42))];
        let number = delivery(with_headers(&number), false);
        assert_eq!(key(&options, &number), keyed("42"));
    }

    #[test]
    fn the_routing_key_is_the_key_only_if_told_so() {
        let mut options = Options::new("amqp://localhost", "q");
        let none = delivery(BasicProperties::default(), false);
        assert_eq!(key(&options, &none), Ok(None));
        options.key_from_routing_key = true;
        assert_eq!(key(&options, &none), keyed("rk"));
    }

    #[test]
    fn a_message_that_comes_again_has_the_same_name_and_a_new_one_never_an_old_name() {
        let mut names = Names::new(IdentityFrom::MessageId);
        let which = |tag| Which {
            link: tag,
            shard: 0,
            tag,
        };
        let with_id = || BasicProperties::default().with_message_id("a".into());
        let first = names.name("s", &delivery(with_id(), false), which(1));
        let again = names.name("s", &delivery(with_id(), true), which(2));
        let other = names.name("s", &delivery(with_id(), false), which(3));
        assert_eq!(first, again);
        assert_ne!(first, other);
        let nameless = |names: &mut Names, tag| {
            let delivery = delivery(BasicProperties::default(), true);
            names.name("s", &delivery, which(tag))
        };
        assert_ne!(nameless(&mut names, 4), nameless(&mut names, 5));
    }

    /// The first may have been acked: the second must not be taken for it and be acked uncalled.
    #[test]
    fn the_second_of_two_with_one_id_never_has_the_name_of_the_first_when_it_comes_again() {
        let which = |link, tag| Which {
            link,
            shard: 0,
            tag,
        };
        let with_body = |body: &[u8], redelivered| {
            let properties = BasicProperties::default().with_message_id("a".into());
            let mut delivery = delivery(properties, redelivered);
            delivery.data = body.to_vec();
            delivery
        };
        // Both were handed out before the connection was lost.
        let mut names = Names::new(IdentityFrom::MessageId);
        let first = names.name("s", &with_body(b"1", false), which(1, 1));
        let second = names.name("s", &with_body(b"1", false), which(1, 2));
        assert_ne!(first, second, "a link hands nothing out twice");
        let again = names.name("s", &with_body(b"1", true), which(2, 1));
        assert_ne!(first, again);
        // The second was on its way to us, and was not handed out.
        let mut names = Names::new(IdentityFrom::MessageId);
        let first = names.name("s", &with_body(b"1", false), which(1, 1));
        let second = names.name("s", &with_body(b"2", true), which(2, 1));
        assert_ne!(first, second);
    }

    #[test]
    fn without_identity_every_delivery_is_a_message_of_its_own() {
        let mut names = Names::new(IdentityFrom::Nothing);
        let mut name = |tag| {
            let properties = BasicProperties::default().with_message_id("a".into());
            let which = Which {
                link: 1,
                shard: 0,
                tag,
            };
            names.name("s", &delivery(properties, true), which)
        };
        assert_ne!(name(1), name(2));
    }
}
