//! Installing a broker by the names of its packages: from apt, PyPI or Maven Central, with the machine's own clients.
//!
//! What is not the system's lies in the cache, in a folder named after the recipe's text: a changed recipe is
//! installed beside the old one. A folder is made under another name and renamed when it is complete, so one that
//! is there is whole, and later runs fetch nothing.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use super::broker::Broker;
use super::marked::MARK;
use super::run::fingerprint;
use crate::process::{Ended, last_line, run_logged};
use crate::{Result, place};

/// A download that takes longer hangs.
const FETCH_LIMIT: Duration = Duration::from_secs(120);
/// Pulsar is one file of 245 MB.
const LONG_FETCH_LIMIT: Duration = Duration::from_secs(240);
/// For what runs without the network.
const LOCAL_LIMIT: Duration = Duration::from_secs(120);
/// Unpacking by the system's package manager is slow on a slow disk, and must not be cut.
const UNPACK_LIMIT: Duration = Duration::from_secs(600);
const TRIES: usize = 4;

const RABBITMQ: &str = "/usr/lib/rabbitmq/bin/rabbitmq-server";

/// The system's packages, the first that can be had of each line.
const RABBITMQ_PACKAGES: &[&str] = &["rabbitmq-server"];
const JAVA_PACKAGES: &[&str] = &["openjdk-17-jdk-headless", "openjdk-21-jdk-headless"];
const MAVEN_PACKAGES: &[&str] = &["maven"];
const PYTHON_PACKAGES: &[&str] = &["python3-venv"];

const JAVA_AT_LEAST: u32 = 17;

/// Installs brokers, and says what it does.
pub(crate) struct Installer<'a> {
    pub(crate) say: &'a (dyn Fn(&str) + Sync),
    /// The folder of the run that waits for it; with that run all that was started here ends.
    pub(crate) run: Option<&'a Path>,
}

