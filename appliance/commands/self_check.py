"""`appliance self-check`: are this program's own files what was packaged?"""

import argparse
import sys

from appliance import installation, paths
from appliance.catalog import Catalog
from appliance.errors import BadModelFile, UnknownModel


def self_check(_: argparse.Namespace) -> int:
    """Print each damaged file. Returns 0, or raises BadModelFile naming the remedy."""
    if not paths.is_frozen():
        print("this is not the packaged executable: there is nothing to compare with")
        return 0
    problems = [*installation.damaged_files(), *installation.damaged_executable(_model_sha256())]
    for problem in problems:
        print(problem, file=sys.stderr)
    if problems:
        raise BadModelFile(
            f"{len(problems)} of this program's files are damaged; delete {paths.resource_root().parent} "
            "or download the program again"
        )
    print("every file is what was packaged")
    return 0


def _model_sha256() -> str | None:
    model_id = installation.shipped_model_id()
    if model_id is None:
        return None
    try:
        return Catalog.load().find(model_id).sha256
    except UnknownModel:
        return None
