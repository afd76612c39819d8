//! `cargo xtask brokers`: real brokers, installed by the names of their packages and started on loopback.
//!
//! Reading order: `broker` says which there are, `xtask/brokers` holds their recipes. `install` fetches one, `run` is
//! a set that was started together, `server` is one of it, `probe` asks it something. `ports` and `marked` keep runs
//! apart. `keeper` has them for the time of `cargo xtask test`.

mod broker;
mod install;
pub(crate) mod keeper;
mod marked;
mod ports;
mod probe;
mod run;
mod server;

use std::thread;
use std::time::Instant;

use crate::{Answer, Result};
use broker::Broker;
pub(crate) use broker::{chosen, required};
use install::Installer;
use run::Run;
use server::Server;

const HELP: &str = "\
cargo xtask brokers <command> [--run NAME] [name…]

  install     fetch and make what is missing, into the cache
  up          install, start on free ports of loopback, wait until a message goes in and out
              --proxy-port kafka=PORT (also pulsar): the port of a fault proxy that it shall advertise
  env         print the variables that point the tests at them: eval \"$(cargo xtask brokers env)\"
  status      what is installed, running and answering
  stop        stop, and keep the data
  kill        kill -9, and keep the data
  start       start again with the same data and ports
  restart     stop, then start
  check       see that each keeps a message through a stop and, where it can, through a kill -9
  down        kill, and remove the data

names: rabbitmq, activemq, artemis, sqs, kafka, pulsar; none means all (for what is up: all that are up).
A run is a set that was started together. Several can be up at once; without a name it is `up`,
or KEYLANE_BROKERS_RUN.
";

/// What was asked for on the command line.
struct Request<'a> {
    run: Run,
    names: Vec<&'a str>,
    proxies: Vec<(Broker, u16)>,
}

pub(crate) fn run(args: &[&str]) -> Result<Answer> {
    let (command, rest) = match args {
        [] | ["help" | "--help" | "-h", ..] => {
            print!("{HELP}");
            return Ok(Answer::Good);
        }
        ["keep", run, names @ ..] => return keeper::keep(run, names),
        [command, rest @ ..] => (*command, rest),
    };
    on_linux()?;
    run::sweep()?;
    let request = Request::parse(rest)?;
    if command != "up" && !request.proxies.is_empty() {
        return Err("--proxy-port is for `up`: a broker keeps what it advertises".into());
    }
    match command {
        "install" => install(&request),
        "up" => up(&request),
        "env" => env(&request),
        "status" => status(&request),
        "stop" => request.each(|server| server.stop(), "stopped"),
        "kill" => request.each(|server| server.kill(), "killed"),
        "start" => request.each(start, "ready"),
        "restart" => request.each(restart, "ready"),
        "check" => request.each(check, "keeps its messages"),
        "down" => down(&request),
        other => {
            Err(format!("`brokers {other}` is no command; see `cargo xtask brokers help`").into())
        }
    }
}

/// Processes are found by way of `/proc`.
fn on_linux() -> Result<()> {
    if cfg!(target_os = "linux") {
        return Ok(());
    }
    Err("brokers are started on Linux only".into())
}

impl<'a> Request<'a> {
    fn parse(args: &[&'a str]) -> Result<Self> {
        let mut run = None;
        let mut names = Vec::new();
        let mut proxies = Vec::new();
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            match *arg {
                "--run" => {
                    let name = args
                        .next()
                        .ok_or("--run wants a name, such as `--run mine`")?;
                    run = Some(Run::named(name)?);
                }
                "--proxy-port" => {
                    let value = args.next().copied().unwrap_or_default();
                    proxies.push(proxy(value)?);
                }
                option if option.starts_with('-') => {
                    return Err(
                        format!("`{option}` is no option; see `cargo xtask brokers help`").into(),
                    );
                }
                name => names.push(name),
            }
        }
        broker::chosen(&names)?;
        let run = run.map_or_else(Run::current, Ok)?;
        Ok(Self {
            run,
            names,
            proxies,
        })
    }

    /// The named ones, or all.
    fn brokers(&self) -> Result<Vec<Broker>> {
        broker::chosen(&self.names)
    }

