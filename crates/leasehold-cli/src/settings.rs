//! Settings from defaults, files, profiles, the environment and flags.
//!
//! Later wins: defaults < user file < project file < profile < environment < flags. A profile has the same tables as the
//! top level, in either file; the project's wins over the user's of the same name. Every value is validated, even if a
//! later one overrides it or its profile is not chosen: a mistake is reported when it is made, not when it takes effect.
//!
//! [`load`] depends only on its arguments and on the two files that they lead to. Only [`Environment::of_process`] reads
//! the process and its environment. Credentials, region and endpoint of buckets have further sources (`AWS_…`), which the
//! store reads when the settings here are unset.
//!
//! | module | contents |
//! | --- | --- |
//! | [`table`] | the table of all settings |
//! | [`kind`] | kinds and values of settings |
//! | [`files`] | the two files, with the line of every key |
//! | [`nearest`] | "did you mean" |
//! | [`typed`] | typed settings for the commands |

pub(crate) mod files;
pub(crate) mod kind;
mod nearest;
#[cfg(test)]
mod reference;
pub(crate) mod table;
#[cfg(test)]
mod tests;
pub(crate) mod typed;

use leasehold_core::{Error, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

use kind::Value;
use table::{Setting, TABLE};
use typed::{DashboardSettings, OutpostSettings, PiecesSettings, QueueSettings, WorkerSettings};

/// Variables of Leasehold that are not settings: the log filter, the profile, those that a worker sets for its programs
/// (which may run this command line too), and the servers of the tests.
const OTHER_VARIABLES: [&str; 10] = [
    "LEASEHOLD_LOG",
    PROFILE_VARIABLE,
    "LEASEHOLD_TASK_ID",
    "LEASEHOLD_TASK_TYPE",
    "LEASEHOLD_TASK_ATTEMPT",
    "LEASEHOLD_TASK_EPOCH",
    "LEASEHOLD_ARTIFACTS",
    "LEASEHOLD_RESULTS",
    "LEASEHOLD_MOTO",
    "LEASEHOLD_WEED",
];
const PROFILE_VARIABLE: &str = "LEASEHOLD_PROFILE";

/// Environment of the settings: directories and variables. No `Debug`: variables contain secrets.
pub(crate) struct Environment {
    pub(crate) cwd: PathBuf,
    pub(crate) home: Option<PathBuf>,
    pub(crate) variables: BTreeMap<String, OsString>,
}

impl Environment {
    /// Reads the environment of this process. An empty variable counts as unset.
    pub(crate) fn of_process() -> Result<Self> {
        let cwd = std::env::current_dir().map_err(|error| {
            Error::invalid("working directory does not exist; change to another").because(error)
        })?;
        let variables: BTreeMap<_, _> = std::env::vars_os()
            .filter(|(_, value)| !value.is_empty())
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value)))
            .collect();
        Ok(Self { cwd, home: variables.get("HOME").map(PathBuf::from), variables })
    }
}

/// Settings from the command line.
#[derive(Debug, Default)]
pub(crate) struct Flags {
    profile: Option<String>,
    values: Vec<(&'static Setting, &'static str, String)>,
}

impl Flags {
    pub(crate) fn with_profile(self, profile: Option<&str>) -> Self {
        Self { profile: profile.map(ToOwned::to_owned), ..self }
    }

    /// Adds a flag for a setting, if it has a value.
    pub(crate) fn with(mut self, flag: &'static str, setting: &str, value: Option<impl ToString>) -> Self {
        let setting = table::find(setting).expect("a flag has a setting in the table");
        self.values.extend(value.map(|value| (setting, flag, value.to_string())));
        self
    }
}

/// Layer of a value; the later in this order wins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Layer {
    Default,
    UserFile,
    ProjectFile,
    UserProfile,
    ProjectProfile,
    Environment,
    Flag,
}

/// Origin of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ValueOrigin {
    pub(crate) layer: Layer,
    /// File and line, variable or flag.
    place: String,
}

impl fmt::Display for ValueOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.place)
    }
}

/// Value that is set in one layer.
struct LayerValue {
    setting: &'static Setting,
    value: Value,
    origin: ValueOrigin,
    profile: Option<String>,
}

