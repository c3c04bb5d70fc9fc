//! What a setting may be, and what it is. Files, variables and flags are read by the same rules; whatever does
//! not fit is refused with one sentence that says what would.

use leasehold_core::Name;
use serde_json::json;
use std::borrow::Cow;
use std::fmt;
use toml::de::{DeInteger, DeValue};

use crate::printer::escaped;

/// What stands for a secret wherever something is shown.
const MASK: &str = "********";

/// What a setting may be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Kind {
    Text,
    /// Text that nobody gets to see.
    Secret,
    /// The address of a store. A relative path in a file counts from the file's own folder, because a project's
    /// file also holds for the folders below it.
    Address,
    /// A path on this machine; a relative one counts as for addresses.
    Path,
    /// The name of a worker.
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
    /// In a variable, separated by commas.
    List,
}

impl Kind {
    /// What a variable or a flag says, if that is allowed.
    pub(super) fn parse(self, text: &str) -> Option<Value> {
        let text = text.trim();
        let value = match self {
            Kind::Text | Kind::Address | Kind::Path | Kind::Name | Kind::Choice(_) => {
                Value::Text(text.to_owned())
            }
            Kind::Secret => Value::Secret(text.to_owned()),
            Kind::Whole { .. } => Value::Whole(text.parse().ok()?),
            Kind::Number { .. } => Value::Number(text.parse().ok()?),
            Kind::Switch => Value::Switch(match text {
                "true" | "1" => true,
                "false" | "0" => false,
                _ => return None,
            }),
            Kind::List => Value::List(text.split(',').map(|part| part.trim().to_owned()).collect()),
        };
        self.allows(&value).then_some(value)
    }

    /// What a file says, if that is allowed.
    pub(super) fn read(self, value: &DeValue<'_>) -> Option<Value> {
        let value = match (self, value) {
            (
                Kind::Text | Kind::Address | Kind::Path | Kind::Name | Kind::Choice(_),
                DeValue::String(text),
            ) => Value::Text(text.to_string()),
            (Kind::Secret, DeValue::String(text)) => Value::Secret(text.to_string()),
            (Kind::Whole { .. }, DeValue::Integer(number)) => Value::Whole(whole(number)?),
            (Kind::Number { .. }, DeValue::Integer(number)) if number.radix() == 10 => {
                Value::Number(number.as_str().parse().ok()?)
            }
            (Kind::Number { .. }, DeValue::Float(number)) => Value::Number(number.as_str().parse().ok()?),
            (Kind::Switch, DeValue::Boolean(on)) => Value::Switch(*on),
            (Kind::List, DeValue::Array(parts)) => {
                let texts = parts.iter().map(|part| part.get_ref().as_str().map(ToOwned::to_owned));
                Value::List(texts.collect::<Option<_>>()?)
            }
            _ => return None,
        };
        self.allows(&value).then_some(value)
    }

    fn allows(self, value: &Value) -> bool {
        match (self, value) {
            (Kind::Name, Value::Text(text)) => Name::checked("name", text).is_ok(),
            (Kind::Choice(choices), Value::Text(text)) => choices.contains(&text.as_str()),
            (Kind::Whole { from, to }, Value::Whole(number)) => (from..=to).contains(number),
            (Kind::Number { from, to }, Value::Number(number)) => (from..=to).contains(number),
            (_, Value::Text(text) | Value::Secret(text)) => !text.is_empty(),
            (_, Value::List(parts)) => !parts.is_empty() && parts.iter().all(|part| !part.is_empty()),
            _ => true,
        }
    }

    /// What is said about a value that is not allowed: the value itself, except for secrets.
    pub(super) fn quote(self, written: &str) -> String {
        match (self, written) {
            (_, "") => "empty".to_owned(),
            (Kind::Secret, _) => MASK.to_owned(),
            _ => format!("`{}`", escaped(&without_user(written))),
        }
    }
}

/// What is allowed, as the end of "it must be …".
impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kind::Text | Kind::Secret => f.write_str("text that is not empty"),
            Kind::Address => f.write_str("a path or an address"),
            Kind::Path => f.write_str("a path"),
            Kind::Name => f.write_str("a name of letters, digits, `-`, `_` and `.`"),
            Kind::Choice(choices) => {
                let choices: Vec<_> = choices.iter().map(|choice| format!("`{choice}`")).collect();
                f.write_str(&choices.join(" or "))
            }
            Kind::Whole { from, to } => write!(f, "a whole number from {from} to {to}"),
            Kind::Number { from, to } => write!(f, "a number from {from} to {to}"),
            Kind::Switch => f.write_str("`true` or `false`"),
            Kind::List => f.write_str("a list of at least one text, none of them empty"),
        }
    }
}

fn whole(number: &DeInteger<'_>) -> Option<u64> {
    u64::from_str_radix(number.as_str(), number.radix()).ok()
}

/// What a setting is.
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
    /// For machines; secrets are masked here too.
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

/// For people.
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

/// The same as for people: a secret must not come to light by way of a log.
impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// An address without its user and password: the store refuses these, but a message about that must not show them either.
pub(crate) fn without_user(text: &str) -> Cow<'_, str> {
    let Some((scheme, rest)) = text.split_once("://") else { return text.into() };
    let Some((user, host)) = rest.rsplit_once('@') else { return text.into() };
    // A password may have slashes; in a path alone, an `@` is a character like any other.
    if user.contains(['/', '?', '#']) && !user.contains(':') {
        return text.into();
    }
    format!("{scheme}://{MASK}@{host}").into()
}
