//! Acked messages whose rows are still in their tables.
//!
//! To delete a row rewrites its page, and neighbouring rows are acked at different times. So an ack
//! is first written down in a byte or two, behind the others; the rows leave their tables later,
//! many neighbours at once. What is written down here counts as deleted: it is never handed out
//! again, also not by the next process.

use std::sync::Arc;

use rusqlite::Connection;

use super::queue::Queue;

/// Writes down that these rows of a queue are acked.
pub(super) fn add(sql: &Connection, queue: i64, seqs: &[u64]) -> Result<(), rusqlite::Error> {
    sql.prepare_cached("INSERT INTO acks (queue, seqs) VALUES (?, ?)")?
        .execute((queue, packed(seqs)))
        .map(drop)
}

/// What is written down of one queue.
pub(super) fn load(sql: &Connection, queue: i64) -> Result<Vec<u64>, rusqlite::Error> {
    let mut select = sql.prepare_cached("SELECT seqs FROM acks WHERE queue = ?")?;
    let mut rows = select.query([queue])?;
    let mut seqs = Vec::new();
    while let Some(row) = rows.next()? {
        unpack(row.get_ref(0)?.as_blob()?, &mut seqs);
    }
    Ok(seqs)
}

/// What is written down of one queue: all of it, in order and without repetition.
pub(super) struct Acked {
    pub(super) queue: Arc<Queue>,
    /// These rows leave their table.
    pub(super) go: Vec<u64>,
    /// These stay for now: their neighbours are about to be acked.
    pub(super) stay: Vec<u64>,
}

/// Takes rows out of their tables and writes down anew what stays. `acked` must be all there is.
/// Answers how many rows left each queue.
pub(super) fn purge(sql: &Connection, acked: &[Acked]) -> Result<Vec<usize>, rusqlite::Error> {
    sql.prepare_cached("DELETE FROM acks")?.execute([])?;
    let mut deleted = Vec::with_capacity(acked.len());
    for Acked { queue, go, stay } in acked {
        let mut delete = sql.prepare_cached(&queue.sql.delete_range)?;
        let mut rows = 0;
        for stretch in go.chunk_by(|a, b| a + 1 == *b) {
            let (first, last) = (stretch[0], stretch[stretch.len() - 1]);
            rows += delete.execute((first as i64, last as i64))?;
        }
        deleted.push(rows);
        if !stay.is_empty() {
            add(sql, queue.n, stay)?;
        }
    }
    Ok(deleted)
}

/// The distances between the sorted numbers, seven bits to a byte, the lowest first; the highest bit
/// says that more follow.
fn packed(seqs: &[u64]) -> Vec<u8> {
    let mut sorted = seqs.to_vec();
    sorted.sort_unstable();
    let mut bytes = Vec::with_capacity(sorted.len() * 2 + 8);
    let mut before = 0;
    for seq in sorted {
        let mut left = seq - before;
        while left >= 0x80 {
            bytes.push(left as u8 | 0x80);
            left >>= 7;
        }
        bytes.push(left as u8);
        before = seq;
    }
    bytes
}

fn unpack(bytes: &[u8], into: &mut Vec<u64>) {
    let (mut before, mut number, mut shift) = (0_u64, 0_u64, 0);
    for byte in bytes {
        number |= u64::from(byte & 0x7f).checked_shl(shift).unwrap_or(0);
        shift += 7;
        if byte & 0x80 == 0 {
            before = before.wrapping_add(number);
            into.push(before);
            (number, shift) = (0, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_packed_is_unpacked_in_order(mut seqs: Vec<u64>) {
            let mut read = Vec::new();
            unpack(&packed(&seqs), &mut read);
            seqs.sort_unstable();
            prop_assert_eq!(read, seqs);
        }
    }

    #[test]
    fn neighbours_take_a_byte_each() {
        let seqs: Vec<u64> = (1_000_000..1_000_100).collect();
        assert!(packed(&seqs).len() < 104);
    }
}
