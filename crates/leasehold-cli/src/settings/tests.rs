use super::*;
use kind::SettingKind;
use leasehold_outpost::QueueType;
use leasehold_worker::ShardLeasing;
use std::time::Duration;
use typed::{PollingSettings, ShardChoice};

/// Layers above the defaults, in ascending order.
const LAYERS: [Layer; 6] = [
    Layer::UserFile,
    Layer::ProjectFile,
    Layer::UserProfile,
    Layer::ProjectProfile,
    Layer::Environment,
    Layer::Flag,
];

/// Temporary folder with a home and a project.
struct TestDirs(tempfile::TempDir);

impl TestDirs {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(folder.path().join("home/.config/leasehold")).unwrap();
        std::fs::create_dir_all(folder.path().join("project/below")).unwrap();
        Self(folder)
    }

    fn user(&self, text: &str) {
        std::fs::write(self.0.path().join("home/.config/leasehold/config.toml"), text).unwrap();
    }

    fn project(&self, text: &str) {
        std::fs::write(self.0.path().join("project/leasehold.toml"), text).unwrap();
    }

    fn environment(&self, variables: &[(&str, &str)]) -> Environment {
        Environment {
            cwd: self.0.path().join("project"),
            home: Some(self.0.path().join("home")),
            variables: variables.iter().map(|(name, value)| ((*name).into(), value.into())).collect(),
        }
    }

    fn load(&self, variables: &[(&str, &str)]) -> Result<Settings> {
        load(&self.environment(variables), &Flags::default())
    }

    fn error_text(&self, variables: &[(&str, &str)]) -> String {
        let error = self.load(variables).unwrap_err();
        assert_eq!(error.kind(), leasehold_core::Kind::Invalid);
        error.to_string().replace(self.0.path().to_str().unwrap(), "[folder]")
    }
}

/// Valid value of a setting, as in a variable, different for neighbouring numbers.
fn sample(setting: &Setting, number: usize) -> String {
    match setting.kind {
        SettingKind::Text | SettingKind::Secret | SettingKind::Name => format!("text-{number}"),
        SettingKind::Address | SettingKind::Path => format!("/text-{number}"),
        SettingKind::Choice(choices) => choices[number % choices.len()].to_owned(),
        SettingKind::Whole { from, to } => (from + number as u64 % (to - from + 1)).to_string(),
        SettingKind::Number { .. } => format!("{}.5", number + 1),
        SettingKind::Switch => ["false", "true"][number % 2].to_owned(),
        SettingKind::List => format!("0{number},f{number}"),
    }
}

/// Value of a setting as a line of a file.
fn in_file(table: &str, setting: &Setting, text: &str) -> String {
    let value = match setting.kind {
        SettingKind::Whole { .. } | SettingKind::Number { .. } | SettingKind::Switch => text.to_owned(),
        SettingKind::List => format!("{:?}", text.split(',').collect::<Vec<_>>()),
        _ => format!("{text:?}"),
    };
    format!("{table}{} = {value}\n", setting.name)
}

#[test]
fn of_any_layers_the_last_one_wins() {
    let dirs = TestDirs::new();
    for setting in TABLE {
        for chosen in 0..1 << LAYERS.len() {
            let number_of =
                |layer: Layer| LAYERS.iter().position(|l| *l == layer).filter(|n| chosen & (1 << n) != 0);
            let line = |table, layer| {
                number_of(layer).map(|n| in_file(table, setting, &sample(setting, n))).unwrap_or_default()
            };
            dirs.user(&(line("", Layer::UserFile) + &line("profiles.p.", Layer::UserProfile)));
            dirs.project(&(line("", Layer::ProjectFile) + &line("profiles.p.", Layer::ProjectProfile)));
            let last = LAYERS.iter().rev().find(|layer| number_of(**layer).is_some());
            let mut environment = dirs.environment(&[]);
            if let Some(n) = number_of(Layer::Environment) {
                environment.variables.insert(setting.variable.into(), sample(setting, n).into());
            }
            let flag = number_of(Layer::Flag).map(|n| sample(setting, n));
            let has_profile = number_of(Layer::UserProfile).or(number_of(Layer::ProjectProfile)).is_some();
            let flags =
                Flags::default().with("--x", setting.name, flag).with_profile(has_profile.then_some("p"));
            let (all, _) = resolve(&environment, &flags).unwrap();
            let found = all.iter().find(|effective| effective.setting == setting).unwrap();
            assert_eq!(found.origin.layer, last.copied().unwrap_or(Layer::Default), "{}", setting.name);
            let expected = last.and_then(|layer| number_of(*layer)).map(|n| sample(setting, n));
            let expected = expected.or(setting.default.map(ToOwned::to_owned));
            assert_eq!(found.value, expected.and_then(|text| setting.kind.parse(&text)), "{}", setting.name);
            assert!(all.iter().all(|other| other.setting == setting || other.origin.layer == Layer::Default));
        }
    }
}

