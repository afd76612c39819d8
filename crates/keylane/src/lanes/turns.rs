//! Whose turn it is: tenants by deficit round robin, the ready lanes of each in turn.

use std::collections::HashMap;
use std::sync::Arc;

use super::Lane;
use super::slots::Slots;

/// "No lane" or "no tenant" in the links.
pub(super) const NONE: u32 = u32::MAX;
/// In place of the one before: not in the list. Fewer lanes than this fit into memory.
const UNLISTED: u32 = u32::MAX - 1;
/// The most lanes that one which becomes ready may go before.
const PASSES: usize = 16;
/// How long ago a start may seem to be: half of what can be told apart.
const LONG_AGO: u32 = 1 << 30;

/// A lane's place in its tenant's list of ready lanes.
#[derive(Clone, Copy)]
pub(super) struct Link {
    prev: u32,
    next: u32,
}

impl Link {
    pub(super) const OUT: Self = Self {
        prev: UNLISTED,
        next: NONE,
    };

    #[inline]
    pub(super) fn is_listed(self) -> bool {
        self.prev != UNLISTED
    }
}

struct Tenant {
    name: Option<Arc<str>>,
    weight: u32,
    /// Starts left in its present turn.
    deficit: u32,
    /// Ready lanes, first to last.
    head: u32,
    tail: u32,
    /// Neighbours among the tenants that have ready lanes.
    prev: u32,
    next: u32,
    /// Lanes that belong to it, ready or not.
    lanes: u32,
}

/// The ready lanes in the order in which they are served.
pub(super) struct Turns {
    tenants: Slots<Tenant>,
    names: HashMap<Arc<str>, u32>,
    /// The tenants with ready lanes, a ring cut open: first is served next.
    first: u32,
    last: u32,
    ready: usize,
    /// How many starts there were, round and round.
    starts: u32,
}

impl Turns {
    pub(super) fn new() -> Self {
        let mut turns = Self {
            tenants: Slots::new(),
            names: HashMap::new(),
            first: NONE,
            last: NONE,
            ready: 0,
            starts: 0,
        };
        let nobody = turns.tenants.insert(Tenant::new(None, 1));
        debug_assert_eq!(nobody, 0, "lanes without a tenant belong to tenant 0");
        turns
    }

    /// How many lanes are ready.
    #[inline]
    pub(super) fn ready(&self) -> usize {
        self.ready
    }

    pub(super) fn tenants(&self) -> usize {
        self.names.len()
    }

    /// A lane of this tenant was made.
    pub(super) fn join(&mut self, name: Option<Arc<str>>, weight: u32) -> u32 {
        let Some(name) = name else {
            return 0;
        };
        let index = match self.names.get(&name) {
            Some(&index) => index,
            None => {
                let index = self.tenants.insert(Tenant::new(Some(name.clone()), weight));
                self.names.insert(name, index);
                index
            }
        };
        let tenant = &mut self.tenants[index];
        tenant.weight = weight.max(1);
        tenant.deficit = tenant.deficit.min(tenant.weight);
        tenant.lanes += 1;
        index
    }

    /// A lane of this tenant is gone; a tenant without lanes leaves nothing behind.
    pub(super) fn leave(&mut self, index: u32) {
        if index == 0 {
            return;
        }
        let tenant = &mut self.tenants[index];
        tenant.lanes -= 1;
        if tenant.lanes == 0 {
            let name = tenant.name.take().expect("tenant 0 never leaves");
            self.names.remove(&name);
            self.tenants.remove(index);
        }
    }

    /// The lane to serve next.
    #[inline]
    pub(super) fn peek(&self) -> Option<u32> {
        (self.first != NONE).then(|| self.tenants[self.first].head)
    }

    /// The number of the latest start: what a new lane is said to have had, so that it comes behind
    /// those that are ready.
    #[inline]
    pub(super) fn latest(&self) -> u32 {
        self.starts
    }

    /// The first tenant's turn was used by one start of a lane; called before the lane moves. Answers
    /// the number of that start.
    #[inline]
    pub(super) fn served(&mut self) -> u32 {
        let number = self.served_alone();
        let first = self.first;
        let tenant = &mut self.tenants[first];
        if tenant.deficit == 0 {
            tenant.deficit = tenant.weight;
        }
        tenant.deficit -= 1;
        if tenant.deficit == 0 && self.last != first {
            self.unring(first);
            self.ring_last(first);
        }
        number
    }

    /// As [`Self::served`], of a lane that never was among the ready ones, because there are none.
    #[inline]
    pub(super) fn served_alone(&mut self) -> u32 {
        self.starts = self.starts.wrapping_add(1);
        self.starts
    }

