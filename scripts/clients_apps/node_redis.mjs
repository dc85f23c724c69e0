// node-redis's cluster client: node_redis.mjs PORT [PASSWORD [CA]]. Prints `ok`.
import { createRequire } from "node:module";
import assert from "node:assert";
import { readFileSync } from "node:fs";
const { createCluster } = createRequire(process.cwd() + "/")("redis");
const [port, password, ca] = process.argv.slice(2);
const socket = ca ? { tls: true, ca: readFileSync(ca), checkServerIdentity: () => undefined } : undefined;
const options = {
  rootNodes: [{ url: `${ca ? "rediss" : "redis"}://127.0.0.1:${port}` }],
  defaults: { password: password || undefined, socket },
};
const cluster = await createCluster(options).on("error", () => {}).connect();

await cluster.masters[0].client.then?.((client) => client.flushAll());
assert.equal(cluster.masters.length, 1);
const keys = Array.from({ length: 1000 }, (_, n) => `key:${n}`);
await Promise.all(keys.map((key, n) => cluster.set(key, String(n))));
assert.deepEqual(await Promise.all(keys.map((key) => cluster.get(key))), keys.map((_, n) => String(n)));
await cluster.mSet({ "{t}a": "1", "{t}b": "2" });
assert.deepEqual(await cluster.mGet(["{t}a", "{t}b"]), ["1", "2"]);
await assert.rejects(cluster.sInter(["a", "b"]), /CROSSSLOT/);
assert.deepEqual(await cluster.multi().set("{m}a", "5").incr("{m}a").exec(), ["OK", 6]);
assert.equal(await cluster.eval("return redis.call('INCRBY', KEYS[1], ARGV[1])", { keys: ["{m}a"], arguments: ["4"] }), 10);
assert.deepEqual(await cluster.hSet("hash", { a: "1", b: "2" }), 2);
assert.deepEqual({ ...(await cluster.hGetAll("hash")) }, { a: "1", b: "2" });

let found = 0;
for (const master of cluster.masters) {
  const client = await cluster.nodeClient(master);
  for await (const page of client.scanIterator({ MATCH: "key:*", COUNT: 200 })) found += page.length;
}
assert.equal(found, 1000);

const heard = new Promise((resolve) => void cluster.subscribe("news", resolve).then(() => cluster.publish("news", "one")));
assert.equal(await heard, "one");
const sharded = new Promise((resolve) => void cluster.sSubscribe("shard", resolve).then(() => cluster.sPublish("shard", "two")));
assert.equal(await sharded, "two");

const readers = await createCluster({ ...options, useReplicas: true, minimizeConnections: true }).on("error", () => {}).connect();
assert.equal(await readers.get("key:7"), "7");
readers.destroy();

console.log("restart");
for (const end = Date.now() + 60000; ; ) {
  try {
    assert.equal(await cluster.get("key:999"), "999");
    await cluster.set("after", "1");
    break;
  } catch (error) {
    if (Date.now() > end) throw error;
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
}
console.log("ok");
process.exit(0);
