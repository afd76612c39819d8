//! What a history is made of: limits to begin with, and steps, each decoded from one word.
//!
//! Smaller numbers are simpler steps and wider limits, so that shrinking a word shrinks its step.

use std::sync::Arc;
use std::time::Duration;

use keylane::lanes::{Hold, LaneLimits, Limits, Rate, Spec, Time};

/// Keys are 0 … KEYS - 1.
pub(super) const KEYS: usize = 4;

/// Tenants are 0 (none) … TENANTS - 1.
pub(super) const TENANTS: usize = 3;

/// Histories that found something.
pub(super) const ONCE_RED: &[&[u64]] = &[
    // New limits ended a lane's wait for its rate, and the room of all did not count it.
    &[0, 0x200, 0x0042_433d, 0x11, 0x3c, 0x28, 0x11, 0x200],
    // A release did not reach a front held by the gate once another item was put back before it.
    &[0x40000, 0x300, 0x300, 0x11, 0xc011, 0x28, 0x332],
    // A tenant whose weight was lowered still had the starts of its old turn left.
    &[
        0,
        0x200,
        0x300,
        0x6410_0000_0000_003d,
        0,
        0xc011,
        0x0010_0000_0002_003d,
        0,
    ],
    // A lane held by the gate left room that was not given to those who waited for it.
    &[0x1c300, 0, 0x11, 0, 0x22, 0x20e, 0xc011],
    // New limits let items in before it was counted what other lanes take of the room.
    &[0x12_c000_0000, 0x100, 0, 0x10e, 0x2443d],
];

#[derive(Clone, Copy, Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "there is one step at a time, and `Copy` keeps the steps readable"
)]
pub(super) enum Step {
    Push { key: u8 },
    PushOver { key: u8 },
    StartNew { key: u8 },
    Next { later: u64, gate: Gate },
    Done { nth: usize },
    Hold { nth: usize, hold: HoldFor },
    FlushFrom { nth: usize, put_back: bool },
    Flush { key: u8 },
    FlushBehind { key: u8 },
    FlushAll,
    FlushDone { nth: usize, keep: u32 },
    Tick { later: u64 },
    Release { key: u8 },
    ReleaseWaiting { key: u8 },
    Pause { key: u8 },
    Resume { key: u8 },
    Cancel { nth: usize },
    TakeHead { key: u8, wanted: bool },
    Evict { key: u8 },
    EvictAll,
    Reconfigure(Setup),
    Watch { key: u8 },
}

/// A hold counted from now.
#[derive(Clone, Copy, Debug)]
pub(super) enum HoldFor {
    Nothing,
    /// From two before now on.
    TwoBefore(u64),
    UntilReleased,
}

/// What the gate answers, call by call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gate(u32);

