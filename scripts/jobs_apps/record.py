"""What the Python applications of `scripts/jobs` share: the plan, the record of attempts, the client's retries.

The record is a file that the server under test knows nothing of: one line per attempt, written in one piece.
"""

import json
import os
import sys
import time
from pathlib import Path

HOST, PORT = "127.0.0.1", int(os.environ["JOBS_PORT"])
URL = f"redis://{HOST}:{PORT}/0"
DIRECTORY = Path(os.environ["JOBS_DIRECTORY"])
THREADS = int(os.environ["JOBS_THREADS"])
BACKOFF = float(os.environ["JOBS_BACKOFF"])
PACE = float(os.environ["JOBS_PACE"])
WORK_SECONDS = 0.005
# More than any job is to fail: RQ counts a job that a kill cut off as failed, too.
MOST_RETRIES = 20


class Planned(Exception):
    """A failure that the plan asks for."""


def append(name, *fields):
    descriptor = os.open(DIRECTORY / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, (" ".join(map(str, fields)) + "\n").encode())
    finally:
        os.close(descriptor)


def attempt(job, number, fails):
    """The work: attempt `number` (from 0, by the library's own count) fails if it is one of the first `fails`."""
    time.sleep(WORK_SECONDS)
    outcome = "fail" if number < fails else "done"
    append("attempts", job, number, outcome, time.time())
    if outcome == "fail":
        raise Planned(f"{job}, attempt {number}")
    return number


def produce(send):
    """Calls send(job, fails, delay) for every job of the plan, again until it comes back without an error."""
    for job, fails, delay in json.loads((DIRECTORY / "plan").read_text()):
        began = time.time()
        while True:
            try:
                send(job, fails, delay)
                break
            except Exception as error:  # whatever a library makes of a lost connection
                print(f"{job}: {error!r}", file=sys.stderr, flush=True)
                time.sleep(0.2)
        append("sent", job, began)
        time.sleep(PACE)


def patient_client():
    """redis-py's own retries: a command whose connection breaks is sent again, for half a minute."""
    from redis.backoff import ConstantBackoff
    from redis.retry import Retry

    return {"host": HOST, "port": PORT, "retry": Retry(ConstantBackoff(0.1), 300)}


def run(commands):
    commands[sys.argv[1]]()
