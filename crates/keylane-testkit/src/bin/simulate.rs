//! `cargo xtask simulate`: runs seeds or scenario files and reports what breaks.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use keylane_testkit::simulate::case::Case;
use keylane_testkit::simulate::cover::{Coverage, ENOUGH};
use keylane_testkit::simulate::draw::draw;
use keylane_testkit::simulate::judge::{Fault, Rule, judge};
use keylane_testkit::simulate::run::{digest, run};
use keylane_testkit::simulate::shrink::shrink;

const HELP: &str = "\
simulate --seed N [--shrink]       one seed: its history, what breaks, and a small case of it
         --seeds N [--from N]      so many seeds
         --minutes M [--from N]    seeds until the time is over
         --digest N [--from N]     digests of the histories of so many seeds
         --file FILE               a scenario file
         --out FOLDER              where small cases of failures are written
         --keep-going              does not stop at the first failures
         --coverage                prints how often each value, event and pair of values was drawn
         --threads N               how many seeds at once (2)
";

#[derive(Default)]
struct Options {
    seed: Option<u64>,
    seeds: Option<u64>,
    from: u64,
    minutes: Option<f64>,
    digest: Option<u64>,
    file: Option<PathBuf>,
    out: Option<PathBuf>,
    shrinks: bool,
    keep_going: bool,
    coverage: bool,
    threads: usize,
}

fn main() -> ExitCode {
    std::panic::set_hook(Box::new(|info| {
        let text = info.to_string();
        if !text.contains("the simulated handler panics") {
            eprintln!("{text}");
        }
    }));
    let options = match options() {
        Ok(options) => options,
        Err(text) => {
            eprintln!("simulate: {text}\n{HELP}");
            return ExitCode::from(2);
        }
    };
    if let Some(file) = &options.file {
        let text = std::fs::read_to_string(file).expect("the scenario file can be read");
        let case = Case::from_toml(&text).expect("the scenario file is one");
        return one(&case, &options);
    }
    if let Some(seed) = options.seed {
        return one(&draw(seed), &options);
    }
    if let Some(many) = options.digest {
        for seed in options.from..options.from + many {
            println!("{seed} {}", digest(&run(&draw(seed))));
        }
        return ExitCode::SUCCESS;
    }
    many(&options)
}

fn options() -> Result<Options, String> {
    let mut options = Options {
        threads: 2,
        ..Options::default()
    };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or(format!("{arg} needs a value"));
        let number = |text: String| text.parse().map_err(|_| format!("{text} is no number"));
        match arg.as_str() {
            "--seed" => options.seed = Some(number(value()?)?),
            "--seeds" => options.seeds = Some(number(value()?)?),
            "--from" => options.from = number(value()?)?,
            "--digest" => options.digest = Some(number(value()?)?),
            "--threads" => options.threads = number(value()?)? as usize,
            "--minutes" => {
                let text = value()?;
                let minutes = text.parse().map_err(|_| format!("{text} is no number"))?;
                options.minutes = Some(minutes);
            }
            "--file" => options.file = Some(value()?.into()),
            "--out" => options.out = Some(value()?.into()),
            "--shrink" => options.shrinks = true,
            "--coverage" => options.coverage = true,
            "--keep-going" => options.keep_going = true,
            other => return Err(format!("`{other}` is no option")),
        }
    }
    if options.seed.is_none()
        && options.seeds.is_none()
        && options.minutes.is_none()
        && options.digest.is_none()
        && options.file.is_none()
    {
        return Err("say which seeds".to_owned());
    }
    Ok(options)
}

fn one(case: &Case, options: &Options) -> ExitCode {
    let found = run(case);
    if !options.shrinks {
        for event in &found.history {
            println!(
                "{:>9.3} {} {:?}",
                event.at.as_secs_f64(),
                event.life,
                event.what
            );
        }
    }
    let faults = judge(case, &found);
    println!(
        "end: {:?}, audited {}",
        found.end, found.left.ordering_violations
    );
    for fault in &faults {
        println!("{fault}");
    }
    let Some(first) = faults.first() else {
        println!("nothing is wrong");
        return ExitCode::SUCCESS;
    };
    if options.shrinks {
        let small = shrink(case, first.rule, 600);
        println!("{}", small.to_toml());
        let again = judge(&small, &run(&small));
        for fault in again {
            println!("# {fault}");
        }
    }
    ExitCode::FAILURE
}

