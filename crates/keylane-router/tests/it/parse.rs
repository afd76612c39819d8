//! Bodies as messages: every field of the envelope, raw bodies, and what publishers are told.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use keylane_router::message::{BrokerId, Identity, Key, Message};
use keylane_router::parse::publish::{self, Problem};
use keylane_router::parse::{Incoming, Malformed, parse};
use keylane_router::plan::Envelope;
use keylane_router::source::MALFORMED;
use proptest::prelude::*;

fn identity() -> Identity {
    Identity {
        source: "s".into(),
        id: BrokerId::Sequence(41),
    }
}

fn read_with(
    envelope: &Envelope,
    body: impl Into<Bytes>,
    key: Option<&Key>,
    headers: &[(Arc<str>, Arc<str>)],
) -> Result<Message, Malformed> {
    let (identity, body) = (identity(), body.into());
    let incoming = Incoming {
        identity: &identity,
        key,
        headers,
        body: &body,
    };
    parse(envelope, incoming)
}

fn read(body: impl Into<Bytes>) -> Result<Message, Malformed> {
    read_with(&Envelope::Keylane, body, None, &[])
}

fn message(body: impl Into<Bytes>) -> Message {
    read(body).expect("a message")
}

fn malformed(body: impl Into<Bytes>) -> String {
    read(body).expect_err("malformed").text
}

/// An envelope with these fields besides the target.
fn with(fields: &str) -> String {
    format!("{{\"mediationTarget\":\"http://t/\",{fields}}}")
}

fn raw() -> Envelope {
    Envelope::Raw {
        pool: "p".into(),
        target: "http://raw/".into(),
    }
}

/// A source says what is wrong outside the body, and the reason stays with the stored message.
#[test]
fn what_a_source_calls_malformed_is_no_message() {
    let why: Arc<str> = "the key header is a list".into();
    let headers = [(MALFORMED.into(), why.clone())];
    for envelope in [Envelope::Keylane, raw()] {
        let read = read_with(&envelope, with("\"id\":\"a\""), None, &headers);
        assert_eq!(read.expect_err("malformed").text, *why);
    }
}

#[test]
fn every_field_is_read() {
    let message = message(
        r#"{"id":"m1","poolCode":"mail","authToken":"tok","mediationType":"HTTP",
            "mediationTarget":"https://t/x","messageGroupId":"g","payload":{"a":[1, 2]},
            "contentType":"application/x+json","headers":{"X-A":"b"},"tenant":"blue",
            "delaySeconds":5,"deduplicationId":"d","somethingElse":{"kept":true}}"#,
    );
    assert_eq!(&*message.id, "m1");
    assert_eq!(message.pool.as_deref(), Some("mail"));
    assert_eq!(message.auth_token.as_deref(), Some("tok"));
    assert_eq!(&*message.mediation_type, "HTTP");
    assert_eq!(&*message.target, "https://t/x");
    assert_eq!(message.key, Some(Key::from("g")));
    assert_eq!(&message.payload[..], b"{\"a\":[1, 2]}");
    assert_eq!(&*message.content_type, "application/x+json");
    assert_eq!(message.headers, [("X-A".into(), "b".into())]);
    assert_eq!(message.tenant.as_deref(), Some("blue"));
}