impl Installer<'_> {
    /// The broker's folder, with its recipe; fetched and made unless it is there.
    pub(crate) fn installed(&self, broker: Broker) -> Result<PathBuf> {
        self.install(broker)
            .map_err(|error| format!("{broker} cannot be installed: {error}").into())
    }

    fn install(&self, broker: Broker) -> Result<PathBuf> {
        let home = home_of(broker)?;
        if is_installed(broker)? {
            return Ok(home);
        }
        let _turn = self.turn(broker.name())?;
        if is_installed(broker)? {
            return Ok(home);
        }
        clear_drafts(broker)?;
        // Named after us: a program that was started by a run that is gone may still write to that run's draft.
        let draft = folder()?.join(format!("draft-{broker}-{}", std::process::id()));
        let made = self.make(broker, &draft);
        if made.is_ok() {
            clear(&home)?;
            fs::rename(&draft, &home)?;
        }
        clear(&draft)?;
        made.map(|()| home)
    }

    fn make(&self, broker: Broker, draft: &Path) -> Result<()> {
        DirBuilder::new().recursive(true).create(draft)?;
        for (name, text) in broker.recipe() {
            fs::write(draft.join(name), text)?;
        }
        match broker {
            Broker::Rabbitmq if Path::new(RABBITMQ).exists() => Ok(()),
            Broker::Rabbitmq => self.packages("rabbitmq-server", RABBITMQ_PACKAGES),
            Broker::Sqs => self.python(broker, draft),
            Broker::Activemq => self.java(broker, draft, Some("Classic.java")),
            Broker::Artemis => self.java(broker, draft, Some("Artemis.java")),
            Broker::Kafka | Broker::Pulsar => self.java(broker, draft, None),
        }
    }

    fn python(&self, broker: Broker, draft: &Path) -> Result<()> {
        let venv = draft.join("venv");
        let create = |python: &str| {
            let mut create = Command::new(python);
            create.args(["-m", "venv", "--clear"]).arg(&venv);
            self.local(broker, create)
        };
        if create("python3").is_err() {
            self.packages("python3 with venv", PYTHON_PACKAGES)?;
            create("/usr/bin/python3")?;
        }
        (self.say)(&format!("{broker}: fetching from PyPI"));
        self.fetch(&log_of(broker.name())?, FETCH_LIMIT, || {
            let mut pip = Command::new(venv.join("bin/python3"));
            pip.args(["-m", "pip", "install", "--quiet", "--no-input"]);
            pip.args(["--timeout", "15", "--retries", "3", "--requirement"]);
            pip.arg(draft.join("requirements.txt"));
            pip
        })
    }

    fn java(&self, broker: Broker, draft: &Path, source: Option<&str>) -> Result<()> {
        if !has_java() || !answers("javac") {
            self.packages("a JDK of version 17 or later", JAVA_PACKAGES)?;
        }
        if !answers("mvn") {
            self.packages("Maven", MAVEN_PACKAGES)?;
        }
        {
            // Two Mavens in one local repository can spoil each other's files.
            let _turn = self.turn("maven")?;
            (self.say)(&format!("{broker}: fetching from Maven Central"));
            let limit = match broker {
                Broker::Pulsar => LONG_FETCH_LIMIT,
                _ => FETCH_LIMIT,
            };
            self.fetch(&log_of(broker.name())?, limit, || maven(draft))?;
        }
        if let Some(source) = source {
            self.local(broker, javac(draft, source))?;
        }
        Ok(())
    }

    /// One of the system's packages. Without root we can only say which.
    fn packages(&self, what: &str, packages: &[&str]) -> Result<()> {
        let _turn = self.turn("apt")?;
        let apt = answers("apt-get");
        if !apt || !rustix::process::getuid().is_root() {
            let remedy = packages.join(" or ");
            return Err(format!(
                "{what} is missing and only root can install it: apt-get install --no-install-recommends {remedy}"
            )
            .into());
        }
        let mut last = Ok(());
        for package in packages {
            (self.say)(&format!("installing {package} by apt"));
            last = self.package(package);
            if last.is_ok() {
                break;
            }
        }
        last
    }

    /// Fetched first, because that may be cut and repeated; unpacking must not be cut.
    fn package(&self, package: &str) -> Result<()> {
        let log = log_of("apt")?;
        let download = || {
            let mut download = apt_get();
            download.args(["install", "--download-only", package]);
            download
        };
        if ended(&mut self.marked(download()), &log, FETCH_LIMIT).is_err() {
            // Lists that are missing or old name files that are not there.
            let update = || {
                let mut update = apt_get();
                update.arg("update");
                update
            };
            self.fetch(&log, FETCH_LIMIT, update)?;
            self.fetch(&log, FETCH_LIMIT, download)?;
        }
        let _quiet = NoServices::begin()?;
        // What an earlier, interrupted install left open; nothing in the usual case.
        let _ = ended(
            Command::new("dpkg").args(["--configure", "-a"]),
            &log,
            UNPACK_LIMIT,
        );
        // Not marked, and in a group of its own: neither our end nor Ctrl-C shall interrupt it.
        let mut unpack = apt_get();
        unpack
            .args(["install", "--no-download", package])
            .process_group(0);
        ended(&mut unpack, &log, UNPACK_LIMIT)
    }

    /// Runs what needs no network.
    fn local(&self, broker: Broker, command: Command) -> Result<()> {
        ended(
            &mut self.marked(command),
            &log_of(broker.name())?,
            LOCAL_LIMIT,
        )
    }

    /// Runs what needs the network: cut when it hangs, and repeated.
    fn fetch(&self, log: &Path, limit: Duration, command: impl Fn() -> Command) -> Result<()> {
        let mut tries = 1;
        loop {
            match ended(&mut self.marked(command()), log, limit) {
                Err(error) if tries < TRIES => {
                    (self.say)(&format!("try {tries} of {TRIES} failed: {error}"));
                }
                ended => return ended,
            }
            tries += 1;
        }
    }

    fn marked(&self, mut command: Command) -> Command {
        if let Some(run) = self.run {
            command.env(MARK, run);
        }
        command
    }

    /// Waits until nobody else on this machine does the same. The answer has to be kept.
    fn turn(&self, what: &str) -> Result<File> {
        let file = File::create(folder()?.join(format!("{what}.lock")))?;
        if file.try_lock().is_err() {
            (self.say)(&format!("waiting for another install ({what})"));
            // Whoever holds it has limits on all it does, and loses it when it dies.
            file.lock()?;
        }
        Ok(file)
    }
}

