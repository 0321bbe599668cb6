"""The scripted engine as benchmarks run it: on a port, for gateways that know no Unix sockets."""

import http.client
import json
import os
import sys
from typing import Any

from bench.tcp_engines import tcp_engine


def _asked(port: int, **fields: int) -> dict[str, Any]:
    body = {"messages": [{"role": "user", "content": "count"}], **fields}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("POST", "/v1/chat/completions", json.dumps(body))
        answer: dict[str, Any] = json.loads(connection.getresponse().read())
    finally:
        connection.close()
    return answer


def test_it_answers_on_a_port_and_takes_either_name_of_the_limit() -> None:
    script = {"reply": "one two", "repeat": True, "slots": 2, "context_tokens": 64}
    parameters = {"socket": "none", "script": script}
    command = [sys.executable, "-m", "engines.scripted.server", json.dumps(parameters)]

    with tcp_engine(os.getpid(), command) as (port, _):
        answers = (_asked(port, max_tokens=3), _asked(port, max_completion_tokens=3))

    assert [answer["usage"]["completion_tokens"] for answer in answers] == [3, 3]
