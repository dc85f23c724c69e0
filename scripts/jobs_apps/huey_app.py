"""huey: `produce`, `work` or `left`.

The library's doing: RedisHuey promises to run a task at most once. It takes a task by BRPOP, and those that are due by a
script, and has them in memory only: where the connection breaks between the server's doing and its reply, they are gone.
Other commands are sent again by redis-py, as its retries are set here.
"""

import json

import record
from huey import RedisHuey

huey = RedisHuey("jobs", blocking=True, read_timeout=1, **record.patient_client())


@huey.task(retries=record.MOST_RETRIES, retry_delay=record.BACKOFF, context=True)
def job(name, fails, task=None):
    return record.attempt(name, record.MOST_RETRIES - task.retries, fails)


def produce():
    def send(name, fails, delay):
        if delay:
            job.schedule((name, fails), delay=delay)
        else:
            job(name, fails)

    record.produce(send)


def work():
    huey.create_consumer(workers=record.THREADS, scheduler_interval=1, periodic=False).run()


def left():
    print(json.dumps({"waiting": huey.pending_count(), "scheduled": huey.scheduled_count()}))


if __name__ == "__main__":
    record.run({"produce": produce, "work": work, "left": left})
