//! Lists a folder in the byte order of whole keys, as S3 does.
//!
//! Sorting names is not enough: the key `a-b` comes before `a/x`, because `-` is less than `/`. Sorting each
//! directory by its name *with* the slash gives the order of whole keys at every level.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;

use super::clock::modified;
use crate::page::Pager;
use crate::store::{List, ListEntry, Page};

pub(super) fn page(root: &Path, list: &List) -> io::Result<Page> {
    let mut pager = Pager::new(list).map_err(|error| io::Error::new(ErrorKind::InvalidInput, error))?;
    // Directories above the last slash of the prefix need not be read.
    let start = list.prefix.rfind('/').map_or("", |slash| &list.prefix[..=slash]);
    walk(root, start, &mut pager)?;
    Ok(pager.finish())
}

fn walk(root: &Path, branch: &str, pager: &mut Pager<'_>) -> io::Result<()> {
    for child in children(root, branch, pager)? {
        if pager.is_full() {
            break;
        }
        if !child.ends_with('/') {
            offer(root, &child, pager)?;
        } else if !pager.wants(&child) {
        } else if pager.folds(&child) {
            if let Some(key) = any_key(root, &child)? {
                offer(root, &key, pager)?;
            }
        } else {
            walk(root, &child, pager)?;
        }
    }
    Ok(())
}

fn offer(root: &Path, key: &str, pager: &mut Pager<'_>) -> io::Result<()> {
    match fs::symlink_metadata(root.join(key)) {
        Ok(found) => {
            pager.offer(key, || ListEntry {
                key: key.to_owned(),
                modified: modified(&found),
                size: found.len(),
            });
            Ok(())
        }
        // Removed since its directory was read.
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// Names in a directory that could be part of the page, as keys; directories end in a slash.
fn children(root: &Path, branch: &str, pager: &Pager<'_>) -> io::Result<Vec<String>> {
    let mut children = Vec::new();
    each_child(root, branch, |child| {
        let could_be_wanted =
            if child.ends_with('/') { pager.wants(&child) } else { pager.wants_key(&child) };
        if could_be_wanted {
            children.push(child);
        }
        Ok(true)
    })?;
    children.sort_unstable();
    Ok(children)
}

/// Finds any key below a directory; none if there are only empty directories.
fn any_key(root: &Path, branch: &str) -> io::Result<Option<String>> {
    let mut found = None;
    each_child(root, branch, |child| {
        found = if child.ends_with('/') { any_key(root, &child)? } else { Some(child) };
        Ok(found.is_none())
    })?;
    Ok(found)
}

/// Visits the names in a directory until `visit` stops; a missing directory is empty.
fn each_child(
    root: &Path,
    branch: &str,
    mut visit: impl FnMut(String) -> io::Result<bool>,
) -> io::Result<()> {
    let entries = match fs::read_dir(root.join(branch)) {
        Ok(entries) => entries,
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(()),
        Err(error) => return Err(error),
    };
    for entry in entries {
        let entry = entry?;
        // A name that is not text or is reserved for the store is not a key.
        let Ok(name) = entry.file_name().into_string() else { continue };
        if branch.is_empty() && name == leasehold_core::keys::RESERVED {
            continue;
        }
        let Ok(kind) = entry.file_type() else { continue };
        let slash = if kind.is_dir() { "/" } else { "" };
        let key = format!("{branch}{name}{slash}");
        // Neither is a name that no key can have. Links, pipes and sockets are listed: reading them fails as corrupt.
        if leasehold_core::keys::check_prefix(&key).is_err() {
            continue;
        }
        if !visit(key)? {
            break;
        }
    }
    Ok(())
}
