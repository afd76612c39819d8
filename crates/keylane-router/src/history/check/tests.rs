//! Each violation shown red with the part of the history that shows it; legal histories green.

use super::*;
use crate::history::Event;

/// `"pub a 0; start a 0; end a 0 delivered; crash"`: one event per part, one tick apart.
/// A number after `start` and `end … outcome` is the attempt.
fn history(text: &str) -> History {
    let mut history = History::default();
    let parts = text.split(';').map(str::trim).filter(|p| !p.is_empty());
    for (t, part) in parts.enumerate() {
        history.push(&event(part).at(t as u64));
    }
    history
}

fn event(part: &str) -> Event {
    let words: Vec<&str> = part.split_whitespace().collect();
    let (kind, by) = kind(words[0]);
    let [_, key, n, ..] = words[..] else {
        return Event::new(kind, by);
    };
    let event = match key {
        "-" => Event::new(kind, by).id(n),
        key => Event::of(key, n.parse().unwrap(), kind, by),
    };
    words[3..]
        .iter()
        .fold(event, |event, word| match word.parse() {
            Ok(attempt) => event.attempt(attempt),
            Err(_) => event.outcome(*word),
        })
}

fn kind(word: &str) -> (EventKind, By) {
    match word {
        "pub" => (EventKind::Publish, By::Producer),
        "start" => (EventKind::Start, By::Target),
        "end" => (EventKind::End, By::Target),
        "router-start" => (EventKind::Start, By::Router),
        "router-end" => (EventKind::End, By::Router),
        "target-crash" => (EventKind::Crash, By::Target),
        other => {
            let kind = serde_json::from_value(other.into()).unwrap();
            (kind, By::Router)
        }
    }
}

fn checked(text: &str) -> Report {
    check(history(text), &Options::default())
}

#[track_caller]
fn green(text: &str) -> Counts {
    let report = checked(text);
    assert!(report.is_green(), "{report}");
    report.counts
}

/// Asserts that exactly this is wrong and shown by exactly these events.
#[track_caller]
fn red_with(options: &Options, text: &str, kind: ViolationKind, excerpt: &str) {
    let report = check(history(text), options);
    let found: Vec<_> = report
        .violations
        .iter()
        .filter(|v| v.kind == kind)
        .collect();
    assert_eq!(found.len(), 1, "{report}");
    let untimed = |events: Vec<Event>| events.into_iter().map(|e| e.at(0)).collect::<Vec<_>>();
    let expected = excerpt.split(';').map(|part| event(part.trim())).collect();
    assert_eq!(
        untimed(found[0].excerpt.clone()),
        untimed(expected),
        "{report}"
    );
}

#[track_caller]
fn red(text: &str, kind: ViolationKind, excerpt: &str) {
    red_with(&Options::default(), text, kind, excerpt);
}

const TWO: &str = "pub a 0; pub a 1; start a 0; end a 0 delivered; start a 1; end a 1 delivered;";

#[test]
fn messages_delivered_one_after_another_are_green() {
    let counts = green(TWO);
    assert_eq!(
        (counts.published, counts.delivered, counts.attempts),
        (2, 2, 2)
    );
    assert_eq!((counts.retries, counts.duplicates.len()), (0, 0));
}

#[test]
fn keys_may_run_side_by_side() {
    green("pub a 0; pub b 0; start a 0; start b 0; end b 0 delivered; end a 0 delivered");
}

#[test]
fn an_empty_history_is_green() {
    green("");
}

#[test]
fn a_publish_may_be_recorded_after_the_delivery_it_led_to() {
    green("start a 0; pub a 0; end a 0 delivered");
}

#[test]
fn a_retry_after_a_failure_is_green_and_counted() {
    let counts = green(
        "pub a 0; pub a 1; start a 0 1; end a 0 1 failed; start a 0 2; end a 0 2 delivered;
         start a 1; end a 1 delivered",
    );
    assert_eq!(counts.retries, 1);
}

#[test]
fn a_message_without_an_end_is_lost() {
    red(
        "pub a 0; pub b 0; start b 0; end b 0 delivered",
        ViolationKind::Lost,
        "pub a 0",
    );
}

#[test]
fn a_message_whose_last_attempt_failed_is_lost() {
    red(
        "pub a 0; start a 0; end a 0 failed",
        ViolationKind::Lost,
        "pub a 0; end a 0 failed",
    );
}

#[test]
fn an_ack_before_any_delivery_is_a_loss() {
    red(
        "pub a 0; start a 0; ack a 0; end a 0 failed",
        ViolationKind::Lost,
        "pub a 0; start a 0; ack a 0",
    );
}

