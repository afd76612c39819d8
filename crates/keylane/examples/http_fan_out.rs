//! One function for many jobs: each is POSTed to a server that fails now and then. A failed one is
//! tried again in place, after a growing pause, and nothing of its key overtakes it meanwhile;
//! other keys do not wait.
//!
//! HTTP is spoken by hand, so that the example needs no other crate.
//!
//! `cargo run -p keylane --example http_fan_out`

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use keylane::{Executor, Handler, Queued, Reply};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;

struct Job {
    body: String,
    attempts: u32,
}

/// Delivers jobs to one server.
struct Deliver {
    to: SocketAddr,
}

impl Handler<String, Job> for Deliver {
    async fn handle(&self, mut job: Job, _slot: usize) -> Reply<Job> {
        match post(self.to, &job.body).await {
            Ok(200) => Reply::Done,
            other => {
                job.attempts += 1;
                println!("{}: attempt {} ended {other:?}", job.body, job.attempts);
                let pause = Duration::from_millis(5 << job.attempts.min(6));
                Reply::Hold {
                    job,
                    until: Some(Instant::now() + pause),
                }
            }
        }
    }

    async fn flushed(&self, _key: String, jobs: Vec<Queued<Job>>) -> Vec<Queued<Job>> {
        // Nothing flushes in this program. What comes back here stays in its place.
        jobs
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let received = Arc::new(Mutex::new(Vec::new()));
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let to = listener.local_addr()?;
    let server = tokio::spawn(serve(listener, received.clone()));

    let executor = Executor::builder()
        .concurrency(16)
        .build_with(Deliver { to })?;
    for n in 0..5 {
        for order in 0..6 {
            let (body, attempts) = (format!("order-{order} event-{n}"), 0);
            let pushed = executor.push(format!("order-{order}"), Job { body, attempts });
            pushed.map_err(|_| "no limit was set")?;
        }
    }
    executor.all_idle().await;
    server.abort();

    let received = received.lock().unwrap();
    for order in 0..6 {
        let order = format!("order-{order} ");
        let of_order = received.iter().filter(|body| body.starts_with(&order));
        assert!(
            of_order.eq(&(0..5)
                .map(|n| format!("{order}event-{n}"))
                .collect::<Vec<_>>())
        );
    }
    println!("{} delivered, each order's in order", received.len());
    Ok(())
}

/// Sends one request, answers the status.
async fn post(to: SocketAddr, body: &str) -> io::Result<u16> {
    let mut stream = TcpStream::connect(to).await?;
    let length = body.len();
    let request = format!(
        "POST / HTTP/1.1\r\nhost: {to}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let status = answer
        .split(' ')
        .nth(1)
        .and_then(|status| status.parse().ok());
    status.ok_or_else(|| io::Error::other("no status line"))
}

/// Refuses every third body the first two times; takes the rest.
async fn serve(listener: TcpListener, received: Arc<Mutex<Vec<String>>>) -> io::Result<()> {
    let mut seen: HashMap<String, u32> = HashMap::new();
    loop {
        let (mut stream, _) = listener.accept().await?;
        let body = read_body(&mut stream).await?;
        let times = seen.entry(body.clone()).or_default();
        *times += 1;
        let status = if body.ends_with('3') && *times <= 2 {
            "503 Service Unavailable"
        } else {
            received.lock().unwrap().push(body);
            "200 OK"
        };
        let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
        stream.write_all(answer.as_bytes()).await?;
    }
}

async fn read_body(stream: &mut TcpStream) -> io::Result<String> {
    let mut request = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&request).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head
                .lines()
                .find_map(|line| line.strip_prefix("content-length: "));
            let length: usize = length.and_then(|length| length.parse().ok()).unwrap_or(0);
            if body.len() >= length {
                return Ok(body.to_owned());
            }
        }
        if stream.read_buf(&mut request).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}