#[test]
fn every_setting_has_a_unique_name_and_variable() {
    let names: BTreeSet<_> = TABLE.iter().map(|setting| setting.name).collect();
    let variables: BTreeSet<_> = TABLE.iter().map(|setting| setting.variable).collect();
    assert_eq!((names.len(), variables.len()), (TABLE.len(), TABLE.len()));
    let irregular: Vec<_> = TABLE
        .iter()
        .filter(|setting| setting.variable != format!("{}{}", nearest::PREFIX, nearest::snake(setting.name)))
        .map(|setting| setting.variable)
        .collect();
    assert_eq!(
        irregular,
        [
            "LEASEHOLD_STORE",
            "LEASEHOLD_SHARD_PREFIX_LEN",
            "LEASEHOLD_SHARD_LEASING",
            "LEASEHOLD_SHARD_LEASING_SHARDS_PER_WORKER",
            "LEASEHOLD_SHARD_LEASING_TTL_SECS",
            "LEASEHOLD_SHARD_LEASING_RENEW_SECS"
        ]
    );
}

#[test]
fn settings_are_typed() {
    let dirs = TestDirs::new();
    let Settings { queue, worker, .. } = dirs.load(&[]).unwrap();
    assert_eq!((queue.store.as_str(), queue.queue_type), ("./leasehold-data", QueueType::Bucket));
    assert_eq!((queue.shard_len, queue.direct), (None, None));
    assert!(queue.open.access_key.is_none() && worker.id.is_none() && worker.leasing.is_none());
    assert_eq!((worker.concurrency, worker.shards), (8, ShardChoice::All));
    assert_eq!((worker.lease, worker.drain), (Duration::from_mins(1), Duration::from_secs(30)));
    assert_eq!(worker.stop_wait, Duration::from_secs(10));
    let (min, max) = (Duration::from_millis(100), Duration::from_secs(5));
    assert_eq!(worker.polling, PollingSettings::Adaptive { min, max, factor: 2.0 });

    let variables = [
        ("LEASEHOLD_QUEUE_TYPE", "filesystem"),
        ("LEASEHOLD_QUEUE_DISPATCH_MODE", "direct"),
        ("LEASEHOLD_SHARD_PREFIX_LEN", "2"),
        ("LEASEHOLD_QUEUE_DURABILITY", "os"),
        ("LEASEHOLD_QUEUE_ACCESS_KEY_ID", "me"),
        ("LEASEHOLD_QUEUE_SECRET_ACCESS_KEY", "hush"),
        ("LEASEHOLD_WORKER_ID", "w-1"),
        ("LEASEHOLD_WORKER_SHARDS", "00, 01"),
        ("LEASEHOLD_WORKER_POLLING_STRATEGY", "fixed"),
        ("LEASEHOLD_WORKER_SWEEP_SECS", "90"),
    ];
    let Settings { queue, worker, .. } = dirs.load(&variables).unwrap();
    assert_eq!((queue.queue_type, queue.direct.is_some()), (QueueType::Filesystem, true));
    assert_eq!(queue.shard_len.map(leasehold_core::ShardLen::count), Some(256));
    assert_eq!(queue.open.folder.durability, leasehold_store::Durability::Os);
    assert_eq!(queue.open.access_key.unwrap().secret, "hush");
    assert_eq!(worker.id.unwrap().as_str(), "w-1");
    assert_eq!(worker.shards, ShardChoice::List(vec!["00".into(), "01".into()]));
    assert_eq!(worker.polling, PollingSettings::Fixed { interval: Duration::from_millis(100) });
    assert_eq!(worker.full_scan_every, Duration::from_secs(90));
    assert_eq!((worker.recover_every, worker.leasing), (Duration::from_secs(5), None));
}

#[test]
fn shard_leasing_is_read_from_the_environment() {
    let leasing = |variables: &[(&str, &str)]| TestDirs::new().load(variables).unwrap().worker.leasing;
    assert_eq!(leasing(&[("LEASEHOLD_SHARD_LEASING", "1")]), Some(ShardLeasing::default()));
    let all = [
        ("LEASEHOLD_SHARD_LEASING", "1"),
        ("LEASEHOLD_SHARD_LEASING_SHARDS_PER_WORKER", "4"),
        ("LEASEHOLD_SHARD_LEASING_TTL_SECS", "6"),
        ("LEASEHOLD_SHARD_LEASING_RENEW_SECS", "2"),
    ];
    let (ttl, renew_every) = (Duration::from_secs(6), Duration::from_secs(2));
    assert_eq!(leasing(&all), Some(ShardLeasing { shards_per_worker: 4, ttl, renew_every }));
    assert_eq!(leasing(&all[1..]), None, "it has to be switched on");
}

#[test]
fn secrets_are_masked_when_the_settings_are_printed() {
    let settings = TestDirs::new()
        .load(&[("LEASEHOLD_QUEUE_ACCESS_KEY_ID", "me"), ("LEASEHOLD_QUEUE_SECRET_ACCESS_KEY", "hush")])
        .unwrap();
    assert!(!format!("{settings:?}").contains("hush"));
    let dirs = TestDirs::new();
    dirs.project("queue.secret_access_key = [\"hush\"]");
    assert!(!dirs.error_text(&[]).contains("hush"));
    dirs.project("queue.secret_access_key = \"hush\nx");
    assert!(!dirs.error_text(&[]).contains("hush"));
}

