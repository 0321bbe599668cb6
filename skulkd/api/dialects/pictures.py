"""Reading the images of a request: within bounds, and told by their bytes. Pure.

Every image is decoded once and its header read, so that an engine gets only what says what it is.
Nobody believes the type that a client declares. What is bounded is told with both numbers.
"""

import binascii
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, NoReturn, final

from protocol.errors import RequestError
from protocol.images import (
    IMAGE_TYPES,
    MAX_IMAGE_BYTES,
    MAX_IMAGE_PIXELS,
    MAX_IMAGES,
    MAX_IMAGES_BYTES,
    MAX_IMAGES_PIXELS,
    MAX_SIDE_PX,
    read_image_header,
)
from protocol.tasks import TaskImage
from skulkd.api.dialects.fields import refuse, unsupported, wrong

MAX_REMOTE: Final = 8
"""Addresses that are fetched for one request."""
_MAX_CHARS: Final = -(-MAX_IMAGE_BYTES // 3) * 4
_MAX_URL_CHARS: Final = 4096
_MAX_HEAD_CHARS: Final = 256
_BLANKS: Final = dict.fromkeys(map(ord, " \t\r\n"))
"""Some clients break their base64 into lines."""
_STAND_IN: Final = TaskImage(at=0, media_type="image/png", width_px=1, height_px=1, data="AAAA")
_SEND: Final = 'Send it as a data URL: "data:image/png;base64,…".'
_SMALLER: Final = "Scale it down: models look at some 1,000 to 2,000 pixels a side."


class Content(NamedTuple):
    """What a turn says, and the images among it."""

    text: str
    images: tuple[TaskImage, ...] = ()


@final
class ContentWriter:
    """Puts the parts of a turn together; texts that follow each other become lines."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._images: list[TaskImage] = []
        self._n_chars = 0
        self._follows_text = False

    @property
    def is_empty(self) -> bool:
        """Nothing has been added, not even an empty text."""
        return not self._texts and not self._images

    def add_text(self, text: str, *, is_whole: bool = True) -> None:
        """Add a part of text; what follows one that is not whole stays in its line."""
        said = "\n" + text if self._follows_text else text
        self._texts.append(said)
        self._n_chars += len(said)
        self._follows_text = is_whole

    def add_image(self, image: TaskImage) -> None:
        """Add an image."""
        self._images.append(image.changed({"at": self._n_chars}))
        self._follows_text = False

    def content(self) -> Content:
        """Give the turn."""
        return Content("".join(self._texts), tuple(self._images))


def _everyone_sees(place: str) -> None:
    """Refuse no image."""
    del place


def _none_is_listed(url: str) -> str | None:
    """Refuse every address."""
    del url
    return "only from origins that its operator has listed, of which there is none"


@final
class Pictures:
    """The images of one request.

    Args:
        check_sight: Called with the place of an image before anything of it is read; raises where
            the model does not see.
        refusal_of: Says of an http(s) address why it is not fetched; None where it may be.
        fetched: What addresses have given.
    """

    def __init__(
        self,
        check_sight: Callable[[str], None] = _everyone_sees,
        refusal_of: Callable[[str], str | None] = _none_is_listed,
        fetched: Mapping[str, bytes] | None = None,
    ) -> None:
        self.check_sight: Final = check_sight
        self._refusal_of = refusal_of
        self._fetched = fetched or {}
        self._n_images = 0
        self._n_bytes = 0
        self._n_pixels = 0
        self.missing: dict[str, str] = {}
        """Addresses that are still to be fetched, each with a place where it stands."""

    def at_url(self, value: object, place: str) -> TaskImage:
        """Read a data URL, or take what an http(s) address has given.

        An address that nobody has asked yet is noted in `missing`, and a stand-in given for it.

        Raises:
            RequestError: `request.invalid`, `request.unsupported_field`.
        """
        self._begin(place)
        if not isinstance(value, str):
            wrong(place, "a data URL", value)
        scheme = value[:8].lower()
        if scheme.startswith("data:"):
            return self._inline(value, place)
        if not scheme.startswith(("http:", "https:")):
            refuse(place, "is neither a data URL nor an http(s) address", _SEND)
        return self._remote(value, place)

    def in_base64(self, value: object, place: str) -> TaskImage:
        """Read base64.

        Raises:
            RequestError: `request.invalid`, `request.unsupported_field`.
        """
        self._begin(place)
        if not isinstance(value, str):
            wrong(place, "a string of base64", value)
        return self._decoded(value, place)

    def in_base64_or_url(self, value: object, place: str) -> TaskImage:
        """Read either of them: base64 has no colon."""
        has_scheme = isinstance(value, str) and ":" in value[:8]
        return self.at_url(value, place) if has_scheme else self.in_base64(value, place)

    def refuse_file(self, place: str) -> NoReturn:
        """Refuse the id of an uploaded file.

        Raises:
            RequestError: `request.unsupported_field`.
        """
        self.check_sight(place)
        unsupported(place, "names an uploaded file, and none is kept here", _SEND)

    # ---- One image ----

    def _begin(self, place: str) -> None:
        self.check_sight(place)
        self._n_images += 1
        if self._n_images > MAX_IMAGES:
            _too_much(
                place, "images in this request", self._n_images, MAX_IMAGES, "Leave some out."
            )

    def _inline(self, url: str, place: str) -> TaskImage:
        comma = url.find(",", 0, _MAX_HEAD_CHARS)
        if not url[: max(comma, 0)].lower().endswith(";base64"):
            refuse(place, "is a data URL without base64", _SEND)
        return self._decoded(url[comma + 1 :], place)

    def _remote(self, url: str, place: str) -> TaskImage:
        if len(url) > _MAX_URL_CHARS:
            _too_much(place, "characters in an address", len(url), _MAX_URL_CHARS, _SEND)
        data = self._fetched.get(url)
        if data is not None:
            return self._checked(data, binascii.b2a_base64(data, newline=False).decode(), place)
        reason = self._refusal_of(url)
        if reason is not None:
            remedy = f"{_SEND} Or have the operator list its origin in `image_url_origins`."
            unsupported(place, f"is an address, and this node fetches images {reason}", remedy)
        self.missing[url] = place
        if len(self.missing) > MAX_REMOTE:
            _too_much(place, "addresses of images", len(self.missing), MAX_REMOTE, _SEND)
        return _STAND_IN

    def _decoded(self, encoded: str, place: str) -> TaskImage:
        if len(encoded) > _MAX_CHARS:
            n_bytes = len(encoded) // 4 * 3
            if n_bytes > 2 * MAX_IMAGE_BYTES or len(encoded.translate(_BLANKS)) > _MAX_CHARS:
                _too_much(place, "bytes in one image", n_bytes, MAX_IMAGE_BYTES, _SMALLER)
        try:
            data = binascii.a2b_base64(encoded, strict_mode=True)
        except ValueError:
            encoded = encoded.translate(_BLANKS)
            try:
                data = binascii.a2b_base64(encoded, strict_mode=True)
            except ValueError:
                refuse(place, "holds no base64 that can be read", _SEND)
        return self._checked(data, encoded, place)

    def _checked(self, data: bytes, encoded: str, place: str) -> TaskImage:
        if len(data) > MAX_IMAGE_BYTES:
            _too_much(place, "bytes in one image", len(data), MAX_IMAGE_BYTES, _SMALLER)
        header = read_image_header(data)
        if header is None:
            kinds = ", ".join(kind.removeprefix("image/") for kind in IMAGE_TYPES)
            refuse(
                place,
                f"has {len(data)} bytes whose beginning is that of no whole image",
                f"Send one of: {kinds}.",
            )
        longest = max(header.width_px, header.height_px)
        if longest > MAX_SIDE_PX:
            _too_much(place, "pixels along a side", longest, MAX_SIDE_PX, _SMALLER)
        if header.n_pixels > MAX_IMAGE_PIXELS:
            _too_much(place, "pixels in one image", header.n_pixels, MAX_IMAGE_PIXELS, _SMALLER)
        self._n_bytes += len(data)
        self._n_pixels += header.n_pixels
        if self._n_bytes > MAX_IMAGES_BYTES:
            _too_much(place, "bytes in all images", self._n_bytes, MAX_IMAGES_BYTES, _SMALLER)
        if self._n_pixels > MAX_IMAGES_PIXELS:
            _too_much(place, "pixels in all images", self._n_pixels, MAX_IMAGES_PIXELS, _SMALLER)
        return TaskImage(
            at=0,
            media_type=header.media_type,
            width_px=header.width_px,
            height_px=header.height_px,
            data=encoded,
        )


def _too_much(place: str, what: str, n: int, most: int, remedy: str) -> NoReturn:
    raise RequestError(
        "request.invalid",
        f"`{place}`: there are {n} {what}, at most {most} are taken",
        remediation=remedy,
        details={"param": place, "n": n, "max": most},
    )
