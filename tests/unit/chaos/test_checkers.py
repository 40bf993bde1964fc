"""Generated histories: valid ones pass, and on tiny ones of any kind the checkers agree with the plain definition."""

from random import Random

from hypothesis import event, given, settings
from hypothesis import strategies as st

from chaos import linearizability, serializability
from chaos.history import Action, Check, Effect, Operation, Seen
from tests.unit.chaos.exhaustive import explainable
from tests.unit.chaos.moments import stamp
from tests.unit.chaos.sequential import history

SMALL = st.integers(1, 8)
STAMPS = st.sampled_from((None, stamp(1), stamp(2), stamp(3)))
NAMES = ("a", "b")
ACTIONS: tuple[Action, ...] = ("set", "sum", "delete")


@settings(max_examples=150, deadline=None)
@given(st.randoms(use_true_random=True), st.integers(1, 6), st.integers(1, 60))
def test_what_a_sequential_database_answered_is_valid(rng: Random, processes: int, operations: int) -> None:
    unknown = rng.choice((0.0, 0.1, 0.3))
    found = history(rng, processes=processes, operations=operations, unknown=unknown, denied=0.1)
    event(f"unknown {unknown}")
    for checker in (linearizability, serializability):
        verdict = checker.check(found)
        assert verdict.state == "valid", (checker.__name__, verdict.explanation, found)


def test_a_long_valid_history_takes_work_that_grows_with_its_length_only() -> None:
    found = history(Random(7), processes=12, operations=6_000, unknown=0.0, denied=0.05)
    assert serializability.check(found).work <= 6_000
    verdict = linearizability.check(found)
    assert verdict.ok
    assert verdict.work <= 4 * 6_000


def test_many_outcomes_that_stay_unknown_do_not_exhaust_the_search() -> None:
    """Half of them happened unseen, and show in later sums and checks only."""
    for seed in range(5):
        found = history(Random(seed), processes=12, operations=3_000, unknown=0.015, denied=0.05)
        assert sum(operation.outcome == "unknown" for operation in found) >= 15
        for checker in (linearizability, serializability):
            verdict = checker.check(found)
            assert verdict.state == "valid", (checker.__name__, seed, verdict.explanation)
            assert verdict.work <= 60_000


@st.composite
def an_operation(draw: st.DrawFn, names: tuple[str, ...]) -> Operation:
    invoked = draw(SMALL)
    returned = invoked + draw(SMALL)
    keys = st.lists(st.sampled_from(names), min_size=1, max_size=len(names), unique=True)
    if draw(st.booleans()):
        reads = tuple(draw(keys))
        seen = []
        for _ in reads:
            at = draw(STAMPS)
            seen.append(Seen(None, None) if at is None else Seen(draw(st.integers(1, 3)), at))
        return Operation(0, "get", invoked, returned, "ok", reads=reads, seen=tuple(seen))
    effects = []
    for key in draw(keys):
        action = draw(st.sampled_from(ACTIONS))
        effects.append(Effect(key, action, 0 if action == "delete" else draw(st.integers(1, 2))))
    checks = (Check(draw(st.sampled_from(names)), draw(STAMPS)),) if draw(st.booleans()) else ()
    outcome = draw(st.sampled_from(("ok", "ok", "unknown", "refused")))
    if outcome == "refused" and checks:
        return Operation(0, "cas", invoked, returned, "ok", checks=checks, effects=tuple(effects), failed_checks=(0,))
    if outcome == "unknown":
        return Operation(0, "cas", invoked, returned, "unknown", checks=checks, effects=tuple(effects))
    at = draw(STAMPS.filter(lambda at: at is not None))
    return Operation(0, "cas", invoked, returned, "ok", checks=checks, effects=tuple(effects), versionstamp=at)


def _stamps_differ(operations: list[Operation]) -> bool:
    stamps = [operation.versionstamp for operation in operations if operation.committed]
    return len(set(stamps)) == len(stamps)


@settings(max_examples=400, deadline=None)
@given(st.lists(an_operation(("a",)), min_size=1, max_size=5).filter(_stamps_differ))
def test_one_key_is_judged_as_the_definition_says(operations: list[Operation]) -> None:
    wanted = explainable(operations, by_stamp=False)
    event("valid" if wanted else "invalid")
    verdict = linearizability.check(operations)
    assert verdict.state == ("valid" if wanted else "invalid"), verdict.explanation


@settings(max_examples=400, deadline=None)
@given(st.lists(an_operation(NAMES), min_size=1, max_size=5).filter(_stamps_differ))
def test_several_keys_are_judged_as_the_definition_says(operations: list[Operation]) -> None:
    wanted = explainable(operations, by_stamp=True)
    event("valid" if wanted else "invalid")
    verdict = serializability.check(operations)
    assert verdict.state == ("valid" if wanted else "invalid"), verdict.explanation


@settings(max_examples=300, deadline=None)
@given(st.randoms(use_true_random=True), st.data())
def test_nearly_valid_histories_are_judged_as_the_definition_says(rng: Random, data: st.DataObject) -> None:
    """Random operations are mostly nonsense. These were valid, and then one answer was changed."""
    found = [
        operation
        for operation in history(rng, processes=3, operations=6, unknown=0.25, denied=0.1)
        if operation.outcome != "not applied"
    ][:6]
    reads = [at for at, operation in enumerate(found) if operation.reads]
    if reads:
        at = data.draw(st.sampled_from(reads))
        other = data.draw(st.sampled_from([row for each in reads for row in found[each].seen]))
        changed = found[at]
        seen = (other, *changed.seen[1:])
        found[at] = Operation(
            changed.process, "get", changed.invoked, changed.returned, "ok", reads=changed.reads, seen=seen
        )
    wanted = explainable(found, by_stamp=True)
    event("valid" if wanted else "invalid")
    assert serializability.check(found).ok == wanted
