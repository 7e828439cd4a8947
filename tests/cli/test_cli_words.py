"""Words of the command line, help, and what is refused before anything is loaded."""

import subprocess
import sys
import textwrap

import pytest

from hacpo_jax.cli import eval as eval_verb
from hacpo_jax.cli import export, generate, report
from hacpo_jax.cli.help import VERBS, help_text
from hacpo_jax.cli.words import Command, parse
from hacpo_jax.launch import main
from hacpo_jax.text import printable


@pytest.mark.parametrize(
    ("words", "command"),
    [
        ([], Command("train", None, (), (), False)),
        (["seed=1"], Command("train", None, (), ("seed=1",), False)),
        (["--config", "a.yaml"], Command("train", "a.yaml", (), (), False)),
        (["--config=a=b.yaml", "x=1=2"], Command("train", "a=b.yaml", (), ("x=1=2",), False)),
        (["train", "--config", "a", "b=-1"], Command("train", "a", (), ("b=-1",), False)),
        (["eval", "r1", "step=2", "r2"], Command("eval", None, ("r1", "r2"), ("step=2",), False)),
        (["eval", "--quiet", "r"], Command("eval", None, ("r",), (), False, quiet=True)),
        (["--help"], Command(None, None, (), (), True)),
        (["export", "-h"], Command("export", None, (), (), True)),
        (["generate", "prompt=--x"], Command("generate", None, (), ("prompt=--x",), False)),
        (
            ["--coordinator", "h:1", "a=1", "--processes=2", "--process", "0"],
            Command(
                "train",
                None,
                (),
                ("a=1",),
                False,
                {"coordinator": "h:1", "processes": 2, "process": 0},
            ),
        ),
        (["train", "--process", "3"], Command("train", None, (), (), False, {"process": 3})),
    ],
)
def test_words_are_sorted(words, command):
    assert parse(words) == command


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["trian"], "did you mean 'train'?"),
        (["evaluate"], "did you mean 'eval'?"),
        (["exprot", "run"], "did you mean 'export'?"),
        (["frobnicate"], "unknown; there are train, eval, generate, export, plan, report"),
        (["evil"], "unknown; did you mean 'eval'? There are train, eval, "),
        (["--frobnicate"], "unknown; there are --config"),
        (["configs/quickstart.yaml"], "--config configs/quickstart.yaml"),
        (["--confg", "x"], "option = '--confg'"),
        (["--training.steps=3"], "training.steps=3"),
        (["train", "-x"], "option = '-x'"),
        (["--config"], "--config"),
        (["--config", "--help-me"], "--config"),
        (["train", "loose"], "argument = 'loose'"),
        (["--coordinator"], "--coordinator: write HOST:PORT"),
        (["--processes", "--process", "0"], "--processes: write the number"),
        (["--processes", "two"], "--processes = 'two': must be a whole number"),
        (["--process=-1"], "--process = '-1': must be a whole number"),
        (["--proces", "1"], "did you mean '--process'?"),
        (["--process", "1"], "--processes: is missing"),
        (["--processes", "2", "--process", "2"], "--process = 2: must be from 0 to 1"),
        (["--processes", "2", "--process", "1"], "--coordinator: is missing"),
        (["eval", "run", "--processes", "2"], "--processes = '2': eval runs in one process"),
        (["generate", "--coordinator=h:1"], "generate runs in one process"),
        (["export", "--process=0"], "export runs in one process"),
        (["report", "--process=0"], "report runs in one process"),
        (["--config", "nowhere.yaml"], "built-in configs are quickstart, smollm2_state"),
        (["--config", "configs/nowhere.yaml"], "'configs/nowhere.yaml'"),
        (["--config", "quickstart", "trainng.steps=3"], "did you mean 'training'?"),
        (["seed=x"], "seed = 'x'"),
        (["report"], "run directory"),
        (["report", "--config", "quickstart"], "--config"),
        (["report", "no/such/run"], "'no/such/run'"),
        (["report", "a", "b/a", "a"], "is named twice"),
        (["report", "run", "outt=x"], "did you mean 'out'?"),
        (["eval"], "name run directories"),
        (["eval", "run", "--config", "quickstart"], "name run directories"),
        (["eval", "no/such/run"], "'no/such/run'"),
        (["eval", "no/such/run", "training.steps=3"], "training.steps"),
        (["eval", "run:agent"], "all agents of a run are measured"),
        (["eval", "a", "step=last"], "step = 'last'"),
        (["eval", "--config", "quickstart", "step=3"], "step = 3"),
        (["export", "out=x"], "export RUN_DIR out=DIR"),
        (["export", "a", "b", "out=x"], "'a b'"),
        (["export", "no/such/run"], "out: is required"),
        (["export", "no/such/run", "out=x"], "'no/such/run'"),
        (["export", "no/such/run", "out=x", "dtype=int8"], "dtype = 'int8'"),
        (["export", "r", "out=x", "out=y"], "is given twice"),
        (["generate"], "prompt: is required"),
        (["generate", "prompt=x"], "model: name model=DIR"),
        (["generate", "prompt=x", "model=a", "run=b"], "model = 'a'"),
        (["generate", "prompt=x", "run=b"], "agent: is required"),
        (["generate", "prompt=x", "model=a", "agent=b"], "agent = 'b'"),
        (["generate", "prompt=x", "run=a", "agent=b", "chat=true"], "chat = true"),
        (["generate", "prompt=x", "run=a", "of=b:c"], "of = 'b:c'"),
        (["generate", "prompt=x", "of="], "write RUN, RUN:AGENT"),
        (["generate", "prompt=x", "of=a:b", "step=3"], "step = 3"),
        (["generate", "prompt=x", "of=no/such/run:b@3"], "'no/such/run'"),
        (["generate", "model=a", "prompts=no/such/file"], "prompts = 'no/such/file'"),
        (["generate", "prompt=x", "model=/no/such/model"], "model = '/no/such/model'"),
        (["generate", "prompt=x", "model=a", "temperature=-1"], "temperature = '-1'"),
        (["generate", "prompt=x", "model=a", "temperature=nan"], "temperature = 'nan'"),
        (["generate", "prompt=x", "model=a", "top_p=0"], "top_p = '0'"),
        (["generate", "prompt=x", "model=a", "top_k=0"], "top_k = '0'"),
        (["generate", "prompt=x", "model=a", "samples=2"], "samples = 2"),
        (["generate", "prompt=x", "model=a", "max_new_tokens=0"], "max_new_tokens = '0'"),
        (["generate", "prompt=x", "modle=a"], "did you mean 'model'?"),
        (["generate", "prompt=x", "model=a", "chat_options=[1"], "chat_options = '[1': is no YAML"),
        (["generate", "loose", "prompt=x"], "argument = 'loose'"),
    ],
)
def test_bad_words_are_one_line(refused, tmp_path, monkeypatch, words, said):
    monkeypatch.chdir(tmp_path)
    assert said in refused(*words)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("verb", [None, *VERBS])
