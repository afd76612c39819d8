//! The router on the embedded queue: real files, real HTTP; and on a test source where the
//! embedded queue cannot show a case.

mod cascade;
mod order;
mod test_source;
pub(crate) mod top;
