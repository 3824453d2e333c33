//! Reproducible mutations of bytes, from a seed.

/// A generator of numbers that look random (`SplitMix64`).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ mixed >> 31
    }

    /// A number below `end`, which is not 0.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % end as u64).expect("it is below a usize")
    }

    fn byte(&mut self) -> u8 {
        self.next().to_be_bytes()[0]
    }
}

/// What stands at borders, of numbers and of syntax.
const BORDERS: [&[u8]; 14] = [
    b"\0",
    b"\xFF",
    b"\x7F",
    b"\x80",
    b"\0\0\0\0",
    b"\xFF\xFF\xFF\xFF",
    b"\x7F\xFF\xFF\xFF",
    b"\0\x01",
    b"\"",
    b"'",
    b"\\",
    b"%00",
    b"\xC3\xA4",
    b"\n",
];

/// One of `inputs` with one to four changes, which may take from the others.
pub(crate) fn mutated(inputs: &[Vec<u8>], separator: &[u8], random: &mut Random) -> Vec<u8> {
    let mut bytes = inputs[random.below(inputs.len())].clone();
    for _ in 0..=random.below(4) {
        let at = random.below(bytes.len() + 1);
        let end = at + random.below((bytes.len() - at).min(16) + 1);
        let taken = match random.below(8) {
            0 => vec![random.byte()],
            1 => BORDERS[random.below(BORDERS.len())].to_vec(),
            2 => bytes[at..end].repeat(2),
            3 => separator.to_vec(),
            4 => {
                let other = &inputs[random.below(inputs.len())];
                let from = random.below(other.len() + 1);
                other[from..from + random.below(other.len() - from + 1)].to_vec()
            }
            5 => bytes[at..end].iter().map(|byte| byte ^ 1 << random.below(8)).collect(),
            6 => bytes[at..end].iter().map(|byte| byte.wrapping_add(random.byte() % 3)).collect(),
            _ => Vec::new(),
        };
        bytes.splice(at..end, taken);
    }
    bytes
}
