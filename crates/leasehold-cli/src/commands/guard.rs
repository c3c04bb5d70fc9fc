//! Guard process that kills the programs of a killed worker.
//!
//! A worker that exits normally ends its programs. After SIGKILL none of its code runs, and a signal at the parent's death
//! (`PR_SET_PDEATHSIG`) can be requested only between fork and exec, which needs `unsafe`, and does not reach
//! grandchildren. So each worker with programs has a guard: a small shell that reads from a pipe whose other end only the
//! worker holds. The worker writes which process groups run. The kernel closes the pipe however the worker ends, and the
//! guard then kills the remaining groups.
//!
//! One gap remains: a worker that is killed between starting a program and writing to the guard, some microseconds, leaves
//! that program behind.

use rustix::process::Pid;
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

/// Script of the guard. Reads `+ GROUP` and `- GROUP`, one per line. Ignores signals, which are meant for the worker: the
/// end of the pipe counts.
const SCRIPT: &str = r#"
trap '' HUP INT QUIT TERM
groups=' '
while read -r order group; do
    case $order in
        +) groups="$groups$group " ;;
        -) case $groups in *" $group "*) groups="${groups%%" $group "*} ${groups#*" $group "}" ;; esac ;;
    esac
done
for group in $groups; do
    kill -s KILL -- "-$group"
done
"#;

/// Guard of one worker. Ends on drop.
#[derive(Debug)]
pub(super) struct Guard {
    /// `None` once the guard is to end.
    pipe: Mutex<Option<ChildStdin>>,
    shell: Child,
}

impl Guard {
    pub(super) fn start() -> io::Result<Self> {
        let mut shell = Command::new("/bin/sh")
            .args(["-c", SCRIPT, "leasehold-guard"])
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // A signal to the worker's whole group, as a terminal sends it, must not kill the guard first.
            .process_group(0)
            .spawn()?;
        Ok(Self { pipe: Mutex::new(shell.stdin.take()), shell })
    }

    /// Registers a process group, which is killed if the worker ends before the result is dropped.
    pub(super) fn register(self: &Arc<Self>, group: Pid) -> RegisteredGroup {
        self.send('+', group);
        RegisteredGroup { guard: self.clone(), group }
    }

    fn send(&self, order: char, group: Pid) {
        if let Some(pipe) = self.pipe.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
            // Without its guard a worker still ends its programs, unless it is killed.
            let _ = writeln!(pipe, "{order} {}", group.as_raw_nonzero());
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        *self.pipe.lock().unwrap_or_else(PoisonError::into_inner) = None;
        // The shell exits at once.
        let _ = self.shell.wait();
    }
}

/// Process group that is registered with the guard.
#[derive(Debug)]
pub(super) struct RegisteredGroup {
    guard: Arc<Guard>,
    group: Pid,
}

impl Drop for RegisteredGroup {
    fn drop(&mut self) {
        self.guard.send('-', self.group);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;

    fn sleeping() -> Child {
        Command::new("sleep").arg("600").process_group(0).spawn().unwrap()
    }

    fn group(child: &Child) -> Pid {
        Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap()
    }

    #[test]
    fn the_groups_that_are_left_are_killed() {
        let (mut first, mut ended, mut last) = (sleeping(), sleeping(), sleeping());
        let guard = Arc::new(Guard::start().unwrap());
        let held = [guard.register(group(&first)), guard.register(group(&last))];
        drop(guard.register(group(&ended)));
        // As if the worker was killed: no group is unregistered, and the pipe ends.
        *guard.pipe.lock().unwrap() = None;
        for child in [&mut first, &mut last] {
            assert_eq!(child.wait().unwrap().signal(), Some(9));
        }
        drop(held);
        drop(guard);
        assert_eq!(ended.try_wait().unwrap(), None, "this group was unregistered");
        ended.kill().unwrap();
        ended.wait().unwrap();
    }
}
