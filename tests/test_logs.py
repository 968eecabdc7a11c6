"""Log lines: JSON that parses, one object a record, tracebacks inside; or plain ones for people."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.logs import JsonFormatter, configure_logs


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    for handler in root.handlers:
        if handler not in handlers:
            handler.close()
    root.handlers[:], root.level = handlers, level


def say_everything() -> None:
    logger = logging.getLogger("appliance.test")
    logger.info("plain %s", "words")
    logger.warning('quotes " and\nnew lines and ü and \x1b[31m')
    try:
        raise ValueError("a bad\nvalue")
    except ValueError:
        logger.exception("it failed")
    logger.debug("never seen")


def test_json_lines_parse_one_for_each_record(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs(as_json=True)
    say_everything()
    out, err = capsys.readouterr()
    assert out == ""
    lines = [json.loads(line) for line in err.splitlines()]
    assert [line["level"] for line in lines] == ["info", "warning", "error"]
    assert [line["message"] for line in lines] == [
        "plain words",
        'quotes " and\nnew lines and ü and \x1b[31m',
        "it failed",
    ]
    assert {line["logger"] for line in lines} == {"appliance.test"}
    assert all(set(line) == {"time", "level", "logger", "message"} for line in lines[:2])


def test_a_traceback_stays_inside_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs(as_json=True)
    say_everything()
    last = json.loads(capsys.readouterr().err.splitlines()[-1])
    assert last["traceback"].startswith("Traceback (most recent call last):")
    assert "say_everything" in last["traceback"]
    assert last["traceback"].endswith("ValueError: a bad\nvalue")


def test_times_carry_their_zone(capsys: pytest.CaptureFixture[str]) -> None:
    from datetime import UTC, datetime

    configure_logs(as_json=True)
    logging.getLogger("x").info("now")
    then = datetime.fromisoformat(json.loads(capsys.readouterr().err)["time"])
    assert then.tzinfo is not None
    assert abs((datetime.now(UTC) - then).total_seconds()) < 60


def test_plain_lines_say_time_level_and_message(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs(as_json=False)
    logging.getLogger("x").warning("careful")
    err = capsys.readouterr().err
    assert err.endswith("WARNING careful\n")
    assert not err.startswith("{")


def test_a_plain_line_stays_one_whatever_a_client_names_its_fields(
    capsys: pytest.CaptureFixture[str],
) -> None:
    configure_logs(as_json=False)
    logging.getLogger("x").warning("unknown field %s", "a\n12:00:00 INFO forged \x1b[31m \ud800 ü")
    err = capsys.readouterr().err
    assert err.endswith("unknown field a\\n12:00:00 INFO forged \\x1b[31m \\ud800 ü\n")
    assert err.count("\n") == 1


@pytest.mark.parametrize("as_json", [True, False])
def test_with_a_file_the_terminal_stays_untouched(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], as_json: bool
) -> None:
    file = tmp_path / "a b" / "appliance.log"
    configure_logs(as_json=as_json, file=file)
    say_everything()
    assert capsys.readouterr() == ("", "")
    text = file.read_text(encoding="utf-8")
    assert "plain words" in text
    assert (json.loads(text.splitlines()[0])["level"] == "info") if as_json else "INFO" in text


def test_a_file_that_cannot_be_written_leaves_no_log_and_no_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("")
    configure_logs(as_json=True, file=blocker / "appliance.log")
    say_everything()
    assert capsys.readouterr() == ("", "")


def test_libraries_are_quiet_below_warnings(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs(as_json=True)
    logging.getLogger("httpx").info("HTTP Request: ...")
    logging.getLogger("httpx").warning("something is wrong")
    (line,) = capsys.readouterr().err.splitlines()
    assert json.loads(line)["message"] == "something is wrong"


def test_configuring_twice_does_not_double_the_lines(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs(as_json=False)
    configure_logs(as_json=True)
    logging.getLogger("x").info("once")
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_json_lines_hold_the_fields_that_a_line_was_given() -> None:
    record = logging.makeLogRecord({"msg": "done", "levelname": "INFO", "request_id": "id-1", "ttft_s": 0.5})
    line = json.loads(JsonFormatter().format(record))
    assert (line["message"], line["request_id"], line["ttft_s"]) == ("done", "id-1", 0.5)
    assert "msg" not in line
