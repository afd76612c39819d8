//! What kind of place an IP address is, whatever it is spelt like.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Where an address leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Somewhere in the internet.
    Public,
    /// A network that the internet does not reach.
    Private,
    /// This machine.
    Loopback,
    /// Nowhere a message may be sent to; and why.
    Never(&'static str),
}

const METADATA: Place = Place::Never("it is the metadata service of a cloud");
const LINK_LOCAL: Place = Place::Never("it is link-local");
const UNSPECIFIED: Place = Place::Never("it is unspecified");
const MULTICAST: Place = Place::Never("it is no single host");
const RESERVED: Place = Place::Never("it is reserved");
const HIDDEN: Place = Place::Never("it hides an address that may not be called");

impl Place {
    /// The place of an address. An IPv6 address that stands for an IPv4 address is where that one
    /// is: a socket, a translator or a tunnel would bring us there.
    pub fn of(ip: IpAddr) -> Self {
        match ip {
            IpAddr::V4(ip) => v4(ip),
            IpAddr::V6(ip) => v6(ip),
        }
    }
}

fn v4(ip: Ipv4Addr) -> Place {
    match ip.octets() {
        // Azure's, Oracle's and Alibaba's are not link-local as the others' are.
        [168, 63, 129, 16] | [192, 0, 0, 192] | [100, 100, 100, 200] => METADATA,
        [169, 254, 169, 254] => METADATA,
        [169, 254, ..] => LINK_LOCAL,
        // Linux takes all of it for this machine.
        [0, ..] => UNSPECIFIED,
        [127, ..] => Place::Loopback,
        [224..=239, ..] => MULTICAST,
        [240..=255, ..] | [192, 0, 0, _] => RESERVED,
        [10, ..] | [172, 16..=31, ..] | [192, 168, ..] | [100, 64..=127, ..] => Place::Private,
        // Documentation, benchmarks, the old 6to4 relay: not of the internet.
        [192, 0, 2, _] | [198, 51, 100, _] | [203, 0, 113, _] | [198, 18..=19, ..] => {
            Place::Private
        }
        [192, 88, 99, _] => Place::Private,
        _ => Place::Public,
    }
}

fn v6(ip: Ipv6Addr) -> Place {
    let s = ip.segments();
    match s {
        [0, 0, 0, 0, 0, 0, 0, 0] => UNSPECIFIED,
        [0, 0, 0, 0, 0, 0, 0, 1] => Place::Loopback,
        // IPv4-mapped, and IPv4-compatible as some stacks still read it.
        [0, 0, 0, 0, 0, 0xffff | 0, a, b] => v4(embedded(a, b)),
        // IPv4-translated (SIIT), NAT64.
        [0, 0, 0, 0, 0xffff, 0, a, b] | [0x64, 0xff9b, 0, 0, 0, 0, a, b] => behind(embedded(a, b)),
        // NAT64 of one's own, Teredo: the IPv4 address inside cannot be told.
        [0x64, 0xff9b, ..] | [0x2001, 0, ..] => HIDDEN,
        // 6to4.
        [0x2002, a, b, ..] => behind(embedded(a, b)),
        _ => stricter(plain(s), isatap(s)),
    }
}

fn plain(s: [u16; 8]) -> Place {
    match s[0] {
        0xff00..=0xffff => MULTICAST,
        0xfe80..=0xfebf => LINK_LOCAL,
        // Amazon's and Google's services beside the machine, metadata among them.
        0xfd00 if s[1] == 0x0ec2 => METADATA,
        0xfd20 if s[1] == 0x00ce => METADATA,
        // Unique local, and the site-local ones before them.
        0xfc00..=0xfdff | 0xfec0..=0xfeff => Place::Private,
        // Protocol assignments and documentation.
        0x2001 if s[1] < 0x0200 || s[1] == 0x0db8 => Place::Private,
        0x3fff if s[1] < 0x1000 => Place::Private,
        0x2000..=0x3fff => Place::Public,
        _ => RESERVED,
    }
}

/// An interface id of ISATAP ends in an IPv4 address.
fn isatap(s: [u16; 8]) -> Place {
    match s {
        [_, _, _, _, 0 | 0x0200, 0x5efe, a, b] => behind(embedded(a, b)),
        _ => Place::Public,
    }
}

