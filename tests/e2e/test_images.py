"""Images of real nodes: asked at one node and seen on another, and shown to a real engine."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from protocol.ids import ModelId
from store.cards import to_toml
from store.importer import card_from_gguf
from tests.support.chat_client import answer_text, ask
from tests.support.cluster import Cluster, cluster_of, running_cluster
from tests.support.daemon import Daemon
from tests.support.demo_model import demo_model_path
from tests.support.image_files import a_gif, a_png, data_url
from tests.support.projector import IMAGE_TOKENS, write_projector
from tests.support.scripted_models import add_scripted_model
from tests.support.shared_daemon import shared_daemon

SEEING = "scripted/seeing"
BLIND = "scripted/blind"
LARGE = a_png(40, 30) + bytes(5 << 20)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two nodes; both models are on the second."""
    with running_cluster(tmp_path_factory.mktemp("images"), 2) as nodes:
        server = nodes[1]
        add_scripted_model(server.models_dir, SEEING, sees=True, reply="I see {images}.")
        add_scripted_model(server.models_dir, BLIND)
        where = [cluster_of(server)["node_id"]]
        placed = [server.place(model, nodes=where) for model in (SEEING, BLIND)]
        for instance_id in placed:
            for node in nodes:
                node.wait_phase(instance_id)
        yield nodes


def turn(*images: bytes) -> list[dict[str, Any]]:
    parts = [{"type": "image_url", "image_url": {"url": data_url(image)}} for image in images]
    return [{"role": "user", "content": [{"type": "text", "text": "what is this?"}, *parts]}]


def seen(image: bytes, kind: str, size: str) -> str:
    return f"{kind} {size} {hashlib.sha256(image).hexdigest()}"


def test_a20_an_image_is_seen_on_another_node_as_it_was_sent(cluster: Cluster) -> None:
    api = cluster[0]
    small = a_gif(7, 5)
    told = answer_text(ask(api, SEEING, messages=turn(LARGE, small)))
    assert told == (
        f"I see {seen(LARGE, 'image/png', '40x30')}, {seen(small, 'image/gif', '7x5')}."
    )
    image = {"role": "user", "content": "x", "images": [data_url(small)]}
    reply = api.http.post(
        "/ollama/api/chat", json={"model": SEEING, "messages": [image], "stream": False}
    )
    assert seen(small, "image/gif", "7x5") in reply.json()["message"]["content"]


def test_an_image_leaves_nothing_behind_in_what_the_cluster_keeps(cluster: Cluster) -> None:
    mark = b"bytes that are in no other file"
    image = a_png(9, 9) + mark * 100
    assert seen(image, "image/png", "9x9") in answer_text(
        ask(cluster[0], SEEING, messages=turn(image))
    )
    inside = data_url(mark * 100).partition(",")[2][40:120].encode()
    for node in cluster:
        kept = [path for path in node.home.rglob("*") if path.is_file()]
        assert kept
        for path in kept:
            content = path.read_bytes()
            assert mark not in content, path
            assert inside not in content, path


def test_a20_a_model_of_another_node_that_does_not_see_is_refused_here(cluster: Cluster) -> None:
    error = ask(cluster[0], BLIND, messages=turn(a_png())).json()["error"]
    assert "vision" in error["message"]
    assert SEEING in error["remediation"]


def test_the_command_shows_a_file_to_a_model_of_another_node(
    cluster: Cluster, tmp_path: Path
) -> None:
    picture = tmp_path / "photo"
    picture.write_bytes(a_png(11, 3))
    done = cluster[0].skulk("chat", SEEING, "-f", str(picture), "what is this?")
    assert done.returncode == 0, done.stderr
    assert seen(a_png(11, 3), "image/png", "11x3") in done.stdout


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon that has the demo model placed, with an untrained projector beside it."""
    root = tmp_path_factory.mktemp("seeing")
    files = root / "files"
    files.mkdir()
    (files / "demo.gguf").symlink_to(demo_model_path())
    write_projector(files / "mmproj-demo.gguf", 576)
    card = card_from_gguf(files / "demo.gguf", ModelId("test/demo-seeing"))
    cards = root / "models" / "cards"
    cards.mkdir(parents=True)
    (cards / "demo.toml").write_text(to_toml(card))
    with shared_daemon(root, models_dir=root / "models") as daemon:
        instance_id = daemon.place("test/demo-seeing", slots=2, context_tokens=512)
        daemon.wait_phase(instance_id, timeout_s=90)
        yield daemon


def ask_demo(node: Daemon, messages: list[dict[str, Any]]) -> dict[str, Any]:
    reply = ask(node, "test/demo-seeing", messages=messages, max_tokens=1)
    document: dict[str, Any] = reply.json()
    return document


def test_a20_a_real_engine_is_shown_images_through_a_projector(node: Daemon) -> None:
    entry = node.http.get("/v1/models/test/demo-seeing").json()
    assert entry["resolved_capabilities"]["supports_vision"]
    plain = ask_demo(node, turn())["usage"]["prompt_tokens"]
    answer = ask_demo(node, turn(a_png(40, 30), a_png(28, 28)))
    assert answer["choices"][0]["message"]["content"]
    assert answer["usage"]["prompt_tokens"] == plain + 2 * IMAGE_TOKENS


def test_what_a_real_engine_cannot_decode_is_a_refusal_and_harms_nobody(node: Daemon) -> None:
    torn = a_png(40, 30)[:60]
    error = ask_demo(node, turn(torn))["error"]
    assert error["type"] == "invalid_request_error"
    assert "load image" in error["message"]
    assert ask_demo(node, turn(a_png(40, 30)))["choices"]


def test_images_that_fill_the_window_are_refused_with_the_engines_own_numbers(
    node: Daemon,
) -> None:
    text = {"type": "text", "text": "word " * 470}
    messages = turn(*[a_png()] * 12)
    messages[0]["content"].append(text)
    error = ask_demo(node, messages)["error"]
    assert error["code"] == "context_length_exceeded"
    assert "512" in error["message"]
