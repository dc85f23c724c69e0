"""The histories of `lives` whose archive of the journal goes away and comes back.

While keys are written, and between kills, the archive is moved away and another one begins, a file is in
its place, junk is in it, it is a link to where nobody may write or to nothing, or it is in another
directory or on another disk. At last all that was archived is put together, and moments are restored from
the directory and from backups: each has exactly the keys that there were. A moment may be refused only if
the log says that segments were deleted, and no checkpoint was taken since; from backups also if the next one has told
that it lacks the moments before it. Every backup succeeds, and only those beside an archive that is away, or has lost
segments, lack any. `check` finds nothing, or segments of the archive that are missing after such a loss.
"""

import shutil
import tempfile
import time
from pathlib import Path

from lives_common import BATCH, MIB, SECONDS, History, Wrong
from servers import ReplyError

SEGMENT = MIB
KEYS, SIZES = 200, (300, 3000, 30_000)
# Bytes that are written between two moments, and those that are too many for the journal to keep without its archive.
STEP, FLOOD = 2 * MIB, 48 * MIB
# Nobody may write there, whoever he is.
READ_ONLY = "/sys/kernel"
# A directory of another disk than most data, if it is there.
OTHER_DISK = "/dev/shm"
LOST = "deleted without having been archived"
REFUSED = ("not everything up to then is known", "is of later than that", "are of later than that")
LACKS = "can restore from the backups no moment between"
WHOLE = "problems of the archive: the data is whole"
TROUBLES = ("away", "file", "junk", "read-only", "dangling", "elsewhere", "other disk")
RESTORED = 5


def number_of(path):
    """The number of a journal's segment that was begun in this file, or None."""
    try:
        with path.open("rb") as file:
            head = file.read(24)
        number = int.from_bytes(head[16:24], "little")
        return number if head[:8] == b"FLAGJRNL" and number == int(path.stem, 16) else None
    except (OSError, ValueError):
        return None


