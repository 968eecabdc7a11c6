"""The command line. Parses, then imports what the command needs: `--help` loads nothing heavy."""

import argparse
import importlib
import sys
from collections.abc import Sequence
from dataclasses import fields

from appliance import __version__
from appliance.commands import bench_args, keys, models
from appliance.config import Settings, flag_name
from appliance.errors import ApplianceError

EXIT_INTERRUPTED = 130
_EPILOG = """\
exit codes: 0 done, 1 failed, 2 bad flag or setting, 4 unknown model, 5 bad or unsupported model file,
6 download failed, 7 not enough memory, 8 port taken, 9 folder not writable, 130 stopped at once
Every flag of `serve` is also a key of the settings file (max-sequences = 8) and an environment
variable (APPLIANCE_MAX_SEQUENCES=8); flags win over the environment, which wins over the file."""

# Of no use to a command that opens no port.
_ONLY_SERVED = (
    *("host", "port", "queue", "deadline", "api_key", "no_dashboard"),
    *("require_key", "tls_cert", "tls_key", "record_prompts", "otlp_endpoint", "otlp_headers", "trace_share"),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    args = parsed(with_default_command(arguments))
    module_name, function_name = args.handler.split(":")
    try:
        exit_code: int = getattr(importlib.import_module(module_name), function_name)(args)
    except ApplianceError as error:
        print(f"appliance: {error.message}", file=sys.stderr)  # noqa: T201  # the command line's own words
        _show_without_terminal(args, error.message)
        return error.exit_code
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of our output is gone, as with `| head`: nobody is left to tell.
        sys.stderr.close()
        return 0
    except Exception as error:  # the outermost frame: without a terminal nobody would see the traceback
        _show_without_terminal(args, f"{type(error).__name__}: {error}")
        raise
    return exit_code


def _show_without_terminal(args: argparse.Namespace, message: str) -> None:
    """A double-click is `serve`; other commands have somebody who reads them, a script perhaps."""
    from appliance import desktop

    if "no_dashboard" in args and not args.no_dashboard and desktop.is_desktop_start():
        desktop.show_failure(message)


def with_default_command(arguments: list[str]) -> list[str]:
    """`appliance` alone, or with flags only, means `appliance serve`."""
    if not arguments:
        return ["serve"]
    is_flag = arguments[0].startswith("-") and arguments[0] not in ("-h", "--help", "--version")
    return ["serve", *arguments] if is_flag else arguments


def parsed(arguments: list[str]) -> argparse.Namespace:
    """The command's arguments. A prompt needs no quotes, and its words may follow any flag."""
    parser = build_parser()
    args, rest = parser.parse_known_args(arguments)
    end = rest.index("--") if "--" in rest else len(rest)
    if rest and ("prompt" not in args or any(word.startswith("-") for word in rest[:end])):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if words := rest[:end] + rest[end + 1 :]:
        # Before Python 3.12.7 argparse ends a prompt at the first flag after MODEL.
        args.prompt = " ".join(words if args.prompt is None else [args.prompt, *words])
    return args


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="appliance",
        description="Serve a language model to every app on this machine. Alone: server and dashboard.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    serve = commands.add_parser("serve", help="serve a model, with the dashboard on a terminal")
    # Suppressed: an absent MODEL must not take back what --model gave.
    serve.add_argument(
        "model",
        nargs="?",
        metavar="MODEL",
        default=argparse.SUPPRESS,
        help="catalogue name, model file or folder",
    )
    add_settings_flags(serve, leave_out=())
    serve.set_defaults(handler="appliance.commands.serve:serve")
    _add_run(commands.add_parser("run", help="chat with a model, or stream one answer"))
    _add_eval(commands.add_parser("eval", help="measure what a precision costs a model's answers"))
    _add_calibrate(commands.add_parser("calibrate", help="find which matrices to keep in 16 bits"))
    _add_model_commands(commands)
    _add_running(commands)
    keys.configure(commands.add_parser("key", help="create, list and revoke API keys"))
    _add_dashboard(commands.add_parser("dashboard", help="attach the dashboard to a running appliance"))
    version = commands.add_parser("version", help="print the version")
    version.add_argument(
        "--verbose", action="store_true", help="with folders, libraries and the model inside"
    )
    version.set_defaults(handler="appliance.commands.version:version")
    _add_checks(commands)
    _add_service(
        commands.add_parser("service", help="run it in the background, from every start of the system")
    )
    for command in commands.choices.values():
        command.allow_abbrev = False  # "--model" of one command must not become "--models-dir" of another
    return parser


def _add_model_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    for name, help_text, configure, function in (
        ("pull", "download a model", models.configure_pull, "pull"),
        (
            "list",
            "list the catalogue and what is on this machine",
            models.configure_list,
            "list_models",
        ),
        ("show", "show everything known of a model", models.configure_show, "show"),
        ("rm", "delete a downloaded model", models.configure_remove, "remove"),
    ):
        aliases = ["models"] if name == "list" else []
        command = commands.add_parser(name, help=help_text, aliases=aliases)
        configure(command)
        command.set_defaults(handler=f"appliance.commands.models:{function}")


def add_settings_flags(parser: argparse.ArgumentParser, *, leave_out: tuple[str, ...]) -> None:
    """One flag for each setting. Values stay text: config.resolve reads and checks them."""
    parser.add_argument("--settings", metavar="FILE", help="settings file (TOML)")
    for field in fields(Settings):
        if field.name in leave_out:
            continue
        text = field.metadata["help"]
        if field.default is False:
            parser.add_argument(flag_name(field.name), action="store_true", default=None, help=text)
            continue
        choices = field.metadata["choices"]
        metavar = "|".join(choices) if choices else field.metadata["metavar"] or field.name.upper()
        suffix = "" if field.default is None else f" (default {field.default})"
        parser.add_argument(flag_name(field.name), metavar=metavar, help=text.replace("%", "%%") + suffix)


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="catalogue name or model file")
    parser.add_argument(
        "prompt",
        nargs="?",
        metavar="PROMPT",
        help='what to say to it; "-" reads standard input; without one: a chat, with the appliance that runs',
    )
    _add_address(parser)
    parser.add_argument("--system", metavar="TEXT", help="system message")
    parser.add_argument("--max-tokens", type=int, metavar="N", help="longest answer in tokens")
    parser.add_argument(
        "--temperature", type=float, default=0.7, metavar="T", help="0 always picks the likeliest"
    )
    parser.add_argument("--seed", type=int, metavar="N", help="same seed, same answer")
    parser.add_argument(
        "--raw", action="store_true", help="continue the prompt as it is, without chat template"
    )
    add_settings_flags(parser, leave_out=("model", *_ONLY_SERVED))
    parser.set_defaults(handler="appliance.commands.run:run")