    /// The named ones, or all that the run has.
    fn brokers_there(&self) -> Result<Vec<Broker>> {
        if self.names.is_empty() {
            return Ok(self.run.brokers());
        }
        self.brokers()
    }

    fn proxy_of(&self, broker: Broker) -> Option<u16> {
        let proxy = self.proxies.iter().find(|(known, _)| *known == broker);
        proxy.map(|(_, port)| *port)
    }

    /// Does something with each that is there, all at once.
    fn each(&self, what: impl Fn(&Server) -> Result<()> + Sync, done: &str) -> Result<Answer> {
        let brokers = self.brokers_there()?;
        if brokers.is_empty() {
            return Err(format!(
                "no broker is up in the run `{}`; see `cargo xtask brokers help`",
                self.run.name()
            )
            .into());
        }
        Ok(side_by_side(&brokers, |broker| {
            what(&Server::new(&self.run, broker)).map(|()| done.to_owned())
        }))
    }
}

/// `kafka=29092`
fn proxy(value: &str) -> Result<(Broker, u16)> {
    let wanted =
        || format!("--proxy-port wants a broker and a port, such as `kafka=29092`, not `{value}`");
    let (name, port) = value.split_once('=').ok_or_else(wanted)?;
    let broker = broker::named(name)?;
    if !broker.advertises() {
        return Err(
            format!("{broker} advertises no port: a proxy in front of it may have any").into(),
        );
    }
    Ok((broker, port.parse().map_err(|_| wanted())?))
}

fn install(request: &Request) -> Result<Answer> {
    let installer = Installer {
        say: &say,
        run: None,
    };
    Ok(side_by_side(&request.brokers()?, |broker| {
        installer
            .installed(broker)
            .map(|home| home.display().to_string())
    }))
}

fn up(request: &Request) -> Result<Answer> {
    // Ours until all have been tried: a new run that is interrupted is cleared away by the next command.
    let owner = if request.run.folder().exists() {
        None
    } else {
        Some(request.run.own()?)
    };
    let installer = Installer {
        say: &say,
        run: None,
    };
    let answer = side_by_side(&request.brokers()?, |broker| {
        let installed = installer.installed(broker)?;
        let ports = Server::new(&request.run, broker).up(&installed, request.proxy_of(broker))?;
        Ok(broker.url(&ports))
    });
    if let Some(owner) = owner {
        request.run.release(owner)?;
    }
    let run = match request.run.name() {
        "up" => String::new(),
        name => format!(" --run {name}"),
    };
    say(&format!(
        "for the tests: eval \"$(cargo xtask brokers env{run})\"; to end it: cargo xtask brokers down{run}"
    ));
    Ok(answer)
}

fn env(request: &Request) -> Result<Answer> {
    for broker in request.brokers_there()? {
        let ports = Server::new(&request.run, broker).ports()?;
        for (name, value) in broker.variables(&ports) {
            println!("export {name}='{value}'");
        }
    }
    println!(
        "export KEYLANE_BROKERS_RUN='{}'",
        request.run.folder().display()
    );
    Ok(Answer::Good)
}

fn status(request: &Request) -> Result<Answer> {
    println!(
        "{:<10}{:<11}{:<10}{:>7}  url",
        "broker", "installed", "state", "MiB"
    );
    let mut sum = 0;
    for broker in request.brokers()? {
        let installed = if install::is_installed(broker)? {
            "yes"
        } else {
            "no"
        };
        let server = Server::new(&request.run, broker);
        let (state, url) = match (server.is_there(), server.is_running()) {
            (false, _) => ("-", String::new()),
            (true, false) => ("stopped", broker.url(&server.ports()?)),
            (true, true) => match server.probe() {
                Ok(()) => ("ready", broker.url(&server.ports()?)),
                Err(why) => ("no answer", why.to_string()),
            },
        };
        let memory = server.memory() >> 20;
        sum += memory;
        println!("{broker:<10}{installed:<11}{state:<10}{memory:>7}  {url}");
    }
    println!("{:<10}{:<11}{:<10}{sum:>7}", "all", "", "");
    Ok(Answer::Good)
}

