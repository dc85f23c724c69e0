// The dashboard: figures from /metrics and /status each two seconds, tables from commands each ten.
// Whatever comes from the server is written as text, never as markup.

const PERIOD_MS = 2000;
const SLOW_EVERY = 5;
const HISTORY = 150;
const PAGE = 100;
const SHOWN_BYTES = 4096;

const $ = (id) => document.getElementById(id);
const text = (id, value) => { $(id).textContent = value; };
const make = (name, content, kind) => {
  const element = document.createElement(name);
  if (content !== undefined) element.textContent = content;
  if (kind) element.className = kind;
  return element;
};

let credentials = sessionStorage.getItem("flagstone");
let before = null;
let rounds = 0;
let status = null;
const history = [];

class NotAllowed extends Error {}

// Asks the server; `commands`: run as a pipeline.
async function ask(path, commands) {
  const headers = {};
  if (credentials) headers.Authorization = "Basic " + credentials;
  const options = { headers, cache: "no-store", credentials: "omit" };
  if (commands) {
    headers["Content-Type"] = "application/json";
    headers["Upstash-Encoding"] = "base64";
    options.method = "POST";
    options.body = JSON.stringify(commands);
  }
  const answer = await fetch(path, options);
  if (answer.status === 401) throw new NotAllowed((await answer.json()).error);
  return answer;
}

async function run(commands) {
  const answer = await ask("/pipeline", commands);
  const replies = await answer.json();
  if (!Array.isArray(replies)) throw new Error(replies.error);
  return replies.map((reply) => ("error" in reply ? { error: reply.error } : { result: decoded(reply.result) }));
}

// Strings come in Base64, so that bytes that are no text survive.
function decoded(value) {
  if (Array.isArray(value)) return value.map(decoded);
  if (typeof value !== "string" || value === "OK") return value;
  const bytes = Uint8Array.from(atob(value), (c) => c.charCodeAt(0));
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  } catch {
    return { bytes };
  }
}

// Bytes that are no text are shown as redis-cli does.
function shown(value) {
  if (value === null || value === undefined) return "";
  if (value.bytes) {
    let out = "";
    for (const byte of value.bytes) {
      out += byte >= 32 && byte < 127 ? String.fromCharCode(byte) : "\\x" + byte.toString(16).padStart(2, "0");
    }
    return out;
  }
  return String(value);
}

// Figures of a text of metrics: name → [{labels, value}].
function parse(body) {
  const figures = new Map();
  for (const line of body.split("\n")) {
    const found = /^([a-z0-9_]+)(?:\{(.*)\})? ([^ ]+)$/.exec(line);
    if (!found || line.startsWith("#")) continue;
    const labels = {};
    for (const [, name, value] of (found[2] || "").matchAll(/([a-z]+)="((?:[^"\\]|\\.)*)"/g)) {
      labels[name] = value.replace(/\\(.)/g, (_, c) => (c === "n" ? "\n" : c));
    }
    const samples = figures.get(found[1]) || [];
    samples.push({ labels, value: Number(found[3]) });
    figures.set(found[1], samples);
  }
  return figures;
}

class Figures {
  constructor(figures, at) { this.figures = figures; this.at = at; }
  all(name) { return this.figures.get("flagstone_" + name) || []; }
  sum(name, wanted) {
    const fits = (s) => !wanted || Object.entries(wanted).every(([k, v]) => s.labels[k] === v);
    return this.all(name).filter(fits).reduce((sum, s) => sum + s.value, 0);
  }
  has(name) { return this.all(name).length > 0; }
  by(name, label) { return new Map(this.all(name).map((s) => [s.labels[label], s.value])); }
}

// Change per second since the last look; a counter that was reset counts from zero.
function rate(now, name, wanted) {
  if (!before) return 0;
  const passed = (now.at - before.at) / 1000;
  return Math.max(0, now.sum(name, wanted) - before.sum(name, wanted)) / passed;
}

const number = (n) => {
  if (n >= 1e6) return (n / 1e6).toFixed(n >= 1e7 ? 1 : 2) + " M";
  if (n >= 1e4) return (n / 1e3).toFixed(n >= 1e5 ? 0 : 1) + " k";
  return n >= 100 || Number.isInteger(n) ? Math.round(n).toLocaleString("en") : n.toFixed(1);
};
const counted = (n, name) => `${number(n)} ${name}${n === 1 ? "" : "s"}`;
const bytes = (n) => {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0;
  while (n >= 1024 && unit < units.length - 1) { n /= 1024; unit += 1; }
  return (unit === 0 || n >= 100 ? Math.round(n) : n.toFixed(1)) + " " + units[unit];
};
const duration = (s) => {
  if (s < 0.001) return "0 ms";
  if (s < 1) return Math.round(s * 1000) + " ms";
  if (s < 120) return s.toFixed(s < 10 ? 1 : 0) + " s";
  if (s < 7200) return Math.round(s / 60) + " min";
  if (s < 172800) return Math.round(s / 3600) + " h";
  return Math.round(s / 86400) + " days";
};
const micros = (s) => (s < 0.001 ? (s * 1e6).toFixed(s < 1e-5 ? 1 : 0) + " µs" : (s * 1000).toFixed(s < 0.1 ? 1 : 0) + " ms");

