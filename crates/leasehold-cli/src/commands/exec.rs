//! Programs as handlers: `--exec 'TYPE=program args'`.
//!
//! A program ends with its run, and the processes that it has started end with it: they are one process group. A process
//! that has to outlive the run must leave the group (`setsid`).

use futures::future::{join, pending};
use leasehold_core::{Error, Result, Task};
use leasehold_store::{Host, SystemHost};
use leasehold_worker::{Context, TaskError};
use rustix::fs::{Access, access};
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::Value;
use std::convert::Infallible;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};
use tokio::sync::oneshot;

use super::guard::Guard;
use crate::json;
use crate::printer::Printer;
use crate::run_dirs::{self, RunDirectory};
use crate::settings::kind::SettingKind;
use crate::settings::table::TABLE;
use crate::settings::typed;

/// Exit code of a program whose input can never be handled (`EX_DATAERR`). Any other failure is retried.
const PERMANENT: i32 = 65;

/// Maximum number of bytes kept of the standard output and of the standard error of a program. Printed JSON can be far
/// larger than the stored output, but not unbounded.
const OUTPUT_BYTES_MAX: usize = 4 * 1_024 * 1_024;

/// Maximum length of a printed line; a longer line of a program's standard error is printed in parts.
const LINE_BYTES_MAX: usize = 8 * 1_024;

/// Time for which the pipes of a program are read after it has ended. Its group has been killed by then, and its output is
/// in the pipes: only a process that has left the group can hold them open.
const PIPES_WAIT: Duration = Duration::from_secs(1);

/// Variables with credentials, besides the secrets among the settings. An access key id is removed with its secret: half
/// a key is an error.
const CREDENTIALS: [&str; 12] = [
    "LEASEHOLD_QUEUE_ACCESS_KEY_ID",
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_SECURITY_TOKEN",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN",
    "AZURE_STORAGE_ACCOUNT_KEY",
    "AZURE_STORAGE_ACCESS_KEY",
    "AZURE_STORAGE_SAS_TOKEN",
    "AZURE_STORAGE_SAS_KEY",
    "AZURE_CLIENT_SECRET",
    "GOOGLE_SERVICE_ACCOUNT_KEY",
];

/// State shared by all programs of a worker.
#[derive(Debug)]
struct Shared {
    guard: Option<Arc<Guard>>,
    passes_secrets: bool,
    printer: Printer,
    /// Kept until the last run has ended.
    _runs: Arc<run_dirs::Root>,
}

/// Refuses programs of `--exec` that cannot be started. Called before a queue is opened, and perhaps created.
pub(crate) fn check_programs(execs: &[String]) -> Result<()> {
    parse_all(execs).map(drop)
}

/// Parses the programs of `--exec` with their task types, and checks that each can be started.
pub(crate) fn programs(
    execs: &[String],
    settings: &typed::WorkerSettings,
    printer: &Printer,
) -> anyhow::Result<Vec<(String, Program)>> {
    let parsed = parse_all(execs)?;
    if parsed.is_empty() {
        return Ok(Vec::new());
    }
    let guard = Guard::start();
    if let Err(error) = &guard {
        tracing::warn!(%error, "failed to start guard process, programs outlive a killed worker");
    }
    let shared = Arc::new(Shared {
        guard: guard.ok().map(Arc::new),
        passes_secrets: settings.passes_secrets,
        printer: printer.clone(),
        _runs: run_dirs::current()?,
    });
    let ready = |(task_type, words)| (task_type, Program { words, shared: shared.clone() });
    Ok(parsed.into_iter().map(ready).collect())
}

fn parse_all(execs: &[String]) -> Result<Vec<(String, Vec<String>)>> {
    let checked = |exec: &String| {
        let (task_type, words) = parse(exec)?;
        check(&words[0], exec)?;
        Ok((task_type, words))
    };
    execs.iter().map(checked).collect()
}

