//! Memory that will be needed is brought near before that: many pieces on their way at once are there
//! sooner than one after the other.

/// A hint that this address will be read or written.
#[inline]
#[cfg_attr(target_arch = "x86_64", allow(unsafe_code))]
pub(crate) fn fetch(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: whatever the address is, a hint reads nothing.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}
