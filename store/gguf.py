"""The header of a GGUF file, read with bounds: what stands in it, not what it means.

A header comes from a stranger. Counts, lengths and offsets in it are claims: each is checked
against a cap and against the file's real size before anything is done with it, values that nobody
asks for are stepped over, and what is kept has a budget. Only the header is read, never the
weights.

Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import errno
import os
import stat
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn, final

from protocol.errors import StoreError

MAX_KEYS: Final = 16_384
MAX_TENSORS: Final = 131_072
MAX_KEY_BYTES: Final = 1_024
MAX_STRING_BYTES: Final = 64 * 1024 * 1024
MAX_ELEMENTS: Final = 8_000_000
"""Array elements in all: the largest vocabularies have 262,144 tokens and 520,000 merges."""
MAX_DEPTH: Final = 2
MAX_NESTED: Final = 256
"""No known model has an array of arrays; a small one is stepped over."""
MAX_DIMENSIONS: Final = 4
MAX_HEADER_BYTES: Final = 256 * 1024 * 1024

_KEPT_STRING_BYTES: Final = 65_536
_KEPT_ELEMENTS: Final = 4_096
_KEPT_BUDGET_BYTES: Final = 4 * 1024 * 1024
_WINDOW_BYTES: Final = 256 * 1024
_MAGIC: Final = b"GGUF"
_VERSIONS: Final = (2, 3)
_DEFAULT_ALIGNMENT: Final = 32

_LEADS_NOWHERE: Final = frozenset({
    errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG,
})  # fmt: skip

_STRING: Final = 8
_ARRAY: Final = 9
_BOOL: Final = 7
_SCALARS: Final[dict[int, struct.Struct]] = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: struct.Struct("<I"),
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    _BOOL: struct.Struct("<?"),
    10: struct.Struct("<Q"),
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}
_U32: Final = _SCALARS[4]
_U64: Final = _SCALARS[10]

_BLOCKS: Final[dict[int, tuple[int, int]]] = {
    0: (1, 4),
    1: (1, 2),
    2: (32, 18),
    3: (32, 20),
    6: (32, 22),
    7: (32, 24),
    8: (32, 34),
    9: (32, 36),
    10: (256, 84),
    11: (256, 110),
    12: (256, 144),
    13: (256, 176),
    14: (256, 210),
    15: (256, 292),
    16: (256, 66),
    17: (256, 74),
    18: (256, 98),
    19: (256, 50),
    20: (32, 18),
    21: (256, 110),
    22: (256, 82),
    23: (256, 136),
    24: (1, 1),
    25: (1, 2),
    26: (1, 4),
    27: (1, 8),
    28: (1, 8),
    29: (256, 56),
    30: (1, 2),
    34: (256, 54),
    35: (256, 66),
    39: (32, 17),
}
"""Type of a tensor to (elements a block, bytes a block). Source: ggml.h, `ggml_type`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """A value that was checked and stepped over: too long to be worth keeping."""

    length: int
    """Bytes of a string, elements of an array."""


Scalar = int | float | bool | str
GgufValue = Scalar | tuple[Scalar, ...] | Skipped


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufDocument:
    """What a header says, checked to lie within the file.

    Invariant: every tensor ends at or before `file_bytes`.
    """

    version: int
    metadata: dict[str, GgufValue]
    n_tensors: int
    tensor_bytes: int
    header_bytes: int
    file_bytes: int


def read_gguf(path: Path) -> GgufDocument:
    """Read the header of a GGUF file.

    Blocking; a typical header takes under 0.1 s.

    Raises:
        StoreError: `store.gguf_invalid` when it is no GGUF or its header lies,
            `store.gguf_truncated` when the file ends before what the header promises,
            `store.not_found`, `store.disk_failed`.
    """
    try:
        # Non-blocking, or a named pipe would hang the reader.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise unreadable(path, error) from error
    try:
        return _Reader(descriptor, str(path)).document()
    except OSError as error:
        raise unreadable(path, error) from error
    finally:
        os.close(descriptor)


