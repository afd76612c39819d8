//! TLS to the targets: the system's roots and those the operator adds.

use std::io;
use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::target::TargetUrl;

/// A certificate to trust besides the system's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Root(CertificateDer<'static>);

impl Root {
    /// Reads all certificates of a PEM file.
    ///
    /// # Errors
    /// When the file cannot be read, has none, or has one that cannot be a root.
    pub fn read_pem(path: &Path) -> io::Result<Vec<Self>> {
        Self::from_pem(&std::fs::read(path)?)
    }

    /// As [`Self::read_pem`], of the file's content.
    ///
    /// # Errors
    /// As there.
    pub fn from_pem(pem: &[u8]) -> io::Result<Vec<Self>> {
        let mut roots = Vec::new();
        for found in CertificateDer::pem_slice_iter(pem) {
            let certificate = found.map_err(|error| io::Error::other(error.to_string()))?;
            let added = RootCertStore::empty().add(certificate.clone());
            added.map_err(io::Error::other)?;
            roots.push(Self(certificate));
        }
        match roots.is_empty() {
            true => Err(io::Error::other("it has no certificate in PEM")),
            false => Ok(roots),
        }
    }
}

/// Makes the client's side of TLS.
#[derive(Clone)]
pub(super) struct Tls(TlsConnector);

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tls")
    }
}

impl Tls {
    /// Trusts the system's roots and these. Without any (a bare container) it warns, and every
    /// `https` target fails.
    pub(super) fn new(extra_roots: &[Root]) -> Self {
        let mut config = config(extra_roots);
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Self(TlsConnector::from(Arc::new(config)))
    }

    /// Shakes hands; the name is the URL's, whatever address it led to.
    pub(super) async fn shake(
        &self,
        target: &TargetUrl,
        stream: TcpStream,
    ) -> io::Result<TlsStream<TcpStream>> {
        let name = match target.ip() {
            Some(ip) => ServerName::from(ip),
            None => ServerName::try_from(target.name().into_owned()).map_err(io::Error::other)?,
        };
        self.0.connect(name, stream).await
    }
}

/// A client's side of TLS that trusts the system's roots and these.
pub(crate) fn config(extra_roots: &[Root]) -> ClientConfig {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("the provider has what TLS 1.2 and 1.3 need")
        .with_root_certificates(roots(extra_roots))
        .with_no_client_auth()
}

/// Whether both sides agreed on HTTP/2.
pub(super) fn is_http2(stream: &TlsStream<TcpStream>) -> bool {
    stream.get_ref().1.alpn_protocol() == Some(b"h2")
}

fn roots(extra: &[Root]) -> RootCertStore {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    roots.add_parsable_certificates(found.certs);
    roots.add_parsable_certificates(extra.iter().map(|root| root.0.clone()));
    if roots.is_empty() {
        tracing::warn!("no root certificates found on this system: TLS connections will fail");
    }
    roots
}
