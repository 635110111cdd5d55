"""The tour: its plan, its trainings at equal time, its times, and the page with everything."""

import html
import re
import shlex
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest

from kinformer.cli.__main__ import run
from kinformer.cli.support.name_lookup import find_pages
from kinformer.lab.data.spec import read_spec
from kinformer.lab.look import look
from kinformer.lab.member_choice import parse_member_text
from kinformer.lab.tour import tour
from kinformer.lab.tour.attention_times import ATTENTION, time_attention
from kinformer.lab.tour.tour import CONTENDERS, Contender, TourPlan, TourResults, plan_tour, take_tour
from kinformer.pages.drawings import DRAWINGS
from kinformer.pages.tour import verdicts, write_tour

SMALL = tuple(Contender(f"{name}(d=16,depth=2,heads=2)", 2, 16, 1e-3) for name in ("gpt", "transformer_xl"))


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "book.txt"
    path.write_bytes(b"".join(b"the cat %d sat on the mat.\n" % (7 * n % 101) for n in range(800)))
    return path


@pytest.fixture(scope="module")
def results(text: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[TourResults, Path]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tour, "CONTENDERS", SMALL)
        patch.setattr(tour, "time_attention", lambda seconds, on_progress: time_attention(seconds, (64, 128)))
        patch.setattr(tour, "TURN", 0.4)
        patch.setattr(tour, "SHOWN", "the cat sat on")  # as short as the rows of SMALL
        done: list[int] = []
        out = tmp_path_factory.mktemp("tour")
        plan = TourPlan(1e5, 0.8, 1.0)
        found = take_tour(read_spec(f"text={text}"), plan, out, 0, lambda count, note: done.append(count))
        assert done[-1] == round(plan.total) and done == sorted(done)
    return found, out


def test_the_plan_gives_a_slow_machine_more_time_within_its_limit_and_says_so() -> None:
    fast, slow = TourPlan(1e5, 20.0), TourPlan(1e3, 40.0)
    assert fast.is_enough and "does not reach" not in str(fast)
    assert not slow.is_enough and "does not reach here" in str(slow) and "1,000 tokens/s" in str(slow)
    short = TourPlan(1e3, 1.0)
    assert short.is_too_short and "trains for 1 second," in str(short) and "give more --minutes" in str(short)
    assert not slow.is_too_short and "trains for 40 seconds," in str(slow) and "--minutes" not in str(slow)
    assert fast.total > len(CONTENDERS) * fast.training + fast.timing


@pytest.mark.parametrize(("speed", "minutes"), [(1e6, None), (12_000, None), (3_000, None), (12_000, 3.0)])
def test_the_length_of_the_tour_follows_the_speed_and_the_minutes(
    speed: float, minutes: float | None, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tour, "train", lambda *args, **keywords: None)
    monkeypatch.setattr(tour._StepClock, "__init__", lambda clock: clock.__dict__.update(first=None, speed=speed))
    plan = plan_tour(read_spec(f"text={text}"), minutes)
    if minutes is not None:
        assert plan.total == pytest.approx(60 * minutes)
    elif speed >= 12_000:
        assert plan.is_enough and plan.total < 360 and plan.training >= tour.SHORTEST
    else:
        assert not plan.is_enough and plan.total == pytest.approx(tour.LONGEST) and tour.LONGEST < 540


def test_a_text_too_short_for_one_of_the_models_is_refused_before_any_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tour, "train", lambda *args, **keywords: pytest.fail("a model was trained"))
    (tmp_path / "short.txt").write_bytes(b"a few words " * 50)  # enough for gpt, but not for Transformer-XL's lanes
    with pytest.raises(ValueError, match="the training text is too short: got 540 bytes, but 32 lanes"):
        plan_tour(read_spec(f"text={tmp_path}/short.txt"))


def test_measurements_of_a_short_text_are_planned_short(text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tour, "train", lambda *args, **keywords: None)
    data = read_spec(f"text={text}")
    valid = len(data.part("valid").tokens)
    assert valid < 2000 and plan_tour(data, 3.0).measuring == pytest.approx(tour.MEASURES * valid / 2)


def test_the_models_train_for_equal_time_and_are_saved(results: tuple[TourResults, Path]) -> None:
    found, out = results
    assert [model.name for model in found.models] == ["gpt", "transformer_xl"]
    for model in found.models:
        assert model.history.seconds == pytest.approx(0.8, rel=0.5) and model.history.points
        assert (out / model.name / "best" / "model.safetensors").is_file()
        assert model.sample and model.milliseconds is not None and model.milliseconds > 0
    assert {name.split()[0] for name in found.levels} == {"gzip", "xz"}


