//! Typed settings for the commands, checked against each other.

use leasehold_broker::NetworkListen;
use leasehold_core::outpost::QueuePath;
use leasehold_core::{Error, Result, ShardLen, WorkerId};
use leasehold_outpost::QueueType;
use leasehold_pieces::Secret;
use leasehold_queue::{BrokerRole, DirectDispatch, LayoutName, Selection};
use leasehold_store::{AccessKey, FolderOptions, OpenOptions, Prices};
use leasehold_web::Token;
use leasehold_worker::{InboxLeaseOptions, RENEWALS_MIN, ShardLeasing};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use super::EffectiveSetting;
use super::kind::Value;

/// Settings of the queue and its store.
#[derive(Debug)]
pub(crate) struct QueueSettings {
    /// Address of the store.
    pub(crate) store: String,
    /// Options of the store that are not part of its address.
    pub(crate) open: OpenOptions,
    /// The store itself, or the outpost of this machine.
    pub(crate) queue_type: QueueType,
    /// Queue below the store; `None` if the queue is the store itself.
    pub(crate) campaign: Option<QueuePath>,
    /// `None`: that of the queue, or the default for a new one.
    pub(crate) layout: Option<LayoutName>,
    /// True if a setting outside this table needs the layout `objects`.
    pub(crate) needs_objects: bool,
    /// `None`: that of the queue, or the default for a new one.
    pub(crate) shard_len: Option<ShardLen>,
    /// `None` with shared dispatch.
    pub(crate) direct: Option<DirectDispatch>,
    /// Addresses of a broker for other hosts; `None` if it does not listen for them.
    pub(crate) broker_listen: Option<NetworkListen>,
    /// Role of this process in the layout `journal`.
    pub(crate) broker_role: BrokerRole,
}

/// Settings of a worker.
#[derive(Debug)]
pub(crate) struct WorkerSettings {
    pub(crate) id: Option<WorkerId>,
    pub(crate) concurrency: usize,
    pub(crate) shards: ShardChoice,
    pub(crate) lease: Duration,
    pub(crate) drain: Duration,
    pub(crate) stop_wait: Duration,
    /// True if programs inherit credentials.
    pub(crate) passes_secrets: bool,
    pub(crate) recover_every: Duration,
    pub(crate) full_scan_every: Duration,
    pub(crate) polling: PollingSettings,
    /// `None` if the worker does not lease shards.
    pub(crate) leasing: Option<ShardLeasing>,
    /// `None` if the worker has no inbox.
    pub(crate) inbox: Option<InboxLeaseOptions>,
    pub(crate) overflow_every: Duration,
}

/// Shards to scan. Not yet validated: their format depends on the queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ShardChoice {
    All,
    List(Vec<String>),
    Range(String),
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum PollingSettings {
    Adaptive { min: Duration, max: Duration, factor: f64 },
    Fixed { interval: Duration },
}

/// Settings of artifacts: the cache, and how pieces are shared.
#[derive(Debug)]
pub(crate) struct PiecesSettings {
    /// `None` if it is unset and there is no home directory.
    pub(crate) cache: Option<PathBuf>,
    pub(crate) cache_bytes: u64,
    /// Retention of published artifacts.
    pub(crate) keep: Duration,
    /// True if artifacts are fetched from peers too.
    pub(crate) peers: bool,
    /// Secret shared by all peers.
    pub(crate) secret: Option<Secret>,
    /// True if a worker serves the pieces of its cache.
    pub(crate) serve: bool,
    pub(crate) listen: SocketAddr,
    /// Address that is announced to peers; `None` for the listening address.
    pub(crate) advertise: Option<SocketAddr>,
    pub(crate) upload_bytes_per_sec: Option<u64>,
    pub(crate) download_bytes_per_sec: Option<u64>,
}

/// Settings of the outposts of this machine.
#[derive(Debug)]
pub(crate) struct OutpostSettings {
    /// `None` if it is unset and there is no home directory.
    pub(crate) data: Option<PathBuf>,
    pub(crate) cycle: Duration,
    pub(crate) window: usize,
}

/// Settings of the dashboard.
#[derive(Debug, Clone)]
pub(crate) struct DashboardSettings {
    pub(crate) addr: SocketAddr,
    /// Token that viewers need.
    pub(crate) token: Option<Token>,
    pub(crate) allows_actions: bool,
    pub(crate) prices: Prices,
}

