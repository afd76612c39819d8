//! The checksum (Castagnoli) of Kafka's and Pulsar's messages.

pub(super) fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0_u32, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            (crc >> 1) ^ (0x82f6_3b78 * (crc & 1))
        })
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_check_value_of_the_catalogue_comes_out() {
        assert_eq!(super::crc32c(b"123456789"), 0xe306_9283);
    }
}
