"""HTTP to one node: typed answers, typed errors, one time budget. Knows no verb and no terminal.

httpx is imported when the first request is made, so that commands that ask nobody start fast.
Proxies of the environment are not used: nodes are on this machine or this network, and a proxy
would be shown the API key.
"""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeVar, final
from urllib.parse import quote

from pydantic import ValidationError

from protocol.base import FrozenModel
from protocol.clock import Clock
from protocol.errors import ClientError, ErrorBody, SkulkError, error_of
from skulk_tui.target import Target

if TYPE_CHECKING:
    import ssl

    import httpx

    from protocol.control_api import ErrorEnvelope
    from skulk_tui.tls_pins import TlsTrust

ANSWER_MAX_BYTES: Final = 64 << 20
"""More than any node's `/state`; what is larger is not an answer of a node."""
LINE_MAX_CHARS: Final = 4 << 20
CONNECT_TIMEOUT_S: Final = 5.0
READ_TIMEOUT_S: Final = 30.0
"""The longest a node thinks about a control request is 15 s (facts still arriving)."""
STREAM_SILENCE_S: Final = 60.0
"""A node sends a comment at least every 15 s while a stream has nothing to say."""
WHOLE_ANSWER_S: Final = 3600.0
"""An answer that does not stream is silent until the last token."""

Query = Mapping[str, str | Sequence[str]]
AnswerT = TypeVar("AnswerT", bound=FrozenModel)


class ErrorAnswer(Exception):  # ruff: ignore[error-suffix-on-exception-name]  # a cause
    """What a node answered instead of a result; the `__cause__` of the error that it led to."""

    def __init__(self, status: int, envelope: "ErrorEnvelope") -> None:
        super().__init__(f"HTTP {status}: {envelope.skulk_code}")
        self.status = status
        self.envelope = envelope


def envelope_of(error: BaseException) -> "ErrorEnvelope | None":
    """Give the node's whole error answer, when the error came from one."""
    cause = error.__cause__
    return cause.envelope if isinstance(cause, ErrorAnswer) else None


def path_of(template: str, *ids: str) -> str:
    """Fill ids into a path, percent-encoded whole: `path_of("/instance/{}", instance_id)`."""
    return template.format(*(quote(item, safe="") for item in ids))