impl QueueSettings {
    pub(super) fn new(all: &[EffectiveSetting]) -> Result<Self> {
        let durability = required(text(all, "queue.durability")).parse()?;
        let access = required(text(all, "queue.folder_access")).parse()?;
        let open = OpenOptions {
            folder: FolderOptions { durability, access, ..FolderOptions::default() },
            endpoint: text(all, "queue.endpoint").map(ToOwned::to_owned),
            region: text(all, "queue.region").map(ToOwned::to_owned),
            access_key: access_key(all)?,
        };
        let queue_type = required(text(all, "queue.type")).parse()?;
        let digits = whole(all, "queue.shard_prefix_len");
        let shard_len = digits.map(|digits| ShardLen::new(u8::try_from(digits).unwrap_or(u8::MAX)));
        let campaign = campaign(all)?;
        let store = required(text(all, "queue.store"));
        let store = match &campaign {
            Some(campaign) => format!("{}/{}", store.trim_end_matches('/'), campaign.prefix()),
            None => store.to_owned(),
        };
        let (direct, broker_listen) = (direct(all), broker_listen(all)?);
        Ok(Self {
            store,
            open,
            queue_type,
            // An outpost may sync with it.
            needs_objects: campaign.is_some() || divides_shards(all),
            campaign,
            layout: text(all, "queue.layout").map(str::parse).transpose()?,
            shard_len: shard_len.transpose()?,
            direct,
            broker_listen,
            broker_role: required(text(all, "broker.role")).parse()?,
        })
    }
}

/// True if workers are to scan a part of the shards.
fn divides_shards(all: &[EffectiveSetting]) -> bool {
    let is_set = |name| get(all, name).value.is_some();
    is_set("worker.shards")
        || is_set("worker.shard_range")
        || get(all, "worker.shard_leasing.enabled").value == Some(Value::Switch(true))
}

fn campaign(all: &[EffectiveSetting]) -> Result<Option<QueuePath>> {
    let name = "queue.campaign";
    let parsed = text(all, name).map(str::parse).transpose();
    parsed.map_err(|error: Error| Error::invalid(format!("{name} ({}): {error}", get(all, name).origin)))
}

impl WorkerSettings {
    pub(super) fn new(all: &[EffectiveSetting]) -> Result<Self> {
        let id = text(all, "worker.id").map(|id| WorkerId::checked("worker.id", id));
        Ok(Self {
            id: id.transpose()?,
            concurrency: count(all, "worker.concurrency"),
            shards: shards(all)?,
            lease: secs(all, "worker.lease_secs"),
            drain: secs(all, "worker.drain_secs"),
            stop_wait: secs(all, "worker.stop_wait_secs"),
            passes_secrets: get(all, "worker.pass_secrets").value == Some(Value::Switch(true)),
            recover_every: secs(all, "worker.recover_secs"),
            full_scan_every: secs(all, "worker.sweep_secs"),
            polling: polling(all)?,
            leasing: leasing(all)?,
            inbox: inbox(all)?,
            overflow_every: secs(all, "worker.overflow_scavenge_interval_secs"),
        })
    }
}

impl PiecesSettings {
    pub(super) fn new(all: &[EffectiveSetting], default_cache: Option<PathBuf>) -> Result<Self> {
        Ok(Self {
            cache: text(all, "pieces.cache").map(PathBuf::from).or(default_cache),
            cache_bytes: required(whole(all, "pieces.cache_bytes")),
            keep: Duration::from_secs(required(whole(all, "pieces.keep_days")) * 86_400),
            peers: get(all, "pieces.peers").value == Some(Value::Switch(true)),
            secret: secret(all)?,
            serve: get(all, "pieces.serve").value == Some(Value::Switch(true)),
            listen: required(address(all, "pieces.listen")?),
            advertise: address(all, "pieces.advertise")?,
            upload_bytes_per_sec: whole(all, "pieces.upload_bytes_per_sec"),
            download_bytes_per_sec: whole(all, "pieces.download_bytes_per_sec"),
        })
    }
}

impl OutpostSettings {
    pub(super) fn new(all: &[EffectiveSetting], default_data: Option<PathBuf>) -> Self {
        Self {
            data: text(all, "outpost.data").map(PathBuf::from).or(default_data),
            cycle: secs(all, "outpost.cycle_secs"),
            window: count(all, "outpost.window"),
        }
    }
}

impl DashboardSettings {
    pub(super) fn new(all: &[EffectiveSetting]) -> Result<Self> {
        let port = u16::try_from(required(whole(all, "dashboard.port"))).unwrap_or(u16::MAX);
        Ok(Self {
            addr: SocketAddr::new(listening(all)?, port),
            token: token(all)?,
            allows_actions: get(all, "dashboard.allow_actions").value == Some(Value::Switch(true)),
            prices: Prices::of(required(text(all, "dashboard.provider")))?,
        })
    }
}

