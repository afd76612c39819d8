//! How fast the embedded queue publishes, claims and acks.

fn main() {}
