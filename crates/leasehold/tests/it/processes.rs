//! Programs that use one queue in a folder, with nothing but `Queue::connect`.

use leasehold::{Context, Queue, Shutdown, Status, TaskError, Worker};
use leasehold_queue::FoundBroker;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Variable with the folder of a queue, for the process of a worker.
const FOLDER: &str = "LEASEHOLD_TEST_FOLDER";

/// Process of a worker, which is killed on drop.
struct WorkerProcess(Child);

impl WorkerProcess {
    fn start(folder: &Path) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "processes::a_worker_runs_in_this_process_if_it_is_one_of_a_test"]);
        Self(command.env(FOLDER, folder).stdout(Stdio::null()).spawn().unwrap())
    }

    /// Waits until this process is the broker.
    async fn until_broker(&self, queue: &Queue) {
        for _ in 0..1_500 {
            let found = queue.journal().unwrap().find_broker().await.unwrap();
            if matches!(&found, FoundBroker::Reached(status) if status.holder.pid == self.0.id()) {
                return;
            }
            queue.host().sleep(Duration::from_millis(20)).await;
        }
        panic!("the worker did not become the broker");
    }
}

impl Drop for WorkerProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Does nothing in a run of the tests; [`WorkerProcess`] starts it with the variable.
#[tokio::test]
async fn a_worker_runs_in_this_process_if_it_is_one_of_a_test() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let pid = |_: Context, (): ()| async { Ok::<_, TaskError>(std::process::id()) };
    let queue = Queue::connect(Path::new(&folder)).await.unwrap();
    let worker = Worker::new(queue, "worker", None).unwrap().handle("pid", pid).unwrap();
    worker.run(Shutdown::default()).await.unwrap();
}

#[tokio::test]
async fn programs_share_a_queue_in_a_folder_and_the_broker_may_be_killed() {
    let folder = tempfile::tempdir().unwrap();
    let queue = Queue::connect(folder.path()).await.unwrap();
    let first = WorkerProcess::start(folder.path());
    first.until_broker(&queue).await;
    let by = async |queue: &Queue| {
        let id = queue.submit("pid", ()).await.unwrap().id;
        let task = queue.wait(&id, Some(Duration::from_mins(1))).await.unwrap();
        assert_eq!(task.status(), Status::Completed);
        task.output().cloned().unwrap()
    };
    assert_eq!(by(&queue).await, first.0.id());
    drop(first);
    // This process becomes the broker, and the next worker connects to it.
    let kept = queue.submit("other", ()).await.unwrap().id;
    let second = WorkerProcess::start(folder.path());
    assert_eq!(by(&queue).await, second.0.id());
    queue.close().await.unwrap();
    second.until_broker(&queue).await;
    assert_eq!(queue.get(&kept).await.unwrap().status(), Status::Pending);
}
