//! One broker of a run: started, stopped, killed, and started again with the same data on the same ports.
//!
//! ```text
//! <run>/kafka/
//!   ports        its ports, for all its starts
//!   lock         held for the moment of a start or a stop
//!   pid          the process to ask when it shall stop
//!   log          what it printed since its last start
//!   data/        its working folder
//! ```

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Pid;

use super::broker::Broker;
use super::marked;
use super::ports::Ports;
use super::probe;
use super::run::Run;
use crate::Result;
use crate::process::last_line;

/// Six of them start at once on two cores that also build; a Pulsar alone needs five seconds.
const READY_DEADLINE: Duration = Duration::from_secs(150);
const STOP_DEADLINE: Duration = Duration::from_secs(30);

/// Somebody else may take a port between our choice and the broker's start.
const TRIES: usize = 3;

/// For all that run on Java: little memory, a quick start, and no files outside of the working folder.
const JAVA_LEAN: &str = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData -Djava.net.preferIPv4Stack=true -Djava.io.tmpdir=tmp";

/// Asks a broker something that only one that is ready can answer.
type Probe = fn(Broker, &Ports) -> Result<()>;

/// A broker in its run's folder.
pub(crate) struct Server<'a> {
    run: &'a Run,
    broker: Broker,
    home: PathBuf,
    probe: Probe,
}

impl<'a> Server<'a> {
    pub(crate) fn new(run: &'a Run, broker: Broker) -> Self {
        Self {
            run,
            broker,
            home: run.folder().join(broker.name()),
            probe: probe::round_trip,
        }
    }

    /// Started by its recipe in `installed` and ready, unless it is so already. `proxy`: the port of a fault proxy
    /// that it shall advertise.
    pub(crate) fn up(&self, installed: &Path, proxy: Option<u16>) -> Result<Ports> {
        if self.is_there() {
            if self.is_running() {
                return self.wait_ready();
            }
            return self.start(installed);
        }
        let mut tries = 1;
        loop {
            match self.first_start(installed, proxy) {
                Err(_) if tries < TRIES && self.lost_a_port() => self.remove()?,
                ended => return ended,
            }
            tries += 1;
        }
    }

    fn first_start(&self, installed: &Path, proxy: Option<u16>) -> Result<Ports> {
        // Not the run's folder too: when that is gone, the run has ended.
        if !self.home.exists() {
            fs::create_dir(&self.home)?;
        }
        Ports::choose(self.broker, proxy, &self.home.join("ports"))?;
        self.start(installed)
    }

    /// Java and Erlang say it in these words.
    fn lost_a_port(&self) -> bool {
        let log = fs::read(self.home.join("log")).unwrap_or_default();
        let log = String::from_utf8_lossy(&log).to_lowercase();
        log.contains("address already in use") || log.contains("eaddrinuse")
    }

    /// Started again with its data and ports, and ready.
    pub(crate) fn start(&self, installed: &Path) -> Result<Ports> {
        self.launch(installed)?;
        self.wait_ready().inspect_err(|_| {
            // Half a broker is of no use to anybody; its log stays.
            marked::kill(&self.home);
        })
    }

    fn launch(&self, installed: &Path) -> Result<()> {
        let _lock = self.lock()?;
        if self.run.is_closing() {
            return Err(format!("{}: its run is being ended", self.broker).into());
        }
        if self.is_running() {
            return Err(format!("{} is running already; stop it first", self.broker).into());
        }
        let mut command = self.command(installed, &self.ports()?)?;
        let mut child = marked::start(&mut command, &self.home)?;
        fs::write(self.home.join("pid"), child.id().to_string())?;
        // Somebody has to wait for it when it ends; usually it outlives us.
        thread::spawn(move || child.wait());
        Ok(())
    }

