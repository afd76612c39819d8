//! Build and test commands of the project: `cargo xtask help`.
fn main() {}
