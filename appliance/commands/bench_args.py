"""The flags of `appliance bench`. Imports nothing: `--help` must be there at once."""

import argparse


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare them. Default: the appliance that runs here, else one started for the run."""
    parser.add_argument(
        "what", nargs="?", metavar="URL|MODEL", help="server to load, or model to serve and load"
    )
    parser.add_argument("--model", metavar="NAME", help="model to ask for; the server's first by default")
    parser.add_argument("--api-key", metavar="KEY", help="the server's key")
    _add_traffic(parser)
    _add_output(parser)
    parser.set_defaults(handler="appliance.commands.bench:bench")


def _add_traffic(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("traffic").add_argument
    add(
        "--peak",
        type=_count,
        default=8,
        metavar="N",
        help="clients at peak; sweeps to 3 times it (default 8)",
    )
    add("--clients", metavar="N,...", help="these numbers of clients in place of the sweep")
    add("--rate", metavar="R,...", help="open loop: requests a second, arriving at random (Poisson)")
    add(
        "--lengths",
        default="128:64",
        metavar="P:O",
        help="prompt and answer tokens; a mix as 128:64@3,1024:128@1",
    )
    add("--trace", metavar="FILE", help="replay JSON lines of at_s, output_tokens, prompt_tokens or prompt")
    add("--trace-speed", type=_positive, default=1.0, metavar="X", help="replay so many times faster")
    add("--requests", type=_count, metavar="N", help="requests a stage; by default 24, or 3 a client")
    add("--warm-up", type=int, default=4, metavar="N", help="requests before the first stage (default 4)")
    add("--seed", type=int, default=1, metavar="N", help="same seed, same lengths and arrivals (default 1)")
    add(
        "--soak",
        metavar="TIME",
        help="for so long (1h, 30m, 90s) keep one load, the peak or another that is named; look for drifts",
    )


def _add_output(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("judging and reporting").add_argument
    add("--target-ttft", type=_positive, metavar="S", help="a good request's longest time to first token")
    add("--target-tpot", type=_positive, metavar="S", help="a good request's longest time per token")
    add("--vs", metavar="URL|MODEL", help="load a second server in turns and compare")
    add("--vs-model", metavar="NAME", help="model to ask the second server for")
    add("--vs-api-key", metavar="KEY", help="the second server's key")
    add("--save-baseline", metavar="NAME", help="keep this run to compare later ones with")
    add("--compare", metavar="NAME", help="compare with a kept run; exit code 1 if this one is slower")
    add(
        "--tolerance",
        type=_positive,
        default=5.0,
        metavar="PERCENT",
        help="changes that do not matter (default 5)",
    )
    add("--json", metavar="FILE", help="write the figures, every sample included")
    add("--markdown", metavar="FILE", help="write tables")
    add("--html", metavar="FILE", help="write a page with plots that needs nothing else")


def _count(text: str) -> int:
    if (value := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text} is below 1")
    return value


def _positive(text: str) -> float:
    if not 0 < (value := float(text)) < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value
