"""Libraries, as they are installed, against a node: what each sees of it."""

from typing import Any

import pytest

from tests.support.client_node import (
    AFTER_THE_RESULT,
    BEFORE_DEATH,
    CALL,
    MODELS,
    SAID,
    WIDTH,
    ClientNode,
    Sighting,
)
from tests.support.library_clients import CLIENTS, Library

every_client = pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
SAID_TOKENS = [7, 6]
"""Of the prompt and of the answer, in the words that the engine counts."""


def named(name: str) -> list[Library]:
    return [client for client in CLIENTS if client.name == name]


@pytest.fixture(scope="module")
def sightings() -> dict[str, Sighting]:
    """What was seen by each client that has been run."""
    return {}


@pytest.fixture
def sighting(client: Library, node: ClientNode, sightings: dict[str, Sighting]) -> Sighting:
    """Run the client, once for all tests of it."""
    if client.name not in sightings:
        sightings[client.name] = node.run_script(
            client.name, client.environment, client.script, *client.arguments
        )
    return sightings[client.name]


@every_client
def test_the_client_is_the_one_that_was_pinned(client: Library, sighting: Sighting) -> None:
    assert sighting.seen["version"] == client.version


@every_client
def test_an_answer_comes_whole_and_with_its_usage(client: Library, sighting: Sighting) -> None:
    assert sighting.seen["whole"] == {"text": SAID, "usage": SAID_TOKENS}


@every_client
def test_a_stream_is_the_same_answer_in_pieces(client: Library, sighting: Sighting) -> None:
    streamed = sighting.seen["streamed"]
    assert (streamed["text"], streamed["usage"]) == (SAID, SAID_TOKENS)
    if client.shows_pieces:
        assert streamed["n_pieces"] > 1


@every_client
@pytest.mark.parametrize("way", ["tools", "tools_streamed"])
def test_a_tool_is_called_once_and_its_result_is_answered(
    client: Library, sighting: Sighting, way: str
) -> None:
    seen = sighting.seen[way]
    assert seen["calls"] == [list(CALL)]
    assert seen["text"] == AFTER_THE_RESULT


@every_client
def test_what_cannot_succeed_is_an_error_of_its_kind_and_is_not_tried_again(
    client: Library, sighting: Sighting
) -> None:
    absent, too_long = sighting.seen["absent"], sighting.seen["too_long"]
    assert (absent["raised"], too_long["raised"]) == (client.absent, client.too_long)
    assert "skulk place scripted/absent" in absent["message"]
    assert "2001 tokens and the context window 1024" in too_long["message"]
    assert sighting.requests["404"] == 1
    assert sighting.requests["request.context_length_exceeded"] == 1


@every_client
def test_a_stream_whose_engine_dies_fails_after_what_was_said(
    client: Library, sighting: Sighting
) -> None:
    died = sighting.seen["died"]
    assert (died["raised"], died["text"].strip()) == (client.died, BEFORE_DEATH)
    assert "the engine" in died["message"]


@pytest.mark.parametrize(
    "client", [client for client in CLIENTS if client.lists], ids=lambda client: client.name
)
def test_the_models_are_listed(client: Library, sighting: Sighting) -> None:
    names: Any = [name.removesuffix(":latest") for name in sighting.seen["models"]]
    assert set(MODELS) <= set(names)


@pytest.mark.parametrize(
    "client", [client for client in CLIENTS if client.embeds], ids=lambda client: client.name
)
def test_embeddings_come_in_the_order_of_their_texts(client: Library, sighting: Sighting) -> None:
    fox, sea, fox_again = sighting.seen["embedded"]
    assert fox == fox_again != sea
    assert [len(fox), len(sea)] == [WIDTH, WIDTH]


@pytest.mark.parametrize("client", named("anthropic"), ids=lambda client: client.name)
def test_tokens_are_counted_as_they_are_used(client: Library, sighting: Sighting) -> None:
    assert sighting.seen["counted"] == SAID_TOKENS[0]


@pytest.mark.parametrize("client", named("ollama"), ids=lambda client: client.name)
def test_ollama_shows_what_a_model_can_and_which_ones_run(
    client: Library, sighting: Sighting
) -> None:
    assert "tools" in sighting.seen["shown"]
    assert {f"{model_id}:latest" for model_id in MODELS} <= set(sighting.seen["running"])
