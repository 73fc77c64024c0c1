"""Which process serves which arm, and what becomes of one that fails."""

from dataclasses import replace
from pathlib import Path

import pytest

from sdpa_onnx.measure.pool import WorkerPool, worker_keys
from sdpa_onnx.runtimes.workers import WorkerFailedError
from tests.measure.fake_workers import FakeArm, FakeMachine, FakeWorker, job
from tests.runtimes.worker.environments import ORT


def test_keys_tell_arms_apart_that_import_the_same() -> None:
    """By role within their kind, so that a kept process serves arms of other comparisons too."""
    jobs = {
        "a": job("a"),
        "t": replace(job("t"), engine=""),
        "b": job("b"),
        "more": job("c", threads=2),
    }
    keys = worker_keys(jobs, launch=3)
    assert [key.role for key in keys.values()] == [0, 0, 1, 0]
    assert {key.launch for key in keys.values()} == {3}
    assert len(set(keys.values())) == 4


def test_a_worker_is_started_as_asked() -> None:
    """With interpreter and threads of its arm and the patience of the pool; told a runtime where it must be."""
    asked: list[object] = []
    machine = FakeMachine()

    def start(engine: str, **options: object) -> FakeWorker:
        asked.append((engine, options))
        return FakeWorker(machine, engine)

    foreign = job("a", python=Path("env/bin/python"), threads=2)
    with WorkerPool(patience_seconds=7.0, start=start) as pool:
        pool.take(*worker_keys({"a": foreign}, launch=0).values())
        pool.take(*worker_keys({"t": replace(foreign, engine="", runtime="torch")}, launch=0).values())
    options = {"python": Path("env/bin/python"), "threads": 2, "patience_seconds": 7.0}
    assert asked == [
        (ORT, {**options, "runtime": ""}),
        ("", {**options, "runtime": "torch"}),
    ]


def test_what_is_kept() -> None:
    """A process that came through is taken again; one that failed, or cannot free its model, is replaced."""
    machine = FakeMachine(arms={"stuck": FakeArm(fails={0: "unload"})})
    (key,) = worker_keys({"a": job("a")}, launch=0).values()
    with machine.pool(fresh=False) as pool:
        first = pool.take(key)
        first.load(job("a"))
        pool.give_back(key)
        assert pool.take(key) is first
        pool.give_back(key, failed=True)
        second = pool.take(key)
        second.load(job("stuck"))
        pool.give_back(key)
        assert pool.take(key) not in (first, second)
        assert machine.alive == 1
    assert machine.alive == 0


def test_what_is_lent() -> None:
    """A process with the job loaded, that comes back kept; at an error of its own or of ours it is ended."""
    machine = FakeMachine(arms={"bad": FakeArm(fails={0: "load"})})
    with machine.pool(fresh=False) as pool:
        with pool.lend(job("a")) as (first, _):
            assert machine.told == [("load", "a")]
        with pool.lend(job("b")) as (second, _):
            assert second is first
        with pytest.raises(WorkerFailedError), pool.lend(job("bad")):
            pass
        assert machine.alive == 0
        with pytest.raises(KeyboardInterrupt), pool.lend(job("a")):
            raise KeyboardInterrupt
        assert (len(machine.processes), machine.alive) == (2, 0)
