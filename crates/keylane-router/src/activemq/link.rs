//! A link of ours: what came over it and was not handed out, how much may still come, and what it
//! takes to settle. One task owns the client's end of it.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use fe2o3_amqp::connection::ConnectionHandle;
use fe2o3_amqp::link::RecvError;
use fe2o3_amqp::link::delivery::DeliveryInfo;
use fe2o3_amqp::session::SessionHandle;
use fe2o3_amqp::types::messaging::Body;
use fe2o3_amqp::types::primitives::Value;
use fe2o3_amqp::{Receiver, Session};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::JoinSet;

use super::connect::{Connected, Failure, described};
use super::message::Content;
use super::options::Identified;
use crate::message::{BrokerId, Key};
use crate::recent::{Recent, Seen};
use crate::source::{Bond, Room};

/// How large a message is taken to be before the first has come.
const FIRST_GUESS: usize = 64 << 10;
/// How long a link that is no longer needed may take to end.
const ENDING: std::time::Duration = std::time::Duration::from_secs(5);

/// The most messages that are taken before anything else is done.
const TOGETHER: usize = 64;

/// One message as it came over a link. What is given back waits here again, so it is whole.
pub(super) struct Lent {
    pub(super) link: Arc<Link>,
    /// Its place on the link.
    pub(super) number: u64,
    pub(super) id: BrokerId,
    pub(super) key: Option<Key>,
    pub(super) body: Bytes,
    pub(super) headers: Vec<(Arc<str>, Arc<str>)>,
    info: DeliveryInfo,
}

/// A link, as the source and its settlers see it.
pub(super) struct Link {
    /// Cut when the link ends. Whoever cuts it ends the link.
    pub(super) bond: Bond,
    state: Mutex<State>,
    /// Something came, or the link ended.
    changed: Notify,
    /// There is room for more.
    room: Notify,
    /// Bounded by who asks: the router settles one batch after the other.
    orders: mpsc::UnboundedSender<Order>,
    /// Who wants to know whether the broker is there. Bounded likewise.
    pings: mpsc::UnboundedSender<oneshot::Sender<()>>,
}

struct State {
    /// Came and not handed out, or given back. In the order of the link, and so of each key.
    waiting: BTreeMap<u64, Arc<Lent>>,
    /// How much may wait here or be on its way.
    room: Room,
    /// The link is over, because of this.
    over: Option<Failure>,
}

/// What the task that owns the link is asked to do.
enum Order {
    Settle(Vec<DeliveryInfo>, How, oneshot::Sender<()>),
    Close,
}

/// How a loan ends at the broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    Accept,
    /// To its own dead letters.
    Reject,
}

impl Link {
    /// Begins to read. The tasks end with the link.
    pub(super) fn start(
        connected: Connected,
        naming: Naming,
        tasks: &mut JoinSet<()>,
    ) -> Arc<Self> {
        let (orders, ordered) = mpsc::unbounded_channel();
        let (pings, pinged) = mpsc::unbounded_channel();
        let link = Arc::new(Self {
            bond: Bond::new(),
            state: Mutex::new(State {
                waiting: BTreeMap::new(),
                room: Room::new(0, 0),
                over: None,
            }),
            changed: Notify::new(),
            room: Notify::new(),
            orders,
            pings,
        });
        let reader = Reader {
            link: link.clone(),
            receiver: connected.receiver,
            naming,
            came: 0,
            size: FIRST_GUESS,
        };
        let (session, connection) = (connected.session, connected.connection);
        let bond = link.bond.clone();
        tasks.spawn(async move {
            // The connection goes when both have let go of it.
            let read = reader.run(ordered);
            let ((), connection) = tokio::join!(read, answer_pings(connection, pinged, bond));
            end(session, connection).await;
        });
        link
    }

    /// Waits for messages and takes what there is room for.
    pub(super) async fn take(&self, room: Room) -> Result<Vec<Arc<Lent>>, Failure> {
        loop {
            let changed = self.changed.notified();
            match self.take_now(&room) {
                Ok(taken) if taken.is_empty() => changed.await,
                taken => return taken,
            }
        }
    }

