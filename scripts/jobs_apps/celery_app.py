"""Celery: `produce` or `left`; the workers are Celery's own program with -A celery_app.

With acks_late a message counts as done when its task has ended; until then it is in the hash `unacked`, from where it
comes back after the visibility timeout. kombu looks for such messages every 100 seconds; here every second.

The library's doing: kombu takes a message by BRPOP and puts it into that hash by a second command: where the connection
breaks between the server's doing and the reply of BRPOP, the message is gone. A worker has one BRPOP under way.
"""

import json

import record
from celery import Celery
from redis import Redis

VISIBILITY_SECONDS = 6

app = Celery("jobs", broker=record.URL, backend=record.URL)
app.conf.update(
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True,
    broker_connection_max_retries=None,
    broker_transport_options={"visibility_timeout": VISIBILITY_SECONDS, "unacked_restore_interval": 1,
                              "unacked_restore_throttle": 1},
    result_backend_always_retry=True,
    result_backend_max_retries=100,
    result_backend_base_sleep_between_retries_ms=100,
    result_backend_max_sleep_between_retries_ms=500,
)


@app.task(bind=True, max_retries=record.MOST_RETRIES, name="job")
def job(self, name, fails):
    try:
        return record.attempt(name, self.request.retries, fails)
    except record.Planned as failure:
        raise self.retry(exc=failure, countdown=record.BACKOFF)


def produce():
    policy = {"max_retries": 100, "interval_start": 0.1, "interval_step": 0, "interval_max": 0.2}

    def send(name, fails, delay):
        job.apply_async((name, fails), task_id=name, countdown=delay or None, retry=True, retry_policy=policy)

    record.produce(send)


def left():
    with Redis(**record.patient_client()) as client:
        print(json.dumps({"waiting": client.llen("celery"), "unacked": client.hlen("unacked"),
                          "index": client.zcard("unacked_index")}))


if __name__ == "__main__":
    record.run({"produce": produce, "left": left})
