from msgspec.structs import replace

from tui.request_watch import RequestWatch


def watch_of(snapshots, *moments) -> RequestWatch:
    """Each moment: uptime, and the sequences then as (status, age, output tokens)."""
    watch = RequestWatch()
    for uptime_s, *sequences in moments:
        rows = tuple(
            replace(snapshots.sequence(0), status=status, age_s=age_s, output_tokens=output)
            for status, age_s, output in sequences
        )
        watch = watch.extended(replace(snapshots.idle(uptime_s), sequences=rows))
    return watch


def test_a_request_passes_through_its_stages(snapshots) -> None:
    watch = watch_of(
        snapshots,
        (10.0, ("waiting", 0.5, 0)),
        (11.0, ("running", 1.5, 0)),
        (13.0, ("running", 3.5, 4)),
        (14.0, ("running", 4.5, 9)),
        (14.5,),
    )
    assert watch.live == ()
    (request,) = watch.ended
    assert (request.status, request.output_tokens, request.age_s) == ("ended", 9, 4.5)
    stages = [(stage.name, stage.start_s, stage.duration_s) for stage in request.stages]
    assert stages == [("queue", 0.0, 1.5), ("prefill", 1.5, 2.0), ("decode", 3.5, 1.0)]


def test_what_ran_before_it_was_seen_is_not_called_a_queue(snapshots) -> None:
    watch = watch_of(snapshots, (10.0, ("running", 8.0, 3)), (11.0, ("running", 9.0, 5)))
    assert [stage.name for stage in watch.live[0].stages] == ["unseen", "decode"]


def test_another_process_begins_anew(snapshots) -> None:
    watch = watch_of(snapshots, (10.0, ("running", 1.0, 3)))
    assert watch.extended(snapshots.idle(0.5, pid=7)).live == ()
    assert watch.extended(snapshots.idle(0.5, pid=7)).ended == ()