function facts(id, rows) {
  $(id).replaceChildren(...rows.filter(Boolean).flatMap(([name, value, kind]) => [make("dt", name), make("dd", value, kind)]));
}

function rows(id, all, empty) {
  const body = $(id).tBodies[0];
  if (all.length === 0) {
    const cell = make("td", empty, "dim");
    cell.colSpan = 9;
    const row = make("tr");
    row.append(cell);
    body.replaceChildren(row);
    return;
  }
  body.replaceChildren(...all.map((cells) => {
    const row = make("tr");
    row.append(...cells.map((cell) => {
      // Short cells stay on one line.
      if (!(cell instanceof Node)) return make("td", cell, String(cell).length <= 12 ? "short" : "");
      const td = make("td");
      td.append(cell);
      return td;
    }));
    return row;
  }));
}

// `may_be_full`: it is no trouble if all of it is used.
function bar(name, used, total, { note, may_be_full } = {}) {
  const part = total > 0 ? Math.min(1, used / total) : 0;
  const box = make("div", undefined, "bar");
  const names = make("div", undefined, "names");
  names.append(make("span", name), make("span", note || `${bytes(used)} of ${bytes(total)}`, "dim"));
  const track = make("div", undefined, "track");
  const fill = make("i", undefined, may_be_full ? "" : part > 0.95 ? "bad" : part > 0.85 ? "warn" : "");
  fill.style.width = (part * 100).toFixed(1) + "%";
  track.append(fill);
  box.append(names, track);
  return box;
}

function showState(now) {
  const accepted = status.reasons.length === 0;
  $("state").className = "state " + (accepted ? "good" : "bad");
  text("state-line", accepted ? "Writes are accepted" : "Not all writes are accepted");
  $("state-reasons").replaceChildren(...status.reasons.map((reason) => make("li", reason)));
  const free = now.sum("disk_free_bytes");
  const facts = [];
  if (now.has("disk_free_bytes")) {
    const full = now.has("disk_full_in_seconds") ? `, full in ${duration(now.sum("disk_full_in_seconds"))} at this rate` : "";
    facts.push(`${bytes(free)} of disk free${full}`);
  }
  facts.push(`oldest unsynced write ${duration(now.sum("journal_unsynced_age_seconds"))}`);
  const checkpoint = now.sum("checkpoint_time_seconds");
  facts.push(checkpoint ? `last checkpoint ${duration(Math.max(1, status.now_ms / 1000 - checkpoint))} ago` : "no checkpoint yet");
  text("state-facts", facts.join(" · "));
  text("version", status.version);
  text("clock", `up ${duration(status.now_ms / 1000 - now.sum("start_time_seconds"))}`);
  document.title = (accepted ? "" : "✗ ") + "Flagstone";
}

function showTraffic(now) {
  const ops = rate(now, "worker_commands_total");
  if (before) history.push(ops);
  if (history.length > HISTORY) history.shift();
  text("ops", number(ops));
  text("bytes-in", bytes(rate(now, "worker_received_bytes_total")));
  text("bytes-out", bytes(rate(now, "worker_sent_bytes_total")));
  const hits = rate(now, "worker_keyspace_hits_total");
  const all = hits + rate(now, "worker_keyspace_misses_total");
  text("hits", all > 0 ? Math.round((hits * 100) / all) + " %" : "–");
  const top = Math.max(10, ...history) * 1.1;
  const x = (i) => 600 - ((history.length - 1 - i) * 600) / (HISTORY - 1);
  const points = history.map((v, i) => `${x(i).toFixed(1)},${(120 - (v * 116) / top).toFixed(1)}`);
  const area = document.createElementNS("http://www.w3.org/2000/svg", "polygon");
  area.setAttribute("class", "area");
  const curve = document.createElementNS("http://www.w3.org/2000/svg", "polyline");
  curve.setAttribute("class", "curve");
  if (points.length > 1) {
    area.setAttribute("points", `${x(0).toFixed(1)},120 ${points.join(" ")} 600,120`);
    curve.setAttribute("points", points.join(" "));
  }
  $("chart").replaceChildren(area, curve);
  text("chart-top", "top " + number(Math.max(0, ...history)) + "/s");
}

