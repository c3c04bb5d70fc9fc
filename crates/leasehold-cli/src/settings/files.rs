//! Settings files: their paths and their contents.

use leasehold_core::{Error, Result};
use std::io;
use std::path::{Path, PathBuf};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::kind::{SettingKind, Value};
use super::table::{self, Setting};
use super::{Environment, Layer, LayerValue, ValueOrigin, invalid_value, nearest};

const PROJECT_FILE: &str = "leasehold.toml";
const USER_FILE: &str = "leasehold/config.toml";

/// Path where a settings file was looked up.
pub(crate) struct SettingsFile {
    /// [`Layer::UserFile`] or [`Layer::ProjectFile`].
    pub(crate) layer: Layer,
    pub(crate) path: PathBuf,
    /// Text of the file, or the error of reading it.
    pub(crate) text: io::Result<String>,
}

impl SettingsFile {
    fn at(layer: Layer, path: PathBuf) -> Self {
        let text = std::fs::read_to_string(&path);
        Self { layer, path, text }
    }

    pub(crate) fn is_missing(&self) -> bool {
        self.text.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
    }
}

/// Looks up the user's file, then the project's: in the working directory, then in its parents.
pub(crate) fn find(environment: &Environment) -> Vec<SettingsFile> {
    let mut files: Vec<_> = user_folder(environment)
        .map(|dir| SettingsFile::at(Layer::UserFile, dir.join(USER_FILE)))
        .into_iter()
        .collect();
    for folder in environment.cwd.ancestors() {
        let project = SettingsFile::at(Layer::ProjectFile, folder.join(PROJECT_FILE));
        let is_missing = project.is_missing();
        files.push(project);
        if !is_missing {
            break;
        }
    }
    files
}

fn user_folder(environment: &Environment) -> Option<PathBuf> {
    xdg(environment, "XDG_CONFIG_HOME", ".config")
}

/// Default directory of the artifact cache.
pub(super) fn cache_folder(environment: &Environment) -> Option<PathBuf> {
    Some(xdg(environment, "XDG_CACHE_HOME", ".cache")?.join("leasehold"))
}

/// Default directory of the outposts of this machine.
pub(super) fn data_folder(environment: &Environment) -> Option<PathBuf> {
    Some(xdg(environment, "XDG_DATA_HOME", ".local/share")?.join("leasehold"))
}

fn xdg(environment: &Environment, variable: &str, default: &str) -> Option<PathBuf> {
    // The XDG specification requires relative paths to be ignored.
    let wanted = environment.variables.get(variable).map(PathBuf::from).filter(|path| path.is_absolute());
    wanted.or_else(|| Some(environment.home.as_ref()?.join(default)))
}

/// Contents of one file.
pub(super) struct FileSettings {
    /// Values that it sets, including those of all profiles.
    pub(super) values: Vec<LayerValue>,
    /// Profiles that it defines.
    pub(super) profiles: Vec<String>,
}

/// Parses a file; `None` if it does not exist.
pub(super) fn read(file: &SettingsFile, cwd: &Path) -> Result<Option<FileSettings>> {
    let path = file.path.display();
    let text = match &file.text {
        Ok(text) => text,
        Err(_) if file.is_missing() => return Ok(None),
        Err(error) => return Err(Error::invalid(format!("cannot read {path}: {error}"))),
    };
    let mut reader =
        Reader { file, text, cwd, contents: FileSettings { values: Vec::new(), profiles: Vec::new() } };
    let document = DeTable::parse(text).map_err(|error| {
        // Not the error's own display, which quotes the line: it may contain a secret.
        let place = reader.place(error.span().map_or(0, |span| span.start));
        Error::invalid(format!("{place} is not TOML: {}", error.message().replace('\n', ", ")))
    })?;
    reader.table(document.get_ref(), "", None)?;
    Ok(Some(reader.contents))
}

struct Reader<'a> {
    file: &'a SettingsFile,
    text: &'a str,
    cwd: &'a Path,
    contents: FileSettings,
}

