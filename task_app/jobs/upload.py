"""A file of lines to imitate, checked while it arrives; kept under the hash of what it holds.

The body is `multipart/form-data` with the parts `file` and, if wanted, `purpose`. It is read as a stream: neither the
body nor the file is ever held in memory, and nothing stays of one that is refused.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from task_app.core.errors import ConfigError, StoreError
from task_app.jobs.rows import TrainingFile
from task_app.train.sft_lines import Malformed, checked_line, made_by

__all__ = ["Upload", "forget_partial", "path_of"]

_PURPOSES = ("fine-tune", "training", "validation")
_LONGEST_FIELD = 200
_PARTIAL = ".partial-"


def path_of(folder: Path, sha256: str) -> Path:
    """Where a file of this hash is kept, in the folder of files."""
    return folder / f"{sha256}.jsonl"


def forget_partial(folder: Path) -> None:
    """Remove what uploads left that ended with their service. Only for a service that has the folder to itself."""
    for path in folder.glob(f"{_PARTIAL}*"):
        path.unlink(missing_ok=True)


class Upload:
    """One upload: `feed` what arrives, then `finish`, and `close` in any case.

    The first fault is noted and the rest of the body passed over, so that a client that sends before it listens gets
    to hear of it. Raises ConfigError for a body that is no such form, StoreError where the folder cannot be written.
    """

    def __init__(self, folder: Path, content_type: str, max_line_bytes: int) -> None:
        kind, options = parse_options_header(content_type)
        if kind != b"multipart/form-data" or b"boundary" not in options:
            raise _refused("", "the body must be multipart/form-data")
        self._folder, self._lines = folder, _Lines(max_line_bytes)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            descriptor, name = tempfile.mkstemp(prefix=_PARTIAL, dir=folder)
        except OSError as error:
            raise _not_written(error) from error
        self._file, self._partial = os.fdopen(descriptor, "wb"), Path(name)
        self._sha256, self._bytes = hashlib.sha256(), 0
        self._part, self._header, self._headers = "", [b"", b""], dict[bytes, bytes]()
        self._fields = {"purpose": b"fine-tune"}
        self._filename: str | None = None
        self._ended = False
        self._fault: ConfigError | StoreError | None = None
        self._parser = MultipartParser(options[b"boundary"], callbacks=self._callbacks())  # type: ignore[arg-type]

    def feed(self, chunk: bytes) -> None:
        """The next bytes of the body."""
        if self._fault is not None:
            return
        try:
            self._parser.write(chunk)
        except FormParserError:
            self._fault = _refused("", "the body is no multipart form")
        except ConfigError as error:
            self._fault = error
        except OSError as error:
            self._fault = _not_written(error)

    def finish(self) -> TrainingFile:
        """The file, kept. Raises ConfigError naming line and field of the first fault, StoreError on a full disk."""
        if self._fault is None:
            try:
                self._lines.finish()
                self._check_form()
            except ConfigError as error:
                self._fault = error
        if self._fault is not None:
            raise self._fault
        sha256 = self._sha256.hexdigest()
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
            os.replace(self._partial, path_of(self._folder, sha256))
        except OSError as error:
            raise _not_written(error) from error
        return TrainingFile(
            id=f"file-{sha256}",
            sha256=sha256,
            bytes=self._bytes,
            lines=self._lines.count,
            prompt_hashes=sorted(self._lines.prompt_hashes),
            filename=self._filename or "",
            purpose=self._fields["purpose"].decode(),
            created_at=time.time(),
        )

    def close(self) -> None:
        """Forget what was not kept."""
        with suppress(OSError):  # closing tries once more to write what a full disk had no room for
            self._file.close()
        with suppress(FileNotFoundError):
            self._partial.unlink()

    def _check_form(self) -> None:
        if not self._ended:
            raise _refused("", "the body ends before its form does")
        if self._filename is None:
            raise _refused("file", "a file is needed")
        if not self._lines.count:
            raise _refused("file", "the file is empty")
        if self._fields["purpose"].decode("utf-8", "replace") not in _PURPOSES:
            raise _refused("purpose", f"one of {', '.join(_PURPOSES)} is needed")

    # -- what the parser tells -------------------------------------------------------------------

    def _callbacks(self) -> dict[str, object]:
        return {
            "on_part_begin": self._headers.clear,
            "on_header_begin": self._begin_header,
            "on_header_field": lambda data, start, end: self._add_to_header(0, data[start:end]),
            "on_header_value": lambda data, start, end: self._add_to_header(1, data[start:end]),
            "on_header_end": self._end_header,
            "on_headers_finished": self._begin_part,
            "on_part_data": lambda data, start, end: self._add_data(data[start:end]),
            "on_end": self._end,
        }

    def _begin_header(self) -> None:
        self._header = [b"", b""]

    def _add_to_header(self, index: int, data: bytes) -> None:
        self._header[index] += data

    def _end_header(self) -> None:
        self._headers[self._header[0].lower()] = self._header[1]

    def _begin_part(self) -> None:
        _, options = parse_options_header(self._headers.get(b"content-disposition", b""))
        self._part = options.get(b"name", b"").decode("utf-8", "replace")
        if self._part not in ("file", "purpose"):
            raise _refused("", "a part is unknown; parts are file and purpose")
        if self._part == "file":
            if self._filename is not None:
                raise _refused("file", "one file at a time is taken")
            name = options.get(b"filename", b"").decode("utf-8", "replace").replace("\\", "/")
            self._filename = name.rpartition("/")[2][:_LONGEST_FIELD]
        else:
            self._fields[self._part] = b""

    def _add_data(self, data: bytes) -> None:
        if self._part == "file":
            self._lines.feed(data)
            self._file.write(data)
            self._sha256.update(data)
            self._bytes += len(data)
        else:
            self._fields[self._part] += data
            if len(self._fields[self._part]) > _LONGEST_FIELD:
                raise _refused(self._part, f"at most {_LONGEST_FIELD} bytes are taken")

    def _end(self) -> None:
        self._ended = True


class _Lines:
    """Checks lines as their bytes arrive."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes, self._rest = max_bytes, bytearray()
        self.count, self.prompt_hashes = 0, set[str]()

    def feed(self, data: bytes) -> None:
        """More bytes. Raises ConfigError for a line that cannot be learned from."""
        first, *others = data.split(b"\n")
        self._add(first)
        for part in others:
            self._check()
            self._add(part)

    def finish(self) -> None:
        """A last line may lack its end."""
        if self._rest:
            self._check()

    def _add(self, part: bytes) -> None:
        self._rest += part
        if len(self._rest) > self._max_bytes:
            raise _refused("file", f"line {self.count + 1}: a line may have at most {self._max_bytes} bytes")

    def _check(self) -> None:
        self.count += 1
        try:
            example = checked_line(self._rest.decode("utf-8"))
        except UnicodeDecodeError as error:
            raise _refused("file", f"line {self.count}: not UTF-8") from error
        except Malformed as error:
            field = f"file.{error.field}".rstrip(".")
            raise _refused(field, f"line {self.count}: {error}") from error
        self._rest.clear()
        if made := made_by(example):
            self.prompt_hashes.add(str(made))


def _refused(field: str, sentence: str) -> ConfigError:
    return ConfigError(f"{field or 'the body'}: {sentence}", field=field, public=sentence)


def _not_written(error: OSError) -> StoreError:
    return StoreError(f"the upload cannot be kept: {error}")