#[test]
fn an_ack_of_a_delivered_a_stored_or_a_parked_message_is_green() {
    green("pub a 0; start a 0; end a 0 delivered; ack a 0");
    green("pub a 0; store a 0; ack a 0");
    green("pub a 0; store a 0 parked; ack a 0");
    green("pub a 0; store a 0 spilled; receive a 0; ack a 0; start a 0; end a 0 delivered");
}

#[test]
fn a_spilled_message_that_never_comes_out_is_lost() {
    red(
        "pub a 0; store a 0 spilled; ack a 0",
        ViolationKind::Lost,
        "pub a 0; ack a 0",
    );
}

#[test]
fn in_a_cut_history_messages_without_an_end_are_unfinished_if_allowed() {
    let text = "pub a 0; pub a 1; start a 0; cut";
    let options = Options {
        allow_unfinished: true,
        ..Options::default()
    };
    let report = check(history(text), &options);
    assert!(report.is_green(), "{report}");
    assert_eq!(report.counts.unfinished, 2);
    assert_eq!(checked(text).total(ViolationKind::Lost), 2);
    let not_cut = check(history("pub a 0"), &options);
    assert_eq!(not_cut.total(ViolationKind::Lost), 1);
}

#[test]
fn a_start_before_the_end_of_the_one_ahead_is_overtaking() {
    red(
        "pub a 0; pub a 1; start a 1; end a 1 delivered; start a 0; end a 0 delivered",
        ViolationKind::Overtaken,
        "pub a 0; start a 1",
    );
}

#[test]
fn a_start_while_the_one_ahead_waits_for_its_retry_is_overtaking() {
    red(
        "pub a 0; pub a 1; start a 0 1; end a 0 failed 1; start a 1; end a 1 delivered;
         start a 0 2; end a 0 delivered 2",
        ViolationKind::Overtaken,
        "pub a 0; end a 0 failed 1; start a 1",
    );
}

#[test]
fn one_head_that_is_passed_by_many_is_reported_once() {
    let report = checked(
        "pub a 0; pub a 1; pub a 2; start a 1; end a 1 delivered; start a 2; end a 2 delivered;
         start a 0; end a 0 delivered",
    );
    assert_eq!(report.total(ViolationKind::Overtaken), 1, "{report}");
}

#[test]
fn whatever_resolves_a_message_lets_the_next_one_start() {
    for end in [
        "store a 0",
        "store a 0 dead-letter",
        "skip a 0",
        "drop a 0",
        "cancel a 0",
        "reject a 0",
    ] {
        let text = format!(
            "pub a 0; pub a 1; start a 0; end a 0 failed; {end}; start a 1; end a 1 delivered"
        );
        green(&text);
    }
}

#[test]
fn parked_and_spilled_are_places_and_let_nothing_pass() {
    for place in ["parked", "spilled"] {
        let text = format!(
            "pub a 0; pub a 1; store a 0 {place}; start a 1; end a 1 delivered; start a 0; end a 0 delivered"
        );
        let excerpt = format!("pub a 0; store a 0 {place}; start a 1");
        red(&text, ViolationKind::Overtaken, &excerpt);
    }
}

#[test]
fn a_parked_key_is_replayed_in_order() {
    let counts = green(
        "pub a 0; pub a 1; start a 0; end a 0 failed; store a 0 parked; store a 1 parked;
         ack a 0; ack a 1; pub a 2; store a 2 parked;
         start a 0; end a 0 delivered; start a 1; end a 1 delivered; start a 2; end a 2 delivered",
    );
    assert_eq!(counts.parked, 0);
}

#[test]
fn a_key_that_is_parked_at_the_end_is_not_lost() {
    let counts = green("pub a 0; start a 0; end a 0 failed; store a 0 parked");
    assert_eq!(counts.parked, 1);
}

#[test]
fn a_dead_letter_may_be_replayed_later() {
    green(
        "pub a 0; pub a 1; store a 0; start a 1; end a 1 delivered; start a 0; end a 0 delivered",
    );
}

#[test]
fn a_returned_message_comes_again_before_those_behind_it() {
    let counts = green(
        "pub a 0; pub a 1; start a 0; end a 0 failed; return a 0; return a 1;
         start a 0; end a 0 delivered; start a 1; end a 1 delivered",
    );
    assert_eq!((counts.returned, counts.retries), (2, 1));
}

