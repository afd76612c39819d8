//! `keylane serve`: starts the router and its API, obeys signals, and stops in order.

use std::io::Write as _;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use axum::serve::ListenerExt as _;
use keylane_router::Router;
use keylane_router::dispatch::{HttpDispatch, HttpOptions};
use keylane_router::embedded::{Db, Options};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::api::{self, App};
use crate::cli::{BAD_USAGE, FAILED, OK, ServeArgs};
use crate::config::{Config, Layers};
use crate::log;
use crate::reload::InForce;
use crate::signals::{Signal, Signals};
use crate::sources::Sources;

/// How long the API may take to end its answers after everything else has ended.
const LAST_ANSWERS: Duration = Duration::from_secs(1);

/// Serves until a signal; exit code 0, 1 when it did not work out, 2 for a wrong config.
pub(crate) fn run(args: ServeArgs) -> u8 {
    let layers = args.config.layers();
    let config = match Config::load(layers.clone()) {
        Ok(config) => config,
        Err(problems) => {
            eprint!("{problems}");
            return BAD_USAGE;
        }
    };
    if let Err(error) = log::start(args.log_format) {
        eprintln!("keylane: {error:#}");
        return BAD_USAGE;
    }
    match block_on(serve(layers, config, args.standby)) {
        Ok(()) => OK,
        Err(error) => {
            eprintln!("keylane: {error:#}");
            FAILED
        }
    }
}

fn block_on(serve: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("no threads to run on")?;
    let served = runtime.block_on(serve);
    // Not dropped: that would wait for a backup under way.
    runtime.shutdown_background();
    served
}

async fn serve(layers: Layers, config: Config, standby: bool) -> anyhow::Result<()> {
    let mut signals = Signals::catch().context("signals cannot be caught")?;
    for notice in &config.notices {
        tracing::warn!("{notice}");
    }
    let db = tokio::select! {
        db = open(&config, standby) => db?,
        () = signals.stop() => return Ok(()),
    };
    let served = serve_from(&db, layers, config, &mut signals).await;
    db.close().await;
    served
}

async fn open(config: &Config, standby: bool) -> anyhow::Result<Db> {
    let options = Options {
        store_budget: config.plan.store_budget,
        ..Options::default()
    };
    if !standby {
        return Ok(Db::open(&config.data, options)?);
    }
    tracing::info!("standing by for {}", config.data.display());
    let db = Db::open_standby(&config.data, options).await?;
    tracing::info!("the data folder is ours: taking over");
    Ok(db)
}

async fn serve_from(
    db: &Db,
    layers: Layers,
    config: Config,
    signals: &mut Signals,
) -> anyhow::Result<()> {
    // Before the router takes a message: a port in use must not cost any an attempt.
    let (listener, address) = listen(config.listen).await?;
    let app = start(db, layers, config, address).await?;
    let api = ServedApi::start(listener, app.clone());
    announce(address);
    obey(&app, signals).await;
    api.close().await;
    tracing::info!("stopped");
    Ok(())
}

async fn listen(address: SocketAddr) -> anyhow::Result<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind(address).await;
    let listener = listener.with_context(|| {
        format!("cannot listen on {address}; choose another address by --listen")
    })?;
    let address = listener.local_addr()?;
    Ok((listener, address))
}

async fn start(
    db: &Db,
    layers: Layers,
    config: Config,
    address: SocketAddr,
) -> anyhow::Result<Arc<App>> {
    let dispatch = HttpDispatch::new(HttpOptions {
        idle_connections: idle_connections(&config),
        listeners: vec![address],
        extra_roots: config.extra_roots.clone(),
        ..HttpOptions::default()
    });
    dispatch.set_dev(config.dev.enabled);
    let router = Router::builder()
        .plan(config.plan.clone())
        .store(db.store())
        .dispatch(dispatch.clone())
        .start()
        .await?;
    let sources = Arc::new(Sources::start(db.clone(), router.clone(), &config).await?);
    let in_force = InForce::new(layers, config, router.clone(), sources.clone(), dispatch);
    Ok(Arc::new(App::new(
        db.clone(),
        router,
        sources,
        in_force,
        address,
    )))
}

/// As many as attempts may be under way, so that none has to be opened anew for want of a place.
fn idle_connections(config: &Config) -> usize {
    const LEAST: usize = 4096;
    let pools = config.plan.pools.values();
    let all = pools.map(|pool| pool.concurrency.map_or(LEAST, NonZeroUsize::get));
    all.fold(0, usize::saturating_add).max(LEAST)
}

/// On the standard output, so that whoever starts the program can read where it listens.
fn announce(address: SocketAddr) {
    // Nobody may be there to read it.
    let _ = writeln!(std::io::stdout(), "listening on http://{address}");
}

/// Reloads when asked to; ends when everything is stopped.
async fn obey(app: &Arc<App>, signals: &mut Signals) {
    let reloads = TaskTracker::new();
    while signals.next().await == Signal::Reload {
        let app = app.clone();
        reloads.spawn(async move {
            // Its errors are logged.
            let _ = app.in_force.reload().await;
        });
    }
    stop(app, signals).await;
    reloads.close();
    let _ = tokio::time::timeout(LAST_ANSWERS, reloads.wait()).await;
}

/// Takes nothing more, and waits for what runs. A second signal ends the wait.
async fn stop(app: &App, signals: &mut Signals) {
    let deadline = app.in_force.stop_deadline();
    tracing::info!("stopping: running attempts have {deadline:?}; a second signal cuts them");
    app.stopping.cancel();
    let mut stopped = std::pin::pin!(app.router.stop(deadline));
    loop {
        tokio::select! {
            () = &mut stopped => return,
            () = signals.stop() => {
                tracing::warn!("a second signal: running attempts are cut");
                app.router.cut();
            }
        }
    }
}

/// The API's server. It answers until the very end, so that liveness can be asked while stopping.
struct ServedApi {
    close: CancellationToken,
    task: JoinHandle<std::io::Result<()>>,
}

impl ServedApi {
    fn start(listener: TcpListener, app: Arc<App>) -> Self {
        let close = CancellationToken::new();
        let listener = listener.tap_io(|stream| {
            // A socket that refuses is slower, not wrong.
            let _ = stream.set_nodelay(true);
        });
        let server = axum::serve(listener, api::routes(app))
            .with_graceful_shutdown(close.clone().cancelled_owned());
        Self {
            close,
            task: tokio::spawn(server.into_future()),
        }
    }

    async fn close(self) {
        self.close.cancel();
        let abort = self.task.abort_handle();
        if tokio::time::timeout(LAST_ANSWERS, self.task).await.is_err() {
            abort.abort();
        }
    }
}
