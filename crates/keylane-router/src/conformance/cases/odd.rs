//! Bodies and keys that nobody expects, and all that brokers let through.

use bytes::Bytes;

use crate::conformance::rig::{Rig, Run, Setup, ensure, envelope};
use crate::conformance::subject::Published;
use crate::conformance::suite::{End, Summary};
use crate::conformance::target::label;
use crate::message::Key;
use crate::plan::Keyless;

/// The largest message of a pool unless configured.
const MIB: usize = 1 << 20;

fn message(key: Option<&[u8]>, body: impl Into<Bytes>) -> Published {
    Published {
        key: key.map(Bytes::copy_from_slice),
        body: body.into(),
        headers: Vec::new(),
    }
}

/// An envelope with a payload that makes it exactly so large.
fn envelope_of(label: &str, size: usize) -> Bytes {
    let text = |payload: &str| {
        let body = serde_json::json!({
            "id": label,
            "mediationTarget": "http://target.invalid/",
            "payload": payload,
        });
        body.to_string()
    };
    let rest = size - text("").len();
    text(&"x".repeat(rest)).into()
}

pub(super) async fn odd_bodies(rig: Rig) -> Result<Summary, End> {
    let run = rig.start(Setup::new()).await?;
    let odd: [(&str, Bytes); 5] = [
        ("not JSON", Bytes::from_static(b"{\"id\": \"x")),
        ("empty", Bytes::new()),
        (
            "not UTF-8",
            Bytes::from_static(&[0xff, 0xfe, 0, 0xc3, 0x28]),
        ),
        ("no target", Bytes::from_static(b"{\"id\":\"x\"}")),
        ("an array", Bytes::from_static(b"[1,2,3]")),
    ];
    let mut letters = 0;
    let mut left_out = Vec::new();
    for (n, (what, body)) in (0..).zip(odd.iter().cloned()) {
        // A good one of the same key before and behind it.
        run.put(vec![run.message("k", 2 * n)]).await?;
        let odd = message(Some(b"k"), body);
        match rig.subject.takes(&odd) {
            true => {
                letters += 1;
                run.put(vec![odd]).await?;
            }
            false => left_out.push(what),
        }
        run.put(vec![run.message("k", 2 * n + 1)]).await?;
    }
    let largest = message(Some(b"large"), envelope_of("large#0", MIB));
    let mut all = 10;
    match rig.subject.takes(&largest) {
        true => {
            run.note_published("large", 0);
            run.put(vec![largest]).await?;
            all += 1;
        }
        false => left_out.push("1 MiB"),
    }
    run.delivered(all).await?;
    run.empty().await?;
    check_letters(&run, &odd, letters).await?;
    run.finish().await?;
    Ok(format!(
        "{letters} malformed bodies are dead letters, their key went on; the broker does not take {left_out:?}"
    ))
}

/// Each is there as it came, with the reason.
async fn check_letters(run: &Run, odd: &[(&str, Bytes)], count: usize) -> Result<(), End> {
    let letters = run.store.dead_letters(0, 100).await;
    let letters = letters.map_err(|error| End::Failed(error.to_string()))?;
    ensure(letters.len() == count, || {
        format!("{count} malformed messages, {} dead letters", letters.len())
    })?;
    for letter in letters {
        let known = odd.iter().any(|(_, body)| *body == letter.message.body);
        ensure(known, || {
            format!("a dead letter is not as it came: {:?}", letter.message)
        })?;
        ensure(letter.reason == "malformed", || {
            format!(
                "a malformed message is a dead letter because {:?}",
                letter.reason
            )
        })?;
    }
    Ok(())
}

