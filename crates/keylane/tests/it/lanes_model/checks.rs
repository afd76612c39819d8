//! L1 … L14, each as a function that says what it means and what is wrong.

use keylane::lanes::{Flushed, FullOf, Hold, LaneState, Lanes, Time};

use super::Checked;
use super::beside::{Beside, Job};
use super::history::{RateSetup, TENANTS};
use super::model::{Flush, Model, Place};

/// Calls a check and puts its name before what it says.
macro_rules! check {
    ($($name:ident)::+($($arg:expr),* $(,)?)) => {
        $($name)::+($($arg),*).map_err(|why: String| {
            let name = stringify!($($name)::+);
            format!("{}: {why}", name.trim_start_matches("checks::").trim_start_matches("checks :: "))
        })
    };
}
pub(super) use check;

fn ensure(holds: bool, why: impl FnOnce() -> String) -> Checked {
    if holds { Ok(()) } else { Err(why()) }
}

/// What must hold when the gate is asked about the front of a lane: it may start now.
pub(super) fn before_a_lane_is_asked(model: &Model, key: u8, seq: u64) -> Checked {
    check!(l5_a_lane_is_asked_only_when_a_permit_is_free(model))?;
    check!(l14_nothing_of_a_paused_lane_starts(model, key))?;
    check!(l10_nothing_starts_during_a_flush(model, key))?;
    check!(l11_a_cancelled_item_never_starts(model, key, seq))?;
    check!(l1_first_starts_are_in_submit_order(model, key, seq))?;
    check!(l2_the_front_by_sequence_is_asked(model, key, seq))?;
    check!(l3_fewer_run_than_the_lane_may(model, key))?;
    check!(l9_not_before_the_hold_ends(model, key))?;
    check!(l6_only_ready_lanes_are_asked(model, key))
}

pub(super) fn before_a_start(model: &Model, key: u8, seq: u64) -> Checked {
    check!(l2_all_before_it_is_resolved(model, key, seq))
}

pub(super) fn after_a_start(model: &Model, key: u8) -> Checked {
    check!(l3_never_more_than_n_of_a_lane_run(model, key))?;
    check!(l5_never_more_than_the_total_run(model))?;
    check!(l7_nobody_has_more_than_a_turn_while_another_waits(
        model, key
    ))?;
    check!(l7_tenants_are_within_one_quantum(model, key))?;
    check!(l12_no_window_has_too_many_starts(model, key))
}

pub(super) fn after_each_step(both: &Beside) -> Checked {
    check!(l1_what_never_started_waits_in_submit_order(both))?;
    check!(l2_what_was_put_back_waits_at_its_place(both))?;
    check!(l4_every_item_is_in_exactly_one_place(both))?;
    check!(l4_all_places_add_up(both))?;
    check!(l8_only_live_lanes_are_counted(both))?;
    check!(l9_holds_are_as_long_as_they_were_made(both))?;
    check!(l9_lanes_that_wait_for_a_release_are_counted(both))?;
    check!(l6_every_lane_that_can_start_is_ready(both))?;
    check!(l12_asking_tells_when_the_rate_allows(both))?;
    check!(l14_limits_and_pauses_are_in_force(both))?;
    check!(l9_the_next_wake_up_is_the_first_that_is_needed(both))
}

/// Nothing that was submitted later has started, nothing that was submitted before still waits for
/// its first start.
fn l1_first_starts_are_in_submit_order(model: &Model, key: u8, seq: u64) -> Checked {
    if model.records[seq as usize].started {
        return Ok(());
    }
    let mut of_lane = (0..)
        .zip(&model.records)
        .filter(|(_, item)| item.key == key);
    let overtaken = of_lane.find(|(other, item)| {
        let waits = item.place == Place::Waiting && !item.started;
        (*other < seq && waits) || (*other > seq && item.started)
    });
    match overtaken {
        Some((other, _)) => Err(format!(
            "item {seq} of lane {key} starts out of order with {other}"
        )),
        None => Ok(()),
    }
}

fn l1_what_never_started_waits_in_submit_order(both: &Beside) -> Checked {
    for key in both.model.keys() {
        let waiting = both.lanes.waiting_of(&key);
        let new = waiting.filter(|job| !both.model.records[job.0 as usize].started);
        ensure(new.is_sorted_by_key(|job| job.0), || {
            let waiting: Vec<_> = both.lanes.waiting_of(&key).collect();
            format!("lane {key} has {waiting:?} waiting")
        })?;
    }
    Ok(())
}

