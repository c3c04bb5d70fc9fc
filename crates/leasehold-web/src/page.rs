//! Static files of the page, embedded in the program: the page loads nothing from other servers.

/// A file of the page.
#[derive(Debug)]
pub(crate) struct File {
    /// Path below `static`.
    pub(crate) name: &'static str,
    pub(crate) media_type: &'static str,
    pub(crate) bytes: &'static [u8],
}

/// Every file in `static`; a test compares this with the folder.
const FILES: &[File] = &[
    html("index.html", include_bytes!("static/index.html")),
    script("api.js", include_bytes!("static/api.js")),
    script("app.js", include_bytes!("static/app.js")),
    script("charts.js", include_bytes!("static/charts.js")),
    script("dom.js", include_bytes!("static/dom.js")),
    script("format.js", include_bytes!("static/format.js")),
    svg("icon.svg", include_bytes!("static/icon.svg")),
    script("keys.js", include_bytes!("static/keys.js")),
    script("parts.js", include_bytes!("static/parts.js")),
    script("router.js", include_bytes!("static/router.js")),
    script("theme.js", include_bytes!("static/theme.js")),
    script("timeline.js", include_bytes!("static/timeline.js")),
    css("css/frame.css", include_bytes!("static/css/frame.css")),
    css("css/parts.css", include_bytes!("static/css/parts.css")),
    css("css/tokens.css", include_bytes!("static/css/tokens.css")),
    css("css/views.css", include_bytes!("static/css/views.css")),
    script("views/artifacts.js", include_bytes!("static/views/artifacts.js")),
    script("views/outposts.js", include_bytes!("static/views/outposts.js")),
    script("views/overview.js", include_bytes!("static/views/overview.js")),
    script("views/settings.js", include_bytes!("static/views/settings.js")),
    script("views/shards.js", include_bytes!("static/views/shards.js")),
    script("views/task.js", include_bytes!("static/views/task.js")),
    script("views/tasks.js", include_bytes!("static/views/tasks.js")),
    script("views/token.js", include_bytes!("static/views/token.js")),
    script("views/workers.js", include_bytes!("static/views/workers.js")),
];

const fn html(name: &'static str, bytes: &'static [u8]) -> File {
    File { name, media_type: "text/html; charset=utf-8", bytes }
}

const fn css(name: &'static str, bytes: &'static [u8]) -> File {
    File { name, media_type: "text/css; charset=utf-8", bytes }
}

const fn script(name: &'static str, bytes: &'static [u8]) -> File {
    File { name, media_type: "text/javascript; charset=utf-8", bytes }
}

const fn svg(name: &'static str, bytes: &'static [u8]) -> File {
    File { name, media_type: "image/svg+xml", bytes }
}

/// Finds a file by name.
pub(crate) fn find(name: &str) -> Option<&'static File> {
    FILES.iter().find(|file| file.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::path::Path;

    fn names(folder: &Path, above: &str) -> BTreeSet<String> {
        let mut names = BTreeSet::new();
        for entry in std::fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            let name = format!("{above}{}", entry.file_name().into_string().unwrap());
            if entry.file_type().unwrap().is_dir() {
                names.extend(self::names(&entry.path(), &format!("{name}/")));
            } else {
                names.insert(name);
            }
        }
        names
    }

    #[test]
    fn every_file_of_the_folder_is_embedded() {
        let there = names(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/src/static")), "");
        let here: BTreeSet<_> = FILES.iter().map(|file| file.name.to_owned()).collect();
        assert_eq!(here, there);
    }

    #[test]
    fn the_page_loads_nothing_from_other_servers() {
        for file in FILES {
            let text = std::str::from_utf8(file.bytes).unwrap();
            let foreign = text.split("http").skip(1).map(|rest| &rest[..rest.len().min(40)]);
            let foreign: Vec<_> = foreign
                .filter(|rest| rest.starts_with("://") || rest.starts_with("s://"))
                .filter(|rest| !rest.contains("www.w3.org/"))
                .collect();
            assert!(foreign.is_empty(), "{}: {foreign:?}", file.name);
        }
    }
}