    fn command(&self, installed: &Path, ports: &Ports) -> Result<Command> {
        let data = self.home.join("data");
        fs::create_dir_all(data.join("tmp"))?;
        let log = File::create(self.home.join("log"))?;
        let mut command = Command::new("sh");
        // A terminal that closes is no reason to end.
        command.args(["-c", "trap '' HUP; . \"$HERE/start.sh\""]);
        command
            .current_dir(&data)
            .env("HERE", installed)
            .env("DATA", &data)
            .env("JAVA_LEAN", JAVA_LEAN)
            .env("TMPDIR", data.join("tmp"));
        for (name, port) in ports.iter() {
            command.env(format!("PORT_{}", name.to_uppercase()), port.to_string());
        }
        // Away from our terminal's Ctrl-C: whoever owns the run ends it.
        command
            .process_group(0)
            .stdin(Stdio::null())
            .stderr(log.try_clone()?)
            .stdout(log);
        Ok(command)
    }

    fn wait_ready(&self) -> Result<Ports> {
        let ports = self.ports()?;
        let last = Instant::now() + READY_DEADLINE;
        loop {
            let answer = (self.probe)(self.broker, &ports);
            let Err(why) = answer else {
                return Ok(ports);
            };
            let log = self.home.join("log");
            if !self.is_running() {
                return Err(format!("{} ended: {}", self.broker, last_line(&log)).into());
            }
            if self.run.is_closing() {
                return Err(format!("{}: its run is being ended", self.broker).into());
            }
            if Instant::now() > last {
                return Err(format!(
                    "{} is not ready after {READY_DEADLINE:?}: {why}",
                    self.broker
                )
                .into());
            }
            thread::sleep(Duration::from_millis(150));
        }
    }

    /// Stopped in order; its data stay.
    pub(crate) fn stop(&self) -> Result<()> {
        let _lock = self.lock()?;
        self.gone(marked::end(&self.home, self.pid(), STOP_DEADLINE))
    }

    /// Killed in the middle of what it does; its data stay.
    pub(crate) fn kill(&self) -> Result<()> {
        let _lock = self.lock()?;
        self.gone(marked::kill(&self.home))
    }

    fn gone(&self, gone: bool) -> Result<()> {
        if gone {
            return Ok(());
        }
        Err(format!("{} does not end, not even killed", self.broker).into())
    }

    /// Killed and forgotten, with its data.
    pub(crate) fn remove(&self) -> Result<()> {
        self.kill()?;
        fs::remove_dir_all(&self.home)?;
        Ok(())
    }

    /// Whether the run has it, running or not.
    pub(crate) fn is_there(&self) -> bool {
        self.home.join("ports").exists()
    }

    pub(crate) fn is_running(&self) -> bool {
        // The one we know is looked at first, because the others have to be searched for.
        let known = self
            .pid()
            .is_some_and(|pid| marked::is_marked(pid, &self.home));
        known || !marked::marked(&self.home).is_empty()
    }

    /// Whether a message goes in and comes out again.
    pub(crate) fn probe(&self) -> Result<()> {
        (self.probe)(self.broker, &self.ports()?)
    }

    pub(crate) fn broker(&self) -> Broker {
        self.broker
    }

    pub(crate) fn ports(&self) -> Result<Ports> {
        Ports::read(&self.home.join("ports"))
    }

    pub(crate) fn memory(&self) -> u64 {
        marked::memory(&self.home)
    }

    fn pid(&self) -> Option<Pid> {
        Pid::from_raw(
            fs::read_to_string(self.home.join("pid"))
                .ok()?
                .parse()
                .ok()?,
        )
    }