impl Reader<'_> {
    fn table(&mut self, table: &DeTable<'_>, above: &str, profile: Option<&str>) -> Result<()> {
        for (key, value) in table {
            let name = if above.is_empty() { key.to_string() } else { format!("{above}.{key}") };
            let place = self.place(key.span().start);
            match (table::find(&name), value.get_ref()) {
                (Some(setting), _) => self.setting(setting, value, place, profile)?,
                (None, value) if name == "profiles" && profile.is_none() => self.profiles(value, &place)?,
                // The keys of an unknown table give the best suggestion.
                (None, DeValue::Table(inner)) if table::is_table(&name) || !inner.is_empty() => {
                    self.table(inner, &name, profile)?;
                }
                (None, _) if table::is_table(&name) => return Err(not_a_table(&name, &place)),
                (None, _) => return Err(unknown(&name, &place, profile)),
            }
        }
        Ok(())
    }

    fn profiles(&mut self, value: &DeValue<'_>, place: &str) -> Result<()> {
        let profiles = value.as_table().ok_or_else(|| not_a_table("profiles", place))?;
        for (profile, value) in profiles {
            let (name, place) = (profile.get_ref(), self.place(profile.span().start));
            let tables =
                value.get_ref().as_table().ok_or_else(|| not_a_table(&format!("profiles.{name}"), &place))?;
            self.contents.profiles.push(name.to_string());
            self.table(tables, "", Some(name))?;
        }
        Ok(())
    }

    fn setting(
        &mut self,
        setting: &'static Setting,
        value: &Spanned<DeValue<'_>>,
        place: String,
        profile: Option<&str>,
    ) -> Result<()> {
        let (layer, place) = match (profile, self.file.layer) {
            (None, layer) => (layer, place),
            (Some(name), Layer::UserFile) => (Layer::UserProfile, format!("{place}, profile {name}")),
            (Some(name), _) => (Layer::ProjectProfile, format!("{place}, profile {name}")),
        };
        let origin = ValueOrigin { layer, place };
        let Some(read) = setting.kind.read(value.get_ref()) else {
            let written = match value.get_ref() {
                DeValue::Table(_) => "a table".to_owned(),
                _ => setting.kind.quote(&self.text[value.span()]),
            };
            return Err(invalid_value(setting, &written, &origin));
        };
        let is_path = matches!(setting.kind, SettingKind::Address | SettingKind::Path);
        let value = if is_path { self.anchored(read) } else { read };
        self.contents.values.push(LayerValue {
            setting,
            value,
            origin,
            profile: profile.map(ToOwned::to_owned),
        });
        Ok(())
    }

    /// Resolves a relative path against the folder of the file.
    fn anchored(&self, address: Value) -> Value {
        match (address, self.file.path.parent()) {
            (Value::Text(path), Some(folder))
                if leasehold_store::open::scheme(&path).is_none() && folder != self.cwd =>
            {
                let path: PathBuf = folder.join(path).components().collect();
                Value::Text(path.display().to_string())
            }
            (address, _) => address,
        }
    }

    fn place(&self, offset: usize) -> String {
        let before = self.text.as_bytes().iter().take(offset);
        let line = before.filter(|byte| **byte == b'\n').count() + 1;
        format!("{}:{line}", self.file.path.display())
    }
}

fn not_a_table(name: &str, place: &str) -> Error {
    Error::invalid(format!("`{name}` at {place} must be a table; write [{name}] and its keys below"))
}

fn unknown(name: &str, place: &str, profile: Option<&str>) -> Error {
    let profile = profile.map_or(String::new(), |profile| format!(" in profile `{profile}`"));
    let advice = nearest::key(name).map_or_else(
        || "remove it; docs/reference/settings.md lists all settings".to_owned(),
        |setting| format!("did you mean `{}`?", setting.name),
    );
    Error::invalid(format!("unknown key `{name}`{profile} at {place}; {advice}"))
}
