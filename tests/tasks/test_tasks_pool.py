"""Verifiers that hang, raise, die or talk nonsense, in worker processes."""

import os
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from hacpo_jax.errors import UserError
from hacpo_jax.tasks import Counts, Verdict, make_verifier

VERIFIER = '''
import os, signal, sys, time

not_a_function = 3
TRIED = []

class OddError(Exception):
    """Cannot be unpickled."""
    def __init__(self, one, two):
        super().__init__("odd")
    def __str__(self):
        raise ValueError("not even text")

def grade(response, answer):
    TRIED.append(response)
    match response:
        case "hang":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            while True:
                time.sleep(60)
        case "hang in C":
            return 9 ** (9 ** 9)
        case "raise":
            raise OddError(1, 2)
        case "exit":
            sys.exit(0)
        case "die":
            os._exit(0)
        case "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "memory":
            return len(bytearray(10**10))
        case "nan" | "inf":
            return float(response)
        case "none":
            return None
        case "text":
            return "1.0"
        case "bool":
            return True
        case "half":
            return 0.5
        case "slow":
            time.sleep(0.4)
            return 1
        case "times":
            return TRIED.count(response)
        case "modules":
            return sum(name in sys.modules for name in ("jax", "heavy"))
    return float(response == answer)
'''

RIGHT, WRONG = Verdict(1.0, valid=True), Verdict(0.0, valid=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("verifiers")
    (folder / "odd_verifier.py").write_text(VERIFIER)
    return folder


@pytest.fixture(scope="module")
def name(folder):
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield "odd_verifier:grade"


@pytest.fixture(scope="module")
def verifier(name):
    with make_verifier(name, workers=2, timeout=1.0) as verifier:
        yield verifier


def test_rewards_keep_their_order(verifier):
    pairs = [("half", "x"), ("a", "a"), ("b", "a"), ("bool", ""), ("a", "a"), ("", "")]
    rewards = [verdict.reward for verdict in verifier.score(pairs)]
    assert rewards == [0.5, 1.0, 0.0, 1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("response", "error", "timed_out"),
    [
        ("hang", "took longer than 1.0 s", True),
        ("hang in C", "took longer than 1.0 s", True),
        ("raise", "OddError", False),
        ("exit", "SystemExit: 0", False),
        ("die", "the worker process died", False),
        ("crash", "the worker process died", False),
        ("memory", "MemoryError", False),
        ("nan", "finite number, not float: nan", False),
        ("inf", "finite number, not float: inf", False),
        ("none", "NoneType", False),
        ("text", "finite number, not str: 1.0", False),
    ],
)
def test_a_failure_costs_one_answer(verifier, response, error, timed_out):
    """Fault: one answer that cannot be graded stalls the rest, or silently becomes a 0."""
    before = verifier.counts
    started = time.monotonic()
    failed, *others = verifier.score([(response, "a"), ("a", "a"), ("b", "a"), ("c", "c")])
    assert time.monotonic() - started < 5
    assert (failed.reward, failed.valid, failed.timed_out) == (0.0, False, timed_out)
    assert error in failed.error
    assert others == [RIGHT, WRONG, RIGHT]
    assert verifier.counts == Counts(
        before.answers + 4, before.timeouts + timed_out, before.errors + (not timed_out)
    )


def test_equal_pairs_are_graded_once(name):
    with make_verifier(name, workers=1) as verifier:
        pairs = [("times", "x"), ("other", "x"), ("times", "x"), ("times", "x")]
        assert [verdict.reward for verdict in verifier.score(pairs)] == [1, 0, 1, 1]
        assert verifier.score([("times", "x")])[0].reward == 2  # a new call, a new grading
        assert verifier.counts.answers == 5


def test_waiting_for_a_worker_does_not_count(verifier):
    # Six answers of 0.4 s wait for two workers longer than the limit of 1 s.
    grading = verifier.submit([("slow", str(i)) for i in range(6)])
    assert grading.result() == [RIGHT] * 6
    assert grading.result() == [RIGHT] * 6


def test_submit_returns_at_once(verifier):
    started = time.monotonic()
    grading = verifier.submit([("slow", "again")])
    assert time.monotonic() - started < 0.3
    assert grading.result() == [RIGHT]


def test_odd_and_long_texts(verifier):
    texts = ["", "\x00", "\ud800", "😀" * 10, "x" * 4_000_000, '"]}\n']
    assert verifier.score([(text, text) for text in texts]) == [RIGHT] * len(texts)


def test_a_worker_killed_between_answers_is_replaced(name):
    with make_verifier(name, workers=1) as verifier:
        assert verifier.score([("a", "a")]) == [RIGHT]
        verifier._grader._workers[0]._process.kill()
        verifier._grader._workers[0]._process.wait()
        assert verifier.score([("b", "b")]) == [RIGHT]


def test_many_deaths(name):
    with make_verifier(name, workers=2, timeout=5.0) as verifier:
        verdicts = verifier.score([("die", str(i)) for i in range(6)] + [("a", "a")])
    assert [verdict.valid for verdict in verdicts] == [False] * 6 + [True]
    assert {verdict.error for verdict in verdicts[:6]} == {"the worker process died"}


def test_answers_behind_failures_are_graded(name):
    """Fault: answers sent together with one that hangs are lost, or stall."""
    pairs = [(str(i), str(i)) for i in range(100)]
    for place, response in ((3, "hang"), (20, "die"), (36, "hang in C"), (99, "die")):
        pairs[place] = (response, str(place))
    with make_verifier(name, workers=1, timeout=1.0) as verifier:
        verdicts = verifier.score(pairs)
        assert verifier.restarts == 4
    failed = {i for i, verdict in enumerate(verdicts) if not verdict.valid}
    assert failed == {3, 20, 36, 99}
    assert {verdict for i, verdict in enumerate(verdicts) if i not in failed} == {RIGHT}


def test_close_while_graders_hang(name):
    """Fault: shutting down waits for a grader that hangs."""
    verifier = make_verifier(name, workers=2, timeout=600.0)
    hanging = [("hang", ""), ("hang in C", "")]
    grading = verifier.submit(hanging + [("x" * 10**6, str(i)) for i in range(20)])
    results = []
    waiting = threading.Thread(target=lambda: results.append(grading.result()))
    waiting.start()
    time.sleep(0.3)
    started = time.monotonic()
    verifier.close()
    verifier.close()
    waiting.join(timeout=5)
    assert time.monotonic() - started < 5
    assert [verdict.error for verdict in results[0]] == ["the verifier was closed"] * 22
    assert not any(verdict.valid for verdict in results[0])
    with pytest.raises(RuntimeError):
        verifier.submit([("a", "a")])


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        ("no_such_module_anywhere:grade", "No module named 'no_such_module_anywhere'"),
        ("odd_verifier:gone", "no attribute 'gone'"),
        ("odd_verifier:not_a_function", "not callable"),
    ],
)
def test_functions_that_workers_cannot_use(name, bad, error):
    with pytest.raises(UserError, match=error) as caught:
        make_verifier(bad, workers=1)
    assert (caught.value.field, caught.value.value) == ("verifier", bad)


def test_script_without_a_main_guard(folder, tmp_path):
    """Faults: a custom reward that workers cannot import; JAX started again in every worker.

    The verifier lies in the working folder; what the script imports must not reach the workers.
    """
    (folder / "heavy.py").write_text("")
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
        import heavy
        from hacpo_jax.tasks import make_verifier
        verifier = make_verifier("odd_verifier:grade", workers=1)
        print(*verifier.score([("modules", ""), ("a", "a")]), sep="\\n", flush=True)
        """)
    )
    # The folder of a script is on its path, the working folder is not.
    paths = [path for path in sys.path if path and path != str(folder)]
    (tmp_path / "heavy.py").write_text("")
    done = subprocess.run(
        [sys.executable, script],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.splitlines() == [str(WRONG), str(RIGHT)]
    assert done.stderr == ""
    assert done.returncode == 0
