"""The kind and the size of an image, from its own bytes."""

import random

import pytest

from protocol.images import ImageHeader, ImageType, image_type, read_image_header
from tests.support.image_files import JPEG_SEGMENT, a_gif, a_jpeg, a_png, a_png_that_says, a_webp

WHOLE: dict[str, tuple[ImageType, bytes]] = {
    "png": ("image/png", a_png(640, 481)),
    "jpeg": ("image/jpeg", a_jpeg(640, 481)),
    "gif": ("image/gif", a_gif(640, 481)),
    "webp lossy": ("image/webp", a_webp(640, 481, kind=b"VP8 ")),
    "webp lossless": ("image/webp", a_webp(640, 481, kind=b"VP8L")),
    "webp extended": ("image/webp", a_webp(640, 481, kind=b"VP8X")),
}


@pytest.mark.parametrize("name", WHOLE)
def test_every_kind_says_its_size(name: str) -> None:
    kind, data = WHOLE[name]
    assert image_type(data) == kind
    assert read_image_header(data) == ImageHeader(kind, 640, 481)
    assert read_image_header(data) == (kind, 640, 481)


@pytest.mark.parametrize("name", WHOLE)
def test_an_image_that_ends_before_its_size_is_none(name: str) -> None:
    _, data = WHOLE[name]
    headers = [read_image_header(data[:n_bytes]) for n_bytes in range(len(data))]
    assert headers[0] is None
    first = next((at for at, header in enumerate(headers) if header is not None), len(headers))
    assert first >= 10  # no shorter one has both numbers
    assert len(set(headers[first:])) <= 1


def test_what_is_no_image_is_none() -> None:
    for data in (b"", b"hi", b"BM" + bytes(60), b"\x00\x00\x01\x00" + bytes(60), b"<svg/>"):
        assert image_type(data) is None
        assert read_image_header(data) is None


def test_a_size_of_nothing_is_no_size() -> None:
    assert read_image_header(a_png_that_says(0, 5)) is None
    assert read_image_header(a_jpeg(5, 0)) is None
    assert read_image_header(a_gif(0, 0)) is None


def test_a_jpeg_is_stepped_through_to_its_frame() -> None:
    padded = b"\xff\xff\xff" + JPEG_SEGMENT[1:] + b"\xff\x01" + b"\xff\xd0" + JPEG_SEGMENT * 40
    assert read_image_header(a_jpeg(7, 9, before=padded)) == ("image/jpeg", 7, 9)
    a_thumbnail = b"\xff\xe1\x00\x0b" + b"\xff\xc0\x00\x11\x08\x00\x01\x00\x01"
    assert read_image_header(a_jpeg(7, 9, before=a_thumbnail)) == ("image/jpeg", 7, 9)


def test_a_jpeg_without_an_end_of_segments_is_given_up() -> None:
    assert read_image_header(a_jpeg(7, 9, before=JPEG_SEGMENT * 2000)) is None
    assert read_image_header(b"\xff\xd8" + b"\xff" * 5000) is None
    assert read_image_header(a_jpeg(7, 9, before=b"\xff\xda\x00\x02")) is None


def test_no_bytes_at_all_make_the_reader_fail() -> None:
    chance = random.Random(5)  # ruff: ignore[suspicious-non-cryptographic-random-usage] - seeded
    for kind, data in WHOLE.values():
        for _ in range(300):
            junk = bytearray(data[:200])
            for _ in range(chance.randint(1, 6)):
                junk[chance.randrange(len(junk))] = chance.randrange(256)
            header = read_image_header(bytes(junk))
            assert header is None or (header.width_px > 0 and header.height_px > 0), kind
