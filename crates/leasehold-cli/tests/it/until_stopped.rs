//! Commands that run until they are stopped: their output meanwhile, and at the end.

use serde_json::Value;
use std::io::{BufRead, BufReader, Lines, PipeReader};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::shelf::Shelf;

/// Running command, with its standard output and standard error in order.
pub(crate) struct UnderWay {
    child: Child,
    lines: Lines<BufReader<PipeReader>>,
    said: String,
}

impl UnderWay {
    pub(crate) fn start(mut command: Command) -> Self {
        let (reader, writer) = std::io::pipe().unwrap();
        command.stdout(writer.try_clone().unwrap()).stderr(writer);
        let child = command.spawn().unwrap();
        Self { child, lines: BufReader::new(reader).lines(), said: String::new() }
    }

    /// Next line, unless the command has ended.
    pub(crate) fn hear(&mut self) -> Option<String> {
        let line = self.lines.next()?.unwrap();
        self.said.push_str(&line);
        self.said.push('\n');
        Some(line)
    }

    /// Output that was read so far.
    pub(crate) fn said(&self) -> &str {
        &self.said
    }

    /// Waits until the output contains these words.
    pub(crate) fn until(&mut self, words: &str) {
        while !self.hear().unwrap_or_else(|| panic!("no `{words}` in {}", self.said)).contains(words) {}
    }

    pub(crate) fn signal(&self, signal: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Interrupts the command, and returns its whole output and its exit code.
    pub(crate) fn interrupt(mut self) -> String {
        self.signal("-INT");
        while self.hear().is_some() {}
        format!("{}--- exit code {}", self.said, self.child.wait().unwrap().code().unwrap())
    }
}

/// Polls until a condition holds that another process brings about. Half a minute is long even on a busy machine.
pub(crate) fn until(is_so: impl Fn() -> bool) {
    for _ in 0..1500 {
        if is_so() {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("it did not happen");
}

/// True if a process, which need not be a child of this one, has ended or is a zombie.
pub(crate) fn is_dead(pid: &str) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    status.is_empty() || status.contains(") Z ")
}

#[test]
fn tail_prints_each_new_change_once() {
    let shelf = Shelf::new();
    shelf.run(&["submit", "-t", "before"]);
    let mut tail = UnderWay::start(shelf.command(&["tail", "--every", "0.1"]));
    tail.until("watching");
    let id = shelf.run(&["submit", "-t", "during", "--delay", "60"]);
    tail.until("pending");
    shelf.run(&["cancel", &id]);
    tail.until("cancelled");
    shelf.run(&["retry", &id]);
    tail.until("pending");
    shelf.compare("tail", &tail.interrupt());
}

#[test]
fn tail_all_prints_existing_tasks_first() {
    let shelf = Shelf::new();
    shelf.run(&["submit", "-t", "before"]);
    let mut tail = UnderWay::start(shelf.command(&["tail", "--all", "--every", "0.1"]));
    tail.until("watching");
    shelf.compare("tail_all", &tail.interrupt());
}

#[test]
fn a_worker_with_nothing_left_ends_by_itself() {
    let shelf = Shelf::new();
    shelf.run(&["submit", "-t", "greet"]);
    shelf.seen("worker_drain", &["worker", "--exec", "greet=cat", "--drain"]);
}

#[test]
fn a_worker_that_drains_ends_though_an_entry_has_no_task() {
    let shelf = Shelf::new();
    let id = shelf.run(&["submit", "-t", "greet"]);
    let task = shelf.objects().into_iter().find(|path| path.contains("/tasks/")).unwrap();
    assert!(task.contains(&id));
    std::fs::remove_file(task).unwrap();
    shelf.run(&["worker", "--exec", "greet=cat", "--drain"]);
}

#[test]
fn a_worker_that_drains_says_what_it_waits_for() {
    let shelf = Shelf::new();
    shelf.run(&["submit", "-t", "greet", "--delay", "30"]);
    let mut worker = UnderWay::start(shelf.command(&["worker", "--exec", "greet=cat", "--drain"]));
    worker.until("waiting for a task that is due at ");
    worker.interrupt();
}

#[test]
fn a_command_says_that_it_retries_an_unreachable_endpoint() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut command = crate::common::leasehold(&["list", "--store", "s3://tasks/queue"]);
    command.env("AWS_ENDPOINT_URL", format!("http://{free}")).env("AWS_REGION", "local");
    command
        .env("AWS_ACCESS_KEY_ID", "key")
        .env("AWS_SECRET_ACCESS_KEY", "secret")
        .env("LEASEHOLD_LOG", "warn");
    let began = Instant::now();
    let mut list = UnderWay::start(command);
    list.until("store unreachable, retrying");
    // Three seconds, and some more on a busy machine; the command itself goes on for half a minute.
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
    list.kill();
    while list.hear().is_some() {}
    assert_eq!(list.said().matches("retrying").count(), 1, "{}", list.said());
}

/// Removes or restores write permission on a folder and its contents.
fn set_writable(shelf: &Shelf, is_writable: bool) {
    let mode = if is_writable { "u+w" } else { "a-w" };
    assert!(Command::new("chmod").args(["-R", mode]).arg(shelf.path()).status().unwrap().success());
}

/// Command of a user to whom permissions apply, unlike the superuser.
fn bound(shelf: &Shelf, args: &[&str]) -> Command {
    let (mut command, owner) = (shelf.command(args), std::fs::metadata(shelf.path()).unwrap().uid());
    if owner == 0 {
        std::os::unix::fs::chown(shelf.path(), Some(65_534), Some(65_534)).unwrap();
    }
    if owner == 0 || owner == 65_534 {
        command.uid(65_534).gid(65_534);
    }
    command
}

#[test]
fn a_worker_says_once_that_its_folder_refuses_writes_and_once_that_it_is_back() {
    let shelf = Shelf::new();
    let mut command = bound(&shelf, &["worker", "--exec", "a=true"]);
    command.env("LEASEHOLD_LOG", "warn");
    let mut worker = UnderWay::start(command);
    worker.until("worker w-");
    // The worker is stopped meanwhile: it must not claim anything before the folder is read-only.
    worker.signal("-STOP");
    for _ in 0..3 {
        assert!(bound(&shelf, &["submit", "-t", "a"]).status().unwrap().success());
    }
    set_writable(&shelf, false);
    worker.signal("-CONT");
    worker.until("store refuses requests, retrying");
    set_writable(&shelf, true);
    worker.until("store available again");
    let completed = || shelf.run(&["list", "--status", "completed", "--json"]).lines().count();
    until(|| completed() == 3);
    let said = worker.interrupt();
    let warnings: Vec<_> = said.lines().filter(|line| line.contains(" WARN ")).collect();
    assert_eq!(warnings.len(), 2, "{said}");
}

/// Small disk in memory, visible only in its mount namespace. It ends with the process that holds it.
struct SmallDisk {
    holder: Child,
    folder: tempfile::TempDir,
}

impl SmallDisk {
    /// None where this user may not mount anything.
    fn mount() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let script = "mount -t tmpfs -o size=1m tmpfs \"$0\" && echo mounted && exec cat";
        let mut holder = Command::new("unshare");
        holder.args(["--mount", "sh", "-c", script]).arg(folder.path());
        let mut holder = holder.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().ok()?;
        let mut line = String::new();
        BufReader::new(holder.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let disk = Self { holder, folder };
        (line == "mounted\n").then_some(disk)
    }

