//! Table of all settings. Parsing, validation, `leasehold config show`, "did you mean" and `docs/reference/settings.md`
//! are derived from it: a new setting needs an entry here and a field in [`super::typed`].

use super::kind::SettingKind;
use leasehold_queue::lease::LEASE_TTL_MAX;
use leasehold_worker::{CLAIM_LEASE_MIN, RENEWALS_MIN, RENEWED_LEASE_TTL_MIN};

/// One setting.
#[derive(Debug, PartialEq)]
pub(crate) struct Setting {
    /// Path in a file: table, dot, key.
    pub(crate) name: &'static str,
    /// Allowed values.
    pub(crate) kind: SettingKind,
    /// Default value, written as in a variable.
    pub(crate) default: Option<&'static str>,
    /// Environment variable that sets it.
    pub(crate) variable: &'static str,
    /// One sentence for the reference.
    pub(crate) help: &'static str,
}

const DAY_SECS: u64 = 86_400;
const HOUR_MS: u64 = 3_600_000;
/// A pebibyte: a larger value is a mistake in the unit.
const CACHE_BYTES_MAX: u64 = 1 << 50;

/// All settings, in the order in which they are shown.
pub(crate) const TABLE: &[Setting] = &[
    Setting {
        name: "queue.store",
        kind: SettingKind::Address,
        default: Some("./leasehold-data"),
        variable: "LEASEHOLD_STORE",
        help: "Store of the queue: a path, `s3://bucket/prefix`, `gs://…`, `az://…` or `memory://`.",
    },
    Setting {
        name: "queue.type",
        kind: SettingKind::Choice(&["bucket", "filesystem"]),
        default: Some("bucket"),
        variable: "LEASEHOLD_QUEUE_TYPE",
        help: "`filesystem` (an outpost): use the outpost of this machine, a folder that syncs with a bucket; `bucket` \
               (anything else, also a folder): use the store directly.",
    },
    Setting {
        name: "queue.campaign",
        kind: SettingKind::Text,
        default: None,
        variable: "LEASEHOLD_QUEUE_CAMPAIGN",
        help: "`CAMPAIGN/QUEUE`, where a campaign is a group of queues in one store: the queue is at \
               `campaigns/CAMPAIGN/queues/QUEUE` below the store. Required for an outpost.",
    },
    Setting {
        name: "queue.layout",
        kind: SettingKind::Choice(&["objects", "journal"]),
        default: None,
        variable: "LEASEHOLD_QUEUE_LAYOUT",
        help: "Layout of a new queue, which an existing one must have: `objects`, or `journal`. Unset: that of the queue; for a \
               new one `journal` in a folder of this host, `objects` in a bucket, on a mount of several hosts, and with a \
               setting about shards, direct dispatch or a campaign.",
    },
    Setting {
        name: "queue.shard_prefix_len",
        kind: SettingKind::Whole { from: 1, to: 4 },
        default: None,
        variable: "LEASEHOLD_SHARD_PREFIX_LEN",
        help: "Number of hex digits of a shard, in the layout `objects`. Unset: that of the queue, and 1 for a new queue.",
    },
    Setting {
        name: "queue.dispatch_mode",
        kind: SettingKind::Choice(&["shared", "direct"]),
        default: Some("shared"),
        variable: "LEASEHOLD_QUEUE_DISPATCH_MODE",
        help: "Dispatch of new tasks: `shared` offers them to all workers, `direct` sends them to the inbox of one \
               worker.",
    },
    Setting {
        name: "queue.durability",
        kind: SettingKind::Choice(&["fsync", "os"]),
        default: Some("fsync"),
        variable: "LEASEHOLD_QUEUE_DURABILITY",
        help: "Durability of writes to a folder: `fsync` waits for the disk, `os` leaves writing to the operating \
               system.",
    },
    Setting {
        name: "queue.folder_access",
        kind: SettingKind::Choice(&["private", "group"]),
        default: Some("private"),
        variable: "LEASEHOLD_QUEUE_FOLDER_ACCESS",
        help: "Permissions of the files of a folder: `private` for this user only, `group` also for the folder's \
               group.",
    },
    Setting {
        name: "queue.endpoint",
        kind: SettingKind::Text,
        default: None,
        variable: "LEASEHOLD_QUEUE_ENDPOINT",
        help: "Endpoint of a bucket. Unset: from the provider's standard variables and files, else the provider's \
               endpoint.",
    },
    Setting {
        name: "queue.region",
        kind: SettingKind::Text,
        default: None,
        variable: "LEASEHOLD_QUEUE_REGION",
        help: "Region of a bucket. Unset: from the provider's standard variables and files.",
    },
    Setting {
        name: "queue.access_key_id",
        kind: SettingKind::Text,
        default: None,
        variable: "LEASEHOLD_QUEUE_ACCESS_KEY_ID",
        help: "Access key id of an S3 bucket. Unset: from the provider's standard variables and files.",
    },
    Setting {
        name: "queue.secret_access_key",
        kind: SettingKind::Secret,
        default: None,
        variable: "LEASEHOLD_QUEUE_SECRET_ACCESS_KEY",
        help: "Secret access key of an S3 bucket. Set together with `queue.access_key_id`.",
    },
    Setting {
        name: "queue.direct_dispatch.worker_discovery_cache_ttl_secs",
        kind: SettingKind::Whole { from: 0, to: 3_600 },
        default: Some("30"),
        variable: "LEASEHOLD_QUEUE_DIRECT_DISPATCH_WORKER_DISCOVERY_CACHE_TTL_SECS",
        help: "Seconds for which a producer caches its list of workers that have inboxes.",
    },
    Setting {
        name: "queue.direct_dispatch.worker_selection",
        kind: SettingKind::Choice(&["round_robin", "hash", "random"]),
        default: Some("round_robin"),
        variable: "LEASEHOLD_QUEUE_DIRECT_DISPATCH_WORKER_SELECTION",
        help: "Worker that gets a task: the next in turn, one chosen by the hash of the idempotency key or id, or a \
               random one.",
    },
    Setting {
        name: "broker.listen",
        kind: SettingKind::Text,
        default: None,
        variable: "LEASEHOLD_BROKER_LISTEN",
        help: "IP address and port on which a broker of this process accepts connections of other hosts, over TLS; port 0 picks a \
               free one. Unset: it does not listen on the network.",
    },
    Setting {
        name: "broker.advertise",
        kind: SettingKind::Text,
        default: None,
        variable: "LEASEHOLD_BROKER_ADVERTISE",
        help: "IP address and port at which other hosts connect to the broker; port 0 is the listening port. Unset: \
               `broker.listen`. Required if that is `0.0.0.0` or `[::]`.",
    },
    Setting {
        name: "broker.role",
        kind: SettingKind::Choice(&["auto", "never", "only"]),
        default: Some("auto"),
        variable: "LEASEHOLD_BROKER_ROLE",
        help: "Role of a process in the layout `journal`: `auto` becomes the broker if there is none; `never` does not, and \
               can only read without one; `only` is for `leasehold broker`: it is the broker, or waits to become it, and refuses to run tasks.",
    },
    Setting {
        name: "worker.id",
        kind: SettingKind::Name,
        default: None,
        variable: "LEASEHOLD_WORKER_ID",
        help: "Worker id. Unset: random.",
    },
    Setting {
        name: "worker.concurrency",
        kind: SettingKind::Whole { from: 1, to: 10_000 },
        default: Some("8"),
        variable: "LEASEHOLD_WORKER_CONCURRENCY",
        help: "Number of tasks that run at once.",
    },
    Setting {
        name: "worker.shards",
        kind: SettingKind::List,
        default: None,
        variable: "LEASEHOLD_WORKER_SHARDS",
        help: "Shards to scan. Unset: all. Excludes `worker.shard_range`.",
    },
    Setting {
        name: "worker.shard_range",
        kind: SettingKind::Text,
        default: None,
        variable: "LEASEHOLD_WORKER_SHARD_RANGE",
        help: "Inclusive range of shards to scan, such as `00-3f`. Unset: all. Excludes `worker.shards`.",
    },
    Setting {
        name: "worker.lease_secs",
        kind: SettingKind::Whole { from: CLAIM_LEASE_MIN.as_secs(), to: DAY_SECS },
        default: Some("60"),
        variable: "LEASEHOLD_WORKER_LEASE_SECS",
        help: "Seconds until a claim on a task expires unless it is renewed. After a crash of its worker, the task \
               waits this long.",
    },
    Setting {
        name: "worker.drain_secs",
        kind: SettingKind::Whole { from: 0, to: DAY_SECS },
        default: Some("30"),
        variable: "LEASEHOLD_WORKER_DRAIN_SECS",
        help: "Seconds that running tasks have to finish after the worker was asked to stop (Ctrl-C or SIGTERM); unrelated \
               to `--drain`.",
    },
    Setting {
        name: "worker.stop_wait_secs",
        kind: SettingKind::Whole { from: 0, to: DAY_SECS },
        default: Some("10"),
        variable: "LEASEHOLD_WORKER_STOP_WAIT_SECS",
        help: "Seconds to wait for a Python handler that was asked to stop. After that, its claim expires.",
    },
    Setting {
        name: "worker.pass_secrets",
        kind: SettingKind::Switch,
        default: Some("false"),
        variable: "LEASEHOLD_WORKER_PASS_SECRETS",
        help: "Let programs of `--exec` inherit the variables with the credentials of the store, the piece secret and the \
               dashboard token. Programs can read the settings files of their user in any case.",
    },
    Setting {
        name: "worker.recover_secs",
        kind: SettingKind::Whole { from: 1, to: DAY_SECS },
        default: Some("5"),
        variable: "LEASEHOLD_WORKER_RECOVER_SECS",
        help: "Seconds between two scans for expired claims, whose tasks become pending again.",
    },
    Setting {
        name: "worker.sweep_secs",
        kind: SettingKind::Whole { from: 1, to: DAY_SECS },
        default: Some("60"),
        variable: "LEASEHOLD_WORKER_SWEEP_SECS",
        help: "Seconds between two full scans of the index, which find tasks whose notification was lost (not the \
               interval of index cleanup).",
    },
    Setting {
        name: "worker.lease_duration_secs",
        kind: SettingKind::Whole { from: RENEWED_LEASE_TTL_MIN.as_secs(), to: LEASE_TTL_MAX.as_secs() },
        default: Some("60"),
        variable: "LEASEHOLD_WORKER_LEASE_DURATION_SECS",
        help: "With direct dispatch: seconds until the lease on a worker's inbox expires unless it is renewed. After a crash, \
               other workers read the inbox only then.",
    },
    Setting {
        name: "worker.lease_renewal_interval_secs",
        kind: SettingKind::Whole { from: 1, to: LEASE_TTL_MAX.as_secs() / RENEWALS_MIN as u64 },
        default: Some("20"),
        variable: "LEASEHOLD_WORKER_LEASE_RENEWAL_INTERVAL_SECS",
        help: "With direct dispatch: seconds between two renewals of the lease on a worker's inbox, at most a third of \
               `worker.lease_duration_secs`. Twice as long while the inbox is idle.",
    },
    Setting {
        name: "worker.overflow_scavenge_interval_secs",
        kind: SettingKind::Whole { from: 1, to: 3_600 },
        default: Some("120"),
        variable: "LEASEHOLD_WORKER_OVERFLOW_SCAVENGE_INTERVAL_SECS",
        help: "Seconds between two scans of the overflow, which has the tasks from the inboxes of crashed workers. The search \
               for such inboxes runs at half this interval.",
    },
    Setting {
        name: "worker.polling.strategy",
        kind: SettingKind::Choice(&["adaptive", "fixed"]),
        default: Some("adaptive"),
        variable: "LEASEHOLD_WORKER_POLLING_STRATEGY",
        help: "Pauses between scans: `adaptive` pauses grow while the worker is idle, `fixed` pauses do not.",
    },
    Setting {
        name: "worker.polling.min_interval_ms",
        kind: SettingKind::Whole { from: 1, to: HOUR_MS },
        default: Some("100"),
        variable: "LEASEHOLD_WORKER_POLLING_MIN_INTERVAL_MS",
        help: "Shortest pause in milliseconds, used after a task was found; with `fixed`, every pause.",
    },
    Setting {
        name: "worker.polling.max_interval_ms",
        kind: SettingKind::Whole { from: 1, to: HOUR_MS },
        default: Some("5000"),
        variable: "LEASEHOLD_WORKER_POLLING_MAX_INTERVAL_MS",
        help: "Longest pause in milliseconds.",
    },
    Setting {
        name: "worker.polling.factor",
        kind: SettingKind::Number { from: 1.0, to: 100.0 },
        default: Some("2.0"),
        variable: "LEASEHOLD_WORKER_POLLING_FACTOR",
        help: "Factor by which each pause is longer than the one before.",
    },
    Setting {
        name: "worker.shard_leasing.enabled",
        kind: SettingKind::Switch,
        default: Some("false"),
        variable: "LEASEHOLD_SHARD_LEASING",
        help: "Lease a fair share of the shards instead of scanning all. Excludes `worker.shards` and \
               `worker.shard_range`.",
    },
    Setting {
        name: "worker.shard_leasing.shards_per_worker",
        kind: SettingKind::Whole { from: 1, to: 65_536 },
        default: Some("16"),
        variable: "LEASEHOLD_SHARD_LEASING_SHARDS_PER_WORKER",
        help: "Maximum number of shards that a worker leases before it has read the leases of other workers.",
    },
    Setting {
        name: "worker.shard_leasing.lease_ttl_secs",
        kind: SettingKind::Whole { from: RENEWED_LEASE_TTL_MIN.as_secs(), to: LEASE_TTL_MAX.as_secs() },
        default: Some("30"),
        variable: "LEASEHOLD_SHARD_LEASING_TTL_SECS",
        help: "Seconds until a lease on shards expires unless it is renewed. After a crash, other workers scan \
               these shards only then.",
    },
    Setting {
        name: "worker.shard_leasing.lease_renew_interval_secs",
        kind: SettingKind::Whole { from: 1, to: LEASE_TTL_MAX.as_secs() / RENEWALS_MIN as u64 },
        default: Some("10"),
        variable: "LEASEHOLD_SHARD_LEASING_RENEW_SECS",
        help: "Seconds between two renewals of a lease on shards, at most a third of \
               `worker.shard_leasing.lease_ttl_secs`, so that one renewal may fail.",
    },
    Setting {
        name: "outpost.data",
        kind: SettingKind::Path,
        default: None,
        variable: "LEASEHOLD_OUTPOST_DATA",
        help: "Directory of the outposts of this machine. Unset: `leasehold` in `XDG_DATA_HOME` or in \
               `~/.local/share`.",
    },
    Setting {
        name: "outpost.cycle_secs",
        kind: SettingKind::Whole { from: 1, to: 3_600 },
        default: Some("60"),
        variable: "LEASEHOLD_OUTPOST_CYCLE_SECS",
        help: "Seconds between two syncs when there is nothing to send.",
    },
    Setting {
        name: "outpost.window",
        kind: SettingKind::Whole { from: 1, to: 10_000 },
        default: Some("32"),
        variable: "LEASEHOLD_OUTPOST_WINDOW",
        help: "Number of pending tasks of each task type that an outpost prefetches for the workers of its machine.",
    },
    Setting {
        name: "pieces.cache",
        kind: SettingKind::Path,
        default: None,
        variable: "LEASEHOLD_PIECES_CACHE",
        help: "Directory of the artifact cache of this machine, for all stores and processes. Unset: `leasehold` in \
               `XDG_CACHE_HOME` or in `~/.cache`.",
    },
    Setting {
        name: "pieces.cache_bytes",
        kind: SettingKind::Whole { from: 1, to: CACHE_BYTES_MAX },
        default: Some("21474836480"),
        variable: "LEASEHOLD_PIECES_CACHE_BYTES",
        help: "Maximum size of the cache in bytes (20 GiB by default). The least recently used artifacts are removed first, \
               those in use never.",
    },
    Setting {
        name: "pieces.keep_days",
        kind: SettingKind::Whole { from: 1, to: 36_500 },
        default: Some("30"),
        variable: "LEASEHOLD_PIECES_KEEP_DAYS",
        help: "Retention of published artifacts in days, including results of tasks. After that, `artifact prune` deletes \
               them. Publishing again renews it once half of it is over.",
    },
    Setting {
        name: "pieces.peers",
        kind: SettingKind::Switch,
        default: Some("true"),
        variable: "LEASEHOLD_PIECES_PEERS",
        help: "Fetch artifacts from peers too, not only from the store. Requests: one list per fetch and one get per peer.",
    },
    Setting {
        name: "pieces.secret",
        kind: SettingKind::Secret,
        default: None,
        variable: "LEASEHOLD_PIECES_SECRET",
        help: "Secret with which peers sign their requests, at least 16 bytes. Unset: pieces are served to this \
               machine only.",
    },
    Setting {
        name: "pieces.serve",
        kind: SettingKind::Switch,
        default: Some("false"),
        variable: "LEASEHOLD_PIECES_SERVE",
        help: "Let workers serve the pieces of their cache to peers; `serve-pieces` always does.",
    },
    Setting {
        name: "pieces.listen",
        kind: SettingKind::Text,
        default: Some("127.0.0.1:0"),
        variable: "LEASEHOLD_PIECES_LISTEN",
        help: "IP address and port on which pieces are served; port 0 picks a free one.",
    },
    Setting {
        name: "pieces.advertise",
        kind: SettingKind::Text,
        default: None,
        variable: "LEASEHOLD_PIECES_ADVERTISE",
        help: "IP address and port that are announced to peers; port 0 is the listening port. Unset: the listening \
               address.",
    },
    Setting {
        name: "pieces.upload_bytes_per_sec",
        kind: SettingKind::Whole { from: 1, to: CACHE_BYTES_MAX },
        default: None,
        variable: "LEASEHOLD_PIECES_UPLOAD_BYTES_PER_SEC",
        help: "Maximum rate of serving pieces, in bytes per second. Unset: unlimited.",
    },
    Setting {
        name: "pieces.download_bytes_per_sec",
        kind: SettingKind::Whole { from: 1, to: CACHE_BYTES_MAX },
        default: None,
        variable: "LEASEHOLD_PIECES_DOWNLOAD_BYTES_PER_SEC",
        help: "Maximum rate of one fetch, in bytes per second. Unset: unlimited.",
    },
    Setting {
        name: "dashboard.host",
        kind: SettingKind::Text,
        default: Some("127.0.0.1"),
        variable: "LEASEHOLD_DASHBOARD_HOST",
        help: "IP address on which the dashboard listens; one that other machines can reach needs a token.",
    },
    Setting {
        name: "dashboard.port",
        kind: SettingKind::Whole { from: 0, to: 65_535 },
        default: Some("7423"),
        variable: "LEASEHOLD_DASHBOARD_PORT",
        help: "Port on which the dashboard listens; 0 picks a free one.",
    },
    Setting {
        name: "dashboard.token",
        kind: SettingKind::Secret,
        default: None,
        variable: "LEASEHOLD_DASHBOARD_TOKEN",
        help: "Token that viewers of the dashboard need, at least 8 characters. Unset: only this machine has access.",
    },
    Setting {
        name: "dashboard.allow_actions",
        kind: SettingKind::Switch,
        default: Some("false"),
        variable: "LEASEHOLD_DASHBOARD_ALLOW_ACTIONS",
        help: "Let viewers of the dashboard cancel, retry and reschedule tasks; otherwise it is read-only.",
    },
    Setting {
        name: "dashboard.provider",
        kind: SettingKind::Choice(&["aws", "aws-express", "r2", "gcs", "azure"]),
        default: Some("aws"),
        variable: "LEASEHOLD_DASHBOARD_PROVIDER",
        help: "Price list that the dashboard uses for the cost of requests.",
    },
];

/// Finds a setting by name.
pub(crate) fn find(name: &str) -> Option<&'static Setting> {
    TABLE.iter().find(|setting| setting.name == name)
}

/// True if a setting exists below that name.
pub(super) fn is_table(name: &str) -> bool {
    TABLE.iter().any(|setting| setting.name.strip_prefix(name).is_some_and(|rest| rest.starts_with('.')))
}
