from skulk_tui.glyphs import ASCII
from skulk_tui.screens.node_rows import facts_lines
from tests.support.den_cluster import den_node

ENGINES = [
    {"engine": "llama_server", "version": "10434", "path": "/opt/llama-server",
     "computes": ["cuda", "cpu"], "usable": True, "seen_by": "PATH"},
    {"engine": "vllm", "version": "", "path": "/opt/vllm", "usable": False,
     "reason": "died of SIGKILL", "seen_by": "SKULK_VLLM_BIN"},
]  # fmt: skip


def shown(**resources: object) -> str:
    lines = facts_lines(den_node(1, member=None, **resources), ASCII)
    return "\n".join("".join(span.text for span in one) for one in lines)


def test_each_build_says_how_it_was_found_and_one_that_does_not_run_why() -> None:
    text = shown(engines=ENGINES)
    assert "llama_server 10434  cuda cpu  seen by PATH" in text
    assert "vllm  not usable: died of SIGKILL  seen by SKULK_VLLM_BIN" in text


def test_b36_the_threads_of_engines_stand_beside_what_they_follow_from() -> None:
    assert "7 for engines  32 cores  quota 7.65" in shown(n_cpus=7, n_cores=32, cpu_quota=7.65)


def test_an_accelerator_says_which_probe_tells_of_it() -> None:
    device = {"name": "Apple M2", "unified": True, "seen_by": "platform"}
    assert "on the host's memory  seen by platform" in shown(accelerators=[device])