pub(super) async fn odd_keys(rig: Rig) -> Result<Summary, End> {
    rig.needs_keys()?;
    let long = [b'k'; 1024];
    let keys: [(&str, Option<&[u8]>); 9] = [
        ("absent", None),
        ("empty", Some(b"")),
        ("blank", Some(b"  \t ")),
        ("long", Some(&long)),
        ("unicode", Some("ключ-鍵-🔑".as_bytes())),
        ("not-utf-8", Some(&[0xff, 0xfe, 0xc3, 0x28])),
        ("zeros", Some(&[0, 1, 0, 2])),
        ("spaces", Some(b" a b ")),
        ("marks", Some(b"a/b?c#d%20&e=\"f'\\")),
    ];
    let run = rig.start(Setup::new()).await?;
    let serial = match run.source.keyless {
        Some(keyless) => keyless == Keyless::Serial,
        None => rig.features.keyless_serial,
    };
    let (mut sent, mut left_out) = (Vec::new(), Vec::new());
    for n in 0..5 {
        for (what, key) in keys {
            // Keyless messages that run side by side have no order: each is a key of its own.
            let keyless = key.is_none_or(|key| key.trim_ascii().is_empty());
            let (name, n) = match keyless && !serial {
                true => (format!("{what}-{n}"), 0),
                false => (what.to_owned(), n),
            };
            let odd = message(key, envelope(&label(&name, n)));
            if !rig.subject.takes(&odd) {
                left_out.push(what);
                continue;
            }
            run.note_published(&name, n);
            run.put(vec![odd]).await?;
            sent.push((label(&name, n), key.filter(|_| !keyless)));
        }
    }
    run.delivered(sent.len()).await?;
    for (label, key) in &sent {
        let got = run.target.got(label).and_then(|message| message.key);
        ensure(got == key.map(Key::new), || {
            format!("{label} was sent with key {key:?} and delivered with {got:?}")
        })?;
    }
    run.finish().await?;
    left_out.sort_unstable();
    left_out.dedup();
    Ok(format!(
        "{} messages of odd keys; the broker does not take {left_out:?}",
        sent.len()
    ))
}

/// An envelope that names a key itself.
fn naming_a_key(label: &str) -> Bytes {
    let body = serde_json::json!({
        "id": label,
        "mediationTarget": "http://target.invalid/",
        "messageGroupId": "from the body",
    });
    body.to_string().into()
}

pub(super) async fn attribute_wins(rig: Rig) -> Result<Summary, End> {
    rig.needs_keys()?;
    let run = rig.start(Setup::new()).await?;
    run.note_published("a", 0);
    let both = message(Some(b"attribute"), naming_a_key("a#0"));
    run.put(vec![both]).await?;
    let alone = message(None, naming_a_key("b#0"));
    let mut expected = vec![("a#0", "attribute")];
    if rig.subject.takes(&alone) {
        run.note_published("b", 0);
        run.put(vec![alone]).await?;
        expected.push(("b#0", "from the body"));
    }
    run.delivered(expected.len()).await?;
    for (label, key) in &expected {
        let got = run.target.got(label).and_then(|message| message.key);
        ensure(got == Some(Key::from(*key)), || {
            format!("{label} has key {got:?}, it must be {key:?}")
        })?;
    }
    run.finish().await?;
    Ok(format!(
        "{} messages that name a key in the body",
        expected.len()
    ))
}

pub(super) async fn raw_envelope(rig: Rig) -> Result<Summary, End> {
    rig.needs_keys()?;
    let run = rig.start(Setup::new().raw()).await?;
    // What would be no message at all in an envelope.
    for n in 0..20 {
        run.note_published("k", n);
        let body = label("k", n);
        run.put(vec![message(Some(b"k"), body.as_bytes().to_vec())])
            .await?;
    }
    run.delivered(20).await?;
    for n in 0..20 {
        let body = label("k", n);
        let got = run.target.got(&body);
        let right = got.as_ref().is_some_and(|message| {
            message.payload == body.as_bytes() && message.key == Some(Key::from("k"))
        });
        ensure(right, || format!("{body} was delivered as {got:?}"))?;
    }
    run.finish().await?;
    Ok("20 bodies delivered as they are".to_owned())
}
