use super::*;
use crate::config::{OutputBufferLimit, Settings};
use crate::transport::PeerAddr;
use std::future::poll_fn;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::AtomicU64;
use std::task::Poll;
use std::time::Duration;

const ROOM: usize = 1 << 20;

fn client(id: u64) -> Arc<Client> {
    let addr = PeerAddr::from(SocketAddr::from((Ipv4Addr::LOCALHOST, 1)));
    Arc::new(Client::new(id, (addr.clone(), addr), 0, 0, 1))
}

fn limits() -> OutputBufferLimits {
    Settings::default().client_output_buffer_limit
}

fn subscribe(subscriptions: &mut Subscriptions, kind: SubscriptionKind, names: &[&str]) {
    let names = names.iter().map(|name| name.as_bytes());
    assert!(subscriptions.pubsub.reserve(names.clone()));
    names.for_each(|name| subscriptions.add(kind, name));
}

fn sent(client: &Client) -> String {
    let mut text = String::new();
    client.outbox.drain(|bytes| text.push_str(&String::from_utf8_lossy(bytes)));
    text.replace("\r\n", " ")
}

#[test]
fn messages_go_to_channels_patterns_and_shards() {
    let pubsub = Arc::new(PubSub::new(1, ROOM));
    let (one, two) = (client(1), client(2));
    two.set_resp(3);
    let mut first = Subscriptions::new(&pubsub, &one);
    let mut second = Subscriptions::new(&pubsub, &two);
    subscribe(&mut first, SubscriptionKind::Channel, &["news", "news"]);
    subscribe(&mut first, SubscriptionKind::Pattern, &["n*"]);
    subscribe(&mut second, SubscriptionKind::Pattern, &["n*", "?ews", "x"]);
    subscribe(&mut second, SubscriptionKind::Shard, &["news"]);
    assert_eq!(
        (first.count(SubscriptionKind::Channel), first.count(SubscriptionKind::Shard)),
        (2, 0)
    );
    assert_eq!(
        (second.count(SubscriptionKind::Channel), second.count(SubscriptionKind::Shard)),
        (3, 1)
    );
    assert_eq!(pubsub.publish(b"news", b"hi", &limits(), 1), 4);
    assert_eq!(
        sent(&one),
        "*3 $7 message $4 news $2 hi *4 $8 pmessage $2 n* $4 news $2 hi ",
        "a channel comes before patterns"
    );
    let of_two = sent(&two);
    assert!(of_two.contains(">4 $8 pmessage $2 n* $4 news $2 hi "), "{of_two}");
    assert!(of_two.contains(">4 $8 pmessage $4 ?ews $4 news $2 hi "), "{of_two}");
    assert_eq!(pubsub.publish_to_shard(b"news", b"hi", &limits(), 1), 1);
    assert_eq!((sent(&one), sent(&two)), ("".into(), ">3 $8 smessage $4 news $2 hi ".into()));
    assert_eq!(pubsub.publish(b"other", b"hi", &limits(), 1), 0);
    assert_eq!(pubsub.publish_to_shard(b"other", b"hi", &limits(), 1), 0);
}

#[test]
fn a_pattern_counts_from_its_subscription_on_until_its_end() {
    let pubsub = Arc::new(PubSub::new(1, ROOM));
    let one = client(1);
    let mut first = Subscriptions::new(&pubsub, &one);
    assert_eq!(pubsub.publish(b"a", b"1", &limits(), 1), 0);
    subscribe(&mut first, SubscriptionKind::Pattern, &["a"]);
    assert_eq!(pubsub.publish(b"a", b"2", &limits(), 1), 1);
    first.remove(SubscriptionKind::Pattern, b"a");
    assert_eq!(pubsub.publish(b"a", b"3", &limits(), 1), 0);
    assert!(!one.is(crate::clients::ClientState::PUBSUB));
}

#[test]
fn dropped_subscriptions_leave_nothing() {
    let pubsub = Arc::new(PubSub::new(1, ROOM));
    let (one, two) = (client(1), client(2));
    let mut first = Subscriptions::new(&pubsub, &one);
    let mut second = Subscriptions::new(&pubsub, &two);
    for kind in SubscriptionKind::ALL {
        subscribe(&mut first, kind, &["a", "b"]);
        subscribe(&mut second, kind, &["b", "c"]);
    }
    drop(first);
    for kind in SubscriptionKind::ALL {
        let mut names = pubsub.names(kind);
        names.sort();
        assert_eq!(names, ["b", "c"]);
        assert_eq!((pubsub.listeners(kind, b"a"), pubsub.listeners(kind, b"b")), (0, 1));
        assert_eq!(one.subscriptions[kind as usize].load(Ordering::Relaxed), 0);
    }
    assert!(!one.is(crate::clients::ClientState::PUBSUB));
    assert_eq!(Arc::strong_count(&one), 1);
    drop(second);
    assert!(SubscriptionKind::ALL.iter().all(|&kind| pubsub.count(kind) == 0));
    assert_eq!(pubsub.bytes.load(Ordering::Relaxed), 0);
}

