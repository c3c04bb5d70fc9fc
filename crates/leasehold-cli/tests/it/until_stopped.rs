//! Commands that run until they are stopped: their output meanwhile, and at the end.

use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use crate::fixture::{NOBODY, QueueFixture, public_program};

/// Longest wait for a line of a command: one that is never printed fails the test instead of blocking it.
const LINE_WAIT: Duration = Duration::from_mins(2);

/// Running command, with its standard output and standard error in order. Killed on drop.
pub(crate) struct RunningCommand {
    child: Child,
    lines: Receiver<String>,
    printed: String,
}

impl RunningCommand {
    pub(crate) fn start(mut command: Command) -> Self {
        let (reader, writer) = std::io::pipe().unwrap();
        command.stdout(writer.try_clone().unwrap()).stderr(writer);
        let child = command.spawn().unwrap();
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            BufReader::new(reader).lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        Self { child, lines, printed: String::new() }
    }

    /// Next line, unless the command has ended.
    pub(crate) fn next_line(&mut self) -> Option<String> {
        let line = match self.lines.recv_timeout(LINE_WAIT) {
            Ok(line) => line,
            Err(RecvTimeoutError::Disconnected) => return None,
            Err(RecvTimeoutError::Timeout) => panic!("no line for {LINE_WAIT:?} after {}", self.printed),
        };
        self.printed.push_str(&line);
        self.printed.push('\n');
        Some(line)
    }

    /// Output that was read so far.
    pub(crate) fn printed(&self) -> &str {
        &self.printed
    }

    /// Waits until the output contains these words.
    pub(crate) fn until(&mut self, words: &str) {
        let began = Instant::now();
        while !self.next_line().unwrap_or_else(|| panic!("no `{words}` in {}", self.printed)).contains(words)
        {
            assert!(began.elapsed() < LINE_WAIT, "no `{words}` after {LINE_WAIT:?} in {}", self.printed);
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, signal: &str) {
        let pid = self.pid().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
    }

    /// Interrupts the command, and returns its whole output and its exit code.
    pub(crate) fn interrupt(self) -> String {
        self.signal("-INT");
        self.end()
    }

    /// Waits until the command has ended, and returns its whole output and its exit code.
    pub(crate) fn end(mut self) -> String {
        while self.next_line().is_some() {}
        format!("{}--- exit code {}", self.printed, self.child.wait().unwrap().code().unwrap())
    }
}

impl Drop for RunningCommand {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
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
    let fixture = QueueFixture::of_objects();
    fixture.run(&["submit", "-t", "before"]);
    let mut tail = RunningCommand::start(fixture.command(&["tail", "--every", "0.1"]));
    tail.until("watching");
    let id = fixture.run(&["submit", "-t", "during", "--delay", "60"]);
    tail.until("pending");
    fixture.run(&["cancel", &id]);
    tail.until("cancelled");
    fixture.run(&["retry", &id]);
    tail.until("pending");
    fixture.compare("tail", &tail.interrupt());
}

#[test]
fn tail_all_prints_existing_tasks_first() {
    let fixture = QueueFixture::new();
    fixture.run(&["submit", "-t", "before"]);
    let mut tail = RunningCommand::start(fixture.command(&["tail", "--all", "--every", "0.1"]));
    tail.until("watching");
    fixture.compare("tail_all", &tail.interrupt());
}

#[test]
fn a_worker_with_nothing_left_ends_by_itself() {
    let fixture = QueueFixture::new();
    fixture.run(&["submit", "-t", "greet"]);
    fixture.assert_filtered_output("worker_drain", &["worker", "--exec", "greet=cat", "--drain"]);
}

#[test]
fn a_worker_that_exits_when_the_queue_is_empty_ignores_an_entry_without_a_task() {
    let fixture = QueueFixture::of_objects();
    let id = fixture.run(&["submit", "-t", "greet"]);
    let task = fixture.objects().into_iter().find(|path| path.contains("/tasks/")).unwrap();
    assert!(task.contains(&id));
    std::fs::remove_file(task).unwrap();
    let mut worker = RunningCommand::start(fixture.command(&["worker", "--exec", "greet=cat", "--drain"]));
    worker.until("0 completed");
}

#[test]
fn a_worker_that_exits_when_the_queue_is_empty_reports_what_it_waits_for() {
    let fixture = QueueFixture::new();
    fixture.run(&["submit", "-t", "greet", "--delay", "30"]);
    let mut worker = RunningCommand::start(fixture.command(&["worker", "--exec", "greet=cat", "--drain"]));
    worker.until("waiting for a task that is due at ");
    worker.interrupt();
}

#[test]
fn a_command_reports_that_it_retries_an_unreachable_endpoint() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut command = crate::common::leasehold(&["list", "--store", "s3://tasks/queue"]);
    command.env("AWS_ENDPOINT_URL", format!("http://{free}")).env("AWS_REGION", "local");
    command
        .env("AWS_ACCESS_KEY_ID", "key")
        .env("AWS_SECRET_ACCESS_KEY", "secret")
        .env("LEASEHOLD_LOG", "warn");
    let began = Instant::now();
    let mut list = RunningCommand::start(command);
    list.until("store unreachable, retrying");
    // Three seconds, and some more on a busy machine; the command itself goes on for half a minute.
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
}