/// Effective value of a setting, and its origin.
#[derive(Debug)]
pub(crate) struct EffectiveSetting {
    pub(crate) setting: &'static Setting,
    pub(crate) value: Option<Value>,
    pub(crate) origin: ValueOrigin,
}

/// Effective settings.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) queue: QueueSettings,
    pub(crate) worker: WorkerSettings,
    pub(crate) pieces: PiecesSettings,
    pub(crate) outpost: OutpostSettings,
    pub(crate) dashboard: DashboardSettings,
    /// All settings, in the order of the table.
    pub(crate) all: Vec<EffectiveSetting>,
    /// Warnings about ignored variables, for the caller to print.
    pub(crate) warnings: Vec<String>,
}

/// Loads the settings.
pub(crate) fn load(environment: &Environment, flags: &Flags) -> Result<Settings> {
    let (all, warnings) = resolve(environment, flags)?;
    let settings = typed(all, files::cache_folder(environment), files::data_folder(environment))?;
    Ok(Settings { warnings, ..settings })
}

/// Effective value of each setting, validated one by one, and warnings. [`typed`] checks them against each other.
fn resolve(environment: &Environment, flags: &Flags) -> Result<(Vec<EffectiveSetting>, Vec<String>)> {
    let (mut values, mut profiles) = (Vec::new(), BTreeSet::new());
    for file in files::find(environment) {
        if let Some(contents) = files::read(&file, &environment.cwd)? {
            values.extend(contents.values);
            profiles.extend(contents.profiles);
        }
    }
    let chosen = chosen_profile(environment, flags, &profiles)?;
    values.retain(|one| one.profile.is_none() || one.profile == chosen);
    let (of_environment, warnings) = from_environment(environment)?;
    values.extend(of_environment);
    values.extend(from_flags(flags)?);
    Ok((effective(&values), warnings))
}

/// Loads the settings from flags only, without files and variables.
pub(crate) fn load_from_flags(flags: &Flags) -> Result<Settings> {
    typed(effective(&from_flags(flags)?), None, None)
}

/// Checks the settings against each other; `cache` and `data` are the default directories of artifacts and outposts.
fn typed(all: Vec<EffectiveSetting>, cache: Option<PathBuf>, data: Option<PathBuf>) -> Result<Settings> {
    let (queue, worker, pieces) =
        (QueueSettings::new(&all)?, WorkerSettings::new(&all)?, PiecesSettings::new(&all, cache)?);
    let (outpost, dashboard) = (OutpostSettings::new(&all, data), DashboardSettings::new(&all)?);
    Ok(Settings { queue, worker, pieces, outpost, dashboard, all, warnings: Vec::new() })
}

fn effective(values: &[LayerValue]) -> Vec<EffectiveSetting> {
    let effective = |setting| {
        let set = values.iter().filter(|one| one.setting == setting);
        let last = set.max_by_key(|one| one.origin.layer);
        last.map_or_else(
            || EffectiveSetting { setting, value: default(setting), origin: ValueOrigin::default() },
            |one| EffectiveSetting { setting, value: Some(one.value.clone()), origin: one.origin.clone() },
        )
    };
    TABLE.iter().map(effective).collect()
}

impl Default for ValueOrigin {
    fn default() -> Self {
        Self { layer: Layer::Default, place: "default".into() }
    }
}

fn default(setting: &Setting) -> Option<Value> {
    setting.default.map(|text| setting.kind.parse(text).expect("a default is allowed"))
}

fn chosen_profile(
    environment: &Environment,
    flags: &Flags,
    profiles: &BTreeSet<String>,
) -> Result<Option<String>> {
    let variable =
        || Some((PROFILE_VARIABLE, text(PROFILE_VARIABLE, environment.variables.get(PROFILE_VARIABLE)?)));
    let (origin, chosen) = match (&flags.profile, variable()) {
        (Some(profile), _) => ("--profile", profile.clone()),
        (None, Some((origin, profile))) => (origin, profile?),
        (None, None) => return Ok(None),
    };
    if profiles.contains(&chosen) {
        return Ok(Some(chosen));
    }
    let available: Vec<_> = profiles.iter().map(|profile| format!("`{profile}`")).collect();
    let available = match available.as_slice() {
        [] => "no profiles are defined; `leasehold config paths` lists the settings files".to_owned(),
        [one] => format!("use {one}"),
        many => format!("use one of {}", many.join(", ")),
    };
    Err(Error::invalid(format!("unknown profile `{chosen}` ({origin}); {available}")))
}