#[test]
fn subscriptions_take_no_more_memory_than_they_may() {
    let pubsub = Arc::new(PubSub::new(1, 2 * (ENTRY + 1)));
    let one = client(1);
    let mut first = Subscriptions::new(&pubsub, &one);
    subscribe(&mut first, SubscriptionKind::Channel, &["a"]);
    // An existing subscription takes memory only for the moment.
    subscribe(&mut first, SubscriptionKind::Channel, &["a"]);
    assert!(!pubsub.reserve([&b"b"[..], b"c"].into_iter()));
    subscribe(&mut first, SubscriptionKind::Pattern, &["b"]);
    assert!(!pubsub.reserve([&b"c"[..]].into_iter()));
    first.remove(SubscriptionKind::Channel, b"a");
    assert!(pubsub.reserve([&b"c"[..]].into_iter()));
}

#[test]
fn all_hear_a_channel_in_the_same_order() {
    let pubsub = Arc::new(PubSub::new(1, ROOM));
    let clients: Vec<_> = (1..=4).map(client).collect();
    let mut all: Vec<_> = clients.iter().map(|c| Subscriptions::new(&pubsub, c)).collect();
    subscribe(&mut all[0], SubscriptionKind::Channel, &["ch"]);
    subscribe(&mut all[1], SubscriptionKind::Channel, &["ch"]);
    subscribe(&mut all[2], SubscriptionKind::Pattern, &["c*"]);
    subscribe(&mut all[3], SubscriptionKind::Pattern, &["*h"]);
    std::thread::scope(|scope| {
        for who in 0..4 {
            let pubsub = &pubsub;
            scope.spawn(move || {
                for n in 0..200 {
                    let text = format!("{who}:{n:03}");
                    assert_eq!(pubsub.publish(b"ch", text.as_bytes(), &limits(), 1), 4);
                }
            });
        }
    });
    let payloads = |client: &Client| -> Vec<String> {
        let words = sent(client);
        words.split(' ').filter(|word| word.contains(':')).map(ToOwned::to_owned).collect()
    };
    let first = payloads(&clients[0]);
    assert_eq!(first.len(), 800);
    assert!(clients[1..].iter().all(|client| payloads(client) == first));
}

#[test]
fn a_long_message_is_shared_and_a_slow_reader_closed() {
    let pubsub = Arc::new(PubSub::new(1, ROOM));
    let (one, two) = (client(1), client(2));
    let mut first = Subscriptions::new(&pubsub, &one);
    let mut second = Subscriptions::new(&pubsub, &two);
    subscribe(&mut first, SubscriptionKind::Channel, &["ch"]);
    subscribe(&mut second, SubscriptionKind::Channel, &["ch"]);
    let pubsub_limit = OutputBufferLimit { hard_bytes: 25_000, soft_bytes: 0, soft_seconds: 0 };
    let limits = OutputBufferLimits { pubsub: pubsub_limit, ..limits() };
    assert_eq!(pubsub.publish(b"ch", &[b'x'; 10_000], &limits, 1), 2);
    let (of_one, of_two) = (one.outbox.take(), two.outbox.take());
    assert_eq!(of_one.shared.as_ptr(), of_two.shared.as_ptr());
    one.outbox.written(of_one);
    assert_eq!(pubsub.publish(b"ch", &[b'x'; 10_000], &limits, 1), 2);
    assert!(!two.is_killed());
    assert_eq!(pubsub.publish(b"ch", &[b'x'; 10_000], &limits, 1), 2);
    assert!(!one.is_killed() && two.is_killed() && two.is_too_slow());
}

#[tokio::test]
async fn a_waiting_connection_is_woken() {
    let pubsub = Arc::new(PubSub::new(1, ROOM));
    let one = client(1);
    let mut first = Subscriptions::new(&pubsub, &one);
    subscribe(&mut first, SubscriptionKind::Channel, &["ch"]);
    let heard = Arc::new(AtomicU64::new(0));
    let (listener, count) = (one.clone(), heard.clone());
    let task = tokio::spawn(async move {
        while count.load(Ordering::Relaxed) < 3 {
            poll_fn(|cx| match listener.outbox.poll_ready(cx) {
                Poll::Ready(()) => Poll::Ready(()),
                Poll::Pending => Poll::Pending,
            })
            .await;
            listener.outbox.written(listener.outbox.take());
            count.fetch_add(1, Ordering::Relaxed);
        }
    });
    let running = pubsub.clone();
    let wakes = tokio::spawn(async move { running.run_wakes(0).await });
    for n in 1..=3 {
        assert_eq!(pubsub.publish(b"ch", b"hi", &limits(), 1), 1);
        pubsub.ring();
        let all = async {
            while heard.load(Ordering::Relaxed) < n {
                tokio::task::yield_now().await;
            }
        };
        assert!(tokio::time::timeout(Duration::from_secs(10), all).await.is_ok());
    }
    assert!(task.await.is_ok());
    wakes.abort();
}