// Quantile of a histogram over the time since the last look, in seconds.
function quantile(now, part) {
  const name = "command_latency_seconds_bucket";
  const counts = new Map();
  const add = (figures, sign) => {
    for (const { labels, value } of figures.all(name)) {
      const bound = labels.le === "+Inf" ? Infinity : Number(labels.le);
      counts.set(bound, (counts.get(bound) || 0) + sign * value);
    }
  };
  add(now, 1);
  if (before) add(before, -1);
  const bounds = [...counts.keys()].sort((a, b) => a - b);
  const all = counts.get(Infinity) || 0;
  if (all <= 0) return null;
  // Within a bucket the times are taken to be spread evenly.
  let [below, from] = [0, 0];
  for (const bound of bounds) {
    const upTo = counts.get(bound);
    if (upTo >= all * part && upTo > below) {
      return bound === Infinity ? from : from + ((bound - from) * (all * part - below)) / (upTo - below);
    }
    [below, from] = [upTo, bound];
  }
  return from;
}

function showCommands(now) {
  const figures = [];
  if (now.has("command_latency_seconds_bucket")) {
    for (const [name, part] of [["p50", 0.5], ["p99", 0.99], ["p99.9", 0.999]]) {
      const value = quantile(now, part);
      figures.push([value === null ? "–" : micros(value), name]);
    }
  } else {
    const calls = rate(now, "command_calls_total");
    const spent = rate(now, "command_seconds_total");
    figures.push([calls > 0 ? micros(spent / calls) : "–", "mean of all commands"]);
  }
  $("latency").replaceChildren(...figures.map(([value, name]) => {
    const box = make("div");
    box.append(make("b", value), make("span", name));
    return box;
  }));
  const all = now.all("command_calls_total").map(({ labels: { command } }) => ({
    command,
    calls: rate(now, "command_calls_total", { command }),
    seconds: rate(now, "command_seconds_total", { command }),
    failed: now.sum("command_failures_total", { command }) + now.sum("command_rejections_total", { command }),
    total: now.sum("command_calls_total", { command }),
  }));
  all.sort((a, b) => b.calls - a.calls || b.total - a.total);
  rows("commands", all.slice(0, 12).map((c) => [
    c.command, number(c.calls), c.calls > 0 ? ((c.seconds / c.calls) * 1e6).toFixed(1) : "–", number(c.failed),
  ]), "No command has run yet.");
}

const PROMISES = {
  always: "OK means on disk: every acknowledged write survives a power loss.",
  everysec: "OK means written to the journal's file: it survives kill -9. A power loss may take the last moments.",
  no: "OK means written to the journal's file: it survives kill -9. The system decides when it reaches the disk.",
};

const BUCKET_PROMISES = {
  always: "OK means stored in the bucket: every acknowledged write survives the loss of this machine.",
  everysec: "OK means in the memory of this server: kill -9 may take the last moments, and what came since the bucket went away.",
  no: "OK means in the memory of this server: kill -9 takes what is not in the bucket yet.",
};

// The servers that copy this one, or the one that it copies; and true if that is in order.
function replication(now) {
  if (status.primary) {
    const up = now.sum("replica_link_up") === 1;
    return [`replica of ${status.primary.replace(" ", ":")}, ${up ? "the link is up" : "the link is down"}`, up];
  }
  const count = now.sum("replicas");
  if (count === 0) return ["no replicas", true];
  const online = now.sum("replicas", { state: "online" });
  const behind = online > 0 ? `, ${bytes(now.sum("replicas_behind_bytes"))} behind` : "";
  return [`${number(online)} of ${number(count)} replicas follow${behind}`, online === count];
}

function showDurability(now) {
  text("durability", (status.journal_remote ? BUCKET_PROMISES : PROMISES)[status.appendfsync]);
  const syncs = rate(now, "journal_syncs_total");
  const appends = rate(now, "journal_appends_total");
  const backlog = Math.max(0, ...now.all("journal_backlog_bytes").map((s) => s.value));
  const [copies, inOrder] = replication(now);
  const restart = Math.max(now.sum("worker_unflushed_operations") / 1e6, backlog / 1e9);
  facts("durability-facts", [
    ["records/s", number(appends)],
    ["syncs/s", number(syncs)],
    ["records of a sync", syncs > 0 ? (appends / syncs).toFixed(1) : "–"],
    ["not durable yet", counted(now.sum("journal_end_lsn") - now.sum("journal_durable_lsn"), "record")],
    ["oldest of them", duration(now.sum("journal_unsynced_age_seconds"))],
    ["journal", `${bytes(now.sum("journal_bytes"))} of ${bytes(now.sum("journal_limit_bytes"))}`],
    ["restart after a kill", "about " + duration(Math.max(0.1, restart))],
    ["replication", copies, inOrder ? "" : "warn-text"],
  ]);
}

