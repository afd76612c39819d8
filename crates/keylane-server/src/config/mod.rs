//! The config: compiled-in defaults, then a file, then the environment, then flags; what comes out
//! is checked whole and needs no further check.

#[cfg(test)]
mod as_flowcatalyst;
pub(crate) mod command;
mod cpus;
mod env;
pub(crate) mod errors;
mod parse;
mod pools;
mod section;
pub(crate) mod sources;
#[cfg(test)]
mod tests;
mod tree;

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use keylane_router::dispatch::Root;
use keylane_router::plan::{BreakerPlan, Plan};

use errors::{Origin, Problem, Problems};
use parse::Wrong;
use section::{Findings, Section, Setting};
use tree::{Node, Table, Value, set};

/// Every option with its default; the base of every config. Those of a broker's sources have a file
/// of their own.
pub(crate) const DOCUMENTED: &str = include_str!("../../keylane.toml");

/// What the program was told.
#[derive(Debug)]
pub(crate) struct Config {
    /// Where the API listens.
    pub(crate) listen: SocketAddr,
    /// The folder with queues and stores.
    pub(crate) data: PathBuf,
    /// Conveniences for trying things out.
    pub(crate) dev: Dev,
    /// Certificates to trust besides the system's.
    pub(crate) extra_roots: Vec<Root>,
    /// What the router does.
    pub(crate) plan: Plan,
    /// What is legal but worth saying at start-up.
    pub(crate) notices: Vec<String>,
    /// All options in force, for `config show`.
    settings: Vec<Setting>,
}

/// Conveniences for trying things out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Dev {
    /// Seed and test routes exist.
    pub(crate) enabled: bool,
    /// A publish to an unknown queue makes it.
    pub(crate) create_queues: bool,
}

/// What is laid over the defaults.
#[derive(Clone, Debug, Default)]
pub(crate) struct Layers {
    /// The config file.
    pub(crate) file: Option<PathBuf>,
    /// The environment; what does not begin with `KEYLANE_` is passed over.
    pub(crate) env: Vec<(String, String)>,
    /// Options by flags of the command line: option, value.
    pub(crate) flags: Vec<(&'static str, String)>,
}

impl Config {
    /// Reads and checks everything; an error holds all that is wrong.
    pub(crate) fn load(layers: Layers) -> Result<Self, Problems> {
        let mut written = layers.file.as_deref().map_or(Ok(Table::new()), read_file)?;
        let documented = documented();
        let strange = env::apply(&mut written, &documented, layers.env);
        for (option, value) in layers.flags {
            let node = Node {
                value: Value::Raw(value),
                origin: Origin::Flag(format!("--{option}")),
            };
            written.insert(option.into(), node);
        }
        let mut config = Self::from_tables(&written, &documented)?;
        if !strange.is_empty() {
            let names = strange.join(", ");
            let notice = format!("these variables are no options and were passed over: {names}");
            config.notices.push(notice);
        }
        Ok(config)
    }

    fn from_tables(written: &Table, defaults: &Table) -> Result<Self, Problems> {
        let findings = Findings::default();
        let mut config = read(Section::top(&findings, written, defaults), defaults);
        let (problems, settings) = findings.into_parts();
        if !problems.is_empty() {
            return Err(Problems(problems));
        }
        config.settings = settings;
        Ok(config)
    }
}

fn documented() -> Table {
    let parse = |text| tree::parse(text, None).expect("the compiled-in files are TOML");
    let mut table = parse(DOCUMENTED);
    let types = sources::TYPES.iter().filter_map(|known| known.documented);
    for (name, mut node) in types.flat_map(|text| sources_in(&parse(text)).clone()) {
        let Value::Table(own) = &mut node.value else {
            continue;
        };
        for (option, common) in table_at(sources_in(&table), "default") {
            own.entry(option.clone()).or_insert_with(|| common.clone());
        }
        set(&mut table, &["sources".into(), name], node);
    }
    table
}

fn read_file(path: &Path) -> Result<Table, Problems> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        Problems(vec![Problem {
            origin: None,
            option: String::new(),
            text: format!("the config file {} cannot be read: {error}", path.display()),
        }])
    })?;
    tree::parse(&text, Some(path.into())).map_err(Problems)
}

