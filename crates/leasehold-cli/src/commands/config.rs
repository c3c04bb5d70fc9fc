//! `leasehold config`: shows the settings and their sources.

use serde_json::json;

use crate::printer::{Printer, line};
use crate::settings::files::{self, SettingsFile};
use crate::settings::kind::Value;
use crate::settings::{Environment, Layer, Settings};
use crate::table::TextTable;

/// Prints every setting, its value and its source.
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
        let table = TextTable::default().left("SETTING", 0).left("VALUE", 0).left("SOURCE", 0);
        table.rows(&rows.collect::<Vec<_>>(), printer);
    }
}

/// Prints the paths of settings files. Works with invalid files too, so that they can be found.
pub(crate) fn paths(environment: &Environment, printer: &Printer) {
    let found = files::find(environment);
    if printer.is_json() {
        for file in &found {
            line(json!({"file": file_kind(file), "path": file.path, "found": read_result(file)}));
        }
    } else {
        let rows = found.iter().map(|file| {
            let status = if file.is_missing() { "missing".to_owned() } else { read_result(file) };
            vec![file_kind(file).into(), file.path.display().to_string().into(), status.into()]
        });
        let table = TextTable::default().left("FILE", 0).left("PATH", 0).left("STATUS", 0);
        table.rows(&rows.collect::<Vec<_>>(), printer);
    }
}

fn file_kind(file: &SettingsFile) -> &'static str {
    if file.layer == Layer::UserFile { "user" } else { "project" }
}

fn read_result(file: &SettingsFile) -> String {
    match &file.text {
        Ok(_) => "read".into(),
        Err(_) if file.is_missing() => "not there".into(),
        Err(error) => format!("cannot be read: {error}"),
    }
}