#[test]
fn a_return_lets_nothing_pass() {
    red(
        "pub a 0; pub a 1; start a 0; end a 0 failed; return a 0;
         start a 1; end a 1 delivered; start a 0; end a 0 delivered",
        ViolationKind::Overtaken,
        "pub a 0; return a 0; start a 1",
    );
}

#[test]
fn a_refusal_resolves_only_where_asked_for() {
    let text = "pub a 0; pub a 1; start a 0; end a 0 refused; start a 1; end a 1 delivered";
    assert_eq!(checked(text).total(ViolationKind::Overtaken), 1);
    let options = Options {
        refused_resolves: true,
        ..Options::default()
    };
    assert!(check(history(text), &options).is_green());
}

#[test]
fn two_messages_of_a_lane_under_way_together_overlap() {
    red(
        "pub a 0; pub a 1; start a 0; start a 1; end a 0 delivered; end a 1 delivered",
        ViolationKind::Overlapping,
        "start a 0; start a 1",
    );
}

#[test]
fn two_attempts_of_a_message_under_way_together_overlap() {
    red(
        "pub a 0; start a 0 1; start a 0 2; end a 0 delivered 1; end a 0 delivered 2",
        ViolationKind::Overlapping,
        "start a 0 1; start a 0 2",
    );
}

#[test]
fn a_lane_of_two_runs_two_and_not_three() {
    let options = Options {
        lane_concurrency: 2,
        ..Options::default()
    };
    let two = "pub a 0; pub a 1; start a 0; start a 1; end a 1 delivered; end a 0 delivered";
    assert!(check(history(two), &options).is_green());
    red_with(
        &options,
        "pub a 0; pub a 1; pub a 2; start a 0; start a 1; start a 2;
         end a 0 delivered; end a 1 delivered; end a 2 delivered",
        ViolationKind::Overlapping,
        "start a 0; start a 1; start a 2",
    );
}

#[test]
fn first_starts_of_a_lane_of_two_are_in_order() {
    let options = Options {
        lane_concurrency: 2,
        ..Options::default()
    };
    red_with(
        &options,
        "pub a 0; pub a 1; start a 1; start a 0; end a 1 delivered; end a 0 delivered",
        ViolationKind::Overtaken,
        "pub a 0; start a 1",
    );
}

#[test]
fn a_second_delivery_without_a_cause_is_a_duplicate() {
    let text = "pub a 0; start a 0; end a 0 delivered; start a 0; end a 0 delivered";
    red(
        text,
        ViolationKind::Duplicated,
        "end a 0 delivered; start a 0",
    );
    assert_eq!(checked(text).counts.duplicates[&Cause::Unexplained], 1);
}

#[test]
fn each_cause_explains_a_second_delivery() {
    let causes = [
        ("timeout a 0", Cause::Timeout),
        ("cut a 0", Cause::AnswerCut),
        ("ack-lost a 0", Cause::AckLost),
        ("lease-lost a 0", Cause::LeaseLost),
        ("rebalance a 0", Cause::Rebalance),
        ("rebalance", Cause::Rebalance),
        ("crash", Cause::Crash),
        ("crash; restart", Cause::Crash),
        ("restart", Cause::Crash),
        ("target-crash", Cause::AnswerCut),
    ];
    for (event, cause) in causes {
        let text =
            format!("pub a 0; start a 0; end a 0 delivered; {event}; start a 0; end a 0 delivered");
        let counts = green(&text);
        assert_eq!(counts.duplicates.get(&cause), Some(&1), "{event}");
        let again = format!("{text}; start a 0; end a 0 delivered");
        assert_eq!(
            checked(&again).total(ViolationKind::Duplicated),
            1,
            "{event} explains one"
        );
    }
}

// A request may be on its way for longer than the router waits for its answer.
#[test]
fn a_request_that_reaches_the_target_after_it_was_given_up_explains_one_repetition() {
    let late = "pub a 0; cut a 0 1; start a 0 1; end a 0 delivered 1;";
    let counts = green(&format!("{late} start a 0 2; end a 0 delivered 2"));
    assert_eq!(counts.duplicates.get(&Cause::AnswerCut), Some(&1));
    green("pub a 0; cut a 0 1; start a 0 1; start a 0 2; end a 0 delivered 2; end a 0 delivered 1");
    red(
        &format!("{late} start a 0 2; end a 0 delivered 2; start a 0 3; end a 0 delivered 3"),
        ViolationKind::Duplicated,
        "end a 0 delivered 2; start a 0 3",
    );
    // It never came: the next attempt is none that was given up.
    red(
        "pub a 0; cut a 0 1; start a 0 2; end a 0 delivered 2; start a 0 1; end a 0 delivered 1",
        ViolationKind::Duplicated,
        "end a 0 delivered 2; start a 0 1",
    );
}

