//! Text as a part of an address or of a form.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// All but what RFC 3986 never reserves.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// Text as a part of an address's path or of a form has it.
pub(crate) fn escaped(text: &str) -> String {
    utf8_percent_encode(text, RESERVED).to_string()
}
