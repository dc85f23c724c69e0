// Jedis: JedisClient.java (plain | cluster) PORT [PASSWORD [CA]]. Prints `ok`.

import java.io.FileInputStream;
import java.security.KeyStore;
import java.security.cert.CertificateFactory;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import javax.net.ssl.SSLContext;
import javax.net.ssl.TrustManagerFactory;
import redis.clients.jedis.AbstractTransaction;
import redis.clients.jedis.ConnectionPoolConfig;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.JedisCluster;
import redis.clients.jedis.JedisPubSub;
import redis.clients.jedis.JedisShardedPubSub;
import redis.clients.jedis.RedisClient;
import redis.clients.jedis.Response;
import redis.clients.jedis.StreamEntryID;
import redis.clients.jedis.Transaction;
import redis.clients.jedis.UnifiedJedis;
import redis.clients.jedis.util.JedisClusterCRC16;

class JedisClient {
    static final int KEYS = 1000;
    static final long PATIENCE_MS = 60_000;

    static void check(boolean is, Object found) {
        if (!is) {
            throw new AssertionError(String.valueOf(found));
        }
    }

    static void refused(String text, Runnable call) {
        try {
            call.run();
        } catch (RuntimeException error) {
            check(String.valueOf(error.getMessage()).contains(text), error);
            return;
        }
        check(false, "no error with " + text);
    }

    static SSLContext trusting(String ca) throws Exception {
        KeyStore store = KeyStore.getInstance(KeyStore.getDefaultType());
        store.load(null);
        try (FileInputStream file = new FileInputStream(ca)) {
            store.setCertificateEntry("ca", CertificateFactory.getInstance("X.509").generateCertificate(file));
        }
        TrustManagerFactory trust = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
        trust.init(store);
        SSLContext context = SSLContext.getInstance("TLS");
        context.init(null, trust.getTrustManagers(), null);
        return context;
    }

    public static void main(String[] args) throws Exception {
        HostAndPort address = new HostAndPort("127.0.0.1", Integer.parseInt(args[1]));
        DefaultJedisClientConfig.Builder config = DefaultJedisClientConfig.builder().timeoutMillis(10_000);
        if (args.length > 2) {
            config.password(args[2]);
        }
        if (args.length > 3) {
            config.ssl(true).sslSocketFactory(trusting(args[3]).getSocketFactory());
        }
        if (args[0].equals("plain")) {
            try (RedisClient redis = RedisClient.builder().hostAndPort(address).clientConfig(config.build()).build()) {
                redis.flushAll();
                common(redis);
                try (AbstractTransaction multi = redis.multi()) {
                    transact(multi);
                }
                afterRestart(redis);
            }
            return;
        }
        // Few attempts with short pauses: what fails is tried again below.
        try (JedisCluster cluster = new JedisCluster(Collections.singleton(address), config.build(), 5, new ConnectionPoolConfig())) {
            for (String node : cluster.getClusterNodes().keySet()) {
                emptied(HostAndPort.from(node), config.build());
            }
            common(cluster);
            refused("slot", () -> cluster.mget("a", "b"));
            try (Transaction multi = new Transaction(cluster.getConnectionFromSlot(JedisClusterCRC16.getSlot("{m}a")))) {
                transact(multi);
            }
            sharded(cluster);
            afterRestart(cluster);
        }
    }

    /** Empties an owner; a replica refuses that. */
    static void emptied(HostAndPort node, DefaultJedisClientConfig config) {
        try (Jedis one = new Jedis(node, config)) {
            if (one.role().get(0).equals("master")) {
                one.flushAll();
            }
        }
    }