/// Parses the host of the dashboard. Only IP addresses and `localhost`: another name could resolve to an unexpected
/// address.
fn listening(all: &[EffectiveSetting]) -> Result<IpAddr> {
    let name = "dashboard.host";
    match required(text(all, name)) {
        "localhost" => Ok(IpAddr::V4(Ipv4Addr::LOCALHOST)),
        text => text.trim_matches(['[', ']']).parse().map_err(|_| {
            let origin = &get(all, name).origin;
            let advice = "an IP address, like 127.0.0.1 or 0.0.0.0";
            Error::invalid(format!("{name} must be {advice}, not `{text}` ({origin})"))
        }),
    }
}

fn token(all: &[EffectiveSetting]) -> Result<Option<Token>> {
    let name = "dashboard.token";
    let token = text(all, name).map(Token::new).transpose();
    token.map_err(|error| Error::invalid(format!("{name} ({}): {error}", get(all, name).origin)))
}

fn secret(all: &[EffectiveSetting]) -> Result<Option<Secret>> {
    let name = "pieces.secret";
    let secret = text(all, name).map(|text| Secret::new(text.as_bytes())).transpose();
    secret.map_err(|error| Error::invalid(format!("{name} ({}): {error}", get(all, name).origin)))
}

fn address(all: &[EffectiveSetting], name: &str) -> Result<Option<SocketAddr>> {
    let parsed = text(all, name).map(|text| {
        text.parse().map_err(|_| {
            let origin = &get(all, name).origin;
            let advice = "an IP address and a port, like 10.0.0.5:7400";
            Error::invalid(format!("{name} must be {advice}, not `{text}` ({origin})"))
        })
    });
    parsed.transpose()
}

fn broker_listen(all: &[EffectiveSetting]) -> Result<Option<NetworkListen>> {
    let (listen, advertise) = ("broker.listen", "broker.advertise");
    match (address(all, listen)?, address(all, advertise)?) {
        (None, None) => Ok(None),
        (None, Some(_)) => {
            let origin = &get(all, advertise).origin;
            Err(Error::invalid(format!("{advertise} ({origin}) is set without {listen}; set both")))
        }
        (Some(addr), advertised) => NetworkListen::new(addr, advertised)
            .map(Some)
            .map_err(|error| Error::invalid(format!("{listen} ({}): {error}", get(all, listen).origin))),
    }
}

fn access_key(all: &[EffectiveSetting]) -> Result<Option<AccessKey>> {
    let half = |given: &str, missing| {
        let origin = &get(all, given).origin;
        Err(Error::invalid(format!("{given} ({origin}) is set without {missing}; set both")))
    };
    let (id, secret) = ("queue.access_key_id", "queue.secret_access_key");
    match (text(all, id), text(all, secret)) {
        (None, None) => Ok(None),
        (Some(_), None) => half(id, secret),
        (None, Some(_)) => half(secret, id),
        (Some(id), Some(secret)) => Ok(Some(AccessKey { id: id.to_owned(), secret: secret.to_owned() })),
    }
}

/// Chosen shards. A list and a range exclude each other within a layer; across layers the later one wins, so that a flag can
/// override a file.
fn shards(all: &[EffectiveSetting]) -> Result<ShardChoice> {
    let (list, range) = (get(all, "worker.shards"), get(all, "worker.shard_range"));
    Ok(match (&list.value, &range.value) {
        (Some(Value::List(_)), Some(_)) if list.origin.layer == range.origin.layer => {
            return Err(Error::invalid(format!(
                "worker.shards ({}) and worker.shard_range ({}) exclude each other; remove one",
                list.origin, range.origin
            )));
        }
        (Some(Value::List(_)), Some(Value::Text(text))) if range.origin.layer > list.origin.layer => {
            ShardChoice::Range(text.clone())
        }
        (Some(Value::List(parts)), _) => ShardChoice::List(parts.clone()),
        (_, Some(Value::Text(text))) => ShardChoice::Range(text.clone()),
        _ => ShardChoice::All,
    })
}

