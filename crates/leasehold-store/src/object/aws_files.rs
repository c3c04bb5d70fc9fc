//! Profile files of AWS tools (`~/.aws/credentials`, `~/.aws/config`), limited to plain values.
//!
//! `object_store` reads environment variables, web identities and the metadata services of containers and machines,
//! but not these files. Profiles that need a helper program or a sign-on are refused, with a workaround in the message.

use leasehold_core::{Error, Result};
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey as Key};
use std::collections::BTreeMap;
use std::path::PathBuf;

type Profile = BTreeMap<String, String>;

/// Adds values from the profile files that are not set by environment variables.
pub(super) fn complete(mut s3: AmazonS3Builder) -> Result<AmazonS3Builder> {
    let name = std::env::var("AWS_PROFILE").ok();
    let has_own_credentials = [
        Key::AccessKeyId,
        Key::WebIdentityTokenFile,
        Key::ContainerCredentialsRelativeUri,
        Key::ContainerCredentialsFullUri,
    ]
    .iter()
    .any(|key| s3.get_config_value(key).is_some());
    let profile = read_profile(name.as_deref().unwrap_or("default"));
    if !has_own_credentials {
        match (&name, usable_keys(&profile)) {
            (_, true) => {
                for (key, from) in [
                    (Key::AccessKeyId, "aws_access_key_id"),
                    (Key::SecretAccessKey, "aws_secret_access_key"),
                    (Key::Token, "aws_session_token"),
                ] {
                    if let Some(value) = profile.get(from) {
                        s3 = s3.with_config(key, value);
                    }
                }
            }
            (Some(name), false) => {
                return Err(Error::invalid(format!(
                    "AWS profile `{name}` has no access key; export one with `aws configure export-credentials --profile {name} --format env`"
                )));
            }
            (None, false) => {}
        }
    }
    for (key, from) in [(Key::Region, "region"), (Key::Endpoint, "endpoint_url")] {
        if let (None, Some(value)) = (s3.get_config_value(&key), profile.get(from)) {
            s3 = s3.with_config(key, value);
        }
    }
    Ok(s3)
}

fn usable_keys(profile: &Profile) -> bool {
    profile.contains_key("aws_access_key_id") && profile.contains_key("aws_secret_access_key")
}

fn read_profile(name: &str) -> Profile {
    let file = |variable: &str, default: &str| {
        let path = std::env::var_os(variable).map(PathBuf::from);
        let path = path.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(default)));
        path.and_then(|path| std::fs::read_to_string(path).ok()).unwrap_or_default()
    };
    let mut profile = section(&file("AWS_CONFIG_FILE", ".aws/config"), name);
    profile.extend(section(&file("AWS_SHARED_CREDENTIALS_FILE", ".aws/credentials"), name));
    profile
}

/// Values of `[name]` or `[profile name]`, without indented (nested) lines.
fn section(text: &str, name: &str) -> Profile {
    let mut inside = false;
    let mut values = Profile::new();
    for line in text.lines() {
        if let Some(title) = line.trim().strip_prefix('[').and_then(|rest| rest.split(']').next()) {
            inside = title.trim().trim_start_matches("profile ").trim() == name;
        } else if let (true, false, Some((key, value))) =
            (inside, line.starts_with([' ', '\t', '#', ';']), line.split_once('='))
        {
            values.insert(key.trim().to_lowercase(), value.trim().to_owned());
        }
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_gives_its_own_plain_values() {
        let text = "[default]\nregion = eu-west-1\n# note = x\n[profile work]\nregion=us-east-2\ns3 =\n  endpoint_url = nested\nendpoint_url = http://127.0.0.1:9\n";
        assert_eq!(section(text, "default"), Profile::from([("region".into(), "eu-west-1".into())]));
        let work = section(text, "work");
        assert_eq!(work["region"], "us-east-2");
        assert_eq!(work["endpoint_url"], "http://127.0.0.1:9");
        assert!(section(text, "other").is_empty());
    }
}
