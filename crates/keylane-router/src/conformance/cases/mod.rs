//! The cases, by what they are about.

mod broken;
mod cuts;
mod ends;
mod instances;
mod leases;
mod odd;
mod order;
mod pressure;
mod redelivery;

use super::suite::{Case, On};

pub(super) use order::flaky;

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
    #[doc = "a key is parked whole, what arrives goes behind it, and a replay is in order"]
    order::park on AnyClock;
    #[doc = "a blocked head keeps its key waiting and nobody else"]
    order::block on AnyClock;
    #[doc = "a key that has no room goes to disk whole and comes back in order, while others go on"]
    order::spill on AnyClock;
    #[doc = "a source that waits for room in a lane goes on when there is some"]
    order::wait on AnyClock;
    #[doc = "with defaults, one failing key that could fill the window keeps nobody else waiting"]
    order::one_failing_key on AnyClock;
    #[doc = "with defaults, failing heads of more keys than the window holds keep nobody else waiting"]
    order::every_head_failing on AnyClock;
    #[doc = "what is held for longer than the lease is renewed, and comes once"]
    leases::lease_renewed on AnyClock;
    #[doc = "loans that end anyway: nothing runs twice at once, nothing is overtaken"]
    leases::lease_lost on AnyClock;
    #[doc = "renewals without an answer for two leases: nothing runs twice at once, nothing is overtaken"]
    leases::renewals_lost on AnyClock;
    #[doc = "the broker is away for two leases: nothing begins or is acked on a loan that is over, nothing is overtaken, nothing is called again that was delivered"]
    leases::lease_lost_while_away on AnyClock;
    #[doc = "a message that comes again while it runs is called once"]
    redelivery::redelivered_while_running on AnyClock;
    #[doc = "messages with equal ids in their bodies are two messages"]
    redelivery::equal_ids on AnyClock;
    #[doc = "an ack that is lost after the delivery does not lead to a second call"]
    redelivery::ack_lost on AnyClock;
    #[doc = "connections cut before messages are asked for"]
    cuts::cut_before_receive on AnyClock;
    #[doc = "connections cut while messages are held"]
    cuts::cut_while_holding on AnyClock;
    #[doc = "connections cut while acks are under way"]
    cuts::cut_while_settling on AnyClock;
    #[doc = "connections cut while loans are renewed"]
    cuts::cut_while_renewing on AnyClock;
    #[doc = "the broker is stopped and started"]
    cuts::broker_stopped_and_started on StoppedBroker;
    #[doc = "the broker is killed and started"]
    cuts::broker_killed on KilledBroker;
    #[doc = "the router is stopped under load: what runs ends, the next router finds the rest, nothing comes twice"]
    ends::router_drained on AnyClock;
    #[doc = "the router is killed under load, as a process: the next one finds everything and repeats no more than was under way"]
    ends::router_killed on RealClock;
    #[doc = "another instance joins; where the queue has one owner, it is refused"]
    instances::instance_joins on RealClock;
    #[doc = "one of two instances leaves"]
    instances::instance_leaves on RealClock;
    #[doc = "one of two instances dies"]
    instances::instance_dies on RealClock;
    #[doc = "one of two instances stands still for longer than its leases, and goes on"]
    instances::instance_frozen on RealClock;
    #[doc = "bodies that are no message, empty, not UTF-8 are dead letters as they came; 1 MiB is delivered"]
    odd::odd_bodies on AnyClock;
    #[doc = "keys absent, empty, blank, of 1 KiB, Unicode, any bytes: each in order"]
    odd::odd_keys on AnyClock;
    #[doc = "the broker's own key wins over the one in the body"]
    odd::attribute_wins on AnyClock;
    #[doc = "envelope = \"raw\": the body is the payload, as it is"]
    odd::raw_envelope on AnyClock;
    #[doc = "20,000 messages wait: nothing is received that cannot be held"]
    pressure::back_pressure on AnyClock;
    #[doc = "many large messages wait: the memory of a router, as a process, does not grow with them"]
    pressure::memory_is_bounded on RealClock;
    #[doc = "a wrong password is said once, harms no other source, and is over when it is right"]
    broken::wrong_password on OneThread;
    #[doc = "a deleted queue is said once, harms no other source, and is over when it is there again"]
    broken::queue_deleted on OneThread;
    #[doc = "a broker that is gone for 5 s is said once, harms no other source, and is asked again less and less often"]
    broken::broker_gone on OneThread;
}
