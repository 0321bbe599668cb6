# pyright: basic, reportMissingImports=false
# The client is installed in an environment of its own.

import ast
import json
import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from seen import ABSENT, CALLER, MORTAL, NODE, QUESTION, RESULT, SPEAKER, TOO_LONG, show

FOLDER = Path(os.environ["LLM_USER_PATH"])
WEATHER = f"def weather(city: str) -> str:\n    return {RESULT!r}\n"


def model(name: str) -> dict:
    """Give an entry of extra-openai-models.yaml, which may be JSON."""
    return {
        "model_id": name,
        "model_name": name,
        "api_base": f"{NODE}/v1",
        "supports_tools": True,
    }


def run(*arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "llm", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def failed(*arguments: str) -> dict:
    done = run(*arguments)
    raised = "exit" if done.returncode else None
    return {"raised": raised, "status": None, "message": done.stderr, "text": done.stdout}


def asked(*arguments: str) -> dict:
    done = run(*arguments, "--usage", QUESTION)
    usage = re.search(r"(\d+) input, (\d+) output", done.stderr)
    assert usage is not None, done.stderr
    return {"text": done.stdout.strip(), "usage": [int(usage[1]), int(usage[2])]}


def tools(*arguments: str) -> dict:
    done = run("-m", CALLER, "--functions", WEATHER, "--td", *arguments, QUESTION)
    calls = re.findall(r"Tool call: (\w+)\((.*)\)", done.stderr)
    return {
        "calls": [[name, ast.literal_eval(arguments)] for name, arguments in calls],
        "text": done.stdout.strip(),
    }


FOLDER.mkdir(parents=True, exist_ok=True)
entries = [model(name) for name in (SPEAKER, CALLER, MORTAL, ABSENT)]
(FOLDER / "extra-openai-models.yaml").write_text(json.dumps(entries))
show(
    version=version("llm"),
    whole=asked("-m", SPEAKER, "--no-stream"),
    streamed=asked("-m", SPEAKER),
    tools=tools("--no-stream"),
    tools_streamed=tools(),
    absent=failed("-m", ABSENT, QUESTION),
    too_long=failed("-m", SPEAKER, TOO_LONG),
    died=failed("-m", MORTAL, QUESTION),
)
