//! The program `keylane`.
fn main() {}
