//! Ports of 127.0.0.1 that stay reserved while a server is down.
//!
//! They are below the kernel's range of ephemeral ports, and each is held by a locked file, so that
//! neither a client nor another test process takes one between a stop and the next start.

use std::fs::File;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::{AtomicU16, Ordering};

use crate::cache;
use crate::error::{BedError, Doing};

const FIRST: u16 = 15_000;
const COUNT: u16 = 15_000;

/// A port that no other process gets until this value is dropped.
#[derive(Debug)]
pub struct Port {
    number: u16,
    _held: File,
}

impl Port {
    pub fn reserve() -> Result<Self, BedError> {
        static TRIED: AtomicU16 = AtomicU16::new(0);
        let directory = cache::directory()?.join("ports");
        cache::make_open(&directory)?;
        // Processes start at different places, so that they seldom meet.
        let start = u16::try_from(std::process::id().wrapping_mul(37) % u32::from(COUNT))
            .expect("a remainder of a u16 fits a u16");
        for _ in 0..COUNT {
            let step = TRIED.fetch_add(1, Ordering::Relaxed) % COUNT;
            let offset = (u32::from(start) + u32::from(step)) % u32::from(COUNT);
            let number = FIRST + u16::try_from(offset).expect("less than COUNT");
            let path = directory.join(number.to_string());
            let held = File::create(&path).doing(|| format!("making {}", path.display()))?;
            if held.try_lock().is_ok() && TcpListener::bind((Ipv4Addr::LOCALHOST, number)).is_ok() {
                return Ok(Self { number, _held: held });
            }
        }
        Err(BedError::NoPort)
    }

    pub fn number(&self) -> u16 {
        self.number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn concurrent_reservations_get_different_ports() {
        let first = Port::reserve().unwrap();
        let second = Port::reserve().unwrap();
        assert_ne!(first.number(), second.number());
    }
}