@final
class NodeClient:
    """One node, asked synchronously.

    Args:
        target: Whom to ask, and the key.
        clock: For the budget.
        deadline_s: When the whole command's budget ends, on that clock; None is no budget.
        user_agent: Name and version of the program.
        trust: Which certificates are believed; None is those that an authority vouches for.
        before_change: Called before anything is sent that changes something; may refuse.

    A target with several addresses is asked at the first that answers, from then on at that one.

    Every call raises what the node answered, as `protocol.errors.error_of` reads it, with the
    answer itself as `envelope_of(error)`; or a ClientError: `client.unreachable`, `client.timeout`,
    `client.bad_answer`, `client.insecure_key`, `client.certificate_changed`.
    """

    def __init__(
        self,
        target: Target,
        *,
        clock: Clock,
        deadline_s: float | None = None,
        user_agent: str = "skulk",
        trust: "TlsTrust | None" = None,
        before_change: Callable[[], None] | None = None,
    ) -> None:
        self._before_change = before_change
        self._target = target
        self._trust = trust
        self._clock = clock
        self._deadline_s = deadline_s
        self._user_agent = user_agent
        self._http: httpx.Client | None = None

    @property
    def target(self) -> Target:
        """The node that is asked."""
        return self._target

    def close(self) -> None:
        """Close the connections; a later call opens new ones."""
        if self._http is not None:
            self._http.close()
            self._http = None

    def use_key(self, api_key: str, rule: str) -> None:
        """Show another key from now on."""
        self.close()
        self._target = self._target.with_key(api_key, rule)

    def get(self, path: str, kind: type[AnswerT], *, query: Query | None = None) -> AnswerT:
        """Ask for a document."""
        return self._call("GET", path, kind, query=query)

    def post(
        self,
        path: str,
        kind: type[AnswerT],
        body: FrozenModel | None = None,
        *,
        query: Query | None = None,
    ) -> AnswerT:
        """Ask for a change."""
        self._permit(body)
        content = (body.model_dump_json(exclude_none=True) if body is not None else "{}").encode()
        return self._call("POST", path, kind, query=query, content=content)

    def put(
        self, path: str, kind: type[AnswerT], body: FrozenModel, *, query: Query | None = None
    ) -> AnswerT:
        """Ask for something to be replaced."""
        self._permit(body)
        content = body.model_dump_json(exclude_none=True).encode()
        return self._call("PUT", path, kind, query=query, content=content)

    def delete(self, path: str, kind: type[AnswerT], *, query: Query | None = None) -> AnswerT:
        """Ask for something to be taken away."""
        self._permit(None)
        return self._call("DELETE", path, kind, query=query)

    def _permit(self, body: FrozenModel | None) -> None:
        # A body that only asks what would be done says so under this name on every route.
        if self._before_change is not None and not getattr(body, "dry_run", False):
            self._before_change()

    @contextmanager
    def stream(
        self, path: str, body: str, *, silence_s: float = STREAM_SILENCE_S
    ) -> Generator[Iterator[str]]:
        """Post a JSON body and read the answer's lines as they come.

        Leaving the block closes the connection, which tells the node to stop. Lines come without
        their end; a line over 4 Mi characters is refused.
        """
        with self._answer("POST", path, content=body.encode(), silence_s=silence_s) as got:
            yield self._lines(got)

    @contextmanager
    def follow(
        self, path: str, *, query: Query, headers: Mapping[str, str]
    ) -> Generator[Iterator[str]]:
        """Ask for a stream that goes on, and read its lines as they come; as `stream` does."""
        silence_s = STREAM_SILENCE_S
        with self._answer("GET", path, query=query, headers=headers, silence_s=silence_s) as got:
            yield self._lines(got)

    def _call(
        self,
        method: str,
        path: str,
        kind: type[AnswerT],
        *,
        query: Query | None = None,
        content: bytes | None = None,
    ) -> AnswerT:
        # The documents of the API take long to load, and what asks nobody needs none.
        from protocol.control_api import read_answer

        with self._answer(method, path, query=query, content=content) as response:
            raw = self._read(response)
        try:
            return read_answer(kind, raw)
        except ValidationError as wrong:
            first = wrong.errors(include_url=False, include_input=False)[0]
            where = ".".join(str(part) for part in first["loc"]) or "the document"
            fault = f"{method} {path} answered no {kind.__name__}: {where}: {first['msg']}"
            raise self._bad_answer(fault) from wrong

    @contextmanager
    def _answer(
        self,
        method: str,
        path: str,
        *,
        query: Query | None = None,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        silence_s: float = READ_TIMEOUT_S,
    ) -> Generator["httpx.Response"]:
        import httpx

        kind = {"content-type": "application/json"} if content is not None else {}

        def send() -> httpx.Response:
            http = self._http or self._open()
            connect_s = self._within(CONNECT_TIMEOUT_S)
            request = http.build_request(
                method,
                path,
                params=query,
                content=content,
                headers={**kind, **(headers or {})},
                timeout=httpx.Timeout(self._within(silence_s), connect=connect_s),
            )
            return http.send(request, stream=True)

        response: httpx.Response | None = None
        try:
            response = self._at_any_address(send)
            if response.status_code >= httpx.codes.BAD_REQUEST:
                raise self._refusal(response)
            yield response
        except httpx.TimeoutException as late:
            raise self._late(method, path) from late
        except httpx.HTTPError as wrong:
            raise self._unreachable(wrong, answered=response is not None) from wrong
        finally:
            if response is not None:
                response.close()

    def _at_any_address(self, send: "Callable[[], httpx.Response]") -> "httpx.Response":
        """Send to the next address where nobody listens at this one: nothing was sent to it."""
        import httpx

        while True:
            try:
                return send()
            except (httpx.ConnectError, httpx.ConnectTimeout, ClientError) as wrong:
                if not self._target.seeds or self._is_refusal(wrong):
                    raise
                self.close()
                url, *seeds = self._target.seeds
                self._target = replace(self._target, url=url, seeds=tuple(seeds))

    def _is_refusal(self, wrong: Exception) -> bool:
        """Whether this program refused, which no other address may hide."""
        if isinstance(wrong, ClientError):
            return wrong.code != "client.unreachable"
        return self._trust is not None and self._trust.change_in(wrong) is not None

    def _open(self) -> "httpx.Client":
        import httpx

        headers = {"user-agent": self._user_agent, "accept": "application/json"}
        if self._target.api_key is not None:
            if not self._target.key_may_travel:
                raise insecure_key(self._target)
            headers["authorization"] = f"Bearer {self._target.api_key}"
        self._http = httpx.Client(
            base_url=self._target.url,
            headers=headers,
            verify=self._tls(),
            trust_env=False,
            follow_redirects=False,
        )
        return self._http

    def _tls(self) -> "ssl.SSLContext":
        import ssl

        # Loading the authorities takes longer than most requests; plain HTTP needs none.
        if not self._target.url.startswith("https://"):
            return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        believed = self._trust.context(self._target.url) if self._trust is not None else None
        return believed or ssl.create_default_context()

    def _within(self, longest_s: float) -> float:
        if self._deadline_s is None:
            return longest_s
        left_s = self._deadline_s - self._clock.monotonic_s()
        if left_s <= 0:
            raise budget_spent()
        return min(longest_s, left_s)

    def _late(self, method: str, path: str) -> ClientError:
        if self._deadline_s is not None and self._clock.monotonic_s() >= self._deadline_s:
            return budget_spent()
        return ClientError(
            "client.unreachable",
            f"{self._target.url} did not answer {method} {path} in time",
            remediation="Ask `skulk status` again; `--timeout 5m` allows more.",
        )

    def _unreachable(self, wrong: Exception, *, answered: bool) -> ClientError:
        changed = self._trust.change_in(wrong) if self._trust is not None else None
        if changed is not None:
            return changed
        if answered:
            return ClientError(
                "client.unreachable",
                f"{self._target.url} broke off its answer: {wrong}",
                remediation="Ask `skulk status` whether the node is still there.",
            )
        remedy = f"Check that skulkd runs there and listens beyond loopback ({self._target.url})."
        if self._target.is_loopback:
            remedy = "Is skulkd running? Start `skulkd`, or see `systemctl --user status skulkd`."
        return ClientError(
            "client.unreachable",
            f"no node answers at {self._target.url} ({self._target.url_rule}): {wrong}",
            remediation=remedy,
        )

    def _read(self, response: "httpx.Response") -> bytes:
        parts: list[bytes] = []
        n_bytes = 0
        for part in response.iter_bytes():
            n_bytes += len(part)
            if n_bytes > ANSWER_MAX_BYTES:
                fault = f"the answer is larger than {ANSWER_MAX_BYTES} bytes"
                raise self._bad_answer(fault)
            parts.append(part)
        return b"".join(parts)

    def _lines(self, response: "httpx.Response") -> Iterator[str]:
        rest = ""
        for text in response.iter_text():
            self._within(0.0)  # a stream that always has something to say is never late by itself
            *whole, rest = (rest + text).split("\n")
            if len(rest) > LINE_MAX_CHARS:
                fault = f"a line is longer than {LINE_MAX_CHARS} characters"
                raise self._bad_answer(fault)
            for line in whole:
                yield line.rstrip("\r")
        if rest:
            yield rest.rstrip("\r")

    def _refusal(self, response: "httpx.Response") -> SkulkError:
        from protocol.control_api import ErrorDocument, read_answer

        raw = self._read(response)
        try:
            envelope = read_answer(ErrorDocument, raw).error
        except ValidationError:
            text = raw[:200].decode("utf-8", errors="replace")
            return self._bad_answer(f"HTTP {response.status_code}: {text}")
        return error_answered(response.status_code, envelope)

    def _bad_answer(self, fault: str) -> ClientError:
        return ClientError(
            "client.bad_answer",
            f"{self._target.url} gives no answer of a skulk node: {fault}",
            remediation="Compare `skulk version` with the node's /version, and check the address.",
        )


def error_answered(status: int, envelope: "ErrorEnvelope") -> SkulkError:
    """Turn a node's error answer into the error it stands for, keeping the answer as its cause."""
    error = error_of(
        ErrorBody(
            code=envelope.skulk_code,
            message=envelope.message,
            remediation=envelope.remediation,
            details=envelope.details,
            retry_after_s=envelope.retry_after_s,
        )
    )
    error.__cause__ = ErrorAnswer(status, envelope)
    return error


def insecure_key(target: Target) -> ClientError:
    """Say why a key is not sent in the clear, and what to do instead."""
    host = target.url.removeprefix("http://").rpartition(":")[0]
    return ClientError(
        "client.insecure_key",
        f"the key of {target.key_rule} would cross the network in the clear to {target.url}",
        remediation=f"Tunnel: `ssh -L 52415:127.0.0.1:52415 {host}`; or allow it: `--insecure`.",
    )


def budget_spent() -> ClientError:
    """Say that `--timeout` ran out."""
    return ClientError(
        "client.timeout",
        "the time given by --timeout ran out; work that has begun goes on",
        remediation="Give it longer, or follow the work with `skulk ps`.",
    )