/// Parses `TYPE=program args`.
fn parse(exec: &str) -> Result<(String, Vec<String>)> {
    let Some((task_type, command)) = exec.split_once('=') else {
        let message = format!("--exec `{exec}` has no task type; write TYPE=PROGRAM ARGS");
        return Err(Error::invalid(message));
    };
    let words = split(command)?;
    if words.is_empty() {
        return Err(Error::invalid(format!("--exec `{exec}` has no program; write TYPE=PROGRAM ARGS")));
    }
    Ok((task_type.to_owned(), words))
}

/// Refuses a program that cannot be started, before it costs a task its attempts.
fn check(name: &str, exec: &str) -> Result<()> {
    let is_program = |path: &Path| path.is_file() && access(path, Access::EXEC_OK).is_ok();
    if name.contains('/') {
        let path = Path::new(name);
        return match (path.exists(), is_program(path)) {
            (_, true) => Ok(()),
            (true, false) => Err(Error::invalid(format!(
                "`{name}` of --exec '{exec}' is not an executable file; run chmod +x {name}"
            ))),
            (false, _) => Err(Error::invalid(format!(
                "`{name}` of --exec '{exec}' does not exist; create it, or correct the path"
            ))),
        };
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    if std::env::split_paths(&path).any(|folder| is_program(&folder.join(name))) {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "no program `{name}` in PATH, named by --exec '{exec}'; write ./{name} for one in this folder"
    )))
}

/// A program and its arguments.
#[derive(Debug, Clone)]
pub(crate) struct Program {
    words: Vec<String>,
    shared: Arc<Shared>,
}

impl Program {
    /// Runs the program for one task. Kills its process group if the run has to stop.
    pub(crate) async fn run(self, context: Context, input: Value) -> Result<Value, TaskError> {
        let task = context.task();
        let files = ProgramFiles::create(&context)?;
        let mut child = self.command(&context, &files).spawn().map_err(|error| self.start_error(&error))?;
        let mut group = ProcessGroup::of(&child);
        let registration =
            self.shared.guard.as_ref().zip(group.leader).map(|(guard, leader)| guard.register(leader));
        let mut stderr_printer = StderrPrinter { printer: &self.shared.printer, task, line: Vec::new() };
        let (status, stdout, stderr) =
            run_to_exit(&mut child, &mut group, &input.to_string(), &mut stderr_printer).await?;
        drop((registration, stderr_printer));
        let error_text = String::from_utf8_lossy(&stderr.bytes).trim().to_owned();
        match status.code() {
            Some(0) if stdout.is_cut => Err(TaskError::Permanent(format!(
                "program printed more than {OUTPUT_BYTES_MAX} bytes; write large output to a file in LEASEHOLD_RESULTS"
            ))),
            Some(0) => {
                let output = parse_output(&stdout.bytes)?;
                files.publish_results(&context)?;
                Ok(output)
            }
            Some(PERMANENT) => {
                Err(TaskError::Permanent(text_or(error_text, &format!("exit code {PERMANENT}"))))
            }
            Some(code) => Err(TaskError::Retry(text_or(error_text, &format!("exit code {code}")))),
            None => Err(TaskError::Retry(text_or(error_text, "program was killed"))),
        }
    }

    fn command(&self, context: &Context, files: &ProgramFiles) -> Command {
        let task = context.task();
        let mut command = Command::new(&self.words[0]);
        if !self.shared.passes_secrets {
            let ours = TABLE.iter().filter(|setting| setting.kind == SettingKind::Secret);
            for name in ours.map(|setting| setting.variable).chain(CREDENTIALS) {
                command.env_remove(name);
            }
        }
        command
            .args(&self.words[1..])
            .env("LEASEHOLD_TASK_ID", task.id.to_string())
            .env("LEASEHOLD_TASK_TYPE", task.task_type.as_str())
            .env("LEASEHOLD_TASK_ATTEMPT", context.attempt().to_string())
            .env("LEASEHOLD_TASK_EPOCH", context.epoch().to_string())
            .env("LEASEHOLD_ARTIFACTS", &files.artifacts)
            .env("LEASEHOLD_RESULTS", &files.results)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // Own process group: Ctrl-C on a terminal goes to the worker, which lets its programs finish.
            .process_group(0)
            .kill_on_drop(true);
        command
    }

