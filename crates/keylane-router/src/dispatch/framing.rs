//! Where the body of an HTTP/1 answer ends (RFC 9112, sections 6 and 7).

use super::body::Answer;

/// The longest line of a chunk's size with what may stand behind it, and all trailers together.
const LONGEST_LINE: usize = 4 << 10;
const LONGEST_TRAILERS: usize = 16 << 10;

/// What is left of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Framing {
    /// So many bytes.
    Length(u64),
    /// Whatever comes until the peer ends the connection.
    UntilEnd,
    /// Chunks, each with its size.
    Chunked(Chunk),
}

/// Where in its chunks a body is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Chunk {
    /// Before the line that says how large the next one is.
    Size,
    /// So much of it is to come.
    Data(u64),
    /// Before the end of its last line.
    DataEnd,
    /// Behind the last chunk, with so many bytes of trailers read.
    Trailers(usize),
}

/// The peer does not keep to the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed;

/// How far a piece of a body went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// More is to come.
    More,
    /// The body ends here.
    Whole,
}

impl Framing {
    /// Takes what it can of these bytes: how many, and whether that was all.
    pub(super) fn take(
        &mut self,
        bytes: &[u8],
        answer: &mut Answer,
        limit: usize,
    ) -> Result<(usize, Progress), Malformed> {
        match self {
            Self::Length(left) => {
                let (used, _) = piece(left, bytes, answer, limit);
                Ok((used, progress(*left == 0)))
            }
            Self::UntilEnd => {
                answer.copy(bytes, limit);
                Ok((bytes.len(), Progress::More))
            }
            Self::Chunked(chunk) => chunk.take(bytes, answer, limit),
        }
    }

    /// Whether it is whole if the connection ends here.
    pub(super) fn may_end(self) -> bool {
        matches!(self, Self::UntilEnd | Self::Length(0))
    }
}

fn progress(whole: bool) -> Progress {
    match whole {
        true => Progress::Whole,
        false => Progress::More,
    }
}

/// As much as is left of one length; answers how much, and the rest.
fn piece<'a>(
    left: &mut u64,
    bytes: &'a [u8],
    answer: &mut Answer,
    limit: usize,
) -> (usize, &'a [u8]) {
    let most = usize::try_from(*left).unwrap_or(usize::MAX);
    let (data, rest) = bytes.split_at(bytes.len().min(most));
    answer.copy(data, limit);
    *left -= data.len() as u64;
    (data.len(), rest)
}

impl Chunk {
    fn take(
        &mut self,
        bytes: &[u8],
        answer: &mut Answer,
        limit: usize,
    ) -> Result<(usize, Progress), Malformed> {
        let mut rest = bytes;
        loop {
            let before = rest.len();
            match self {
                Self::Data(left) => {
                    (_, rest) = piece(left, rest, answer, limit);
                    if *left == 0 {
                        *self = Self::DataEnd;
                    }
                }
                Self::Size => {
                    if let Some((line, behind)) = line(rest, LONGEST_LINE)? {
                        rest = behind;
                        *self = match size(line)? {
                            0 => Self::Trailers(0),
                            size => Self::Data(size),
                        };
                    }
                }
                Self::DataEnd => {
                    if let Some((end, behind)) = line(rest, 2)? {
                        if !end.is_empty() {
                            return Err(Malformed);
                        }
                        rest = behind;
                        *self = Self::Size;
                    }
                }
                Self::Trailers(read) => {
                    let most = LONGEST_TRAILERS - *read;
                    if let Some((trailer, behind)) = line(rest, most)? {
                        rest = behind;
                        if trailer.is_empty() {
                            return Ok((bytes.len() - rest.len(), Progress::Whole));
                        }
                        *read = (*read + trailer.len() + 2).min(LONGEST_TRAILERS);
                    }
                }
            }
            if rest.len() == before {
                return Ok((bytes.len() - rest.len(), Progress::More));
            }
        }
    }
}

/// A line without its end, and what is behind it.
type Line<'a> = (&'a [u8], &'a [u8]);

/// The first line; `None` when it is not all there.
fn line(bytes: &[u8], longest: usize) -> Result<Option<Line<'_>>, Malformed> {
    let Some(end) = bytes.iter().take(longest).position(|byte| *byte == b'\n') else {
        return match bytes.len() < longest {
            true => Ok(None),
            false => Err(Malformed),
        };
    };
    match bytes[..end].strip_suffix(b"\r") {
        Some(line) => Ok(Some((line, &bytes[end + 1..]))),
        None => Err(Malformed),
    }
}

