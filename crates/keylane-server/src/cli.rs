//! The command line: what can be asked for, and how it ends.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::config::Layers;

/// Done.
pub(crate) const OK: u8 = 0;
/// It did not work out.
pub(crate) const FAILED: u8 = 1;
/// The command line or the config is wrong.
pub(crate) const BAD_USAGE: u8 = 2;
/// No server answered.
pub(crate) const NOT_REACHED: u8 = 3;
/// The server has no such thing.
pub(crate) const NOT_FOUND: u8 = 4;
/// The server will not do it.
pub(crate) const REFUSED: u8 = 5;

/// Messages in order per key, concurrently across keys.
#[derive(Debug, Parser)]
#[command(name = "keylane", version, args_conflicts_with_subcommands = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
    #[command(flatten)]
    pub(crate) serve: ServeArgs,
}

/// What can be asked for.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run the router (also without a command)
    Serve(ServeArgs),
    /// Make a live copy of a running server's queues and stores
    Backup(BackupArgs),
    /// Look at the config
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Check histories for lost, overtaken, overlapping and duplicated messages
    Verify(VerifyArgs),
    /// Measure what this machine and this version are good for
    #[command(subcommand)]
    Bench(crate::bench::BenchCommand),
}

/// What can be done with a config.
#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Say whether it is right, with everything that is wrong
    Check(ConfigArgs),
    /// Print all options in force and where each comes from
    Show(ConfigArgs),
}

/// How to serve.
#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    #[command(flatten)]
    pub(crate) config: ConfigArgs,
    /// Wait until the data folder's owner goes, then take over
    #[arg(long)]
    pub(crate) standby: bool,
    /// How the log is written; what is logged is set by KEYLANE_LOG or RUST_LOG (default: info)
    #[arg(
        long,
        value_name = "FORMAT",
        env = "KEYLANE_LOG_FORMAT",
        default_value = "text"
    )]
    pub(crate) log_format: LogFormat,
}

/// How the log is written, to the standard error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum LogFormat {
    /// For people.
    Text,
    /// A JSON object per line.
    Json,
}

/// Where the config comes from.
#[derive(Debug, Args)]
pub(crate) struct ConfigArgs {
    /// The config file; without it the defaults hold
    #[arg(long, value_name = "FILE", env = "KEYLANE_CONFIG")]
    config: Option<PathBuf>,
    /// Where the API listens, as 127.0.0.1:8080; port 0 picks a free one
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    /// The folder with queues and stores
    #[arg(long, value_name = "FOLDER")]
    data: Option<String>,
}

impl ConfigArgs {
    /// The config's layers: file, environment and flags.
    pub(crate) fn layers(self) -> Layers {
        let flags = [("listen", self.listen), ("data", self.data)];
        let text = |part: std::ffi::OsString| part.into_string().ok();
        let env = std::env::vars_os().filter_map(|(name, value)| Some((text(name)?, text(value)?)));
        Layers {
            file: self.config,
            env: env.collect(),
            flags: flags
                .into_iter()
                .filter_map(|(name, value)| Some((name, value?)))
                .collect(),
        }
    }
}

/// What to copy, and where to.
#[derive(Debug, Args)]
pub(crate) struct BackupArgs {
    /// The new file, on the server's machine; in a data folder as keylane.db it is opened like any
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

/// Which server to talk to.
#[derive(Debug, Args)]
pub(crate) struct ServerArgs {
    /// The server
    #[arg(
        long = "server",
        value_name = "URL",
        env = "KEYLANE_SERVER",
        default_value = "http://127.0.0.1:8080"
    )]
    pub(crate) url: String,
}

/// What to verify, and what was promised.
#[derive(Debug, Args)]
pub(crate) struct VerifyArgs {
    /// Histories as JSON Lines; several are one history, put together by time
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// Attempts of one key that may be under way together
    #[arg(long, value_name = "N", default_value = "1")]
    pub(crate) lane_concurrency: std::num::NonZeroUsize,
    /// Messages that may come again after one crash
    #[arg(long, value_name = "N")]
    pub(crate) max_duplicates_per_crash: Option<u64>,
    /// Where a history says that it was cut, messages without an end are not lost
    #[arg(long)]
    pub(crate) allow_unfinished: bool,
    /// A refusal ends its message (for histories without the router's own events)
    #[arg(long)]
    pub(crate) refused_resolves: bool,
    /// Print the report as JSON
    #[arg(long)]
    pub(crate) json: bool,
}