fn down(request: &Request) -> Result<Answer> {
    let answer = if request.names.is_empty() {
        Answer::Good
    } else {
        request.each(|server| server.remove(), "down")?
    };
    if request.names.is_empty() || request.run.brokers().is_empty() {
        request.run.remove()?;
    }
    Ok(answer)
}

fn start(server: &Server) -> Result<()> {
    let installer = Installer {
        say: &say,
        run: None,
    };
    let installed = installer.installed(server.broker())?;
    server.start(&installed).map(|_| ())
}

fn restart(server: &Server) -> Result<()> {
    server.stop()?;
    start(server)
}

/// A message is put in before and must come out after.
fn check(server: &Server) -> Result<()> {
    survives(server, "a stop", |server| server.stop())?;
    if server.broker().survives_a_kill() {
        survives(server, "a kill", |server| server.kill())?;
    }
    Ok(())
}

fn survives(server: &Server, what: &str, end: impl Fn(&Server) -> Result<()>) -> Result<()> {
    let (broker, at) = (server.broker(), server.ports()?.address("client"));
    let body = probe::unique();
    probe::publish(broker, at, "keylane-check", &body)?;
    end(server)?;
    start(server)?;
    probe::find(broker, at, "keylane-check", &body)
        .map_err(|error| format!("its message is gone after {what}: {error}").into())
}

/// Runs it for all brokers at once and prints how each ended. Good when all did well.
fn side_by_side(brokers: &[Broker], what: impl Fn(Broker) -> Result<String> + Sync) -> Answer {
    let begin = Instant::now();
    let one = |broker: Broker| {
        let ended = what(broker);
        let seconds = begin.elapsed().as_secs_f64();
        match &ended {
            Ok(text) => println!("{broker:<10}{seconds:>6.1} s  {text}"),
            Err(error) => println!("{broker:<10}{seconds:>6.1} s  FAILED: {error}"),
        }
        ended.is_ok()
    };
    let one = &one;
    let good = thread::scope(|scope| {
        let spawn = |broker: &Broker| {
            let broker = *broker;
            scope.spawn(move || one(broker))
        };
        let threads: Vec<_> = brokers.iter().map(spawn).collect();
        let ended: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
        ended.iter().all(|ended| matches!(ended, Ok(true)))
    });
    if good { Answer::Good } else { Answer::Bad }
}

/// Progress goes beside the answer, so that the answer can be read by a program.
fn say(text: &str) {
    eprintln!("{text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(args: &[&str]) -> String {
        run(args).err().expect("an error").to_string()
    }

    #[test]
    fn wrong_arguments_are_named_with_the_remedy() {
        assert!(error(&["upp"]).contains("`brokers upp` is no command; see"));
        assert!(error(&["up", "--fast"]).contains("`--fast` is no option; see"));
        assert!(
            error(&["up", "kafak"]).contains("no broker is called `kafak`; there are: rabbitmq")
        );
        assert!(error(&["up", "--run"]).contains("--run wants a name"));
        assert!(
            error(&["up", "--proxy-port", "kafka"]).contains("such as `kafka=29092`, not `kafka`")
        );
        assert!(error(&["up", "--proxy-port", "kafka=many"]).contains("not `kafka=many`"));
        assert!(error(&["up", "--proxy-port", "sqs=29092"]).contains("sqs advertises no port"));
        assert!(error(&["stop", "--proxy-port", "kafka=29092"]).contains("is for `up`"));
        assert!(
            error(&["stop", "--run", "nobody-has-this"])
                .contains("no broker is up in the run `nobody-has-this`")
        );
    }

    #[test]
    fn a_request_has_names_a_run_and_proxies_in_any_order() {
        let request = Request::parse(&[
            "kafka",
            "--run",
            "mine",
            "--proxy-port",
            "kafka=29092",
            "sqs",
        ])
        .unwrap();
        assert_eq!(request.run.name(), "mine");
        assert_eq!(request.brokers().unwrap(), [Broker::Kafka, Broker::Sqs]);
        assert_eq!(request.proxy_of(Broker::Kafka), Some(29092));
        assert_eq!(request.proxy_of(Broker::Pulsar), None);
    }
}