function showStorage(now) {
  const all = [bar("Process", now.sum("memory_resident_bytes"), now.sum("memory_budget_bytes"))];
  const share = now.by("memory_share_bytes", "share");
  all.push(bar("Values in memory", now.sum("worker_hot_bytes"), share.get("values") || 0, { may_be_full: true }));
  all.push(bar("Rows on their way to disk", now.sum("worker_pending_bytes"), now.sum("pending_limit_bytes")));
  if (now.has("disk_size_bytes")) {
    const size = now.sum("disk_size_bytes");
    const used = size - now.sum("disk_free_bytes");
    all.push(bar("Disk", used, size, { note: `${bytes(size - used)} free of ${bytes(size)}` }));
  }
  $("bars").replaceChildren(...all);
  const data = now.sum("engine_level0_bytes") + now.sum("engine_run_bytes");
  const cold = rate(now, "worker_row_reads_total");
  const hits = now.sum("engine_cache_hits_total");
  const lookups = hits + now.sum("engine_cache_misses_total");
  const writers = now.sum("writers_rate_bytes");
  const limit = now.sum("data_set_limit_bytes");
  facts("storage-facts", [
    ["data on disk", bytes(data)],
    ["data set", limit > 0 ? `${bytes(now.sum("data_set_bytes"))} of ${bytes(limit)} (maxmemory)` : bytes(now.sum("data_set_bytes"))],
    ["keys evicted", number(rate(now, "worker_evicted_keys_total")) + "/s"],
    ["rows read from files", number(cold) + "/s"],
    ["of them from the disk", number(rate(now, "worker_row_reads_total", { source: "disk" })) + "/s"],
    ["engine's caches hit", lookups > 0 ? Math.round((hits * 100) / lookups) + " %" : "–"],
    ["to be merged", bytes(now.sum("engine_debt_bytes"))],
    ["writers slowed to", writers > 0 ? bytes(writers) + "/s" : "not slowed", writers > 0 ? "warn-text" : ""],
    ["disk full in", now.has("disk_full_in_seconds") ? duration(now.sum("disk_full_in_seconds")) : "not filling"],
  ]);
}

function showMap(now) {
  const owners = now.by("shard_worker", "shard");
  const figure = (name) => now.by(name, "shard");
  const [level0, limit, files] = ["engine_level0_files", "engine_level0_limit", "engine_files"].map(figure);
  const [level0Bytes, runBytes, stalled] = ["engine_level0_bytes", "engine_run_bytes", "shard_stalled"].map(figure);
  const workers = now.all("worker_commands_total").map((s) => s.labels.worker);
  $("map").replaceChildren(...workers.map((worker) => {
    const box = make("div", undefined, "worker");
    const words = make("div", undefined, "facts");
    const mine = { worker };
    const waiting = now.sum("worker_mailbox_messages", mine);
    words.append(
      make("div", `worker ${worker}`),
      make("div", `${number(rate(now, "worker_local_commands_total", mine))} own, ${number(rate(now, "worker_remote_commands_total", mine))} for others /s`, "dim"),
      make("div", `${counted(now.sum("worker_connections", mine), "client")}, ${counted(waiting, "message")} waiting`, "dim"),
    );
    const tiles = make("div", undefined, "tiles");
    for (const [shard, owner] of owners) {
      // In a cluster, other servers have the other shards.
      if (String(owner) !== worker || !files.has(shard)) continue;
      const tile = make("div", undefined, stalled.get(shard) ? "tile bad" : "tile");
      const fill = make("i");
      fill.style.height = Math.min(100, (level0.get(shard) * 100) / limit.get(shard)).toFixed(0) + "%";
      tile.append(fill, make("span", `shard ${shard}`), make("span", bytes(level0Bytes.get(shard) + runBytes.get(shard)), "dim"));
      tile.title = `shard ${shard}: ${files.get(shard)} files, ${level0.get(shard)} of ${limit.get(shard)} in level 0` + (stalled.get(shard) ? "; it cannot store rows" : "");
      tiles.append(tile);
    }
    box.append(words, tiles);
    return box;
  }));
}

