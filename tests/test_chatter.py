"""What the official runtime prints on stderr is kept away, and nothing that others print is lost."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from litegpu import chatter

RUN = """
import sys
import numpy as np
from litegpu.interpreter import Interpreter
interpreter = Interpreter(sys.argv[1])
interpreter.allocate_tensors()
interpreter.invoke()
"""


def test_a_process_that_runs_a_model_prints_nothing(models_dir: Path) -> None:
    command = [sys.executable, "-W", "error", "-c", RUN, str(models_dir / "kws_ref_model.tflite")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_process_without_stderr_runs(models_dir: Path) -> None:
    code = "import os; os.close(2)\n" + RUN
    command = [sys.executable, "-c", code, str(models_dir / "kws_ref_model.tflite")]
    assert subprocess.run(command, stdout=subprocess.DEVNULL, timeout=120, check=False).returncode == 0


def test_the_runtime_s_lines_become_log_records_and_others_pass(capfd, caplog) -> None:
    caplog.set_level(logging.DEBUG, logger="litegpu")
    with chatter.quiet():
        os.write(2, b"INFO: Created a delegate.\nfrom another thread\nWARNING: careful\nhalf a line")
        os.write(2, b" and its end\n")
        assert capfd.readouterr().err == ""
    assert capfd.readouterr().err == "from another thread\nhalf a line and its end\n"
    assert caplog.messages == ["Created a delegate.", "careful"]
    assert [r.levelno for r in caplog.records] == [logging.DEBUG, logging.WARNING]
    os.write(2, b"INFO: after\n")
    assert capfd.readouterr().err == "INFO: after\n"


def test_nested_and_concurrent_use_restores_stderr(capfd) -> None:
    def work() -> None:
        for _ in range(50):
            with chatter.quiet(), chatter.quiet():
                os.write(2, b".")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    os.write(2, b"\nend\n")
    assert capfd.readouterr().err == "." * 200 + "\nend\n"


def test_an_exception_restores_stderr(capfd) -> None:
    with pytest.raises(KeyError), chatter.quiet():
        raise KeyError
    os.write(2, b"visible")
    assert capfd.readouterr().err == "visible"
