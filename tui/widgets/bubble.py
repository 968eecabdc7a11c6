"""One message of a conversation: who, and the words, which may still grow. Knows nobody who sends them."""

from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.content import Content
from textual.widgets import Markdown, Static
from textual.widgets.markdown import MarkdownStream


class Bubble(Horizontal):
    """A question stands as it was typed; an answer is read as Markdown, also while it still comes."""

    def __init__(self, role: str, text: str = "") -> None:
        super().__init__(classes=role)
        self.text = text
        self._role = role
        # A link of a model's is shown, never followed: the terminal may be another machine's.
        self._markdown = Markdown(text, open_links=False)
        self._stream: MarkdownStream | None = None

    def compose(self) -> ComposeResult:
        """Who says it on the left, in a column of its own."""
        is_question = self._role == "user"
        who, style = ("you", "bold $p95") if is_question else ("model", "bold $p50")
        yield Static(Content.styled(who, style), classes="who")
        yield Static(Content(self.text), classes="words") if is_question else self._markdown

    async def grow(self, piece: str) -> None:
        """Adds what has come. Only the last block is drawn anew, and pieces that come at once come as one."""
        self.text += piece
        self._stream = self._stream or Markdown.get_stream(self._markdown)
        await self._stream.write(piece)

    async def finish(self) -> None:
        """Draws what has come and was not drawn yet."""
        if self._stream is not None and self._markdown.is_attached:
            await self._stream.stop()