/// Removes or restores write permission on a folder and its contents.
fn set_writable(fixture: &QueueFixture, is_writable: bool) {
    let mode = if is_writable { "u+w" } else { "a-w" };
    assert!(Command::new("chmod").args(["-R", mode]).arg(fixture.path()).status().unwrap().success());
}

/// Command of a user to whom permissions apply, unlike the superuser, who must be able to read `program`.
fn unprivileged_command(fixture: &QueueFixture, program: &Path, args: &[&str]) -> Command {
    let owner = std::fs::metadata(fixture.path()).unwrap().uid();
    if owner == 0 {
        std::os::unix::fs::chown(fixture.path(), Some(NOBODY), Some(NOBODY)).unwrap();
    }
    if owner == 0 || owner == NOBODY {
        return fixture.command_as_nobody(program, args);
    }
    fixture.command(args)
}

#[test]
fn a_worker_reports_once_that_its_folder_refuses_writes_and_once_that_it_is_back() {
    let (fixture, outside) = (QueueFixture::of_objects(), tempfile::tempdir().unwrap());
    let program = public_program(outside.path());
    let mut command = unprivileged_command(&fixture, &program, &["worker", "--exec", "a=true"]);
    command.env("LEASEHOLD_LOG", "warn");
    let mut worker = RunningCommand::start(command);
    worker.until("worker w-");
    // The worker is stopped meanwhile: it must not claim anything before the folder is read-only.
    worker.signal("-STOP");
    for _ in 0..3 {
        let submitted = unprivileged_command(&fixture, &program, &["submit", "-t", "a"]).status().unwrap();
        assert!(submitted.success());
    }
    set_writable(&fixture, false);
    worker.signal("-CONT");
    worker.until("store refuses requests, retrying");
    set_writable(&fixture, true);
    worker.until("store available again");
    let completed = || fixture.run(&["list", "--status", "completed", "--json"]).lines().count();
    until(|| completed() == 3);
    let printed = worker.interrupt();
    let warnings: Vec<_> = printed.lines().filter(|line| line.contains(" WARN ")).collect();
    assert_eq!(warnings.len(), 2, "{printed}");
}

