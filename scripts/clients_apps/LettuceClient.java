// Lettuce: LettuceClient.java (plain | cluster) PORT [PASSWORD [CA]]. Prints `ok`.

import io.lettuce.core.ClientOptions;
import io.lettuce.core.KeyValue;
import io.lettuce.core.LettuceFutures;
import io.lettuce.core.ReadFrom;
import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisFuture;
import io.lettuce.core.RedisURI;
import io.lettuce.core.ScanArgs;
import io.lettuce.core.ScanIterator;
import io.lettuce.core.ScriptOutputType;
import io.lettuce.core.SslOptions;
import io.lettuce.core.api.StatefulConnection;
import io.lettuce.core.api.sync.RedisCommands;
import io.lettuce.core.cluster.ClusterClientOptions;
import io.lettuce.core.cluster.ClusterTopologyRefreshOptions;
import io.lettuce.core.cluster.RedisClusterClient;
import io.lettuce.core.cluster.SlotHash;
import io.lettuce.core.cluster.api.StatefulRedisClusterConnection;
import io.lettuce.core.cluster.api.async.RedisClusterAsyncCommands;
import io.lettuce.core.cluster.api.sync.RedisClusterCommands;
import io.lettuce.core.cluster.models.partitions.RedisClusterNode;
import io.lettuce.core.cluster.pubsub.StatefulRedisClusterPubSubConnection;
import io.lettuce.core.pubsub.RedisPubSubAdapter;
import io.lettuce.core.pubsub.StatefulRedisPubSubConnection;
import java.io.File;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;

class LettuceClient {
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

    public static void main(String[] args) throws Exception {
        RedisURI.Builder uri = RedisURI.builder().withHost("127.0.0.1").withPort(Integer.parseInt(args[1]));
        uri.withTimeout(Duration.ofSeconds(10));
        SslOptions.Builder ssl = SslOptions.builder();
        if (args.length > 2) {
            uri.withPassword(args[2].toCharArray());
        }
        if (args.length > 3) {
            uri.withSsl(true);
            ssl.trustManager(new File(args[3]));
        }
        if (args[0].equals("plain")) {
            plain(uri.build(), ssl.build());
        } else {
            cluster(uri.build(), ssl.build());
        }
        System.out.println("ok");
        System.exit(0);
    }

    static void plain(RedisURI uri, SslOptions ssl) throws Exception {
        RedisClient client = RedisClient.create(uri);
        client.setOptions(ClientOptions.builder().sslOptions(ssl).build());
        var connection = client.connect();
        connection.sync().flushall();
        common(connection.sync(), connection.async(), connection);
        transact(connection.sync());
        hear(client.connectPubSub(), connection.sync(), false);
        var waiting = client.connect().async().blpop(10, "{q}list");
        serve(waiting, connection.sync());
        afterRestart(connection.sync());
    }

    static void cluster(RedisURI uri, SslOptions ssl) throws Exception {
        RedisClusterClient client = RedisClusterClient.create(uri);
        ClusterTopologyRefreshOptions refresh = ClusterTopologyRefreshOptions.builder()
            .enableAllAdaptiveRefreshTriggers().adaptiveRefreshTriggersTimeout(Duration.ofMillis(500)).build();
        client.setOptions(ClusterClientOptions.builder().sslOptions(ssl).topologyRefreshOptions(refresh).maxRedirects(10).build());
        StatefulRedisClusterConnection<String, String> connection = client.connect();
        connection.sync().upstream().commands().flushall();
        common(connection.sync(), connection.async(), connection);
        refused("CROSSSLOT", () -> connection.sync().eval("return 1", ScriptOutputType.INTEGER, "a", "b"));
        RedisClusterNode owner = client.getPartitions().getPartitionBySlot(SlotHash.getSlot("{m}b"));
        transact(connection.getConnection(owner.getNodeId()).sync());
        StatefulRedisClusterPubSubConnection<String, String> hearing = client.connectPubSub();
        hear(hearing, connection.sync(), true);
        serve(client.connect().async().blpop(10, "{q}list"), connection.sync());

        StatefulRedisClusterConnection<String, String> readers = client.connect();
        readers.setReadFrom(ReadFrom.REPLICA_PREFERRED);
        // A replica may be behind.
        long deadline = System.currentTimeMillis() + PATIENCE_MS;
        while (!"7".equals(readers.sync().get("key:7"))) {
            check(System.currentTimeMillis() < deadline, "a replica has no key:7");
            Thread.sleep(50);
        }
        // Lettuce knows replicas from CLUSTER NODES, which shows them with one owner; the others' keys come from these.
        for (RedisClusterNode replica : client.getPartitions()) {
            if (replica.getRole().isReplica()) {
                readers.setReadFrom(ReadFrom.REPLICA);
                int read = 0;
                for (int n = 0; n < KEYS; n++) {
                    RedisClusterNode its = client.getPartitions().getPartitionBySlot(SlotHash.getSlot("key:" + n));
                    if (its.getNodeId().equals(replica.getSlaveOf())) {
                        while (!("" + n).equals(readers.sync().get("key:" + n))) {
                            check(System.currentTimeMillis() < deadline, "a replica has no key:" + n);
                            Thread.sleep(50);
                        }
                        read++;
                    }
                }
                check(read > 0, "no key to read from a replica");
            }
        }
        afterRestart(connection.sync());
    }

