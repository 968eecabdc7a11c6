"""Counts answers by their HTTP status. Knows no routes."""

from collections import Counter

from litestar.types import Message, Send


class ResponseCounts:
    """Counts on the event loop; anybody may read."""

    def __init__(self) -> None:
        self.by_status: Counter[int] = Counter()

    def sender(self, send: Send) -> Send:
        """Return a `send` that counts the answer."""

        async def send_counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.by_status[message["status"]] += 1
            await send(message)

        return send_counted