/// Its only slot is occupied by a result that cannot be recorded, so it does not scan for tasks meanwhile.
#[test]
fn a_worker_without_a_free_slot_reports_that_its_folder_refuses_results() {
    let (fixture, outside) = (QueueFixture::of_objects(), tempfile::tempdir().unwrap());
    let program = public_program(outside.path());
    let marks = outside.path().join("marks");
    std::fs::create_dir(&marks).unwrap();
    std::fs::set_permissions(&marks, std::fs::Permissions::from_mode(0o777)).unwrap();
    let (started, proceed) = (marks.join("started"), marks.join("proceed"));
    let wait =
        format!("touch {}; until test -e {}; do sleep 0.1; done", started.display(), proceed.display());
    let exec = format!("a=sh -c '{wait}'");
    // No claim expires during the test, so the slot becomes free only when the result is recorded.
    let args = ["worker", "--concurrency", "1", "--lease-secs", "3600", "--exec", &exec];
    let mut command = unprivileged_command(&fixture, &program, &args);
    command.env("LEASEHOLD_LOG", "warn");
    let mut worker = RunningCommand::start(command);
    worker.until("worker w-");
    assert!(unprivileged_command(&fixture, &program, &["submit", "-t", "a"]).status().unwrap().success());
    until(|| started.exists());
    set_writable(&fixture, false);
    std::fs::write(&proceed, "").unwrap();
    worker.until("store refuses requests, retrying");
    set_writable(&fixture, true);
    worker.until("store available again");
    until(|| fixture.run(&["list", "--status", "completed", "--json"]).lines().count() == 1);
    let printed = worker.interrupt();
    assert_eq!(printed.matches(" WARN ").count(), 2, "{printed}");
}

#[test]
fn a_worker_reports_once_that_queue_json_is_missing_and_continues_when_it_is_back() {
    let fixture = QueueFixture::with_queue_of_objects();
    let mut command = fixture.command(&["worker", "--exec", "a=true"]);
    command.env("LEASEHOLD_LOG", "warn");
    let mut worker = RunningCommand::start(command);
    worker.until("worker w-");
    let (place, aside) = (fixture.path().join("queue.json"), fixture.path().join(".leasehold/queue.json"));
    std::fs::rename(&place, &aside).unwrap();
    // It is read again when the copy is half a minute old.
    worker.until("claiming paused");
    assert!(worker.printed().contains("leasehold init --restore"), "{}", worker.printed());
    std::fs::rename(&aside, &place).unwrap();
    let id = fixture.run(&["submit", "-t", "a"]);
    fixture.run(&["wait", &id]);
    let printed = worker.interrupt();
    assert_eq!(printed.matches(" WARN ").count(), 1, "{printed}");
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
        command.env("LEASEHOLD_QUEUE_LAYOUT", "objects");
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
fn a_worker_reports_a_full_disk_once_and_continues_when_there_is_room() {
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
    let mut worker = RunningCommand::start(command);
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
    let printed = worker.interrupt();
    let warnings: Vec<_> = printed.lines().filter(|line| line.contains(" WARN ")).collect();
    let [full, _] = warnings.as_slice() else { panic!("{printed}") };
    assert!(full.contains("retrying") && full.contains("disk of folder"), "{printed}");
}

#[test]
fn a_monitor_ends_when_interrupted() {
    let fixture = QueueFixture::with_queue_of_objects();
    let mut monitor = RunningCommand::start(fixture.command(&["monitor"]));
    monitor.until("monitor w-");
    fixture.compare("monitor_interrupted", &monitor.interrupt());
}

#[test]
fn up_creates_a_queue_shows_progress_and_ends_when_interrupted() {
    let fixture = QueueFixture::new();
    let mut up = RunningCommand::start(fixture.command(&["up", "--no-dashboard", "--exec", "greet=cat"]));
    up.until("0 pending");
    fixture.compare("up_interrupted", &up.interrupt());
    let fixture = QueueFixture::of_objects();
    let mut up = RunningCommand::start(fixture.command(&["up", "--no-dashboard"]));
    up.until("0 pending");
    fixture.compare("up_without_programs", &up.interrupt());
}

#[test]
fn up_prints_json_line_by_line() {
    let fixture = QueueFixture::new();
    fixture.run(&["submit", "-t", "greet"]);
    fixture.run(&["submit", "-t", "later", "--delay", "3600"]);
    let printed = fixture.run(&["up", "--no-dashboard", "--exec", "greet=cat", "--drain", "--json"]);
    let lines: Vec<Value> = printed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let [first, .., last] = lines.as_slice() else { panic!("{printed}") };
    assert_eq!(first["scheduled"], 1, "{first}");
    assert!(first["us_dollars"].as_f64().unwrap() > 0.0, "{first}");
    assert_eq!(last["counts"]["completed"], 1, "{last}");
}

#[test]
fn an_interrupted_worker_lets_its_programs_finish_even_on_a_terminal() {
    let fixture = QueueFixture::new();
    fixture.run(&["submit", "-t", "slow"]);
    let mark = fixture.path().join(".leasehold/started");
    // The whole group is interrupted, as a terminal does; the worker still waits for the program.
    let script = format!("slow=sh -c 'touch {}; sleep 1; echo done'", mark.display());
    let mut command = fixture.command(&["worker", "--json", "--exec", &script]);
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    let worker = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    until(|| mark.exists());
    let group = format!("-{}", worker.id());
    assert!(Command::new("kill").args(["-INT", "--", &group]).status().unwrap().success());
    let output = worker.wait_with_output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["counts"]["completed"], 1, "{report}");
    let notes = String::from_utf8(output.stderr).unwrap();
    assert!(
        notes.contains("stopping: 1 task may finish, for up to 30 s; a second Ctrl-C releases them"),
        "{notes}"
    );
}

