"""Images of a request: told by their bytes, bounded, and refused with the numbers."""

import pytest

from protocol.errors import RequestError
from protocol.images import (
    MAX_IMAGE_BYTES,
    MAX_IMAGE_PIXELS,
    MAX_IMAGES,
    MAX_IMAGES_BYTES,
    MAX_IMAGES_PIXELS,
    MAX_SIDE_PX,
)
from protocol.tasks import ChatMessage
from skulkd.api.dialects.pictures import MAX_REMOTE, ContentWriter, Pictures
from skulkd.api.dialects.turns import in_turns
from tests.support.image_files import a_gif, a_png, a_png_that_says, a_webp, base64_of, data_url

URL = "https://images.example.org/a.png"


def refused(pictures: Pictures, value: object) -> RequestError:
    with pytest.raises(RequestError) as raised:
        pictures.at_url(value, "here")
    assert raised.value.details["param"] == "here"
    assert raised.value.remediation
    return raised.value


def test_the_type_is_that_of_the_bytes_whatever_is_declared() -> None:
    for declared in ("image/png", "text/html", "", "image/webp;charset=x"):
        image = Pictures().at_url(data_url(a_gif(8, 5), declared), "here")
        assert (image.media_type, image.width_px, image.height_px) == ("image/gif", 8, 5)
        assert image.data == base64_of(a_gif(8, 5))


def test_base64_may_be_broken_into_lines_and_the_scheme_written_large() -> None:
    encoded = base64_of(a_png())
    broken = "\r\n".join(encoded[at : at + 76] for at in range(0, len(encoded), 76))
    assert Pictures().in_base64(broken, "here").data == encoded
    assert Pictures().at_url(f"DATA:image/png;BASE64,{encoded}", "here").data == encoded
    assert Pictures().in_base64_or_url(data_url(a_png()), "here").data == encoded
    assert Pictures().in_base64_or_url(encoded, "here").data == encoded


@pytest.mark.parametrize(
    "value",
    [
        None, 5, {}, "", "x", "ftp://a/b.png", "data:", "data:image/png,plain",
        "data:image/png;base64", "data:image/png;base64,", "data:image/png;base64,!",
        "data:image/png;base64,AAA", "data:image/png;base64,é", data_url(b"hello"),
        data_url(b"<svg xmlns='http://www.w3.org/2000/svg'/>", "image/svg+xml"),
        "data:image/png;" + "x" * 5000 + ";base64,AAAA", "file:///etc/passwd",
    ],
)  # fmt: skip
def test_what_is_no_image_is_refused_by_its_place(value: object) -> None:
    assert refused(Pictures(), value).code == "request.invalid"


def test_each_bound_is_told_with_both_numbers() -> None:
    many = Pictures()
    for _ in range(MAX_IMAGES):
        many.at_url(data_url(a_png(1, 1)), "here")
    assert numbers(refused(many, data_url(a_png(1, 1)))) == (MAX_IMAGES + 1, MAX_IMAGES)

    padded = a_png() + bytes(MAX_IMAGE_BYTES - len(a_png()))
    assert Pictures().at_url(data_url(padded), "here")
    assert numbers(refused(Pictures(), data_url(padded + b"x")))[1] == MAX_IMAGE_BYTES
    assert numbers(refused(Pictures(), data_url(padded * 3)))[1] == MAX_IMAGE_BYTES

    heavy = Pictures()
    heavy.at_url(data_url(padded), "here")
    heavy.at_url(data_url(padded), "here")
    assert numbers(refused(heavy, data_url(a_png()))) == (
        MAX_IMAGES_BYTES + len(a_png()),
        MAX_IMAGES_BYTES,
    )

    long = a_png_that_says(MAX_SIDE_PX + 1, 1)
    assert numbers(refused(Pictures(), data_url(long))) == (MAX_SIDE_PX + 1, MAX_SIDE_PX)
    large = a_png_that_says(5001, 5000)
    assert numbers(refused(Pictures(), data_url(large))) == (25_005_000, MAX_IMAGE_PIXELS)
    wide = Pictures()
    wide.at_url(data_url(a_png_that_says(5000, 5000)), "here")
    wide.at_url(data_url(a_png_that_says(5000, 5000)), "here")
    assert numbers(refused(wide, data_url(a_png(2, 2)))) == (50_000_004, MAX_IMAGES_PIXELS)


def numbers(error: RequestError) -> tuple[int, int]:
    n, most = error.details["n"], error.details["max"]
    assert isinstance(n, int)
    assert isinstance(most, int)
    assert str(n) in error.message
    assert str(most) in error.message
    return n, most


def test_a_bomb_is_refused_by_what_its_header_says() -> None:
    bomb = a_png_that_says(16_384, 16_384)
    assert len(bomb) < 64
    assert numbers(refused(Pictures(), data_url(bomb)))[0] == 16_384**2


def test_a_model_that_does_not_see_is_asked_before_anything_is_read() -> None:
    def blind(place: str) -> None:
        raise RequestError(
            "request.unsupported_field", "no vision", remediation="x", details={"param": place}
        )

    for value in (data_url(a_png()), URL, None, "data:image/png;base64,!"):
        assert refused(Pictures(blind), value).code == "request.unsupported_field"
    with pytest.raises(RequestError, match="no vision"):
        Pictures(blind).refuse_file("here")


def test_an_address_is_fetched_only_where_somebody_allows_it() -> None:
    for url in (URL, "http://169.254.169.254/latest", "HTTPS://x/"):
        error = refused(Pictures(), url)
        assert error.code == "request.unsupported_field"
        assert "image_url_origins" in error.remediation
        assert "169.254" not in error.message  # what a client sent is never repeated
    allowing = Pictures(refusal_of=lambda url: None if url == URL else "not from there")
    allowing.at_url(URL, "here")
    allowing.at_url(URL, "there")
    assert list(allowing.missing) == [URL]
    assert "not from there" in refused(allowing, URL + "x").message
    fetched = Pictures(fetched={URL: a_webp(30, 20)})
    image = fetched.at_url(URL, "here")
    assert (image.media_type, image.width_px) == ("image/webp", 30)
    assert not fetched.missing
    assert refused(Pictures(fetched={URL: b"<html>"}), URL).code == "request.invalid"


def test_one_request_has_few_addresses() -> None:
    pictures = Pictures(refusal_of=lambda _: None)
    for number in range(MAX_REMOTE):
        pictures.at_url(f"{URL}?{number}", "here")
    assert numbers(refused(pictures, URL)) == (MAX_REMOTE + 1, MAX_REMOTE)
    assert refused(Pictures(refusal_of=lambda _: None), URL + "x" * 5000).code == "request.invalid"


def test_images_keep_their_places_when_turns_are_joined() -> None:
    first, second = ContentWriter(), ContentWriter()
    first.add_text("one")
    first.add_text("two")
    first.add_image(Pictures().at_url(data_url(a_png(1, 1)), "here"))
    second.add_image(Pictures().at_url(data_url(a_png(2, 2)), "here"))
    second.add_text("three")
    turns = tuple(
        ChatMessage(role="user", content=said.text, images=said.images)
        for said in (first.content(), second.content())
    )
    (turn,) = in_turns(turns)
    assert turn.content == "one\ntwo\n\nthree"
    assert [(image.at, image.width_px) for image in turn.images] == [(7, 1), (9, 2)]
