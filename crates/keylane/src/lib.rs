//! Tasks in order per key, concurrently across keys.

pub mod lanes;
