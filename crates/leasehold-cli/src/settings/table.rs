//! Every setting, in one place. Reading, checking, `leasehold config show`, "did you mean" and
//! `docs/reference/settings.md` all follow from this table: a line added here is all that a new setting needs,
//! besides a field in [`super::typed`] for those who use it.

use super::kind::Kind;
use leasehold_queue::lease::LEASE_TTL_MAX;
use leasehold_worker::{CLAIM_LEASE_MIN, RENEWALS_MIN, RENEWED_LEASE_TTL_MIN};

/// One setting.
#[derive(Debug, PartialEq)]
pub(crate) struct Setting {
    /// Its place in a file: table, dot, key.
    pub(crate) name: &'static str,
    /// What it may be.
    pub(crate) kind: Kind,
    /// What it is if nobody says anything, written as in a variable.
    pub(crate) default: Option<&'static str>,
    /// The environment variable that sets it.
    pub(crate) variable: &'static str,
    /// One sentence for the reference.
    pub(crate) help: &'static str,
}

const DAY_SECS: u64 = 86_400;
const HOUR_MS: u64 = 3_600_000;
/// A pebibyte: whoever means more has mistaken the unit.
const CACHE_BYTES_MAX: u64 = 1 << 50;

/// In the order in which they are shown.
pub(crate) const TABLE: &[Setting] = &[
    Setting {
        name: "queue.store",
        kind: Kind::Address,
        default: Some("./leasehold-data"),
        variable: "LEASEHOLD_STORE",
        help: "Where the queue is: a path, `s3://bucket/prefix`, `gs://…`, `az://…` or `memory://`.",
    },
    Setting {
        name: "queue.type",
        kind: Kind::Choice(&["bucket", "filesystem"]),
        default: Some("bucket"),
        variable: "LEASEHOLD_QUEUE_TYPE",
        help: "Work on the store itself, or on an outpost: a folder that is brought into line with a bucket later.",
    },
    Setting {
        name: "queue.campaign",
        kind: Kind::Text,
        default: None,
        variable: "LEASEHOLD_QUEUE_CAMPAIGN",
        help: "`CAMPAIGN/QUEUE`: the queue lies at `campaigns/CAMPAIGN/queues/QUEUE` below the store. An outpost needs it.",
    },
    Setting {
        name: "queue.shard_prefix_len",
        kind: Kind::Whole { from: 1, to: 4 },
        default: None,
        variable: "LEASEHOLD_SHARD_PREFIX_LEN",
        help: "How many hex digits name a shard; unset, it is what the queue says, and 1 for a new queue.",
    },
    Setting {
        name: "queue.dispatch_mode",
        kind: Kind::Choice(&["shared", "direct"]),
        default: Some("shared"),
        variable: "LEASEHOLD_QUEUE_DISPATCH_MODE",
        help: "Whether new tasks wait for any worker, or go into the inbox of one.",
    },
    Setting {
        name: "queue.durability",
        kind: Kind::Choice(&["fsync", "os"]),
        default: Some("fsync"),
        variable: "LEASEHOLD_QUEUE_DURABILITY",
        help: "When a write to a folder counts as done: on the disk, or with the operating system.",
    },
    Setting {
        name: "queue.folder_access",
        kind: Kind::Choice(&["private", "group"]),
        default: Some("private"),
        variable: "LEASEHOLD_QUEUE_FOLDER_ACCESS",
        help: "Who may use the files of a folder: this user, or the folder's group.",
    },
    Setting {
        name: "queue.endpoint",
        kind: Kind::Text,
        default: None,
        variable: "LEASEHOLD_QUEUE_ENDPOINT",
        help: "The server of a bucket; unset, the usual variables and files decide, else the provider's own.",
    },
    Setting {
        name: "queue.region",
        kind: Kind::Text,
        default: None,
        variable: "LEASEHOLD_QUEUE_REGION",
        help: "The region of a bucket; unset, the usual variables and files decide.",
    },
    Setting {
        name: "queue.access_key_id",
        kind: Kind::Text,
        default: None,
        variable: "LEASEHOLD_QUEUE_ACCESS_KEY_ID",
        help: "The name of the access key of an S3 bucket; unset, the usual variables and files decide.",
    },
    Setting {
        name: "queue.secret_access_key",
        kind: Kind::Secret,
        default: None,
        variable: "LEASEHOLD_QUEUE_SECRET_ACCESS_KEY",
        help: "The secret of that access key.",
    },
    Setting {
        name: "queue.direct_dispatch.worker_discovery_cache_ttl_secs",
        kind: Kind::Whole { from: 0, to: 3_600 },
        default: Some("30"),
        variable: "LEASEHOLD_QUEUE_DIRECT_DISPATCH_WORKER_DISCOVERY_CACHE_TTL_SECS",
        help: "For how long a producer relies on its list of workers that have inboxes.",
    },
    Setting {
        name: "queue.direct_dispatch.worker_selection",
        kind: Kind::Choice(&["round_robin", "hash", "random"]),
        default: Some("round_robin"),
        variable: "LEASEHOLD_QUEUE_DIRECT_DISPATCH_WORKER_SELECTION",
        help: "Which of them gets a task: one after the other, the one its idempotency key or id belongs to, or any.",
    },
    Setting {
        name: "worker.id",
        kind: Kind::Name,
        default: None,
        variable: "LEASEHOLD_WORKER_ID",
        help: "The worker's name; unset, a random one.",
    },
    Setting {
        name: "worker.concurrency",
        kind: Kind::Whole { from: 1, to: 10_000 },
        default: Some("8"),
        variable: "LEASEHOLD_WORKER_CONCURRENCY",
        help: "How many tasks run at once.",
    },
    Setting {
        name: "worker.shards",
        kind: Kind::List,
        default: None,
        variable: "LEASEHOLD_WORKER_SHARDS",
        help: "The shards to look through; unset, all. Excludes `worker.shard_range`.",
    },
    Setting {
        name: "worker.shard_range",
        kind: Kind::Text,
        default: None,
        variable: "LEASEHOLD_WORKER_SHARD_RANGE",
        help: "The same as a range that includes both ends, such as `00-3f`.",
    },
    Setting {
        name: "worker.lease_secs",
        kind: Kind::Whole { from: CLAIM_LEASE_MIN.as_secs(), to: DAY_SECS },
        default: Some("60"),
        variable: "LEASEHOLD_WORKER_LEASE_SECS",
        help: "How long a claim on a task lasts unless it is renewed; others wait that long after a crash.",
    },
    Setting {
        name: "worker.drain_secs",
        kind: Kind::Whole { from: 0, to: DAY_SECS },
        default: Some("30"),
        variable: "LEASEHOLD_WORKER_DRAIN_SECS",
        help: "How long running tasks may go on after the worker was asked to stop.",
    },
    Setting {
        name: "worker.stop_wait_secs",
        kind: Kind::Whole { from: 0, to: DAY_SECS },
        default: Some("10"),
        variable: "LEASEHOLD_WORKER_STOP_WAIT_SECS",
        help: "How long a handler in Python that was told to stop is waited for; then its claim is left to run out.",
    },
    Setting {
        name: "worker.pass_secrets",
        kind: Kind::Switch,
        default: Some("false"),
        variable: "LEASEHOLD_WORKER_PASS_SECRETS",
        help: "Whether programs of `--exec` inherit the variables with credentials of the store, the piece secret and the \
               dashboard token. Settings files can be read by programs of the same user in any case.",
    },
    Setting {
        name: "worker.recover_secs",
        kind: Kind::Whole { from: 1, to: DAY_SECS },
        default: Some("5"),
        variable: "LEASEHOLD_WORKER_RECOVER_SECS",
        help: "How often to look for tasks whose worker was lost.",
    },
    Setting {
        name: "worker.sweep_secs",
        kind: Kind::Whole { from: 1, to: DAY_SECS },
        default: Some("60"),
        variable: "LEASEHOLD_WORKER_SWEEP_SECS",
        help: "How often to look at the index although the bell was silent: a ring may be lost.",
    },
    Setting {
        name: "worker.lease_duration_secs",
        kind: Kind::Whole { from: RENEWED_LEASE_TTL_MIN.as_secs(), to: LEASE_TTL_MAX.as_secs() },
        default: Some("60"),
        variable: "LEASEHOLD_WORKER_LEASE_DURATION_SECS",
        help: "With direct dispatch: how long a worker's name lasts unless it is renewed; after a crash nobody looks into its \
               inbox for so long.",
    },
    Setting {
        name: "worker.lease_renewal_interval_secs",
        kind: Kind::Whole { from: 1, to: LEASE_TTL_MAX.as_secs() / RENEWALS_MIN as u64 },
        default: Some("20"),
        variable: "LEASEHOLD_WORKER_LEASE_RENEWAL_INTERVAL_SECS",
        help: "How often the name is renewed: at most a third of how long it lasts. Half as often while nothing comes in.",
    },
    Setting {
        name: "worker.overflow_scavenge_interval_secs",
        kind: Kind::Whole { from: 1, to: 3_600 },
        default: Some("120"),
        variable: "LEASEHOLD_WORKER_OVERFLOW_SCAVENGE_INTERVAL_SECS",
        help: "How often to look at what was left in the inboxes of dead workers; they are looked for twice as often.",
    },
    Setting {
        name: "worker.polling.strategy",
        kind: Kind::Choice(&["adaptive", "fixed"]),
        default: Some("adaptive"),
        variable: "LEASEHOLD_WORKER_POLLING_STRATEGY",
        help: "Whether pauses grow while there is nothing to do.",
    },
    Setting {
        name: "worker.polling.min_interval_ms",
        kind: Kind::Whole { from: 1, to: HOUR_MS },
        default: Some("100"),
        variable: "LEASEHOLD_WORKER_POLLING_MIN_INTERVAL_MS",
        help: "The first pause after something was found; with `fixed`, every pause.",
    },
    Setting {
        name: "worker.polling.max_interval_ms",
        kind: Kind::Whole { from: 1, to: HOUR_MS },
        default: Some("5000"),
        variable: "LEASEHOLD_WORKER_POLLING_MAX_INTERVAL_MS",
        help: "The longest pause.",
    },
    Setting {
        name: "worker.polling.factor",
        kind: Kind::Number { from: 1.0, to: 100.0 },
        default: Some("2.0"),
        variable: "LEASEHOLD_WORKER_POLLING_FACTOR",
        help: "How much longer each pause is than the one before.",
    },
    Setting {
        name: "worker.shard_leasing.enabled",
        kind: Kind::Switch,
        default: Some("false"),
        variable: "LEASEHOLD_SHARD_LEASING",
        help: "Whether workers divide the shards among themselves instead of all looking through all. Excludes \
               `worker.shards` and `worker.shard_range`.",
    },
    Setting {
        name: "worker.shard_leasing.shards_per_worker",
        kind: Kind::Whole { from: 1, to: 65_536 },
        default: Some("16"),
        variable: "LEASEHOLD_SHARD_LEASING_SHARDS_PER_WORKER",
        help: "The most shards that a worker takes before it has seen the others.",
    },
    Setting {
        name: "worker.shard_leasing.lease_ttl_secs",
        kind: Kind::Whole { from: RENEWED_LEASE_TTL_MIN.as_secs(), to: LEASE_TTL_MAX.as_secs() },
        default: Some("30"),
        variable: "LEASEHOLD_SHARD_LEASING_TTL_SECS",
        help: "How long a lease on shards lasts unless it is renewed; after a crash nobody looks at them for so long.",
    },
    Setting {
        name: "worker.shard_leasing.lease_renew_interval_secs",
        kind: Kind::Whole { from: 1, to: LEASE_TTL_MAX.as_secs() / RENEWALS_MIN as u64 },
        default: Some("10"),
        variable: "LEASEHOLD_SHARD_LEASING_RENEW_SECS",
        help: "How often it is renewed: at most a third of how long it lasts, so that one renewal may fail.",
    },
    Setting {
        name: "outpost.data",
        kind: Kind::Path,
        default: None,
        variable: "LEASEHOLD_OUTPOST_DATA",
        help: "Where the folders of this machine's outposts are; unset, `leasehold` in `XDG_DATA_HOME` or in `~/.local/share`.",
    },
    Setting {
        name: "outpost.cycle_secs",
        kind: Kind::Whole { from: 1, to: 3_600 },
        default: Some("60"),
        variable: "LEASEHOLD_OUTPOST_CYCLE_SECS",
        help: "How often a supervisor comes round when there is nothing to send.",
    },
    Setting {
        name: "outpost.window",
        kind: Kind::Whole { from: 1, to: 10_000 },
        default: Some("32"),
        variable: "LEASEHOLD_OUTPOST_WINDOW",
        help: "How many free tasks an outpost keeps for the workers of its machine.",
    },
    Setting {
        name: "pieces.cache",
        kind: Kind::Path,
        default: None,
        variable: "LEASEHOLD_PIECES_CACHE",
        help: "Where the artifacts of this machine are, for all stores and all processes; unset, `leasehold` in \
               `XDG_CACHE_HOME` or in `~/.cache`.",
    },
    Setting {
        name: "pieces.cache_bytes",
        kind: Kind::Whole { from: 1, to: CACHE_BYTES_MAX },
        default: Some("21474836480"),
        variable: "LEASEHOLD_PIECES_CACHE_BYTES",
        help: "How much it holds at most (20 GiB by default); what was used longest ago goes first, and nothing that is in \
               use.",
    },
    Setting {
        name: "pieces.keep_days",
        kind: Kind::Whole { from: 1, to: 36_500 },
        default: Some("30"),
        variable: "LEASEHOLD_PIECES_KEEP_DAYS",
        help: "How long what is published is kept at least, the results of tasks included; then `artifact prune` may remove it.",
    },
    Setting {
        name: "pieces.peers",
        kind: Kind::Switch,
        default: Some("true"),
        variable: "LEASEHOLD_PIECES_PEERS",
        help: "Whether artifacts are fetched from peers, too: one list for each fetch, and one get for each peer.",
    },
    Setting {
        name: "pieces.secret",
        kind: Kind::Secret,
        default: None,
        variable: "LEASEHOLD_PIECES_SECRET",
        help: "What peers sign their requests with, 16 bytes or more; without it pieces are served to this machine only.",
    },
    Setting {
        name: "pieces.serve",
        kind: Kind::Switch,
        default: Some("false"),
        variable: "LEASEHOLD_PIECES_SERVE",
        help: "Whether a worker serves the pieces of its cache to peers; `serve-pieces` always does.",
    },
    Setting {
        name: "pieces.listen",
        kind: Kind::Text,
        default: Some("127.0.0.1:0"),
        variable: "LEASEHOLD_PIECES_LISTEN",
        help: "Where pieces are served: an IP address and a port; port 0 is any that is free.",
    },
    Setting {
        name: "pieces.advertise",
        kind: Kind::Text,
        default: None,
        variable: "LEASEHOLD_PIECES_ADVERTISE",
        help: "The address that peers are told, if it is another; port 0 is the one that is listened on.",
    },
    Setting {
        name: "pieces.upload_bytes_per_sec",
        kind: Kind::Whole { from: 1, to: CACHE_BYTES_MAX },
        default: None,
        variable: "LEASEHOLD_PIECES_UPLOAD_BYTES_PER_SEC",
        help: "Most bytes per second that are served; unset, there is no bound.",
    },
    Setting {
        name: "pieces.download_bytes_per_sec",
        kind: Kind::Whole { from: 1, to: CACHE_BYTES_MAX },
        default: None,
        variable: "LEASEHOLD_PIECES_DOWNLOAD_BYTES_PER_SEC",
        help: "Most bytes per second that one fetch asks for; unset, there is no bound.",
    },
    Setting {
        name: "dashboard.host",
        kind: Kind::Text,
        default: Some("127.0.0.1"),
        variable: "LEASEHOLD_DASHBOARD_HOST",
        help: "The IP address at which the dashboard listens; one that other machines can reach needs a token.",
    },
    Setting {
        name: "dashboard.port",
        kind: Kind::Whole { from: 0, to: 65_535 },
        default: Some("7423"),
        variable: "LEASEHOLD_DASHBOARD_PORT",
        help: "Its port; 0 is any that is free.",
    },
    Setting {
        name: "dashboard.token",
        kind: Kind::Secret,
        default: None,
        variable: "LEASEHOLD_DASHBOARD_TOKEN",
        help: "What viewers of the dashboard have to know, 8 characters or more; without it, it is for this machine only.",
    },
    Setting {
        name: "dashboard.allow_actions",
        kind: Kind::Switch,
        default: Some("false"),
        variable: "LEASEHOLD_DASHBOARD_ALLOW_ACTIONS",
        help: "Whether tasks can be cancelled, retried and started from the dashboard, or only looked at.",
    },
    Setting {
        name: "dashboard.provider",
        kind: Kind::Choice(&["aws", "aws-express", "r2", "gcs", "azure"]),
        default: Some("aws"),
        variable: "LEASEHOLD_DASHBOARD_PROVIDER",
        help: "By whose list prices the dashboard tells what requests cost.",
    },
];

/// The setting of that name.
pub(crate) fn find(name: &str) -> Option<&'static Setting> {
    TABLE.iter().find(|setting| setting.name == name)
}

/// Whether some setting lives below that name.
pub(super) fn is_table(name: &str) -> bool {
    TABLE.iter().any(|setting| setting.name.strip_prefix(name).is_some_and(|rest| rest.starts_with('.')))
}
