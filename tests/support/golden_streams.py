"""Streams as a client gets them, compared byte by byte with a file in the repository.

`UPDATE_STREAMS=1` writes the files anew; a review then reads what clients will see change.
"""

import os
from pathlib import Path
from typing import Final

STREAMS: Final = Path(__file__).resolve().parent.parent / "conformance" / "streams"


def check_stream(name: str, sent: bytes) -> None:
    """Compare a stream with the file `<name>.txt`.

    Raises:
        AssertionError: They differ, or there is no such file.
    """
    path = STREAMS / f"{name}.txt"
    if os.environ.get("UPDATE_STREAMS") == "1":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(sent)
        return
    assert path.exists(), f"there is no stream {name}; run with UPDATE_STREAMS=1, and read it"
    assert sent == path.read_bytes(), (
        f"the stream {name} has changed; run with UPDATE_STREAMS=1 if it should"
    )
