"""`appliance key`: create, list and revoke the API keys of this machine. Each returns an exit code."""

import argparse
import json
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from appliance.api_keys import ApiKey, KeyFile

# As in api_keys.py, which `--help` does not load.
SCOPES = ("inference", "admin")
CLASSES = ("gold", "silver", "bronze")


def configure(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    create_parser = actions.add_parser("create", help="make a key; it is shown this once")
    create_parser.add_argument(
        "--scope",
        choices=SCOPES,
        default="inference",
        help="inference uses models; admin also loads, pulls and deletes them (default inference)",
    )
    create_parser.add_argument(
        "--class",
        dest="service_class",
        choices=CLASSES,
        default="silver",
        help="how much of a busy appliance its requests get (default silver)",
    )
    create_parser.add_argument("--name", metavar="N", help="whose it is; any text")
    create_parser.set_defaults(handler="appliance.commands.keys:create")
    list_parser = actions.add_parser("list", help="list the keys, without the keys themselves")
    list_parser.add_argument("--json", action="store_true", help="print JSON")
    list_parser.set_defaults(handler="appliance.commands.keys:list_keys")
    revoke_parser = actions.add_parser("revoke", help="take a key away")
    revoke_parser.add_argument("key", metavar="KEY", help="its id or name, as `appliance key list` shows")
    revoke_parser.set_defaults(handler="appliance.commands.keys:revoke")


def create(args: argparse.Namespace) -> int:
    """Raises BadSetting where the name or the key file is no good, StorageNotWritable."""
    file = _file()
    name = args.name if args.name is not None else f"key-{len(file.read()) + 1}-{int(time.time())}"
    made = file.create(name=name, scope=args.scope, service_class=args.service_class)
    print(f"{made.secret}\n")
    print(f"This is the key '{name}' ({args.scope}, {args.service_class}). It is not shown again.")
    return 0


def list_keys(args: argparse.Namespace) -> int:
    """Print what is known of each key."""
    keys = _file().read()
    if args.json:
        print(json.dumps([_facts(key) for key in keys], indent=2))
        return 0
    if not keys:
        print("There are no keys; `appliance key create` makes one.")
        return 0
    print(f"{'ID':<10}{'SCOPE':<11}{'CLASS':<8}{'CREATED':<12}NAME")
    for key in keys:
        print(f"{key.id:<10}{key.scope:<11}{key.service_class:<8}{_day(key):<12}{key.name}")
    return 0


def revoke(args: argparse.Namespace) -> int:
    """Raises UnknownKey, StorageNotWritable."""
    key = _file().revoke(args.key)
    print(f"The key '{key.name}' ({key.id}) is revoked.")
    return 0


def _file() -> "KeyFile":
    from appliance import paths
    from appliance.api_keys import KeyFile

    return KeyFile(paths.keys_file())


def _facts(key: "ApiKey") -> dict[str, object]:
    return {
        "id": key.id,
        "name": key.name,
        "scope": key.scope,
        "class": key.service_class,
        "created": int(key.created_s),
    }


def _day(key: "ApiKey") -> str:
    return time.strftime("%Y-%m-%d", time.localtime(key.created_s))
