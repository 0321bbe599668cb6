"""Small images as bytes: whole ones, and mere headers that say any size."""

import base64
import struct
import zlib
from typing import Final

from protocol.images import read_image_header
from protocol.tasks import TaskImage

JPEG_SEGMENT: Final = b"\xff\xe1\x00\x08Exif\x00\x00"


def a_png(width_px: int = 4, height_px: int = 3, *, shade: int = 128) -> bytes:
    """Make a whole PNG of one shade of grey."""
    rows = (b"\x00" + bytes([shade]) * width_px) * height_px
    header = struct.pack(">IIBBBBB", width_px, height_px, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + b"".join((
        _png_chunk(b"IHDR", header),
        _png_chunk(b"IDAT", zlib.compress(rows)),
        _png_chunk(b"IEND", b""),
    ))  # fmt: skip


def a_png_that_says(width_px: int, height_px: int) -> bytes:
    """Make the beginning of a PNG of any size, which nobody has to decode."""
    header = struct.pack(">IIBBBBB", width_px, height_px, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + _png_chunk(b"IHDR", header)


def a_jpeg(width_px: int = 4, height_px: int = 3, *, before: bytes = JPEG_SEGMENT) -> bytes:
    """Make the beginning of a JPEG, with segments before its size."""
    frame = struct.pack(">BBHBHHB", 0xFF, 0xC0, 17, 8, height_px, width_px, 3)
    return b"\xff\xd8" + before + frame + bytes(9) + b"\xff\xda"


def a_gif(width_px: int = 4, height_px: int = 3) -> bytes:
    """Make the beginning of a GIF."""
    return b"GIF89a" + struct.pack("<HH", width_px, height_px) + bytes(3)


def a_webp(width_px: int = 4, height_px: int = 3, *, kind: bytes = b"VP8 ") -> bytes:
    """Make the beginning of a WebP of one of its three kinds."""
    bodies = {
        b"VP8 ": bytes(3) + b"\x9d\x01\x2a" + struct.pack("<HH", width_px | 0x4000, height_px),
        b"VP8L": b"\x2f" + struct.pack("<I", (width_px - 1) | (height_px - 1) << 14),
        b"VP8X": bytes(4) + (width_px - 1).to_bytes(3, "little")
        + (height_px - 1).to_bytes(3, "little"),
    }  # fmt: skip
    body = bodies[kind]
    chunk = kind + struct.pack("<I", len(body)) + body
    return b"RIFF" + struct.pack("<I", len(chunk) + 4) + b"WEBP" + chunk


def base64_of(data: bytes) -> str:
    """Encode as clients do."""
    return base64.b64encode(data).decode()


def data_url(data: bytes, declared: str = "image/png") -> str:
    """Write an image as an address, under whatever type."""
    return f"data:{declared};base64,{base64_of(data)}"


def a_task_image(data: bytes, *, at: int = 0) -> TaskImage:
    """Describe an image as a task holds it."""
    header = read_image_header(data)
    assert header is not None
    return TaskImage(
        at=at,
        media_type=header.media_type,
        width_px=header.width_px,
        height_px=header.height_px,
        data=base64_of(data),
    )


def _png_chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
