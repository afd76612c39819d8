//! Signatures, checked by an implementation that is not ours.

use standardwebhooks::Webhook;

use super::*;

const OLD: &str = "whsec_b2xkIHNlY3JldCBvZiB0d2VudHktZm91ciBieXRlcw==";
const NEW: &str = "whsec_bmV3IHNlY3JldCBvZiB0d2VudHktZm91ciBieXRlcyEh";
const OTHER: &str = "whsec_YW5vdGhlciBzZWNyZXQsIGtub3duIHRvIG5vYm9keSE=";

fn signed(secrets: &[&str]) -> Attempt {
    Attempt {
        secrets: Secrets::parse(secrets).unwrap(),
        ..attempt()
    }
}

/// What the target gets of a message signed with these.
async fn sent(secrets: &[&str], change: impl Fn(&mut Message)) -> Request {
    let target = Target::always_ok().await;
    let mut message = message(target.url("/"));
    change(&mut message);
    let outcome = http().attempt(&message, &signed(secrets)).await;
    assert_eq!(outcome, Outcome::Delivered);
    target.recorder().requests().remove(0)
}

fn verifies(request: &Request, secret: &str) -> bool {
    let webhook = Webhook::new(secret).expect("a secret");
    webhook.verify(&request.body, &request.headers).is_ok()
}

#[tokio::test]
async fn a_target_verifies_the_signature_with_its_secret() {
    let request = sent(&[NEW], |_| {}).await;
    assert!(verifies(&request, NEW));
    assert!(!verifies(&request, OTHER));
}

#[tokio::test]
async fn while_a_secret_is_changed_both_verify() {
    let request = sent(&[NEW, OLD], |_| {}).await;
    assert!(verifies(&request, NEW));
    assert!(verifies(&request, OLD));
    assert!(!verifies(&request, OTHER));
}

#[tokio::test]
async fn ids_and_bodies_of_any_text_are_signed_as_they_are_sent() {
    // Of any bytes too, but the other implementation takes only text.
    let text: String = ('\0'..'\u{fff}').collect();
    for payload in [Bytes::new(), Bytes::from(text)] {
        let request = sent(&[NEW], |m| {
            m.id = "id ü.1\n".into();
            m.payload = payload.clone();
        })
        .await;
        assert!(verifies(&request, NEW));
    }
}

#[tokio::test]
async fn a_body_id_or_time_that_was_changed_does_not_verify() {
    let request = sent(&[NEW], |_| {}).await;
    let mut other = request.clone();
    other.body = Bytes::from_static(b"{}");
    assert!(!verifies(&other, NEW));
    for name in ["webhook-id", "webhook-timestamp"] {
        let mut other = request.clone();
        let value = other.headers[name].to_str().unwrap().to_owned() + "1";
        other
            .headers
            .insert(http::HeaderName::from_static(name), value.parse().unwrap());
        assert!(!verifies(&other, NEW), "{name}");
    }
}

#[tokio::test]
async fn without_secrets_nothing_is_signed() {
    let request = sent(&[], |_| {}).await;
    assert_eq!(header(&request, "webhook-signature"), None);
    assert!(header(&request, "webhook-timestamp").is_some());
}

#[tokio::test]
async fn time_and_signature_are_made_anew_for_each_attempt() {
    let target = Target::always_ok().await;
    let (dispatch, message, attempt) = (http(), message(target.url("/")), signed(&[NEW]));
    // Attempts until the clock has gone on by a second: nobody tells of that.
    let times = |requests: &[Request]| -> Vec<String> {
        let mut times: Vec<String> = requests
            .iter()
            .map(|request| header(request, "webhook-timestamp").unwrap().to_owned())
            .collect();
        times.dedup();
        times
    };
    while times(&target.recorder().requests()).len() < 2 {
        let count = target.recorder().requests().len();
        assert!(count < 200, "the time stands still");
        assert_eq!(
            dispatch.attempt(&message, &attempt).await,
            Outcome::Delivered
        );
        tokio::time::sleep(SHORT).await;
    }
    let requests = target.recorder().requests();
    let (first, last) = (&requests[0], &requests[requests.len() - 1]);
    assert_ne!(
        first.headers["webhook-signature"],
        last.headers["webhook-signature"]
    );
    assert!(verifies(first, NEW) && verifies(last, NEW));
}