#[test]
fn a_cause_holds_until_the_repetition_is_delivered() {
    let counts = green(
        "pub a 0; start a 0; end a 0 delivered; ack-lost a 0;
         start a 0; end a 0 failed; start a 0; end a 0 delivered",
    );
    assert_eq!(counts.duplicates[&Cause::AckLost], 1);
}

#[test]
fn an_answer_that_comes_after_our_timeout_explains_the_second_delivery() {
    let counts = green(
        "pub a 0; start a 0 1; timeout a 0 1; start a 0 2; end a 0 delivered 1; end a 0 delivered 2",
    );
    assert_eq!(counts.duplicates[&Cause::Timeout], 1);
}

#[test]
fn a_failure_that_only_the_router_saw_ends_the_attempt() {
    green(
        "pub a 0; router-start a 0 1; start a 0 1; router-end a 0 failed 1; router-start a 0 2;
         start a 0 2; end a 0 delivered 2; router-end a 0 delivered 2",
    );
}

#[test]
fn a_timeout_of_one_message_explains_nothing_of_another() {
    let report = checked(
        "pub a 0; pub b 0; start a 0; end a 0 delivered; start b 0; timeout b 0; start b 0;
         end b 0 delivered; start a 0; end a 0 delivered",
    );
    assert_eq!(report.total(ViolationKind::Duplicated), 1, "{report}");
}

#[test]
fn a_dropped_message_must_not_start() {
    red(
        "pub a 0; drop a 0; start a 0; end a 0 delivered",
        ViolationKind::Duplicated,
        "drop a 0; start a 0",
    );
}

const DELIVERED: &str = "pub a 0; pub a 1; pub a 2; pub a 3; start a 0; end a 0 delivered;
    start a 1; end a 1 delivered; start a 2; end a 2 delivered; crash; restart;";

#[test]
fn after_a_crash_a_key_repeats_a_contiguous_tail() {
    let counts = green(&format!(
        "{DELIVERED} start a 1; end a 1 delivered; start a 2; end a 2 delivered;
         start a 3; end a 3 delivered"
    ));
    assert_eq!((counts.duplicates[&Cause::Crash], counts.crashes), (2, 1));
}

#[test]
fn a_repeated_tail_may_be_interrupted_by_the_next_crash() {
    green(&format!(
        "{DELIVERED} start a 1; end a 1 delivered; crash; restart; start a 1; end a 1 delivered;
         start a 2; end a 2 delivered; start a 3; end a 3 delivered"
    ));
}

#[test]
fn a_repetition_that_leaves_one_out_is_no_tail() {
    red(
        &format!("{DELIVERED} start a 1; end a 1 delivered; start a 3; end a 3 delivered"),
        ViolationKind::Duplicated,
        "end a 2 delivered; crash; start a 3",
    );
}

#[test]
fn a_repetition_in_another_order_is_no_tail() {
    let text = format!(
        "{DELIVERED} start a 2; end a 2 delivered; start a 1; end a 1 delivered;
         start a 3; end a 3 delivered"
    );
    assert!(checked(&text).total(ViolationKind::Duplicated) > 0);
}

#[test]
fn the_last_message_repeated_before_its_predecessor_is_no_tail() {
    let text =
        "pub a 0; pub a 1; start a 0; end a 0 delivered; start a 1; end a 1 delivered; crash;
        start a 1; end a 1 delivered; start a 0; end a 0 delivered";
    red(text, ViolationKind::Duplicated, "crash; start a 0");
}

#[test]
fn a_repetition_behind_a_newer_message_is_no_tail() {
    red(
        &format!("{DELIVERED} start a 3; end a 3 delivered; start a 2; end a 2 delivered"),
        ViolationKind::Duplicated,
        "crash; start a 3; start a 2",
    );
}

#[test]
fn a_dead_letter_within_a_repeated_tail_need_not_come_again() {
    green(
        "pub a 0; pub a 1; pub a 2; start a 0; end a 0 delivered; start a 1; end a 1 refused;
         store a 1; start a 2; end a 2 delivered; crash; restart; start a 0; end a 0 delivered;
         start a 2; end a 2 delivered",
    );
}