function showStore(now) {
  $("store-card").hidden = !status.store_remote && !status.journal_remote;
  if ($("store-card").hidden) return;
  text("store-line", status.owner ? "This server owns the data." : "Another server may own the data.");
  const perDay = rate(now, "store_request_dollars_total") * 86400;
  const lease = now.has("journal_lease_left_seconds") ? duration(now.sum("journal_lease_left_seconds")) : "–";
  facts("store-facts", [
    ["place", status.store],
    ["requests/s", number(rate(now, "store_requests_total"))],
    ["puts, gets, lists /s", ["put", "get", "list"].map((operation) => number(rate(now, "store_requests_total", { operation }))).join(", ")],
    ["sent, received /s", `${bytes(rate(now, "store_sent_bytes_total"))}, ${bytes(rate(now, "store_received_bytes_total"))}`],
    ["requests cost", "$ " + perDay.toFixed(2) + " a day at this rate"],
    ["lease without an answer", lease],
    ["waiting for the bucket", bytes(now.sum("journal_waiting_bytes"))],
  ]);
}

const address = (s) => (s.host.includes(":") ? `[${s.host}]` : s.host) + `:${s.port}` + (s.tls_port ? `, tls ${s.tls_port}` : "");

// The states of servers, in words, and how much they matter.
const SERVER_STATES = {
  well: ["well", ""],
  replica: ["replica: shows the shards of the others", ""],
  leaving: ["leaves: it gives its shards away", "warn-text"],
  silent: ["does not answer", "warn-text"],
  suspected: ["suspected: its journal is watched", "bad-text"],
  sealed: ["has ended, others have its shards", "dim"],
  released: ["has left", "dim"],
};

// The state of a server that this one sees no further than itself.
function serverState(cluster, server) {
  if (server.life === cluster.life) return make("span", server.state === "leaving" ? "this server, leaves" : "this server");
  if (cluster.unsealed[server.life]) return make("span", "has ended, and cannot be taken over", "bad-text");
  const [words, kind] = SERVER_STATES[server.state] || [server.state, ""];
  return make("span", words, kind);
}

function showServers(cluster) {
  rows("servers", cluster.servers.map((s) => {
    const isOwn = s.life === cluster.life;
    const isOpen = s.state !== "sealed" && s.state !== "released";
    const beat = isOwn || !isOpen ? "–" : s.silence_ms === null ? "none yet" : duration(s.silence_ms / 1000) + " ago";
    const link = isOwn || !isOpen ? "–" : s.link_since_ms === null ? "no link" : s.link_bytes > 0 ? bytes(s.link_bytes) + " wait" : "linked";
    const shards = s.target === null || s.target === s.shards ? String(s.shards) : `${s.shards}, should have ${s.target}`;
    return [s.node.slice(0, 8), String(s.life), address(s), serverState(cluster, s), beat, shards, link, s.needed_by.length ? "shards " + s.needed_by.join(", ") : "–"];
  }), "The map names no server.");
}

function clusterTile(cluster, shard) {
  const isOwn = shard.owner === cluster.life;
  const why = cluster.untaken[shard.id];
  const isBad = why || shard.owner === null || (isOwn && shard.here === "not served");
  const name = (life) => (cluster.servers.find((s) => s.life === life) || { node: "life " + life }).node.slice(0, 8);
  const words = [];
  if (shard.owner === null) words.push("parked");
  if (why) words.push("not taken");
  else if (shard.here === "changing" || shard.here === "shown") words.push(shard.here);
  else if (isOwn && shard.here === "not served") words.push("not served");
  if (shard.moving_to !== null) words.push("→ " + name(shard.moving_to));
  if (shard.pinned) words.push("pinned");
  if (shard.journals.length) words.push("journals " + shard.journals.join(","));
  const tile = make("div", undefined, "tile" + (isBad ? " bad" : shard.moving_to !== null || shard.here === "changing" ? " moving" : ""));
  tile.append(make("span", `shard ${shard.id}`), make("span", words.join(", ") || `${shard.slots[0]}–${shard.slots[1]}`, "dim"));
  const facts = [`shard ${shard.id}: slots ${shard.slots[0]}–${shard.slots[1]}`, `since map ${shard.since}`];
  if (shard.journals.length) facts.push(`its owner has not stored all of the journals of lives ${shard.journals.join(", ")}`);
  if (why) facts.push(why);
  tile.title = facts.join("; ");
  return tile;
}

function showClusterMap(cluster) {
  const owners = cluster.servers.filter((s) => s.shards > 0 || s.target !== null);
  const group = (head, note, shards) => {
    const box = make("div", undefined, "worker");
    const words = make("div", undefined, "facts");
    words.append(make("div", head), make("div", note, "dim"));
    const tiles = make("div", undefined, "tiles");
    tiles.append(...shards.map((shard) => clusterTile(cluster, shard)));
    box.append(words, tiles);
    return box;
  };
  const groups = owners.map((s) => group(s.node.slice(0, 8) + (s.life === cluster.life ? " (this server)" : ""), address(s), cluster.shards.filter((shard) => shard.owner === s.life)));
  const parked = cluster.shards.filter((shard) => shard.owner === null);
  if (parked.length) groups.push(group("no server", "parked: the next one that has too few takes them", parked));
  $("cluster-map").replaceChildren(...groups);
}