fn read(top: Section<'_>, defaults: &Table) -> Config {
    let mut notices = Vec::new();
    let listen = top.get("listen", address);
    let data = top.get("data", folder);
    let dev = read_dev(top.sub("dev"), listen);
    let extra_roots = read_tls(top.sub("tls"));
    let plan = read_plan(&top, defaults, &mut notices);
    if !listen.ip().is_loopback() {
        let text = format!(
            "{listen} can be reached from other machines, and this version has no access tokens; \
             listen on a loopback address such as 127.0.0.1:8080"
        );
        top.problem("listen", text);
    }
    top.finish();
    Config {
        listen,
        data,
        dev,
        extra_roots,
        plan,
        notices,
        settings: Vec::new(),
    }
}

fn read_plan(top: &Section<'_>, defaults: &Table, notices: &mut Vec<String>) -> Plan {
    let automatic = cpus::cpus().saturating_mul(NonZeroUsize::new(4).expect("not zero"));
    let max_in_flight = top.get("max_in_flight", parse::zero_is_none);
    let stop_deadline = top.get("stop_deadline", parse::duration);
    let stall_after = top.get("stall_after", parse::duration);
    let store_budget = top.get("store_budget", parse::size);
    let breaker = read_breaker(top.sub("breaker"));
    let pool = table_at(table_at(defaults, "pools"), "default");
    let pools = pools::read(top.sub("pools"), pool, automatic, notices);
    Plan {
        max_in_flight,
        stop_deadline,
        stall_after,
        store_budget,
        breaker,
        sources: sources::read(top.sub("sources"), sources_in(defaults), &pools),
        pools,
    }
}

fn read_breaker(breaker: Section<'_>) -> BreakerPlan {
    let plan = BreakerPlan {
        failures: breaker.get("failures", parse::share),
        window: breaker.get("window", parse::at_least_one),
        min_lanes: breaker.get("min_lanes", parse::at_least_one),
        open: breaker.get("open", parse::some_time),
        probes: breaker.get("probes", parse::at_least_one),
    };
    if plan.window < plan.min_lanes {
        let text = "`window` is below `min_lanes`, so that the breaker could never open; raise `window` or lower `min_lanes`";
        breaker.conflict(["window", "min_lanes"], text);
    }
    breaker.finish();
    plan
}

fn read_tls(tls: Section<'_>) -> Vec<Root> {
    let roots = tls.get("extra_ca", certificates);
    tls.finish();
    roots
}

fn certificates(node: &Node) -> Result<Vec<Root>, Wrong> {
    const ALLOWED: &str = "give a list of files such as [\"/etc/keylane/ca.pem\"]";
    let Value::List(nodes) = node.resolved() else {
        return Err(ALLOWED.into());
    };
    let mut roots = Vec::new();
    for node in &nodes {
        let path = node.text().ok_or(ALLOWED)?;
        let read = Root::read_pem(Path::new(path));
        roots.extend(read.map_err(|error| format!("{path} cannot be used: {error}"))?);
    }
    Ok(roots)
}

fn read_dev(dev: Section<'_>, listen: SocketAddr) -> Dev {
    let on_loopback = listen.ip().is_loopback();
    let switch = |name| dev.get(name, parse::switch).unwrap_or(on_loopback);
    let read = Dev {
        enabled: switch("enabled"),
        create_queues: switch("create_queues"),
    };
    dev.finish();
    read
}

fn address(node: &Node) -> Result<SocketAddr, Wrong> {
    let text = node.text().unwrap_or_default();
    let text = match text.strip_prefix("localhost:") {
        Some(port) => format!("127.0.0.1:{port}"),
        None => text.into(),
    };
    text.parse()
        .map_err(|_| "give an address and a port such as \"127.0.0.1:8080\"".into())
}

fn folder(node: &Node) -> Result<PathBuf, Wrong> {
    let path = node.text().filter(|path| !path.is_empty());
    path.map(PathBuf::from)
        .ok_or_else(|| "give a folder such as \"./keylane-data\"".into())
}

/// The tables of the sources among what is compiled in: the usual one, and one for each broker.
fn sources_in(documented: &Table) -> &Table {
    table_at(documented, "sources")
}

fn table_at<'t>(table: &'t Table, name: &str) -> &'t Table {
    let found = table.get(name).and_then(Node::table);
    found.expect("what is compiled in has a default pool and a default source")
}
