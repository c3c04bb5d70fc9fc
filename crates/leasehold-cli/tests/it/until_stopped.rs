//! Commands that go on until they are told to stop: what they say meanwhile, and at the end.

use serde_json::Value;
use std::io::{BufRead, BufReader, Lines, PipeReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::shelf::Shelf;

/// A command under way; what it says to both sides, in order.
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

    /// The next line, unless it has ended.
    pub(crate) fn hear(&mut self) -> Option<String> {
        let line = self.lines.next()?.unwrap();
        self.said.push_str(&line);
        self.said.push('\n');
        Some(line)
    }

    /// What it has said and was heard so far.
    pub(crate) fn said(&self) -> &str {
        &self.said
    }

    /// Waits until it has said this.
    pub(crate) fn until(&mut self, words: &str) {
        while !self.hear().unwrap_or_else(|| panic!("no `{words}` in {}", self.said)).contains(words) {}
    }

    /// Ctrl-C.
    pub(crate) fn signal(&self) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    }

    /// Ctrl-C; then everything it has said, and how it ended.
    pub(crate) fn interrupt(mut self) -> String {
        self.signal();
        while self.hear().is_some() {}
        format!("{}--- exit code {}", self.said, self.child.wait().unwrap().code().unwrap())
    }
}

/// Another process does it: nothing tells us but a look. Half a minute is long even on a busy machine.
pub(crate) fn until(is_so: impl Fn() -> bool) {
    for _ in 0..1500 {
        if is_so() {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("it did not happen");
}

/// Whether a process that is a child of nobody here is gone, or dead and not yet buried.
pub(crate) fn is_dead(pid: &str) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    status.is_empty() || status.contains(") Z ")
}

#[test]
fn a_tail_shows_what_changes_from_now_on_and_nothing_twice() {
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
fn a_tail_of_all_begins_with_what_is_there() {
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
fn a_monitor_ends_when_interrupted() {
    let shelf = Shelf::with_queue();
    let mut monitor = UnderWay::start(shelf.command(&["monitor"]));
    monitor.until("monitor w-");
    shelf.compare("monitor_interrupted", &monitor.interrupt());
}

#[test]
fn up_founds_a_queue_shows_how_it_goes_and_ends_when_interrupted() {
    let shelf = Shelf::new();
    let mut up = UnderWay::start(shelf.command(&["up", "--no-dashboard", "--exec", "greet=cat"]));
    up.until("0 waiting");
    shelf.compare("up_interrupted", &up.interrupt());
    let mut up = UnderWay::start(shelf.command(&["up", "--no-dashboard"]));
    up.until("0 waiting");
    shelf.compare("up_without_programs", &up.interrupt());
}

#[test]
fn up_tells_machines_line_by_line() {
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
    // The whole group is interrupted, as a terminal does; the program is waited for none the less.
    let script = format!("slow=sh -c 'touch {}; sleep 1; echo done'", mark.display());
    let mut command = shelf.command(&["worker", "--json", "--exec", &script]);
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    let worker = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    until(|| mark.exists());
    let group = format!("-{}", worker.id());
    assert!(Command::new("kill").args(["-INT", "--", &group]).status().unwrap().success());
    let output = worker.wait_with_output().unwrap();
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(told["counts"]["completed"], 1, "{told}");
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
        worker.signal();
        worker.until("draining 2 tasks, up to 30 s; press again to stop now");
        let said = worker.interrupt();
        assert!(said.contains("stopping now; running tasks are released"), "{said}");
        assert!(said.contains("2 put back"), "{said}");
    }
}

#[test]
fn a_run_that_has_to_stop_takes_along_all_that_its_program_has_started() {
    let shelf = Shelf::new();
    shelf.run(&["submit", "-t", "slow"]);
    let mark = shelf.path().join(".leasehold/started");
    let script = format!("slow=sh -c 'sleep 600 & echo $! > {}; wait'", mark.display());
    let worker = UnderWay::start(shelf.command(&["worker", "--drain-secs", "1", "--exec", &script]));
    let started = || std::fs::read_to_string(&mark).unwrap_or_default();
    until(|| started().ends_with('\n'));
    let below = started().trim().to_owned();
    let said = worker.interrupt();
    assert!(said.contains("1 put back"), "{said}");
    until(|| is_dead(&below));
}

#[test]
fn programs_die_with_a_killed_worker_and_so_does_what_they_have_started() {
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
