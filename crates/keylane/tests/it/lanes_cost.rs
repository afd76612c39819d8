//! What steps cost, with ten lanes and with a million (L13), and what large numbers leave (L8, L11).

use keylane::lanes::{Hold, ItemId, Lanes, Limits, Next, Spec, Ticket, Time};

const MANY: u32 = 1_000_000;

fn no_spec(_: &u32) -> Spec {
    Spec::default()
}

fn open_gate(_: &u32, _: &u64) -> Hold {
    Hold::Free
}

fn lanes_with_one_item_each(count: u32) -> Lanes<u32, u64> {
    let mut lanes = Lanes::new(Limits::default());
    for key in 0..count {
        lanes.push(key, u64::from(key), no_spec).unwrap();
    }
    lanes
}

fn start(lanes: &mut Lanes<u32, u64>) -> (Ticket, u64) {
    match lanes.next(Time(0), open_gate) {
        Next::Start(ticket, job) => (ticket, job),
        other => panic!("{other:?}"),
    }
}

/// How many lanes each of these steps looks at.
fn visits_of_ten_starts(lanes: &mut Lanes<u32, u64>) -> Vec<u64> {
    let visits = (0..10).map(|_| {
        let before = lanes.visited();
        let (ticket, _) = start(lanes);
        lanes.done(ticket);
        lanes.visited() - before
    });
    visits.collect()
}

#[test]
fn l13_a_step_looks_at_as_many_of_ten_lanes_as_of_a_million() {
    let of_ten = visits_of_ten_starts(&mut lanes_with_one_item_each(10));
    let of_many = visits_of_ten_starts(&mut lanes_with_one_item_each(MANY));
    assert_eq!(of_ten, [1; 10]);
    assert_eq!(of_many, of_ten);
}

#[test]
fn l13_held_paused_and_running_lanes_are_not_looked_at() {
    let mut lanes = lanes_with_one_item_each(3 * MANY / 10);
    for round in 0..MANY / 10 {
        let (ticket, job) = start(&mut lanes);
        let later = Hold::Until(Time(1 + u64::from(round)));
        lanes.hold(ticket, job, later);
    }
    for key in 0..MANY / 10 {
        lanes.pause(MANY / 10 + key, no_spec);
    }
    let running: Vec<_> = (0..MANY / 10 - 10).map(|_| start(&mut lanes)).collect();
    assert_eq!(lanes.ready(), 10);
    assert_eq!(visits_of_ten_starts(&mut lanes), [1; 10]);
    let before = lanes.visited();
    assert!(matches!(lanes.next(Time(0), open_gate), Next::Nothing));
    assert_eq!(lanes.visited(), before);
    assert_eq!(lanes.running(), running.len());
}

#[test]
fn l13_a_gate_that_holds_is_asked_once_for_each_lane_it_holds() {
    let mut lanes = lanes_with_one_item_each(MANY / 10);
    let hold = |_: &u32, _: &u64| Hold::Until(Time(9));
    for _ in 0..3 {
        assert!(matches!(lanes.next(Time(0), hold), Next::Nothing));
        assert_eq!(lanes.visited(), u64::from(MANY / 10));
    }
    assert_eq!(lanes.wake_at(), Some(Time(9)));
    lanes.tick(Time(8));
    assert_eq!(lanes.ready(), 0);
    lanes.tick(Time(9));
    assert_eq!(lanes.ready(), MANY as usize / 10);
}

#[test]
fn l8_a_million_lanes_come_and_go() {
    let mut lanes = Lanes::new(Limits::default());
    for key in 0..MANY {
        lanes.push(key, u64::from(key), no_spec).unwrap();
        let (ticket, job) = start(&mut lanes);
        assert_eq!(job, u64::from(key));
        lanes.done(ticket);
        assert_eq!((lanes.live(), lanes.dormant()), (0, 0));
    }
    let mut lanes = lanes_with_one_item_each(MANY);
    assert_eq!(lanes.live(), MANY as usize);
    for key in 0..MANY {
        let (ticket, job) = start(&mut lanes);
        assert_eq!(
            job,
            u64::from(key),
            "lanes take turns in the order they came"
        );
        lanes.done(ticket);
    }
    assert!(lanes.is_idle());
    assert_eq!(lanes.wake_at(), None);
}

#[test]
fn l11_a_million_items_of_one_lane_with_two_of_three_cancelled_start_in_order() {
    let mut lanes: Lanes<u32, u64> = Lanes::new(Limits::default());
    let ids: Vec<ItemId> = (0..u64::from(MANY))
        .map(|job| lanes.push(7, job, no_spec).unwrap())
        .collect();
    for (job, &id) in ids.iter().enumerate().filter(|(job, _)| job % 3 != 1) {
        assert_eq!(lanes.cancel(id), Some(job as u64));
        assert_eq!(lanes.cancel(id), None);
    }
    let left = ids.len().div_ceil(3) - 1;
    assert_eq!(lanes.waiting(), left);
    for nth in 0..left {
        let (ticket, job) = start(&mut lanes);
        assert_eq!(job, 3 * nth as u64 + 1);
        assert_eq!(lanes.running(), 1);
        lanes.done(ticket);
    }
    assert!(lanes.is_idle());
}

#[test]
fn l11_cancelling_from_the_middle_gives_room_at_once() {
    let mut limits = Limits::default();
    limits.lane.queue = 999;
    let mut lanes: Lanes<u32, u64> = Lanes::new(limits);
    let ids: Vec<ItemId> = (0..1_000)
        .map(|job| lanes.push(7, job, no_spec).unwrap())
        .collect();
    for (nth, &id) in ids[250..750].iter().enumerate() {
        let job = 1_000 + nth as u64;
        assert!(lanes.push(7, job, no_spec).is_err());
        assert!(lanes.cancel(id).is_some());
        lanes.push(7, job, no_spec).unwrap();
    }
    let waiting: Vec<u64> = lanes.waiting_of(&7).copied().collect();
    let expected = (0..250).chain(750..1_500);
    assert!(waiting.into_iter().eq(expected));
}

/// Ends all that run in this order, starts the next one after each.
fn next_round(
    lanes: &mut Lanes<u32, u64>,
    running: Vec<Ticket>,
    random: &mut impl FnMut(usize) -> usize,
) -> Vec<Ticket> {
    let mut ending = running;
    let mut started = Vec::new();
    while !ending.is_empty() {
        lanes.done(ending.swap_remove(random(ending.len())));
        if let Next::Start(ticket, _) = lanes.next(Time(0), open_gate) {
            started.push(ticket);
        }
    }
    started
}

#[test]
fn l7_lanes_keep_their_turns_in_whatever_order_runs_end() {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 33) as usize % below
    };
    for _ in 0..200 {
        let mut lanes = Lanes::new(Limits {
            total: 10,
            ..Limits::default()
        });
        for item in 0..150 {
            let pushed = lanes.push((item % 15) as u32, item, no_spec);
            pushed.expect("there is room");
        }
        let mut running: Vec<Ticket> = (0..10).map(|_| start(&mut lanes).0).collect();
        let mut rounds = 0;
        while !running.is_empty() {
            assert_eq!(running.len(), 10, "a permit is free in round {rounds}");
            running = next_round(&mut lanes, running, &mut random);
            rounds += 1;
        }
        // A lane that falls behind by one turn needs a round of its own at the end.
        assert_eq!((rounds, lanes.live()), (15, 0));
    }
}
