"""The loop of submit and poll against a work double: what may be in flight, and when."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest
from sume_jobs.decisions.outcomes import Answer, NoAnswer
from sume_jobs.decisions.pacing import pace
from sume_jobs.flows import paced_run
from sume_jobs.flows.paced_run import Done, PacedRun, Signals
from sume_jobs.store.pace import Admission

OPEN = Admission(True, True, False, 0.0, None, False, 0.0, 10**6)
NOTHING_DUE = Admission(False, True, False, 0.0, None, False, None, 0)
ACCEPTED = Answer(202, {}, b"{}")
PAUSED = Answer(429, {}, b"{}")


@dataclass(eq=False)
class Item:
    number: int
    claimed_at: float = 0.0
    called_at: float = 0.0
    # Calls at once when this one began, itself among them.
    beside: int = 0


class Left:
    def seconds(self) -> float:
        return 900.0


@dataclass
class Work:
    """Hands out `rows` items and notes what becomes of each."""

    rows: int
    answer: Callable[[Item], Answer | NoAnswer] = lambda _: ACCEPTED
    signals: Callable[[Sequence[Done[Item]]], Signals] = lambda _: Signals()
    statement_seconds: float = 0.002
    claims: int = 0
    records: int = 0
    most_at_once: int = 0
    called: list[Item] = field(default_factory=list)
    recorded: list[Item] = field(default_factory=list)
    released: list[Item] = field(default_factory=list)
    claimed: int = 0
    at_once: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def claim(self, wanted: int, may_be_alone: bool) -> tuple[Admission, list[Item]]:
        del may_be_alone
        time.sleep(self.statement_seconds)
        self.claims += 1
        count = min(wanted, self.rows - self.claimed)
        items = [Item(self.claimed + place, time.monotonic()) for place in range(count)]
        self.claimed += count
        return (OPEN if items else NOTHING_DUE), items

    def is_alone(self, item: Item) -> bool:
        del item
        return False

    def call(self, item: Item) -> Answer | NoAnswer:
        with self._lock:
            item.called_at = time.monotonic()
            self.called.append(item)
            self.at_once += 1
            item.beside = self.at_once
            self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            return self.answer(item)
        finally:
            with self._lock:
                self.at_once -= 1

    def record(self, done: Sequence[Done[Item]]) -> Signals:
        time.sleep(self.statement_seconds)
        self.records += 1
        self.recorded += [each.item for each in done]
        return self.signals(done)

    def release(self, items: Sequence[Item]) -> None:
        self.released += items

    def after(self, force: bool) -> None:
        del force


def run(work: Work, concurrency: int, linger: float = 0.0) -> PacedRun[Item]:
    paced: PacedRun[Item] = PacedRun(
        work, Left(), pace(10**7), concurrency, call_seconds=20.0, linger=linger
    )
    paced.run()
    return paced


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def after(seconds: float) -> Callable[[Item], Answer]:
    def call(item: Item) -> Answer:
        del item
        time.sleep(seconds)
        return ACCEPTED

    return call


@pytest.mark.parametrize("seconds", [0.0, 0.002, 0.03])
def test_no_more_calls_at_once_than_allowed_and_each_item_once(seconds: float) -> None:
    work = Work(150, after(seconds))
    run(work, 8)
    assert work.most_at_once <= 8
    assert sorted(item.number for item in work.recorded) == list(range(150))
    assert len(work.called) == 150
    assert not work.released


def test_the_first_call_goes_alone_until_it_is_answered() -> None:
    answered: list[float] = []

    def call(item: Item) -> Answer:
        if item.number == 0:
            time.sleep(0.05)
            answered.append(time.monotonic())
        return ACCEPTED

    work = Work(20, call)
    run(work, 8)
    first, *others = work.called
    assert first.number == 0
    assert all(item.called_at > answered[0] for item in others)


def test_nothing_goes_out_after_an_answer_that_may_be_a_stop() -> None:
    holding, go = threading.Event(), threading.Event()
    called: list[int] = []

    def call(item: Item) -> Answer:
        if item.number == 40:
            # Answered when every thread has a call in hand and more wait behind them.
            holding.set()
            wait_until(lambda: work.at_once == 8)
            called.append(len(work.called))
            threading.Timer(0.2, go.set).start()
            return PAUSED
        if holding.is_set():
            assert go.wait(10)
        return ACCEPTED

    def signals(done: Sequence[Done[Item]]) -> Signals:
        return Signals(stop=any(each.answer is PAUSED for each in done))

    work = Work(500, call, signals)
    paced = run(work, 8)
    assert [len(work.called)] == called
    assert paced.stopped
    assert not {*work.called} - {*work.recorded}
    assert work.released
    assert len(work.recorded) + len(work.released) == work.claimed


def test_what_waits_for_a_thread_goes_back_when_the_run_narrows() -> None:
    go = threading.Event()
    called: list[int] = []

    def call(item: Item) -> Answer:
        if item.number > 40:
            assert go.wait(10)
        return ACCEPTED

    def let_go() -> None:
        called.append(len(work.called))
        go.set()

    def signals(done: Sequence[Done[Item]]) -> Signals:
        if all(each.item.number < 40 for each in done):
            return Signals()
        if not called:
            # By then every thread has a call in hand, and more wait behind them.
            threading.Timer(0.2, let_go).start()
        return Signals(one_at_a_time=True)

    work = Work(100, call, signals)
    run(work, 8)
    late = work.called[called[0] :]
    assert late
    assert all(item.beside == 1 for item in late)
    assert len(work.recorded) + len(work.released) == 100


def test_an_old_token_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paced_run, "TOKEN_LIFE", 0.2)

    def call(item: Item) -> Answer:
        # Short at first, so that much is claimed ahead; then too long for it.
        time.sleep(0.001 if item.number < 60 else 1.0)
        return ACCEPTED

    work = Work(80, call)
    run(work, 4)
    assert all(item.called_at - item.claimed_at < 0.7 for item in work.called)
    assert work.released
    assert len(work.recorded) + len(work.released) == 80


def test_an_answer_is_recorded_while_others_are_still_out() -> None:
    recorded = threading.Event()

    def call(item: Item) -> Answer:
        # The slow ones end only once the quick one beside them is recorded.
        if item.number > 1:
            assert recorded.wait(10)
        return ACCEPTED

    def signals(done: Sequence[Done[Item]]) -> Signals:
        if any(each.item.number == 1 for each in done):
            recorded.set()
        return Signals()

    work = Work(5, call, signals)
    run(work, 8)
    assert len(work.recorded) == 5


def test_calls_that_go_out_together_are_recorded_together() -> None:
    work = Work(160, after(0.2))
    run(work, 16)
    assert len(work.recorded) + len(work.released) == 160
    # A busy machine spreads the waves; one by one it would be 160 and more.
    assert work.claims + work.records <= 120