def _add_eval(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="catalogue name or model file")
    parser.add_argument(
        "--against", choices=("bf16", "f16", "f32"), default="bf16", help="what it is compared with"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--long-context",
        type=int,
        metavar="TOKENS",
        help="also measure one text of so many tokens in one context: what --kv-dtype int8 costs there",
    )
    add_settings_flags(parser, leave_out=("model", *_ONLY_SERVED))
    parser.set_defaults(handler="appliance.commands.evaluate:evaluate")


def _add_address(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--url", metavar="URL", help="address of the appliance (default: this machine's)")
    parser.add_argument("--api-key", metavar="KEY", help="its key, if it has one")


def _add_running(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    ps = commands.add_parser("ps", help="list the models that a running appliance has loaded")
    ps.add_argument("--json", action="store_true", help="print JSON")
    ps.set_defaults(handler="appliance.commands.running:ps")
    stop = commands.add_parser("stop", help="unload a model when its answers have ended")
    stop.add_argument("models", nargs="+", metavar="MODEL", help="as `appliance ps` names it")
    stop.set_defaults(handler="appliance.commands.running:stop")
    for parser in (ps, stop):
        _add_address(parser)


def _add_calibrate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="catalogue name or model file")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--prompts", metavar="FILE", help="texts, an empty line between them")
    source.add_argument(
        "--from-traffic", action="store_true", help="prompts that `serve --record-prompts` has kept here"
    )
    parser.add_argument("--size", metavar="SHARE", help="most bytes, as a share of 16 bits (default 0.55)")
    parser.add_argument("--error", metavar="NATS", help="keep no more once the others' effects sum to this")
    parser.add_argument("--no-scaling", action="store_true", help="scale no inputs")
    parser.add_argument("--all", action="store_true", help="print every matrix")
    parser.add_argument("--dry-run", action="store_true", help="write no precision map")
    add_settings_flags(parser, leave_out=("model", *_ONLY_SERVED))
    parser.set_defaults(handler="appliance.commands.calibrate:calibrate")


def _add_dashboard(parser: argparse.ArgumentParser) -> None:
    _add_address(parser)
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        "--plain", action="store_true", help="sentences instead of a screen, for screen readers"
    )
    form.add_argument("--json", action="store_true", help="one snapshot as JSON")
    parser.add_argument("--once", action="store_true", help="with --plain: tell once and leave")
    parser.add_argument("--every", default="5", metavar="SECONDS", help="with --plain: how often (default 5)")
    parser.add_argument(
        "--ttft-target", metavar="MS", help="alarm when the P95 of the first token passes this"
    )
    parser.add_argument(
        "--tpot-target", metavar="MS", help="alarm when the P95 of the time per token passes this"
    )
    parser.set_defaults(handler="appliance.commands.dashboard:dashboard")


def _add_profile(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", nargs="?", metavar="MODEL", help="catalogue name, model file or folder")
    parser.add_argument("--prompt-tokens", type=int, default=128, metavar="N", help="context (default 128)")
    parser.add_argument("--steps", type=int, default=16, metavar="N", help="steps at each batch (default 16)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--flame", metavar="FILE", help="write a flame graph for speedscope")
    parser.add_argument("--roofline", metavar="FILE", help="write the roofline as SVG")
    parser.add_argument("--html", metavar="FILE", help="write a page with everything")
    add_settings_flags(parser, leave_out=("model", *_ONLY_SERVED))
    parser.set_defaults(handler="appliance.commands.profile:profile")


def _add_checks(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    _add_profile(commands.add_parser("profile", help="say where a token's time goes and what bounds it"))
    bench_args.configure(commands.add_parser("bench", help="load a server, measure it, compare runs"))
    check = commands.add_parser("self-check", help="verify this program's own files")
    check.set_defaults(handler="appliance.commands.self_check:self_check")
    parser = commands.add_parser("doctor", help="say whether this machine can serve, and what to do")
    parser.add_argument("model", nargs="?", metavar="MODEL", help="catalogue name, model file or folder")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--bundle", metavar="FILE", help="also write a zip for support, without keys and prompts"
    )
    add_settings_flags(parser, leave_out=("model",))
    parser.set_defaults(handler="appliance.commands.doctor:doctor")


def _add_service(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=("install", "status", "uninstall", "show"))
    parser.add_argument(
        "--system", action="store_true", help="for every user of the machine, as its administrator"
    )
    parser.add_argument(
        "arguments", nargs="*", metavar="ARG", help="what `appliance serve` gets, after --: -- --port 11500"
    )
    parser.set_defaults(handler="appliance.commands.service:service")


if __name__ == "__main__":
    sys.exit(main())