class ArchiveAway(History):
    """One history."""

    kind = "archive"

    def __init__(self, options, number, root):
        super().__init__(options, number, root)
        self.model, self.moments = {}, []
        self.data, self.backups = Path(self.place("data")), self.place("backups")
        self.archive = self.data / "archive"
        # Where parts of the archive are, beside the present one.
        self.parts, self.trouble = [], None
        # Checkpoints so far, and those that there were when segments were last deleted.
        self.checkpoints, self.lost, self.lost_at = 0, 0, None
        # Backups so far, and the numbers of those that lack the records since the one before.
        self.backed_up, self.gaps = 0, set()
        extra = ["--journal-archive-retention", "86400", "--journal-segment-size", str(SEGMENT)]
        extra += ["--handover-interval-ms", "100", "--checkpoint-keep", "100"]
        self.main = self.server(self.data, self.random.choice((1, 2)), "64mb", extra)
        self.main.shards = self.random.choice((1, 2))

    def described(self):
        return f"{super().described()}, {self.lost} segments lost"

    # ---- what happens to the archive -------------------------------------------------------------

    def put_aside(self):
        """Moves away whatever is at the archive's place; what is left of it, if that is a directory of its own."""
        aside = Path(self.place("part"))
        try:
            self.archive.rename(aside)
        except FileNotFoundError:
            return
        if aside.is_dir() and not aside.is_symlink():
            self.parts.append(aside)
        else:
            aside.unlink()

    def replace_by(self, make):
        """Puts something into the archive's place, in which a server may begin another one at any time."""
        while True:
            self.put_aside()
            try:
                return make()
            except FileExistsError:
                continue

    def begin_trouble(self):
        self.end_trouble()
        self.trouble = self.random.choice(TROUBLES)
        if self.trouble == "away":
            self.put_aside()
        elif self.trouble == "file":
            self.replace_by(lambda: self.archive.open("x").close())
        elif self.trouble == "junk":
            self.throw_junk()
        else:
            self.replace_by(lambda: self.archive.symlink_to(self.target()))

    def target(self):
        """Where a link in the archive's place leads."""
        if self.trouble == "read-only":
            return READ_ONLY
        where = Path(self.place("nowhere" if self.trouble == "dangling" else "part"))
        if self.trouble == "other disk" and Path(OTHER_DISK).is_dir():
            where = Path(tempfile.mkdtemp(prefix="lives-", dir=OTHER_DISK))
        elif self.trouble != "dangling":
            where.mkdir()
        if self.trouble != "dangling":
            self.parts.append(where)
        return where

    def throw_junk(self):
        """Other files, and some where the next segments are to be."""
        self.archive.mkdir(exist_ok=True)
        newest = max((number for number in map(number_of, self.data.glob("journal/*.seg")) if number), default=0)
        names = ["notes", "core.1", "lost+found.tmp", f"{newest + 2:016x}.tmp", f"{newest + 10_000:016x}.seg", f"{newest:016x}.seg"]
        for name in names:
            if not (self.archive / name).exists():
                (self.archive / name).write_bytes(self.random.randbytes(self.random.randrange(2 * SEGMENT)))
        for name in ("deep/er", f"{newest + 1:016x}.seg/deep"):
            (self.archive / name).mkdir(parents=True, exist_ok=True)

    def end_trouble(self):
        """The archive is one directory again, with all that parts of it have got."""
        self.trouble = None
        if self.archive.is_symlink() or self.archive.is_file():
            self.archive.unlink()
        self.archive.mkdir(exist_ok=True)
        for path in self.archive.glob("*.seg"):
            if path.is_dir():
                shutil.rmtree(path)
        for part in self.parts:
            for path in sorted(part.glob("*.seg")):
                if number_of(path) is not None and number_of(self.archive / path.name) is None:
                    shutil.move(path, self.archive / path.name)

    # ---- lives -----------------------------------------------------------------------------------

    def write(self, size):
        """Changes keys, of so many bytes."""
        commands = []
        while size > 0:
            key = b"key:%d" % self.random.randrange(KEYS)
            if self.random.random() < 0.1:
                self.model.pop(key, None)
                commands.append(("DEL", key))
                continue
            self.model[key] = self.random.randbytes(self.random.choice(SIZES))
            size -= len(self.model[key])
            commands.append(("SET", key, self.model[key]))
        with self.main.connect(SECONDS) as connection:
            for at in range(0, len(commands), BATCH):
                errors = [reply for reply in connection.pipeline(commands[at:at + BATCH]) if isinstance(reply, ReplyError)]
                if errors:
                    raise Wrong(f"beside an archive ({self.trouble}) a write fails: {errors[0]}")

    def note(self):
        """Notes a moment, and whether segments have been lost before."""
        time.sleep(0.01)
        self.moments.append((time.time(), dict(self.model), self.checkpoints, self.backed_up))
        time.sleep(0.01)
        lost = self.main.log.read_text(errors="replace").count(LOST)
        if lost > self.lost:
            self.lost, self.lost_at = lost, self.checkpoints

    def step(self):
        if self.random.random() < 0.4:
            self.begin_trouble()
        elif self.random.random() < 0.3:
            self.end_trouble()
        is_flood = self.trouble is not None and self.random.random() < 0.05
        self.write(FLOOD if is_flood else self.random.randrange(STEP))
        self.note()
        if self.random.random() < 0.15:
            self.save()
        if self.random.random() < 0.1:
            self.backup()

    def save(self):
        if (reply := self.main.command("SAVE")) != b"OK":
            raise Wrong(f"SAVE beside an archive ({self.trouble}): {reply!r}")
        self.checkpoints += 1

    def backup(self):
        status, said = self.attempt("backup", "--dir", self.data, "--to", self.backups, "--port", self.port)
        if status != 0:
            raise Wrong(f"a backup beside an archive ({self.trouble}): {said}")
        if LACKS in said:
            lost = self.main.log.read_text(errors="replace").count(LOST)
            if self.trouble is None and not lost:
                raise Wrong(f"a backup beside a whole archive: {said}")
            self.gaps.add(self.backed_up)
        self.backed_up += 1
        self.checkpoints += 1

    def check_original(self):
        """The data is whole; the archive is, too, but for segments that the log says were deleted."""
        status, said = self.attempt("check", "--dir", self.data)
        if status != 0 and (self.lost_at is None or WHOLE not in said):
            raise Wrong(f"the original: check: exit status {status}: {said}")

    def run(self):
        try:
            self.lives()
            self.check_original()
            for moment in self.random.sample(self.moments, min(RESTORED, len(self.moments))):
                self.restore(*moment)
        finally:
            self.main.kill()
            for part in self.parts:
                # The others are in the history's directory.
                if part.parent == Path(OTHER_DISK):
                    shutil.rmtree(part, ignore_errors=True)

    def lives(self):
        for life in range(self.kills + 1):
            if life and self.random.random() < 0.5:
                self.random.choice((self.begin_trouble, self.end_trouble))()
            self.start(self.main)
            self.compare(self.main, self.model, f"life {life}")
            if life == 0:
                self.backup()
            for _ in range(self.random.randrange(2, 6)):
                self.step()
            self.main.kill()
        self.end_trouble()
        self.start(self.main)
        self.compare(self.main, self.model, "the last life")
        self.whole_again()
        self.backup()
        if self.random.random() < 0.5:
            self.stop(self.main, "the original")
        self.main.kill()

    def whole_again(self):
        """The archive takes all that waited for it."""
        deadline = time.monotonic() + SECONDS
        while (left := self.main.info("flagstone")["journal_unarchived_segments"]) > 1:
            if time.monotonic() > deadline:
                raise Wrong(f"{left} segments still wait for the archive:\n{self.main.log_tail(4)}")
            time.sleep(0.1)
        self.note()

    def restore(self, at, model, checkpoints, backed_up):
        source, to = self.random.choice((self.data, self.backups)), self.place("restored")
        status, said = self.attempt("restore", "--from", source, "--dir", to, "--as-of", f"{at:.3f}")
        name = f"moment {at:.3f} of {'backups' if source == self.backups else 'the directory'}"
        if status != 0:
            may_be = self.lost_at is not None and checkpoints <= self.lost_at or source == self.backups and backed_up in self.gaps
            if not may_be or not any(text in said for text in REFUSED):
                raise Wrong(f"{name}, {checkpoints} checkpoints, lost at {self.lost_at}: {said.strip()}")
            if REFUSED[0] in said and ("backup " if source == self.backups else ".seg") not in said:
                raise Wrong(f"{name} is refused, and nothing is named: {said.strip()}")
            self.count("refused")
            return
        server = self.server(to, 1, "64mb", [])
        try:
            self.start(server)
            self.compare(server, model, name)
        finally:
            server.kill()
        shutil.rmtree(to)
        self.count("moment beside an archive")

    def compare(self, server, model, when):
        keys = [b"key:%d" % number for number in range(KEYS)]
        with server.connect(SECONDS) as connection:
            found = connection.pipeline([("GET", key) for key in keys])
            size = connection.command("DBSIZE")
        wrong = [key.decode() for key, reply in zip(keys, found) if reply != model.get(key)]
        if wrong or size != len(model):
            raise Wrong(f"{when}: {len(wrong)} of {len(model)} keys are wrong, {wrong[:3]}, DBSIZE {size}")
