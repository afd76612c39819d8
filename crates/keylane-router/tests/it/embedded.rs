//! The embedded queue and its stores, on real files.

mod clock;
mod model;