/// Settings from variables, and warnings about unknown ones. A variable that resembles a setting is an error, probably a
/// misspelling. Any other may belong to another program.
fn from_environment(environment: &Environment) -> Result<(Vec<LayerValue>, Vec<String>)> {
    let (mut values, mut warnings) = (Vec::new(), Vec::new());
    let ours = environment.variables.iter().filter(|(name, _)| name.starts_with(nearest::PREFIX));
    for (name, value) in ours.filter(|(name, _)| !OTHER_VARIABLES.contains(&name.as_str())) {
        if is_of_kubernetes(name, value) {
            continue;
        }
        match TABLE.iter().find(|setting| setting.variable == name) {
            Some(setting) => {
                let origin = ValueOrigin { layer: Layer::Environment, place: setting.variable.into() };
                values.push(parse_value(setting, &text(name, value)?, origin)?);
            }
            None => match nearest::variable(name) {
                Some(near) => {
                    let near = near.variable;
                    return Err(Error::invalid(format!("unknown variable `{name}`; did you mean `{near}`?")));
                }
                None => warnings.push(format!(
                    "unknown variable `{name}` is ignored; docs/reference/settings.md lists all settings"
                )),
            },
        }
    }
    Ok((values, warnings))
}

/// True if Kubernetes sets this variable: in every container, for each service, and a service may be called `leasehold`. A
/// service `leasehold-dashboard` sets `LEASEHOLD_DASHBOARD_PORT`, which is also a setting: the value distinguishes them.
fn is_of_kubernetes(name: &str, value: &OsString) -> bool {
    let is_address = value
        .to_str()
        .is_some_and(|value| ["tcp://", "udp://", "sctp://"].iter().any(|scheme| value.starts_with(scheme)));
    name.ends_with("_SERVICE_HOST")
        || name.contains("_SERVICE_PORT")
        || name.ends_with("_PORT") && is_address
        || name.rsplit_once("_PORT_").is_some_and(|(_, rest)| is_port_and_protocol(rest))
}

/// True for a text like `80_TCP` or `80_TCP_ADDR`.
fn is_port_and_protocol(text: &str) -> bool {
    let Some((port, rest)) = text.split_once('_') else { return false };
    let (protocol, field) = rest.split_once('_').unwrap_or((rest, ""));
    !port.is_empty()
        && port.bytes().all(|digit| digit.is_ascii_digit())
        && ["TCP", "UDP", "SCTP"].contains(&protocol)
        && ["", "PROTO", "PORT", "ADDR"].contains(&field)
}

fn from_flags(flags: &Flags) -> Result<Vec<LayerValue>> {
    let values = flags.values.iter().map(|(setting, flag, text)| {
        parse_value(setting, text, ValueOrigin { layer: Layer::Flag, place: (*flag).into() })
    });
    values.collect()
}

/// Parses the value of a variable or a flag.
fn parse_value(setting: &'static Setting, text: &str, origin: ValueOrigin) -> Result<LayerValue> {
    let value = setting.kind.parse(text);
    let value = value.ok_or_else(|| invalid_value(setting, &setting.kind.quote(text), &origin))?;
    Ok(LayerValue { setting, value, origin, profile: None })
}

fn text(name: &str, value: &OsString) -> Result<String> {
    let text = value.to_str().ok_or_else(|| Error::invalid(format!("variable {name} is not UTF-8")))?;
    Ok(text.to_owned())
}

fn invalid_value(setting: &Setting, written: &str, origin: &ValueOrigin) -> Error {
    let Setting { name, kind, .. } = setting;
    Error::invalid(format!("{name} must be {kind}, not {written} ({origin})"))
}
