"""What importing the server costs."""

import subprocess
import sys

HEAVY = ("torch", "triton", "tokenizers", "jinja2", "textual", "transformers", "huggingface_hub")


def test_importing_the_server_loads_nothing_heavy() -> None:
    code = (
        "import sys, appliance.server.app, appliance.server.http_server; "
        f"print([name for name in {HEAVY} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
