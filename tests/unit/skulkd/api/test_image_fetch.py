"""Fetching images for requests: from listed origins, at checked addresses, within bounds."""

import asyncio
from collections.abc import Callable

import pytest

from protocol.errors import ConfigError, RequestError
from protocol.images import MAX_IMAGE_BYTES
from skulkd.api import image_fetch
from skulkd.api.image_fetch import RemoteImages, is_public, parse_origins
from tests.support.image_files import a_png
from tests.support.range_server import Origin, serving

PICTURE = a_png()


def nothing_held(n_bytes: int) -> None:
    del n_bytes


class Names:
    """A name server whose answers are written down."""

    def __init__(self, *answers: list[str]) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []

    async def resolve(self, host: str, port: int) -> list[str]:
        del port
        self.asked.append(host)
        return self.answers.pop(0)


def fetch(
    images: RemoteImages, *urls: str, hold: Callable[[int], None] = nothing_held
) -> dict[str, bytes]:
    wanted = {url: f"place {index}" for index, url in enumerate(urls)}
    assert all(images.refusal_of(url) is None for url in urls)
    return asyncio.run(images.fetch_all(wanted, hold))


def refused(images: RemoteImages, *urls: str) -> RequestError:
    with pytest.raises(RequestError) as raised:
        fetch(images, *urls)
    assert raised.value.code == "request.image_unavailable"
    assert raised.value.details["param"] == f"place {len(urls) - 1}"
    assert raised.value.remediation
    return raised.value


def test_an_image_of_a_listed_origin_is_fetched() -> None:
    with serving(Origin(content=PICTURE)) as origin:
        images = RemoteImages((f"private+{origin.base}",))
        urls = (f"{origin.base}/a.png", f"{origin.base}/b.png?x=1&y=%20")
        held: list[int] = []
        fetched = fetch(images, *urls, hold=held.append)
        assert fetched == dict.fromkeys(urls, PICTURE)
        assert sum(held) == 2 * len(PICTURE)


def test_a_name_is_resolved_once_and_its_own_address_is_asked() -> None:
    with serving(Origin(content=PICTURE)) as origin:
        port = origin.base.rpartition(":")[2]
        names = Names(["127.0.0.1"])
        listed = f"private+http://images.test:{port}"
        images = RemoteImages((listed,), resolve=names.resolve)
        assert fetch(images, f"http://images.test:{port}/a") == {
            f"http://images.test:{port}/a": PICTURE
        }
        assert names.asked == ["images.test"]


def test_a_public_origin_with_a_private_address_is_never_asked() -> None:
    with serving(Origin(content=PICTURE)) as origin:
        assert (
            "private network" in refused(RemoteImages((origin.base,)), origin.base + "/a").message
        )
        port = origin.base.rpartition(":")[2]
        for answer in (["127.0.0.1"], ["93.184.216.34", "10.0.0.1"], ["::1"], ["fe80::1%eth0"]):
            names = Names(answer)
            images = RemoteImages((f"http://images.test:{port}",), resolve=names.resolve)
            refused(images, f"http://images.test:{port}/a")
        assert origin.requests == []


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1",
        "0.0.0.0", "255.255.255.255", "224.0.0.1", "240.0.0.1", "198.18.0.1", "::", "::1",
        "fe80::1", "fe80::1%eth0", "fc00::1", "ff02::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1",
        "2002:7f00:1::", "2002:a00:1::", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe",
    ],
)  # fmt: skip
def test_an_address_that_is_not_of_the_internet_is_known_in_every_disguise(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", ["93.184.216.34", "2606:2800:220:1::1", "::ffff:93.184.216.34"])
def test_addresses_of_the_internet_are_public(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize(
    "url",
    [
        "https://images.example.org.evil.test/a", "http://images.example.org/a",
        "https://images.example.org:444/a", "https://user@images.example.org/a",
        "https://images.example.org@evil.test/a", "https://evil.test\\@images.example.org/a",
        "https://images.example.org\t/a", "https://evil.test#@images.example.org/",
        "https://images.example.org:99999/a", "https://[::1/a", "https:///a", "https://", "https:a",
        "https://evil.test/https://images.example.org/", "https://im\u0430ges.example.org/a",
    ],
)  # fmt: skip
def test_an_address_that_only_looks_like_a_listed_origin_is_none(url: str) -> None:
    assert RemoteImages(("https://images.example.org",)).refusal_of(url) is not None


def test_one_origin_has_many_spellings() -> None:
    images = RemoteImages(("https://images.example.org",))
    for url in ("https://images.example.org/a", "HTTPS://IMAGES.example.ORG:443/a?b"):
        assert images.refusal_of(url) is None


def test_what_is_not_fetched_says_why() -> None:
    url = "https://images.example.org/a"
    assert "none" in (RemoteImages().refusal_of(url) or "")
    assert "1 origins" in (RemoteImages(("https://other.test",)).refusal_of(url) or "")
    offline = RemoteImages(("https://images.example.org",), is_offline=True)
    assert "offline" in (offline.refusal_of(url) or "")


@pytest.mark.parametrize(
    "listed",
    ["images.example.org", "https://a/b", "https://a?x", "https://u:p@a", "ftp://a",
     "private+a", "https://a:99999", ""],
)  # fmt: skip
def test_a_setting_that_names_no_origin_is_refused(listed: str) -> None:
    with pytest.raises(ConfigError, match="image_url_origins"):
        parse_origins((listed,))


def test_a_redirect_is_not_followed() -> None:
    with serving(Origin(content=PICTURE)) as target, serving(Origin(content=b"")) as origin:
        origin.status, origin.location = 302, target.url
        error = refused(RemoteImages((f"private+{origin.base}",)), origin.base + "/a")
        assert "302" in error.message
        assert "not followed" in error.message
        assert target.requests == []


def test_an_image_that_grows_beyond_its_bound_is_given_up() -> None:
    with serving(Origin(content=bytes(MAX_IMAGE_BYTES + 1), with_length=False)) as origin:
        error = refused(RemoteImages((f"private+{origin.base}",)), origin.base + "/a")
        assert str(MAX_IMAGE_BYTES) in error.message


def test_a_silent_origin_is_given_up_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_fetch, "FETCH_S", 0.2)
    with serving(Origin(content=PICTURE, stall_after=5)) as origin:
        error = refused(RemoteImages((f"private+{origin.base}",)), origin.base + "/a")
        assert "within" in error.message


def test_a_host_that_is_not_there_is_told_without_its_address() -> None:
    async def nowhere(host: str, port: int) -> list[str]:
        raise OSError(2, "no such name")

    images = RemoteImages(("https://images.test",), resolve=nowhere)
    error = refused(images, "https://images.test/secret-token")
    assert "secret-token" not in error.message
    with serving(Origin(content=PICTURE)) as origin:
        url = origin.base
    assert "ConnectError" in refused(RemoteImages((f"private+{url}",)), f"{url}/a").message


def test_an_image_for_which_there_is_no_room_is_not_kept() -> None:
    def full(n_bytes: int) -> None:
        raise RequestError("request.overloaded", f"no room for {n_bytes}")

    with serving(Origin(content=PICTURE)) as origin, pytest.raises(RequestError, match="no room"):
        fetch(RemoteImages((f"private+{origin.base}",)), f"{origin.base}/a", hold=full)