/// All limits there are, of all and of each key.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setup {
    pub(super) total: usize,
    pub(super) queue: usize,
    pub(super) rate: Option<RateSetup>,
    pub(super) turn: u32,
    pub(super) lane: LaneSetup,
    pub(super) own: [Option<LaneSetup>; KEYS],
    pub(super) tenant: [u8; KEYS],
    pub(super) weight: [u32; TENANTS],
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct LaneSetup {
    pub(super) concurrency: usize,
    pub(super) queue: usize,
    pub(super) rate: Option<RateSetup>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct RateSetup {
    pub(super) count: u32,
    pub(super) per: u64,
    pub(super) burst: u32,
}

/// Takes a word apart, lowest bits first.
struct Bits(u64);

impl Bits {
    fn take(&mut self, bits: u32) -> u64 {
        let value = self.0 & ((1 << bits) - 1);
        self.0 >>= bits;
        value
    }

    fn key(&mut self) -> u8 {
        self.take(2) as u8
    }

    fn nth(&mut self) -> usize {
        self.take(8) as usize
    }

    /// Half of the time none at all.
    fn later(&mut self) -> u64 {
        self.take(4).saturating_sub(7)
    }
}

impl Step {
    pub(super) fn decode(word: u64) -> Self {
        let mut bits = Bits(word);
        let kind = bits.take(8) % 64;
        match kind {
            0..=10 => Self::Push { key: bits.key() },
            11..=13 => Self::StartNew { key: bits.key() },
            14..=16 => Self::PushOver { key: bits.key() },
            17..=33 => Self::Next {
                later: bits.later(),
                gate: Gate(bits.take(32) as u32),
            },
            34..=39 => Self::Done { nth: bits.nth() },
            40..=43 => Self::hold(&mut bits),
            44 => Self::FlushFrom {
                nth: bits.nth(),
                put_back: bits.take(1) == 1,
            },
            45 => match bits.take(1) {
                0 => Self::Flush { key: bits.key() },
                _ => Self::FlushBehind { key: bits.key() },
            },
            46..=47 => Self::FlushDone {
                nth: bits.nth(),
                keep: bits.take(32) as u32,
            },
            48..=49 => Self::Tick {
                later: bits.later(),
            },
            50..=51 => match (bits.key(), bits.take(1)) {
                (key, 0) => Self::Release { key },
                (key, _) => Self::ReleaseWaiting { key },
            },
            52 => Self::Pause { key: bits.key() },
            53..=54 => Self::Resume { key: bits.key() },
            55..=57 => Self::Cancel { nth: bits.nth() },
            58 => Self::TakeHead {
                key: bits.key(),
                wanted: bits.take(1) == 0,
            },
            59 => Self::Evict { key: bits.key() },
            60 => match bits.take(3) {
                0 => Self::EvictAll,
                1..=2 => Self::FlushAll,
                _ => Self::Watch { key: bits.key() },
            },
            _ => Self::Reconfigure(Setup::decode(word)),
        }
    }

    fn hold(bits: &mut Bits) -> Self {
        let nth = bits.nth();
        let hold = match bits.take(3) {
            0 => HoldFor::Nothing,
            1 => HoldFor::UntilReleased,
            _ => HoldFor::TwoBefore(bits.take(4)),
        };
        Self::Hold { nth, hold }
    }
}

impl HoldFor {
    pub(super) fn from(self, now: u64) -> Hold {
        match self {
            Self::Nothing => Hold::Free,
            Self::TwoBefore(later) => Hold::Until(Time((now + later).saturating_sub(2))),
            Self::UntilReleased => Hold::UntilReleased,
        }
    }
}

impl Gate {
    /// The gate that lets everything through.
    pub(super) const OPEN: Self = Self(0);

    pub(super) fn answer(self, call: usize, now: u64) -> Hold {
        let bits = self.0.checked_shr(4 * call as u32).unwrap_or(0) & 15;
        match bits {
            12 => Hold::Until(Time(now)),
            13 => Hold::Until(Time(now + 3)),
            14 => Hold::Until(Time(now + 9)),
            15 => Hold::UntilReleased,
            _ => Hold::Free,
        }
    }
}

impl Setup {
    /// The lowest eight bits say the kind of step and are not used.
    pub(super) fn decode(word: u64) -> Self {
        let mut bits = Bits(word >> 8);
        let total = match bits.take(3) {
            0..=2 => usize::MAX,
            7 => 0,
            n => n as usize - 2,
        };
        let turn = [1, 2, 3, 0][bits.take(2) as usize];
        Self {
            total,
            turn,
            queue: queue(&mut bits),
            rate: rate(&mut bits, [(1, 3, 2), (2, 5, 1)]),
            lane: LaneSetup::decode(&mut bits),
            own: [(); KEYS].map(|()| {
                let own = LaneSetup::decode(&mut bits);
                (bits.take(1) == 1).then_some(own)
            }),
            tenant: [(); KEYS].map(|()| (bits.take(2) % 3) as u8),
            weight: [1, bits.take(2) as u32, bits.take(2) as u32],
        }
    }

    pub(super) fn limits(&self) -> Limits {
        Limits {
            total: self.total,
            queue: self.queue,
            rate: self.rate.map(RateSetup::rate),
            turn: self.turn,
            lane: self.lane.limits(),
        }
    }

    pub(super) fn spec(&self, key: u8) -> Spec {
        let tenant = self.tenant[key as usize];
        let name = ["", "a", "b"][tenant as usize];
        Spec {
            limits: self.own[key as usize].map(|own| own.limits()),
            tenant: (tenant > 0).then(|| Arc::from(name)),
            weight: self.weight[tenant as usize],
        }
    }

    /// Whether this key's lane is like those of most keys.
    pub(super) fn is_plain(&self, key: u8) -> bool {
        self.own[key as usize].is_none() && self.tenant[key as usize] == 0
    }

    /// The limits of one key's lane.
    pub(super) fn of(&self, key: u8) -> LaneSetup {
        self.own[key as usize].unwrap_or(self.lane)
    }
}

impl LaneSetup {
    fn decode(bits: &mut Bits) -> Self {
        Self {
            concurrency: [1, 2, 3, 0][bits.take(2) as usize],
            queue: queue(bits),
            rate: rate(bits, [(1, 4, 1), (1, 5, 3)]),
        }
    }

    pub(super) fn limits(&self) -> LaneLimits {
        LaneLimits {
            concurrency: self.concurrency,
            queue: self.queue,
            rate: self.rate.map(RateSetup::rate),
        }
    }
}

impl RateSetup {
    fn rate(self) -> Rate {
        Rate::new(self.count, Duration::from_nanos(self.per), self.burst)
    }
}

fn queue(bits: &mut Bits) -> usize {
    [usize::MAX, usize::MAX, 0, 2][bits.take(2) as usize]
}

fn rate(bits: &mut Bits, choice: [(u32, u64, u32); 2]) -> Option<RateSetup> {
    let (count, per, burst) = match bits.take(2) {
        0 | 1 => return None,
        n => choice[n as usize - 2],
    };
    Some(RateSetup { count, per, burst })
}
