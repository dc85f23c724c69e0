//! `tests/compat/reference.sh` on a mirror whose index names a revision that its pool does not have.
//! Programs of the test's own stand for apt, dpkg and make.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};
use tempfile::TempDir;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/compat/reference.sh");

/// The newest revision has an archive, but no description and no patches; the older one has nothing.
const AHEAD: &str = r#"case "$*" in
*"source --download-only valkey=8.1.1-3") cp "$ARCHIVE" valkey_8.1.1.orig.tar.gz; exit 100 ;;
*"source --download-only"*) exit 100 ;;
esac"#;

/// No revision has anything.
const EMPTY: &str =
    r#"case "$*" in *"source --download-only"*) echo "404 Not Found"; exit 100 ;; esac"#;

struct Mirror(TempDir);

impl Mirror {
    fn new(apt_get: &str) -> Self {
        let this = Self(tempfile::tempdir().expect("a directory"));
        let versions = "printf 'Version: 8.1.1-2\\nVersion: 8.1.1-3\\n'";
        let make = "mkdir -p \"$2/src\"; printf '#!/bin/sh\\necho built \"$@\"\\n' >\"$2/src/valkey-server\"; \
                    chmod +x \"$2/src/valkey-server\"";
        for (name, text) in [
            ("apt-get", apt_get),
            ("apt-cache", versions),
            ("dpkg-source", "exit 1"),
            ("make", make),
            ("gcc", ""),
            ("tclsh", ""),
        ] {
            let path = this.path().join("bin").join(name);
            fs::create_dir_all(this.path().join("bin")).expect("created");
            fs::write(&path, format!("#!/bin/sh\n{text}\n")).expect("written");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("executable");
        }
        let tests = this.path().join("upstream/valkey-8.1.1/tests");
        fs::create_dir_all(&tests).expect("created");
        let packed = Command::new("tar")
            .args(["-czf", "../upstream.tar.gz", "valkey-8.1.1"])
            .current_dir(this.path().join("upstream"))
            .status()
            .expect("tar runs");
        assert!(packed.success());
        this
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn reference(&self) -> Output {
        let path = format!("{}:/usr/bin:/bin", self.path().join("bin").display());
        Command::new("bash")
            .arg(SCRIPT)
            .arg(self.path().join("ref"))
            .env("PATH", path)
            .env("ARCHIVE", self.path().join("upstream.tar.gz"))
            .output()
            .expect("bash runs")
    }
}

#[test]
fn the_reference_is_built_from_the_upstream_archive_where_the_package_is_not_whole() {
    let mirror = Mirror::new(AHEAD);
    let done = mirror.reference();
    let errors = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{errors}");
    assert_eq!(String::from_utf8_lossy(&done.stdout), "built --version\n");
    let told = "building valkey_8.1.1.orig.tar.gz without Debian's patches";
    assert!(errors.contains(told), "{errors}");
    assert!(mirror.path().join("ref/valkey/tests").is_dir());
    // It is there now.
    let again = mirror.reference();
    assert!(again.status.success() && again.stderr.is_empty());
}

#[test]
fn a_mirror_without_the_reference_is_told_with_what_it_answers() {
    let mirror = Mirror::new(EMPTY);
    for _ in 0..2 {
        let done = mirror.reference();
        let errors = String::from_utf8_lossy(&done.stderr);
        assert_eq!(done.status.code(), Some(1), "{errors}");
        assert!(errors.contains("404 Not Found"), "{errors}");
        assert!(errors.contains("the mirror has no source of valkey"), "{errors}");
        assert!(!mirror.path().join("ref/valkey").exists());
    }
}
