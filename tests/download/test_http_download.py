"""Resuming, restarting and refusing, against a real server on a real socket."""

from pathlib import Path

import pytest

from appliance.download.http_download import HttpDownload
from appliance.download.workspace import SourceError


def download(server, target: Path, size_bytes: int, *, retries: int = 2) -> list[int]:
    seen: list[int] = []
    HttpDownload(
        server.url + "/m.gguf",
        target,
        size_bytes=size_bytes,
        headers={"Authorization": "Bearer secret"},
        explain=lambda response: f"explained {response.status_code}",
        on_progress=seen.append,
        retry_delays_s=(0.01,) * retries,
    ).run()
    return seen


def test_file_arrives_whole_with_rising_progress(server, tmp_path, content):
    seen = download(server, tmp_path / "m", len(content))
    assert (tmp_path / "m").read_bytes() == content
    assert seen == sorted(seen)
    assert seen[-1] == len(content)


def test_broken_connection_goes_on_where_it_stopped(server, tmp_path, content):
    server.cuts = [1_000_003, 700_001]
    download(server, tmp_path / "m", len(content))
    assert (tmp_path / "m").read_bytes() == content
    assert [r.get("range") for r in server.requests] == [None, "bytes=1000003-", "bytes=1700004-"]


def test_later_run_goes_on_where_a_failed_one_stopped(server, tmp_path, content):
    server.cuts = [1_000_003, 0, 0]
    with pytest.raises(SourceError, match="the connection fails"):
        download(server, tmp_path / "m", len(content))
    download(server, tmp_path / "m", len(content))
    assert (tmp_path / "m").read_bytes() == content
    assert server.requests[-1]["range"] == "bytes=1000003-"


def test_server_without_ranges_starts_again_and_nothing_is_appended(server, tmp_path, content):
    server.cuts = [1_000_003]
    server.honours_range = False
    download(server, tmp_path / "m", len(content))
    assert (tmp_path / "m").read_bytes() == content


def test_new_version_is_never_joined_to_the_old_one(server, tmp_path, content):
    server.cuts = [1_000_003, 0, 0]
    with pytest.raises(SourceError):
        download(server, tmp_path / "m", len(content))
    server.etag, server.content = '"two"', bytes(reversed(content))
    download(server, tmp_path / "m", len(content))
    assert (tmp_path / "m").read_bytes() == server.content


def test_new_version_under_a_weak_tag_is_never_joined_either(server, tmp_path, content):
    server.etag = 'W/"one"'
    server.cuts = [1_000_003, 0, 0]
    with pytest.raises(SourceError):
        download(server, tmp_path / "m", len(content))
    server.etag, server.content = 'W/"two"', bytes(reversed(content))
    download(server, tmp_path / "m", len(content))
    assert (tmp_path / "m").read_bytes() == server.content


def test_range_that_is_not_satisfiable_starts_again(server, tmp_path, content):
    server.cuts = [1_000_003, 0, 0]
    with pytest.raises(SourceError):
        download(server, tmp_path / "m", len(content))
    server.status = 416
    with pytest.raises(SourceError, match="explained 416"):
        download(server, tmp_path / "m", len(content))
    server.status = None
    download(server, tmp_path / "m", len(content))
    assert (tmp_path / "m").read_bytes() == content


def test_partial_file_of_unknown_origin_is_not_gone_on_from(server, tmp_path, content):
    (tmp_path / "m").write_bytes(b"something else")
    download(server, tmp_path / "m", len(content))
    assert (tmp_path / "m").read_bytes() == content
    assert "range" not in server.requests[0]


def test_login_page_in_place_of_the_file_is_refused_before_it_is_written(server, tmp_path, content):
    server.content = b"<html>please log in</html>"
    server.headers = {"Content-Type": "text/html"}
    with pytest.raises(SourceError, match=f"26 bytes of type text/html and the model has {len(content)}"):
        download(server, tmp_path / "m", len(content))
    assert not (tmp_path / "m").exists()


def test_endless_body_is_cut_off_at_the_models_size(server, tmp_path):
    server.headers = {"Transfer-Encoding": "identity", "Content-Length": "none"}
    with pytest.raises(SourceError):
        download(server, tmp_path / "m", 1001)
    assert not (tmp_path / "m").exists() or (tmp_path / "m").stat().st_size <= 1001


def test_empty_body_with_a_promise_of_more_ends_in_an_error(server, tmp_path, content):
    server.cuts = [0, 0, 0]
    with pytest.raises(SourceError, match="the connection fails"):
        download(server, tmp_path / "m", len(content))


@pytest.mark.parametrize("status", [401, 404, 410])
def test_refusal_is_explained_and_not_repeated(server, tmp_path, content, status):
    server.status = status
    with pytest.raises(SourceError, match=f"explained {status}"):
        download(server, tmp_path / "m", len(content))
    assert len(server.requests) == 1


def test_busy_server_is_asked_again_so_many_times(server, tmp_path, content):
    server.status = 503
    with pytest.raises(SourceError, match="503"):
        download(server, tmp_path / "m", len(content), retries=3)
    assert len(server.requests) == 4


def test_nobody_listening_fails_at_once(server, tmp_path, content):
    server.url = "http://127.0.0.1:1"
    with pytest.raises(SourceError, match="check the network"):
        download(server, tmp_path / "m", len(content), retries=500)


def test_token_does_not_follow_a_redirect_to_another_host(server, tmp_path, content):
    port = server.url.rsplit(":", 1)[1]
    elsewhere = f"http://localhost:{port}/elsewhere"
    server.status, server.content = 302, b""
    server.headers = {"Location": elsewhere}
    # The target redirects to itself: what matters is what the second request carries.
    with pytest.raises(SourceError):
        download(server, tmp_path / "m", len(content))
    assert server.requests[0]["authorization"] == "Bearer secret"
    assert server.requests[1]["path"] == "/elsewhere"
    assert "authorization" not in server.requests[1]
