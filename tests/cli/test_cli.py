"""The command line's front door: what it loads, and what it makes of errors."""

from __future__ import annotations

import io
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from autodial import __version__ as autodial_version
from autodial import cli
from autodial.errors import InputError
from autodial.system.streams import harmless, named
from autodial.system.terminal import Console

HELP = """
import sys
sys.argv = ["autodial", "--help"]
try:
    import autodial.cli
    autodial.cli.main()
except SystemExit:
    pass
"""
HEAVY = ("torch", "onnx", "onnxruntime", "cv2", "matplotlib", "h5py", "tensorboard")


def test_a_remark_about_a_layer_is_made_once() -> None:
    """Commands build a net several times; what other parts say is printed each time."""
    handler = logging.lastResort
    assert handler is not None

    def passes(name: str) -> bool:
        return bool(handler.filter(logging.LogRecord(name, logging.WARNING, "", 0, "%s does nothing", ("x",), None)))

    with cli.told_once():
        assert [passes("autodial.net.net") for _ in range(2)] == [True, False]
        assert [passes("autodial.data.paths") for _ in range(2)] == [True, True]
    assert passes("autodial.net.net") and passes("autodial.net.net")


def run(code: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=cwd, timeout=120)


def in_a_process(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return run(f"import sys; sys.argv = {['autodial', *arguments]!r}; from autodial.cli import main; main()", cwd)


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        (HELP, HEAVY),
        ("import autodial", HEAVY),
        ("import autodial.proto", HEAVY),
        ("import autodial.data.image_data", ("torch", "onnx", "onnxruntime", "matplotlib")),
        ("import autodial.deploy; autodial.deploy.Predictor", ("torch", "onnx", "matplotlib")),
    ],
)
def test_what_an_import_loads(statement: str, absent: tuple[str, ...]) -> None:
    result = run(f"{statement}\nimport sys\nprint('LOADED', [name for name in {absent!r} if name in sys.modules])")
    assert "LOADED []" in result.stdout, result.stdout + result.stderr


def test_the_help_of_convert_shows_how_net_and_weights_are_named() -> None:
    """It has no --net and --weights, as `export` has."""
    text = in_a_process("convert", "--help").stdout
    assert "autodial convert deploy.prototxt net.caffemodel -o net.onnx" in text


@pytest.mark.parametrize("command", ["convert", "dialize", "serve"])
def test_an_argument_that_may_be_left_out_has_one_pair_of_brackets(command: str) -> None:
    usage = in_a_process(command, "--help").stdout.partition("Usage:")[2].partition("\n")[0]
    assert "[OPTIONS]" in usage and "[[" not in usage


def test_bad_input_is_one_sentence_and_status_2(tmp_path: Path) -> None:
    result = in_a_process("train", "--solver", "nowhere.prototxt", cwd=tmp_path)
    assert result.returncode == 2
    assert result.stderr.startswith("autodial: error: nowhere.prototxt") and result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("predict", "m.onnx", "photos", "--drift", "-o", "out.csv"),
            "--drift is followed by the option -o: write SUMMARY.json after --drift, or leave --drift out",
        ),
        (
            ("predict", "m.onnx", "photos", "-o", "out.csv", "--top-k", "--quiet"),
            "--top-k is followed by the option --quiet: write its value after --top-k, or leave --top-k out",
        ),
        (
            ("export", "--net", "n.prototxt", "--weights", "a", "--weights", "--ensemble"),
            "--weights is followed by the option --ensemble: write W1,W2 after --weights",
        ),
        (
            ("test", "--net", "n.prototxt", "--weights", "-w.caffemodel"),
            '--weights -w.caffemodel: no value begins with "-"; write ./-w.caffemodel for a file',
        ),
    ],
)
def test_an_option_does_not_take_another_for_its_value(
    arguments: tuple[str, ...], message: str, autodial: Callable[..., tuple[int, str, str]]
) -> None:
    assert autodial(*arguments) == (2, "", f"autodial: error: {message}\n")