    fn take_now(&self, room: &Room) -> Result<Vec<Arc<Lent>>, Failure> {
        let mut state = self.lock();
        if let Some(failure) = &state.over {
            return Err(failure.clone());
        }
        state.room = Room::new(room.messages, room.bytes);
        let (mut taken, mut bytes) = (Vec::new(), 0);
        while taken.len() < room.messages && (bytes < room.bytes || taken.is_empty()) {
            let Some((_, lent)) = state.waiting.pop_first() else {
                break;
            };
            bytes += lent.body.len();
            taken.push(lent);
        }
        // What is handed out takes its part of the room with it.
        state.room.messages -= taken.len();
        drop(state);
        self.room.notify_one();
        Ok(taken)
    }

    /// These wait again, each at its place.
    pub(super) fn give_back(&self, lent: impl IntoIterator<Item = Arc<Lent>>) {
        let mut state = self.lock();
        if state.over.is_none() {
            let lent = lent.into_iter().map(|lent| (lent.number, lent));
            state.waiting.extend(lent);
        }
        drop(state);
        self.changed.notify_waiters();
    }

    /// Tells the broker. Whether it was sent: the broker does not say whether it arrived.
    pub(super) async fn settle(&self, lent: &[Arc<Lent>], how: How) -> bool {
        let infos = lent.iter().map(|lent| lent.info.clone()).collect();
        let (sent, answer) = oneshot::channel();
        let order = Order::Settle(infos, how, sent);
        self.orders.send(order).is_ok() && answer.await.is_ok()
    }

    /// Waits for an answer of the broker to a question asked from now on. Whether there was one.
    pub(super) async fn ping(&self) -> bool {
        let (there, answer) = oneshot::channel();
        self.pings.send(there).is_ok() && answer.await.is_ok()
    }

    /// Ends the link as one should: when it is over, what was sent has arrived, and what is out is
    /// the broker's again, in its order.
    pub(super) fn close(&self) {
        let _ = self.orders.send(Order::Close);
    }