function showCluster() {
  const cluster = status.cluster;
  $("cluster-card").hidden = !cluster;
  if (!cluster) return;
  const age = cluster.map_age_ms / 1000;
  const newer = cluster.newer_map ? `, another server has named map ${cluster.newer_map}` : "";
  const left = cluster.lease_left_ms === null ? "" : ` · lease ${duration(cluster.lease_ms / 1000)}, ${cluster.lease_left_ms > 0 ? duration(cluster.lease_left_ms / 1000) + " left" : "not in use, or over"}`;
  text("cluster-line", `map ${cluster.map}, read ${age < 1 ? "now" : duration(age) + " ago"}${newer}${left}`);
  // A server looks at the map at least every three leases.
  const isOld = cluster.map_age_ms > 6 * cluster.lease_ms;
  $("cluster-line").className = isOld ? "warn-text" : "";
  const trouble = [
    ...(isOld ? ["This server cannot read the map: what follows may be out of date."] : []),
    ...Object.entries(cluster.unsealed).map(([life, why]) => `Life ${life} has ended, and its shards are served by no server: ${why}`),
    ...Object.entries(cluster.untaken).map(([shard, why]) => `Shard ${shard} cannot be taken: ${why}`),
  ];
  $("cluster-trouble").replaceChildren(...trouble.map((line) => make("li", line)));
  showServers(cluster);
  showClusterMap(cluster);
}

// Pairs of an array as a map.
function paired(list) {
  const out = {};
  for (let i = 0; i + 1 < list.length; i += 2) out[list[i]] = list[i + 1];
  return out;
}

const quoted = (path) => (/^[\w@%+=:,./-]+$/.test(path) ? path : "'" + path.replaceAll("'", "'\\''") + "'");

function showCheckpoints(reply) {
  const all = reply.error ? [] : reply.result.map(paired);
  all.sort((a, b) => b["created-ms"] - a["created-ms"]);
  rows("checkpoints", all.slice(0, 20).map((c) => [c.id, duration((status.now_ms - c["created-ms"]) / 1000) + " ago"]), reply.error || "No checkpoint yet: BGSAVE takes one.");
  const every = status.checkpoint_interval_s ? `A checkpoint is taken every ${duration(status.checkpoint_interval_s)}.` : "Checkpoints are taken by BGSAVE and flagstone backup only (checkpoint-interval is 0).";
  const oldest = all.at(-1);
  const window = status.archive_s && oldest
    ? ` Any moment since ${new Date(Math.max(oldest["created-ms"], status.now_ms - status.archive_s * 1000)).toISOString().slice(0, 19)} UTC can be restored.`
    : status.archive_s ? " Any moment since the first checkpoint can be restored." : " Only checkpoints can be restored, not the moments between them (journal-archive-retention is 0).";
  text("backup-line", every + window);
  const from = status.store_remote ? status.store : status.dir;
  const to = status.store_remote ? "--to s3://bucket/new" : "--dir new";
  const moment = status.archive_s ? ` --as-of ${new Date(status.now_ms - 60000).toISOString().slice(0, 19)}` : "";
  $("restore-how").hidden = !oldest;
  text("restore", `flagstone restore --from ${quoted(from)} ${to}${moment}`);
}

function showSlow(reply) {
  if (reply.error) return rows("slow", [], reply.error);
  rows("slow", reply.result.map(([, at, us, args]) => [
    (us / 1000).toFixed(1), args.map(shown).join(" ").slice(0, 200), duration(Math.max(1, status.now_ms / 1000 - at)) + " ago",
  ]), "None.");
}

function showHot(reply) {
  if (reply.error) return rows("hot", [], reply.error);
  rows("hot", reply.result.map(paired).map((k) => [keyButton(k.db, k.key), String(k.db), "≈ " + number(Number(k["per-second"]))]),
    "No key stands out in the last ten seconds.");
}

function showBig(reply) {
  if (reply.error) return rows("big", [], reply.error);
  const weight = (k) => (k.type === "string" ? bytes(k.size) : counted(k.size, "element"));
  rows("big", reply.result.map(paired).map((k) => [keyButton(k.db, k.key, k.type), String(k.db), k.type, weight(k)]),
    "No key was written or read since the start.");
}

// A key that opens in the browser of keys.
function keyButton(db, key, kind) {
  if (typeof key !== "string") return make("span", shown(key));
  const button = make("button", key === "" ? "(empty)" : key);
  button.type = "button";
  button.addEventListener("click", () => guarded(async () => {
    const type = kind || shown((await run([["SELECT", String(db)], ["TYPE", key]]))[1].result);
    await open(String(db), key, type);
    $("value").scrollIntoView({ behavior: "smooth", block: "nearest" });
  }));
  return button;
}

