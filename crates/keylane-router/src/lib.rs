//! Messages in from sources, through named pools, out to their targets: in order per key.
