"""upstash-redis, the Python client of Upstash's REST interface: upstash.py URL TOKEN."""

import sys

from upstash_redis import Redis

redis = Redis(url=sys.argv[1], token=sys.argv[2], allow_telemetry=False)
assert redis.flushdb()
assert redis.set("k", "v", ex=100) is True and redis.get("k") == "v" and redis.ttl("k") > 90
assert redis.get("none") is None
assert redis.hset("h", values={"f": "1", "g": "two"}) == 2 and redis.hgetall("h") == {"f": "1", "g": "two"}
assert redis.rpush("l", "a", "b") == 2 and redis.lrange("l", 0, -1) == ["a", "b"]
assert redis.zadd("z", {"m": 1.5}) == 1 and redis.zrange("z", 0, -1, withscores=True) == [("m", 1.5)]
assert redis.eval("return redis.call('GET', KEYS[1])", keys=["k"]) == "v"
pipe = redis.pipeline()
pipe.set("p", 1)
pipe.incr("p")
assert pipe.exec() == [True, 2]
multi = redis.multi()
multi.set("m", 5)
multi.incr("m")
assert multi.exec() == [True, 6]
try:
    redis.incr("k")
except Exception as error:
    assert "not an integer" in str(error), error
else:
    raise AssertionError("INCR of a string that is no number")
try:
    Redis(url=sys.argv[1], token="wrong", rest_retries=0, allow_telemetry=False).get("k")
except Exception as error:
    assert "WRONGPASS" in str(error), error
else:
    raise AssertionError("a wrong token")
