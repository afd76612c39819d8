//! Tasks that do nothing: the cost of the executor itself, beside the floor.

use std::sync::Arc;

use keylane::Executor;
use tokio::runtime::Runtime;

use crate::floor::Floor;
use crate::load::{self, NoOp, Numbers, OUTSTANDING};
use crate::report::{Report, print_table};
use crate::usage::{Cost, median, runtime};

const ROUNDS: usize = 3;
const TASKS: usize = 500_000;
const KEYS: [usize; 5] = [1, 100, 10_000, 100_000, 1_000_000];

#[derive(Clone, Copy, PartialEq)]
enum Way {
    Post,
    Submit,
    Floor,
    FloorWithHandles,
}

/// The rounds of one point.
struct Point {
    keys: usize,
    submitters: usize,
    handles: bool,
    ours: Vec<Cost>,
    floor: Vec<Cost>,
    violations: u64,
    violations_of_floor: u64,
}

pub(crate) fn run(report: &mut Report) {
    let runtime = runtime();
    let mut points = Vec::new();
    for handles in [false, true] {
        for submitters in [1, 2] {
            for keys in KEYS {
                points.push(point(&runtime, keys, submitters, handles, true));
            }
        }
    }
    print_points(&points);
    goals(report, &points);
}

/// Some points, for a profile.
pub(crate) fn profile(keys: usize, submitters: &[usize], handles: &[bool], floor: bool) {
    let runtime = runtime();
    let mut points = Vec::new();
    for &handles in handles {
        for &submitters in submitters {
            points.push(point(&runtime, keys, submitters, handles, floor));
        }
    }
    print_points(&points);
}

fn print_points(points: &[Point]) {
    println!(
        "\n### No-op tasks, {OUTSTANDING} outstanding, medians of {ROUNDS} alternating rounds\n"
    );
    let head = [
        "keys",
        "submitters",
        "handles",
        "CPU ns/task",
        "floor",
        "M tasks/s",
        "floor",
        "times the floor's throughput",
        "order violations",
        "floor",
    ];
    print_table(&head, &points.iter().map(Point::row).collect::<Vec<_>>());
}

fn goals(report: &mut Report, points: &[Point]) {
    let find = |keys, submitters, handles| {
        let same = |p: &&Point| (p.keys, p.submitters, p.handles) == (keys, submitters, handles);
        points.iter().find(same).expect("it was measured")
    };
    let each = |at: &dyn Fn(&Point) -> f64, keys| {
        [(1, false), (2, false), (1, true), (2, true)].map(|(s, h)| at(find(keys, s, h)))
    };
    let of_all = "1 / 2 submitters, then with handles";
    let cpu = each(&|p| cpu_of(&p.ours), 10_000);
    report.goal(
        &format!("no-op, 10 k keys, CPU a task ({of_all})"),
        "≤ 1000 ns",
        cpu.map(|ns| format!("{ns:.0}")).join(" / ") + " ns",
        cpu.iter().all(|ns| *ns <= 1000.0),
    );
    let times = each(&Point::times_the_floor, 10_000);
    report.goal(
        &format!("no-op, 10 k keys, throughput ({of_all})"),
        "≥ 2 × the floor's",
        times.map(|times| format!("{times:.1}")).join(" / ") + " ×",
        times.iter().all(|times| *times >= 2.0),
    );
    let aim = find(10_000, 1, false);
    report.goal(
        "aim: no-op, 10 k keys, one submitter, no handles",
        "≤ 400 ns CPU, ≥ 3 M/s",
        format!(
            "{:.0} ns, {:.2} M/s",
            cpu_of(&aim.ours),
            rate_of(&aim.ours) / 1e6
        ),
        cpu_of(&aim.ours) <= 400.0 && rate_of(&aim.ours) >= 3e6,
    );
    let (hot, hundred) = (find(1, 1, false), find(100, 1, false));
    report.goal(
        "one hot key beside 100 keys, one submitter",
        "at least as fast",
        format!(
            "{:.2} / {:.2} M/s, {:.0} / {:.0} ns CPU",
            rate_of(&hot.ours) / 1e6,
            rate_of(&hundred.ours) / 1e6,
            cpu_of(&hot.ours),
            cpu_of(&hundred.ours)
        ),
        rate_of(&hot.ours) >= rate_of(&hundred.ours) * 0.97,
    );
    let million = each(&|p| cpu_of(&p.ours), 1_000_000);
    let times: Vec<f64> = million
        .iter()
        .zip(cpu)
        .map(|(million, ten)| million / ten)
        .collect();
    report.goal(
        &format!("CPU a task at 1 M keys ({of_all})"),
        "≤ 4 × that at 10 k",
        times
            .iter()
            .map(|times| format!("{times:.1}"))
            .collect::<Vec<_>>()
            .join(" / ")
            + " ×",
        times.iter().all(|times| *times <= 4.0),
    );
    let violations: u64 = points.iter().map(|point| point.violations).sum();
    report.goal(
        "order violations in all no-op runs",
        "0",
        violations.to_string(),
        violations == 0,
    );
}

