//! The program `keylane`: reads the command line and hands over to the command.

mod bench;
mod cli;
mod config;
mod verify;

use std::process::ExitCode;

use clap::Parser as _;

use cli::{BAD_USAGE, Cli, Command, ConfigArgs, ConfigCommand, FAILED};
use config::Config;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let code = match cli.command.unwrap_or(Command::Serve(cli.serve)) {
        Command::Serve(args) => serve(args),
        Command::Config(ConfigCommand::Check(args)) => config::command::check(args.layers()),
        Command::Config(ConfigCommand::Show(args)) => config::command::show(args.layers()),
        Command::Verify(args) => verify::run(&args),
        Command::Bench(command) => bench::run(&command),
    };
    ExitCode::from(code)
}

fn serve(args: ConfigArgs) -> u8 {
    let config = match Config::load(args.layers()) {
        Ok(config) => config,
        Err(problems) => {
            eprint!("{problems}");
            return BAD_USAGE;
        }
    };
    eprintln!(
        "serve is not built yet; it would listen on {}, keep its data in {}, run {} pools{}{}",
        config.listen,
        config.data.display(),
        config.plan.pools.len(),
        if config.dev.enabled {
            ", have the dev routes"
        } else {
            ""
        },
        if config.dev.create_queues {
            ", make unknown queues"
        } else {
            ""
        },
    );
    FAILED
}
