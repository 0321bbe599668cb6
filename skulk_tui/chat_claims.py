"""Which conversations this program has open, so that another one of the same operator keeps off.

Two programs that write one file would each lose what the other has added. A claim is a lock on a
file beside the conversation: the kernel lets go of it with the process, however that ends.
"""

import contextlib
import fcntl
import os
import threading
from pathlib import Path
from typing import Final, final

from skulk_tui.own_files import PRIVATE_DIRECTORY

_MODE: Final = 0o600
_SUFFIX: Final = ".open"
_TRIES: Final = 10


@final
class ChatClaims:
    """The claims of one program; blocking, and safe to use from several threads.

    Args:
        folder: Where the conversations lie; None claims nothing and has all it asks for.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._held: dict[str, int] = {}
        self._lock = threading.Lock()

    def claim(self, conversation_id: str) -> bool:
        """Have a conversation for this program alone; False where another one has it.

        Where no lock can be had at all (a file system that has none, a folder that cannot be
        written), it is had: whoever can write there is alone as far as anybody can tell.
        """
        if self._folder is None:
            return True
        with self._lock:
            if conversation_id in self._held:
                return True
            for _ in range(_TRIES):
                try:
                    descriptor = self._take(self._path(conversation_id))
                except BlockingIOError:
                    return False
                except OSError:
                    return True
                if descriptor is not None:
                    self._held[conversation_id] = descriptor
                    return True
            return False

    def release(self) -> None:
        """Let go of all of them."""
        with self._lock:
            for conversation_id, descriptor in self._held.items():
                # While it is still locked: who has opened it meanwhile finds it gone, and looks
                # again.
                with contextlib.suppress(OSError):
                    self._path(conversation_id).unlink(missing_ok=True)
                os.close(descriptor)
            self._held.clear()

    def _path(self, conversation_id: str) -> Path:
        assert self._folder is not None  # ruff: ignore[assert]  nothing is held without one
        return self._folder / f".{conversation_id}{_SUFFIX}"

    @staticmethod
    def _take(path: Path) -> int | None:
        """Lock a file; None where it was removed meanwhile."""
        path.parent.mkdir(mode=PRIVATE_DIRECTORY, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _MODE)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if path.stat().st_ino == os.fstat(descriptor).st_ino:
                return descriptor
        except FileNotFoundError:
            pass
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
        return None