    static void common(UnifiedJedis redis) throws Exception {
        for (int n = 0; n < KEYS; n++) {
            check(redis.set("key:" + n, "" + n).equals("OK"), n);
        }
        for (int n = 0; n < KEYS; n++) {
            check(redis.get("key:" + n).equals("" + n), n);
        }
        check(redis.mset("{t}a", "1", "{t}b", "2").equals("OK"), "MSET");
        check(redis.mget("{t}a", "{t}b").equals(List.of("1", "2")), "MGET");
        refused("WRONGTYPE", () -> redis.lpush("key:1", "x"));
        // Jedis asks every server of a cluster, and a replica has the keys of others.
        Set<String> found = new HashSet<>();
        for (var pages = redis.scanIteration(200, "key:*"); !pages.isIterationCompleted();) {
            found.addAll(pages.nextBatchList());
        }
        check(found.size() == KEYS, found.size());

        List<Response<Long>> counts = new ArrayList<>();
        try (var pipe = redis.pipelined()) {
            for (int n = 0; n < 200; n++) {
                counts.add(pipe.incr("count:" + n));
            }
            pipe.sync();
        }
        check(counts.stream().allMatch(count -> count.get() == 1), "pipeline");

        check(redis.hset("hash", Map.of("f", "v", "g", "w")) == 2 && redis.hgetAll("hash").get("g").equals("w"), "hash");
        check(redis.zadd("sorted", 1.5, "m") == 1 && redis.zscore("sorted", "m") == 1.5, "sorted set");
        check(redis.xadd("stream", StreamEntryID.NEW_ENTRY, Map.of("f", "v")) != null && redis.xlen("stream") == 1, "stream");

        redis.set("{m}a", "6");
        String script = "return redis.call('INCRBY', KEYS[1], ARGV[1])";
        check(redis.eval(script, 1, "{m}a", "4").equals(10L), "EVAL");
        String digest = redis.scriptLoad(script, "{m}a");
        check(redis.evalsha(digest, 1, "{m}a", "1").equals(11L), "EVALSHA");

        CompletableFuture<String> heard = new CompletableFuture<>();
        CountDownLatch subscribed = new CountDownLatch(1);
        JedisPubSub listener = new JedisPubSub() {
            @Override
            public void onSubscribe(String channel, int count) {
                subscribed.countDown();
            }

            @Override
            public void onMessage(String channel, String text) {
                heard.complete(text);
                unsubscribe();
            }
        };
        Thread hearing = new Thread(() -> redis.subscribe(listener, "news"));
        hearing.start();
        check(subscribed.await(10, TimeUnit.SECONDS), "subscribed");
        redis.publish("news", "one");
        check(heard.get(10, TimeUnit.SECONDS).equals("one"), heard);
        hearing.join();

        CompletableFuture<List<String>> taken = CompletableFuture.supplyAsync(() -> redis.blpop(10, "{q}list"));
        Thread.sleep(300);
        redis.rpush("{q}list", "job");
        check(taken.get(10, TimeUnit.SECONDS).equals(List.of("{q}list", "job")), "BLPOP");
    }

    static void transact(AbstractTransaction multi) {
        multi.set("{m}b", "5");
        Response<Long> count = multi.incr("{m}b");
        check(multi.exec().equals(List.of("OK", 6L)) && count.get() == 6, "EXEC");
    }

    static void sharded(JedisCluster cluster) throws Exception {
        CompletableFuture<String> heard = new CompletableFuture<>();
        CountDownLatch subscribed = new CountDownLatch(1);
        JedisShardedPubSub listener = new JedisShardedPubSub() {
            @Override
            public void onSSubscribe(String channel, int count) {
                subscribed.countDown();
            }

            @Override
            public void onSMessage(String channel, String text) {
                heard.complete(text);
                sunsubscribe();
            }
        };
        Thread hearing = new Thread(() -> cluster.ssubscribe(listener, "shard"));
        hearing.start();
        check(subscribed.await(10, TimeUnit.SECONDS), "subscribed to a shard channel");
        cluster.spublish("shard", "two");
        check(heard.get(10, TimeUnit.SECONDS).equals("two"), heard);
        hearing.join();
    }

    /** Goes on while the script that started this kills a server, which it does when it reads the line. */
    static void afterRestart(UnifiedJedis redis) throws Exception {
        System.out.println("restart");
        long deadline = System.currentTimeMillis() + PATIENCE_MS;
        for (int n = 0; n < KEYS;) {
            try {
                check(redis.get("key:" + n).equals("" + n), n);
                redis.set("after:" + n, "" + n);
                n++;
            } catch (RuntimeException error) {
                if (System.currentTimeMillis() > deadline) {
                    throw error;
                }
                Thread.sleep(100);
            }
        }
        System.out.println("ok");
    }
}
