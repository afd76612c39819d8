//! SQS, by its JSON protocol over HTTP.

use std::io::{Read, Write};
use std::net::SocketAddr;

use super::connect;
use crate::Result;

pub(super) fn publish(at: SocketAddr, queue: &str, body: &str) -> Result<()> {
    let queue = url_of(at, queue)?;
    let arguments = format!(r#"{{"QueueUrl":"{queue}","MessageBody":"{body}"}}"#);
    let answer = call(at, "SendMessage", &arguments)?;
    field(&answer, "MessageId").map(|_| ())
}

pub(super) fn find(at: SocketAddr, queue: &str, body: &str) -> Result<()> {
    let queue = url_of(at, queue)?;
    loop {
        let arguments = format!(r#"{{"QueueUrl":"{queue}","WaitTimeSeconds":1}}"#);
        let answer = call(at, "ReceiveMessage", &arguments)?;
        // An empty queue answers without a handle, which is an error here.
        let handle = field(&answer, "ReceiptHandle")?;
        let arguments = format!(r#"{{"QueueUrl":"{queue}","ReceiptHandle":"{handle}"}}"#);
        call(at, "DeleteMessage", &arguments)?;
        if field(&answer, "Body")? == body {
            return Ok(());
        }
    }
}

fn url_of(at: SocketAddr, queue: &str) -> Result<String> {
    let answer = call(at, "CreateQueue", &format!(r#"{{"QueueName":"{queue}"}}"#))?;
    field(&answer, "QueueUrl")
}

/// The body of a 200.
fn call(at: SocketAddr, action: &str, arguments: &str) -> Result<String> {
    let mut stream = connect(at)?;
    let length = arguments.len();
    // The older HTTP, because its answers are in one piece and end with the connection.
    write!(
        stream,
        "POST / HTTP/1.0\r\nHost: {at}\r\nContent-Type: application/x-amz-json-1.0\r\n\
         X-Amz-Target: AmazonSQS.{action}\r\nContent-Length: {length}\r\n\r\n{arguments}"
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or("no HTTP answer")?;
    let status = head.split(' ').nth(1);
    if status != Some("200") {
        return Err(format!("{action}: {}: {body}", status.unwrap_or("no status")).into());
    }
    Ok(body.to_owned())
}

/// A text of the answer by name. Nothing that a probe looks at has a quote in it.
fn field(json: &str, name: &str) -> Result<String> {
    let value = || {
        let (_, rest) = json.split_once(&format!("\"{name}\""))?;
        let (colon, rest) = rest.split_once('"')?;
        let (value, _) = rest.split_once('"')?;
        (colon.trim() == ":").then(|| value.to_owned())
    };
    value().ok_or_else(|| format!("no {name} in the answer {json}").into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_found_with_and_without_blanks_and_missed_with_its_name() {
        let json = r#"{"QueueUrl": "http://a/b", "N":1,"Body":"x"}"#;
        assert_eq!(field(json, "QueueUrl").unwrap(), "http://a/b");
        assert_eq!(field(json, "Body").unwrap(), "x");
        let error = field(json, "MessageId").unwrap_err().to_string();
        assert!(error.contains("MessageId"), "{error}");
        assert!(field(json, "N").is_err());
    }
}
