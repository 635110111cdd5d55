"""`kinformer check` over the toys, over twins of them with one mistake each, and over files that cannot be judged.

All in one process of their own, as a user runs them: here annotations are checked at run time, there they are not.
"""

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import nn

from kinformer.checkpoint.checkpoint import load, save
from kinformer.cli.__main__ import run
from kinformer.core.discover import examples, find_member, part_files
from kinformer.laws.check import check, verdicts
from kinformer.laws.support.layer_forms import kind_of
from kinformer.laws.support.parts_file import read_parts
from kinformer.laws.support.verdicts import laws
from tests.cli.folders import folder

ROOT = Path(__file__).parents[2]
TOYS = ROOT / "tests" / "toys"
NAMES = sorted(path.stem for path in TOYS.glob("*.py") if path.stem != "law")
FEWER = {
    "executor": 1,
    "model": 6,
    "shortener": 8,
    "task": 1,
}  # laws that hold; others speak of it not at all or have no state
QUICK = [law for law in laws() if law not in ("learns", "compiles")]
RUN = """
import contextlib, io, json, sys
from kinformer.cli.__main__ import run
for line in sys.stdin:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(json.loads(line))
    print(json.dumps([code, out.getvalue(), err.getvalue()]), flush=True)
"""


class Case(NamedTuple):
    """A file and what is said of it: in one line of stdout, or on stderr where the exit code is 2."""

    text: str
    says: str
    code: int = 1
    laws: tuple[str, ...] = ()
    options: tuple[str, ...] = ()


def twin(toy: str, *changes: str) -> str:
    """A toy's text with (old, new, old, new, ...) replaced; every old one must be there."""
    text = (TOYS / f"{toy}.py").read_text(encoding="utf-8")
    for old, new in zip(changes[::2], changes[1::2], strict=True):
        assert old in text, f"{toy}.py has no {old!r} to break"
        text = text.replace(old, new)
    return text


def ending(toy: str, examples: str) -> str:
    """A toy's text with other EXAMPLES."""
    return twin(toy).partition("EXAMPLES = ")[0] + examples


def law(name: str, toy: str, *changes: str, says: str, code: int = 1, options: tuple[str, ...] = ()) -> Case:
    """A twin that breaks a law."""
    return Case(twin(toy, *changes), says, code, (name,), options)


def breaking(toy: str, law: str, reason: str, *changes: str) -> str:
    """A toy's text whose first example declares a break."""
    text = twin(toy, *changes).replace(
        "EXAMPLES = (", f'EXAMPLES = (Example(_block, breaks={{"{law}": "{reason}"}}),) # '
    )
    return f"from kinformer.core.example import Example\n{text}"


BUFFER = """def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def start"""
LIVE = """def live(self, k: Tensor, now: Tensor) -> Tensor:
        return k > now - 3

    def reach"""
CENTRE = """class Centre(nn.Module):
    def __init__(self, d: int):
        super().__init__()

    def forward(self, x):
        return x - x.mean(1, keepdim=True)


@member"""
READ = "AttentionOutput(mean.repeat_interleave(q.shape[1] // v.shape[1], 1), lse)"
PENALTIES = """def penalties(self):
        return {"rate": Penalty((self.log_rate,))}

    def aux(self, sides):
        return {"rate": self.log_rate.sum()}

    def bind"""

