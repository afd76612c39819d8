//! `keylane bench`: measures the router on this machine and says which goals it meets.
//!
//! The target is a process of its own (`target`), the queue is durable, every run counts what came
//! out of order. Rates are set beside a bare HTTP client that calls the same target in turn with
//! the router (`floor`), because a rate alone says more about the machine than about the router.

mod alarm;
mod floor;
mod flow;
mod goals;
mod guards;
mod instant;
mod machine;
mod memory;
mod open_loop;
mod original;
mod publish;
mod rig;
mod target;

use std::error::Error;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use clap::{Args, Subcommand, ValueEnum};

use crate::cli::{FAILED, OK};
use goals::Report;
use target::Target;

/// Whatever keeps a measurement from ending is printed, and that is all.
type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// What can be measured.
#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// Measure the router: rates beside a bare client, publishing, latency, memory
    Router(RouterArgs),
    /// The target that the measurements call
    #[command(hide = true)]
    Target,
}

/// What to measure, and how to tell.
#[derive(Debug, Args)]
pub(crate) struct RouterArgs {
    /// Take the time that the goals speak of (a rate over 60 s) instead of a few minutes in all
    #[arg(long)]
    full: bool,
    /// Only these measurements
    #[arg(long, value_enum, value_delimiter = ',', value_name = "PART")]
    only: Vec<Part>,
    /// Only these numbers of keys, where there are several to choose from
    #[arg(long, value_delimiter = ',', value_name = "NUMBER")]
    keys: Vec<usize>,
    /// Where queues are made and deleted again; default: the folder for temporary files
    #[arg(long, value_name = "FOLDER")]
    data: Option<PathBuf>,
    /// Print the results as JSON
    #[arg(long)]
    json: bool,
    /// Exit with 1 when a goal is missed
    #[arg(long)]
    strict: bool,
}

/// One measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// A target that answers at once, beside bare clients
    Instant,
    /// The rate over queues of different length, and over time
    Flat,
    /// Publishing alone, without HTTP
    Publish,
    /// A slow target, messages at random times: latency over the ideal
    OpenLoop,
    /// Batches of 100 messages, ten at a time
    Original,
    /// Each guard that has a switch, with it and without
    Guards,
    /// Good keys beside bad ones, on a source that takes nothing back
    Flow,
    /// Many keys in memory, and doing nothing
    Memory,
}

const ALL: [Part; 8] = [
    Part::Instant,
    Part::Flat,
    Part::Publish,
    Part::OpenLoop,
    Part::Original,
    Part::Guards,
    Part::Flow,
    Part::Memory,
];

/// Runs the command; the exit code.
pub(crate) fn run(command: &BenchCommand) -> u8 {
    let runtime = tokio::runtime::Runtime::new().expect("the system gives threads");
    match command {
        BenchCommand::Target => {
            runtime.block_on(target::serve());
            OK
        }
        BenchCommand::Router(args) => match runtime.block_on(measure(args)) {
            Ok(report) => ended(&report, args),
            Err(error) => {
                eprintln!("the measurement broke off: {error}");
                FAILED
            }
        },
    }
}

fn ended(report: &Report, args: &RouterArgs) -> u8 {
    if args.json {
        let text = serde_json::to_string_pretty(report).expect("a report has only text keys");
        println!("{text}");
    } else {
        print!("{report}");
    }
    match args.strict && !report.all_met() {
        true => FAILED,
        false => OK,
    }
}

async fn measure(args: &RouterArgs) -> Result<Report> {
    let parts: &[Part] = match args.only.is_empty() {
        true => &ALL,
        false => &args.only,
    };
    let mut report = Report::new();
    for part in parts {
        if !args.json {
            eprintln!("{part:?} (load {})", machine::load());
        }
        measure_part(*part, parts.len() == 1, args, &mut report).await?;
    }
    report.end();
    Ok(report)
}

async fn measure_part(
    part: Part,
    alone: bool,
    args: &RouterArgs,
    report: &mut Report,
) -> Result<()> {
    let data = args.data.clone().unwrap_or_else(std::env::temp_dir);
    // What an earlier measurement left in the allocator's hands must not count.
    if part == Part::Memory && !alone {
        return measure_apart(args, report);
    }
    let rss = machine::rss();
    let mut target = Target::start()?;
    match part {
        Part::Instant => instant::measure(&mut target, &data, args, report).await,
        Part::Flat => instant::measure_flat(&mut target, &data, args.full, report).await,
        Part::Publish => publish::measure(&data, report).await,
        Part::OpenLoop => open_loop::measure(&mut target, &data, args.full, report).await,
        Part::Original => original::measure(&mut target, &data, report).await,
        Part::Guards => guards::measure(&mut target, &data, report).await,
        Part::Flow => flow::measure(&data, report).await,
        Part::Memory => memory::measure(&mut target, &data, rss, report).await,
    }
}

/// Measures memory in a fresh process.
fn measure_apart(args: &RouterArgs, report: &mut Report) -> Result<()> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["bench", "router", "--only", "memory", "--json"]);
    if let Some(data) = &args.data {
        command.arg("--data").arg(data);
    }
    let output = command.stderr(Stdio::inherit()).output()?;
    let apart: Report = serde_json::from_slice(&output.stdout)?;
    report.append(apart);
    Ok(())
}