fn l2_what_was_put_back_waits_at_its_place(both: &Beside) -> Checked {
    for key in both.model.keys() {
        let waiting = both.lanes.waiting_of(&key);
        ensure(waiting.is_sorted_by_key(|job| job.0), || {
            let waiting: Vec<_> = both.lanes.waiting_of(&key).collect();
            format!("lane {key} has {waiting:?} waiting")
        })?;
    }
    Ok(())
}

/// With lane concurrency 1 and nothing else running.
fn l2_all_before_it_is_resolved(model: &Model, key: u8, seq: u64) -> Checked {
    if model.concurrency(key) > 1 || !model.of(key).running.is_empty() {
        return Ok(());
    }
    let before = &model.records[..seq as usize];
    let mut open = before
        .iter()
        .enumerate()
        .filter(|(_, other)| other.key == key && other.place != Place::Resolved);
    match open.next() {
        Some((other, record)) => Err(format!(
            "item {seq} of lane {key} starts before {other}, which is {:?}",
            record.place
        )),
        None => Ok(()),
    }
}

fn l2_the_front_by_sequence_is_asked(model: &Model, key: u8, seq: u64) -> Checked {
    let front = model.of(key).waiting.first().map(|item| item.seq);
    ensure(front == Some(seq), || {
        format!("lane {key} begins with {seq}, by sequence with {front:?}")
    })
}

fn l3_fewer_run_than_the_lane_may(model: &Model, key: u8) -> Checked {
    let (running, most) = (model.of(key).running.len(), model.concurrency(key));
    ensure(running < most, || {
        format!("{running} of lane {key} run, {most} may")
    })
}

fn l3_never_more_than_n_of_a_lane_run(model: &Model, key: u8) -> Checked {
    let (running, most) = (model.of(key).running.len(), model.concurrency(key));
    ensure(running <= most, || {
        format!("{running} of lane {key} run, {most} may")
    })
}

fn l4_every_item_is_in_exactly_one_place(both: &Beside) -> Checked {
    for key in both.model.keys() {
        let expected = both.model.of(key).waiting.iter().map(|item| item.seq);
        let same = both.lanes.waiting_of(&key).map(|job| job.0).eq(expected);
        ensure(same, || {
            let waiting: Vec<_> = both.lanes.waiting_of(&key).collect();
            format!("lane {key} has {waiting:?} waiting")
        })?;
        let mut running = both.lanes.running_of(&key);
        running.sort_unstable_by_key(|&(_, seq)| seq);
        let mut expected = both.model.of(key).running.clone();
        expected.sort_unstable();
        ensure(running.iter().map(|&(_, seq)| seq).eq(expected), || {
            format!("lane {key} has {running:?} running")
        })?;
        l4_slots_are_below_the_most_that_ever_ran(both, &running)?;
    }
    Ok(())
}

fn l4_slots_are_below_the_most_that_ever_ran(both: &Beside, running: &[(usize, u64)]) -> Checked {
    let most = both.model.most_running;
    ensure(running.iter().all(|&(slot, _)| slot < most), || {
        format!("{running:?}, and at most {most} ever ran")
    })
}

fn l4_all_places_add_up(both: &Beside) -> Checked {
    let counted = (both.lanes.waiting(), both.lanes.running());
    let expected = (both.model.waiting(), both.model.running());
    ensure(counted == expected, || {
        format!("waiting and running are {counted:?}, should be {expected:?}")
    })?;
    let out: usize = both.out.iter().map(|out| out.jobs.len()).sum();
    let unresolved = |place| {
        both.model
            .records
            .iter()
            .filter(|r| r.place == place)
            .count()
    };
    let places = [Place::Waiting, Place::Running, Place::Out].map(unresolved);
    ensure(places == [expected.0, expected.1, out], || {
        format!("{places:?} by record, {expected:?} and {out} by place")
    })
}

pub(super) fn l4_an_evict_gives_back_all_that_waits(jobs: Vec<Job>, expected: Vec<u64>) -> Checked {
    let jobs: Vec<u64> = jobs.into_iter().map(|job| job.0).collect();
    ensure(jobs == expected, || {
        format!("{jobs:?} came back, {expected:?} waited")
    })
}

fn l5_a_lane_is_asked_only_when_a_permit_is_free(model: &Model) -> Checked {
    let (running, total) = (model.running(), model.setup.total);
    ensure(running < total, || format!("{running} run, {total} may"))
}

fn l5_never_more_than_the_total_run(model: &Model) -> Checked {
    let (running, total) = (model.running(), model.setup.total);
    ensure(running <= total, || format!("{running} run, {total} may"))
}

