//! `cargo xtask simulate`: the whole router in a simulation, from seeds or scenario files.

use crate::process::cargo;
use crate::{Answer, Result};

/// Builds the simulator optimised and hands it the arguments.
pub(crate) fn run(args: &[&str]) -> Result<Answer> {
    let mut simulate = cargo();
    simulate.args([
        "run",
        "--release",
        "--quiet",
        "--package",
        "keylane-testkit",
    ]);
    simulate.args(["--bin", "simulate", "--"]).args(args);
    Ok(match simulate.status()?.success() {
        true => Answer::Good,
        false => Answer::Bad,
    })
}