@pytest.mark.parametrize(
    "arguments",
    [
        ("predict", "m.onnx", "m.onnx", "-o", "-"),
        ("export", "--net", "m.onnx", "--weights", "w", "--mean", "-1.5,-.5,0"),
        ("test", "--net", "m.onnx", "--weights", "./-w.caffemodel"),
    ],
)
def test_a_dash_a_negative_number_and_a_path_are_values(
    arguments: tuple[str, ...], autodial: Callable[..., tuple[int, str, str]]
) -> None:
    status, _, err = autodial(*arguments)
    assert status == 2 and "m.onnx" in err  # it is not there


@pytest.mark.parametrize("words", [("--debug", "test"), ("test", "--debug")])
def test_debug_shows_the_traceback_wherever_it_stands(
    words: tuple[str, str], autodial: Callable[..., tuple[int, str, str]]
) -> None:
    status, _, err = autodial(*words, "--net", "nowhere.prototxt", "--weights", "x.caffemodel")
    assert status == 2 and "Traceback" in err


def test_opencv_is_quiet_about_images_that_a_command_reports(tmp_path: Path) -> None:
    data = cv2.imencode(".png", np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8))[1].tobytes()
    for place in ("source/a/1.png", "source/b/1.png", "target/1.png"):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_bytes(data if place.startswith("source") else data[:2000])
    result = in_a_process("init", "p", "--arch", "alexnet", "--source", "source", "--target", "target", cwd=tmp_path)
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1 and "damaged or cut short" in result.stderr


def test_usage_is_status_2() -> None:
    assert in_a_process("train").returncode == 2
    assert in_a_process("nonsense").returncode == 2


def test_a_missing_extra_is_named() -> None:
    code = "import sys; sys.modules['torch'] = None; sys.argv = ['autodial', 'train', '--solver', __file__]"
    result = run(f"__file__ = 'x'\n{code}\nfrom autodial.cli import main; main()")
    assert result.returncode == 1
    assert result.stderr.startswith('autodial: error: this needs torch, which is not installed: pip install ".[train]"')


@pytest.mark.parametrize("module", ["autodial.caffe", "autodial.layers"])
def test_import_without_torch_says_what_to_install(module: str) -> None:
    hidden = "import sys; sys.modules['torch'] = None"
    result = run(f"{hidden}\nimport {module}")
    last = result.stderr.splitlines()[-1]
    assert last == (
        "ModuleNotFoundError: training, autodial.caffe and autodial.layers need PyTorch, which is not installed: "
        "pip install '.[train]' in AutoDIAL's checkout brings it"
    )


def test_version(autodial: Callable[..., tuple[int, str, str]]) -> None:
    assert autodial("--version") == (0, f"autodial {autodial_version}\n", "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no full disk to write to")
@pytest.mark.parametrize("arguments", ["--help", "predict --help", "--version", "doctor", "doctor --json", "upgrade"])
def test_a_full_disk_under_standard_output_is_a_sentence(tmp_path: Path, arguments: str) -> None:
    if arguments == "upgrade":
        (tmp_path / "net.prototxt").write_text('name: "x"\n')
        arguments = "upgrade net.prototxt new.prototxt"
    with Path("/dev/full").open("w") as full:
        code = f"import sys; sys.argv = {['autodial', *arguments.split()]!r}; from autodial.cli import main; main()"
        result = subprocess.run(
            [sys.executable, "-c", code], stdout=full, stderr=subprocess.PIPE, text=True, cwd=tmp_path, timeout=120
        )
    assert (result.returncode, result.stderr) == (1, "autodial: error: standard output: No space left on device\n")