function showClients(reply) {
  if (reply.error) return rows("clients", [], reply.error);
  const all = shown(reply.result).split("\n").filter(Boolean).map((line) => Object.fromEntries(line.split(" ").map((pair) => {
    const at = pair.indexOf("=");
    return [pair.slice(0, at), pair.slice(at + 1)];
  })));
  text("client-count", String(all.length));
  all.sort((a, b) => b["tot-mem"] - a["tot-mem"]);
  rows("clients", all.slice(0, 50).map((c) => [c.addr, c.name || c["lib-name"] || "", c.cmd, bytes(Number(c["tot-mem"])), duration(Number(c.idle) || 0)]), "None.");
}

function showDatabases(reply) {
  if (reply.error) return;
  const chosen = $("db").value;
  const counts = new Map([["0", "0"]]);
  for (const [, db, keys] of shown(reply.result).matchAll(/^db(\d+):keys=(\d+)/gm)) counts.set(db, keys);
  if (!counts.has(chosen)) counts.set(chosen, "0");
  $("db").replaceChildren(...[...counts].map(([db, keys]) => {
    const option = make("option", `${db} (${number(Number(keys))} keys)`);
    option.value = db;
    option.selected = db === chosen;
    return option;
  }));
}

// Commands and what shows their replies. A command that waits, as for a bucket that is away, holds up neither the
// figures nor other tables.
const TABLES = [
  { commands: [["SLOWLOG", "GET", "20"], ["CLIENT", "LIST"]], show: [showSlow, showClients] },
  { commands: [["FLAGSTONE", "HOTKEYS"], ["FLAGSTONE", "BIGKEYS"]], show: [showHot, showBig] },
  { commands: [["FLAGSTONE", "CHECKPOINTS"]], show: [showCheckpoints] },
  { commands: [["INFO", "keyspace"]], show: [showDatabases] },
];

async function fill(table) {
  if (table.isAsked) return;
  table.isAsked = true;
  let replies;
  try {
    replies = await run(table.commands);
  } catch (error) {
    replies = table.commands.map(() => ({ error: error.message }));
  }
  table.isAsked = false;
  table.show.forEach((show, i) => show(replies[i]));
}

async function look() {
  const began = Date.now();
  try {
    // One after the other, so that a wrong password is one guess.
    const words = await ask("/status");
    const metrics = await ask("/metrics");
    if (!metrics.ok || !words.ok) {
      const answer = words.ok ? metrics : words;
      throw new Error((await answer.json()).error);
    }
    status = await words.json();
    const now = new Figures(parse(await metrics.text()), began);
    signedIn(true);
    showState(now);
    showTraffic(now);
    showCommands(now);
    showDurability(now);
    showStorage(now);
    showMap(now);
    showStore(now);
    showCluster();
    before = now;
    if (rounds++ % SLOW_EVERY === 0) TABLES.forEach(fill);
  } catch (error) {
    if (error instanceof NotAllowed) {
      const tried = credentials;
      signOut();
      if (tried) text("login-error", error.message);
      return;
    }
    $("state").className = "state bad";
    text("state-line", error instanceof TypeError ? "The server does not answer" : error.message);
    text("state-facts", "");
    before = null;
  }
}

function signedIn(is) {
  $("login").hidden = is;
  $("page").hidden = !is;
  $("sign-out").hidden = !is || !credentials;
}

function signOut() {
  credentials = null;
  sessionStorage.removeItem("flagstone");
  signedIn(false);
  $("password").focus();
}

// The key browser.

let cursor = "0";

