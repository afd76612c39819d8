//! The fault proxy at the address that Kafka and Pulsar tell their clients: what goes there goes
//! through it, and can be cut. Without the brokers these say that they are skipped.

use std::net::SocketAddr;

use keylane_router::testing::Proxy;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Where the broker says that it is, and where it is.
fn addresses(broker: &str) -> Option<(SocketAddr, SocketAddr)> {
    let read = |what: &str| {
        let name = format!("KEYLANE_TEST_{broker}_{what}");
        let value = std::env::var(&name).ok();
        if value.is_none() {
            println!("skipped: {name} is not set");
        }
        value?.parse().ok()
    };
    Some((read("PROXY")?, read("BEHIND_PROXY")?))
}

/// Asks over this connection; answers what came after the length.
async fn ask(stream: &mut TcpStream, request: &[u8]) -> std::io::Result<Vec<u8>> {
    let length = u32::try_from(request.len()).expect("short");
    stream.write_all(&length.to_be_bytes()).await?;
    stream.write_all(request).await?;
    let length = stream.read_u32().await?;
    let mut answer = vec![0; length as usize];
    stream.read_exact(&mut answer).await?;
    Ok(answer)
}

/// An answer through the proxy, none after a cut, and one over the next connection.
async fn goes_through(broker: &str, request: &[u8], is_answer: impl Fn(&[u8]) -> bool) {
    let Some((advertised, behind)) = addresses(broker) else {
        return;
    };
    let proxy = Proxy::start_at(advertised, behind).await;
    let mut stream = TcpStream::connect(advertised).await.expect("the proxy");
    let answer = ask(&mut stream, request).await.expect("an answer");
    assert!(is_answer(&answer), "{answer:?}");
    proxy.cut_all();
    assert!(ask(&mut stream, request).await.is_err(), "it was cut");
    let mut stream = TcpStream::connect(advertised).await.expect("the proxy");
    let answer = ask(&mut stream, request).await.expect("an answer");
    assert!(is_answer(&answer), "{answer:?}");
}

#[tokio::test]
async fn kafka_is_reached_through_the_proxy_at_the_address_that_it_advertises() {
    // ApiVersions, version 0, correlation 7, no client id.
    let request = [0, 18, 0, 0, 0, 0, 0, 7, 0xff, 0xff];
    // The correlation, and no error.
    goes_through("KAFKA", &request, |answer| {
        answer.starts_with(&[0, 0, 0, 7, 0, 0])
    })
    .await;
}

#[tokio::test]
async fn pulsar_is_reached_through_the_proxy_at_the_address_that_it_advertises() {
    // CONNECT of client "x", protocol version 19.
    let connect = [0x08, 0x02, 0x12, 0x05, 0x0a, 0x01, b'x', 0x20, 0x13];
    let mut request = vec![0, 0, 0, connect.len() as u8];
    request.extend(connect);
    // CONNECTED.
    goes_through("PULSAR", &request, |answer| {
        answer.get(4..6) == Some(&[0x08, 0x03])
    })
    .await;
}
