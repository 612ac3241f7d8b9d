"""The tape: a file of records, written by a thread of its own and readable wherever it was cut.

The file is one zlib stream of frames; a frame is a length and a msgpack array of records. What has
gathered is compressed and flushed once in a while, so a process that is killed loses its last
moments and nothing else. Owned by the supervisor, filled through `recording`, read by `replay`.
"""

from __future__ import annotations

import threading
import zlib
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import structlog

log = structlog.get_logger("paceline.tape")

FLUSH_SECONDS = 0.5
CLOSE_SECONDS = 10.0
MOST_WAITING = 200_000  # records in memory, if the disk falls behind: then the tape ends
_LENGTH = 4
_PIECE = 1 << 20


FIRST_BYTE = b"x"
"""Of every tape: a zlib stream of the usual window."""


class TapeError(OSError):
    """A file that cannot be written or is no tape: one sentence that names it."""


class Tape:
    """Takes records from one thread and never makes it wait. Whatever goes wrong with the file once
    it is open ends the tape, with one line in the log, and nothing else.

    Raises TapeError when the file cannot be created, or holds something already.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.expanduser()
        self.ended = False
        self._encode = msgspec.msgpack.Encoder().encode
        self._waiting: deque[bytes] = deque()
        self._there, self._closing = threading.Event(), threading.Event()
        self._compressor = zlib.compressobj()
        try:
            if self.path.is_file() and self.path.stat().st_size:
                raise FileExistsError(0, "it holds something already; name a new file")
            self._file = self.path.open("wb", buffering=0)
        except OSError as error:
            raise TapeError(f"cannot record to {self.path}: {error.strerror}") from None
        self._thread = threading.Thread(target=self._run, name="paceline-tape", daemon=True)
        self._thread.start()

    def write(self, record: Any) -> None:
        """Take a record, if the tape has not ended."""
        if self.ended:
            return
        if len(self._waiting) >= MOST_WAITING:
            self._end("the disk is too slow")
            return
        self._waiting.append(self._encode(record))
        if not self._there.is_set():
            self._there.set()

    def close(self) -> None:
        """Write what is left and close the file, or give a disk that hangs up for lost. May be
        called again."""
        self._closing.set()
        self._there.set()
        self._thread.join(CLOSE_SECONDS)

    def discard(self) -> None:
        """Close and remove the file: nothing has happened that is worth keeping."""
        self.close()
        if self.path.is_file():
            self.path.unlink()

    def _run(self) -> None:
        try:
            with self._file:
                while not self._closing.is_set():
                    self._there.wait()
                    self._closing.wait(FLUSH_SECONDS)
                    self._there.clear()
                    self._flush()
                self._flush()
                self._put(self._compressor.flush())
        except OSError as error:
            self._end(str(error))
        finally:
            self.ended = True
            self._waiting.clear()

    def _flush(self) -> None:
        if self.ended:
            return
        records = [self._waiting.popleft() for _ in range(len(self._waiting))]
        if records:
            # dd: a msgpack array whose length follows in four bytes
            frame = b"\xdd" + len(records).to_bytes(4, "big") + b"".join(records)
            squeezed = self._compressor.compress(len(frame).to_bytes(_LENGTH, "big") + frame)
            self._put(squeezed + self._compressor.flush(zlib.Z_SYNC_FLUSH))

    def _put(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[self._file.write(view) :]

    def _end(self, why: str) -> None:
        if not self.ended:
            self.ended = True
            log.error("the recording ends here", file=str(self.path), why=why)


def read(path: Path, kind: Any) -> Iterator[Any]:
    """The records of a tape, decoded as `kind`, up to where it was cut. Raises TapeError."""
    decode = msgspec.msgpack.Decoder(list[kind]).decode
    try:
        for frame in _frames(path.expanduser()):
            yield from decode(frame)
    except (zlib.error, msgspec.DecodeError) as error:
        raise TapeError(f"{path} is not a recording that can be read: {error}") from None
    except OSError as error:
        raise TapeError(f"cannot read {path}: {error.strerror}") from None


def _frames(path: Path) -> Iterator[bytes]:
    stream, held = zlib.decompressobj(), bytearray()
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            held += stream.decompress(piece)
            while len(held) >= _LENGTH:
                end = _LENGTH + int.from_bytes(held[:_LENGTH], "big")
                if len(held) < end:
                    break
                yield bytes(held[_LENGTH:end])
                del held[:end]