def test_the_verdict_names_who_is_behind_gzip(results: tuple[TourResults, Path]) -> None:
    found, _ = results
    gzip = next(iter(found.levels.values()))
    for sentence, model in zip(verdicts(found), found.models, strict=True):
        value = model.history.best.valid
        assert sentence.startswith(f"{model.name} needs {value:.2f}")
        assert ("behind gzip -9" in sentence) == (value >= gzip) and ("ahead of" in sentence) == (value < gzip)


def test_attention_is_timed_at_each_length_until_the_time_is_over() -> None:
    times = time_attention(60.0, (32, 64))
    assert [(time.name, time.length) for time in times] == [(name, n) for n in (32, 64) for name in ATTENTION]
    assert all(time.milliseconds > 0 for time in times)
    assert {time.length for time in time_attention(0.0, (32, 64))} == {32}


class Page(HTMLParser):
    """Counts of a page: its elements, ids and addresses."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.addresses: list[str] = []
        self.alternatives: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.tags.append(tag)
        self.ids += [values["id"] or ""] if "id" in values else []
        self.addresses += [values[name] or "" for name in ("src", "href", "xlink:href") if name in values]
        if tag in ("img", "svg"):
            self.alternatives.append(values.get("alt") or values.get("aria-label") or "")


def test_the_page_holds_everything_in_one_file(results: tuple[TourResults, Path]) -> None:
    found, out = results
    path = write_tour(found, out)
    page = Page()
    written = path.read_text("utf-8")
    page.feed(written)
    heads = sum(len(attention) for attention in found.maps.maps.values())
    assert page.tags.count("img") == heads == 4
    assert page.tags.count("svg") == len(DRAWINGS) + 2 and len(DRAWINGS) == 12
    assert all(page.alternatives)
    assert len(page.ids) == len(set(page.ids))
    assert all(address.startswith(("data:", "#")) for address in page.addresses)
    assert re.search(r"@media \(prefers-color-scheme: dark\)", written) and "width=device-width" in written
    for words in (*verdicts(found), found.machine, "kinformer generate", "kf.look"):
        assert words.replace("&", "&amp;") in written


def test_the_commands_on_the_page_run(results: tuple[TourResults, Path], capsys: pytest.CaptureFixture[str]) -> None:
    found, out = results
    written = write_tour(found, out).read_text("utf-8")
    shown = re.findall(r"<code>kinformer show ([a-z_]+)</code>", written)
    assert len(shown) > len(DRAWINGS)
    assert all(find_pages(name) for name in set(shown))
    assert run(["generate", str(out / "gpt"), "--prompt", "the cat ", "--tokens", "4"]) == 0
    capsys.readouterr()


def test_a_folder_with_a_space_is_quoted_in_the_commands(results: tuple[TourResults, Path], tmp_path: Path) -> None:
    (tmp_path / "a tour").mkdir()
    written = write_tour(results[0], tmp_path / "a tour").read_text("utf-8")
    (command,) = re.findall(r"<code>(kinformer generate .*?)</code>", written)
    assert shlex.split(html.unescape(command))[2] == str(tmp_path / "a tour" / "gpt")


def test_the_command_writes_the_page_and_keeps_an_earlier_tour(
    results: tuple[TourResults, Path],
    text: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    found, made = results
    monkeypatch.setattr(tour, "CONTENDERS", SMALL)
    monkeypatch.setattr(tour, "take_tour", lambda *_: found)
    monkeypatch.setattr(tour, "plan_tour", lambda *_: TourPlan(1e5, 25.0, 0.1))
    out = tmp_path / "tour"
    words = ["tour", "--data", f"text={text}", "--out", str(out)]
    assert run(words) == 0
    captured = capsys.readouterr()
    assert captured.out.splitlines() == [*verdicts(found), f"the page of the tour: {out}/index.html"]
    assert "Each of 2 models trains for 25 seconds" in captured.err
    assert run(words) == 2 and f"{out} holds an earlier tour, which" in capsys.readouterr().err
    assert run([*words, "--overwrite"]) == 0
    (out / "index.html").write_text("<title>My home page</title>")
    assert run(words) == 2 and f"{out} holds a file index.html, which" in capsys.readouterr().err
    shutil.copytree(made / "gpt", out / "gpt")  # the models of a tour that was stopped before its page
    (out / "index.html").unlink()
    assert run(words) == 2 and f"{out}/gpt holds" in capsys.readouterr().err
    assert run(["tour", "--data", "task=recall,pairs=4", "--out", str(tmp_path / "other")]) == 2
    assert "expected a text" in capsys.readouterr().err and not (tmp_path / "other").exists()


def test_the_shown_text_fits_the_model() -> None:
    model = parse_member_text(CONTENDERS[0].member).build(0)
    assert len(look(model, tour.SHOWN).tokens) == len(tour.SHOWN)
