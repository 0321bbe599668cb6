from store.progress import ProgressMeter


def test_no_rate_and_no_eta_before_a_second_is_measured() -> None:
    meter = ProgressMeter("x")
    meter.begin("download", now=0.0, total_bytes=1000)
    early = meter.advance(100, now=0.9)
    assert (early.rate_bytes_s, early.eta_s) == (None, None)
    later = meter.advance(200, now=1.0)
    assert (later.rate_bytes_s, later.eta_s) == (200, 4)


def test_bytes_of_an_earlier_try_do_not_count_for_the_rate() -> None:
    meter = ProgressMeter("x")
    meter.begin("download", now=0.0, done_bytes=900, total_bytes=1000)
    assert meter.shown(now=0.0).done_bytes == 900
    assert meter.advance(910, now=1.0).rate_bytes_s == 10


def test_the_rate_is_that_of_the_last_ten_seconds() -> None:
    meter = ProgressMeter("x")
    meter.begin("download", now=0.0, total_bytes=10**9)
    for second in range(1, 21):
        meter.advance(second * 1000, now=float(second))
    for second in range(21, 41):
        meter.advance(20_000 + (second - 20) * 10, now=float(second))
    assert meter.shown(now=40.0).rate_bytes_s == 10


def test_b17_bytes_never_run_backwards_when_a_fetch_starts_over() -> None:
    meter = ProgressMeter("x")
    meter.begin("download", now=0.0, total_bytes=1000)
    meter.advance(400, now=1.0)
    meter.begin("download", now=2.0, done_bytes=0, total_bytes=1000)
    seen = [meter.advance(done, now=3.0 + done).done_bytes for done in (10, 399, 401)]
    assert seen == [400, 400, 401]


def test_a_silent_origin_lets_the_rate_sink() -> None:
    meter = ProgressMeter("x")
    meter.begin("download", now=0.0, total_bytes=1000)
    meter.advance(100, now=1.0)
    assert meter.shown(now=10.0).rate_bytes_s == 10


def test_phases_go_forward_only() -> None:
    meter = ProgressMeter("x")
    meter.begin("extract", now=0.0, total_bytes=10)
    meter.begin("download", now=1.0, total_bytes=99)
    shown = meter.shown(now=1.0)
    assert (shown.phase, shown.total_bytes) == ("extract", 10)


def test_a_transfer_may_look_and_wait_before_it_fetches() -> None:
    meter = ProgressMeter("x")
    for phase in ("look", "wait", "resolve", "download", "extract", "verify"):
        meter.begin(phase, now=0.0)
        assert meter.shown(now=0.0).phase == phase


def test_the_source_may_change_while_the_count_goes_on() -> None:
    meter = ProgressMeter("x")
    meter.begin("download", now=0.0, total_bytes=10)
    meter.advance(5, now=1.0)
    meter.source = "y"
    shown = meter.shown(now=1.0)
    assert (shown.source, shown.done_bytes) == ("y", 5)


def test_a_new_phase_counts_from_zero() -> None:
    meter = ProgressMeter("x")
    meter.begin("download", now=0.0, total_bytes=10)
    meter.advance(10, now=1.0)
    meter.begin("extract", now=2.0, total_bytes=20)
    assert meter.shown(now=2.0).done_bytes == 0
