// BullMQ: `produce`, `work` or `left`.
//
// All changes are scripts in the server, and ioredis sends a command again whose connection broke. A job whose lock ran out
// is given to another worker; BullMQ fails a job that this happens to more than maxStalledCount times.

const fs = require("fs");
const path = require("path");
const { Queue, Worker } = require("bullmq");

const env = process.env;
const NAME = "jobs";
const WORK_MS = 5;
const MOST_RETRIES = 20;
const connection = {
  host: "127.0.0.1",
  port: Number(env.JOBS_PORT),
  maxRetriesPerRequest: null,
  retryStrategy: () => 200,
};

const sleep = (ms) => new Promise((done) => setTimeout(done, ms));
const now = () => (Date.now() / 1000).toFixed(3);

function append(name, ...fields) {
  fs.appendFileSync(path.join(env.JOBS_DIRECTORY, name), fields.join(" ") + "\n");
}

async function attempt(job) {
  await sleep(WORK_MS);
  const outcome = job.attemptsMade < job.data.fails ? "fail" : "done";
  append("attempts", job.id, job.attemptsMade, outcome, now());
  if (outcome === "fail") {
    throw new Error(`${job.id}, attempt ${job.attemptsMade}`);
  }
  return job.attemptsMade;
}

async function produce() {
  const queue = new Queue(NAME, { connection, prefix: env.JOBS_PREFIX });
  queue.on("error", (error) => console.error(String(error)));
  const backoff = { type: "fixed", delay: Number(env.JOBS_BACKOFF) * 1000 };
  for (const [jobId, fails, delay] of JSON.parse(fs.readFileSync(path.join(env.JOBS_DIRECTORY, "plan")))) {
    const began = now();
    for (;;) {
      try {
        await queue.add("job", { fails }, { jobId, delay: delay * 1000, attempts: MOST_RETRIES, backoff });
        break;
      } catch (error) {
        console.error(`${jobId}: ${error}`);
        await sleep(200);
      }
    }
    append("sent", jobId, began);
    await sleep(Number(env.JOBS_PACE) * 1000);
  }
  await queue.close();
}

async function work() {
  const worker = new Worker(NAME, attempt, {
    connection,
    prefix: env.JOBS_PREFIX,
    concurrency: Number(env.JOBS_THREADS),
    lockDuration: 4000,
    stalledInterval: 2000,
    maxStalledCount: MOST_RETRIES,
  });
  worker.on("error", (error) => console.error(String(error)));
  process.on("SIGTERM", () => worker.close().then(() => process.exit(0)));
}

async function left() {
  const queue = new Queue(NAME, { connection, prefix: env.JOBS_PREFIX });
  const counts = await queue.getJobCounts("waiting", "active", "delayed", "failed", "prioritized", "paused");
  console.log(JSON.stringify(counts));
  await queue.close();
}

({ produce, work, left })[process.argv[2]]();
