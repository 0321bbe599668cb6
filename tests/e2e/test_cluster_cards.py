"""A card that lies in one node's folder is one that the whole cluster can place."""

from pathlib import Path

import pytest

from protocol.cards import ScriptedSection
from store.cards import to_toml
from tests.support.builders import a_scripted_card
from tests.support.chat_client import answer_text, ask
from tests.support.cluster import Cluster, cluster_of

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

MODEL = "local/only-on-b"


def test_a_card_of_one_node_is_placed_through_another_while_a_third_decides(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 3)
    card = a_scripted_card(model_id=MODEL, scripted=ScriptedSection(reply="from far away"))
    has_card = cluster[1]
    folder = has_card.models_dir / "cards"
    folder.mkdir(parents=True)
    (folder / "mine.toml").write_text(to_toml(card))
    try:
        cluster.start()
        cluster.form()
        asked, decides = cluster[2], cluster[0]
        assert cluster_of(decides)["role"] == "master"
        unknown = asked.http.post("/place_instance", json={"model_id": "local/nobodys"})
        assert unknown.status_code == 404
        shown = asked.http.get(f"/models/cards/{MODEL}").json()
        assert shown["card"]["model_id"] == MODEL
        instances = [
            asked.place(MODEL, nodes=[cluster_of(node)["node_id"]]) for node in (asked, has_card)
        ]
        for instance in instances:
            asked.wait_phase(instance)
            decides.wait_phase(instance)
        assert "from far away" in answer_text(ask(decides, MODEL))
    finally:
        cluster.destroy()
        for node in cluster:
            # ruff: ignore[print]  pytest shows it when the test fails
            print(f"---- {node.root.name}\n{node.log_tail()}")
