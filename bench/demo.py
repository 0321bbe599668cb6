"""`make demo`: what a new user would type, with the figures shown.

Starts a daemon in a temporary home, places the demo model, asks one question over curl and one over
`skulk chat`, and ends everything it started. KEEP=1 leaves the daemon up and says how to attach.
Model files lie outside the home, so that a second run downloads nothing.
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
import time
from pathlib import Path
from typing import Final, NoReturn

SCRIPTS: Final = Path(sys.executable).parent
MODEL: Final = "smollm2-135m-instruct"
QUESTION: Final = "What is the capital of France? Answer in one sentence."
EXPECTED: Final = "Paris"
HEALTHY_TIMEOUT_S: Final = 20.0
STOP_TIMEOUT_S: Final = 12.0


def say(text: str) -> None:
    print(f"\n== {text}", flush=True)


def show_command(argv: list[str]) -> None:
    print(f"$ {shlex.join(argv)}", flush=True)


def fail(text: str) -> NoReturn:
    print(f"\ndemo failed: {text}", file=sys.stderr, flush=True)
    sys.exit(1)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Demo:
    """One daemon, and what is asked of it."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log_path = home.parent / "skulkd.log"
        self.environment = {**os.environ, "SKULK_NODE": self.url}
        self.daemon: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the daemon and wait until it answers."""
        argv = [str(SCRIPTS / "skulkd"), "--home", str(self.home), "--api", str(self.port)]
        show_command(["skulkd", *argv[1:]])
        began_s = time.monotonic()
        with self.log_path.open("wb") as log:
            self.daemon = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        while not self._is_healthy():
            if self.daemon.poll() is not None or time.monotonic() - began_s > HEALTHY_TIMEOUT_S:
                fail(f"the daemon did not come up:\n{self.log_path.read_text()[-4000:]}")
            time.sleep(0.02)
        print(f"healthy after {time.monotonic() - began_s:.2f} s at {self.url}")

    def _is_healthy(self) -> bool:
        check = ["curl", "-sf", "-o", os.devnull, "--max-time", "2", f"{self.url}/health"]
        return subprocess.run(check, check=False).returncode == 0

    def skulk(self, *arguments: str) -> str:
        """Run an operator's command; its answer is shown as it comes, and returned."""
        show_command(["skulk", *arguments])
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

    def curl(self) -> str:
        """Ask over curl, show the text as it streams, and say how fast it was."""
        body = {
            "model": MODEL,
            "messages": [{"role": "user", "content": QUESTION}],
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        url = f"{self.url}/v1/chat/completions"
        argv = ["curl", "-sN", "--max-time", "60", url, "-d", json.dumps(body)]
        show_command(argv)
        began_s = time.monotonic()
        first_s, text, n_tokens = 0.0, "", 0
        process = subprocess.Popen(argv, stdout=subprocess.PIPE)
        assert process.stdout is not None
        for line in process.stdout:
            if not line.startswith(b"data: {"):
                continue
            frame = json.loads(line[6:])
            if "error" in frame:
                fail(f"the stream ended with {frame['error']}")
            for choice in frame["choices"]:
                piece = choice["delta"].get("content") or ""
                if piece and not first_s:
                    first_s = time.monotonic()
                text += piece
                print(piece, end="", flush=True)
            if frame.get("usage"):
                n_tokens = frame["usage"]["completion_tokens"]
        process.wait()
        took_s = max(time.monotonic() - first_s, 1e-6)
        print(
            f"\n   first token after {(first_s - began_s) * 1000:.0f} ms, "
            f"{n_tokens} tokens, {n_tokens / took_s:.0f} tokens/s"
        )
        return text

    def stop(self) -> None:
        """End the daemon, and prove that nothing of it is left."""
        if self.daemon is None or self.daemon.poll() is not None:
            return
        self.daemon.send_signal(signal.SIGTERM)
        try:
            code = self.daemon.wait(timeout=STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.daemon.kill()
            fail(f"the daemon did not stop within {STOP_TIMEOUT_S:g} s")
        print(f"skulkd ended with {code}")
        if code != 0:
            fail(f"the daemon ended with {code}:\n{self.log_path.read_text()[-4000:]}")


def tell(demo: Demo) -> None:
    say("A daemon in a home of its own")
    demo.start()
    say("What this machine is and can run")
    demo.skulk("status")
    say("Where the model would go, with the arithmetic")
    demo.skulk("place", MODEL, "--dry-run")
    say("Place it: download, stage, spawn, load, probe, ready")
    demo.skulk("place", MODEL, "--wait", "--timeout", "110s")
    demo.skulk("ps")
    say("Ask over curl")
    over_curl = demo.curl()
    say("Ask over skulk chat")
    over_chat = demo.skulk("chat", MODEL, QUESTION, "--temperature", "0", "--stats")
    for way, answer in (("curl", over_curl), ("skulk chat", over_chat)):
        if EXPECTED not in answer:
            fail(f"the answer over {way} does not name {EXPECTED}: {answer!r}")


def main() -> None:
    if shutil.which("curl") is None:
        fail("curl is missing; install it")
    root = Path(tempfile.mkdtemp(prefix="skulk-demo-"))
    demo = Demo(root / "home")
    keep = os.environ.get("KEEP", "") not in {"", "0"}
    began_s = time.monotonic()
    done = False
    try:
        tell(demo)
        done = True
    finally:
        if keep and done:
            assert demo.daemon is not None
            say(f"Left up, as pid {demo.daemon.pid}; attach with")
            print(f"  export SKULK_NODE={demo.url}\n  skulk status\n  skulk chat {MODEL}")
            print(f"end it with\n  kill {demo.daemon.pid}\nits home and log lie in {root}")
        else:
            say("Stop everything")
            demo.stop()
            shutil.rmtree(root, ignore_errors=True)
    print(f"\ndemo: all well, in {time.monotonic() - began_s:.1f} s")


if __name__ == "__main__":
    main()
