"""One file over HTTP, going on where an earlier attempt stopped. Knows nothing of models or Hugging Face.

Beside the growing file lies what the server said it was (`.state`); a different answer later starts
again from zero, so that two versions are never joined.
"""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import msgspec

from appliance.download.workspace import SourceError

if TYPE_CHECKING:
    import httpx

# Waits before going on after a broken connection; a received byte starts the series again.
RETRY_DELAYS_S = (0.5, 1.0, 2.0, 4.0, 8.0)
_CONNECT_TIMEOUT_S = 10.0
_READ_TIMEOUT_S = 60.0
_PARTIAL_CONTENT = 206
_RANGE_NOT_SATISFIABLE = 416
# Worth another try: the server is busy or broken, the request is right.
_TRANSIENT = {408, 425, 429, 500, 502, 503, 504}


class _Interrupted(Exception):  # an event, not an error: the download goes on
    """The transfer stopped before its end."""


class _State(msgspec.Struct, frozen=True, kw_only=True):
    """What identifies the version that the bytes so far belong to."""

    url: str
    etag: str


class HttpDownload:
    """Fetches `url` into `target`, which holds `size_bytes` bytes at the end."""

    def __init__(
        self,
        url: str,
        target: Path,
        *,
        size_bytes: int,
        headers: Mapping[str, str],
        explain: "Callable[[httpx.Response], str]",
        on_progress: Callable[[int], None],
        retry_delays_s: tuple[float, ...] = RETRY_DELAYS_S,
    ) -> None:
        self._url = url
        self._target = target
        self._state_path = target.with_name(target.name + ".state")
        self._size_bytes = size_bytes
        # Transparent compression would make offsets meaningless.
        self._headers = {**headers, "Accept-Encoding": "identity"}
        self._explain = explain
        self._on_progress = on_progress
        self._retry_delays_s = retry_delays_s

    def run(self) -> None:
        """Download what is missing. Raises SourceError with the server's reason, OSError from the disk."""
        import httpx

        timeout = httpx.Timeout(_READ_TIMEOUT_S, connect=_CONNECT_TIMEOUT_S)
        # Redirects to another host lose the Authorization header: httpx sees to that.
        with httpx.Client(timeout=timeout, follow_redirects=True) as client:
            furthest, failures = self._present_bytes(), 0
            while (present := self._present_bytes()) != self._size_bytes:
                try:
                    self._attempt(client, present)
                except (_Interrupted, httpx.TransportError) as error:
                    # Only new ground counts: a server that flaps between versions must not keep us forever.
                    failures = 1 if self._present_bytes() > furthest else failures + 1
                    furthest = max(furthest, self._present_bytes())
                    if failures > len(self._retry_delays_s) or (_is_unreachable(error) and not furthest):
                        self._give_up(error)
                    time.sleep(self._retry_delays_s[failures - 1])
                except (httpx.HTTPError, httpx.InvalidURL) as error:
                    self._give_up(error)

    def _present_bytes(self) -> int:
        """Bytes that are there and may be gone on from; more than the file has are of no use."""
        try:
            num_bytes = self._target.stat().st_size
        except FileNotFoundError:
            return 0
        return num_bytes if num_bytes <= self._size_bytes and self._state() else 0

    def _attempt(self, client: "httpx.Client", offset: int) -> None:
        with client.stream("GET", self._url, headers=self._headers | self._range(offset)) as response:
            if response.status_code == _RANGE_NOT_SATISFIABLE and offset:
                self._forget()
                raise _Interrupted("the server no longer has the rest of the file")
            if response.status_code in _TRANSIENT:
                raise _Interrupted(f"the server answers {response.status_code}")
            if not response.is_success:
                response.read()
                raise SourceError(self._explain(response))
            start = self._start(response, offset)
            self._check_total(response, start)
            self._state_path.write_bytes(msgspec.json.encode(self._state_of(response)))
            self._receive(response, start)

    def _range(self, offset: int) -> dict[str, str]:
        if not offset:
            return {}
        state = self._state()
        # A weak tag does not prove equal bytes and is not allowed here.
        guard = {"If-Range": state.etag} if state and state.etag.startswith('"') else {}
        return {"Range": f"bytes={offset}-"} | guard

    def _start(self, response: "httpx.Response", offset: int) -> int:
        """Where the response's body begins. A server may ignore the range, or hold another version by now."""
        if response.status_code != _PARTIAL_CONTENT:
            return 0
        span = response.headers.get("Content-Range", "")
        if not span.startswith(f"bytes {offset}-") or self._state() != self._state_of(response):
            self._forget()
            raise _Interrupted("the server answers with another part or version of the file")
        return offset

    def _check_total(self, response: "httpx.Response", start: int) -> None:
        length = response.headers.get("Content-Length", "")
        if length.isdecimal() and start + int(length) != self._size_bytes:
            kind = response.headers.get("Content-Type", "unknown")
            offered = f"{start + int(length)} bytes of type {kind}"
            raise SourceError(f"the server offers {offered} and the model has {self._size_bytes}")

    def _receive(self, response: "httpx.Response", start: int) -> None:
        num_bytes = start
        with self._target.open("ab" if start else "wb") as file:
            # As it arrives: asking for larger pieces would lose what is gathered when the connection breaks.
            for chunk in response.iter_raw():
                num_bytes += len(chunk)
                if num_bytes > self._size_bytes:
                    raise SourceError(
                        f"the server sends more than the {self._size_bytes} bytes that the model has"
                    )
                file.write(chunk)
                self._on_progress(num_bytes)
        if num_bytes < self._size_bytes:
            raise _Interrupted(f"the server stopped after {num_bytes} of {self._size_bytes} bytes")

    def _state(self) -> _State | None:
        try:
            state = msgspec.json.decode(self._state_path.read_bytes(), type=_State)
        except (OSError, msgspec.DecodeError):
            return None
        return state if state.url == self._url else None

    def _state_of(self, response: "httpx.Response") -> _State:
        return _State(url=self._url, etag=response.headers.get("ETag", ""))

    def _forget(self) -> None:
        self._target.unlink(missing_ok=True)
        self._state_path.unlink(missing_ok=True)

    def _give_up(self, error: Exception) -> NoReturn:
        reason = str(error) or type(error).__name__
        raise SourceError(f"the connection fails: {reason}; check the network and its proxy") from error


def _is_unreachable(error: Exception) -> bool:
    """Whether nobody answered at all: then waiting a little longer rarely helps."""
    import httpx

    kinds = (httpx.ConnectError, httpx.ConnectTimeout, httpx.ProxyError, httpx.UnsupportedProtocol)
    return isinstance(error, kinds)
