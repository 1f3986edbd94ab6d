//! Texts of errors, fit to be stored and shown: no secrets, no NUL, no end of pages.

/// What must not be shown.
#[derive(Clone, Debug, Default)]
pub(crate) struct Secrets(Vec<String>);

/// The longest text that is kept of an error.
pub(crate) const TEXT_MAX: usize = 2_000;

impl Secrets {
    /// Short words are left out: hiding them would hide everything.
    pub(crate) fn new(secrets: impl IntoIterator<Item = String>) -> Self {
        let mut secrets: Vec<String> = secrets.into_iter().filter(|s| s.len() >= 4).collect();
        secrets.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
        Self(secrets)
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

#[cfg(test)]
mod tests {
    use super::*;

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
