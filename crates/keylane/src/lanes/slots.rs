//! Numbered places for lanes, in chunks that are given back when they are empty.

use std::mem;

const CHUNK: usize = 64;

/// Like a slab, but its memory follows what it holds: a chunk whose last entry leaves is freed.
pub(super) struct Slots<T> {
    chunks: Vec<Chunk<T>>,
    /// What is used of each chunk.
    uses: Vec<Use>,
    /// Chunks that have a free place.
    open: Vec<u32>,
    /// How many chunks have memory.
    filled: usize,
    len: usize,
}

/// `None` when the chunk's memory was given back.
type Chunk<T> = Option<Box<[Option<T>; CHUNK]>>;

struct Use {
    /// One bit per place.
    places: u64,
    /// Whether `open` names this chunk.
    listed: bool,
}

impl<T> Slots<T> {
    pub(super) fn new() -> Self {
        Self {
            chunks: Vec::new(),
            uses: Vec::new(),
            open: Vec::new(),
            filled: 0,
            len: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn insert(&mut self, value: T) -> u32 {
        let at = self.open_chunk();
        let used = &mut self.uses[at];
        let bit = (!used.places).trailing_zeros() as usize;
        used.places |= 1 << bit;
        if used.places == u64::MAX {
            used.listed = false;
            self.open.pop();
        }
        let chunk = self.chunks[at].get_or_insert_with(|| {
            self.filled += 1;
            Box::new([const { None }; CHUNK])
        });
        chunk[bit] = Some(value);
        self.len += 1;
        (at * CHUNK + bit) as u32
    }

    /// Drops it where it is.
    pub(super) fn remove(&mut self, index: u32) {
        let (at, bit) = split(index);
        let chunk = &mut self.chunks[at];
        let used = &mut self.uses[at];
        assert!(used.places & (1 << bit) != 0, "a live index");
        used.places &= !(1 << bit);
        self.len -= 1;
        if let Some(chunk) = chunk {
            chunk[bit] = None;
        }
        // Two chunks stay in reserve, so that a lone entry that comes and goes allocates nothing.
        if used.places == 0 && self.filled * CHUNK > self.len + 2 * CHUNK {
            *chunk = None;
            self.filled -= 1;
        }
        if !mem::replace(&mut used.listed, true) {
            self.open.push(at as u32);
        }
    }

    #[inline]
    pub(super) fn get(&self, index: u32) -> Option<&T> {
        let (at, bit) = split(index);
        self.chunks.get(at)?.as_ref()?[bit].as_ref()
    }

    #[inline]
    pub(super) fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        let (at, bit) = split(index);
        self.chunks.get_mut(at)?.as_mut()?[bit].as_mut()
    }

    pub(super) fn indices(&self) -> Vec<u32> {
        let live = |(at, used): (usize, &Use)| {
            let places = used.places;
            (0..CHUNK)
                .filter(move |bit| places & (1 << bit) != 0)
                .map(move |bit| (at * CHUNK + bit) as u32)
        };
        let mut indices = Vec::with_capacity(self.len);
        indices.extend(self.uses.iter().enumerate().flat_map(live));
        indices
    }

    /// A chunk with a free place; made where there is none.
    fn open_chunk(&mut self) -> usize {
        if let Some(&at) = self.open.last() {
            return at as usize;
        }
        self.chunks.push(None);
        self.uses.push(Use {
            places: 0,
            listed: true,
        });
        self.open.push((self.chunks.len() - 1) as u32);
        self.chunks.len() - 1
    }
}

impl<T> std::ops::Index<u32> for Slots<T> {
    type Output = T;

    #[inline]
    fn index(&self, index: u32) -> &T {
        self.get(index).expect("a live index")
    }
}

impl<T> std::ops::IndexMut<u32> for Slots<T> {
    #[inline]
    fn index_mut(&mut self, index: u32) -> &mut T {
        self.get_mut(index).expect("a live index")
    }
}

#[inline]
fn split(index: u32) -> (usize, usize) {
    (index as usize / CHUNK, index as usize % CHUNK)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn holds_what_was_inserted_whatever_came_and_went() {
        let mut slots = Slots::new();
        let mut model = HashMap::new();
        let mut state = 1_u64;
        for step in 0..20_000_u64 {
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            let grow = (step / 2_000).is_multiple_of(2);
            if model.is_empty() || (state >> 33) % 10 < if grow { 7 } else { 3 } {
                let index = slots.insert(step);
                assert!(
                    model.insert(index, step).is_none(),
                    "index {index} was in use"
                );
            } else {
                let index = *model
                    .keys()
                    .nth((state >> 40) as usize % model.len())
                    .unwrap();
                assert_eq!(slots[index], model.remove(&index).unwrap());
                slots.remove(index);
            }
            assert_eq!(slots.len(), model.len());
        }
        let mut live = slots.indices();
        live.sort_unstable();
        let mut expected: Vec<u32> = model.keys().copied().collect();
        expected.sort_unstable();
        assert_eq!(live, expected);
    }

    #[test]
    fn gives_memory_back_when_emptied() {
        let mut slots = Slots::new();
        let all: Vec<u32> = (0..10_000).map(|n| slots.insert(n)).collect();
        for &index in &all[1..] {
            slots.remove(index);
        }
        let held = slots.chunks.iter().flatten().count();
        assert!(held <= 3, "{held} chunks for one entry");
    }
}
