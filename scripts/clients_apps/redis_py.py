"""redis-py's cluster client, or valkey-py's: redis_py.py MODULE PORT [PASSWORD [CA]]. Prints `ok`."""

import importlib
import sys
import threading
import time

module, port = importlib.import_module(sys.argv[1]), int(sys.argv[2])
password = sys.argv[3] if len(sys.argv) > 3 and sys.argv[3] else None
Cluster = getattr(module.cluster, "RedisCluster", None) or module.cluster.ValkeyCluster
options = {"host": "127.0.0.1", "port": port, "decode_responses": True, "password": password}
if len(sys.argv) > 4:
    options.update(ssl=True, ssl_ca_certs=sys.argv[4], ssl_check_hostname=False)


def raises(text, call, *args, **kwargs):
    try:
        call(*args, **kwargs)
    except Exception as error:
        assert text in str(error), error
    else:
        raise AssertionError(f"no error with {text}")


cluster = Cluster(**options)
cluster.flushall()
assert [node.server_type for node in cluster.get_nodes()] == ["primary"], cluster.get_nodes()
for n in range(1000):
    assert cluster.set(f"key:{n}", n)
assert all(cluster.get(f"key:{n}") == str(n) for n in range(1000))
assert cluster.dbsize() == 1000
assert cluster.mset_nonatomic({f"many:{n}": n for n in range(100)})
assert cluster.mget_nonatomic([f"many:{n}" for n in range(100)]) == [str(n) for n in range(100)]
assert cluster.mset({"{t}a": 1, "{t}b": 2}) and cluster.mget("{t}a", "{t}b") == ["1", "2"]
raises("same slot", cluster.execute_command, "MGET", "a", "b", target_nodes=cluster.get_random_node())
assert len(list(cluster.scan_iter("key:*", count=100))) == 1000
assert cluster.cluster_keyslot("key:1") == cluster.keyslot("key:1")
assert cluster.cluster_countkeysinslot(cluster.keyslot("{t}")) == 2
assert cluster.cluster_info(target_nodes=Cluster.RANDOM)["cluster_state"] == "ok"
assert len(cluster.cluster_nodes()) == 1 and cluster.cluster_shards() and cluster.cluster_links(cluster.get_random_node()) == []

with cluster.pipeline() as pipe:
    for n in range(200):
        pipe.incr(f"count:{n}")
    assert pipe.execute() == [1] * 200
if sys.argv[1] == "redis":  # valkey-py has no transactions on a cluster.
    with cluster.pipeline(transaction=True) as pipe:
        pipe.set("{m}a", 5)
        pipe.incr("{m}a")
        assert pipe.execute()[1] == 6
else:
    cluster.set("{m}a", 6)

script = "return {KEYS[1], redis.call('INCRBY', KEYS[1], ARGV[1])}"
assert cluster.eval(script, 1, "{m}a", 4) == ["{m}a", 10]
raises("same slot", cluster.execute_command, "EVAL", script, 2, "a", "b", 1, target_nodes=cluster.get_random_node())
# The client computes the slot of a script from its keys only.
assert cluster.evalsha(cluster.script_load(script), 1, "{m}a", 1) == ["{m}a", 11]

heard = cluster.pubsub()
heard.subscribe("news")
assert heard.get_message(timeout=5)["type"] == "subscribe"
cluster.publish("news", "one")
assert heard.get_message(timeout=5)["data"] == "one"
sharded = cluster.pubsub()
sharded.ssubscribe("shard")
assert sharded.get_sharded_message(timeout=5)["type"] == "ssubscribe"
cluster.spublish("shard", "two")
assert sharded.get_sharded_message(timeout=5)["data"] == "two"

later = threading.Timer(0.3, cluster.rpush, ("{q}list", "job"))
later.start()
assert list(cluster.blpop(["{q}list"], timeout=5)) == ["{q}list", "job"]
assert cluster.xadd("stream", {"f": "v"}) and cluster.xlen("stream") == 1
with cluster.lock("lock", timeout=5):
    assert cluster.exists("lock") == 1

readers = Cluster(read_from_replicas=True, **options)
assert readers.get("key:7") == "7"
pinned = cluster.get_redis_connection(cluster.get_random_node()) if hasattr(cluster, "get_redis_connection") else None
if pinned is not None:
    assert pinned.execute_command("ASKING") in (True, "OK", b"OK")

# The script that started this kills and restarts the server when it reads this line.
print("restart", flush=True)
deadline = time.monotonic() + 60
while True:
    try:
        if cluster.get("key:999") == "999" and cluster.set("after", 1):
            break
    except Exception:
        assert time.monotonic() < deadline
        time.sleep(0.1)
print("ok", flush=True)