    static void common(RedisClusterCommands<String, String> redis, RedisClusterAsyncCommands<String, String> async,
            StatefulConnection<String, String> connection) {
        for (int n = 0; n < KEYS; n++) {
            check(redis.set("key:" + n, "" + n).equals("OK"), n);
        }
        for (int n = 0; n < KEYS; n++) {
            check(redis.get("key:" + n).equals("" + n), n);
        }
        check(redis.mset(Map.of("a", "1", "b", "2", "c", "3")).equals("OK"), "MSET");
        check(redis.mget("a", "c").equals(List.of(KeyValue.just("a", "1"), KeyValue.just("c", "3"))), "MGET");
        refused("WRONGTYPE", () -> redis.lpush("key:1", "x"));
        long found = ScanIterator.scan(redis, ScanArgs.Builder.limit(200).match("key:*")).stream().count();
        check(found == KEYS, found);

        connection.setAutoFlushCommands(false);
        List<RedisFuture<Long>> counts = new ArrayList<>();
        for (int n = 0; n < 200; n++) {
            counts.add(async.incr("count:" + n));
        }
        connection.flushCommands();
        connection.setAutoFlushCommands(true);
        check(LettuceFutures.awaitAll(10, TimeUnit.SECONDS, counts.toArray(new RedisFuture[0])), "pipeline");
        check(counts.stream().allMatch(count -> count.toCompletableFuture().join() == 1), "pipeline");

        check(redis.hset("hash", Map.of("f", "v", "g", "w")) == 2 && redis.hgetall("hash").get("g").equals("w"), "hash");
        check(redis.zadd("sorted", 1.5, "m") == 1 && redis.zscore("sorted", "m") == 1.5, "sorted set");
        check(redis.xadd("stream", Map.of("f", "v")) != null && redis.xlen("stream") == 1, "stream");

        redis.set("{m}a", "6");
        String script = "return redis.call('INCRBY', KEYS[1], ARGV[1])";
        check(redis.eval(script, ScriptOutputType.INTEGER, new String[] {"{m}a"}, "4").equals(10L), "EVAL");
        check(redis.evalsha(redis.scriptLoad(script), ScriptOutputType.INTEGER, new String[] {"{m}a"}, "1").equals(11L), "EVALSHA");
    }

    static void transact(RedisCommands<String, String> redis) {
        redis.multi();
        redis.set("{m}b", "5");
        redis.incr("{m}b");
        var replies = redis.exec();
        check(!replies.wasDiscarded() && replies.get(0).equals("OK") && replies.get(1).equals(6L), replies);
    }

    static void hear(StatefulRedisPubSubConnection<String, String> hearing, RedisClusterCommands<String, String> redis,
            boolean sharded) throws Exception {
        CompletableFuture<String> news = new CompletableFuture<>(), shard = new CompletableFuture<>();
        hearing.addListener(new RedisPubSubAdapter<String, String>() {
            @Override
            public void message(String channel, String text) {
                news.complete(text);
            }

            @Override
            public void smessage(String channel, String text) {
                shard.complete(text);
            }
        });
        hearing.sync().subscribe("news");
        redis.publish("news", "one");
        check(news.get(10, TimeUnit.SECONDS).equals("one"), news);
        if (sharded) {
            hearing.sync().ssubscribe("shard");
            redis.spublish("shard", "two");
            check(shard.get(10, TimeUnit.SECONDS).equals("two"), shard);
        }
    }

    static void serve(RedisFuture<KeyValue<String, String>> waiting, RedisClusterCommands<String, String> redis) throws Exception {
        Thread.sleep(300);
        redis.rpush("{q}list", "job");
        check(waiting.get(10, TimeUnit.SECONDS).equals(KeyValue.just("{q}list", "job")), "BLPOP");
    }

    /** Goes on while the script that started this kills a server, which it does when it reads the line. */
    static void afterRestart(RedisClusterCommands<String, String> redis) throws Exception {
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
    }
}
