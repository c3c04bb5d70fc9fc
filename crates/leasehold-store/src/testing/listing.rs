//! Formats of [`super::faulty_server`]: queries, `ListObjectsV2`, `DeleteObjects`.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::faulty_server::{Objects, ServerObject};

/// Maximum page size of S3.
const PAGE_KEYS_MAX: usize = 1_000;

/// Parses the parameters of a query.
pub(super) fn parameters(query: &str) -> BTreeMap<String, String> {
    query
        .split('&')
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        // In a query a plus is a space; a literal plus is sent as `%2B`.
        .map(|(name, value)| (decoded(name), decoded(&value.replace('+', " "))))
        .collect()
}

/// Decodes percent-encoding; a percent sign without two digits stands for itself.
pub(super) fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let digits = tail.get(..2).filter(|digits| digits.iter().all(u8::is_ascii_hexdigit));
        let digits = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) if *first == b'%' => {
                bytes.push(byte);
                rest = &tail[2..];
            }
            _ => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Content of a page: objects, and prefixes that represent all keys below them.
#[derive(Default)]
struct Page<'a> {
    contents: Vec<(&'a str, &'a ServerObject)>,
    prefixes: Vec<&'a str>,
    next: Option<&'a str>,
}

/// One page of `ListObjectsV2`.
pub(super) fn xml(objects: &Objects, bucket: &str, query: &BTreeMap<String, String>) -> String {
    let page = page(objects, bucket, query);
    let mut text = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<ListBucketResult>");
    let count = page.contents.len() + page.prefixes.len();
    let prefix = query.get("prefix").map_or("", String::as_str);
    add(&mut text, "Name", bucket);
    add(&mut text, "Prefix", prefix);
    add(&mut text, "KeyCount", &count.to_string());
    add(&mut text, "IsTruncated", &page.next.is_some().to_string());
    if let Some(next) = page.next {
        add(&mut text, "NextContinuationToken", next);
    }
    for (key, object) in page.contents {
        text.push_str("<Contents>");
        add(&mut text, "Key", key);
        add(&mut text, "LastModified", &object.modified.iso());
        add(&mut text, "ETag", &object.etag);
        add(&mut text, "Size", &object.bytes.len().to_string());
        add(&mut text, "StorageClass", "STANDARD");
        text.push_str("</Contents>");
    }
    for prefix in page.prefixes {
        text.push_str("<CommonPrefixes>");
        add(&mut text, "Prefix", prefix);
        text.push_str("</CommonPrefixes>");
    }
    text.push_str("</ListBucketResult>");
    text
}

/// Fills a page. The continuation token is the last key or common prefix on it: all before it was listed.
fn page<'a>(objects: &'a Objects, bucket: &str, query: &BTreeMap<String, String>) -> Page<'a> {
    let get = |name: &str| query.get(name).filter(|value| !value.is_empty()).map(String::as_str);
    let prefix = get("prefix").unwrap_or_default();
    let delimiter = get("delimiter");
    let token = get("continuation-token");
    let after = token.or(get("start-after")).unwrap_or_default();
    let max = get("max-keys").and_then(|max| max.parse().ok()).unwrap_or(PAGE_KEYS_MAX);
    let max = max.min(PAGE_KEYS_MAX);
    let mut page = Page::default();
    let mut last = "";
    for (path, object) in objects {
        let Some(key) = path.strip_prefix(bucket).and_then(|path| path.strip_prefix('/')) else {
            continue;
        };
        let Some(rest) = key.strip_prefix(prefix) else { continue };
        let cut = delimiter.and_then(|delimiter| Some(rest.find(delimiter)? + delimiter.len()));
        let shown = cut.map_or(key, |cut| &key[..prefix.len() + cut]);
        // A common prefix up to the token was listed before; with a `start-after` within it, it is listed.
        let passed = if token.is_some() { shown <= after } else { key <= after };
        if passed || (cut.is_some() && page.prefixes.last() == Some(&shown)) {
            continue;
        }
        if page.contents.len() + page.prefixes.len() == max {
            page.next = Some(last).filter(|last| !last.is_empty());
            break;
        }
        last = shown;
        if cut.is_some() { page.prefixes.push(shown) } else { page.contents.push((key, object)) }
    }
    page
}

/// Parses the keys of a `DeleteObjects`.
pub(super) fn keys_in(body: &str) -> Vec<String> {
    let after_tags = body.split("<Key>").skip(1);
    after_tags.filter_map(|rest| Some(unescaped(rest.split_once("</Key>")?.0))).collect()
}

/// Answer to `DeleteObjects`: a missing key counts as deleted.
pub(super) fn deleted_xml(keys: &[String]) -> String {
    let mut text = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<DeleteResult>");
    for key in keys {
        text.push_str("<Deleted>");
        add(&mut text, "Key", key);
        text.push_str("</Deleted>");
    }
    text.push_str("</DeleteResult>");
    text
}

fn add(text: &mut String, name: &str, value: &str) {
    let value = value.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let value = value.replace('"', "&quot;");
    write!(text, "<{name}>{value}</{name}>").expect("writing to a string cannot fail");
}

fn unescaped(text: &str) -> String {
    let text = text.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", "\"");
    text.replace("&apos;", "'").replace("&amp;", "&")
}

#[cfg(test)]
mod tests {
    use super::{decoded, keys_in};

    #[test]
    fn text_is_decoded_and_odd_percent_signs_stay() {
        let known = [("a%2Fb", "a/b"), ("%C3%A9", "é"), ("50%", "50%"), ("%zz%4", "%zz%4")];
        for (sent, meant) in known {
            assert_eq!(decoded(sent), meant);
        }
    }

    #[test]
    fn keys_to_delete_are_unescaped_once() {
        let body = "<Delete><Object><Key>a&amp;lt;</Key></Object><Object><Key>b</Key></Object></Delete>";
        assert_eq!(keys_in(body), ["a&lt;", "b"]);
    }
}