#[test]
fn after_a_crash_no_more_than_the_bound_come_again() {
    let text = "pub a 0; pub b 0; start a 0; end a 0 delivered; start b 0; end b 0 delivered;
        crash; start a 0; end a 0 delivered; start b 0; end b 0 delivered";
    let bound = |n| Options {
        max_duplicates_per_crash: Some(n),
        ..Options::default()
    };
    assert!(check(history(text), &bound(2)).is_green());
    red_with(
        &bound(1),
        text,
        ViolationKind::Duplicated,
        "crash; start b 0",
    );
}

#[test]
fn what_comes_again_is_put_down_to_the_crash_after_its_delivery() {
    // Two crashes in a row: `a` is not called in between, and comes again because of the first.
    let text = "pub a 0; pub b 0; start a 0; end a 0 delivered; crash; restart;
        start b 0; end b 0 delivered; crash; restart;
        start a 0; end a 0 delivered; start b 0; end b 0 delivered";
    let one = Options {
        max_duplicates_per_crash: Some(1),
        ..Options::default()
    };
    let report = check(history(text), &one);
    assert!(report.is_green(), "{report}");
    // Called in between and not delivered: still one message of the first crash.
    let again = "pub a 0; start a 0; end a 0 delivered; crash; restart; start a 0; crash; restart;
        start a 0; end a 0 delivered";
    let report = check(history(again), &one);
    assert!(report.is_green(), "{report}");
    // Both delivered before the first crash: both are its.
    let both = "pub a 0; pub b 0; start a 0; end a 0 delivered; start b 0; end b 0 delivered;
        crash; restart; start a 0; end a 0 delivered; crash; restart;
        start a 0; end a 0 delivered; start b 0; end b 0 delivered";
    red_with(&one, both, ViolationKind::Duplicated, "crash; start b 0");
}

#[test]
fn what_runs_when_the_router_dies_runs_again() {
    let counts = green("pub a 0; start a 0; crash; restart; start a 0; end a 0 delivered");
    assert_eq!(counts.retries, 1);
}

#[test]
fn a_request_that_outlives_the_router_may_meet_its_repetition() {
    let counts = green(
        "pub a 0; pub a 1; start a 0 1; crash; restart; start a 0 2; end a 0 delivered 1;
         end a 0 delivered 2; start a 1; end a 1 delivered",
    );
    assert_eq!(counts.duplicates[&Cause::Crash], 1);
}

#[test]
fn a_request_that_arrives_after_the_crash_belongs_to_the_old_router() {
    green(
        "pub a 0; pub a 1; crash; start a 0; restart; start a 0; end a 0 delivered;
         end a 0 delivered; start a 1; end a 1 delivered",
    );
}

#[test]
fn a_repetition_that_meets_its_late_original_may_be_retried() {
    green(
        "pub a 0; start a 0 1; crash; restart; start a 0 2; end a 0 delivered 1;
         end a 0 failed 2; start a 0 3; end a 0 delivered 3",
    );
}

#[test]
fn keyless_messages_have_no_order_but_must_not_get_lost_or_doubled() {
    green("pub - x; pub - y; start - y; start - x; end - x delivered; end - y delivered");
    let report =
        checked("pub - x; pub - y; start - y; end - y delivered; start - y; end - y delivered");
    assert_eq!(report.total(ViolationKind::Lost), 1, "{report}");
    assert_eq!(report.total(ViolationKind::Duplicated), 1, "{report}");
}

#[test]
fn without_a_target_the_routers_own_starts_count() {
    let report = checked(
        "pub a 0; pub a 1; router-start a 0; router-start a 1; router-end a 0 delivered; router-end a 1 delivered",
    );
    assert_eq!(report.total(ViolationKind::Overlapping), 1);
}

#[test]
fn only_the_first_violations_are_described_and_all_are_counted() {
    let text: String = (0..50).map(|key| format!("pub k{key} 0;")).collect();
    let options = Options {
        described: 3,
        ..Options::default()
    };
    let report = check(history(&text), &options);
    assert_eq!(
        (report.violations.len(), report.total(ViolationKind::Lost)),
        (3, 50)
    );
}

#[test]
fn a_report_reads_well() {
    let report = checked("pub a 0; start a 0; end a 0 delivered; start a 0; end a 0 delivered");
    let text = report.to_string();
    assert!(text.contains("duplicated: \"a\" message 0: it was delivered, and starts again"));
    assert!(text.contains("duplicates   1, unexplained 1"));
    assert!(text.ends_with("red\n"));
    assert!(
        checked(TWO)
            .to_string()
            .ends_with("green: nothing lost, overtaken, overlapping or duplicated\n")
    );
}
