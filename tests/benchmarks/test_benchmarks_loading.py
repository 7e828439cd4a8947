"""What the benchmark of loading refuses."""

import threading

import loading
import pytest


def test_a_directory_without_a_model_is_refused_and_nothing_goes_on(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["loading.py", str(tmp_path)])
    threads = threading.active_count()
    with pytest.raises(SystemExit) as ended:
        loading.main()
    assert ended.value.code == 2
    assert f"DIR = '{tmp_path}/config.json': no such file" in capsys.readouterr().err
    assert threading.active_count() <= threads
