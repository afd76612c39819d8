//! The tests of the crate, in one program.

mod lanes_cost;
mod lanes_model;
