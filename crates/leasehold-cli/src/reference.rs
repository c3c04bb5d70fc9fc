//! Generated files of `docs/reference`.

/// Asserts that a file of `docs/reference` equals the generated text; with `UPDATE_DOCS=1`, writes it first.
pub(crate) fn assert_documented(file: &str, generated: &str) {
    let documented = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference").join(file);
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::create_dir_all(documented.parent().unwrap()).unwrap();
        std::fs::write(&documented, generated).unwrap();
    }
    assert_eq!(std::fs::read_to_string(&documented).unwrap(), generated, "run the test with UPDATE_DOCS=1");
}