    fn start_error(&self, error: &std::io::Error) -> TaskError {
        TaskError::Retry(format!("failed to start `{}`: {error}", self.words[0]))
    }
}

/// Output of a program, up to [`OUTPUT_BYTES_MAX`].
#[derive(Default)]
struct Captured {
    bytes: Vec<u8>,
    is_cut: bool,
}

/// Writes the input of a program and reads its output concurrently: otherwise a program that prints much before it has
/// read its whole input would deadlock. When the program ends, its group is killed; a process that has left the group is
/// not waited for although it may hold the pipes.
async fn run_to_exit(
    child: &mut Child,
    group: &mut ProcessGroup,
    input: &str,
    stderr_printer: &mut StderrPrinter<'_>,
) -> io::Result<(ExitStatus, Captured, Captured)> {
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let write_input = async {
        if let Some(mut stdin) = stdin {
            // A program may end without reading its input. The broken pipe is no failure.
            let _ = stdin.write_all(input.as_bytes()).await;
        }
        pending::<Infallible>().await
    };
    let (mut out, mut err) = (Captured::default(), Captured::default());
    let (end, ended) = oneshot::channel();
    let exit = async {
        let status = child.wait().await;
        group.kill();
        // The receiver is gone if the pipes have ended before.
        let _ = end.send(());
        status
    };
    let capturing = async {
        let both = join(
            capture(stdout, &mut out, |_| ()),
            capture(stderr, &mut err, |bytes| stderr_printer.add(bytes)),
        );
        let late = async {
            let _ = ended.await;
            SystemHost.sleep(PIPES_WAIT).await;
        };
        tokio::select! {
            (out_read, err_read) = both => out_read.and(err_read),
            () = late => Ok(()),
        }
    };
    let (status, pipes_read) = tokio::select! {
        both = join(exit, capturing) => both,
        never = write_input => match never {},
    };
    pipes_read?;
    Ok((status?, out, err))
}

/// Reads a pipe to its end, keeps up to [`OUTPUT_BYTES_MAX`], and passes on every part as it is read.
async fn capture(
    pipe: Option<impl AsyncRead + Unpin>,
    captured: &mut Captured,
    mut on_part: impl FnMut(&[u8]),
) -> io::Result<()> {
    let Some(mut pipe) = pipe else { return Ok(()) };
    let mut part = vec![0; LINE_BYTES_MAX];
    loop {
        let read = pipe.read(&mut part).await?;
        if read == 0 {
            return Ok(());
        }
        let room = OUTPUT_BYTES_MAX - captured.bytes.len();
        captured.bytes.extend_from_slice(&part[..read.min(room)]);
        captured.is_cut |= read > room;
        on_part(&part[..read]);
    }
}

/// Prints the standard error of a program line by line.
struct StderrPrinter<'a> {
    printer: &'a Printer,
    task: &'a Task,
    line: Vec<u8>,
}

impl StderrPrinter<'_> {
    fn add(&mut self, bytes: &[u8]) {
        for byte in bytes {
            if matches!(byte, b'\n' | b'\r') || self.line.len() >= LINE_BYTES_MAX {
                self.print();
            }
            if !matches!(byte, b'\n' | b'\r') {
                self.line.push(*byte);
            }
        }
    }

    fn print(&mut self) {
        if !self.line.is_empty() {
            self.printer.program_line(self.task, &String::from_utf8_lossy(&self.line));
            self.line.clear();
        }
    }
}

impl Drop for StderrPrinter<'_> {
    fn drop(&mut self) {
        self.print();
    }
}

/// Directories of one run: the task's artifacts as links by name, and a directory for results. Removed once the results
/// are published, or the run has ended otherwise.
struct ProgramFiles {
    artifacts: PathBuf,
    results: PathBuf,
}