fn l6_only_ready_lanes_are_asked(model: &Model, key: u8) -> Checked {
    ensure(model.may_be_asked(key), || {
        format!("lane {key} is not ready")
    })
}

pub(super) fn l6_nothing_only_when_no_lane_is_ready(model: &Model) -> Checked {
    match model.keys().find(|&key| model.may_be_asked(key)) {
        Some(key) => Err(format!("lane {key} is ready")),
        None => Ok(()),
    }
}

pub(super) fn l6_no_permit_only_when_all_are_taken(model: &Model) -> Checked {
    let (running, total) = (model.running(), model.setup.total);
    ensure(running >= total, || {
        format!("only {running} run, {total} may")
    })?;
    let ready = model.keys().any(|key| model.may_be_asked(key));
    ensure(ready, || "and no lane is ready".into())
}

pub(super) fn l6_the_rate_says_exactly_until_when(
    model: &Model,
    key: Option<u8>,
    at: u64,
) -> Checked {
    let ready = key.is_some_and(|key| model.ready(key));
    ensure(ready, || format!("lane {key:?} is not ready"))?;
    let expected = model.setup.rate.map(|rate| model.bucket.next_at(rate));
    ensure(expected == Some(at) && at > model.now, || {
        format!("until {at}, now is {}, due is {expected:?}", model.now)
    })
}

/// One that is ready and should not be is caught when it is asked, by the reason why not.
fn l6_every_lane_that_can_start_is_ready(both: &Beside) -> Checked {
    let ready = both.lanes.ready();
    let can_start = |key: &u8| both.model.may_be_asked(*key);
    let expected: Vec<u8> = both.model.keys().filter(can_start).collect();
    ensure(ready >= expected.len(), || {
        format!("{ready} lanes are ready, should be {expected:?}")
    })
}

fn l7_nobody_has_more_than_a_turn_while_another_waits(model: &Model, key: u8) -> Checked {
    let turn = model.setup.turn.max(1);
    for other in model.keys() {
        let starts = model.waits.lanes[other as usize][key as usize];
        ensure(starts <= turn, || {
            format!("lane {key} had {starts} starts while lane {other} was ready; a turn is {turn}")
        })?;
    }
    Ok(())
}

fn l7_tenants_are_within_one_quantum(model: &Model, key: u8) -> Checked {
    let tenant = model.tenant(key);
    let mine = model.weight(tenant);
    for other in (0..TENANTS).filter(|&other| other != tenant) {
        let starts = model.waits.tenants[other][tenant];
        ensure(starts <= mine, || {
            format!(
                "tenant {tenant} had {starts} starts while {other} was ready; its weight is {mine}"
            )
        })?;
        let theirs = model.weight(other);
        let (of_mine, of_theirs) = (
            model.waits.shares[tenant][other] * theirs,
            model.waits.shares[other][tenant] * mine,
        );
        ensure(of_mine.abs_diff(of_theirs) <= mine * theirs, || {
            let shares = model.waits.shares;
            format!("tenants {tenant} and {other} by weights {mine} and {theirs}: {shares:?}")
        })?;
    }
    Ok(())
}

fn l8_only_live_lanes_are_counted(both: &Beside) -> Checked {
    let (model, lanes) = (&both.model, &both.lanes);
    let live: Vec<u8> = model.keys().filter(|&key| model.live(key)).collect();
    let dormant: Vec<u8> = model.keys().filter(|&key| model.dormant(key)).collect();
    ensure(lanes.live() == live.len(), || {
        format!("{} lanes live, should be {live:?}", lanes.live())
    })?;
    ensure(lanes.dormant() == dormant.len(), || {
        format!(
            "{} keys are dormant, should be {dormant:?}",
            lanes.dormant()
        )
    })?;
    let mut named = [false; TENANTS];
    for &key in live.iter().chain(&dormant) {
        named[model.tenant(key)] = true;
    }
    let tenants = named.iter().skip(1).filter(|&&named| named).count();
    ensure(lanes.tenants() == tenants, || {
        format!("{} tenants, should be {tenants}", lanes.tenants())
    })
}

pub(super) fn l8_nothing_is_left_when_all_is_done(lanes: &Lanes<u8, Job>) -> Checked {
    let left = [
        lanes.waiting(),
        lanes.running(),
        lanes.live(),
        lanes.dormant(),
        lanes.tenants(),
        lanes.ready(),
    ];
    ensure(left == [0; 6] && lanes.wake_at().is_none(), || {
        let at = lanes.wake_at();
        format!("waiting, running, live, dormant, tenants, ready: {left:?}, wake-up {at:?}")
    })
}

