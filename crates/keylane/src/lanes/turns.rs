//! Whose turn it is: tenants by deficit round robin, the ready lanes of each in turn.

use std::collections::HashMap;
use std::sync::Arc;

use super::Lane;
use super::slots::Slots;

/// "No lane" or "no tenant" in the links.
pub(super) const NONE: u32 = u32::MAX;

/// A lane's place in its tenant's list of ready lanes.
#[derive(Clone, Copy)]
pub(super) struct Link {
    prev: u32,
    next: u32,
    pub(super) listed: bool,
}

impl Link {
    pub(super) const OUT: Self = Self {
        prev: NONE,
        next: NONE,
        listed: false,
    };
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
}

impl Turns {
    pub(super) fn new() -> Self {
        let mut turns = Self {
            tenants: Slots::new(),
            names: HashMap::new(),
            first: NONE,
            last: NONE,
            ready: 0,
        };
        let nobody = turns.tenants.insert(Tenant::new(None, 1));
        debug_assert_eq!(nobody, 0, "lanes without a tenant belong to tenant 0");
        turns
    }

    /// How many lanes are ready.
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
            let gone = self.tenants.remove(index);
            self.names
                .remove(&gone.name.expect("tenant 0 never leaves"));
        }
    }

    /// The lane to serve next.
    pub(super) fn peek(&self) -> Option<u32> {
        (self.first != NONE).then(|| self.tenants[self.first].head)
    }

    /// The first tenant's turn was used by one start of `lane`; called before the lane moves.
    pub(super) fn served(&mut self) {
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
    }

    pub(super) fn push_back<K, J>(&mut self, lanes: &mut Slots<Lane<K, J>>, index: u32) {
        let lane = &mut lanes[index];
        let tenant_index = lane.tenant;
        let tenant = &mut self.tenants[tenant_index];
        let tail = std::mem::replace(&mut tenant.tail, index);
        lane.link = Link {
            prev: tail,
            next: NONE,
            listed: true,
        };
        self.ready += 1;
        if tail == NONE {
            tenant.head = index;
            self.ring_last(tenant_index);
        } else {
            lanes[tail].link.next = index;
        }
    }

    pub(super) fn push_front<K, J>(&mut self, lanes: &mut Slots<Lane<K, J>>, index: u32) {
        let tenant_index = lanes[index].tenant;
        let head = self.tenants[tenant_index].head;
        if head == NONE {
            return self.push_back(lanes, index);
        }
        lanes[index].link = Link {
            prev: NONE,
            next: head,
            listed: true,
        };
        lanes[head].link.prev = index;
        self.tenants[tenant_index].head = index;
        self.ready += 1;
    }

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
