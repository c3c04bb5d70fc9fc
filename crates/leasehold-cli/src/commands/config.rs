//! `leasehold config`: shows the settings and their origins.

use serde_json::json;

use crate::printer::{Printer, line};
use crate::settings::files::{self, Looked};
use crate::settings::kind::Value;
use crate::settings::{Layer, Settings, Surroundings};
use crate::table::TextTable;

/// Prints every setting, its value and its origin.
pub(crate) fn show(settings: &Settings, printer: &Printer) {
    if printer.is_json() {
        for effective in &settings.all {
            let value = effective.value.as_ref().map(Value::json);
            let origin = effective.origin.to_string();
            line(json!({"name": effective.setting.name, "value": value, "origin": origin}));
        }
    } else {
        let rows = settings.all.iter().map(|effective| {
            let value = effective.value.as_ref().map_or("unset".to_owned(), ToString::to_string);
            vec![effective.setting.name.into(), value.into(), effective.origin.to_string().into()]
        });
        let table = TextTable::default().left("SETTING", 0).left("VALUE", 0).left("FROM", 0);
        table.rows(&rows.collect::<Vec<_>>(), printer);
    }
}

/// Prints the paths of settings files. Works with invalid files too, so that they can be found.
pub(crate) fn paths(around: &Surroundings, printer: &Printer) {
    let looked = files::look(around);
    if printer.is_json() {
        for file in &looked {
            line(json!({"file": whose(file), "path": file.path, "found": found(file)}));
        }
    } else {
        let rows = looked
            .iter()
            .map(|file| vec![whose(file).into(), file.path.display().to_string().into(), found(file).into()]);
        let table = TextTable::default().left("FILE", 0).left("PATH", 0).left("FOUND", 0);
        table.rows(&rows.collect::<Vec<_>>(), printer);
    }
}

fn whose(file: &Looked) -> &'static str {
    if file.layer == Layer::UserFile { "user" } else { "project" }
}

fn found(file: &Looked) -> String {
    match &file.text {
        Ok(_) => "read".into(),
        Err(_) if file.is_missing() => "not there".into(),
        Err(error) => format!("cannot be read: {error}"),
    }
}
