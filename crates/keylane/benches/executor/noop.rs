//! Tasks that do nothing: the cost of the executor itself, beside the floor.
//!
//! What a machine gives changes from one minute to the next, and what a heap gives with what ran on it
//! before. So every round of a point is a process of its own, and the points take turns: a ratio,
//! also one of two points, compares what ran within seconds, each on a heap of its own making.

use std::sync::Arc;
use std::time::Duration;

use keylane::Executor;
use tokio::runtime::Runtime;

use crate::floor::Floor;
use crate::load::{self, NoOp, Numbers, OUTSTANDING};
use crate::report::{Report, print_table};
use crate::usage::{Cost, alone, median, runtime};

const ROUNDS: usize = 5;
/// Of the hot key and what it is compared with: they are nearly equal, and it takes more to tell.
const MANY_ROUNDS: usize = 21;
const TASKS: usize = 500_000;
const KEYS: [usize; 5] = [1, 100, 10_000, 100_000, 1_000_000];

#[derive(Clone, Copy, PartialEq)]
enum Way {
    Post,
    Submit,
    Floor,
    FloorWithHandles,
}

/// What is varied.
#[derive(Clone, Copy, PartialEq)]
pub(crate) struct Setting {
    pub(crate) keys: usize,
    pub(crate) submitters: usize,
    pub(crate) handles: bool,
}

/// What one round cost, and how many tasks of it were out of order.
struct Round {
    cost: Cost,
    violations: u64,
}

/// The rounds of one setting.
struct Point {
    setting: Setting,
    ours: Vec<Cost>,
    floor: Vec<Cost>,
    violations: u64,
    violations_of_floor: u64,
}

pub(crate) fn run(report: &mut Report) {
    let mut points = Vec::new();
    for handles in [false, true] {
        for submitters in [1, 2] {
            points.extend(KEYS.map(|keys| {
                Point::new(Setting {
                    keys,
                    submitters,
                    handles,
                })
            }));
        }
    }
    for number in 1..=MANY_ROUNDS {
        eprintln!("no-op: round {number} of {MANY_ROUNDS}");
        for point in &mut points {
            if number <= point.setting.rounds() {
                point.add(in_own_process(point.setting));
            }
        }
    }
    print_points(&points);
    goals(report, &points);
}

/// Some points, in this process, for a profile.
pub(crate) fn profile(settings: impl Iterator<Item = Setting>, beside_floor: bool) {
    let points = settings.map(|setting| {
        let rig = Rig::new(setting, beside_floor);
        rig.both();
        let mut point = Point::new(setting);
        (0..ROUNDS).for_each(|_| point.add(rig.both()));
        point
    });
    print_points(&points.collect::<Vec<_>>());
}

/// A round of the floor and one of ours.
fn in_own_process(setting: Setting) -> [Round; 2] {
    let text = alone(setting.words());
    let mut rounds = text.lines().map(Round::from_line);
    let both = rounds.next().flatten().zip(rounds.next().flatten());
    both.unwrap_or_else(|| panic!("{:?} answered {text:?}", setting.words()))
        .into()
}

/// The child's part.
pub(crate) fn measure_alone(words: &[String]) {
    let rig = Rig::new(Setting::from_words(words), true);
    // Warms up what is kept: the floor's map, the allocator.
    rig.both();
    for round in rig.both() {
        println!("{}", round.line());
    }
}