def test_help_has_examples_of_its_verb(verb, capsys):
    assert main(["--help"] if verb is None else [verb, "--help"]) == 0
    out = capsys.readouterr().out
    assert out.strip() == help_text(verb)
    assert "python -m hacpo_jax.launch" in out
    assert all(name in out for name in (VERBS if verb is None else [verb]))
    assert max(map(len, out.splitlines())) <= 120


@pytest.mark.parametrize("example", [words for v in VERBS.values() for words in v.examples])
def test_examples_of_help_are_understood(example):
    import shlex

    words = shlex.split(example)
    command = parse(words)
    assert command.verb == (words[0] if words else "train")


@pytest.mark.parametrize(
    ("verb", "options"),
    [
        ("generate", generate._Options),
        ("export", export._Options),
        ("report", report._Options),
        ("eval", eval_verb._Options),
    ],
)
def test_help_names_every_option(verb, options):
    assert [key for key in options.model_fields if key not in help_text(verb)] == []


@pytest.mark.parametrize("words", ["['--help']", "['trian']", "['training.steps=x']"])
def test_nothing_heavy_is_imported_for_help_and_bad_words(words):
    program = f"""
        import sys
        from hacpo_jax.launch import main
        main({words})
        heavy = {{"jax", "flax", "transformers", "orbax", "matplotlib"}} & set(sys.modules)
        sys.exit(f"imported: {{heavy}}" if heavy else 0)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_the_module_exits_with_the_code_of_main():
    command = [sys.executable, "-m", "hacpo_jax.launch", "trian"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: verb = 'trian'")


def test_an_interrupt_is_one_line(monkeypatch, capsys, tmp_path):
    from hacpo_jax.training import trainer

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(trainer, "prepare", interrupted)
    assert main(["--config", "quickstart", f"run_dir={tmp_path / 'run'}"]) == 130
    assert capsys.readouterr().err == (
        "interrupted; the same command goes on from the last checkpoint\n"
    )


def test_printable_text_cannot_move_the_cursor():
    hostile = "ok\tü√\n\x1b[2J\x1b]0;title\x07\r\x00\u202e\x9b\ud800"
    shown = printable(hostile)
    assert shown == ("ok\tü√\n\\x1b[2J\\x1b]0;title\\x07\\r\\x00\\u202e\\x9b\\ud800")