fn embedded(a: u16, b: u16) -> Ipv4Addr {
    let [a, b, c, d] = ((u32::from(a) << 16) | u32::from(b)).to_be_bytes();
    Ipv4Addr::new(a, b, c, d)
}

/// The place of an address that a translator or a tunnel would call for us: its loopback is not
/// ours.
fn behind(ip: Ipv4Addr) -> Place {
    match v4(ip) {
        Place::Loopback | Place::Never(_) => HIDDEN,
        place => place,
    }
}

fn stricter(a: Place, b: Place) -> Place {
    match (a, b) {
        (Place::Public, other) => other,
        (place, Place::Never(why)) if !matches!(place, Place::Never(_)) => Place::Never(why),
        (place, _) => place,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(text: &str) -> Place {
        Place::of(text.parse().expect(text))
    }

    fn assert_never(addresses: &[&str]) {
        for text in addresses {
            assert!(matches!(place(text), Place::Never(_)), "{text}");
        }
    }

    #[test]
    fn public_addresses_are_public() {
        for text in [
            "1.1.1.1",
            "93.184.215.14",
            "172.15.255.255",
            "172.32.0.1",
            "100.63.0.1",
            "100.128.0.1",
            "2606:4700::1111",
            "2a00:1450::1",
            "::ffff:1.1.1.1",
            "64:ff9b::1.1.1.1",
            "2002:0101:0101::1",
        ] {
            assert_eq!(place(text), Place::Public, "{text}");
        }
    }

    #[test]
    fn private_addresses_are_private_in_every_spelling() {
        for text in [
            "10.0.0.1",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "100.64.0.1",
            "198.18.0.1",
            "203.0.113.7",
            "fc00::1",
            "fd12:3456::1",
            "fec0::1",
            "2001:db8::1",
            "::ffff:10.0.0.1",
            "::10.0.0.1",
            "::ffff:0:10.0.0.1",
            "64:ff9b::10.0.0.1",
            "2002:0a00:0001::1",
            "2606:4700::5efe:10.0.0.1",
            "2606:4700::200:5efe:10.0.0.1",
        ] {
            assert_eq!(place(text), Place::Private, "{text}");
        }
    }

    #[test]
    fn loopback_is_this_machine_only_where_a_socket_would_reach_it() {
        for text in [
            "127.0.0.1",
            "127.255.255.254",
            "::1",
            "::ffff:127.0.0.1",
            "::127.0.0.1",
        ] {
            assert_eq!(place(text), Place::Loopback, "{text}");
        }
        assert_never(&[
            "64:ff9b::127.0.0.1",
            "2002:7f00:0001::",
            "::ffff:0:127.0.0.1",
            "fe80::5efe:127.0.0.1",
            "2606:4700::5efe:127.0.0.1",
        ]);
    }

    #[test]
    fn metadata_and_link_local_addresses_are_never_called_in_any_spelling() {
        assert_never(&[
            "169.254.169.254",
            "169.254.170.2",
            "169.254.0.1",
            "168.63.129.16",
            "100.100.100.200",
            "192.0.0.192",
            "fd00:ec2::254",
            "fd20:ce::254",
            "fe80::1",
            "febf::1",
            "fe80::a9fe:a9fe",
            "::ffff:169.254.169.254",
            "::ffff:a9fe:a9fe",
            "::169.254.169.254",
            "::ffff:0:169.254.169.254",
            "64:ff9b::169.254.169.254",
            "64:ff9b::a9fe:a9fe",
            "64:ff9b:1::169.254.169.254",
            "64:ff9b:1:a9fe:a9:fe00::",
            "2002:a9fe:a9fe::1",
            "2001:0:a9fe:a9fe::1",
            "2001::5601:5601",
            "fd12::5efe:169.254.169.254",
        ]);
    }

    #[test]
    fn what_is_no_host_is_never_called() {
        assert_never(&[
            "0.0.0.0",
            "0.1.2.3",
            "255.255.255.255",
            "240.0.0.1",
            "224.0.0.1",
            "192.0.0.8",
            "::",
            "ff02::1",
            "::ffff:0.0.0.0",
            "1::1",
            "4000::1",
            "100::1",
        ]);
    }
}
