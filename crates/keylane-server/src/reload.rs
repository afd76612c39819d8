//! The config in force, and another one in its place while everything runs.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use keylane_router::Router;
use keylane_router::dispatch::HttpDispatch;

use crate::config::{Config, Dev, Layers};
use crate::sources::Sources;

/// The config in force. Changed by SIGHUP and by the API.
pub(crate) struct InForce {
    layers: Layers,
    router: Router,
    sources: Arc<Sources>,
    dispatch: HttpDispatch,
    /// Read by the API; written by whoever holds `changing`.
    now: RwLock<Now>,
    /// Changes, one after the other.
    changing: tokio::sync::Mutex<()>,
}

#[derive(Clone)]
struct Now {
    /// Counts the configs that were in force, from 1.
    generation: u64,
    config: Arc<Config>,
}

/// Why another config is not, or not wholly, in force.
pub(crate) enum ReloadError {
    /// It is wrong: all of it. Nothing changed.
    Wrong(Vec<String>),
    /// Its pools are in force, a source could not be changed; another reload tries again.
    Source(String),
}

impl InForce {
    /// The config that the router and its sources were started with.
    pub(crate) fn new(
        layers: Layers,
        config: Config,
        router: Router,
        sources: Arc<Sources>,
        dispatch: HttpDispatch,
    ) -> Self {
        let now = Now {
            generation: 1,
            config: Arc::new(config),
        };
        Self {
            layers,
            router,
            sources,
            dispatch,
            now: RwLock::new(now),
            changing: tokio::sync::Mutex::default(),
        }
    }

    /// What is on for trying things out.
    pub(crate) fn dev(&self) -> Dev {
        self.now().config.dev
    }

    /// How long a stop waits for running attempts.
    pub(crate) fn stop_deadline(&self) -> Duration {
        self.now().config.plan.stop_deadline
    }

    /// Reads the config again and puts it in force; answers its generation.
    pub(crate) async fn reload(&self) -> Result<u64, ReloadError> {
        let _one_at_a_time = self.changing.lock().await;
        let changed = self.try_reload().await;
        match &changed {
            Ok(generation) => tracing::info!(generation, "the config was reloaded"),
            Err(ReloadError::Wrong(problems)) => {
                for problem in problems {
                    tracing::error!("the config was not reloaded: {problem}");
                }
            }
            Err(ReloadError::Source(text)) => {
                tracing::error!("the config was reloaded, but for a source: {text}");
            }
        }
        changed
    }

    async fn try_reload(&self) -> Result<u64, ReloadError> {
        let config = Config::load(self.layers.clone()).map_err(ReloadError::wrong)?;
        let reloaded = self.router.reload(config.plan.clone()).await;
        reloaded.map_err(|error| ReloadError::Wrong(vec![error.to_string()]))?;
        self.dispatch.set_dev(config.dev.enabled);
        let before = self.now();
        for option in needs_restart(&before.config, &config) {
            tracing::warn!(option, "changed; that needs a restart");
        }
        for notice in &config.notices {
            tracing::warn!("{notice}");
        }
        let config = Arc::new(config);
        let generation = before.generation + 1;
        *self.now.write().unwrap_or_else(PoisonError::into_inner) = Now {
            generation,
            config: config.clone(),
        };
        let changed = self.sources.change(&config).await;
        changed.map_err(|error| ReloadError::Source(error.to_string()))?;
        Ok(generation)
    }

    fn now(&self) -> Now {
        let now = self.now.read().unwrap_or_else(PoisonError::into_inner);
        now.clone()
    }
}

impl ReloadError {
    fn wrong(problems: crate::config::errors::Problems) -> Self {
        Self::Wrong(problems.0.iter().map(ToString::to_string).collect())
    }
}

/// Options that are read once, at the start.
fn needs_restart(before: &Config, after: &Config) -> Vec<&'static str> {
    let changed = [
        ("listen", before.listen != after.listen),
        ("data", before.data != after.data),
        (
            "store_budget",
            before.plan.store_budget != after.plan.store_budget,
        ),
        ("tls", before.extra_roots != after.extra_roots),
    ];
    let changed = changed.into_iter().filter(|(_, changed)| *changed);
    changed.map(|(option, _)| option).collect()
}
