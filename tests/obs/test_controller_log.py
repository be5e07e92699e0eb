"""logs/controller.log says what happened, with times, and belongs to its run alone."""

from __future__ import annotations

import logging
import re
from pathlib import Path

from obs_examples import make_row, make_score

from grpo.obs.log import LogFile, open_log
from grpo.types import RunResult
from support.jobs import make_job


def test_the_log_has_a_timed_line_for_each_event(tmp_path: Path) -> None:
    job, path = make_job(tmp_path), tmp_path / "logs" / "controller.log"
    log = LogFile(open_log(path))
    log.started(job)
    log.evaluation(make_score(0, 0.25))
    log.step(make_row(1))
    log.step(make_row(2, outcomes={}))
    log.warning("100% of groups were dropped")
    log.finished(RunResult("complete", 2, 12.34, 0.25, 0.5, str(tmp_path)))
    log.close()
    log.close()
    stamp = re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z ")
    lines = path.read_text().splitlines()
    assert all(stamp.match(line) for line in lines)
    assert [stamp.sub("", line) for line in lines] == [
        f"INFO    run test started: 4 steps, job {job.sha256()}",
        "INFO    evaluation addition at step 0: accuracy 0.2500",
        "INFO    step 1 done: collection 1, interval 10.000 s, step 4.000 s, wait 5.500 s, publish 0.250 s; "
        "groups: 4 zero_std, 8 trained",
        "INFO    step 2 done: collection 2, interval 10.000 s, step 4.000 s, wait 5.500 s, publish 0.250 s; "
        "groups: none ended",
        "WARNING 100% of groups were dropped",
        "INFO    run finished: complete after 2 steps, 12.3 s",
    ]


def test_two_runs_in_one_process_do_not_share_a_log_and_a_resumed_run_goes_on_in_its_own(tmp_path: Path) -> None:
    before = set(logging.root.manager.loggerDict)
    first, second = open_log(tmp_path / "a" / "controller.log"), open_log(tmp_path / "b" / "controller.log")
    LogFile(first).warning("one")
    LogFile(second).warning("two")
    LogFile(first).close()
    again = open_log(tmp_path / "a" / "controller.log")
    LogFile(again).warning("three")
    LogFile(again).close()
    LogFile(second).close()
    assert [line.split()[-1] for line in (tmp_path / "a" / "controller.log").read_text().splitlines()] == [
        "one",
        "three",
    ]
    assert (tmp_path / "b" / "controller.log").read_text().endswith("two\n")
    assert set(logging.root.manager.loggerDict) == before