/// Whether nothing needs to be fetched or made.
pub(crate) fn is_installed(broker: Broker) -> Result<bool> {
    let home = home_of(broker)?;
    Ok(home.exists()
        && match broker {
            Broker::Rabbitmq => Path::new(RABBITMQ).exists(),
            // The interpreter that it was made with may have gone.
            Broker::Sqs => is_good(
                Command::new(home.join("venv/bin/python3")).args(["-c", "import ministack"]),
            ),
            _ => has_java(),
        })
}

pub(super) fn home_of(broker: Broker) -> Result<PathBuf> {
    let recipe: String = broker
        .recipe()
        .iter()
        .flat_map(|(name, text)| [*name, *text])
        .collect();
    let print = fingerprint(recipe.as_bytes());
    Ok(folder()?.join(format!("{broker}-{print}")))
}

fn folder() -> Result<PathBuf> {
    let folder = place::cache()?.join("brokers");
    fs::create_dir_all(&folder)?;
    Ok(folder)
}

/// What the last command for it printed.
fn log_of(what: &str) -> Result<PathBuf> {
    Ok(folder()?.join(format!("{what}.log")))
}

/// Only for the one whose turn it is: all drafts that there are then belong to runs that are gone.
fn clear_drafts(broker: Broker) -> Result<()> {
    for entry in fs::read_dir(folder()?)? {
        let entry = entry?;
        if entry
            .file_name()
            .to_string_lossy()
            .starts_with(&format!("draft-{broker}-"))
        {
            clear(&entry.path())?;
        }
    }
    Ok(())
}

fn clear(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Its `package` phase copies or unpacks the jars into the recipe's folder. A connection without data for 15 seconds
/// is cut; both spellings, because Maven changed its transport with 3.9.
fn maven(draft: &Path) -> Command {
    let mut maven = Command::new("mvn");
    maven.current_dir(draft).args(["--quiet", "--batch-mode"]);
    maven.args([
        "-Dmaven.wagon.rto=15000",
        "-Dmaven.wagon.http.retryHandler.count=3",
    ]);
    maven.args([
        "-Daether.connector.requestTimeout=15000",
        "-Daether.connector.http.retryHandler.count=3",
    ]);
    // Marks a file that failed once as not to be asked for again, unless told otherwise.
    maven.args(["--update-snapshots", "package"]);
    maven
}

fn javac(draft: &Path, source: &str) -> Command {
    let mut javac = Command::new("javac");
    javac
        .current_dir(draft)
        .args(["-cp", "lib/*", "-d", "classes", source]);
    javac
}

fn apt_get() -> Command {
    let mut apt = Command::new("apt-get");
    apt.env("DEBIAN_FRONTEND", "noninteractive");
    apt.args(["--yes", "--quiet", "--no-install-recommends"]);
    apt.args([
        "-o",
        "Acquire::Retries=3",
        "-o",
        "Acquire::http::Timeout=15",
    ]);
    apt.args([
        "-o",
        "Acquire::https::Timeout=15",
        "-o",
        "DPkg::Lock::Timeout=120",
    ]);
    apt
}

/// Keeps packages from starting their own servers while it lives: we start ours.
struct NoServices {
    file: Option<PathBuf>,
}

const POLICY: &str = "/usr/sbin/policy-rc.d";
const POLICY_TEXT: &str =
    "#!/bin/sh\n# Put here by Keylane's xtask for the time of an install.\nexit 101\n";

impl NoServices {
    fn begin() -> Result<Self> {
        use std::os::unix::fs::PermissionsExt;
        let file = PathBuf::from(POLICY);
        // Somebody's own stays; ours may be left from a run that was killed.
        if fs::read_to_string(&file).is_ok_and(|text| text != POLICY_TEXT) {
            return Ok(Self { file: None });
        }
        fs::write(&file, POLICY_TEXT)?;
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755))?;
        Ok(Self { file: Some(file) })
    }
}

