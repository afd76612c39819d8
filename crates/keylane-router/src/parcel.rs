//! A message as it waits in a lane: small, because there may be very many. What is its own are parts
//! of its body; where it goes is kept once for all that go there.

use std::borrow::Cow;
use std::hash::BuildHasher;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;

use crate::map::Map;
use crate::message::{Key, Message};

/// So many different addresses are remembered.
const REMEMBERED: usize = 256;

/// Where a message goes, and how. Fields as in [`Message`]. Not `Debug`: tokens and headers may be
/// secrets.
pub(crate) struct Address {
    pub(crate) pool: Option<Arc<str>>,
    pub(crate) target: Arc<str>,
    pub(crate) mediation_type: Arc<str>,
    pub(crate) auth_token: Option<Arc<str>>,
    pub(crate) tenant: Option<Arc<str>>,
    pub(crate) content_type: Arc<str>,
    pub(crate) headers: Vec<(Arc<str>, Arc<str>)>,
    /// Whom it would be sent to, once somebody knows.
    origin: OnceLock<Option<Arc<str>>>,
}

/// An address as a body has it.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(crate) struct Spelled<'a> {
    pub(crate) pool: Option<&'a str>,
    pub(crate) target: &'a str,
    pub(crate) mediation_type: &'a str,
    pub(crate) auth_token: Option<&'a str>,
    pub(crate) tenant: Option<&'a str>,
    pub(crate) content_type: &'a str,
}

impl Spelled<'_> {
    pub(crate) fn with(self, headers: Vec<(Arc<str>, Arc<str>)>) -> Arc<Address> {
        Arc::new(Address {
            pool: self.pool.map(Into::into),
            target: self.target.into(),
            mediation_type: self.mediation_type.into(),
            auth_token: self.auth_token.map(Into::into),
            tenant: self.tenant.map(Into::into),
            content_type: self.content_type.into(),
            headers,
            origin: OnceLock::new(),
        })
    }
}

impl Address {
    /// Whom it would be sent to, for the breaker.
    pub(crate) fn origin(&self) -> Option<&Arc<str>> {
        self.origin.get()?.as_ref()
    }

    /// Asks for the origin, unless it is known.
    pub(crate) fn locate(&self, origin: impl FnOnce(&str) -> Option<Arc<str>>) {
        self.origin.get_or_init(|| origin(&self.target));
    }

    fn spelled(&self) -> Spelled<'_> {
        Spelled {
            pool: self.pool.as_deref(),
            target: &self.target,
            mediation_type: &self.mediation_type,
            auth_token: self.auth_token.as_deref(),
            tenant: self.tenant.as_deref(),
            content_type: &self.content_type,
        }
    }
}

/// The addresses that were met lately: most messages of a source go to few.
#[derive(Default)]
pub(crate) struct Addresses {
    met: Map<u64, Arc<Address>>,
}

impl Addresses {
    /// The address spelled like this, kept once; one with headers of its own is its own.
    pub(crate) fn get(
        &mut self,
        spelled: Spelled<'_>,
        headers: Vec<(Arc<str>, Arc<str>)>,
    ) -> Arc<Address> {
        if !headers.is_empty() {
            return spelled.with(headers);
        }
        let hash = self.met.hasher().hash_one(spelled);
        if let Some(met) = self.met.get(&hash)
            && met.spelled() == spelled
        {
            return met.clone();
        }
        if self.met.len() >= REMEMBERED {
            self.met.clear();
        }
        let address = spelled.with(headers);
        self.met.insert(hash, address.clone());
        address
    }
}

/// A part of a body: from here, so many bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Span(u32, u32);

impl Span {
    /// Where `part` is in the body, if it is a part of it.
    fn find(part: &[u8], body: &[u8]) -> Option<Self> {
        let (inner, outer) = (part.as_ptr_range(), body.as_ptr_range());
        if inner.start < outer.start || inner.end > outer.end {
            return None;
        }
        let start = inner.start.addr() - outer.start.addr();
        let start = u32::try_from(start).ok()?;
        Some(Self(start, u32::try_from(part.len()).ok()?))
    }

    fn of(self, body: &[u8]) -> &[u8] {
        let (start, len) = (self.0 as usize, self.1 as usize);
        &body[start..start + len]
    }
}

/// A message beside its body.
#[derive(Clone)]
pub(crate) struct Parcel {
    id: Span,
    payload: Span,
    pub(crate) key: Option<Key>,
    pub(crate) address: Arc<Address>,
    beside: Option<Box<Beside>>,
}

/// What is not in the body as it is.
#[derive(Clone, Default)]
struct Beside {
    id: Option<Arc<str>>,
    payload: Option<Bytes>,
}

