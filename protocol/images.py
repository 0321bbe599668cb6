"""What an image is by its own bytes: its kind and its size. Pure; decodes no pixel.

A declared type may lie, and a file of a few kilobytes may say that it is a gigapixel: whoever
decodes it would take the memory for it. So the header is read here, by hand and within bounds, and
what is too large is refused before anything that decodes sees it. Sources: W3C PNG 5.2 and 11.2.2,
GIF89a 18, ITU-T T.81 B.2.2, RFC 9649.
"""

from typing import Final, Literal, NamedTuple

ImageType = Literal["image/png", "image/jpeg", "image/webp", "image/gif"]
IMAGE_TYPES: Final[tuple[ImageType, ...]] = ("image/png", "image/jpeg", "image/webp", "image/gif")

MAX_IMAGES: Final = 50
"""In one request."""
MAX_IMAGE_BYTES: Final = 6 << 20
"""Of one image; as base64 it fills a request's body of 8 MiB."""
MAX_IMAGES_BYTES: Final = 12 << 20
"""Of all images of a request; as base64 they fit into half a task."""
MAX_IMAGE_PIXELS: Final = 25_000_000
"""Of one image: an engine that decodes it takes 75 MB."""
MAX_IMAGES_PIXELS: Final = 50_000_000
"""Of all images of a request: an engine decodes them at the same time."""
MAX_SIDE_PX: Final = 16_384

_PNG: Final = b"\x89PNG\r\n\x1a\n"
_GIFS: Final = (b"GIF87a", b"GIF89a")
_JPEG: Final = b"\xff\xd8\xff"
_MAX_SEGMENTS: Final = 1024
"""Of a JPEG before its size; cameras write some twenty."""
_NO_LENGTH: Final = frozenset((0x01, *range(0xD0, 0xD9)))
_FRAMES: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_MARK: Final = 0xFF
_VP8L_MARK: Final = 0x2F
_VP8L_BYTES: Final = 25
"""Up to the end of its size."""
_END: Final = frozenset({0xD9, 0xDA})


class ImageHeader(NamedTuple):
    """What an image says of itself."""

    media_type: ImageType
    width_px: int
    height_px: int

    @property
    def n_pixels(self) -> int:
        """What decoding it comes to."""
        return self.width_px * self.height_px


def image_type(data: bytes) -> ImageType | None:
    """Tell the kind of an image by its first bytes; None for what is none of the four."""
    if data.startswith(_PNG):
        return "image/png"
    if data.startswith(_JPEG):
        return "image/jpeg"
    if data.startswith(_GIFS):
        return "image/gif"
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return None


def read_image_header(data: bytes) -> ImageHeader | None:
    """Read the kind and the size of an image; None where its header is broken or not there."""
    kind = image_type(data)
    match kind:
        case "image/png":
            size = _png_size(data)
        case "image/jpeg":
            size = _jpeg_size(data)
        case "image/gif":
            size = _numbers(data, 6, 2, "little")
        case "image/webp":
            size = _webp_size(data)
        case None:
            return None
    if size is None or 0 in size:
        return None
    return ImageHeader(kind, *size)


def _numbers(
    data: bytes, at: int, n_bytes: int, order: Literal["little", "big"]
) -> tuple[int, int] | None:
    """Read two numbers that follow each other; None where the data ends before."""
    if len(data) < at + 2 * n_bytes:
        return None
    first, second = data[at : at + n_bytes], data[at + n_bytes : at + 2 * n_bytes]
    return int.from_bytes(first, order), int.from_bytes(second, order)


def _png_size(data: bytes) -> tuple[int, int] | None:
    if data[8:16] != b"\x00\x00\x00\x0dIHDR":
        return None
    return _numbers(data, 16, 4, "big")


def _jpeg_size(data: bytes) -> tuple[int, int] | None:
    """Step from segment to segment, up to the frame's own header."""
    at = 2
    for _ in range(_MAX_SEGMENTS):
        if len(data) < at + 4 or data[at] != _MARK:
            return None
        mark = data[at + 1]
        if mark == _MARK:  # a mark may have any number of these before it
            at += 1
        elif mark in _NO_LENGTH:
            at += 2
        elif mark in _FRAMES:
            size = _numbers(data, at + 5, 2, "big")
            return None if size is None else (size[1], size[0])
        elif mark in _END:
            return None
        else:
            at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    return None


def _webp_size(data: bytes) -> tuple[int, int] | None:
    match data[12:16]:
        case b"VP8 ":
            size = _numbers(data, 26, 2, "little") if data[23:26] == b"\x9d\x01\x2a" else None
            return None if size is None else (size[0] & 0x3FFF, size[1] & 0x3FFF)
        case b"VP8L":
            if len(data) < _VP8L_BYTES or data[20] != _VP8L_MARK:
                return None
            bits = int.from_bytes(data[21:_VP8L_BYTES], "little")
            return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        case b"VP8X":
            size = _numbers(data, 24, 3, "little")
            return None if size is None else (size[0] + 1, size[1] + 1)
        case _:
            return None
