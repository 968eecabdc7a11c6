"""Starting programs that are not ours from the packaged executable. Knows no program by name."""

import os

from appliance import paths


def environment_of_others() -> dict[str, str]:
    """The environment as it was before the executable pointed the loader at its own libraries."""
    environment = dict(os.environ)
    original = environment.pop("LD_LIBRARY_PATH_ORIG", None)
    if paths.is_frozen():
        environment.pop("LD_LIBRARY_PATH", None)
    if original:
        environment["LD_LIBRARY_PATH"] = original
    return environment
