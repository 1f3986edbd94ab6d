//! Texts of errors, fit to be stored and shown: no secrets, no NUL, no end of pages.

use std::borrow::Cow;

/// What must not be shown.
#[derive(Clone, Debug, Default)]
pub(crate) struct Secrets(Vec<String>);

/// The longest text that is kept of an error.
pub(crate) const TEXT_MAX: usize = 2_000;

impl Secrets {
    /// Short words are left out: hiding them would hide everything.
    pub(crate) fn new(secrets: impl IntoIterator<Item = String>) -> Self {
        let mut secrets: Vec<String> = secrets.into_iter().filter(|s| s.len() >= 4).collect();
        // As they stand in a string of JSON, or of a log.
        let quoted = |secret: &String| secret.replace('\\', "\\\\").replace('"', "\\\"");
        let quoted: Vec<String> = secrets.iter().map(quoted).collect();
        secrets.extend(quoted);
        secrets.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
        Self(secrets)
    }

    /// A line without secrets.
    pub(crate) fn hidden<'l>(&self, line: &'l [u8]) -> Cow<'l, [u8]> {
        let Ok(text) = std::str::from_utf8(line) else {
            return Cow::Borrowed(line);
        };
        let mut shown = Cow::Borrowed(text);
        for secret in &self.0 {
            if shown.contains(secret.as_str()) {
                shown = Cow::Owned(shown.replace(secret.as_str(), "***"));
            }
        }
        match shown {
            Cow::Borrowed(text) => Cow::Borrowed(text.as_bytes()),
            Cow::Owned(text) => Cow::Owned(text.into_bytes()),
        }
    }

    /// The text without secrets and NUL, at most [`TEXT_MAX`] characters of it.
    pub(crate) fn cleaned(&self, text: &str) -> String {
        // A secret that begins before the end is cut off with what follows.
        let longest = self.0.first().map_or(0, String::len);
        let keep = text
            .char_indices()
            .nth(TEXT_MAX + longest)
            .map_or(text.len(), |(at, _)| at);
        let mut text = text[..keep].replace('\0', "\u{fffd}");
        for secret in &self.0 {
            if text.contains(secret.as_str()) {
                text = text.replace(secret.as_str(), "***");
            }
        }
        text.chars().take(TEXT_MAX).collect()
    }
}

/// Whether a setting's name says that its value is to be hidden.
pub(crate) fn is_secret(name: &str) -> bool {
    const WORDS: [&str; 8] = [
        "password",
        "passphrase",
        "secret",
        "token",
        "jaas",
        "key.pem",
        "ssl_key",
        "oauthbearer.config",
    ];
    let name = name.to_lowercase();
    // Where a token comes from is none.
    WORDS.iter().any(|word| name.contains(word)) && !name.ends_with("endpoint.url")
}

/// The passwords in an address, as they are written there and as they are meant.
pub(crate) fn passwords_of_url(url: &str) -> Vec<String> {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let user = rest
        .rsplit_once('@')
        .and_then(|(user, _)| user.split_once(':'));
    let parameters = query.split('&').filter_map(|pair| pair.split_once('='));
    let parameters = parameters.filter(|(name, _)| is_secret(name));
    let written = user
        .into_iter()
        .chain(parameters)
        .map(|(_, password)| password);
    written
        .flat_map(|password| [password.to_owned(), percent_decoded(password)])
        .filter(|password| !password.is_empty())
        .collect()
}

fn percent_decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        let code = match (first, after) {
            (b'%', [a, b, ..]) => std::str::from_utf8(&[*a, *b])
                .ok()
                .and_then(|digits| u8::from_str_radix(digits, 16).ok()),
            _ => None,
        };
        bytes.push(code.unwrap_or(*first));
        rest = if code.is_some() { &after[2..] } else { after };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A line of a configuration file; if it may hold a secret, without anything that may be one. What stands where
/// stays where it was.
pub(crate) fn line_without_secrets(line: &str) -> String {
    let may = is_secret(line) || (line.contains("://") && line.contains('@'));
    match line.find('=') {
        Some(at) if may => {
            let hidden = |c: char| {
                if c.is_whitespace() || "={}[],\"'".contains(c) {
                    c
                } else {
                    '*'
                }
            };
            let (before, after) = line.split_at(at);
            format!("{before}{}", after.chars().map(hidden).collect::<String>())
        }
        _ => line.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_in_an_address_is_found_as_it_is_written_and_as_it_is_meant() {
        let check = |url, expected: &[&str]| assert_eq!(passwords_of_url(url), expected, "{url}");
        check("postgres://u:hunter%402@h/d", &["hunter%402", "hunter@2"]);
        check("postgres://u:p@w/x@h:1/d?sslmode=off", &["p@w/x", "p@w/x"]);
        check("postgres://h/d?user=u&password=a%zz", &["a%zz", "a%zz"]);
        check("postgres://u@h/d", &[]);
        check("", &[]);
    }

    #[test]
    fn a_line_shows_no_secret_however_it_is_quoted() {
        let secrets = Secrets::new(["hunter22".to_owned(), "a\"b\\c".to_owned()]);
        let check = |line: &str, expected: &str| {
            assert_eq!(secrets.hidden(line.as_bytes()), expected.as_bytes());
        };
        check("user u, hunter22", "user u, ***");
        check(r#"{"why":"a\"b\\c"}"#, r#"{"why":"***"}"#);
        check("nothing", "nothing");
        assert_eq!(
            secrets.hidden(b"\xff hunter22"),
            b"\xff hunter22".as_slice()
        );
    }

    #[test]
    fn a_line_that_may_hold_a_secret_is_shown_without_it() {
        let check = |line, expected| assert_eq!(line_without_secrets(line), expected);
        check("writers = 3", "writers = 3");
        check(
            "options = { \"sasl.password\" = \"x y\", a = 1 }",
            "options = { \"*************\" = \"* *\", * = * }",
        );
        check(
            "url = \"postgres://u:p@h/d\"",
            "url = \"******************\"",
        );
        check("SASL.Password = x", "SASL.Password = *");
    }

    #[test]
    fn secrets_are_hidden_also_where_the_text_is_cut() {
        let secrets = Secrets::new(["hunter2".to_owned(), "hunter".to_owned(), "x".to_owned()]);
        assert_eq!(secrets.cleaned("a hunter2 b hunter x"), "a *** b *** x");
        let long = format!("{}hunter2", "é".repeat(TEXT_MAX - 3));
        let cleaned = secrets.cleaned(&long);
        assert!(!cleaned.contains("hun"), "{cleaned}");
        assert_eq!(cleaned.chars().count(), TEXT_MAX);
    }

    #[test]
    fn what_cannot_be_stored_is_replaced_and_long_texts_are_cut() {
        let secrets = Secrets::default();
        assert_eq!(secrets.cleaned("a\0b"), "a\u{fffd}b");
        assert_eq!(
            secrets.cleaned(&"é".repeat(5 << 20)).chars().count(),
            TEXT_MAX
        );
    }
}