impl ProgramFiles {
    /// Creates the directories, also for a task without artifacts: its program may create results.
    fn create(context: &Context) -> io::Result<Self> {
        let root = RunDirectory::new()?;
        let files = Self { artifacts: root.path().join("artifacts"), results: root.path().join("results") };
        context.keep(root);
        fs::create_dir(&files.artifacts)?;
        fs::create_dir(&files.results)?;
        for (name, path) in context.artifacts() {
            symlink(path, files.artifacts.join(name.as_str()))?;
        }
        Ok(files)
    }

    /// Publishes every regular file among the results. An invalid name fails the task permanently: a retry would produce it
    /// again.
    fn publish_results(&self, context: &Context) -> Result<(), TaskError> {
        for entry in fs::read_dir(&self.results)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if entry.file_type()?.is_file() {
                let given = context.publish(&name, entry.path());
                given.map_err(|error| TaskError::Permanent(error.to_string()))?;
            } else {
                tracing::warn!(task = %context.task().id, %name, "result is not a regular file, not published");
            }
        }
        Ok(())
    }
}

/// Process group of a program and of the processes that it has started. Killed on drop.
struct ProcessGroup {
    leader: Option<Pid>,
}

impl ProcessGroup {
    fn of(child: &Child) -> Self {
        let id = child.id().and_then(|id| i32::try_from(id).ok());
        Self { leader: id.and_then(Pid::from_raw) }
    }

    /// Kills the remaining processes of the group.
    fn kill(&mut self) {
        if let Some(leader) = self.leader.take() {
            // The group may be empty.
            let _ = kill_process_group(leader, Signal::KILL);
        }
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        self.kill();
    }
}

fn text_or(error_text: String, otherwise: &str) -> String {
    if error_text.is_empty() { otherwise.to_owned() } else { error_text }
}

/// Parses an output: as JSON if possible, else as text. A whole number beyond 64 bits fails the task, as in Python: it
/// would be stored as another number.
fn parse_output(stdout: &[u8]) -> Result<Value, TaskError> {
    let text = String::from_utf8_lossy(stdout);
    let text = text.trim();
    if text.is_empty() {
        return Ok(Value::Null);
    }
    let Ok(value) = serde_json::from_str(text) else { return Ok(Value::String(text.to_owned())) };
    json::check_numbers("the output", text).map_err(|error| TaskError::Permanent(error.to_string()))?;
    Ok(value)
}

/// Splits a command into words as a shell does: quotes keep spaces, a backslash keeps the next character.
fn split(command: &str) -> Result<Vec<String>> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    let mut letters = command.chars();
    while let Some(letter) = letters.next() {
        match (letter, quote) {
            ('\\', None | Some('"')) => word.get_or_insert_default().extend(letters.next()),
            (_, Some(open)) if letter == open => quote = None,
            ('"' | '\'', None) => {
                quote = Some(letter);
                word.get_or_insert_default();
            }
            (' ' | '\t', None) => words.extend(word.take()),
            _ => word.get_or_insert_default().push(letter),
        }
    }
    if quote.is_some() {
        return Err(Error::invalid(format!("`{command}` has an unclosed quote; close it")));
    }
    words.extend(word);
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_split_as_a_shell_would() {
        for (command, words) in [
            ("sleep 1", vec!["sleep", "1"]),
            ("  a  'b c' \"d 'e'\" f\\ g ", vec!["a", "b c", "d 'e'", "f g"]),
            ("sh -c 'echo \"x\"'", vec!["sh", "-c", "echo \"x\""]),
            ("a '' b", vec!["a", "", "b"]),
            ("", vec![]),
        ] {
            assert_eq!(split(command).unwrap(), words);
        }
        assert!(split("a 'b").is_err());
    }

    #[test]
    fn a_program_has_a_type_and_a_name() {
        let (task_type, words) = parse("a.b=c d=e").unwrap();
        assert_eq!((task_type.as_str(), words.len()), ("a.b", 2));
        assert!(parse("nothing").is_err());
        assert!(parse("a=").is_err());
    }
}