impl Parcel {
    /// A message with the whole body as payload; its id is not in there.
    pub(crate) fn whole(body: &Bytes, id: String, key: Option<Key>, address: Arc<Address>) -> Self {
        Self::new(body, Cow::Owned(id), Cow::Borrowed(body), key, address)
    }

    /// A message of this body; what is borrowed is a part of it.
    pub(crate) fn new(
        body: &[u8],
        id: Cow<'_, str>,
        payload: Cow<'_, [u8]>,
        key: Option<Key>,
        address: Arc<Address>,
    ) -> Self {
        let mut beside = Beside::default();
        let mut parcel = Self {
            id: Span::default(),
            payload: Span::default(),
            key,
            address,
            beside: None,
        };
        match (&id, Span::find(id.as_bytes(), body)) {
            (Cow::Borrowed(_), Some(span)) => parcel.id = span,
            _ => beside.id = Some(id.into()),
        }
        match (&payload, Span::find(&payload, body)) {
            (Cow::Borrowed(_), Some(span)) => parcel.payload = span,
            _ => beside.payload = Some(payload.into_owned().into()),
        }
        let any = beside.id.is_some() || beside.payload.is_some();
        parcel.beside = any.then(|| Box::new(beside));
        parcel
    }

    /// The publisher's id.
    pub(crate) fn id<'a>(&'a self, body: &'a [u8]) -> &'a str {
        match self.own_id() {
            Some(id) => id,
            None => std::str::from_utf8(self.id.of(body)).unwrap_or_default(),
        }
    }

    fn own_id(&self) -> Option<&Arc<str>> {
        self.beside.as_ref()?.id.as_ref()
    }

    fn own_payload(&self) -> Option<&Bytes> {
        self.beside.as_ref()?.payload.as_ref()
    }

    /// How many bytes its payload takes beside its body.
    pub(crate) fn beside(&self) -> usize {
        self.own_payload().map_or(0, Bytes::len)
    }

    /// The message of this body.
    pub(crate) fn message(&self, body: &Bytes) -> Message {
        let address = &*self.address;
        let own_id = self.own_id().cloned();
        let own_payload = self.own_payload().cloned();
        Message {
            id: own_id.unwrap_or_else(|| self.id(body).into()),
            key: self.key.clone(),
            pool: address.pool.clone(),
            target: address.target.clone(),
            mediation_type: address.mediation_type.clone(),
            auth_token: address.auth_token.clone(),
            tenant: address.tenant.clone(),
            payload: own_payload.unwrap_or_else(|| body.slice_ref(self.payload.of(body))),
            content_type: address.content_type.clone(),
            headers: address.headers.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spelled(target: &str) -> Spelled<'_> {
        Spelled {
            target,
            ..Spelled::default()
        }
    }

    #[test]
    fn an_address_is_kept_once_and_only_so_many_are() {
        let mut addresses = Addresses::default();
        let first = addresses.get(spelled("http://a/"), Vec::new());
        let again = addresses.get(spelled("http://a/"), Vec::new());
        assert!(Arc::ptr_eq(&first, &again));
        let of_blue = Spelled {
            tenant: Some("blue"),
            ..spelled("http://a/")
        };
        let blue = addresses.get(of_blue, Vec::new());
        assert_eq!(blue.tenant.as_deref(), Some("blue"));
        let headers = vec![("x-a".into(), "b".into())];
        let own = addresses.get(spelled("http://a/"), headers);
        assert_eq!(own.headers.len(), 1);
        assert!(first.headers.is_empty() && first.tenant.is_none());
        for n in 0..3 * REMEMBERED {
            addresses.get(spelled(&n.to_string()), Vec::new());
        }
        assert!(addresses.met.len() <= REMEMBERED);
    }

    #[test]
    fn what_is_a_part_of_the_body_is_not_copied_and_what_is_not_stands_beside_it() {
        let body = Bytes::from_static(b"id-1 payload");
        let text = std::str::from_utf8(&body).unwrap();
        let address = spelled("").with(Vec::new());
        let (id, payload) = (Cow::Borrowed(&text[..4]), Cow::Borrowed(&body[5..]));
        let parcel = Parcel::new(&body, id, payload, None, address.clone());
        let message = parcel.message(&body);
        assert_eq!((&*message.id, &*message.payload), ("id-1", &b"payload"[..]));
        assert_eq!(message.payload.as_ptr(), body[5..].as_ptr());
        assert_eq!(parcel.beside(), 0);
        let (id, payload) = (Cow::Owned("other".to_owned()), Cow::Owned(vec![1, 2, 3]));
        let parcel = Parcel::new(&body, id, payload, None, address);
        let message = parcel.message(&body);
        assert_eq!((&*message.id, &*message.payload), ("other", &[1, 2, 3][..]));
        assert_eq!((parcel.id(&body), parcel.beside()), ("other", 3));
    }
}
