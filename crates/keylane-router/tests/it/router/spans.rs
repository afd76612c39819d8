//! What attempts tell those who listen: spans in OpenTelemetry's words (GB-56), calls counted and
//! timed by what went wrong (GB-53).

use std::sync::{Arc, Mutex};
use std::time::Duration;

use keylane_router::Router;
use keylane_router::conformance::MemoryStore;
use keylane_router::dispatch::handler_fn;
use keylane_router::outcome::{Outcome, Reason};
use keylane_router::plan::{Plan, PoolPlan, SourcePlan};

use super::test_source::{Fed, test_source};
use crate::spans::{PARENT, Spans, TRACE, assert_is_of};

fn body(id: &str, headers: &str) -> String {
    format!(r#"{{"id":"{id}","mediationTarget":"http://unused.example/","headers":{{{headers}}}}}"#)
}

/// Handles messages by their ids: `again` fails the first time, `never` is refused with a word that
/// nobody knows, `later` has to wait once.
fn by_id() -> impl Fn(&str) -> Outcome + Send + Sync + 'static {
    let seen = Mutex::new(Vec::new());
    move |id: &str| {
        let mut seen = seen.lock().unwrap();
        let first = !seen.iter().any(|other| other == id);
        seen.push(id.to_owned());
        let reason = |class: &'static str| Reason {
            class: class.into(),
            text: "no".to_owned(),
            ..Reason::default()
        };
        match id {
            "again" if first => Outcome::Failed(reason("status-503")),
            "never" => Outcome::Refused(reason("customer-4711")),
            "later" if first => Outcome::NotYet { after: None },
            _ => Outcome::Delivered,
        }
    }
}

fn quick() -> Plan {
    let mut plan = Plan::default();
    let mut pool = PoolPlan::default();
    pool.retry.initial = Duration::from_millis(1);
    plan.pools.insert("default".into(), pool);
    plan
}

/// Messages of the test source, by id and headers, on their way through a router.
async fn run(messages: &[(&str, &str)]) -> (Router, Arc<Mutex<Vec<(bool, String)>>>) {
    let (source, feeder) = test_source("s");
    let outcome = Arc::new(by_id());
    let linked = Arc::new(Mutex::new(Vec::new()));
    let links = linked.clone();
    let router = Router::builder()
        .plan(quick())
        .store(MemoryStore::default())
        .dispatch(handler_fn(move |message| {
            let outcome = outcome(&message.id);
            async move { outcome }
        }))
        .on_span(move |span, message| {
            let linked = (span.is_disabled(), message.id.to_string());
            links.lock().unwrap().push(linked);
        })
        .start()
        .await
        .unwrap();
    router
        .add_source("s", source, SourcePlan::custom())
        .await
        .unwrap();
    let fed = (1..).zip(messages).map(|(n, (id, headers))| Fed {
        id: n,
        key: None,
        body: body(id, headers),
    });
    feeder.feed(fed.collect());
    feeder.settled(messages.len()).await;
    (router, linked)
}

#[tokio::test(start_paused = true)]
async fn gb_56_each_attempt_is_a_span_in_the_words_of_opentelemetry() {
    let (spans, _here) = Spans::start();
    let traced = format!(r#""traceparent":"00-{TRACE}-{PARENT}-01""#);
    let broken = r#""traceparent":"00-not-a-trace-01""#;
    let messages = [("good", &*traced), ("again", ""), ("never", broken)];
    let (router, linked) = run(&messages).await;
    router.stop(Duration::from_secs(1)).await;

    let good = spans.of("1");
    assert_eq!(good.len(), 1, "one attempt: {good:?}");
    assert_is_of(&good[0], "test", "s");
    assert_eq!(good[0]["trace_id"], TRACE);
    assert_eq!(good[0]["parent_span_id"], PARENT);
    for absent in ["error.type", "otel.status_code"] {
        assert!(!good[0].contains_key(absent), "{good:?}");
    }
    let again = spans.of("2");
    assert_eq!(again.len(), 2, "two attempts: {again:?}");
    assert_is_of(&again[0], "test", "s");
    assert_eq!(again[0]["error.type"], "status-503");
    assert_eq!(again[0]["otel.status_code"], "ERROR");
    assert!(!again[1].contains_key("error.type"), "{again:?}");
    let never = spans.of("3");
    assert_eq!(never[0]["error.type"], "other", "a handler's own word");
    for absent in ["trace_id", "parent_span_id"] {
        assert!(!never[0].contains_key(absent), "{never:?}");
    }
    let linked = linked.lock().unwrap().clone();
    assert_eq!(linked.len(), spans.entered(), "each once: {linked:?}");
    assert!(linked.iter().all(|(disabled, _)| !disabled));
}

#[tokio::test(start_paused = true)]
async fn gb_56_nobody_is_shown_a_span_that_nobody_listens_to() {
    let _here = tracing::subscriber::set_default(tracing::subscriber::NoSubscriber::default());
    let (router, linked) = run(&[("good", ""), ("again", "")]).await;
    router.stop(Duration::from_secs(1)).await;
    assert_eq!(*linked.lock().unwrap(), []);
}

#[tokio::test(start_paused = true)]
async fn gb_53_calls_are_counted_and_timed_by_what_went_wrong() {
    let messages = [("good", ""), ("again", ""), ("never", ""), ("later", "")];
    let (router, _) = run(&messages).await;
    let text = router.counters().render(&router.pools());
    router.stop(Duration::from_secs(1)).await;
    let labels = [
        (r#"class="delivered""#, 3),
        (r#"class="failed",error_type="status-503""#, 1),
        (r#"class="refused",error_type="other""#, 1),
        (r#"class="not-yet",error_type="not-yet""#, 1),
    ];
    let whole = r#"{source="s",pool="default","#;
    for (labels, calls) in labels {
        for name in ["attempts_total", "attempt_seconds_count"] {
            let line = format!("keylane_{name}{whole}{labels}}} {calls}\n");
            assert!(text.contains(&line), "{line} is not in\n{text}");
        }
        let bucket =
            format!(r#"keylane_attempt_seconds_bucket{whole}{labels},le="+Inf"}} {calls}"#);
        assert!(text.contains(&bucket), "{bucket} is not in\n{text}");
    }
    let series = |name: &str| text.lines().filter(|line| line.starts_with(name)).count();
    assert_eq!(series("keylane_attempts_total{"), labels.len());
    assert_eq!(series("keylane_attempt_seconds_sum{"), labels.len());
    assert!(!text.contains("customer-4711"), "{text}");
}
