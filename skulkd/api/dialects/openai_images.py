"""Images as parts of a turn, in the forms of OpenAI's two dialects. Pure."""

from typing import Final, cast

from protocol.tasks import TaskImage
from skulkd.api.dialects.fields import Fields, wrong
from skulkd.api.dialects.pictures import Pictures

_DETAILS: Final = (None, "auto", "low", "high", "original")
"""How closely to look: engines have no such switch, so it changes nothing."""


def image_part(part: Fields, place: str, pictures: Pictures) -> TaskImage:
    """Read a part that is an image: its address in an object, or a bare string.

    Raises:
        RequestError: `request.invalid`, `request.unsupported_field`.
    """
    source = part.get("image_url")
    if source is None and part.get("file_id") is not None:
        pictures.refuse_file(place)
    described = cast("Fields", source) if isinstance(source, dict) else part
    url = described.get("url") if isinstance(source, dict) else source
    image = pictures.at_url(url, place)
    if described.get("detail") not in _DETAILS:
        wrong(f"{place}.detail", "auto, low or high", described.get("detail"))
    return image