    fn end(&self, failure: Failure) {
        self.bond.cut();
        let mut state = self.lock();
        state.over.get_or_insert(failure);
        // They hold the link.
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        drop(waiting);
        self.changed.notify_waiters();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Owns the client's end of a link.
struct Reader {
    link: Arc<Link>,
    receiver: Receiver,
    naming: Naming,
    /// How many messages came.
    came: u64,
    /// How large they are, the larger ones counting more.
    size: usize,
}

impl Reader {
    /// Runs until the link ends.
    async fn run(mut self, mut orders: mpsc::UnboundedReceiver<Order>) {
        let link = self.link.clone();
        let failure = loop {
            tokio::select! {
                biased;
                () = link.bond.ended() => break given_up(),
                order = orders.recv() => match order {
                    Some(Order::Settle(infos, how, sent)) => match self.settle(infos, how).await {
                        Ok(()) => drop(sent.send(())),
                        Err(failure) => break failure,
                    },
                    Some(Order::Close) | None => {
                        // Whatever came of it, it is over.
                        let _ = tokio::time::timeout(ENDING, self.receiver.close()).await;
                        return link.end(given_up());
                    }
                },
                () = link.room.notified() => if let Err(failure) = self.grant().await {
                    break failure;
                },
                received = self.receiver.recv::<Body<Value>>() => {
                    if let Err(error) = self.take(received) {
                        break lost(&error);
                    }
                },
            }
        };
        link.end(failure);
    }

    async fn settle(&self, infos: Vec<DeliveryInfo>, how: How) -> Result<(), Failure> {
        let sent = match how {
            How::Accept => self.receiver.accept_all(infos).await,
            How::Reject => self.receiver.reject_all(infos, None).await,
        };
        sent.map_err(|error| Failure::passing(format!("the connection ended: {error}")))
    }

    /// Takes this and what is there behind it: whoever waits for messages is told of them together.
    fn take(&mut self, first: Received) -> Result<(), RecvError> {
        let mut next = Some(first);
        let mut taken = Ok(());
        for left in (0..TOGETHER).rev() {
            match next {
                Some(Ok(delivery)) => self.came(delivery),
                Some(Err(error)) => taken = Err(error),
                None => break,
            }
            next = match left > 0 && taken.is_ok() {
                true => now(self.receiver.recv()),
                false => None,
            };
        }
        self.link.changed.notify_waiters();
        taken
    }

    fn came(&mut self, delivery: fe2o3_amqp::link::delivery::Delivery<Body<Value>>) {
        let (info, message) = delivery.into_parts();
        let content = Content::from(message);
        self.came += 1;
        self.size = content.body.len().max(self.size - self.size / 8).max(1);
        let lent = Arc::new(Lent {
            id: self.naming.name(content.id, self.came, &content.body),
            link: self.link.clone(),
            number: self.came,
            key: content.key,
            body: content.body,
            headers: content.headers,
            info,
        });
        let mut state = self.link.lock();
        if state.over.is_none() {
            state.waiting.insert(lent.number, lent);
        }
    }

    /// Asks for as many as there is room for. Not for each single one: while more than half of that
    /// is asked for already, nobody waits for the rest.
    async fn grant(&mut self) -> Result<(), Failure> {
        let (waiting, room) = {
            let state = self.link.lock();
            (state.waiting.len(), state.room.clone())
        };
        // At least one, or a message larger than the room would never come.
        let fit = (room.bytes / self.size).max(1);
        let wanted = room.messages.saturating_sub(waiting).min(fit);
        let wanted = u32::try_from(wanted).unwrap_or(u32::MAX);
        let asked = self.receiver.credit();
        if wanted == 0 || asked > wanted / 2 {
            return Ok(());
        }
        let granted = self.receiver.set_credit(wanted).await;
        granted.map_err(|error| Failure::passing(format!("the connection ended: {error}")))
    }
}

/// What comes of asking for a message.
type Received = Result<fe2o3_amqp::link::delivery::Delivery<Body<Value>>, RecvError>;

/// The future's answer, if it has one already.
fn now<F: Future>(future: F) -> Option<F::Output> {
    let future = std::pin::pin!(future);
    match future.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => Some(answer),
        Poll::Pending => None,
    }
}

/// Asks the broker for a sign of life whenever somebody wants one; hands the connection back when
/// nobody does any more.
async fn answer_pings(
    mut connection: ConnectionHandle<()>,
    mut pings: mpsc::UnboundedReceiver<oneshot::Sender<()>>,
    bond: Bond,
) -> ConnectionHandle<()> {
    let answering = async {
        while let Some(there) = pings.recv().await {
            // The only thing that the client lets us ask and see the answer of.
            if let Ok(mut session) = Session::begin(&mut connection).await {
                let _ = there.send(());
                let _ = session.end().await;
            }
        }
    };
    tokio::select! {
        () = answering => {}
        () = bond.ended() => {}
    }
    connection
}

/// Says good-bye, as far as anybody listens. The session ends with the connection: while one is ended
/// by itself, the client asks again and again, without a pause, whether the broker has answered, which
/// takes Artemis seconds after many messages.
async fn end(session: SessionHandle<()>, mut connection: ConnectionHandle<()>) {
    let _ = tokio::time::timeout(ENDING, connection.close()).await;
    drop(session);
}

fn given_up() -> Failure {
    Failure::passing("the connection was given up; connecting again")
}

fn lost(error: &RecvError) -> Failure {
    match error {
        RecvError::MessageDecode(error) => Failure::permanent(format!(
            "a message cannot be read, and nothing behind it is: {error:?}; remove it from the queue"
        )),
        RecvError::LinkStateError(fe2o3_amqp::link::LinkStateError::RemoteClosedWithError(
            error,
        )) => Failure::passing(format!("the broker ended the link: {}", described(error))),
        RecvError::LinkStateError(_) => Failure::passing("the connection was lost"),
        other => Failure::passing(format!("the connection was given up: {other}")),
    }
}

/// Gives messages the ids that they are known by.
pub(super) struct Naming {
    /// Of the link: what has no id of its own is known by its place on it.
    link: String,
    source: Arc<str>,
    own_ids: Arc<OwnIds>,
    /// The link's number.
    number: u64,
}

/// What a publisher's id says.
enum Judged {
    Good(BrokerId),
    /// Another message has it.
    Repeated(BrokerId),
    Missing,
    /// None is looked at.
    Nothing,
}

/// Whether the ids of publishers are worth anything; the same over all links of a source.
pub(super) struct OwnIds(Mutex<Known>);

struct Known {
    worth: Worth,
    /// What came lately, over any link.
    recent: Recent<Seen>,
    /// How many links there were.
    links: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Worth {
    Good,
    /// Some messages have none; that was said.
    Missing,
    /// Some messages share theirs; that was said. None is looked at any more.
    Repeated,
    /// None was to be looked at.
    Unwanted,
}

impl OwnIds {
    pub(super) fn new(identified: Identified) -> Self {
        Self(Mutex::new(Known {
            worth: match identified {
                Identified::MessageId => Worth::Good,
                Identified::Nothing => Worth::Unwanted,
            },
            recent: Recent::default(),
            links: 0,
        }))
    }