    fn lock(&self) -> Result<File> {
        if !self.is_there() {
            return Err(format!(
                "{0} is not part of the run `{1}`; start it with `cargo xtask brokers up {0}`",
                self.broker,
                self.run.name()
            )
            .into());
        }
        let file = File::create(self.home.join("lock"))?;
        file.lock()?;
        Ok(file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::TempDir;

    /// A run with one server whose recipe is `start`, and that is ready as soon as it has started.
    struct Fixture {
        run: Run,
        recipe: TempDir,
    }

    impl Fixture {
        fn new(name: &str, start: &str) -> Self {
            let run = Run::named(&format!("unit-{}-{name}", std::process::id())).unwrap();
            run.create().unwrap();
            let recipe = tempfile::tempdir().unwrap();
            fs::write(recipe.path().join("start.sh"), start).unwrap();
            Self { run, recipe }
        }

        fn server(&self, probe: Probe) -> Server<'_> {
            Server {
                probe,
                ..Server::new(&self.run, Broker::Sqs)
            }
        }
    }

    impl Drop for Fixture {
        fn drop(&mut self) {
            let _ = self.run.remove();
        }
    }

    fn always(_: Broker, _: &Ports) -> Result<()> {
        Ok(())
    }

    fn never(_: Broker, _: &Ports) -> Result<()> {
        Err("nobody answers".into())
    }

    #[test]
    fn a_server_starts_again_with_its_data_and_ports_after_a_stop_and_after_a_kill() {
        let fixture = Fixture::new(
            "again",
            "echo \"$PORT_CLIENT\" >> \"$DATA/starts\"; exec sleep 600",
        );
        let server = fixture.server(always);
        let ports = server.up(fixture.recipe.path(), None).unwrap();
        let starts = server.home.join("data/starts");
        let port = format!("{}\n", ports.address("client").port());
        let started = |times: usize| {
            let all = port.repeat(times);
            marked::until(Duration::from_secs(60), || {
                fs::read_to_string(&starts).is_ok_and(|text| text == all)
            })
        };
        assert!(started(1));
        server.stop().unwrap();
        assert!(!server.is_running());
        assert_eq!(server.start(fixture.recipe.path()).unwrap(), ports);
        assert!(started(2));
        server.kill().unwrap();
        assert!(!server.is_running());
        assert_eq!(server.up(fixture.recipe.path(), None).unwrap(), ports);
        assert!(started(3));
        server.remove().unwrap();
        assert!(!server.is_running() && !server.home.exists());
    }

    #[test]
    fn one_that_runs_is_not_started_twice() {
        let fixture = Fixture::new("twice", "exec sleep 600");
        let server = fixture.server(always);
        server.up(fixture.recipe.path(), None).unwrap();
        let before = marked::marked(&server.home);
        server.up(fixture.recipe.path(), None).unwrap();
        assert_eq!(marked::marked(&server.home), before);
        let error = server.start(fixture.recipe.path()).unwrap_err().to_string();
        assert!(error.contains("sqs is running already"), "{error}");
    }

    #[test]
    fn one_that_ends_at_once_says_why() {
        let fixture = Fixture::new("ends", "echo no licence >&2; exit 1");
        let error = fixture
            .server(never)
            .up(fixture.recipe.path(), None)
            .unwrap_err()
            .to_string();
        assert_eq!(error, "sqs ended: no licence");
    }

    #[test]
    fn a_lost_port_is_tried_again_with_other_ports() {
        let start =
            "echo \"$PORT_CLIENT\" >> \"$HERE/ports\"; echo 'Address already in use'; exit 1";
        let fixture = Fixture::new("ports", start);
        fixture
            .server(never)
            .up(fixture.recipe.path(), None)
            .unwrap_err();
        let tried = fs::read_to_string(fixture.recipe.path().join("ports")).unwrap();
        assert_eq!(tried.lines().count(), TRIES, "{tried}");
    }

    #[test]
    fn nothing_starts_in_a_run_that_is_being_ended() {
        let fixture = Fixture::new("ended", "exec sleep 600");
        std::fs::File::create(fixture.run.folder().join("closing")).unwrap();
        let server = fixture.server(always);
        let error = server
            .up(fixture.recipe.path(), None)
            .unwrap_err()
            .to_string();
        assert!(error.contains("being ended"), "{error}");
        assert!(!server.is_running());
    }

    #[test]
    fn one_that_was_never_up_names_the_remedy() {
        let fixture = Fixture::new("absent", "");
        let error = fixture.server(always).stop().unwrap_err().to_string();
        assert!(error.contains("brokers up sqs"), "{error}");
    }
}
