//! The processes of the demo: this program again, with `run`.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::Context as _;
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};

/// How long a process may take to stop in order.
const STOP_LIMIT: Duration = Duration::from_secs(30);
const TAIL_LINES: usize = 12;

/// How to start one.
#[derive(Debug)]
pub(super) struct Launch {
    pub(super) config: PathBuf,
    pub(super) folder: PathBuf,
    pub(super) environment: Vec<(&'static str, String)>,
    pub(super) projections: Vec<&'static str>,
}

/// A process that was started and not yet ended by us.
pub(super) struct Service {
    pub(super) pid: u32,
    child: Child,
    log: PathBuf,
}

/// How a process has ended after it was told to.
pub(super) struct End {
    /// With exit code 0, in time.
    pub(super) well: bool,
    pub(super) what: String,
}

/// All of them. Those that still run when this is dropped are killed: nothing is left behind.
#[derive(Default)]
pub(super) struct Services {
    running: Vec<Service>,
    pub(super) started: usize,
    pub(super) killed: usize,
    /// How those that were told to stop have ended.
    pub(super) ends: Vec<End>,
}

impl Services {
    pub(super) fn running(&self) -> &[Service] {
        &self.running
    }

    /// Starts one more.
    pub(super) fn start(&mut self, launch: &Launch) -> anyhow::Result<u32> {
        let program = std::env::current_exe().context("this program's own file")?;
        let number = self.started + 1;
        let log = launch.folder.join(format!("service-{number}.log"));
        let open = || File::create(&log).with_context(|| log.display().to_string());
        let file = open()?;
        let mut command = Command::new(program);
        command.arg("run").arg("--config").arg(&launch.config);
        for projection in &launch.projections {
            command.args(["--only", projection]); // a binary of its own may have others
        }
        let child = command
            .envs(launch.environment.iter().map(|(k, v)| (*k, v.as_str())))
            .env("TIDEGATE_LOG_FORMAT", "text")
            .stdin(Stdio::null())
            .stdout(file.try_clone().context("a log file")?)
            .stderr(file)
            // Ctrl-C is for the demo, which ends its processes itself; --keep leaves them alone.
            .process_group(0)
            .spawn()
            .context("a process cannot be started")?;
        let pid = child.id().context("a process ended at once")?;
        self.started = number;
        self.running.push(Service { pid, child, log });
        Ok(pid)
    }

    /// Says which one has ended although nobody asked it to.
    pub(super) fn ended(&mut self) -> Option<String> {
        self.running.iter_mut().find_map(|service| {
            let status = service.child.try_wait().ok().flatten()?;
            Some(format!(
                "process {} ended by itself ({status})",
                service.pid
            ))
        })
    }

    /// Ends one as a crash would: SIGKILL.
    pub(super) async fn kill(&mut self, pid: u32) -> anyhow::Result<()> {
        let Some(index) = self.running.iter().position(|service| service.pid == pid) else {
            anyhow::bail!("there is no process {pid}");
        };
        let mut service = self.running.remove(index);
        service.child.kill().await.context("SIGKILL")?;
        self.killed += 1;
        Ok(())
    }

    /// Asks all to stop in order, and notes who did not.
    pub(super) async fn stop(&mut self) {
        for service in &self.running {
            signal(service.pid);
        }
        // Each stays in the list until it has ended: whoever stops waiting still kills it.
        while let Some(service) = self.running.first_mut() {
            let ended = tokio::time::timeout(STOP_LIMIT, service.child.wait()).await;
            let (well, how) = match ended {
                Ok(Ok(status)) => (status.success(), how(status)),
                Ok(Err(error)) => (false, error.to_string()),
                Err(_) => {
                    let _ = service.child.kill().await;
                    let limit = STOP_LIMIT.as_secs();
                    (false, format!("still running {limit} s after SIGTERM"))
                }
            };
            let what = format!("process {}: {how}", service.pid);
            self.ends.push(End { well, what });
            self.running.remove(0);
        }
    }

    /// Ends all at once.
    pub(super) async fn kill_all(&mut self) {
        for mut service in std::mem::take(&mut self.running) {
            let _ = service.child.kill().await;
        }
    }

    /// Leaves all running; returns their process ids.
    pub(super) fn release(&mut self) -> Vec<u32> {
        let released = std::mem::take(&mut self.running);
        released.iter().map(|service| service.pid).collect()
    }

    /// The ends of the logs of those that run, or ended by themselves.
    pub(super) fn tails(&self) -> String {
        let tails = self.running.iter().map(|service| tail(&service.log));
        tails.collect::<Vec<_>>().join("\n")
    }
}

impl Drop for Services {
    fn drop(&mut self) {
        for service in &mut self.running {
            let _ = service.child.start_kill();
        }
    }
}

fn how(status: ExitStatus) -> String {
    status.code().map_or_else(
        || status.to_string(),
        |code| format!("exit code {code} after SIGTERM"),
    )
}

fn signal(pid: u32) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    if let Some(pid) = pid {
        // The child is not collected yet, so the number is still its own.
        let _ = kill_process(pid, Signal::TERM);
    }
}

fn tail(log: &Path) -> String {
    let text = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    let last = &lines[lines.len().saturating_sub(TAIL_LINES)..];
    format!("the end of {}:\n  {}", log.display(), last.join("\n  "))
}