fn cpu_of(rounds: &[Cost]) -> f64 {
    median(rounds.iter().map(Cost::cpu_nanos))
}

fn rate_of(rounds: &[Cost]) -> f64 {
    median(rounds.iter().map(Cost::per_second))
}

impl Point {
    /// Round by round, because both ran under the same conditions there.
    fn times_the_floor(&self) -> f64 {
        let rounds = self.ours.iter().zip(&self.floor);
        median(rounds.map(|(ours, floor)| ours.per_second() / floor.per_second()))
    }

    fn row(&self) -> [String; 10] {
        [
            self.keys.to_string(),
            self.submitters.to_string(),
            if self.handles { "yes" } else { "no" }.to_owned(),
            format!("{:.0}", cpu_of(&self.ours)),
            format!("{:.0}", cpu_of(&self.floor)),
            format!("{:.2}", rate_of(&self.ours) / 1e6),
            format!("{:.2}", rate_of(&self.floor) / 1e6),
            format!("{:.1}", self.times_the_floor()),
            self.violations.to_string(),
            self.violations_of_floor.to_string(),
        ]
    }
}

fn point(
    runtime: &Runtime,
    keys: usize,
    submitters: usize,
    handles: bool,
    beside_floor: bool,
) -> Point {
    let (ours, floor) = match handles {
        false => (Way::Post, Way::Floor),
        true => (Way::Submit, Way::FloorWithHandles),
    };
    let mut point = Point {
        keys,
        submitters,
        handles,
        ours: Vec::new(),
        floor: Vec::new(),
        violations: 0,
        violations_of_floor: 0,
    };
    let spawned = Floor::new();
    let executor = {
        let _inside = runtime.enter();
        Executor::builder().build().expect("the defaults are fine")
    };
    let round = |way| {
        load::reset();
        let cost = round(runtime, &executor, &spawned, way, keys, submitters);
        (cost, load::violations())
    };
    // Without a floor beside it, the same again.
    let floor = if beside_floor { floor } else { ours };
    // Warms up what is kept: the floor's map, the allocator.
    round(ours);
    round(floor);
    for _ in 0..ROUNDS {
        let (cost, violations) = round(floor);
        point.floor.push(cost);
        point.violations_of_floor += violations;
        let (cost, violations) = round(ours);
        point.ours.push(cost);
        point.violations += violations;
    }
    eprintln!("no-op: {}", point.row().join(" | "));
    point
}

fn round(
    runtime: &Runtime,
    executor: &Executor<Arc<str>>,
    floor: &Floor,
    way: Way,
    keys: usize,
    submitters: usize,
) -> Cost {
    let count = load::whole_steps(TASKS, submitters);
    let numbers = (0..submitters).map(|submitter| Numbers::new(submitter, keys));
    let numbers: Vec<Numbers> = numbers.collect();
    Cost::of(count as u64, || {
        runtime.block_on(async {
            let mut running = Vec::new();
            for numbers in numbers {
                let (executor, floor) = (executor.clone(), floor.clone());
                let count = count / submitters;
                let outstanding = OUTSTANDING / submitters;
                running.push(tokio::spawn(async move {
                    match way {
                        Way::Post => {
                            let put = |task: NoOp| {
                                let run = async move { task.check_and_make_room() };
                                let posted = executor.post(task.key().clone(), run);
                                posted.expect("there is room");
                            };
                            load::submit(numbers, count, put).await;
                        }
                        Way::Floor => {
                            let put = |task: NoOp| {
                                let run = async move { task.check_and_make_room() };
                                drop(floor.spawn(task.key(), run));
                            };
                            load::submit(numbers, count, put).await;
                        }
                        Way::Submit => {
                            let put = |task: NoOp| {
                                executor.submit(task.key().clone(), async move { task.check() })
                            };
                            load::submit_and_await(numbers, count, outstanding, put).await;
                        }
                        Way::FloorWithHandles => {
                            let put =
                                |task: NoOp| floor.spawn(task.key(), async move { task.check() });
                            load::submit_and_await(numbers, count, outstanding, put).await;
                        }
                    }
                }));
            }
            for submitter in running {
                submitter.await.expect("a submitter does not panic");
            }
            load::all_ended().await;
        });
    })
}