fn l9_not_before_the_hold_ends(model: &Model, key: u8) -> Checked {
    let hold = model.of(key).waiting.first().map(|front| front.hold);
    ensure(hold == Some(Hold::Free), || {
        format!("lane {key} is {hold:?}, now is {}", model.now)
    })
}

pub(super) fn l9_a_tick_ends_what_ends_by_then(both: &Beside) -> Checked {
    for key in both.model.keys() {
        let hold = both.lanes.state_of(&key).map(|state| state.hold);
        let late = matches!(hold, Some(Hold::Until(Time(at))) if at <= both.model.now);
        ensure(!late, || {
            format!("lane {key} is still {hold:?}, now is {}", both.model.now)
        })?;
    }
    Ok(())
}

fn l9_lanes_that_wait_for_a_release_are_counted(both: &Beside) -> Checked {
    let waits = |key: &u8| {
        let mut waiting = both.model.of(*key).waiting.iter();
        waiting.any(|item| item.hold == Hold::UntilReleased)
    };
    let expected: Vec<u8> = both.model.keys().filter(waits).collect();
    let mut named = both.lanes.keys_waiting_for_release();
    named.sort_unstable();
    let counted = both.lanes.waiting_for_release();
    ensure(named == expected && counted == expected.len(), || {
        format!("{counted} lanes, {named:?}, wait for a release, should be {expected:?}")
    })
}

fn l9_holds_are_as_long_as_they_were_made(both: &Beside) -> Checked {
    for key in both.model.keys() {
        let Some(LaneState { hold, .. }) = both.lanes.state_of(&key) else {
            continue;
        };
        let front = both.model.of(key).waiting.first();
        let expected = front.map_or(Hold::Free, |front| front.hold);
        ensure(hold == expected, || {
            format!("lane {key} is {hold:?}, should be {expected:?}")
        })?;
    }
    Ok(())
}

fn l9_the_next_wake_up_is_the_first_that_is_needed(both: &Beside) -> Checked {
    let timers = both.model.keys().filter_map(|key| both.model.timer(key));
    let (at, expected) = (both.lanes.wake_at(), timers.min().map(Time));
    ensure(at == expected, || {
        format!("wake-up at {at:?}, should be {expected:?}")
    })
}

fn l10_nothing_starts_during_a_flush(model: &Model, key: u8) -> Checked {
    let flush = model.of(key).flush;
    ensure(flush == Flush::No, || {
        format!("lane {key} has a flush: {flush:?}")
    })
}

pub(super) fn l10_a_flush_takes_exactly_what_waits(
    key: u8,
    expected: Vec<u64>,
    running: usize,
    flushed: &Option<Flushed<u8, Job>>,
) -> Checked {
    let Some(flushed) = flushed else {
        return Err(format!("nothing was taken from lane {key}"));
    };
    let jobs = flushed.jobs.iter().map(|(seq, job)| (*seq, job.0));
    let same = flushed.key == key
        && flushed.running == running
        && jobs.eq(expected.iter().map(|&seq| (seq, seq)));
    ensure(same, || {
        format!("{flushed:?}; of lane {key} waited {expected:?}")
    })
}

pub(super) fn l10_a_flush_waits_for_what_runs(more: &Option<Flushed<u8, Job>>) -> Checked {
    ensure(more.is_none(), || format!("{more:?} was taken too early"))
}

fn l11_a_cancelled_item_never_starts(model: &Model, key: u8, seq: u64) -> Checked {
    let place = model.records[seq as usize].place;
    ensure(place == Place::Waiting, || {
        format!("item {seq} of lane {key} is asked about and {place:?}")
    })
}

pub(super) fn l11_only_what_waits_can_be_cancelled(
    job: Option<Job>,
    expected: Option<Job>,
) -> Checked {
    ensure(job == expected, || {
        format!("{job:?} was taken, should be {expected:?}")
    })
}

pub(super) fn l11_a_cancelled_item_frees_its_place_at_once(both: &Beside, key: u8) -> Checked {
    let counted = both.lanes.state_of(&key).map_or(0, |state| state.waiting);
    let expected = both.model.of(key).waiting.len();
    ensure(counted == expected, || {
        format!("{counted} wait in lane {key}, should be {expected}")
    })?;
    let (all, expected) = (both.lanes.waiting(), both.model.waiting());
    ensure(all == expected, || {
        format!("{all} wait in all, should be {expected}")
    })
}

