"""`appliance serve`: the server, and the dashboard where there is a terminal."""

import argparse
import os
import signal
import sys
from pathlib import Path
from types import FrameType

from appliance import desktop
from appliance.catalog import Catalog, printable
from appliance.commands.settings_args import settings_file_of, settings_from
from appliance.config import Settings
from appliance.errors import DeviceLost, NotEnoughGpuMemory, NoUsableGpu, PortTaken
from appliance.first_run import welcome
from appliance.logs import configure_logs
from appliance.model_overrides import ModelOverrides
from appliance.serve import Appliance, open_appliance, stop_at_once

_POLL_S = 0.2
_IDLE_POLL_S = 2.0  # signals end the wait where the system lets them; Windows looks once in so long
EXIT_INTERRUPTED = 130  # a second Ctrl-C
EXIT_TERMINATED = 128 + signal.SIGTERM


def serve(args: argparse.Namespace) -> int:
    """Serve until told to stop. Returns 0 after an orderly stop, or the exit code of what failed."""
    settings = settings_from(args)
    # With a certificate of its own the dashboard could not check who answers: it is attached by its name.
    wants_dashboard = not settings.no_dashboard and settings.tls_cert is None
    has_dashboard = wants_dashboard and sys.stdin.isatty() and sys.stdout.isatty()
    is_desktop = not settings.no_dashboard and desktop.is_desktop_start()
    try:
        appliance = open_appliance(settings, ModelOverrides.read(settings_file_of(args)))
    except PortTaken as error:
        if is_desktop and error.appliance_url is not None:
            _open_page(error.appliance_url)  # a second double-click
            return 0
        if has_dashboard and error.appliance_url is not None:
            return _offer_to_attach(error, error.appliance_url, settings.api_key)
        raise
    if has_dashboard:
        return _serve_with_dashboard(appliance, settings)
    return _serve_headless(appliance, settings, is_desktop=is_desktop)


def _say_welcome(settings: Settings, log_file: Path | None) -> None:
    import psutil

    for line in welcome(settings, Catalog.load(), psutil.virtual_memory().available, log_file=log_file):
        _say(line)


def _say(text: str) -> None:
    """Print a line. That nobody reads it, or that it lies on a full disk, ends no server."""
    try:
        print(text, flush=True)
    except OSError:
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115  # for as long as the process lives


def _serve_with_dashboard(appliance: Appliance, settings: Settings) -> int:
    from tui.run import run_dashboard

    log_file = desktop.log_file()
    _say_welcome(settings, log_file)
    configure_logs(as_json=settings.json_logs, file=log_file)
    appliance.start()
    exit_code = run_dashboard(appliance.url, settings.api_key, quit_hook=appliance)
    if exit_code == EXIT_INTERRUPTED:
        stop_at_once(exit_code)
    # Already drained, unless the terminal went away or the dashboard failed.
    appliance.drain()
    while not appliance.wait_drained(_POLL_S):
        pass
    if appliance.failure is not None:
        print(f"appliance: {appliance.failure.message}", file=sys.stderr)
        return appliance.failure.exit_code
    # Asked to end and ended in order: no failure to whoever asked.
    return 0 if exit_code == EXIT_TERMINATED else exit_code


def _serve_headless(appliance: Appliance, settings: Settings, *, is_desktop: bool) -> int:
    log_file = desktop.log_file() if is_desktop else None
    configure_logs(as_json=settings.json_logs, file=log_file)
    _drain_on_signals(appliance)
    appliance.start()
    _say(f"Listening on {appliance.url}, loading {printable(settings.model)}")
    _say_welcome(settings, log_file)
    if is_desktop:
        _open_page(appliance.url)  # it shows how loading goes
    while not appliance.loaded.wait(_POLL_S):
        if appliance.is_drained():
            return 0
    if appliance.failure is not None:
        if isinstance(appliance.failure, NoUsableGpu | NotEnoughGpuMemory | DeviceLost) and not is_desktop:
            _say("Not ready: the GPU cannot be used, as the log says; requests get 503 and the reason")
            _wait_for_end(appliance)
        appliance.stop()
        if is_desktop:
            desktop.show_failure(appliance.failure.message)
        return appliance.failure.exit_code
    if appliance.model_id is not None:
        _say(f"Ready: point OpenAI clients at {appliance.url}/v1, model {printable(appliance.model_id)}")
    _wait_for_end(appliance)
    return 0


def _wait_for_end(appliance: Appliance) -> None:
    while not appliance.wait_drained(_IDLE_POLL_S):
        pass


def _open_page(url: str) -> None:
    desktop.open_page(url, otherwise=f"The appliance serves at {url}, and no browser could be started here.")


def _drain_on_signals(appliance: Appliance) -> None:
    """The first signal drains, the second stops at once."""
    num_signals = 0

    def on_signal(number: int, _frame: FrameType | None) -> None:
        nonlocal num_signals
        num_signals += 1
        if num_signals > 1:
            stop_at_once(128 + number)
        appliance.drain()

    for number in (signal.SIGINT, signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)):
        # nohup asks for hang-ups to be ignored: that stays so.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, on_signal)


def _offer_to_attach(error: PortTaken, url: str, api_key: str | None) -> int:
    from tui.run import run_dashboard

    print(f"appliance: {error.message}", file=sys.stderr)
    if input("Attach the dashboard to it? [Y/n] ").strip().lower() in ("", "y", "yes"):
        return run_dashboard(url, api_key)
    return error.exit_code
