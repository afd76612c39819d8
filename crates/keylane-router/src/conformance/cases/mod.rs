//! The cases, by what they are about.

mod order;
mod redelivery;

use super::suite::{Case, On};

/// Makes the list of cases, and the macro that makes a test of each.
macro_rules! cases {
    (($d:tt) $( #[doc = $asks:literal] $module:ident :: $name:ident on $on:ident; )*) => {
        /// All cases, in the order in which they are best read.
        pub static CASES: &[Case] = &[$(
            Case {
                name: stringify!($name),
                asks: $asks,
                on: On::$on,
                run: |rig| Box::pin($module::$name(rig)),
            },
        )*];

        /// Makes one test of each case of the [conformance suite](crate::conformance) for the
        /// subject that the expression makes.
        #[macro_export]
        macro_rules! conformance_tests {
            ($d subject:expr) => {
                $(
                    #[test]
                    fn $name() {
                        $crate::conformance::test($d subject, stringify!($name));
                    }
                )*
            };
        }
    };
}

cases! {
    ($)
    #[doc = "200 keys, heads that fail by chance with their followers already received: each key in order, nothing lost"]
    order::order_with_failing_heads on AnyClock;
    #[doc = "a head that fails for good goes back with everything behind it and comes first again; where there is no return, the config is refused"]
    order::return_with_cascade on AnyClock;
    #[doc = "a head that fails for good becomes a dead letter, and its key goes on"]
    order::dead_letter on AnyClock;
    #[doc = "a message that comes again while it runs is called once"]
    redelivery::redelivered_while_running on AnyClock;
    #[doc = "messages with equal ids in their bodies are two messages"]
    redelivery::equal_ids on AnyClock;
    #[doc = "an ack that is lost after the delivery does not lead to a second call"]
    redelivery::ack_lost on AnyClock;
}
