"""What Ollama's clients see of placed models is what plans and cards say."""

from protocol.cards import LicenseSection
from protocol.instances import Instance
from skulkd.api.ollama_views import ps_document, show_document, tags_document
from tests.support.fake_ports import make_card, make_instance


def never(_item: Instance) -> int | None:
    return None


def with_pool(instance: Instance, pool: str) -> Instance:
    (shard,) = instance.plan.shards
    moved = shard.model_copy(update={"memory": shard.memory.model_copy(update={"pool": pool})})
    return instance.model_copy(
        update={"plan": instance.plan.model_copy(update={"shards": (moved,)})}
    )


def test_copies_of_a_model_are_one_entry_with_the_memory_of_all() -> None:
    copies = [
        make_instance(number=1, context_tokens=512),
        with_pool(make_instance(number=2, context_tokens=1024), "vram"),
        with_pool(make_instance(number=3, context_tokens=256), "unified"),
        make_instance("load", number=4, context_tokens=4096),
    ]
    (loaded,) = ps_document(copies, never)["models"]
    assert (loaded["size"], loaded["size_vram"]) == (3 * 1230, 2 * 1230)
    assert loaded["context_length"] == 1024, "of those that answer"
    (listed,) = tags_document(copies)["models"]
    assert listed["size"] == 1000, "of the files, whatever runs"


def test_what_is_on_demand_expires_and_a_copy_that_stays_keeps_its_model() -> None:
    loaded = [make_instance(number=1), make_instance(number=2)]
    left = {loaded[0].instance_id: 1_000, loaded[1].instance_id: 61_000}

    def expires(item: Instance) -> int | None:
        return left.get(item.instance_id)

    (entry,) = ps_document(loaded, expires)["models"]
    assert entry["expires_at"] == "1970-01-01T00:01:01Z"
    (entry,) = ps_document([*loaded, make_instance(number=3)], expires)["models"]
    assert entry["expires_at"].startswith("9999") or entry["expires_at"] > "2100"


def test_a_model_that_has_failed_is_not_listed() -> None:
    assert tags_document([make_instance("failed")]) == {"models": []}
    assert ps_document([make_instance("failed"), make_instance("load")], never) == {"models": []}


def test_show_tells_no_more_than_the_card_does() -> None:
    card = make_card(context_length=0, license=LicenseSection(name="MIT", display_name="The MIT"))
    shown = show_document(card, [])
    assert shown["license"] == "The MIT"
    assert shown["model_info"] == {
        "general.architecture": "unknown",
        "unknown.block_count": 2,
        "unknown.embedding_length": 8,
    }
    assert "modified_at" not in shown
    embedding = show_document(make_card(tasks=("TextEmbedding",)), [])
    assert embedding["capabilities"] == ["tools", "embedding"]