BROKEN = {
    # a pattern
    "reads ahead": law(
        "pattern",
        "pattern",
        "k <= q",
        "k <= q + 2",
        says="Alternate(): position 0 reads position 2 in head 0, but reach() says at most 0 ahead",
    ),
    "peeks": law(
        "peek", "pattern", "k <= q", "k <= q + 2", says="redrawing the columns after column 0 of 3 changes the output"
    ),
    "reaches too short": law(
        "pattern",
        "pattern",
        "torch.inf, 0",
        "4, 0",
        says="Alternate(): position 6 reads position 0 in head 0, but reach() says at most 4 back",
    ),
    "reaches a number": law(
        "pattern",
        "pattern",
        "torch.inf, 0",
        "3",
        says="reach() is 3; return two numbers, how far back and how far ahead",
    ),
    "gives numbers": law(
        "pattern", "pattern", " % 2 == 0", " % 2", says="the predicate returns torch.int64, expected bool"
    ),
    "lets live keys die": law(
        "pattern",
        "pattern",
        "def reach",
        LIVE,
        says="a query at position 3 or later reads position 0, but live() drops it at position 3",
    ),
    "has endless slots": law(
        "pattern",
        "pattern",
        "def reach",
        "def capacity(self, length):\n        return torch.inf\n\n    def reach",
        says="capacity(1) is inf; return a whole number of slots",
    ),
    "fails": law("pattern", "pattern", "(q - k)", "(q - k).none()", says="line 16 of fails.py: AttributeError: "),
    # a bias
    "is NaN": law(
        "runs", "bias", ".abs()", ".abs().to(s.dtype).log() * 0", says="numbers of the output are NaN or infinite"
    ),
    "counts columns": law(
        "chunk",
        "bias",
        "(at(q_pos, b, h, i) - at(k_pos, b, h, j))",
        "(i - j)",
        says="on 2 heads under Causal(): 2 tokens in chunks of [1, 1] give a different result",
    ),
    "is for another number of heads": law(
        "runs",
        "bias",
        "lambda: Decay(2)",
        "lambda: Decay(1)",
        says="on 2 heads under Causal(): the law fails with an error: line 18 of",
    ),
    "moves what it does not name": law(
        "targets",
        "bias",
        "def bind",
        PENALTIES.replace("(self.log_rate,)", "()"),
        "from kinformer.core.request import Request",
        "from kinformer.core.loss import Penalty\nfrom kinformer.core.request import Request",
        says="the penalty 'rate' has gradients for ['mechanism.bias.log_rate'], which it does not declare, and none "
        "for [], which it declares",
    ),
    # a mechanism
    "state is not batch first": law(
        "rows",
        "mechanism",
        "torch.zeros(spec.batch, sizes",
        "torch.zeros(1, sizes",
        says="total of the state has shape [1, 2, 8] for 3 rows; the first dimension must be the batch",
    ),
    "changes a buffer": law(
        "mutation",
        "mechanism",
        "def start",
        BUFFER,
        "q, v, real =",
        "self.calls += 1\n        q, v, real =",
        says="forward in eval mode changes mechanism.calls; make such a change once per training step, in after_step",
    ),
    "counts padding": law(
        "padding",
        "mechanism",
        "keys.pos[:, 0] >= 0",
        "keys.pos[:, 0] >= -1",
        says="a loss on real positions has a gradient at padding of x, so the result depends on padding",
    ),
    "returns a tensor": law(
        "runs", "mechanism", f"Out({READ}, state)", "mean", says="Mean.forward returns a Tensor; return Out(y, state)"
    ),
    "returns no read": law(
        "runs",
        "mechanism",
        READ,
        "mean",
        says="Mean.forward returns an Out of a Tensor; return Out(AttentionOutput(y, lse), state)",
    ),
    "has the wrong shape": law(
        "runs",
        "mechanism",
        ".to(v.dtype)",
        ".to(v.dtype)[..., :4]",
        says="Mean.forward gives [3, 2, 2, 4]; it must give [3, 2, 2, 8] for y",
    ),
    "does not merge": law(
        "merge",
        "mechanism",
        "torch.float32)).log()",
        "torch.float32))",
        says="of merged pieces differs from one attention call over all keys by ",
    ),
    "forgets": law(
        "chunk",
        "mechanism",
        "count[:, -1]) if",
        "count[:, -1] * 0) if",
        says="2 tokens in chunks of [1, 1] give a different result than one call: row 0, position 1 is",
    ),
    "gives no advice": law(
        "chunk",
        "mechanism",
        "total = torch.zeros(spec",
        "from kinformer.core.mechanism import NoState\n        raise NoState('none')\n        total = torch.zeros(spec",
        says="NoState from start() does not say what to use instead (write 'use ...'): 'none'",
    ),
    "is slow": law(
        "runs",
        "mechanism",
        "q, v, real =",
        "while True:\n            pass\n        q, v, real =",
        says="no answer in 0.5 s; use a smaller example (width 16, 2 heads), or a larger --seconds",
        options=("--seconds", "0.5"),
    ),
    "overflows": law(
        "dtype",
        "mechanism",
        "total / count",
        "total * 9e4 / 9e4 / count",
        says="results in float16 are NaN or infinite",
    ),
    # a memory
    "fades": law("chunk", "memory", "[state.x, x]", "[0.9 * state.x, x]", says="2 tokens in chunks of [1, 1]"),
    "reads empty slots": law(
        "chunk",
        "memory",
        "(spec.batch, slots), -1",
        "(spec.batch, slots), 0",
        says="x of the state grew from [3, 2, 16] to [3, 4, 16]",
    ),
    # a block
    "mixes rows": law(
        "batch_mates",
        "join",
        "self.g * out.y",
        "self.g * out.y.mean(0)",
        says="rows [0] of 2 tokens give a different result in a batch of three than alone",
    ),
    "writes to aux": law(
        "mutation",
        "join",
        "out = f(norm(x))",
        'out = f(norm(x))\n        out.aux["g"] = self.g',
        says="the mapping aux of an Out changes after forward returned it",
    ),
    # depth
    "shares one state": law(
        "chunk", "depth", "collected.call(n", "collected.call(0", says="this decoding state is spent"
    ),
    "has no width": law(
        "runs",
        "depth",
        "self.d, self.layer, self.times = layer.d, layer, times",
        "self.layer, self.times = layer, times",
        says="no layer can be built with the part: AttributeError: Repeat has no width d; set self.d in __init__",
    ),
    "makes a state": law(
        "chunk",
        "depth",
        "return collected.make_out(x)",
        "return collected.make_out(x)._replace(state=tuple(collected.states))",
        says="a call without a state returns a state",
    ),
    # graphs
    "asks for a number": law(
        "compiles",
        "feedforward",
        "return Out(",
        "x = x if float(x.detach().sum()) > 0 else -x\n        return Out(",
        says="does not compile as one graph",
    ),
    "asks for a number of its state": law(
        "compiles",
        "mixer",
        "count + state.count[:, None]",
        "(count + state.count[:, None] if float(state.count.sum()) > 0 else count)",
        says="does not compile as one graph",
    ),
    # a member
    "takes the mean of the row": law(
        "peek",
        "member",
        "@member",
        CENTRE,
        "from kinformer import Attention",
        "from torch import nn\n\nfrom kinformer import Attention",
        "norm=RMSNorm",
        "norm=Centre",
        says="it has a state for decoding, but ",
    ),
    # breaks
    "breaks nothing": Case(
        breaking("join", "peek", "the paper sorts the whole row"),
        "breaks is out of date: the part keeps this law; remove 'peek' from breaks",
        1,
        ("peek",),
    ),
}