@final
class _Reader:
    """Steps through a file in one direction, in windows of 256 KiB."""

    def __init__(self, descriptor: int, name: str) -> None:
        found = os.fstat(descriptor)
        self._descriptor = descriptor
        self._name = name
        self._size = found.st_size
        self._window = b""
        self._window_start = 0
        self._position = 0
        self._kept_bytes = 0
        self._elements = 0
        if not stat.S_ISREG(found.st_mode):
            self._refuse("not a regular file")

    def document(self) -> GgufDocument:
        version = self._preamble()
        n_tensors, n_keys = self._unsigned(), self._unsigned()
        if n_keys > MAX_KEYS:
            self._refuse(f"it claims {n_keys} metadata keys, at most {MAX_KEYS} are read")
        if n_tensors > MAX_TENSORS:
            self._refuse(f"it claims {n_tensors} tensors, at most {MAX_TENSORS} are read")
        metadata: dict[str, GgufValue] = {}
        for _ in range(n_keys):
            key = self._key()
            if key in metadata:
                self._refuse(f"key {key!r} stands in it twice")
            metadata[key] = self._value(self._type(), depth=0)
        extents = [self._tensor() for _ in range(n_tensors)]
        return GgufDocument(
            version=version,
            metadata=metadata,
            n_tensors=n_tensors,
            tensor_bytes=self._tensor_bytes(extents, self._alignment(metadata)),
            header_bytes=self._position,
            file_bytes=self._size,
        )

    def _preamble(self) -> int:
        if self._size < len(_MAGIC):
            self._refuse_cut(len(_MAGIC))
        if self._take(4) != _MAGIC:
            self._refuse("it does not begin with GGUF")
        version = self._number(_U32)
        if int.from_bytes(version.to_bytes(4, "big"), "little") in _VERSIONS:
            self._refuse("it is big-endian; only little-endian files are read")
        if version not in _VERSIONS:
            self._refuse(f"it has version {version}; versions 2 and 3 are read")
        return version

    def _alignment(self, metadata: dict[str, GgufValue]) -> int:
        alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or not 0 < alignment <= 1 << 20 or alignment % 8:
            self._refuse(f"general.alignment is {alignment!r}, not a small multiple of 8")
        return alignment

    def _tensor(self) -> tuple[int, int | None]:
        """Read one tensor's place: offset, and size where the type is known."""
        name = self._key()
        n_dimensions = self._number(_U32)
        if n_dimensions > MAX_DIMENSIONS:
            self._refuse(f"tensor {name!r} has {n_dimensions} dimensions")
        n_elements = 1
        for _ in range(n_dimensions):
            n_elements *= self._unsigned()
        kind = self._number(_U32)
        offset = self._unsigned()
        if n_elements >= 1 << 56:
            self._refuse(f"tensor {name!r} claims {n_elements} elements")
        block = _BLOCKS.get(kind)
        if block is None:
            return offset, None
        per_block, block_bytes = block
        return offset, -(-n_elements // per_block) * block_bytes

    def _tensor_bytes(self, extents: list[tuple[int, int | None]], alignment: int) -> int:
        """Check that every tensor lies in the file; give the bytes from first to last."""
        start = -(-self._position // alignment) * alignment
        end = max((offset + (size or 0) for offset, size in extents), default=0)
        if extents and start + end > self._size:
            self._refuse_cut(start + end)
        return max(0, self._size - start) if extents else 0

    def _value(self, kind: int, *, depth: int) -> GgufValue:
        scalar = _SCALARS.get(kind)
        if scalar is not None:
            return self._number(scalar)
        if kind == _STRING:
            return self._string()
        if kind != _ARRAY:
            self._refuse(f"a value has the unknown type {kind}")
        return self._array(depth)

    def _string(self) -> str | Skipped:
        length = self._length(MAX_STRING_BYTES, "string")
        if length > _KEPT_STRING_BYTES or self._kept_bytes + length > _KEPT_BUDGET_BYTES:
            self._skip(length)
            return Skipped(length=length)
        self._kept_bytes += length
        return self._take(length).decode("utf-8", errors="replace")

    def _array(self, depth: int) -> GgufValue:
        kind, length = self._type(), self._unsigned()
        self._elements += length
        if self._elements > MAX_ELEMENTS:
            self._refuse(f"its arrays have more than {MAX_ELEMENTS} elements")
        scalar = _SCALARS.get(kind)
        if scalar is not None:
            return self._scalars(scalar, length)
        if kind == _STRING:
            self._skip_strings(length)
        elif kind == _ARRAY:
            if depth >= MAX_DEPTH or length > MAX_NESTED:
                self._refuse(f"arrays are nested {depth + 1} deep, {length} wide")
            for _ in range(length):
                self._array(depth + 1)
        else:
            self._refuse(f"an array has the unknown type {kind}")
        return Skipped(length=length)

    def _scalars(self, scalar: struct.Struct, length: int) -> GgufValue:
        n_bytes = length * scalar.size
        # Counted at what an element costs in memory, not on disk.
        if length > _KEPT_ELEMENTS or self._kept_bytes + 32 * length > _KEPT_BUDGET_BYTES:
            self._skip(n_bytes)
            return Skipped(length=length)
        self._kept_bytes += 32 * length
        return tuple(value for (value,) in scalar.iter_unpack(self._take(n_bytes)))

    def _skip_strings(self, count: int) -> None:
        # Vocabularies have hundreds of thousands: step within the window without a call for each.
        unpack, size = _U64.unpack_from, _U64.size
        remaining = count
        while remaining:
            self._fill(size)
            window, at = self._window, self._position - self._window_start
            last = len(window) - size
            while remaining and at <= last:
                (length,) = unpack(window, at)
                if length > MAX_STRING_BYTES:
                    self._refuse(f"a string claims {length} bytes")
                at += size + length
                remaining -= 1
            self._move_to(self._window_start + at)

    def _key(self) -> str:
        raw = self._take(self._length(MAX_KEY_BYTES, "name"))
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            self._refuse(f"a name is not UTF-8: {raw[:40]!r}")

    def _length(self, most: int, what: str) -> int:
        length = self._unsigned()
        if length > most:
            self._refuse(f"a {what} claims {length} bytes, at most {most} are read")
        return length

    def _type(self) -> int:
        return int(self._number(_U32))

    def _unsigned(self) -> int:
        return int(self._number(_U64))

    def _number(self, scalar: struct.Struct) -> int:
        (value,) = scalar.unpack(self._take(scalar.size))
        return value

    def _take(self, n_bytes: int) -> bytes:
        self._fill(n_bytes)
        at = self._position - self._window_start
        self._position += n_bytes
        return self._window[at : at + n_bytes]

    def _skip(self, n_bytes: int) -> None:
        self._move_to(self._position + n_bytes)

    def _move_to(self, position: int) -> None:
        self._check(position)
        self._position = position

    def _check(self, position: int) -> None:
        if position > self._size:
            self._refuse_cut(position)
        if position > MAX_HEADER_BYTES:
            self._refuse(f"its header is longer than {MAX_HEADER_BYTES} bytes")

    def _fill(self, n_bytes: int) -> None:
        """Have the next `n_bytes` in the window."""
        at = self._position - self._window_start
        if at >= 0 and at + n_bytes <= len(self._window):
            return
        self._check(self._position + n_bytes)
        self._window = os.pread(self._descriptor, max(n_bytes, _WINDOW_BYTES), self._position)
        self._window_start = self._position
        if len(self._window) < n_bytes:
            # The file became shorter while it was read.
            self._refuse_cut(self._position + n_bytes)

    def _refuse_cut(self, needed_bytes: int) -> NoReturn:
        raise StoreError(
            "store.gguf_truncated",
            f"{self._name} has {self._size} bytes and was cut short: "
            f"what its header promises ends at {needed_bytes}",
            remediation="Fetch or copy the file again.",
            details={"file_bytes": self._size, "needed_bytes": needed_bytes},
        )

    def _refuse(self, problem: str) -> NoReturn:
        raise StoreError(
            "store.gguf_invalid",
            f"{self._name} is not a usable GGUF file: {problem} (at byte {self._position})",
            remediation="Check that this is the model's .gguf file, and fetch it again.",
            details={"at_byte": self._position},
        )


def unreadable(path: Path, error: OSError) -> StoreError:
    """Say why a file could not be read.

    Returns:
        `store.not_found` where the path leads nowhere, `store.disk_failed` for anything else.
    """
    if error.errno in _LEADS_NOWHERE:
        reason = "" if error.errno == errno.ENOENT else f": {error.strerror}"
        return StoreError(
            "store.not_found",
            f"no file at {path}{reason}",
            remediation="Check the path; it is read on the node, not where the command runs.",
            details={"errno": error.errno},
        )
    return StoreError(
        "store.disk_failed",
        f"{path} cannot be read: {error.strerror} (errno {error.errno})",
        remediation="Check that the user of the daemon may read the file.",
        details={"errno": error.errno},
    )
