//! What the executor costs, beside what it replaces: `cargo bench -p keylane`.
//!
//! Arguments name the parts to run (`noop`, `lanes`, `sleepers`, `latency`, `memory`); without
//! any, all of them. `cargo bench -p keylane -- noop keys=10000` measures one number of keys, for
//! a profile, and `submitters=2` or `handles=yes` less than that; `floor=no` leaves the floor out;
//! `-- sleepers keys=100000` does the same for sleepers.
//! Every run counts order violations. Floor and executor alternate, so that a ratio compares what ran
//! under the same conditions.

mod floor;
mod latency;
mod load;
mod memory;
mod noop;
mod plain;
mod report;
mod sleepers;
mod usage;

use report::Report;

type Part = fn(&mut Report);

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let Some(("--alone", part)) = args.first().map(String::as_str).zip(args.get(1)) {
        return match part.as_str() {
            "noop" => noop::measure_alone(&args[1..]),
            part => memory::measure_alone(part),
        };
    }
    let wanted: Vec<&String> = args.iter().filter(|arg| !arg.starts_with("--")).collect();
    let wants = |part: &str| wanted.is_empty() || wanted.iter().any(|arg| part.contains(*arg));
    let given = |name: &str| args.iter().find_map(|arg| arg.strip_prefix(name));
    if let Some(keys) = given("keys=") {
        let keys = keys.parse().expect("a number of keys");
        if args.iter().any(|arg| arg == "sleepers") {
            return sleepers::profile(keys);
        }
        let submitters = given("submitters=").map(|s| s.parse().expect("a number of submitters"));
        let handles = given("handles=").map(|yes| yes == "yes");
        let all = [(1, false), (2, false), (1, true), (2, true)];
        let settings = all.map(|(submitters, handles)| noop::Setting {
            keys,
            submitters,
            handles,
        });
        let wanted = settings.into_iter().filter(|setting| {
            submitters.is_none_or(|wanted| setting.submitters == wanted)
                && handles.is_none_or(|wanted| setting.handles == wanted)
        });
        return noop::profile(wanted, given("floor=") != Some("no"));
    }
    let mut report = Report::new();
    let parts: [(&str, Part); 5] = [
        ("noop", noop::run),
        ("lanes", plain::run),
        ("sleepers", sleepers::run),
        ("latency", latency::run),
        ("memory", memory::run),
    ];
    for (part, run) in parts {
        if wants(part) {
            run(&mut report);
        }
    }
    report.print();
}
