"""npm's openai and the Vercel AI SDK's openai-compatible provider, unchanged, over a real socket."""

from pathlib import Path

import pytest

from server.javascript import needs_node, run_script
from server.rig import MODEL_ID, make_rig, serve

pytestmark = [pytest.mark.slow, needs_node]


def test_javascript_clients_work_as_they_are() -> None:
    with make_rig() as rig, serve(rig) as server:
        run_script(Path(__file__).with_name("clients.mjs"), server.url, MODEL_ID)
