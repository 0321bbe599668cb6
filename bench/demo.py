"""`make demo`: what a new user would type on three machines, with the figures shown.

Three daemons in temporary homes form one cluster by an invitation, a real model is placed on one of
them, and the question goes through the others; then the master is killed while an answer streams.
Everything that was started is ended. KEEP=1 leaves the daemons up and says how to attach. Model
files lie outside the homes, so that a second run downloads nothing.
"""

import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Final, NoReturn

SCRIPTS: Final = Path(sys.executable).parent
MODEL: Final = "smollm2-135m-instruct"
QUESTION: Final = "What is the capital of France? Answer in one sentence."
EXPECTED: Final = "Paris"
STORY: Final = "Tell a long story about a lighthouse."
NAMES: Final = ("attic", "kitchen", "study")
HEALTHY_TIMEOUT_S: Final = 20.0
FORMED_TIMEOUT_S: Final = 20.0
STOP_TIMEOUT_S: Final = 12.0


def say(text: str) -> None:
    print(f"\n== {text}", flush=True)


def show_command(argv: list[str], *, node: str = "") -> None:
    print(f"{node}$ {shlex.join(argv)}", flush=True)


def fail(text: str) -> NoReturn:
    print(f"\ndemo failed: {text}", file=sys.stderr, flush=True)
    sys.exit(1)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Node:
    """One daemon, and what is asked of it."""

    def __init__(self, root: Path, name: str) -> None:
        self.name = name
        self.home = root / name
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log_path = root / f"{name}.log"
        self.environment = {**os.environ, "SKULK_NODE": self.url}
        self.daemon: subprocess.Popen[bytes] | None = None

    def start(self, *arguments: str) -> None:
        """Start the daemon; `wait_healthy` waits until it answers."""
        argv = ["skulkd", "--home", str(self.home), "--api", str(self.port), "--name", self.name]
        # On one machine each node needs ports of its own, and there is nobody to be found.
        argv += ["--cluster", "127.0.0.1:0", "--no-mdns", *arguments]
        show_command(argv)
        with self.log_path.open("wb") as log:
            self.daemon = subprocess.Popen(
                [str(SCRIPTS / "skulkd"), *argv[1:]],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait_healthy(self) -> None:
        """Wait until the daemon answers."""
        assert self.daemon is not None
        deadline_s = time.monotonic() + HEALTHY_TIMEOUT_S
        while not self._is_healthy():
            if self.daemon.poll() is not None or time.monotonic() > deadline_s:
                fail(f"{self.name} did not come up:\n{self.log_path.read_text()[-4000:]}")
            time.sleep(0.02)

    def _is_healthy(self) -> bool:
        check = ["curl", "-sf", "-o", os.devnull, "--max-time", "2", f"{self.url}/health"]
        return subprocess.run(check, check=False).returncode == 0

    def skulk(self, *arguments: str) -> str:
        """Run an operator's command; its answer is shown as it comes, and returned."""
        show_command(["skulk", *arguments], node=f"{self.name} ")
        process = subprocess.Popen(
            [str(SCRIPTS / "skulk"), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,  # one stream, so that it is shown in the order it was said
            stdin=subprocess.DEVNULL,
            env=self.environment,
        )
        assert process.stdout is not None
        seen = bytearray()
        while piece := os.read(process.stdout.fileno(), 65536):
            seen += piece
            sys.stdout.buffer.write(piece)
            sys.stdout.flush()
        if process.wait() != 0:
            fail(f"skulk {shlex.join(arguments)} ended with {process.returncode}")
        return seen.decode()

    def document(self, *arguments: str) -> Any:  # ruff: ignore[any-type]  JSON
        """Run an operator's command for its JSON, without showing it."""
        argv = [str(SCRIPTS / "skulk"), *arguments, "--json"]
        ended = subprocess.run(argv, check=False, capture_output=True, env=self.environment)
        if ended.returncode != 0:
            fail(f"skulk {shlex.join(arguments)} ended with {ended.returncode}: {ended.stderr!r}")
        return json.loads(ended.stdout)

    def stop(self) -> None:
        """End the daemon in order, and see that it does."""
        if self.daemon is None or self.daemon.poll() is not None:
            return
        self.daemon.send_signal(signal.SIGTERM)
        try:
            code = self.daemon.wait(timeout=STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.daemon.kill()
            fail(f"{self.name} did not stop within {STOP_TIMEOUT_S:g} s")
        print(f"{self.name} ended with {code}")
        if code != 0:
            fail(f"{self.name} ended with {code}:\n{self.log_path.read_text()[-4000:]}")

    def kill(self) -> None:
        """End the daemon as a power cut would."""
        if self.daemon is not None and self.daemon.poll() is None:
            self.daemon.kill()
            self.daemon.wait()


class Stream:
    """One question over curl, whose text is shown as it comes."""

    def __init__(self, node: Node, question: str, *, max_tokens: int, is_shown: bool) -> None:
        body = {
            "model": MODEL,
            "messages": [{"role": "user", "content": question}],
            "temperature": 0,
            "max_tokens": max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        url = f"{node.url}/v1/chat/completions"
        argv = ["curl", "-sN", "--max-time", "120", url, "-d", json.dumps(body)]
        show_command(argv, node=f"{node.name} ")
        self.text = ""
        self.n_tokens = 0
        self.longest_gap_s = 0.0
        self.error: object = None
        self.first_s = 0.0
        self.finish_reason: str | None = None
        self._is_shown = is_shown
        self.began_s = self._last_s = time.monotonic()
        self._process = subprocess.Popen(argv, stdout=subprocess.PIPE)
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(b"data: {"):
                self._take(json.loads(line[6:]))

    def _take(self, frame: dict[str, Any]) -> None:
        if "error" in frame:
            self.error = frame["error"]
            return
        now_s = time.monotonic()
        for choice in frame["choices"]:
            piece = choice["delta"].get("content") or ""
            if not piece:
                self.finish_reason = choice.get("finish_reason") or self.finish_reason
                continue
            if not self.first_s:
                self.first_s = now_s
            else:
                self.longest_gap_s = max(self.longest_gap_s, now_s - self._last_s)
            self._last_s = now_s
            self.text += piece
            if self._is_shown:
                print(piece, end="", flush=True)
        if frame.get("usage"):
            self.n_tokens = frame["usage"]["completion_tokens"]

    def wait(self) -> None:
        """Wait for its end, and say how fast it was."""
        self._reader.join()
        self._process.wait()
        if self.error is not None:
            fail(f"the stream ended with {self.error}")
        took_s = max(time.monotonic() - self.first_s, 1e-6)
        print(
            f"\n   first token after {(self.first_s - self.began_s) * 1000:.0f} ms, "
            f"{self.n_tokens} tokens, {self.n_tokens / took_s:.0f} tokens/s"
        )


class Demo:
    """Three nodes, and their story."""

    def __init__(self, root: Path) -> None:
        self.nodes = tuple(Node(root, name) for name in NAMES)
        self.token_path = root / "token"

    def tell(self) -> None:
        """Show what there is to see."""
        self._form()
        attic, kitchen, study = self.nodes
        say("Where the model would go, with the arithmetic")
        kitchen.skulk("place", MODEL, "--dry-run")
        say("Place it on study, asked on kitchen: download, stage, spawn, load, probe, ready")
        kitchen.skulk("place", MODEL, "--nodes", study.name, "--wait", "--timeout", "110s")
        attic.skulk("ps")
        say("Ask over curl, through a node that does not host it")
        over_curl = Stream(kitchen, QUESTION, max_tokens=64, is_shown=True)
        over_curl.wait()
        say("Ask over skulk chat, through the other one")
        over_chat = attic.skulk("chat", MODEL, QUESTION, "--temperature", "0", "--stats")
        for way, answer in (("curl", over_curl.text), ("skulk chat", over_chat)):
            if EXPECTED not in answer:
                fail(f"the answer over {way} does not name {EXPECTED}: {answer!r}")
        self._kill_master(kitchen)

    def _form(self) -> None:
        attic, kitchen, study = self.nodes
        say("A first node; it founds a cluster of one, and invites")
        began_s = time.monotonic()
        attic.start()
        attic.wait_healthy()
        print(f"healthy after {time.monotonic() - began_s:.2f} s at {attic.url}")
        token = attic.document("cluster", "invite", "--uses", "2")["items"][0]["token"]
        self.token_path.touch(mode=0o600)
        self.token_path.write_text(f"{token}\n")
        show_command(["skulk", "cluster", "invite", "--uses", "2"], node="attic ")
        print(f"{token[:20]}... kept in {self.token_path}")
        say("Two more join by it: one when it starts, one while it runs")
        began_s = time.monotonic()
        study.start("--join-file", str(self.token_path))
        kitchen.start()
        kitchen.wait_healthy()
        kitchen.skulk("cluster", "join", "--file", str(self.token_path), "--yes")
        self._wait_formed()
        print(f"three nodes agree after {time.monotonic() - began_s:.2f} s")
        say("One cluster, seen from any node")
        kitchen.skulk("nodes")

    def _wait_formed(self) -> None:
        deadline_s = time.monotonic() + FORMED_TIMEOUT_S
        for node in self.nodes:
            node.wait_healthy()
            while not self._has_formed(node):
                if time.monotonic() > deadline_s:
                    fail(f"no cluster of three: {node.document('cluster', 'status')}")
                time.sleep(0.05)

    def _has_formed(self, node: Node) -> bool:
        """Whether a node hears all others, and knows what each of them is and can run."""
        items: list[dict[str, Any]] = node.document("nodes")["items"]
        return len(items) == len(self.nodes) and all(
            item["liveness"] == "alive" and item["backends"] for item in items
        )

    def _kill_master(self, through: Node) -> None:
        """Kill the master while an answer streams from study to the client of another node."""
        name = self._master_seen(through)
        master = next(node for node in self.nodes if node.name == name)
        say(f"Kill -9 the master, {master.name}, while an answer streams through {through.name}")
        if master.name in {through.name, NAMES[2]}:
            fail(f"the master is {master.name}, and the first node was to be")
        stream = Stream(through, STORY, max_tokens=160, is_shown=False)
        while not stream.first_s and stream.error is None:
            time.sleep(0.01)
        began_s = time.monotonic()
        master.kill()
        while (new := self._master_seen(through)) in {None, master.name}:
            if time.monotonic() - began_s > FORMED_TIMEOUT_S:
                fail("nobody was elected")
            time.sleep(0.02)
        print(f"{new} is master after {(time.monotonic() - began_s) * 1000:.0f} ms")
        stream.wait()
        print(f"   not a word lost, longest gap {stream.longest_gap_s * 1000:.0f} ms")
        if stream.finish_reason not in {"length", "stop"}:
            fail(f"the stream did not finish: {stream.finish_reason}")
        through.skulk("cluster", "members")

    def _master_seen(self, node: Node) -> str | None:
        curl = ["curl", "-sf", "--max-time", "5", f"{node.url}/v1/cluster"]
        answer = subprocess.run(curl, check=False, capture_output=True)
        if answer.returncode != 0:
            return None
        document = json.loads(answer.stdout)
        names = {member["node_id"]: member["name"] for member in document["members"]}
        return names.get(document["master"])

    def stop(self) -> None:
        """End every daemon, and prove that nothing of them is left."""
        for node in self.nodes:
            node.stop()

    def kill(self) -> None:
        """End every daemon at once, whatever it is doing."""
        for node in self.nodes:
            node.kill()


def main() -> None:
    if shutil.which("curl") is None:
        fail("curl is missing; install it")
    root = Path(tempfile.mkdtemp(prefix="skulk-demo-"))
    demo = Demo(root)
    keep = os.environ.get("KEEP", "") not in {"", "0"}
    began_s = time.monotonic()
    is_done = False
    try:
        demo.tell()
        is_done = True
        if keep:
            _tell_kept(demo, root)
        else:
            say("Stop everything")
            demo.stop()
    finally:
        if not (keep and is_done):
            demo.kill()
            shutil.rmtree(root, ignore_errors=True)
    print(f"\ndemo: all well, in {time.monotonic() - began_s:.1f} s")


def _tell_kept(demo: Demo, root: Path) -> None:
    left = [node for node in demo.nodes if node.daemon is not None and node.daemon.poll() is None]
    pids = " ".join(str(node.daemon.pid) for node in left if node.daemon is not None)
    say(f"Left up: {', '.join(node.name for node in left)}; attach with")
    print(f"  export SKULK_NODE={left[0].url}\n  skulk nodes\n  skulk chat {MODEL}")
    print(f"end them with\n  kill {pids}\ntheir homes and logs lie in {root}")


if __name__ == "__main__":
    main()
