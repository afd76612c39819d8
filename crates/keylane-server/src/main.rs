//! The program `keylane`: reads the command line and hands over to the command.

mod api;
mod backup;
mod bench;
mod brokers;
mod cli;
mod client;
mod config;
mod log;
mod memory;
mod reload;
mod serve;
mod signals;
mod sources;
mod verify;

use std::process::ExitCode;

use clap::Parser as _;

use cli::{Cli, Command, ConfigCommand};

fn main() -> ExitCode {
    let cli = Cli::parse();
    let code = match cli.command.unwrap_or(Command::Serve(cli.serve)) {
        Command::Serve(args) => {
            memory::use_little();
            serve::run(args)
        }
        Command::Backup(args) => backup::run(&args),
        Command::Config(ConfigCommand::Check(args)) => config::command::check(args.layers()),
        Command::Config(ConfigCommand::Show(args)) => config::command::show(args.layers()),
        Command::Verify(args) => verify::run(&args),
        Command::Bench(command) => {
            // What is measured is what serves.
            memory::use_little();
            bench::run(&command)
        }
    };
    ExitCode::from(code)
}
