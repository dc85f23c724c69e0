"""RQ: `produce`, `work` or `left`.

The library's doing: a job that was taken while its connection broke is in the intermediate queue, one whose worker died
in the registry of started jobs. The worker's maintenance finds both and retries them, which counts as one of the job's
retries. Times are set shorter here: RQ looks every ten minutes, unless it waits for a job, which it does for seven, and it
gives a job up after a minute or more.
RQ cuts times to whole seconds, so that a job may run up to one second early.
"""

import json
from datetime import timedelta

import record
from redis import Redis
from rq import Queue, Retry, Worker, get_current_job
from rq.intermediate_queue import IntermediateQueue
from rq.utils import now

GIVEN_UP_AFTER, LOOK_EVERY = 5, 2
# A worker waits for a job for 15 seconds less than its time to live; it looks for lost ones only in between.
WORKER_SECONDS = 15 + LOOK_EVERY


def job(name, fails):
    retries_left = get_current_job().retries_left
    return record.attempt(name, record.MOST_RETRIES - retries_left, fails)


class QuickWorker(Worker):
    def get_heartbeat_ttl(self, job, working_time=0.0):
        return GIVEN_UP_AFTER


def is_given_up(self, job_id):
    seen = self.get_first_seen(job_id)
    return bool(seen) and now() - seen > timedelta(seconds=GIVEN_UP_AFTER)


IntermediateQueue.should_be_cleaned_up = is_given_up


def queue():
    return Queue("jobs", connection=Redis(**record.patient_client()))


def produce():
    jobs = queue()

    def send(name, fails, delay):
        retry = Retry(max=record.MOST_RETRIES, interval=int(record.BACKOFF))
        if delay:
            jobs.enqueue_in(timedelta(seconds=delay), "rq_app.job", name, fails, job_id=name, retry=retry)
        else:
            jobs.enqueue("rq_app.job", name, fails, job_id=name, retry=retry)

    record.produce(send)


def work():
    jobs = queue()
    worker = QuickWorker([jobs], connection=jobs.connection, job_monitoring_interval=LOOK_EVERY,
                         maintenance_interval=LOOK_EVERY, worker_ttl=WORKER_SECONDS)
    worker.work(with_scheduler=True, logging_level="WARNING")


def left():
    jobs = queue()
    client = jobs.connection
    registries = {name: client.zcard(getattr(jobs, f"{name}_job_registry").key)
                  for name in ("started", "scheduled", "failed", "deferred")}
    print(json.dumps({"waiting": jobs.count, "taken": client.llen(jobs.intermediate_queue_key), **registries}))


if __name__ == "__main__":
    record.run({"produce": produce, "work": work, "left": left})
