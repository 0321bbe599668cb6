"""Images in requests of every dialect, for models that see and for those that do not."""

from typing import Any

import pytest

from protocol.cards import StorageSize, VisionSection
from protocol.tasks import images_of
from skulkd.api.image_fetch import RemoteImages
from tests.support.api_harness import Api, with_api
from tests.support.fake_models import FakeModels
from tests.support.fake_ports import NODE, FakeDaemon, make_card, make_instance, on_engine
from tests.support.image_files import a_gif, a_png, a_webp, base64_of, data_url
from tests.support.range_server import Origin, serving

SEEING = "test/seeing"
PICTURE = a_png(6, 4)
VISION = VisionSection(projector_file="mmproj.gguf", projector_size=StorageSize(in_bytes=1000))


def a_daemon(*, engine_takes_webp: bool = False) -> FakeDaemon:
    """A node with a model that sees, and one that does not."""
    seeing = make_instance(card=make_card(SEEING, vision=VISION), number=2)
    if engine_takes_webp:
        seeing = on_engine(seeing, "scripted")
    return FakeDaemon(make_instance(), seeing)


def body_of(path: str, url: str, model: str = SEEING) -> dict[str, Any]:
    """Ask about one image in the dialect of a route."""
    encoded = url.partition(",")[2] or url
    match path:
        case "/v1/chat/completions":
            parts = [{"type": "image_url", "image_url": {"url": url}}]
            return {"model": model, "messages": [{"role": "user", "content": parts}]}
        case "/v1/responses":
            part = {"type": "input_image", "image_url": url}
            return {"model": model, "input": [{"role": "user", "content": [part]}]}
        case "/v1/messages":
            source = {"type": "base64", "media_type": "image/png", "data": encoded}
            turn = {"role": "user", "content": [{"type": "image", "source": source}]}
            return {"model": model, "max_tokens": 5, "messages": [turn]}
        case "/ollama/api/chat":
            turn = {"role": "user", "content": "x", "images": [encoded]}
            return {"model": model, "messages": [turn], "stream": False}
        case _:
            return {"model": model, "prompt": "x", "images": [encoded], "stream": False}


PATHS = [
    "/v1/chat/completions",
    "/v1/responses",
    "/v1/messages",
    "/ollama/api/chat",
    "/ollama/api/generate",
]


@pytest.mark.parametrize("path", PATHS)
def test_a20_a_model_that_sees_is_shown_the_very_image(path: str) -> None:
    async def story(api: Api) -> None:
        reply = await api.client.post(path, json=body_of(path, data_url(PICTURE)))
        assert reply.status_code == 200, reply.text
        (image,) = images_of(api.daemon.inference.tasks[-1])
        assert image.data == base64_of(PICTURE)
        assert (image.media_type, image.width_px, image.height_px) == ("image/png", 6, 4)

    with_api(story, a_daemon())


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("url", [data_url(PICTURE), "data:image/png;base64,!"])
def test_a20_a_model_that_does_not_see_is_named_with_what_it_can(path: str, url: str) -> None:
    async def story(api: Api) -> None:
        reply = await api.client.post(path, json=body_of(path, url, "test/scripted"))
        assert reply.status_code == 400
        for told in ("test/scripted", "vision", "completion"):
            assert told in reply.text
        assert not api.daemon.inference.tasks
        if path.startswith("/v1/chat"):
            error = reply.json()["error"]
            assert SEEING in error["remediation"]
            assert error["param"] == "messages[0].content[0]"

    with_api(story, a_daemon())


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("url", ["data:image/png;base64,!", data_url(b"no image")])
def test_a20_what_is_no_image_is_refused_in_the_dialects_form(path: str, url: str) -> None:
    async def story(api: Api) -> None:
        reply = await api.client.post(path, json=body_of(path, url))
        assert reply.status_code == 400
        assert "error" in reply.json()
        assert not api.daemon.inference.tasks

    with_api(story, a_daemon())


def test_a20_a_type_that_the_engine_does_not_decode_is_refused_by_name() -> None:
    async def refuse(api: Api) -> None:
        reply = await api.client.post(PATHS[0], json=body_of(PATHS[0], data_url(a_webp())))
        assert reply.status_code == 400
        error = reply.json()["error"]
        assert "image/webp" in error["message"]
        assert "llama_server" in error["message"]
        assert "image/png" in error["remediation"]
        assert (
            await api.client.post(PATHS[0], json=body_of(PATHS[0], data_url(a_gif())))
        ).is_success

    async def serve(api: Api) -> None:
        reply = await api.client.post(PATHS[0], json=body_of(PATHS[0], data_url(a_webp())))
        assert reply.is_success

    with_api(refuse, a_daemon())
    with_api(serve, a_daemon(engine_takes_webp=True))