#[test]
fn a_path_in_a_file_is_relative_to_its_folder() {
    let dirs = TestDirs::new();
    let store = |cwd: &str| {
        let environment = Environment { cwd: dirs.0.path().join(cwd), ..dirs.environment(&[]) };
        load(&environment, &Flags::default()).unwrap().queue.store
    };
    dirs.project("queue.store = './data'");
    assert_eq!(store("project"), "./data");
    assert_eq!(store("project/below"), dirs.0.path().join("project/data").to_str().unwrap());
    dirs.project("queue.store = 's3://bucket/prefix'");
    assert_eq!(store("project/below"), "s3://bucket/prefix");
}

#[test]
fn a_range_overrides_a_list_of_a_lower_layer() {
    let dirs = TestDirs::new();
    dirs.project("worker.shards = ['00']");
    let with = |variables: &[(&str, &str)]| dirs.load(variables).unwrap().worker.shards;
    assert_eq!(with(&[]), ShardChoice::List(vec!["00".into()]));
    assert_eq!(with(&[("LEASEHOLD_WORKER_SHARD_RANGE", "00-3f")]), ShardChoice::Range("00-3f".into()));
}

#[test]
fn invalid_settings_are_explained() {
    let dirs = TestDirs::new();
    let files = [
        "queue = 3",
        "profiles = 3",
        "profiles.p = 3",
        "[queues]",
        "[worker.concurrency]",
        "[profiles.p.worker]\nconcurency = 3",
        "[profiles.p.profiles.q]",
        "worker.concurrency = -1",
        "worker.concurrency = 99999999999999999999",
        "worker.shards = ['00', 1]",
        "worker.shards = []",
        "worker.polling.factor = nan",
        "worker.id = 'a/b'",
        "queue.store = ''",
        "queue.store = \"\\u001b[31m\"\nqueue.type = \"\"\"a\nb\"\"\"",
        "[worker]\nshards = ['00']\nshard_range = '00-01'",
        "worker.polling.min_interval_ms = 6_000",
        "worker.shard_leasing = { enabled = true, lease_renew_interval_secs = 20 }",
        "worker.shard_leasing.lease_ttl_secs = 601",
        "[worker]\nshards = ['00']\nshard_leasing.enabled = true",
        "[worker]\nshard_range = '0-7'\nshard_leasing.enabled = true",
        "queue.access_key_id = 'me'",
        "worker.lease_secs = 2",
        "broker.listen = 'here'",
        "broker.listen = '0.0.0.0:7411'",
        "broker.advertise = '10.0.0.5:7411'",
        "[broker]\nlisten = '127.0.0.1:0'\nadvertise = '0.0.0.0:1'",
    ];
    let errors = files.map(|file| {
        dirs.project(file);
        dirs.error_text(&[])
    });
    insta::assert_snapshot!(errors.join("\n"));
}

#[test]
fn variables_of_kubernetes_are_distinguished_from_settings() {
    for (name, value, is_theirs) in [
        ("LEASEHOLD_SERVICE_HOST", "10.0.0.1", true),
        ("LEASEHOLD_SERVICE_PORT", "80", true),
        ("LEASEHOLD_DASHBOARD_SERVICE_PORT_HTTP", "80", true),
        ("LEASEHOLD_PORT", "tcp://10.0.0.1:80", true),
        ("LEASEHOLD_PORT_80_TCP", "tcp://10.0.0.1:80", true),
        ("LEASEHOLD_PORT_80_TCP_PROTO", "tcp", true),
        ("LEASEHOLD_PORT_80_TCP_PORT", "80", true),
        ("LEASEHOLD_PORT_53_UDP_ADDR", "10.0.0.1", true),
        ("LEASEHOLD_DASHBOARD_PORT", "tcp://10.0.0.1:80", true),
        ("LEASEHOLD_DASHBOARD_PORT", "8080", false),
        ("LEASEHOLD_PORT", "8080", false),
        ("LEASEHOLD_PORT_X_TCP", "1", false),
        ("LEASEHOLD_PORT_80_TCP_NAME", "1", false),
        ("LEASEHOLD_STORE", "tcp://10.0.0.1:80", false),
    ] {
        assert_eq!(is_of_kubernetes(name, &value.into()), is_theirs, "{name}={value}");
    }
}

#[test]
fn users_and_passwords_of_addresses_are_masked() {
    for (text, shown) in [
        ("./data", "./data"),
        ("me@home", "me@home"),
        ("https://store.example:9000/x", "https://store.example:9000/x"),
        ("s3://bucket/me@home", "s3://bucket/me@home"),
        ("https://me:hush@store.example/x", "https://********@store.example/x"),
        ("https://hush@store.example", "https://********@store.example"),
        ("s3://me:hu/sh@bucket/x", "s3://********@bucket/x"),
        ("s3://me:hu@sh@bucket/x", "s3://********@bucket/x"),
    ] {
        assert_eq!(kind::without_user(text), shown);
    }
}