fn print_points(points: &[Point]) {
    println!(
        "\n### No-op tasks, {OUTSTANDING} outstanding, medians of {ROUNDS} alternating rounds ({MANY_ROUNDS} of the hot key)\n"
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
        let wanted = Setting {
            keys,
            submitters,
            handles,
        };
        let found = points.iter().find(|point| point.setting == wanted);
        found.expect("it was measured")
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
    let times = by_round(&hot.ours, &hundred.ours, Cost::per_second);
    report.goal(
        "one hot key beside 100 keys, one submitter",
        "at least as fast",
        format!(
            "{times:.2} × ({:.2} / {:.2} M/s, {:.0} / {:.0} ns CPU)",
            rate_of(&hot.ours) / 1e6,
            rate_of(&hundred.ours) / 1e6,
            cpu_of(&hot.ours),
            cpu_of(&hundred.ours)
        ),
        times >= 0.97,
    );
    let beside_ten_thousand = |million: &Point| {
        let Setting {
            submitters,
            handles,
            ..
        } = million.setting;
        let ten_thousand = find(10_000, submitters, handles);
        by_round(&million.ours, &ten_thousand.ours, Cost::cpu_nanos)
    };
    let times = each(&beside_ten_thousand, 1_000_000);
    report.goal(
        &format!("CPU a task at 1 M keys ({of_all})"),
        "≤ 4 × that at 10 k",
        times.map(|times| format!("{times:.1}")).join(" / ") + " ×",
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

/// How many times the `other`'s the one's is, round by round: both ran at nearly the same time.
fn by_round(one: &[Cost], other: &[Cost], of: fn(&Cost) -> f64) -> f64 {
    let rounds = one.iter().zip(other);
    median(rounds.map(|(one, other)| of(one) / of(other)))
}

impl Setting {
    fn rounds(&self) -> usize {
        match self {
            Self {
                keys: 1 | 100,
                submitters: 1,
                handles: false,
            } => MANY_ROUNDS,
            _ => ROUNDS,
        }
    }

    fn words(&self) -> [String; 4] {
        let numbers = [self.keys, self.submitters, usize::from(self.handles)];
        let [keys, submitters, handles] = numbers.map(|number| number.to_string());
        ["noop".to_owned(), keys, submitters, handles]
    }

    fn from_words(words: &[String]) -> Self {
        let number = |at: usize| words[at].parse().expect("a number");
        Self {
            keys: number(1),
            submitters: number(2),
            handles: number(3) == 1,
        }
    }
}

impl Round {
    fn line(&self) -> String {
        let Cost { wall, cpu, count } = self.cost;
        let (wall, cpu) = (wall.as_nanos(), cpu.as_nanos());
        format!("{wall} {cpu} {count} {}", self.violations)
    }

    fn from_line(line: &str) -> Option<Self> {
        let mut numbers = line.split(' ').map(|number| number.parse().ok());
        let mut next = || numbers.next().flatten();
        let cost = Cost {
            wall: Duration::from_nanos(next()?),
            cpu: Duration::from_nanos(next()?),
            count: next()?,
        };
        let violations = next()?;
        Some(Self { cost, violations })
    }
}

impl Point {
    fn new(setting: Setting) -> Self {
        Self {
            setting,
            ours: Vec::new(),
            floor: Vec::new(),
            violations: 0,
            violations_of_floor: 0,
        }
    }

    fn add(&mut self, [floor, ours]: [Round; 2]) {
        self.floor.push(floor.cost);
        self.violations_of_floor += floor.violations;
        self.ours.push(ours.cost);
        self.violations += ours.violations;
    }

    fn times_the_floor(&self) -> f64 {
        by_round(&self.ours, &self.floor, Cost::per_second)
    }

    fn row(&self) -> [String; 10] {
        [
            self.setting.keys.to_string(),
            self.setting.submitters.to_string(),
            if self.setting.handles { "yes" } else { "no" }.to_owned(),
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

/// Where rounds of one setting run.
struct Rig {
    setting: Setting,
    runtime: Runtime,
    executor: Executor<Arc<str>>,
    spawned: Floor,
    beside_floor: bool,
}

impl Rig {
    fn new(setting: Setting, beside_floor: bool) -> Self {
        let runtime = runtime();
        let executor = {
            let _inside = runtime.enter();
            Executor::builder().build().expect("the defaults are fine")
        };
        Self {
            setting,
            runtime,
            executor,
            spawned: Floor::new(),
            beside_floor,
        }
    }

    /// One round of the floor, or without a floor beside it of ours again, and one of ours.
    fn both(&self) -> [Round; 2] {
        let (ours, floor) = match self.setting.handles {
            false => (Way::Post, Way::Floor),
            true => (Way::Submit, Way::FloorWithHandles),
        };
        let floor = if self.beside_floor { floor } else { ours };
        [floor, ours].map(|way| {
            load::reset();
            let Setting {
                keys, submitters, ..
            } = self.setting;
            let cost = round(
                &self.runtime,
                &self.executor,
                &self.spawned,
                way,
                keys,
                submitters,
            );
            let violations = load::violations();
            Round { cost, violations }
        })
    }
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