def test_an_image_goes_to_the_copy_that_sees() -> None:
    card = make_card(SEEING, vision=VisionSection())
    blind, seeing = (
        make_instance(card=card),
        on_engine(make_instance(card=card, number=2), "scripted"),
    )

    async def story(api: Api) -> None:
        for _ in range(8):
            reply = await api.client.post(PATHS[0], json=body_of(PATHS[0], data_url(PICTURE)))
            assert reply.status_code == 200, reply.text
        assert set(api.daemon.inference.served) == {seeing.instance_id}

    with_api(story, FakeDaemon(blind, seeing))


@pytest.mark.parametrize("has_projector", [True, False])
def test_vision_is_told_exactly_where_it_would_work(has_projector: bool) -> None:
    card = make_card(
        SEEING,
        vision=VISION if has_projector else VisionSection(),
        capabilities=("text", "vision"),
        placement=make_card().placement.model_copy(
            update={"compatible_backends": ("llama_server",)}
        ),
        scripted=None,
    )
    daemon = FakeDaemon(make_instance(card=card))

    async def story(api: Api) -> None:
        entry = (await api.client.get(f"/v1/models/{SEEING}")).json()
        assert entry["resolved_capabilities"]["supports_vision"] is has_projector
        assert ("vision" in entry["capabilities"]) is has_projector
        shown = (await api.client.post("/ollama/api/show", json={"model": SEEING})).json()
        assert ("vision" in shown["capabilities"]) is has_projector
        reply = await api.client.post(PATHS[0], json=body_of(PATHS[0], data_url(PICTURE)))
        assert reply.status_code == (200 if has_projector else 400)

    daemon.models = FakeModels(NODE, card)
    with_api(story, daemon)


URL = "https://images.example.org/a.png"


def test_a20_an_address_is_refused_unless_its_origin_is_listed() -> None:
    async def story(api: Api) -> None:
        for path in PATHS[:2]:
            reply = await api.client.post(path, json=body_of(path, URL))
            assert reply.status_code == 400
            assert "image_url_origins" in reply.text
            assert "images.example.org" not in reply.text
        assert not api.daemon.inference.tasks

    with_api(story, a_daemon())


def test_a20_an_address_of_a_listed_origin_is_fetched_and_shown() -> None:
    daemon = a_daemon()
    with serving(Origin(content=PICTURE)) as origin:
        daemon.images = RemoteImages((f"private+{origin.base}",))

        async def story(api: Api) -> None:
            for path in PATHS[:2]:
                reply = await api.client.post(path, json=body_of(path, f"{origin.base}/a.png"))
                assert reply.status_code == 200, reply.text
                (image,) = images_of(api.daemon.inference.tasks[-1])
                assert image.data == base64_of(PICTURE)
            assert len(origin.requests) == 2
            nobody = body_of(PATHS[0], f"{origin.base}/a.png", "no/such-model")
            assert (await api.client.post(PATHS[0], json=nobody)).status_code == 404
            blind = body_of(PATHS[0], f"{origin.base}/a.png", "test/scripted")
            assert (await api.client.post(PATHS[0], json=blind)).status_code == 400
            assert len(origin.requests) == 2  # nothing is fetched for nobody

        with_api(story, daemon)


def test_an_image_that_cannot_be_fetched_is_told_by_its_place() -> None:
    daemon = a_daemon()
    with serving(Origin(content=PICTURE, status=404)) as origin:
        daemon.images = RemoteImages((f"private+{origin.base}",))

        async def story(api: Api) -> None:
            reply = await api.client.post(PATHS[0], json=body_of(PATHS[0], f"{origin.base}/a"))
            assert reply.status_code == 400
            assert reply.json()["error"]["code"] == "request.image_unavailable"
            assert reply.json()["error"]["param"] == "messages[0].content[0]"

        with_api(story, daemon)


def test_fetched_images_count_among_the_bytes_that_requests_hold() -> None:
    daemon = a_daemon()
    daemon.max_held_body_bytes = 1000
    with serving(Origin(content=PICTURE + bytes(2000))) as origin:
        daemon.images = RemoteImages((f"private+{origin.base}",))

        async def story(api: Api) -> None:
            body = body_of(PATHS[0], f"{origin.base}/a.png")
            reply = await api.client.post(PATHS[0], json=body)
            assert reply.status_code == 503
            assert reply.json()["error"]["code"] == "request.overloaded"
            origin.content = PICTURE
            for _ in range(20):  # what was held is given back each time
                assert (await api.client.post(PATHS[0], json=body)).status_code == 200

        with_api(story, daemon)


def test_the_tokens_of_images_are_counted_with_their_prompt() -> None:
    async def story(api: Api) -> None:
        path = "/v1/messages/count_tokens"
        body = body_of("/v1/messages", data_url(PICTURE))
        assert (await api.client.post(path, json=body)).status_code == 200
        (image,) = images_of(api.daemon.inference.counted[-1][1])
        assert image.width_px == 6

    with_api(story, a_daemon())