    /// The lane became ready: it goes behind the others, but before those of the last few that had
    /// their start after its own. Runs that began one after the other end at nearly the same time, in
    /// any order; their lanes keep their turns all the same.
    #[inline]
    pub(super) fn push_back<K, J>(&mut self, lanes: &mut Slots<Lane<K, J>>, index: u32) {
        let long_ago = self.starts.wrapping_sub(LONG_AGO);
        let lane = &mut lanes[index];
        if self.starts.wrapping_sub(lane.started) > LONG_AGO {
            lane.started = long_ago;
        }
        let (tenant, since) = (lane.tenant, lane.started.wrapping_sub(long_ago));
        let mut prev = self.tenants[tenant].tail;
        let mut next = NONE;
        for _ in 0..PASSES {
            if prev == NONE || lanes[prev].started.wrapping_sub(long_ago) <= since {
                break;
            }
            next = prev;
            prev = lanes[prev].link.prev;
        }
        self.insert(lanes, index, tenant, Link { prev, next });
        if prev == NONE && next == NONE {
            self.ring_last(tenant);
        }
    }

    /// Between these two.
    #[inline]
    fn insert<K, J>(&mut self, lanes: &mut Slots<Lane<K, J>>, index: u32, tenant: u32, link: Link) {
        let Link { prev, next } = link;
        lanes[index].link = link;
        let tenant = &mut self.tenants[tenant];
        match prev {
            NONE => tenant.head = index,
            _ => lanes[prev].link.next = index,
        }
        match next {
            NONE => tenant.tail = index,
            _ => lanes[next].link.prev = index,
        }
        self.ready += 1;
    }

    pub(super) fn push_front<K, J>(&mut self, lanes: &mut Slots<Lane<K, J>>, index: u32) {
        let tenant = lanes[index].tenant;
        let head = self.tenants[tenant].head;
        if head == NONE {
            return self.push_back(lanes, index);
        }
        let link = Link {
            prev: NONE,
            next: head,
        };
        self.insert(lanes, index, tenant, link);
    }

    #[inline]
    pub(super) fn remove<K, J>(&mut self, lanes: &mut Slots<Lane<K, J>>, index: u32) {
        let lane = &mut lanes[index];
        let Link { prev, next, .. } = std::mem::replace(&mut lane.link, Link::OUT);
        let tenant_index = lane.tenant;
        let tenant = &mut self.tenants[tenant_index];
        match prev {
            NONE => tenant.head = next,
            _ => lanes[prev].link.next = next,
        }
        match next {
            NONE => tenant.tail = prev,
            _ => lanes[next].link.prev = prev,
        }
        if tenant.head == NONE {
            // What is left of its turn is not saved up.
            tenant.deficit = 0;
            self.unring(tenant_index);
        }
        self.ready -= 1;
    }

    fn ring_last(&mut self, index: u32) {
        let last = self.last;
        let tenant = &mut self.tenants[index];
        tenant.prev = last;
        tenant.next = NONE;
        match last {
            NONE => self.first = index,
            _ => self.tenants[last].next = index,
        }
        self.last = index;
    }

    fn unring(&mut self, index: u32) {
        let (prev, next) = (self.tenants[index].prev, self.tenants[index].next);
        match prev {
            NONE => self.first = next,
            _ => self.tenants[prev].next = next,
        }
        match next {
            NONE => self.last = prev,
            _ => self.tenants[next].prev = prev,
        }
    }
}

impl Tenant {
    fn new(name: Option<Arc<str>>, weight: u32) -> Self {
        Self {
            name,
            weight: weight.max(1),
            deficit: 0,
            head: NONE,
            tail: NONE,
            prev: NONE,
            next: NONE,
            lanes: 0,
        }
    }
}

impl Turns {
    /// The lane stays ready, but it is the turn of those behind it.
    pub(super) fn move_back<K, J>(&mut self, lanes: &mut Slots<Lane<K, J>>, index: u32) {
        let tenant_index = lanes[index].tenant;
        let Link { prev, next, .. } = lanes[index].link;
        if next == NONE {
            return;
        }
        match prev {
            NONE => self.tenants[tenant_index].head = next,
            _ => lanes[prev].link.next = next,
        }
        lanes[next].link.prev = prev;
        let tail = self.tenants[tenant_index].tail;
        lanes[tail].link.next = index;
        lanes[index].link.prev = tail;
        lanes[index].link.next = NONE;
        self.tenants[tenant_index].tail = index;
    }
}
