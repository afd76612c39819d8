//! VIP customers have four tasks at once, all others one.
//!
//! `cargo run -p keylane --example vip`

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use keylane::Executor;

#[tokio::main]
async fn main() -> Result<(), keylane::BuildErrors> {
    let executor = Executor::<String>::builder()
        .lane_concurrency_by(|key: &String| if key.starts_with("vip:") { 4 } else { 1 })
        .build()?;

    let (vip, other) = (Arc::new(Peak::default()), Arc::new(Peak::default()));
    for _ in 0..12 {
        executor.submit("vip:ann".to_owned(), work(vip.clone()));
        executor.submit("bob".to_owned(), work(other.clone()));
    }
    println!("limits: {:?}", executor.limits_of(&"vip:ann".to_owned()));
    executor.all_idle().await;

    let (vip, other) = (vip.most(), other.most());
    println!("at once: vip {vip}, other {other}");
    assert_eq!((vip, other), (4, 1));
    Ok(())
}

async fn work(peak: Arc<Peak>) {
    peak.enter();
    tokio::time::sleep(Duration::from_millis(20)).await;
    peak.leave();
}

/// How many were inside at once.
#[derive(Default)]
struct Peak {
    now: AtomicUsize,
    most: AtomicUsize,
}

impl Peak {
    fn enter(&self) {
        let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
    }

    fn leave(&self) {
        self.now.fetch_sub(1, Ordering::SeqCst);
    }

    fn most(&self) -> usize {
        self.most.load(Ordering::SeqCst)
    }
}