JUDGED = {
    "breaks what it says": Case(
        breaking("join", "batch_mates", "the paper takes the mean of the batch", "out.y)", "out.y.mean(0))"),
        "~ batch_mates         breaks: the paper takes the mean of the batch",
        0,
        ("batch_mates",),
    ),
    "reach is endless": law(
        "pattern",
        "pattern",
        "def reach",
        "def other",
        code=0,
        says="hint: Alternate() reads no later key, but its reach() returns inf keys ahead. Return 0 to allow decoding",
    ),
    "could keep less": law(
        "pattern",
        "pattern",
        " % 2 == 0",
        " < 5",
        code=0,
        says="hint: Alternate() reads at most 4 keys back, but its reach() returns inf. A smaller reach() reads fewer",
    ),
    "has heads": Case(
        "from kinformer.core.pattern import Heads\n"
        + ending("pattern", "EXAMPLES = (Heads(Alternate(), ~Alternate()),)"),
        "Heads(Alternate(), ~Alternate()), head 1: each line is a query and each column is a key, from 0 to 23",
        0,
        ("pattern",),
    ),
    "ends after 24 positions": Case(
        "from kinformer.nn.patterns.band import Band\n" + ending("pattern", "EXAMPLES = (Band(31),)"),
        "Band(left=31, right=None): each line is a query and each column is a key, from 0 to 47",
        0,
        ("pattern",),
    ),
    "ends after 64 positions": Case(
        "from kinformer.nn.patterns.band import Band\n" + ending("pattern", "EXAMPLES = (Band(100),)"),
        "a key, from 0 to 23; in a row of 128 positions it leaves out keys",
        0,
        ("pattern",),
    ),
    "has no state": law(
        "chunk",
        "member",
        "Causal() & (Band(window) | Tokens(first))",
        "Causal() & Band(window) | Tokens(first)",
        code=0,
        says="- chunk: no decoding state to test: ((Causal() & Band(left=4, right=None)) | Tokens(n=2)) reads up to",
    ),
}