impl Drop for NoServices {
    fn drop(&mut self) {
        if let Some(file) = &self.file {
            let _ = fs::remove_file(file);
        }
    }
}

fn has_java() -> bool {
    let Ok(answer) = Command::new("java").arg("-version").output() else {
        return false;
    };
    let text = String::from_utf8_lossy(&answer.stderr).into_owned();
    java_version(&text).is_some_and(|version| version >= JAVA_AT_LEAST)
}

/// `openjdk version "17.0.15" 2025-04-15`
fn java_version(text: &str) -> Option<u32> {
    let (_, version) = text.split_once("version \"")?;
    let end = version.find(|c: char| !c.is_ascii_digit())?;
    version[..end].parse().ok()
}

/// Whether there is such a program. They all know this option.
fn answers(program: &str) -> bool {
    is_good(Command::new(program).arg("--version"))
}

fn is_good(command: &mut Command) -> bool {
    let quiet = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    quiet.status().is_ok_and(|status| status.success())
}

/// Runs to a good end within the limit, or says what the program said last.
fn ended(command: &mut Command, log: &Path, limit: Duration) -> Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    match run_logged(command, log, limit) {
        Ok(Ended::By(status)) if status.success() => Ok(()),
        Ok(Ended::By(status)) => {
            let (said, log) = (complaint(log), log.display());
            Err(format!("{program}: {status}: {said} (more in {log})").into())
        }
        Ok(Ended::Deadline) => Err(format!("{program} was cut after {limit:?}").into()),
        Err(error) => Err(format!("{program} cannot be run: {error}").into()),
    }
}

/// The first line that calls itself an error, or else the last one: Maven ends with a page of advice.
fn complaint(log: &Path) -> String {
    let text = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let is_error = |line: &&str| {
        ["[ERROR]", "ERROR", "E:"]
            .iter()
            .any(|word| line.starts_with(word))
    };
    text.lines()
        .find(is_error)
        .map_or_else(|| last_line(log), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_of_java_is_read_from_its_own_words() {
        assert_eq!(
            java_version("openjdk version \"17.0.15\" 2025-04-15"),
            Some(17)
        );
        assert_eq!(java_version("java version \"1.8.0_361\""), Some(1));
        assert_eq!(java_version("openjdk version \"25\" 2025-09-16"), Some(25));
        assert_eq!(java_version("command not found"), None);
    }

    #[test]
    fn a_program_that_fails_hangs_or_is_missing_is_named_with_what_it_said() {
        let home = tempfile::tempdir().unwrap();
        let log = home.path().join("log");
        let mut fails = Command::new("sh");
        fails.args(["-c", "echo no route; exit 3"]);
        let error = ended(&mut fails, &log, LOCAL_LIMIT)
            .unwrap_err()
            .to_string();
        assert!(error.contains("sh: exit status: 3: no route"), "{error}");
        let error = ended(Command::new("sleep").arg("600"), &log, Duration::ZERO).unwrap_err();
        assert_eq!(error.to_string(), "sleep was cut after 0ns");
        let error = ended(&mut Command::new("no-such-program"), &log, LOCAL_LIMIT).unwrap_err();
        assert!(
            error.to_string().contains("no-such-program cannot be run"),
            "{error}"
        );
    }

    #[test]
    fn what_fails_is_repeated_and_then_given_up() {
        let home = tempfile::tempdir().unwrap();
        let count = home.path().join("count");
        let installer = Installer {
            say: &|_| {},
            run: None,
        };
        let command = || {
            let mut command = Command::new("sh");
            command.args(["-c", "echo x >> \"$0\"; exit 1"]).arg(&count);
            command
        };
        assert!(
            installer
                .fetch(&home.path().join("log"), LOCAL_LIMIT, command)
                .is_err()
        );
        assert_eq!(fs::read_to_string(&count).unwrap().lines().count(), TRIES);
    }
}
