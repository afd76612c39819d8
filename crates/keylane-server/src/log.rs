//! The log: to the standard error, as text or JSON, filtered by `KEYLANE_LOG` or `RUST_LOG`.

use anyhow::Context as _;
use tracing_subscriber::EnvFilter;

use crate::cli::LogFormat;

/// Starts to log, for the whole process.
pub(crate) fn start(format: LogFormat) -> anyhow::Result<()> {
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter()?)
        .with_writer(std::io::stderr);
    match format {
        LogFormat::Text => log.init(),
        LogFormat::Json => log.json().init(),
    }
    Ok(())
}

fn filter() -> anyhow::Result<EnvFilter> {
    for name in ["KEYLANE_LOG", "RUST_LOG"] {
        if let Ok(directives) = std::env::var(name)
            && !directives.is_empty()
        {
            return EnvFilter::try_new(&directives)
                .with_context(|| format!("{name}={directives}: use for example \"info\""));
        }
    }
    Ok(EnvFilter::new("info"))
}
