//! The ports of a broker: free when they are chosen, and kept for its restarts.

use std::collections::HashSet;
use std::fs::{self, File};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;

use super::broker::Broker;
use super::run;
use crate::{Result, place};

/// Below the ports that systems give to outgoing connections: one of those could take a broker's port while the
/// broker is down between two starts.
const RANGE: std::ops::Range<u16> = 20_000..30_000;

/// Port numbers by name. Kept as lines `name=number` in the broker's folder.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Ports(Vec<(String, u16)>);

impl Ports {
    #[cfg(test)]
    pub(crate) fn of(ports: &[(&str, u16)]) -> Self {
        Self(
            ports
                .iter()
                .map(|(name, port)| ((*name).to_owned(), *port))
                .collect(),
        )
    }

    /// Chooses free ports for a broker and writes them to `file`. `proxy` is the port of a fault proxy, if the
    /// caller has one already.
    pub(crate) fn choose(broker: Broker, proxy: Option<u16>, file: &Path) -> Result<Self> {
        // Held until they are on file: whoever chooses next must find them taken.
        let _turn = turn()?;
        let mut taken = promised()?;
        taken.extend(proxy);
        let mut ports = Vec::new();
        for name in broker.ports() {
            let port = match proxy {
                Some(given) if *name == "proxy" => given,
                _ => free(&taken)?,
            };
            taken.insert(port);
            ports.push(((*name).to_owned(), port));
        }
        let ports = Self(ports);
        ports.write(file)?;
        Ok(ports)
    }

    pub(crate) fn read(file: &Path) -> Result<Self> {
        let text = fs::read_to_string(file)?;
        let ports = text.lines().map(|line| {
            let (name, port) = line.split_once('=')?;
            Some((name.to_owned(), port.parse().ok()?))
        });
        let ports: Option<_> = ports.collect();
        Ok(Self(ports.ok_or_else(|| {
            format!("{}: not lines of `name=port`", file.display())
        })?))
    }

    /// Whole or not at all, for those who read it meanwhile.
    fn write(&self, file: &Path) -> io::Result<()> {
        let lines: Vec<_> = self
            .iter()
            .map(|(name, port)| format!("{name}={port}\n"))
            .collect();
        let draft = file.with_extension("new");
        fs::write(&draft, lines.concat())?;
        fs::rename(draft, file)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, u16)> {
        self.0.iter().map(|(name, port)| (name.as_str(), *port))
    }

    /// On loopback: no broker of ours listens anywhere else.
    pub(crate) fn address(&self, name: &str) -> SocketAddr {
        let port = self.iter().find(|(known, _)| *known == name);
        let (_, port) = port.expect("a broker's ports have all names that it wants");
        SocketAddr::from((Ipv4Addr::LOCALHOST, port))
    }
}

/// One chooses at a time, on the whole machine.
fn turn() -> Result<File> {
    let folder = place::cache()?.join("brokers");
    fs::create_dir_all(&folder)?;
    let file = File::create(folder.join("ports.lock"))?;
    file.lock()?;
    Ok(file)
}

/// The ports of all runs. A broker that is down for a moment does not listen on its own.
fn promised() -> Result<HashSet<u16>> {
    let mut promised = HashSet::new();
    for folder in run::all()? {
        for broker in Broker::ALL {
            if let Ok(ports) = Ports::read(&folder.join(broker.name()).join("ports")) {
                promised.extend(ports.iter().map(|(_, port)| port));
            }
        }
    }
    Ok(promised)
}

fn free(taken: &HashSet<u16>) -> Result<u16> {
    let count = usize::from(RANGE.end - RANGE.start);
    let offset = RandomState::new().hash_one(0) as usize % count;
    RANGE
        .cycle()
        .skip(offset)
        .take(count)
        .find(|port| !taken.contains(port) && listens_nobody(*port))
        .ok_or_else(|| format!("no port from {} to {} is free", RANGE.start, RANGE.end).into())
}

fn listens_nobody(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_read_as_they_were_written() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("ports");
        let ports = Ports::of(&[("client", 20_001), ("admin", 20_002)]);
        ports.write(&file).unwrap();
        assert_eq!(Ports::read(&file).unwrap(), ports);
        assert_eq!(ports.address("admin").to_string(), "127.0.0.1:20002");
    }

    #[test]
    fn a_broken_file_of_ports_is_named() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("ports");
        fs::write(&file, "client=many\n").unwrap();
        let error = Ports::read(&file).unwrap_err().to_string();
        assert!(error.contains(file.to_str().unwrap()), "{error}");
    }

    #[test]
    fn neither_a_taken_nor_a_used_port_is_free() {
        let used = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        assert!(!listens_nobody(used.local_addr().unwrap().port()));
        let mut taken: HashSet<u16> = RANGE.collect();
        let error = free(&taken).unwrap_err().to_string();
        assert!(error.contains("20000"), "{error}");
        let open = RANGE.rev().find(|port| listens_nobody(*port)).unwrap();
        taken.remove(&open);
        assert_eq!(free(&taken).unwrap(), open);
    }
}