pub(super) fn l12_both_rates_allow_the_start(model: &Model, key: u8) -> Checked {
    ensure(model.key_rate_allows(key), || {
        format!("lane {key} has to wait, now is {}", model.now)
    })?;
    let at = model
        .setup
        .rate
        .map_or(0, |rate| model.bucket.next_at(rate));
    ensure(at <= model.now, || {
        format!("all have to wait until {at}, now is {}", model.now)
    })
}

fn l12_no_window_has_too_many_starts(model: &Model, key: u8) -> Checked {
    if let Some(rate) = model.setup.rate {
        in_every_window(rate, &model.bucket.starts)?;
    }
    match model.lane_setup(key).rate {
        Some(rate) => in_every_window(rate, &model.of(key).bucket.starts),
        None => Ok(()),
    }
}

/// Every window that ends with the last start: the others were looked at before.
fn in_every_window(rate: RateSetup, starts: &[u64]) -> Checked {
    let (burst, last) = (u64::from(rate.burst.max(1)), starts.last().copied());
    for (at, first) in starts.iter().enumerate() {
        let count = (starts.len() - at) as u64;
        let width = last.unwrap_or(0) - first;
        let most = burst * rate.per + width * u64::from(rate.count);
        ensure(count * rate.per <= most, || {
            format!("{count} starts within {width} at {rate:?}")
        })?;
    }
    Ok(())
}

fn l12_asking_tells_when_the_rate_allows(both: &Beside) -> Checked {
    for key in both.model.keys() {
        let Some(state) = both.lanes.state_of(&key) else {
            continue;
        };
        let rate = both.model.lane_setup(key).rate;
        let due = rate.map(|rate| Time(both.model.of(key).bucket.next_at(rate)));
        let told = state
            .rate_until
            .filter(|_| state.hold == Hold::Free && state.waiting > 0);
        ensure(told.is_none() || told == due, || {
            format!("lane {key} waits until {told:?}, should until {due:?}")
        })?;
    }
    Ok(())
}

pub(super) fn l13_only_lanes_that_are_asked_are_looked_at(visited: u64, asked: usize) -> Checked {
    ensure(visited == asked as u64, || {
        format!("{visited} lanes were looked at, {asked} asked")
    })
}

fn l14_nothing_of_a_paused_lane_starts(model: &Model, key: u8) -> Checked {
    ensure(!model.of(key).paused, || format!("lane {key} is paused"))
}

fn l14_limits_and_pauses_are_in_force(both: &Beside) -> Checked {
    ensure(*both.lanes.limits() == both.model.setup.limits(), || {
        format!("{:?}", both.lanes.limits())
    })?;
    for key in both.model.keys() {
        let Some(state) = both.lanes.state_of(&key) else {
            continue;
        };
        let limits = both.model.lane_setup(key).limits();
        ensure(state.limits == limits, || {
            format!("lane {key} has {:?}, should have {limits:?}", state.limits)
        })?;
        let paused = both.model.of(key).paused;
        ensure(state.paused == paused, || {
            format!("lane {key} paused: {}, should be: {paused}", state.paused)
        })?;
    }
    Ok(())
}

pub(super) fn a_push_is_refused_exactly_for_lack_of_room(
    expected: Result<(), FullOf>,
    answer: Result<(), FullOf>,
) -> Checked {
    ensure(answer == expected, || {
        format!("{answer:?}, should be {expected:?}")
    })
}

pub(super) fn room_is_given_as_soon_as_there_is_some(model: &Model) -> Checked {
    let could = |key: &u8| model.over(*key) > 0 && model.room_for_next(*key).is_ok();
    match model.keys().find(could) {
        Some(key) => Err(format!("the next of lane {key} has room")),
        None => Ok(()),
    }
}

/// Of steps that do one thing only: what a time or a gate does after room was given may need more.
pub(super) fn only_as_many_are_let_in_as_have_room(model: &Model, lets_in: &[u8]) -> Checked {
    for &key in lets_in {
        let (inside, free) = (model.inside(key), model.free(key));
        let queue = model.lane_setup(key).queue;
        ensure(inside.saturating_sub(free) <= queue, || {
            format!("{inside} inside lane {key}, {free} may start, {queue} may wait")
        })?;
        let (all, room) = (model.held_back_by_all(), model.room_of_all());
        ensure(inside > free || all <= room, || {
            format!("{all} wait for the limits of all, there is room for {room}")
        })?;
    }
    Ok(())
}
