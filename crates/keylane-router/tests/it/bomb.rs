//! A gzip bomb: little to send, much to unpack.

/// Zeros that unpack to `size` bytes: 13 bits for each 258 of them.
pub(crate) fn gzip(size: usize) -> Vec<u8> {
    let mut bits = Bits {
        bytes: vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3],
        used: 8,
    };
    // The last block, with fixed codes.
    bits.push(0b011, 3);
    // A zero, and then the byte before again and again.
    bits.code(0b0011_0000, 8);
    for _ in 0..size / 258 {
        bits.code(0b1100_0101, 8);
        bits.code(0, 5);
    }
    bits.code(0, 7);
    let mut bytes = bits.bytes;
    bytes.extend([0; 4]);
    bytes.extend(u32::try_from(size / 258 * 258 + 1).unwrap().to_le_bytes());
    bytes
}

struct Bits {
    bytes: Vec<u8>,
    /// Of the last byte.
    used: u8,
}

impl Bits {
    fn push(&mut self, bits: u16, count: u8) {
        for at in 0..count {
            if self.used == 8 {
                self.bytes.push(0);
                self.used = 0;
            }
            let last = self.bytes.last_mut().unwrap();
            *last |= u8::from(bits >> at & 1 == 1) << self.used;
            self.used += 1;
        }
    }

    /// A code of Huffman's, which begins with its highest bit.
    fn code(&mut self, code: u16, count: u8) {
        for at in (0..count).rev() {
            self.push(code >> at & 1, 1);
        }
    }
}

#[test]
fn a_bomb_is_small_and_unpacks_to_much() {
    let bomb = gzip(32 << 20);
    assert!(bomb.len() < 256 << 10, "{}", bomb.len());
    assert_eq!(bomb[..3], [0x1f, 0x8b, 8]);
}