fn many(options: &Options) -> ExitCode {
    let began = Instant::now();
    let limit = options
        .minutes
        .map(|minutes| Duration::from_secs_f64(minutes * 60.0));
    let end = options.seeds.map_or(u64::MAX, |many| options.from + many);
    let next = AtomicU64::new(options.from);
    let stop = AtomicBool::new(false);
    let failures: Mutex<Vec<(u64, Vec<Fault>)>> = Mutex::default();
    let coverage: Mutex<Coverage> = Mutex::default();
    let (steps, longest) = (AtomicU64::new(0), Mutex::new((Duration::ZERO, 0)));
    std::thread::scope(|scope| {
        for _ in 0..options.threads.max(1) {
            scope.spawn(|| {
                let mut own = Coverage::default();
                while !stop.load(Ordering::Relaxed) {
                    if limit.is_some_and(|limit| began.elapsed() >= limit) {
                        break;
                    }
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= end {
                        break;
                    }
                    let case = draw(seed);
                    own.add(&case);
                    let started = Instant::now();
                    let ran = std::panic::catch_unwind(|| run(&case));
                    let faults = match ran {
                        Ok(ran) => {
                            steps.fetch_add(ran.history.len() as u64, Ordering::Relaxed);
                            judge(&case, &ran)
                        }
                        Err(_) => vec![Fault {
                            rule: Rule::Broken,
                            text: "the run panicked".to_owned(),
                        }],
                    };
                    let mut longest = longest.lock().expect("no panic while locked");
                    *longest = (*longest).max((started.elapsed(), seed));
                    drop(longest);
                    if !faults.is_empty() {
                        println!("seed {seed}: {}", faults[0]);
                        let mut all = failures.lock().expect("no panic while locked");
                        all.push((seed, faults));
                        if !options.keep_going && all.len() >= 10 {
                            stop.store(true, Ordering::Relaxed);
                        }
                    }
                }
                coverage.lock().expect("no panic while locked").merge(own);
            });
        }
    });
    let failures = failures.into_inner().expect("no panic while locked");
    let coverage = coverage.into_inner().expect("no panic while locked");
    report(options, &failures, &coverage, began.elapsed());
    let longest = longest.into_inner().expect("no panic while locked");
    println!(
        "{} events; the longest seed: {longest:?}",
        steps.into_inner()
    );
    let covers = covers(options, &coverage);
    match failures.is_empty() && covers {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

/// Prints what was drawn, and whether that is enough of everything.
fn covers(options: &Options, coverage: &Coverage) -> bool {
    if options.coverage {
        for (name, count) in &coverage.single {
            println!("  {count:>7} {name}");
        }
        for ((one, other), count) in &coverage.pairs {
            println!("  {count:>7} {one} with {other}");
        }
    }
    println!(
        "coverage: {} values and events, {} pairs; the rarest pair: {:?}",
        coverage.single.len(),
        coverage.pairs.len(),
        coverage.pairs.iter().min_by_key(|(_, count)| **count)
    );
    if coverage.cases < ENOUGH {
        return true;
    }
    let gaps = coverage.gaps();
    for gap in &gaps {
        println!("  not covered: {gap}");
    }
    gaps.is_empty()
}

fn report(options: &Options, failures: &[(u64, Vec<Fault>)], coverage: &Coverage, took: Duration) {
    let mut by_rule: BTreeMap<Rule, Vec<u64>> = BTreeMap::new();
    for (seed, faults) in failures {
        for fault in faults {
            by_rule.entry(fault.rule).or_default().push(*seed);
        }
    }
    let (messages, events) = coverage.medians();
    println!(
        "{} seeds from {} in {:.1} s ({:.1} a second), {} failed; median case: {messages} messages, {events} faults and acts",
        coverage.cases,
        options.from,
        took.as_secs_f64(),
        coverage.cases as f64 / took.as_secs_f64(),
        failures.len()
    );
    for (rule, seeds) in by_rule {
        println!(
            "  {rule:?}: {} seeds, {:?}",
            seeds.len(),
            &seeds[..seeds.len().min(12)]
        );
    }
    let Some(folder) = &options.out else {
        return;
    };
    std::fs::create_dir_all(folder).expect("the folder can be made");
    for (seed, faults) in failures.iter().take(10) {
        let mut small = shrink(&draw(*seed), faults[0].rule, 400);
        small.note = faults[0].to_string();
        let file = folder.join(format!("seed-{seed}.toml"));
        std::fs::write(&file, small.to_toml()).expect("the case can be written");
        println!("  {}", file.display());
    }
}