#[test]
fn a_pointer_message_gets_its_id_as_payload() {
    let plain = message(with(r#""id":"m1""#));
    assert_eq!(&plain.payload[..], br#"{"messageId":"m1"}"#);
    assert_eq!(&*plain.content_type, "application/json");
    assert_eq!(
        (plain.pool, plain.auth_token, plain.key),
        (None, None, None)
    );
    let odd = message(with(r#""id":"a\"b\\\n\u00fc","payload":null"#));
    assert_eq!(&*odd.id, "a\"b\\\nü");
    assert_eq!(
        &odd.payload[..],
        "{\"messageId\":\"a\\\"b\\\\\\nü\"}".as_bytes()
    );
}

#[test]
fn a_message_without_id_is_called_by_its_identity() {
    assert_eq!(&*message(with(r#""id":null"#)).id, "41");
    assert_eq!(&*message(with(r#""payload":1"#)).id, "41");
}

#[test]
fn the_target_gets_exactly_the_payloads_bytes() {
    for payload in [
        "{ \"b\" : 1,\n \"a\" : 1.10 }",
        "[]",
        "\"\\u0041\"",
        "0",
        "true",
        "1e400",
        "12345678901234567890123",
        "{\"a\":1,\"a\":2}",
    ] {
        let body = Bytes::from(with(&format!("\"id\":\"x\",\"payload\":  {payload} ")));
        let message = message(body.clone());
        assert_eq!(&message.payload[..], payload.as_bytes());
        assert!(
            body.as_ptr_range().contains(&message.payload.as_ptr()),
            "copied"
        );
    }
}

#[test]
fn a_base64_payload_is_decoded() {
    let decoded = message(with(
        r#""payloadBase64":"AP8QIA==","contentType":"image/png""#,
    ));
    assert_eq!(&decoded.payload[..], [0, 255, 16, 32]);
    assert_eq!(&*decoded.content_type, "image/png");
    let plain = message(with(r#""payloadBase64":"""#));
    assert!(plain.payload.is_empty());
    assert_eq!(&*plain.content_type, "application/octet-stream");
}

#[test]
fn an_absent_null_or_blank_key_is_keyless() {
    for key in ["null", "\"\"", "\"  \"", "\"\\t\\n\""] {
        let message = message(with(&format!("\"messageGroupId\":{key}")));
        assert_eq!(message.key, None, "{key}");
    }
}

#[test]
fn the_brokers_own_key_wins() {
    let own = Key::new(b"\xff own");
    let body = with(r#""messageGroupId":"body""#);
    let both = read_with(&Envelope::Keylane, body.clone(), Some(&own), &[]);
    assert_eq!(both.expect("a message").key, Some(own));
    let blank = read_with(&Envelope::Keylane, body, Some(&Key::from(" ")), &[]);
    assert_eq!(blank.expect("a message").key, Some(Key::from("body")));
}

#[test]
fn headers_that_are_ours_are_left_out() {
    let read = message(with(
        r#""headers":{"X-Ok":"1","Authorization":"x","webhook-id":"x","Keylane-Pool":"x",
           "Content-Type":"text/plain","Host":"x"}"#,
    ));
    assert_eq!(read.headers, [("X-Ok".into(), "1".into())]);
    assert_eq!(&*read.content_type, "text/plain");
}

#[test]
fn the_brokers_trace_is_passed_on_unless_the_message_has_one() {
    let broker: [(Arc<str>, Arc<str>); 2] = [
        ("Traceparent".into(), "00-broker".into()),
        ("secret".into(), "x".into()),
    ];
    let read = read_with(&Envelope::Keylane, with("\"id\":\"x\""), None, &broker);
    assert_eq!(
        read.expect("a message").headers,
        [("traceparent".into(), "00-broker".into())]
    );
    let own = with(r#""headers":{"traceparent":"00-own"}"#);
    let read = read_with(&Envelope::Keylane, own, None, &broker);
    assert_eq!(
        read.expect("a message").headers,
        [("traceparent".into(), "00-own".into())]
    );
}

#[test]
fn a_raw_body_is_the_payload() {
    let key = Key::from("k");
    let read = read_with(&raw(), &b"\x00\xff not json"[..], Some(&key), &[]);
    let message = read.expect("a message");
    assert_eq!(&message.payload[..], b"\x00\xff not json");
    assert_eq!((&*message.id, &*message.target), ("41", "http://raw/"));
    assert_eq!(message.pool.as_deref(), Some("p"));
    assert_eq!(message.key, Some(key));
    assert_eq!(&*message.content_type, "application/octet-stream");
    let typed = [("Content-Type".into(), "text/csv".into())];
    let read = read_with(&raw(), "a,b", None, &typed);
    assert_eq!(&*read.expect("a message").content_type, "text/csv");
}

#[test]
fn what_is_no_message_is_malformed() {
    for body in [
        "",
        " ",
        "x",
        "[]",
        "null",
        "\"x\"",
        "{",
        "{}",
        "{\"id\":\"x\"}",
        "{}x",
        "{\"mediationTarget\":7}",
        "{\"mediationTarget\":\" \"}",
        "{\"mediationTarget\":\"a\",\"mediationTarget\":\"b\"}",
    ] {
        malformed(body);
    }
    malformed(&b"{\"mediationTarget\":\"\xff\"}"[..]);
    for fields in [
        "\"id\":1",
        "\"poolCode\":[]",
        "\"messageGroupId\":5",
        "\"payloadBase64\":\"%\"",
        "\"payload\":1,\"payloadBase64\":\"\"",
        "\"headers\":[]",
        "\"headers\":{\"a\":1}",
        "\"headers\":{\"a b\":\"\"}",
        "\"headers\":{\"a\":\"x\\ny\"}",
        "\"contentType\":\"a\\nb\"",
        "\"delaySeconds\":-1",
        "\"delaySeconds\":\"5\"",
        "\"delaySeconds\":1e99",
    ] {
        malformed(with(fields));
    }
}

#[test]
fn a_malformed_message_is_told_without_its_content() {
    let text = malformed(with(r#""authToken":["s3cret"],"id":{"s3cret":1}"#));
    assert!(
        text.contains("/authToken") && text.contains("/id"),
        "{text}"
    );
    assert!(!text.contains("s3cret"));
    assert!(!malformed("{\"s3cret\"").contains("s3cret"));
}

#[test]
fn handlers_in_the_process_need_no_target() {
    assert_eq!(
        &*message(r#"{"id":"x","mediationType":"LOCAL"}"#).target,
        ""
    );
}

#[test]
fn one_message_or_an_array_can_be_published() {
    let one = with(r#""id":"a","messageGroupId":"g","poolCode":"p","delaySeconds":1.5"#);
    let read = publish::read(&Bytes::from(one.clone())).expect("fine");
    assert_eq!((&*read[0].id, &*read[0].deduplication_id), ("a", "a"));
    assert_eq!(
        (read[0].key.clone(), read[0].pool.as_deref()),
        (Some(Key::from("g")), Some("p"))
    );
    assert_eq!(read[0].delay, Duration::from_millis(1500));
    assert_eq!(&read[0].body[..], one.as_bytes());

    let two = with(r#""id":"b","deduplicationId":"d""#);
    let both = Bytes::from(format!(" [ {one} , {two} ] "));
    let read = publish::read(&both).expect("fine");
    assert_eq!(read.len(), 2);
    assert_eq!((&*read[1].id, &*read[1].deduplication_id), ("b", "d"));
    assert_eq!(&read[1].body[..], two.as_bytes());
}

#[test]
fn a_message_without_id_gets_one_that_is_stored_with_it() {
    let body = Bytes::from(format!(" {}", with("\"payload\":{\"id\":\"inner\"}")));
    let first = publish::read(&body).expect("fine").remove(0);
    let second = publish::read(&body).expect("fine").remove(0);
    assert_ne!(first.id, second.id);
    assert_eq!(first.id, first.deduplication_id);
    assert_eq!(message(first.body.clone()).id, first.id);
    assert_eq!(&message(first.body).payload[..], b"{\"id\":\"inner\"}");
}

#[test]
fn all_problems_are_told_at_once_with_their_place() {
    let good = with("\"id\":\"x\"");
    let body = format!(
        "[{good},{{\"mediationTarget\":\"ftp://x\",\"id\":null,\"headers\":{{\"Host\":\"h\",\"a/b\":\"\"}}}},{{\"id\":5}},7]"
    );
    let problems = publish::read(&body.into()).expect_err("problems");
    let pointers: Vec<_> = problems.iter().map(|p| p.pointer.as_str()).collect();
    assert_eq!(
        pointers,
        ["/1/headers/a~1b", "/2/id", "/2/mediationTarget", "/3"]
    );
    for Problem { detail, remedy, .. } in &problems {
        assert!(!detail.is_empty() && !remedy.is_empty());
    }
    let strict = with("\"id\":null,\"headers\":{\"Host\":\"h\"},\"authToken\":\"t\\r\\n\"");
    let strict = strict.replace("http:", "ftp:");
    let problems = publish::read(&strict.into()).expect_err("problems");
    let pointers: Vec<_> = problems.iter().map(|p| p.pointer.as_str()).collect();
    let expected = ["/mediationTarget", "/authToken", "/headers/Host", "/id"];
    assert_eq!(pointers, expected);
}

#[test]
fn an_empty_array_and_no_json_are_problems() {
    for body in ["", "[]", "[", "[{]", "7", "null"] {
        let problems = publish::read(&body.into()).expect_err("problems");
        assert_eq!((problems.len(), &*problems[0].pointer), (1, ""), "{body}");
    }
}

proptest! {
    #[test]
    fn no_body_makes_it_panic(body in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = read(body.clone());
        let _ = publish::read(&body.into());
    }

    #[test]
    fn what_is_published_is_read_back(id in "\\PC{1,20}", key in "\\PC{0,20}", text in "\\PC*") {
        let envelope = serde_json::json!({
            "id": id, "messageGroupId": key, "payload": { "text": text }, "mediationTarget": "http://t/",
        });
        let publication = publish::read(&envelope.to_string().into());
        prop_assume!(!id.trim().is_empty());
        let publication = publication.expect("fine").remove(0);
        let message = message(publication.body.clone());
        prop_assert_eq!(&publication.id, &message.id);
        prop_assert_eq!(&publication.key, &message.key);
        let payload: serde_json::Value = serde_json::from_slice(&message.payload).expect("JSON");
        prop_assert_eq!(&payload, &envelope["payload"]);
    }
}