/// The size in a chunk's first line: hexadecimal, perhaps with extensions behind it.
fn size(line: &[u8]) -> Result<u64, Malformed> {
    let digits = line.split(|byte| *byte == b';').next().unwrap_or_default();
    let digits = digits.trim_ascii_end();
    if digits.is_empty() || digits.len() > 16 {
        return Err(Malformed);
    }
    digits.iter().try_fold(0_u64, |size, digit| {
        let digit = char::from(*digit).to_digit(16).ok_or(Malformed)?;
        Ok(size << 4 | u64::from(digit))
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIMIT: usize = 1 << 20;

    /// What is read of a body that comes in pieces of this length, and what is behind it.
    fn read(
        mut framing: Framing,
        bytes: &[u8],
        step: usize,
    ) -> Result<(Vec<u8>, Vec<u8>, Progress), Malformed> {
        let mut answer = Answer::default();
        let (mut there, mut progress) = (Vec::new(), Progress::More);
        let mut pieces = bytes.chunks(step);
        while progress == Progress::More {
            let Some(piece) = pieces.next() else { break };
            there.extend_from_slice(piece);
            let (used, how) = framing.take(&there, &mut answer, LIMIT)?;
            there.drain(..used);
            progress = how;
        }
        Ok((answer.bytes().to_vec(), there, progress))
    }

    fn chunked(bytes: &[u8], step: usize) -> Result<(Vec<u8>, Vec<u8>, Progress), Malformed> {
        read(Framing::Chunked(Chunk::Size), bytes, step)
    }

    #[test]
    fn chunks_are_joined_however_they_come() {
        let bytes = b"4\r\nWiki\r\n7;name=value\r\npedia i\r\n00B\r\nn \r\nchunks.\r\n0\r\nx: y\r\n\r\nHTTP";
        for step in 1..=bytes.len() {
            let (body, rest, progress) = chunked(bytes, step).unwrap();
            assert_eq!(progress, Progress::Whole);
            assert_eq!(body, b"Wikipedia in \r\nchunks.");
            // What stands behind the body is not of it.
            assert!(b"HTTP".starts_with(&rest), "{rest:?}");
        }
    }

    #[test]
    fn what_is_no_chunk_is_an_error() {
        let endless = [b"1;".as_slice(), &[b'a'; LONGEST_LINE]].concat();
        let trailers = [b"0\r\n".as_slice(), &b"a: b\r\n".repeat(3000)].concat();
        for bytes in [
            b"x\r\n".as_slice(),
            b"\r\n",
            b"-1\r\n",
            b"4\nWiki\r\n",
            b"4\r\nWikipedia",
            b"4\r\nWiki\n0\r\n\r\n",
            b"11111111111111111\r\n",
            &endless,
            &trailers,
        ] {
            assert_eq!(chunked(bytes, bytes.len()), Err(Malformed), "{bytes:?}");
        }
    }

    #[test]
    fn a_length_is_a_length() {
        for step in 1..8 {
            let (body, rest, progress) = read(Framing::Length(5), b"abcdefg", step).unwrap();
            assert_eq!((&*body, progress), (&b"abcde"[..], Progress::Whole));
            assert!(b"fg".starts_with(&rest));
        }
        let (_, _, progress) = read(Framing::Length(5), b"abc", 1).unwrap();
        assert_eq!(progress, Progress::More);
        assert!(!Framing::Length(2).may_end());
        assert!(Framing::UntilEnd.may_end());
    }

    proptest! {
        #[test]
        fn what_was_cut_into_chunks_is_put_together(parts: Vec<Vec<u8>>, step in 1_usize..64) {
            let mut bytes = Vec::new();
            for part in parts.iter().filter(|part| !part.is_empty()) {
                bytes.extend_from_slice(format!("{:x}\r\n", part.len()).as_bytes());
                bytes.extend_from_slice(part);
                bytes.extend_from_slice(b"\r\n");
            }
            bytes.extend_from_slice(b"0\r\n\r\n");
            let (body, _, progress) = chunked(&bytes, step).unwrap();
            prop_assert_eq!(body, parts.concat());
            prop_assert_eq!(progress, Progress::Whole);
        }

        #[test]
        fn no_bytes_make_it_panic_or_use_more_than_there_are(bytes: Vec<u8>, step in 1_usize..16) {
            let _ = chunked(&bytes, step);
        }
    }
}