async function browse(more) {
  if (!more) {
    cursor = "0";
    $("keys").tBodies[0].replaceChildren();
  }
  // Rows that are not in memory may take a while, from a bucket above all.
  text("keys-note", "Looking …");
  const pattern = $("pattern").value || "*";
  const scan = ["SCAN", cursor, "MATCH", pattern, "COUNT", pattern === "*" && !$("type").value ? String(PAGE) : "2000"];
  if ($("type").value) scan.push("TYPE", $("type").value);
  const db = $("db").value;
  const keys = [];
  // A page may need several steps, as a step may find nothing.
  for (let steps = 0; keys.length < PAGE && steps < 50; steps += 1) {
    scan[1] = cursor;
    const [, found] = await run([["SELECT", db], scan]);
    if (found.error) throw new Error(found.error);
    cursor = String(found.result[0]);
    keys.push(...found.result[1]);
    if (cursor === "0") break;
  }
  const plain = keys.filter((key) => typeof key === "string");
  const told = plain.length ? await run([["SELECT", db], ...plain.flatMap((key) => [["TYPE", key], ["PTTL", key]])]) : [];
  const facts = new Map(plain.map((key, i) => [key, [told[2 * i + 1]?.result, told[2 * i + 2]?.result]]));
  const body = $("keys").tBodies[0];
  for (const key of keys) {
    const row = make("tr");
    const [kind, ttl] = facts.get(key) || ["", -1];
    const cell = make("td");
    if (typeof key === "string") {
      const button = make("button", key === "" ? "(empty)" : key);
      button.type = "button";
      button.addEventListener("click", () => guarded(() => open(db, key, kind)));
      cell.append(button);
    } else {
      cell.append(make("span", shown(key)));
      cell.title = "not UTF-8: read it with redis-cli";
    }
    row.append(cell, make("td", kind), make("td", ttl >= 0 ? duration(ttl / 1000) : ""));
    body.append(row);
  }
  $("more").hidden = cursor === "0";
  text("keys-note", body.rows.length === 0 ? "No key fits." : counted(body.rows.length, "key") + (cursor === "0" ? ", all that fit." : "."));
}

const SIZES = { string: "STRLEN", hash: "HLEN", list: "LLEN", set: "SCARD", zset: "ZCARD", stream: "XLEN" };

async function open(db, key, kind) {
  const reads = {
    string: ["GETRANGE", key, "0", String(SHOWN_BYTES - 1)],
    hash: ["HSCAN", key, "0", "COUNT", "100"],
    list: ["LRANGE", key, "0", "99"],
    set: ["SSCAN", key, "0", "COUNT", "100"],
    zset: ["ZRANGE", key, "0", "99", "WITHSCORES"],
    stream: ["XRANGE", key, "-", "+", "COUNT", "30"],
  };
  const place = $("value");
  const title = make("p");
  title.append(make("b", key));
  if (!reads[kind]) {
    place.replaceChildren(title, make("p", `There is no view of the type ${kind || "none"}.`, "dim"));
    return;
  }
  const [, size, encoding, memory, value] = await run([
    ["SELECT", db], [SIZES[kind], key], ["OBJECT", "ENCODING", key], ["MEMORY", "USAGE", key], reads[kind],
  ]);
  const unit = kind === "string" ? "byte" : "element";
  const line = [kind, counted(size.result || 0, unit), encoding.result, memory.result ? bytes(memory.result) + " in memory" : null];
  place.replaceChildren(title, make("p", line.filter(Boolean).join(" · "), "dim"));
  if (value.error) {
    place.append(make("p", value.error, "bad-text"));
  } else if (kind === "string") {
    place.append(make("pre", shown(value.result)));
    if (size.result > SHOWN_BYTES) place.append(make("p", `The first ${SHOWN_BYTES} bytes.`, "dim"));
  } else {
    place.append(elements(kind, kind === "hash" || kind === "set" ? value.result[1] : value.result));
  }
  if (matchMedia("(max-width: 680px)").matches) place.scrollIntoView({ behavior: "smooth" });
}

function elements(kind, list) {
  const table = make("table");
  const body = table.createTBody();
  const add = (...cells) => {
    const row = make("tr");
    row.append(...cells.map((cell) => make("td", shown(cell).slice(0, 2000))));
    body.append(row);
  };
  if (kind === "hash" || kind === "zset") {
    for (let i = 0; i + 1 < list.length; i += 2) add(list[i], list[i + 1]);
  } else if (kind === "stream") {
    for (const [id, fields] of list) add(id, fields.map(shown).join(" "));
  } else {
    list.forEach((value, i) => (kind === "list" ? add(i, value) : add(value)));
  }
  const box = make("div", undefined, "scroll tall");
  box.append(table);
  return box;
}

async function guarded(work) {
  try {
    await work();
  } catch (error) {
    if (error instanceof NotAllowed) signOut();
    else text("keys-note", error.message);
  }
}

$("browse").addEventListener("submit", (event) => {
  event.preventDefault();
  guarded(() => browse(false));
});
$("more").addEventListener("click", () => guarded(() => browse(true)));
$("sign-out").addEventListener("click", signOut);
$("login-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const pair = new TextEncoder().encode($("user").value + ":" + $("password").value);
  credentials = btoa(String.fromCharCode(...pair));
  sessionStorage.setItem("flagstone", credentials);
  $("password").value = "";
  text("login-error", "");
  look();
});

async function live() {
  // A page that nobody sees asks for nothing.
  if (!document.hidden && $("login").hidden) await look();
  setTimeout(live, PERIOD_MS);
}
if (document.body.dataset.password === "needed" && !credentials) signOut();
live();
