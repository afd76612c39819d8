//! Test kit of Keylane: runs the whole router in a simulation.
//!
//! [`simulate`] draws a configuration, traffic, faults and operator's acts from a seed, runs the
//! real router with the real embedded queue and store on a paused clock, and judges what happened.
//! `cargo xtask simulate` is its command.

pub mod simulate;