fn polling(all: &[EffectiveSetting]) -> Result<PollingSettings> {
    let (shortest, longest) = ("worker.polling.min_interval_ms", "worker.polling.max_interval_ms");
    let (min, max) = (required(whole(all, shortest)), required(whole(all, longest)));
    if text(all, "worker.polling.strategy") == Some("fixed") {
        return Ok(PollingSettings::Fixed { interval: Duration::from_millis(min) });
    }
    if min > max {
        let advice = "raise the maximum or lower the minimum";
        return Err(clash(all, shortest, "is above", longest, advice));
    }
    let factor = match get(all, "worker.polling.factor").value {
        Some(Value::Number(factor)) => Some(factor),
        _ => None,
    };
    let (min, max) = (Duration::from_millis(min), Duration::from_millis(max));
    Ok(PollingSettings::Adaptive { min, max, factor: required(factor) })
}

fn leasing(all: &[EffectiveSetting]) -> Result<Option<ShardLeasing>> {
    let (renew, ttl) =
        ("worker.shard_leasing.lease_renew_interval_secs", "worker.shard_leasing.lease_ttl_secs");
    let enabled = "worker.shard_leasing.enabled";
    if get(all, enabled).value != Some(Value::Switch(true)) {
        return Ok(None);
    }
    let named =
        ["worker.shards", "worker.shard_range"].into_iter().find(|name| get(all, name).value.is_some());
    if let Some(named) = named {
        return Err(clash(all, named, "excludes", enabled, "remove one of them: leasing chooses the shards"));
    }
    let leasing = ShardLeasing {
        shards_per_worker: count(all, "worker.shard_leasing.shards_per_worker"),
        ttl: secs(all, ttl),
        renew_every: secs(all, renew),
    };
    check_renewals(all, (renew, leasing.renew_every), (ttl, leasing.ttl))?;
    Ok(Some(leasing))
}

fn is_direct(all: &[EffectiveSetting]) -> bool {
    text(all, "queue.dispatch_mode") == Some("direct")
}

fn direct(all: &[EffectiveSetting]) -> Option<DirectDispatch> {
    let selection = match text(all, "queue.direct_dispatch.worker_selection") {
        Some("hash") => Selection::Hash,
        Some("random") => Selection::Random,
        _ => Selection::RoundRobin,
    };
    let discovery_ttl = secs(all, "queue.direct_dispatch.worker_discovery_cache_ttl_secs");
    is_direct(all).then_some(DirectDispatch { discovery_ttl, selection })
}

fn inbox(all: &[EffectiveSetting]) -> Result<Option<InboxLeaseOptions>> {
    let (renew, ttl) = ("worker.lease_renewal_interval_secs", "worker.lease_duration_secs");
    let lease = InboxLeaseOptions { ttl: secs(all, ttl), renew_every: secs(all, renew) };
    if !is_direct(all) {
        return Ok(None);
    }
    check_renewals(all, (renew, lease.renew_every), (ttl, lease.ttl))?;
    Ok(Some(lease))
}

fn check_renewals(
    all: &[EffectiveSetting],
    (renew, renew_every): (&str, Duration),
    (ttl, lasts): (&str, Duration),
) -> Result<()> {
    if renew_every * RENEWALS_MIN > lasts {
        let advice = "lower it, so that one failed renewal does not lose the lease";
        return Err(clash(all, renew, "is more than a third of", ttl, advice));
    }
    Ok(())
}

fn clash(all: &[EffectiveSetting], first: &str, relation: &str, second: &str, advice: &str) -> Error {
    let described = |name| {
        let EffectiveSetting { value, origin, .. } = get(all, name);
        let value = value.as_ref().map(|value| format!(" {value}")).unwrap_or_default();
        format!("{name}{value} ({origin})")
    };
    Error::invalid(format!("{} {relation} {}; {advice}", described(first), described(second)))
}

fn get<'a>(all: &'a [EffectiveSetting], name: &str) -> &'a EffectiveSetting {
    all.iter().find(|effective| effective.setting.name == name).expect("the name is in the table")
}

fn text<'a>(all: &'a [EffectiveSetting], name: &str) -> Option<&'a str> {
    match &get(all, name).value {
        Some(Value::Text(text) | Value::Secret(text)) => Some(text),
        _ => None,
    }
}

fn whole(all: &[EffectiveSetting], name: &str) -> Option<u64> {
    match get(all, name).value {
        Some(Value::Whole(number)) => Some(number),
        _ => None,
    }
}

fn count(all: &[EffectiveSetting], name: &str) -> usize {
    usize::try_from(required(whole(all, name))).unwrap_or(usize::MAX)
}

fn secs(all: &[EffectiveSetting], name: &str) -> Duration {
    Duration::from_secs(required(whole(all, name)))
}

/// Value of a setting that has a default.
fn required<T>(value: Option<T>) -> T {
    value.expect("the setting has a default")
}
