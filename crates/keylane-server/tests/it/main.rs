//! Runs the real program.

mod activemq;
mod backup;
mod config;
mod crash;
mod flowcatalyst;
#[cfg(target_os = "linux")]
mod full_disk;
mod http;
mod metrics;
mod publish;
mod rabbitmq;
mod reload;
mod secrets;
mod seed;
mod server;
mod sqs;
mod standby;
mod start;
mod stop;
mod test_targets;
mod verify;

use std::path::Path;
use std::process::{Command, Output};

/// The program with nothing of ours in its environment.
fn keylane(args: &[&str], folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_keylane"));
    command.args(args).current_dir(folder);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("KEYLANE_") {
            command.env_remove(name);
        }
    }
    command
}

fn run(args: &[&str], folder: &Path) -> (Option<i32>, String, String) {
    ended(keylane(args, folder).output().expect("the program runs"))
}

fn ended(output: Output) -> (Option<i32>, String, String) {
    let text = |bytes| String::from_utf8(bytes).expect("it prints text");
    (
        output.status.code(),
        text(output.stdout),
        text(output.stderr),
    )
}
