//! Many processes claim one task at the same time.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::one_at_a_time;
use crate::support::{claim, folder, lease, make_stale, of, op_names, order, real, send_all};
use leasehold_core::TaskId;

const PROCESSES: usize = 32;

struct Racer {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

struct Race {
    gate: File,
    racers: Vec<Racer>,
}

impl Race {
    fn start(data: &Path) -> Self {
        let gate = data.join("gate");
        File::create(&gate).unwrap();
        let start = || {
            let mut child = Command::new(env!("CARGO_BIN_EXE_spool-exerciser"))
                .arg(data)
                .arg(of().to_string())
                .arg("race")
                .arg(&gate)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let (input, output) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
            Racer { child, input, output }
        };
        let racers = (0..PROCESSES).map(|_| start()).collect();
        Self { gate: File::open(&gate).unwrap(), racers }
    }

    /// Lets all of them claim at once; returns the output of the winners.
    fn round(&mut self, id: &TaskId) -> Vec<String> {
        self.gate.lock().unwrap();
        for racer in &mut self.racers {
            writeln!(racer.input, "{id}").unwrap();
        }
        self.gate.unlock().unwrap();
        let mut won = Vec::new();
        for racer in &mut self.racers {
            let mut line = String::new();
            racer.output.read_line(&mut line).unwrap();
            match line.trim() {
                "none" => {}
                other => won.push(other.to_owned()),
            }
        }
        won
    }
}

impl Drop for Race {
    fn drop(&mut self) {
        for racer in &mut self.racers {
            let _ = racer.child.kill();
            let _ = racer.child.wait();
        }
    }
}

#[test]
fn of_32_processes_that_claim_a_task_one_wins() {
    let _alone = one_at_a_time();
    let data = folder();
    let spool = real(data.path());
    let mut race = Race::start(data.path());
    for round in 0..500 {
        let id = spool.submit(order()).unwrap();
        assert_eq!(race.round(&id), ["won 1 1"], "round {round}");
        assert_eq!(op_names(&spool), ["submit", "claim"], "round {round}");
        send_all(&spool);
    }
}

#[test]
fn of_32_processes_that_reclaim_a_stale_lease_one_wins() {
    let _alone = one_at_a_time();
    let data = folder();
    let spool = real(data.path());
    let mut race = Race::start(data.path());
    let mut order = order();
    order.max_attempts = Some(2_000);
    let id = spool.submit(order).unwrap();
    claim(&spool, &id, "first").unwrap();
    for round in 1..=1_000 {
        make_stale(&spool, &id);
        send_all(&spool);
        assert_eq!(race.round(&id), [format!("won {0} {0}", round + 1)], "round {round}");
        let lease = lease(&spool, &id).unwrap();
        assert_eq!((lease.epoch, lease.attempt), (round + 1, u32::try_from(round).unwrap() + 1));
        assert_eq!(op_names(&spool), ["claim"], "round {round}");
    }
}
