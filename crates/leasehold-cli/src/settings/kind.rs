//! Kinds and values of settings. Files, variables and flags are parsed by the same rules; an invalid value is refused with
//! an error that names the allowed values.

use leasehold_core::Name;
use serde_json::json;
use std::borrow::Cow;
use std::fmt;
use toml::de::{DeInteger, DeValue};

use crate::printer::escaped;

/// Placeholder for secrets in all output.
const MASK: &str = "********";

/// Kind of a setting: its type and allowed values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum SettingKind {
    Text,
    /// Text that is masked in all output.
    Secret,
    /// Address of a store. A relative path in a file is relative to the folder of the file, because a project's file also
    /// applies to the folders below it.
    Address,
    /// Path on this machine, resolved like an address.
    Path,
    /// Id of a worker.
    Name,
    Choice(&'static [&'static str]),
    Whole {
        from: u64,
        to: u64,
    },
    Number {
        from: f64,
        to: f64,
    },
    Switch,
    /// List, separated by commas in a variable.
    List,
}

impl SettingKind {
    /// Parses the value of a variable or a flag; `None` if it is invalid.
    pub(super) fn parse(self, text: &str) -> Option<Value> {
        let text = text.trim();
        let value = match self {
            SettingKind::Text
            | SettingKind::Address
            | SettingKind::Path
            | SettingKind::Name
            | SettingKind::Choice(_) => Value::Text(text.to_owned()),
            SettingKind::Secret => Value::Secret(text.to_owned()),
            SettingKind::Whole { .. } => Value::Whole(text.parse().ok()?),
            SettingKind::Number { .. } => Value::Number(text.parse().ok()?),
            SettingKind::Switch => Value::Switch(match text {
                "true" | "1" => true,
                "false" | "0" => false,
                _ => return None,
            }),
            SettingKind::List => Value::List(text.split(',').map(|part| part.trim().to_owned()).collect()),
        };
        self.allows(&value).then_some(value)
    }

    /// Converts the value in a file; `None` if it is invalid.
    pub(super) fn read(self, value: &DeValue<'_>) -> Option<Value> {
        let value = match (self, value) {
            (
                SettingKind::Text
                | SettingKind::Address
                | SettingKind::Path
                | SettingKind::Name
                | SettingKind::Choice(_),
                DeValue::String(text),
            ) => Value::Text(text.to_string()),
            (SettingKind::Secret, DeValue::String(text)) => Value::Secret(text.to_string()),
            (SettingKind::Whole { .. }, DeValue::Integer(number)) => Value::Whole(whole(number)?),
            (SettingKind::Number { .. }, DeValue::Integer(number)) if number.radix() == 10 => {
                Value::Number(number.as_str().parse().ok()?)
            }
            (SettingKind::Number { .. }, DeValue::Float(number)) => {
                Value::Number(number.as_str().parse().ok()?)
            }
            (SettingKind::Switch, DeValue::Boolean(on)) => Value::Switch(*on),
            (SettingKind::List, DeValue::Array(parts)) => {
                let texts = parts.iter().map(|part| part.get_ref().as_str().map(ToOwned::to_owned));
                Value::List(texts.collect::<Option<_>>()?)
            }
            _ => return None,
        };
        self.allows(&value).then_some(value)
    }

    fn allows(self, value: &Value) -> bool {
        match (self, value) {
            (SettingKind::Name, Value::Text(text)) => Name::checked("name", text).is_ok(),
            (SettingKind::Choice(choices), Value::Text(text)) => choices.contains(&text.as_str()),
            (SettingKind::Whole { from, to }, Value::Whole(number)) => (from..=to).contains(number),
            (SettingKind::Number { from, to }, Value::Number(number)) => (from..=to).contains(number),
            (_, Value::Text(text) | Value::Secret(text)) => !text.is_empty(),
            (_, Value::List(parts)) => !parts.is_empty() && parts.iter().all(|part| !part.is_empty()),
            _ => true,
        }
    }

    /// Invalid value as quoted in an error; secrets are masked.
    pub(super) fn quote(self, written: &str) -> String {
        match (self, written) {
            (_, "") => "empty".to_owned(),
            (SettingKind::Secret, _) => MASK.to_owned(),
            _ => format!("`{}`", escaped(&without_user(written))),
        }
    }
}

/// Allowed values, as the end of "must be …".
impl fmt::Display for SettingKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SettingKind::Text | SettingKind::Secret => f.write_str("non-empty text"),
            SettingKind::Address => f.write_str("a path or an address"),
            SettingKind::Path => f.write_str("a path"),
            SettingKind::Name => f.write_str("a name of letters, digits, `-`, `_` and `.`"),
            SettingKind::Choice(choices) => {
                let choices: Vec<_> = choices.iter().map(|choice| format!("`{choice}`")).collect();
                f.write_str(&choices.join(" or "))
            }
            SettingKind::Whole { from, to } => write!(f, "a whole number from {from} to {to}"),
            SettingKind::Number { from, to } => write!(f, "a number from {from} to {to}"),
            SettingKind::Switch => f.write_str("`true` or `false`"),
            SettingKind::List => f.write_str("a list of at least one non-empty text"),
        }
    }
}

fn whole(number: &DeInteger<'_>) -> Option<u64> {
    u64::from_str_radix(number.as_str(), number.radix()).ok()
}

/// Value of a setting.
#[derive(Clone, PartialEq)]
pub(crate) enum Value {
    Text(String),
    Secret(String),
    Whole(u64),
    Number(f64),
    Switch(bool),
    List(Vec<String>),
}

impl Value {
    /// Value as JSON, with secrets masked.
    pub(crate) fn json(&self) -> serde_json::Value {
        match self {
            Value::Text(text) => json!(without_user(text)),
            Value::Secret(_) => json!(MASK),
            Value::Whole(number) => json!(number),
            Value::Number(number) => json!(number),
            Value::Switch(on) => json!(on),
            Value::List(parts) => json!(parts),
        }
    }
}

/// Value as text, with secrets masked.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Text(text) => f.write_str(&escaped(&without_user(text))),
            Value::Secret(_) => f.write_str(MASK),
            Value::Whole(number) => write!(f, "{number}"),
            Value::Number(number) => write!(f, "{number:?}"),
            Value::Switch(on) => write!(f, "{on}"),
            Value::List(parts) => f.write_str(&escaped(&parts.join(", "))),
        }
    }
}

/// Equals the `Display` form: a secret must not reach a log.
impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Masks user and password in an address. The store refuses them, and the error must not show them either.
pub(crate) fn without_user(text: &str) -> Cow<'_, str> {
    let Some((scheme, rest)) = text.split_once("://") else { return text.into() };
    let Some((user, host)) = rest.rsplit_once('@') else { return text.into() };
    // A password may contain slashes; in a plain path, an `@` is an ordinary character.
    if user.contains(['/', '?', '#']) && !user.contains(':') {
        return text.into();
    }
    format!("{scheme}://{MASK}@{host}").into()
}