    /// The number of a new link.
    fn new_link(&self) -> u64 {
        let mut known = self.lock();
        known.links += 1;
        known.links
    }

    /// Whether that is new.
    fn set(&self, worth: Worth) -> bool {
        std::mem::replace(&mut self.lock().worth, worth) != worth
    }

    /// What the id of a message is worth that came over this link with this body.
    fn judge(&self, link: u64, own: Option<String>, body: &[u8]) -> Judged {
        let mut known = self.lock();
        if !matches!(known.worth, Worth::Good | Worth::Missing) {
            return Judged::Nothing;
        }
        let Some(own) = own else {
            return Judged::Missing;
        };
        let id = BrokerId::Text(own.into());
        // The broker does not say whether it handed this out before.
        match known.recent.came(&id, link, body, true) {
            true => Judged::Good(id),
            false => Judged::Repeated(id),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Naming {
    pub(super) fn new(source: Arc<str>, own_ids: Arc<OwnIds>) -> Self {
        Self {
            link: uuid::Uuid::now_v7().simple().to_string(),
            source,
            number: own_ids.new_link(),
            own_ids,
        }
    }

    /// The id of the message that came as the `number`th.
    fn name(&mut self, own: Option<String>, number: u64, body: &[u8]) -> BrokerId {
        match self.own_ids.judge(self.number, own, body) {
            Judged::Good(id) => return id,
            Judged::Repeated(id) => self.repeated(&id),
            Judged::Missing => self.missing(),
            Judged::Nothing => {}
        }
        self.by_place(number)
    }

    fn by_place(&self, number: u64) -> BrokerId {
        BrokerId::Text(format!("{}/{number}", self.link).into())
    }

    fn repeated(&self, id: &BrokerId) {
        if self.own_ids.set(Worth::Repeated) {
            tracing::warn!(
                source = &*self.source,
                %id,
                "two messages have the same message-id; from now on none of this source is looked \
                 at, and what comes again after a cut may be called again (identity = \"none\")"
            );
        }
    }

    fn missing(&self) {
        if self.own_ids.set(Worth::Missing) {
            tracing::warn!(
                source = &*self.source,
                "messages come without a message-id; should one come again after a cut, it may be \
                 called again"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn naming() -> Naming {
        let own = Arc::new(OwnIds::new(Identified::MessageId));
        Naming::new("s".into(), own)
    }

    fn named(naming: &mut Naming, own: Option<&str>, number: u64) -> String {
        with_body(naming, own, number, b"{}")
    }

    fn with_body(naming: &mut Naming, own: Option<&str>, number: u64, body: &[u8]) -> String {
        let own = own.map(str::to_owned);
        naming.name(own, number, body).to_string()
    }

    /// The first may have been acked: another must not be taken for it and be acked uncalled.
    #[test]
    fn another_body_under_an_id_that_came_over_an_earlier_link_is_another_message() {
        let mut first = naming();
        let mut second = Naming::new("s".into(), first.own_ids.clone());
        assert_eq!(with_body(&mut first, Some("a"), 1, b"1"), "a");
        assert_ne!(with_body(&mut second, Some("a"), 1, b"2"), "a");
    }

    #[test]
    fn a_message_is_known_by_its_own_id_over_all_links() {
        let mut first = naming();
        let mut second = Naming::new("s".into(), first.own_ids.clone());
        assert_eq!(named(&mut first, Some("a"), 1), "a");
        assert_eq!(named(&mut second, Some("a"), 1), "a");
    }

    #[test]
    fn without_an_id_it_is_known_by_its_place_which_no_other_has() {
        let mut first = naming();
        let mut second = Naming::new("s".into(), first.own_ids.clone());
        let ids = [
            named(&mut first, None, 1),
            named(&mut first, None, 2),
            named(&mut second, None, 1),
        ];
        assert_eq!(HashSet::from(ids.clone()).len(), 3, "{ids:?}");
        assert_eq!(named(&mut first, Some("a"), 3), "a");
    }

    #[test]
    fn two_messages_with_one_id_are_two_messages_and_from_then_on_no_id_is_trusted() {
        let mut first = naming();
        let mut second = Naming::new("s".into(), first.own_ids.clone());
        assert_eq!(named(&mut first, Some("a"), 1), "a");
        assert_ne!(named(&mut first, Some("a"), 2), "a");
        // An older "a" may have been acked: the next one must not be taken for it.
        assert_ne!(named(&mut second, Some("a"), 1), "a");
        assert_ne!(named(&mut first, Some("b"), 3), "b");
    }
}
