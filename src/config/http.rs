//! `[http]`: where questions are answered, and whether something can be changed there.

use std::net::SocketAddr;

use super::section::{Section, Setting, Sources};

/// Where questions are answered, and whether something can be changed there.
#[derive(Clone, Debug)]
pub(crate) struct Http {
    pub(crate) listen: SocketAddr,
    pub(crate) admin: bool,
    /// What whoever changes something must know.
    pub(crate) admin_token: Option<String>,
}

pub(super) fn read(section: Section<'_>, sources: &mut Sources<'_>) -> Option<Http> {
    const TOKEN_MIN: usize = 16;
    let listen = section.located("listen", sources);
    let admin_place = section.place_of_setting("admin", sources);
    let admin = section.flag("admin", false, sources);
    let token = section.located("admin_token", sources);
    section.finish(&["listen", "admin", "admin_token"], sources);
    // So that a variable can take back what a file says.
    let token = token.filter(|setting| !setting.text.is_empty());
    if let Some(Setting { text, place }) = &token
        && (text.len() < TOKEN_MIN || !text.bytes().all(|b| b.is_ascii_graphic()))
    {
        let what = "`http.admin_token` is too short, or not of visible ASCII characters".to_owned();
        let cure = "make one with `openssl rand -hex 32`, and hand it over by TIDEGATE__HTTP__ADMIN_TOKEN__FILE";
        sources.problems.add(place.clone(), what, cure);
    }
    let listen = listen.filter(|setting| !setting.text.is_empty());
    let Some(Setting { text, place }) = listen else {
        if let (true, Some(place)) = (admin, admin_place) {
            let what = "`http.admin` is on, and nothing listens".to_owned();
            sources
                .problems
                .add(place, what, "set `http.listen` to an address and a port");
        }
        return None;
    };
    let Ok(listen) = text.parse::<SocketAddr>() else {
        let what = format!("`http.listen` cannot be `{text}`");
        let cure = "write an address and a port, such as \"127.0.0.1:9600\" or \"[::]:9600\"";
        sources.problems.add(place, what, cure);
        return None;
    };
    if admin && token.is_none() && !listen.ip().is_loopback() {
        let what = format!(
            "`http.admin` is on at {listen}, where others can reach it, without `http.admin_token`"
        );
        let cure = "set a token (TIDEGATE__HTTP__ADMIN_TOKEN__FILE names a file with it), or listen at 127.0.0.1";
        sources
            .problems
            .add(admin_place.unwrap_or(place), what, cure);
    }
    Some(Http {
        listen,
        admin,
        admin_token: token.map(|setting| setting.text),
    })
}
