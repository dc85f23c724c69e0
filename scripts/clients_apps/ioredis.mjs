// ioredis's cluster client: ioredis.mjs PORT [PASSWORD [CA]]. Prints `ok`.
import { createRequire } from "node:module";
import assert from "node:assert";
import { readFileSync } from "node:fs";
const { Redis, Cluster } = createRequire(process.cwd() + "/")("ioredis");
const [port, password, ca] = process.argv.slice(2);
const tls = ca ? { ca: readFileSync(ca), checkServerIdentity: () => undefined } : undefined;
const redisOptions = { password: password || undefined, tls };
const cluster = new Cluster([{ host: "127.0.0.1", port: Number(port) }], { redisOptions, clusterRetryStrategy: () => 100 });
cluster.on("error", () => {});

await cluster.flushall();
assert.equal(cluster.nodes("master").length, 1);
const keys = Array.from({ length: 1000 }, (_, n) => `key:${n}`);
await Promise.all(keys.map((key, n) => cluster.set(key, n)));
assert.deepEqual(await Promise.all(keys.map((key) => cluster.get(key))), keys.map((_, n) => String(n)));
assert.deepEqual(await cluster.mset("{t}a", 1, "{t}b", 2), "OK");
await assert.rejects(cluster.mget("a", "b"), /CROSSSLOT|same slot/i);
await assert.rejects(cluster.nodes("master")[0].call("MGET", "a", "b"), /CROSSSLOT/);
assert.deepEqual(await cluster.multi().set("{m}a", 5).incr("{m}a").exec(), [[null, "OK"], [null, 6]]);
const piped = cluster.pipeline();
for (let n = 0; n < 100; n++) piped.incr(`{p}count:${n}`);
assert.deepEqual((await piped.exec()).map(([error, reply]) => [error, reply]), Array(100).fill([null, 1]));
cluster.defineCommand("addTo", { numberOfKeys: 1, lua: "return redis.call('INCRBY', KEYS[1], ARGV[1])" });
assert.equal(await cluster.addTo("{m}a", 4), 10);

const found = new Set();
for await (const page of cluster.nodes("master")[0].scanStream({ match: "key:*", count: 200 })) page.forEach((key) => found.add(key));
assert.equal(found.size, 1000);

const heard = cluster.duplicate();
const message = new Promise((resolve) => heard.on("message", (_, text) => resolve(text)));
await heard.subscribe("news");
await cluster.publish("news", "one");
assert.equal(await message, "one");
const shards = new Cluster([{ host: "127.0.0.1", port: Number(port) }], { redisOptions, shardedSubscribers: true });
const sharded = new Promise((resolve) => shards.on("smessage", (_, text) => resolve(text)));
await new Promise((resolve) => shards.once("ready", resolve));
await shards.ssubscribe("shard");
await cluster.spublish("shard", "two");
assert.equal(await sharded, "two");

setTimeout(() => cluster.rpush("{q}list", "job"), 200);
const waiting = cluster.duplicate();
assert.deepEqual(await waiting.blpop("{q}list", 5), ["{q}list", "job"]);
const readers = new Cluster([{ host: "127.0.0.1", port: Number(port) }], { redisOptions, scaleReads: "slave" });
assert.equal(await readers.get("key:7"), "7");
readers.disconnect();
shards.disconnect();

console.log("restart");
for (const end = Date.now() + 60000; ; ) {
  try {
    assert.equal(await cluster.get("key:999"), "999");
    await cluster.set("after", 1);
    break;
  } catch (error) {
    if (Date.now() > end) throw error;
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
}
console.log("ok");
process.exit(0);
