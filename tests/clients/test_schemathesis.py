"""The API against its own description, by requests that a program makes from it."""

import re
import subprocess
from typing import Final

import pytest

from tests.support.client_environments import client_python
from tests.support.client_node import MODELS, SCRIPTS, ClientNode

CHECKS: Final = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
)
LEFT_OUT: Final = (
    r"^/(admin/restart|v1/api/|v1/session|v1/cluster/(invite|join|handover|members)"
    r"|ollama/v1/|ollama/api/(api|v1)/)"
)
"""What ends the node or changes who reaches it, what is no HTTP, and second names of routes."""
EXAMPLES: Final = 8
"""Of each operation."""
MANY: Final = 60
"""Operations."""
LIMIT_S: Final = 280


@pytest.mark.timeout(300)
def test_every_answer_is_as_the_description_says(node: ClientNode) -> None:
    before = node.requests()
    environment = node.environment(
        "schemathesis",
        {
            "PYTHONPATH": str(SCRIPTS),
            "SCHEMATHESIS_HOOKS": "schemathesis_hooks",
            "SKULK_TEST_MODELS_ASKED": ",".join(MODELS),
        },
    )
    done = subprocess.run(
        [
            str(client_python("schemathesis").with_name("schemathesis")),
            *("run", f"{node.daemon.url}/openapi.json"),
            *("--checks", ",".join(CHECKS), "--phases", "fuzzing"),
            *("--max-examples", str(EXAMPLES), "--generation-deterministic"),
            *("--exclude-path-regex", LEFT_OUT, "--request-timeout", "20"),
            *("--continue-on-failure", "--no-color", "--suppress-health-check", "all"),
        ],
        env=environment,
        cwd=environment["HOME"],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr
    tested = re.search(r"Tested: (\d+)", done.stdout)
    assert tested is not None
    assert int(tested[1]) > MANY
    asked = node.requests() - before
    assert asked["200"] > EXAMPLES
    assert asked["stop"] > 0, "some requests were answered by a model"