UNJUDGED = {
    "has no examples": Case(ending("pattern", ""), "has no EXAMPLES; end it with EXAMPLES = (Alternate(...),)"),
    "a member has none": Case(ending("member", ""), "has no EXAMPLES; end it with EXAMPLES = (lambda: sinks(...),)"),
    "has no comma": Case(
        ending("pattern", "EXAMPLES = (Alternate())"), "is an Alternate, expected a tuple; write EXAMPLES = ("
    ),
    "has empty examples": Case(ending("bias", "EXAMPLES = ()"), "is empty, expected a tuple"),
    "is already made": Case(
        ending("bias", "EXAMPLES = (Decay(2),)"), "is a Decay that is already built; write lambda:"
    ),
    "makes a number": Case(
        ending("bias", "EXAMPLES = (lambda: 3,)"), "makes an int, expected one of pattern, bias, score,"
    ),
    "is a number": Case(ending("bias", "EXAMPLES = (3,)"), "is an int, which is neither a pattern nor a function"),
    "cannot be built": Case(
        ending("bias", "EXAMPLES = (lambda: Decay(two),)"), "cannot be built: line 28 of cannot_be_built.py: NameError"
    ),
    "does not import": Case(
        "import nothing_of_the_kind", "cannot be imported: line 1 of does_not_import.py: ModuleNot"
    ),
    "is no Python": Case("\ndef f(:", "cannot be imported: line 2 of is_no_python.py: SyntaxError: "),
    "exits": Case(
        "raise SystemExit(3)", "exits Python while it is imported; put such code under if __name__ == '__main__'"
    ),
    "hangs": Case(
        "while True: pass", "took more than 0.5 s to import and to build its examples", options=("--seconds", "0.5")
    ),
    "has a keyword without default": Case(
        twin("member", "d: int = 128", "d: int"), "the keyword 'd' of the member 'sinks'"
    ),
    "breaks no law": Case(breaking("join", "chunks", "why"), "names 'chunks', which is not a law; the nearest is"),
    "breaks in a list": Case(
        breaking("join", "chunk", "why").replace('{"chunk": "why"}', '["chunk"]'), "must be a dict of law and reason"
    ),
    "asks for no law": Case(twin("join"), "there is no law 'pek'; the nearest is 'peek'", laws=("pek",)),
}
CASES = BROKEN | JUDGED | UNJUDGED


def words(folder: Path, name: str, case: Case) -> list[str]:
    file = folder / f"{name.replace(' ', '_').lower()}.py"
    file.write_text(case.text, encoding="utf-8")
    return ["check", str(file), *(word for law in case.laws for word in ("--law", law)), *case.options]


