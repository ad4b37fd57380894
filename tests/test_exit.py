"""What finalizers rely on when the interpreter exits: by then the names in their modules may be None."""

from __future__ import annotations

import ast
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import litegpu

SOURCES = sorted(Path(litegpu.__file__).parent.rglob("*.py"))


@pytest.mark.parametrize("path", [path for path in SOURCES if "def __del__" in path.read_text()], ids=lambda p: p.stem)
def test_finalizers_have_what_tells_them_that_it_is_the_end(path: Path) -> None:
    """As defaults of their own arguments, and need no module before they know."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef) and node.name == "__del__":
            used = {name.id for line in node.body for name in ast.walk(line) if isinstance(name, ast.Name)}
            assert not used & {"sys", "os"}, f"line {node.lineno}: bind the function as a default argument"


def test_an_interpreter_that_outlives_its_module_is_silent() -> None:
    script = """
        import sys
        import litegpu.interpreter
        from litegpu import Interpreter
        from litegpu.model.builder import ModelBuilder

        b = ModelBuilder()
        b.output(b.op("NEG", [b.input("x", (1, 4))], (1, 4)))
        interpreter = Interpreter(model_content=b.build())
        interpreter.allocate_tensors()
        vars(litegpu.interpreter).update(dict.fromkeys(["sys", "os", "threading"]))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