    /// A path on the disk, as this process can open it.
    fn path(&self, name: &str) -> std::path::PathBuf {
        let root = std::path::PathBuf::from(format!("/proc/{}/root", self.holder.id()));
        root.join(self.folder.path().strip_prefix("/").unwrap()).join(name)
    }

    /// The command line in the namespace of the disk, on a queue there.
    fn command(&self, args: &[&str]) -> Command {
        let plain = crate::common::leasehold(args);
        let mut command = Command::new("nsenter");
        command.args(["--mount", "--target", &self.holder.id().to_string()]).arg(plain.get_program());
        command.args(plain.get_args()).arg("--store").arg(self.folder.path().join("queue")).env_clear();
        command.envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command
    }

    /// Writes until there is no room left.
    fn fill(&self) {
        let mut file = std::fs::File::create(self.path("ballast")).unwrap();
        while std::io::Write::write_all(&mut file, &[1; 512]).is_ok() {}
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

#[test]
fn a_worker_says_once_that_its_disk_is_full_and_goes_on_when_there_is_room() {
    let Some(disk) = SmallDisk::mount() else {
        println!(
            "skipped: no permission to mount a small disk; only the unit tests of the folder cover a full disk"
        );
        return;
    };
    let run = |args: &[&str]| {
        let output = disk.command(args).output().unwrap();
        assert!(output.status.success(), "{args:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let mut command = disk.command(&["worker", "--exec", "a=true"]);
    command.env("LEASEHOLD_LOG", "warn");
    let mut worker = UnderWay::start(command);
    worker.until("worker w-");
    // The worker is stopped meanwhile: it must not claim anything before the disk is full.
    worker.signal("-STOP");
    for _ in 0..3 {
        run(&["submit", "-t", "a"]);
    }
    disk.fill();
    worker.signal("-CONT");
    worker.until("is full");
    std::fs::remove_file(disk.path("ballast")).unwrap();
    worker.until("store available again");
    until(|| run(&["list", "--status", "completed", "--json"]).lines().count() == 3);
    let said = worker.interrupt();
    let warnings: Vec<_> = said.lines().filter(|line| line.contains(" WARN ")).collect();
    let [full, _] = warnings.as_slice() else { panic!("{said}") };
    assert!(full.contains("retrying") && full.contains("disk of folder"), "{said}");
}

#[test]
fn a_monitor_ends_when_interrupted() {
    let shelf = Shelf::with_queue();
    let mut monitor = UnderWay::start(shelf.command(&["monitor"]));
    monitor.until("monitor w-");
    shelf.compare("monitor_interrupted", &monitor.interrupt());
}

#[test]
fn up_creates_a_queue_shows_progress_and_ends_when_interrupted() {
    let shelf = Shelf::new();
    let mut up = UnderWay::start(shelf.command(&["up", "--no-dashboard", "--exec", "greet=cat"]));
    up.until("0 pending");
    shelf.compare("up_interrupted", &up.interrupt());
    let mut up = UnderWay::start(shelf.command(&["up", "--no-dashboard"]));
    up.until("0 pending");
    shelf.compare("up_without_programs", &up.interrupt());
}

#[test]
fn up_prints_json_line_by_line() {
    let shelf = Shelf::new();
    shelf.run(&["submit", "-t", "greet"]);
    shelf.run(&["submit", "-t", "later", "--delay", "3600"]);
    let said = shelf.run(&["up", "--no-dashboard", "--exec", "greet=cat", "--drain", "--json"]);
    let lines: Vec<Value> = said.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let [first, .., last] = lines.as_slice() else { panic!("{said}") };
    assert_eq!(first["scheduled"], 1, "{first}");
    assert!(first["us_dollars"].as_f64().unwrap() > 0.0, "{first}");
    assert_eq!(last["counts"]["completed"], 1, "{last}");
}

#[test]
fn an_interrupted_worker_lets_its_programs_finish_even_on_a_terminal() {
    let shelf = Shelf::new();
    shelf.run(&["submit", "-t", "slow"]);
    let mark = shelf.path().join(".leasehold/started");
    // The whole group is interrupted, as a terminal does; the worker still waits for the program.
    let script = format!("slow=sh -c 'touch {}; sleep 1; echo done'", mark.display());
    let mut command = shelf.command(&["worker", "--json", "--exec", &script]);
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    let worker = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    until(|| mark.exists());
    let group = format!("-{}", worker.id());
    assert!(Command::new("kill").args(["-INT", "--", &group]).status().unwrap().success());
    let output = worker.wait_with_output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["counts"]["completed"], 1, "{report}");
    let notes = String::from_utf8(output.stderr).unwrap();
    assert!(notes.contains("draining 1 task, up to 30 s; press again to stop now"), "{notes}");
}

#[test]
fn a_worker_says_what_its_stop_waits_for_and_a_second_interrupt_ends_it() {
    for command in ["worker", "up"] {
        let shelf = Shelf::new();
        shelf.run(&["submit", "-t", "slow"]);
        shelf.run(&["submit", "-t", "slow"]);
        let marks = shelf.path().join(".leasehold/started");
        std::fs::create_dir(&marks).unwrap();
        let script = format!("slow=sh -c 'touch {}/$LEASEHOLD_TASK_ID; exec sleep 600'", marks.display());
        let mut args = vec![command, "--concurrency", "2", "--exec", &script];
        args.extend((command == "up").then_some("--no-dashboard"));
        let mut worker = UnderWay::start(shelf.command(&args));
        until(|| std::fs::read_dir(&marks).unwrap().count() == 2);
        worker.signal("-INT");
        worker.until("draining 2 tasks, up to 30 s; press again to stop now");
        let said = worker.interrupt();
        assert!(said.contains("stopping now; running tasks are released"), "{said}");
        assert!(said.contains("2 requeued"), "{said}");
    }
}

#[test]
fn a_run_that_has_to_stop_kills_the_processes_of_its_program() {
    let shelf = Shelf::new();
    shelf.run(&["submit", "-t", "slow"]);
    let mark = shelf.path().join(".leasehold/started");
    let script = format!("slow=sh -c 'sleep 600 & echo $! > {}; wait'", mark.display());
    let worker = UnderWay::start(shelf.command(&["worker", "--drain-secs", "1", "--exec", &script]));
    let started = || std::fs::read_to_string(&mark).unwrap_or_default();
    until(|| started().ends_with('\n'));
    let below = started().trim().to_owned();
    let said = worker.interrupt();
    assert!(said.contains("1 requeued"), "{said}");
    until(|| is_dead(&below));
}

#[test]
fn programs_of_a_killed_worker_are_killed_with_their_processes() {
    let shelf = Shelf::new();
    shelf.run(&["submit", "-t", "slow"]);
    let mark = shelf.path().join(".leasehold/started");
    let script = format!("slow=sh -c 'sleep 600 & echo $$ $! > {}; wait'", mark.display());
    let mut worker = shelf.command(&["worker", "--exec", &script]);
    let mut worker = worker.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let started = || std::fs::read_to_string(&mark).unwrap_or_default();
    until(|| started().ends_with('\n'));
    worker.kill().unwrap();
    worker.wait().unwrap();
    for pid in started().split_whitespace() {
        until(|| is_dead(pid));
    }
}
