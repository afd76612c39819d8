//! The simulation. Reading order: [`case`] is what is simulated, [`draw`] makes one from a seed,
//! [`world`] is what all models share, `broker`, `door`, `store`, `target` and `machine` are the
//! models around the router, [`run`](mod@run) drives one case, [`judge`] reads its history, [`cover`] counts
//! what was drawn, [`shrink`] makes a failing case small.

mod broker;
pub mod case;
mod chance;
pub mod cover;
mod door;
pub mod draw;
pub mod judge;
mod machine;
pub mod run;
pub mod shrink;
mod store;
mod target;
pub mod world;
