//! Certificates of a test's own, made with OpenSSL.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const NEW_KEY: &str = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";

#[track_caller]
fn openssl(folder: &Path, arguments: &str) {
    let output = Command::new("openssl")
        .args(arguments.split_whitespace())
        .current_dir(folder)
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "openssl {arguments}\n{errors}");
}

/// Somebody who signs certificates. All files are in one folder: `NAME.pem` and `NAME.key`.
pub(crate) struct Authority {
    folder: PathBuf,
    name: &'static str,
}

impl Authority {
    pub(crate) fn new(folder: &Path, name: &'static str) -> Self {
        openssl(
            folder,
            &format!(
                "req -x509 {NEW_KEY} -keyout {name}.key -out {name}.pem -subj /CN={name} -days 2"
            ),
        );
        Self {
            folder: folder.to_owned(),
            name,
        }
    }

    /// A certificate of `name` for some addresses (`IP:127.0.0.1,DNS:localhost`).
    pub(crate) fn certify(&self, name: &str, addresses: &str) {
        self.certify_for_days(name, addresses, 2);
    }

    /// One whose time is over.
    pub(crate) fn certify_in_the_past(&self, name: &str, addresses: &str) {
        self.certify_for_days(name, addresses, -1);
    }

    fn certify_for_days(&self, name: &str, addresses: &str, days: i32) {
        let (folder, ca) = (&self.folder, self.name);
        openssl(
            folder,
            &format!("req {NEW_KEY} -keyout {name}.key -out {name}.csr -subj /CN={name}"),
        );
        let extensions = folder.join(format!("{name}.ext"));
        fs::write(&extensions, format!("subjectAltName = {addresses}\n")).unwrap();
        openssl(
            folder,
            &format!(
                "x509 -req -in {name}.csr -CA {ca}.pem -CAkey {ca}.key -CAcreateserial -days {days} -out {name}.pem -extfile {name}.ext"
            ),
        );
    }

    /// Key and certificate in one file, which is returned.
    pub(crate) fn bundle(&self, name: &str) -> PathBuf {
        let read = |file: String| fs::read_to_string(self.folder.join(file)).unwrap();
        let bundle = self.folder.join(format!("{name}.bundle.pem"));
        let both = read(format!("{name}.key")) + &read(format!("{name}.pem"));
        fs::write(&bundle, both).unwrap();
        bundle
    }

    /// The path of a file, for settings.
    pub(crate) fn file(&self, name: &str) -> String {
        self.folder.join(name).display().to_string()
    }
}