@pytest.mark.skipif(sys.platform == "win32", reason="no such pipes there")
@pytest.mark.parametrize("arguments", ["--help", "doctor --json"])
def test_a_reader_that_is_gone_ends_a_command_in_silence(arguments: str) -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    code = f"import sys; sys.argv = {['autodial', *arguments.split()]!r}; from autodial.cli import main; main()"
    result = subprocess.run([sys.executable, "-c", code], stdout=theirs, stderr=subprocess.PIPE, text=True, timeout=120)
    os.close(theirs)
    assert (result.returncode, result.stderr) == (1, "")


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (MemoryError(), 1, "there is not enough memory"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"), 1, "not enough memory"),
        (RecursionError("maximum recursion depth exceeded"), 2, "nested too deeply"),
        (InputError("a\x1b[2Jb\nc: no such file"), 2, r"a\x1b[2Jb\x0ac: no such file"),
    ],
)
def test_what_an_error_becomes(
    autodial: Callable[..., tuple[int, str, str]],
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    status: int,
    message: str,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("autodial.deploy.runner.predict_folder", fail)
    got, out, err = autodial("predict", "m.onnx", "photos", "-o", "out.csv")
    assert (got, out) == (status, "")
    assert err.startswith("autodial: error: ") and message in err and err.count("\n") == 1


def test_an_error_does_not_fill_screens(tmp_path: Path) -> None:
    name = "d" * 1_000_000
    (tmp_path / "net.prototxt").write_text(f'layer {{ name: "x" type: "ReLU" bottom: "{name}" top: "e" }}')
    result = in_a_process("time", "--net", "net.prototxt", "--device", "cpu", cwd=tmp_path)
    assert result.returncode == 2
    assert result.stderr.startswith('autodial: error: net.prototxt, TRAIN phase: layer "x" (ReLU): bottom blob "ddd')
    assert result.stderr.endswith("is produced by no earlier layer of the TRAIN phase\n")
    assert len(result.stderr) < 10_000


HOSTILE = "a\x1b]0;title\x07\x1b[2J\x9b1m\u202eb.png"


@pytest.mark.skipif(sys.platform == "win32", reason="no such names there")
def test_names_of_files_give_no_orders_to_the_terminal(
    autodial: Callable[..., tuple[int, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(f"{HOSTILE}.prototxt").write_text('name: "x"\n')
    shown = r"a\x1b]0;title\x07\x1b[2J\x9b1m\u202eb.png"
    status, out, err = autodial("upgrade", f"{HOSTILE}.prototxt", "new.prototxt")
    assert status == 0 and r"a\x1b]0;title\x07" in out and out.count("\n") == 1  # a command's text
    for arguments in (
        ["train", "--solver", HOSTILE],  # an error
        ["upgrade", f"{HOSTILE}.prototxt", f"nowhere/{HOSTILE}"],
    ):
        status, more, err = autodial(*arguments)
        assert status == 2 and shown in err
        assert not set(out + more + err) & set("\x1b\x07\x9b\u202e")
    status, out, err = autodial("train", f"--{HOSTILE}")  # a usage error, in rich's frame
    assert status == 2 and not set(out + err) & set("\x07\x9b\u202e") and "\x1b]" not in err


def test_a_console_shows_what_it_would_obey() -> None:
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=200, color_system="standard", highlight=False, markup=False)
    table = Table("name")
    table.add_row(HOSTILE)
    console.print(table)
    console.print(Text(HOSTILE, style="bold"))  # which drops the bell itself
    console.print(f"line\n{HOSTILE}", style="red")
    text = file.getvalue()
    assert text.count(r"a\x1b]0;title\x07\x1b[2J\x9b1m\u202eb.png") == 2
    assert "\x1b[1ma\\x1b]0;title\\x1b[2J" in text and not set(text) & set("\x07\x9b\u202e") and "\x1b[2J" not in text
    (row,) = (line for line in text.splitlines() if "│" in line)
    assert len(row) == len(r"a\x1b]0;title\x07\x1b[2J\x9b1m\u202eb.png") + 4  # the table has room for it


def test_a_terminal_gets_the_colours_of_rich_inside_of_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    @harmless
    def command() -> None:
        Console(force_terminal=True, color_system="standard").print("red", style="red")
        print("\x1b[31mnot red")
        with Progress(console=Console(stderr=True, force_terminal=True), transient=True) as bar:
            bar.update(bar.add_task("work", total=1), completed=1)
            print("above")
        print(HOSTILE, file=sys.stderr)

    with named():
        command()
    out, err = capsys.readouterr()
    assert out == "\x1b[31mred\x1b[0m\n\\x1b[31mnot red\n"
    bar, _, name = err.rpartition("\x1b[2K")  # what rich moves the cursor with is as it was
    assert "\x1b[?25l" in bar and "work" in bar and "\\x1b" not in bar
    assert name == r"a\x1b]0;title\x07\x1b[2J\x9b1m\u202eb.png" + "\n"
