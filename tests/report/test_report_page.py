"""The page of a report: complete, of one file, and never a way for a model's text to run."""

import html.parser
import subprocess

import pytest
from report_pages import ATTACK, BENCHMARK, BROWSER, write_hostile_run

from hacpo_jax.report import write_report


class Parsed(html.parser.HTMLParser):
    """Tags, attributes and text of a page, as a parser sees them."""

    def __init__(self, text: str):
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.attributes: list[tuple[str, str, str | None]] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]
        if tag not in ("meta", "img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    run = write_hostile_run(tmp_path_factory.mktemp("pages") / "x<i>&y")
    return write_report([run])[0]


@pytest.fixture(scope="module")
def parsed(page) -> Parsed:
    return Parsed(page.read_text(encoding="utf-8"))


def test_the_page_is_well_formed_and_holds_its_pictures(parsed):
    assert parsed.open == []
    sources = [value for tag, name, value in parsed.attributes if (tag, name) == ("img", "src")]
    assert len(sources) >= 5  # overview, accuracy, reward, matrix, time
    assert all(value.startswith("data:image/svg+xml;base64,") for value in sources)
    alts = [value for tag, name, value in parsed.attributes if (tag, name) == ("img", "alt")]
    assert len(alts) == len(sources)
    assert all(alts)


def test_nothing_runs_and_nothing_comes_from_elsewhere(parsed):
    assert {"script", "iframe", "object", "embed", "link", "base", "form"}.isdisjoint(parsed.tags)
    for tag, name, value in parsed.attributes:
        assert not name.startswith("on")
        if name in ("src", "href"):
            assert (value or "").startswith("data:" if tag == "img" else "#")
    policies = [v for t, n, v in parsed.attributes if (t, n) == ("meta", "content")]
    assert "default-src 'none'; img-src data:; style-src 'unsafe-inline'" in policies


def test_what_models_wrote_is_shown_as_it_is(parsed):
    text = "".join(parsed.texts)
    assert f"prompt {ATTACK}" in text
    assert f"gold {ATTACK}" in text
    for agent in ("one", "two"):
        for step in (0, 1):
            assert f"answer of {agent} at {step}: {ATTACK} \\x1b[2J \\u202e" in text
    assert text.count("reward 1") == 4
    assert "x<i>&y" in text
    assert BENCHMARK in text


def test_a_run_without_kept_answers_shows_those_of_training(tmp_path):
    run = write_hostile_run(tmp_path / "run")
    (run / "answers.jsonl").unlink()
    (run / "rollouts").mkdir()
    row = (
        '{"step": 1, "prompt_id": "p", "source": "one", "index": %d, "reward": 0, "valid": true, '
        '"response": "from training %d", "finish_reason": "length", "prompt": "q"}\n'
    )
    (run / "rollouts" / "step_000001.jsonl").write_text(row % (0, 0) + row % (1, 1))
    text = "".join(Parsed(write_report([run])[0].read_text(encoding="utf-8")).texts)
    assert "from training 0" in text
    assert "from training 1" not in text
    assert "reward 0, cut off" in text


if BROWSER is not None:  # where there is none, the parser has looked at the same

    def test_a_browser_shows_the_page_and_runs_nothing(page):
        command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
        done = subprocess.run(
            [*command, page.as_uri()], capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr
        assert "<title>x&lt;i&gt;&amp;y</title>" in done.stdout
        seen = Parsed(done.stdout)
        assert "script" not in seen.tags
        assert f"prompt {ATTACK}" in "".join(seen.texts)
