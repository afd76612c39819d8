//! A certificate that only those trust who are told to, and a front that speaks TLS for a target
//! that does not.

use std::net::SocketAddr;
use std::sync::Arc;

use keylane_router::dispatch::Root;
use rcgen::{CertifiedKey, generate_simple_self_signed};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::aws_lc_rs::default_provider;
use tokio_rustls::rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

/// A server's side of TLS for a host of this name, and whom to trust for it.
pub(crate) fn server(name: &str, alpn: &[&str]) -> (TlsAcceptor, Vec<Root>) {
    let CertifiedKey { cert, signing_key } =
        generate_simple_self_signed(vec![name.to_owned()]).unwrap();
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(signing_key.serialize_der()));
    let mut config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![cert.der().clone()], key)
        .unwrap();
    config.alpn_protocols = alpn.iter().map(|p| p.as_bytes().to_vec()).collect();
    let roots = Root::from_pem(cert.pem().as_bytes()).unwrap();
    (TlsAcceptor::from(Arc::new(config)), roots)
}

/// Speaks TLS as `localhost` and passes on what is inside. Dropped, it ends.
pub(crate) struct Front {
    pub(crate) address: SocketAddr,
    pub(crate) roots: Vec<Root>,
    accept: tokio::task::AbortHandle,
}

impl Front {
    pub(crate) async fn of(target: SocketAddr) -> Self {
        let (acceptor, roots) = server("localhost", &["http/1.1"]);
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        let accept = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.expect("a connection");
                let acceptor = acceptor.clone();
                connections.spawn(async move {
                    let mut near = acceptor.accept(stream).await?;
                    let mut far = TcpStream::connect(target).await?;
                    copy_bidirectional(&mut near, &mut far).await
                });
            }
        });
        Self {
            address,
            roots,
            accept: accept.abort_handle(),
        }
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        self.accept.abort();
    }
}