#[test]
fn a_worker_reports_what_its_stop_waits_for_and_a_second_interrupt_ends_it() {
    for command in ["worker", "up"] {
        let fixture = QueueFixture::new();
        fixture.run(&["submit", "-t", "slow"]);
        fixture.run(&["submit", "-t", "slow"]);
        let marks = fixture.path().join(".leasehold/started");
        std::fs::create_dir(&marks).unwrap();
        let script = format!("slow=sh -c 'touch {}/$LEASEHOLD_TASK_ID; exec sleep 600'", marks.display());
        let mut args = vec![command, "--concurrency", "2", "--exec", &script];
        args.extend((command == "up").then_some("--no-dashboard"));
        let mut worker = RunningCommand::start(fixture.command(&args));
        until(|| std::fs::read_dir(&marks).unwrap().count() == 2);
        worker.signal("-INT");
        worker.until("stopping: 2 tasks may finish, for up to 30 s; a second Ctrl-C releases them");
        let printed = worker.interrupt();
        assert!(printed.contains("stopping now; running tasks are released"), "{printed}");
        assert!(printed.contains("2 requeued"), "{printed}");
    }
}

#[test]
fn a_run_that_has_to_stop_kills_the_processes_of_its_program() {
    let fixture = QueueFixture::new();
    fixture.run(&["submit", "-t", "slow"]);
    let mark = fixture.path().join(".leasehold/started");
    let script = format!("slow=sh -c 'sleep 600 & echo $! > {}; wait'", mark.display());
    let worker = RunningCommand::start(fixture.command(&["worker", "--drain-secs", "1", "--exec", &script]));
    let started = || std::fs::read_to_string(&mark).unwrap_or_default();
    until(|| started().ends_with('\n'));
    let below = started().trim().to_owned();
    let printed = worker.interrupt();
    assert!(printed.contains("1 requeued"), "{printed}");
    until(|| is_dead(&below));
}

#[test]
fn programs_of_a_killed_worker_are_killed_with_their_processes() {
    let fixture = QueueFixture::new();
    fixture.run(&["submit", "-t", "slow"]);
    let mark = fixture.path().join(".leasehold/started");
    let script = format!("slow=sh -c 'sleep 600 & echo $$ $! > {}; wait'", mark.display());
    let mut worker = fixture.command(&["worker", "--exec", &script]);
    let mut worker = worker.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let started = || std::fs::read_to_string(&mark).unwrap_or_default();
    until(|| started().ends_with('\n'));
    worker.kill().unwrap();
    worker.wait().unwrap();
    for pid in started().split_whitespace() {
        until(|| is_dead(pid));
    }
}