class Checks(dict[str, tuple[int, str, str]]):
    """Exit code, stdout and stderr of each check. One process runs a check when a test asks for it first."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        quick = [word for law in QUICK for word in ("--law", law)]
        self.folder = folder
        self.commands = {name: words(folder, name, case) for name, case in CASES.items()}
        self.commands |= {name: ["check", str(TOYS / f"{name}.py"), *quick] for name in NAMES}
        self.commands["whole"] = ["check", f"{TOYS}/mechanism.py:Mean", "--out", str(folder / "out")]
        (folder / "helper.py").touch()
        (folder / "helped.py").write_text("import helper", encoding="utf-8")
        self.commands["helped"] = ["check", str(folder / "helped.py")]
        self.commands["nobody"] = ["check", f"{TOYS}/mechanism.py:Maen"]
        self.commands["nowhere"] = ["check", str(folder / "none.py")]
        self.commands["folder"] = ["check", str(folder)]
        self.commands["unheard"] = ["check", str(ROOT / "kinformer" / "nn" / "depth" / "distilled.py")]
        env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        self.process = subprocess.Popen(
            [sys.executable, "-c", RUN], env=env, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __missing__(self, name: str) -> tuple[int, str, str]:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(self.commands[name]) + "\n")
        self.process.stdin.flush()
        code, out, err = json.loads(self.process.stdout.readline())
        self[name] = code, out, err
        return self[name]


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Checks]:
    checks = Checks(tmp_path_factory.mktemp("own"))
    yield checks
    checks.process.communicate()


@pytest.mark.parametrize("toy", NAMES)
def test_a_toy_keeps_every_law(outputs: Checks, toy: str) -> None:
    code, out, err = outputs[toy]
    assert code == 0 and err == "", out + err
    assert "✗" not in out and out.count("✓") >= FEWER.get(toy, 10) and " none is broken" in out.splitlines()[-1]


@pytest.mark.parametrize("name", [*BROKEN, *JUDGED])
def test_what_a_law_finds_is_said_in_one_line(outputs: Checks, name: str) -> None:
    case = CASES[name]
    code, out, err = outputs[name]
    lines = [line for line in out.splitlines() if case.says in line]
    assert code == case.code and len(lines) == 1 and err == "", out + err
    assert lines[0].startswith("✗ ") == (case.code == 1) and "Traceback" not in out


@pytest.mark.parametrize("name", UNJUDGED)
def test_a_file_that_cannot_be_judged_is_refused_in_one_line(outputs: Checks, name: str) -> None:
    code, out, err = outputs[name]
    assert code == 2 and out == "" and err.startswith("kinformer: ") and err.count("\n") == 1, out + err
    assert UNJUDGED[name].says in err, err


def test_where_there_is_no_file_or_no_such_part(outputs: Checks) -> None:
    assert outputs["nowhere"][0] == 2 and "there is no file or folder " in outputs["nowhere"][2]
    assert outputs["helped"][0] == 2 and "it is in the same folder, so run with PYTHONPATH=" in outputs["helped"][2]
    assert outputs["folder"][0] == 2 and "is not a model: it has no config.json" in outputs["folder"][2]
    assert outputs["nobody"][0] == 2 and "is a 'Maen'; the nearest is 'Mean'" in outputs["nobody"][2]


def test_what_no_law_judges_is_no_success(outputs: Checks) -> None:
    code, out, err = outputs["unheard"]
    assert code == 2 and "no law judges a Distilled by itself" in out
    assert err.startswith("kinformer: no law applies to the examples of ") and err.count("\n") == 1


def test_a_finding_stands_in_the_first_lines_above_the_drawings(outputs: Checks) -> None:
    _, out, _ = outputs["reads ahead"]
    assert BROKEN["reads ahead"].says in "\n".join(out.splitlines()[:6])
    assert "each line is a query" in out and "Traceback" not in out


def test_a_whole_check_draws_and_reports(outputs: Checks) -> None:
    code, out, _ = outputs["whole"]
    assert code == 0 and sorted(path.name for path in (outputs.folder / "out").iterdir()) == [
        "picture.png",
        "report.txt",
    ]
    assert (
        "Mean, a mechanism; 1 example" in out
        and "state  ▁▁▁▁▁▁▁▁  72 bytes to 72 bytes; any row takes the same state" in out
    )
    report = (outputs.folder / "out" / "report.txt").read_text(encoding="utf-8")
    assert [line.rstrip() for line in report.splitlines()] == [line.rstrip() for line in out.splitlines()]
    assert "░" not in outputs["pattern"][1] and "    █·█·█·█" in outputs["pattern"][1]


def test_a_law_without_an_answer_is_counted_apart(outputs: Checks) -> None:
    code, out, _ = outputs["is slow"]
    assert code == 1 and out.rstrip().endswith("0 laws hold, none is broken, 1 out of time: runs")


def test_laws_that_were_not_tested_stand_together_with_their_reasons(outputs: Checks) -> None:
    _, out, _ = outputs["pattern"]
    reasons = out[out.index("not tested, and why:") :].split("\n\n")[0].splitlines()[1:]
    assert reasons == ["- targets: no module inside declares a penalty (a further loss)"]
    assert "nothing to judge" not in out and "without a case" not in out
    assert out.rstrip().splitlines()[-1].endswith(" laws hold, none is broken, 1 not tested: targets")


def test_a_learnability_probe_is_a_note_and_no_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("kinformer.laws.learns.STEPS", 1)  # nothing learns in a step
    assert run(["check", f"{TOYS}/member.py", "--law", "learns", "--law", "runs"]) == 0
    out = capsys.readouterr().out
    assert "\n? learns              the model does not learn to copy from " in out and "✗" not in out
    assert out.index("✓ runs") < out.index("learnability probe: ") < out.index("? learns")
    assert "Note: a model that trains well may need another learning rate" in out
    assert out.rstrip().endswith("1 law holds, none is broken; note on learnability: learns")
    (verdict,) = check(TOYS / "member.py", law="learns")
    assert verdict.end == "broken" and verdict.is_probe and not verdict.is_failure


@pytest.mark.parametrize("where", ["", "best"])
def test_a_trained_model_is_checked(where: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = folder(tmp_path / "run" / where, "gpt", length=32)
    laws_of_weights = ["runs", "peek", "chunk"]
    assert run(["check", place, *(word for law in laws_of_weights for word in ("--law", law))]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"{place}: a trained gpt\n") and all(f"✓ {law} " in out for law in laws_of_weights)
    assert "- learns, own_weights, compiles: these laws are about the code of a member; check its file" in out
    with pytest.raises(ValueError, match="^the law 'learns' is about the code of a member: got the trained model"):
        check(place, law=["chunk", "learns"])
    assert run(["check", place, "--law", "compiles"]) == 2
    assert "the law 'compiles' is about the code of a member: got the trained" in capsys.readouterr().err


def test_weights_that_are_spoiled_break_a_law(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = folder(tmp_path / "run", "gpt", length=32)
    model = load(place)
    with torch.no_grad():
        model.embedding.weight[3] = torch.nan
    save(model, place)
    assert run(["check", place, "--law", "runs"]) == 1
    assert "✗ runs" in capsys.readouterr().out


def test_what_a_member_declares_may_break_its_trained_models(tmp_path: Path) -> None:
    _, example = next(pair for pair in examples("members") if pair[0] == "guided_attention")
    torch.manual_seed(0)
    save(example.make(), tmp_path / "run")
    shard, runs = check(tmp_path / "run", law=("shard", "runs"))
    assert (shard.end, shard.text) == ("declared", example.breaks["shard"]) and not shard.is_failure
    assert runs.end == "holds"


def test_what_a_user_s_member_declares_may_break_its_trained_models(tmp_path: Path) -> None:
    """The file declares two members that read ahead, and one of them says so."""
    code = """
        import kinformer as kf
        @kf.member
        def ahead(d: int = 8):
            return kf.LM(11, d, kf.Stack([kf.PreNorm(kf.Attention(kf.QKV(d, 2), kf.Softmax(kf.Full())))]))
        @kf.member
        def other(d: int = 8):
            return ahead.rebuild(d=d)
        EXAMPLES = (kf.Example(lambda: ahead(), breaks={"peek": "it is an encoder"}), lambda: other())
    """
    (tmp_path / "mine.py").write_text(textwrap.dedent(code), encoding="utf-8")
    ends = {}
    for name in ("ahead", "other"):
        member = find_member(f"{tmp_path}/mine.py:{name}")
        save(member(), tmp_path / name)
        (verdict,) = verdicts(read_parts(str(tmp_path / name), member).examples, ["peek"])
        ends[name] = verdict.end
    assert ends == {"ahead": "declared", "other": "broken"}


def test_a_file_with_the_names_of_an_executor_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = """
        import kinformer as kf
        cost = 3
        def read(path, sep=","):
            return open(path).read().split(sep)
        def feed_forward():
            return kf.MLP(16)
    """
    (tmp_path / "mine.py").write_text(textwrap.dedent(code), encoding="utf-8")
    assert run(["check", f"{tmp_path}/mine.py:feed_forward", "--law", "runs"]) == 0
    assert "MLP, a layer; 1 example" in capsys.readouterr().out


def test_a_module_that_is_no_norm_is_not_called_one() -> None:
    assert [kind_of(module) for module in (nn.LayerNorm(16), nn.Conv1d(3, 8, 3))] == ["norm", "module"]


def test_a_class_or_member_of_a_file_without_examples(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (TOYS / "pattern.py").read_text(encoding="utf-8").partition("EXAMPLES")[0]
    (tmp_path / "mine.py").write_text(text, encoding="utf-8")
    assert run(["check", f"{tmp_path}/mine.py:Alternate", "--law", "pattern"]) == 0
    assert "Alternate, a pattern; 1 example" in capsys.readouterr().out
    text = (TOYS / "member.py").read_text(encoding="utf-8").partition("EXAMPLES")[0]
    (tmp_path / "member.py").write_text(text, encoding="utf-8")
    assert run(["check", f"{tmp_path}/member.py:sinks", "--law", "runs"]) == 0
    assert "sinks, a member; 1 example" in capsys.readouterr().out
    assert run(["check", f"{tmp_path}/mine.py:Pattern", "--law", "pattern"]) == 2
    assert "has no EXAMPLES; end it with EXAMPLES = (Alternate(...),)" in capsys.readouterr().err
    assert run(["check", f"{tmp_path}/mine.py:Alternat", "--law", "pattern"]) == 2
    assert "mine.py has no 'Alternat'; the nearest is 'Alternate'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1.0, 2.0, 8.0, 32.0], 2.0),
        ([9.0, 1.0, 2.0, 4.6], 1.0),
        ([1.0, 2.0, 8.0, 16.0, 20.0], None),
        ([4.0, 4.0, 4.0], 0.0),
        ([1.0, 2.0], None),
    ],
)
def test_no_steeper_growth_is_said_than_two_doublings_agree_on(values: list[float], expected: float | None) -> None:
    from kinformer.lab.cost.growth import power

    assert power(values) == expected


def test_every_law_can_be_asked() -> None:
    assert set(laws()) == set(part_files("laws"))


@pytest.mark.prove
@pytest.mark.parametrize("toy", NAMES)
def test_a_toy_keeps_every_law_and_its_growth_is_measured(toy: str) -> None:
    command = [sys.executable, "-m", "kinformer.cli", "check", str(TOYS / f"{toy}.py")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and "none is broken" in done.stdout, done.stdout + done.stderr
    assert ("✓ learns" in done.stdout) == (toy == "member")
    # whether two doublings agree on a power is the machine's business
    assert ("rows of 16 to " in done.stdout) == (toy not in ("executor", "model", "task"))
