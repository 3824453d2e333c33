//! Kafka requests in a stream of bytes: each is its length (four bytes), its API key (two) and the
//! rest ([protocol](https://kafka.apache.org/protocol#protocol_common)).

use std::time::Duration;

/// What happens to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disturbance {
    /// The broker never gets it, and the connection ends.
    LoseRequest,
    /// The broker gets it, its reply is lost, and the connection ends.
    LoseReply,
    /// The reply takes that long.
    DelayReply(Duration),
    /// The connection ends, and the broker gets the request that much later. Only for a request
    /// that comes alone.
    LateRequest(Duration),
}

/// Whether these bytes are one request and nothing else.
pub(super) fn is_one_request(bytes: &[u8]) -> bool {
    let length = bytes.first_chunk().map(|length| u32::from_be_bytes(*length) as usize);
    length.is_some_and(|length| length.saturating_add(4) == bytes.len())
}

/// The requests of one connection.
#[derive(Debug, Default)]
pub(super) struct Requests {
    /// The first bytes of the request that has begun, up to its API key.
    header: Vec<u8>,
    /// How many bytes of it are still to come after these.
    left: usize,
}

const HEADER: usize = 6;

impl Requests {
    /// Whether a request with this API key begins in `bytes`, which follow those of the last call.
    pub(super) fn have(&mut self, mut bytes: &[u8], api_key: Option<i16>) -> bool {
        let mut found = false;
        while !bytes.is_empty() {
            let skipped = self.left.min(bytes.len());
            self.left -= skipped;
            bytes = &bytes[skipped..];
            let taken = (HEADER - self.header.len()).min(bytes.len());
            self.header.extend_from_slice(&bytes[..taken]);
            bytes = &bytes[taken..];
            if let [a, b, c, d, high, low] = self.header[..] {
                found |= api_key == Some(i16::from_be_bytes([high, low]));
                // The length counts the API key too.
                self.left = (u32::from_be_bytes([a, b, c, d]) as usize).saturating_sub(2);
                self.header.clear();
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(api_key: i16, rest: usize) -> Vec<u8> {
        let length = u32::try_from(rest + 2).expect("it fits").to_be_bytes();
        [&length[..], &api_key.to_be_bytes(), &vec![26; rest]].concat()
    }

    #[test]
    fn requests_are_found_wherever_reads_end() {
        let stream = [request(3, 50), request(26, 4), request(0, 0), request(26, 0)].concat();
        for piece in 1..stream.len() {
            let mut requests = Requests::default();
            let pieces = stream.chunks(piece);
            let found = pieces.filter(|bytes| requests.have(bytes, Some(26))).count();
            assert!((1..=2).contains(&found), "{found} with {piece} bytes a read");
        }
        assert!(!Requests::default().have(&stream, Some(1)));
        assert!(!Requests::default().have(&stream, None));
        assert!(!is_one_request(&stream));
        assert!(is_one_request(&stream[..56]));
        assert!(!is_one_request(&stream[..55]) && !is_one_request(&[]));
    }
}
