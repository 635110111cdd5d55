"""Topics of `kinformer show`: every word of the field leads somewhere, and every part belongs to a topic."""

import shlex
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from kinformer.cli.__main__ import COMMANDS, run
from kinformer.cli.support.name_lookup import FOLDERS, find_pages
from kinformer.cli.support.page import Page, Topic
from kinformer.cli.support.topic_list import EXAMPLES, MEMBERS, kinds_of_data
from kinformer.cli.support.topics import TOPICS, topic_name
from kinformer.core.discover import kinds, members, modules, part_files
from kinformer.core.public_names import CONTRACTS
from kinformer.lab.claims.support.claim_report import measured_verdict
from kinformer.lab.environments.support.make_environment import environment_folder
from tests.cli.folders import folder

WITHOUT_TOPIC = {  # files of the folder data/ that are no kind of data, but their helpers
    f"data/{name}"
    for name in (
        *("as_data", "batches", "data", "data_fits_model", "lanes", "random_windows", "read_table", "resolve"),
        *("resumable_stream", "spec", "token_ids"),
    )
}
ALL_KINDS = (*kinds(), *FOLDERS, *filter(None, [environment_folder()]))
FILES = {f"{kind}/{file}": module for kind in ALL_KINDS for file, module in modules(kind).items()}
WORDS = {  # words of the field, and a place or command that their page must name
    "mask": "PairMask(mask) makes a pattern",
    "cross-attention": "Context.of_sequence(x, source=source",
    "pytorch": "kf.MultiheadAttention replaces nn.MultiheadAttention",
    "sinks": "patterns/tokens",
    "lucidrains": "models/lm",
    "rotary_pos_emb": "positions/rotary",
    "memory tokens": "depth/global_nodes",
    "max_mem_len": "members/transformer_xl",
    "attn_flash": "executors/sdpa",
    "ff_glu": "feedforward/mlp",
    "sandwich_norm": "no token shift, sandwich norm",
    "vit": "embed the patches",
    "attention sinks": "patterns/tokens",
    "swiglu": "feedforward/mlp",
    "gelu": "feedforward/mlp",
    "geglu": "feedforward/mlp",
    "moe": "kinformer has no mixture of experts",
    "mamba": "mechanisms/decayed",
    "ssm": "kinformer has no state space models",
    "state space": "mechanisms/decayed",
    "flash attention": "executors/sdpa",
    "rope": "positions/rotary",
    "kv cache": "patterns/band",
    "gqa": "projections/qkv",
    "mqa": "members/multi_query",
    "mla": "kinformer has no multi-head latent attention",
    "sliding window": "patterns/band",
    "lora": "--from RUN",
    "tensorboard": "--tensorboard",
    "wandb": "--tensorboard",
    "papers": "kinformer list papers",
    "attention maps": "kf.look",
    "sparse": "patterns/strided",
    "linear": "mechanisms/linear",
    "hashed": "mechanisms/lsh",
    "low rank": "mechanisms/nystrom",
    "retrieval": "mechanisms/retrieval",
    "memory": "memories/compressive",
    "recurrence": "members/transformer_xl",
    "positions": "biases/alibi",
    "adaptive span": "biases/adaptive_span",
    "adaptive depth": "exits/geometric",
    "halting": "depth/act",
    "heads": "mechanisms/talking_heads",
    "priors": "scores/synthesizer",
    "kernels": "maps/favor",
    "factorised": "patterns/fixed",
    "blockwise": "patterns/blockwise",
    "chunked": "feedforward/chunked",
    "global tokens": "depth/global_tokens",
    "axial": "patterns/axial",
    "dilated": "patterns/dilated",
    "local": "patterns/band",
    "window": "patterns/band",
    "image": "members/image_transformer",
    "set": "members/set_transformer",
    "pairs": "data/pairs",
    "reinforcement learning": "losses/ppo",
    "decoding": "patterns/causal",
    "losses": "losses/contrastive",
}


def run_show(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    assert run(["show", *words]) == 0
    return capsys.readouterr().out


def test_every_member_and_part_belongs_to_a_topic() -> None:
    places = {place for topic in TOPICS.values() for place in topic.places}
    assert places <= FILES.keys()
    assert FILES.keys() - places == WITHOUT_TOPIC
    for name in WITHOUT_TOPIC:  # a kind of data would have a form
        assert not hasattr(FILES[name], "FORM")


def test_a_word_stands_for_one_topic_and_hides_no_member_or_function() -> None:
    words = Counter(word for name, topic in TOPICS.items() for word in (name, *topic.also))
    assert {word for word, count in words.items() if count > 1} == set()
    assert not words.keys() & {*members(), *CONTRACTS}
    for word in words:
        topic = TOPICS[str(topic_name(word))]
        of_this_name = [place for place in FILES if place.partition("/")[2] == word.replace(" ", "_")]
        assert set(of_this_name) <= set(topic.places), word  # a part that the word hides is on the topic's page
        result = find_pages(word)
        assert isinstance(result, Topic) and [entry.place for entry in result.places] == list(topic.places), word
        assert all(entry.sentence for entry in result.places)


def test_members_and_files_with_an_underscore_come_before_topics() -> None:
    for name in ("sparse_transformer", "adaptive_span", "linear_transformer", "global_tokens", "patterns/dilated"):
        (first, *_) = find_pages(name)
        assert isinstance(first, Page) and first.heading.endswith(name)
    assert isinstance(find_pages("lsh"), list) and isinstance(find_pages("Memory"), list)


def test_words_of_the_field_are_known(capsys: pytest.CaptureFixture[str]) -> None:
    for word, expected in WORDS.items():
        result = find_pages(word)
        assert isinstance(result, Topic), word
        page = " ".join([result.says, *(entry.place for entry in result.places), *result.commands])
        assert expected in page, word
    out = run_show(capsys, "mamba")
    assert "kinformer has no state space models" in out and "\n  kinformer show linear\n" in out
    assert "which keys each query reads" not in out  # nothing of it is here to draw


def test_show_topics_lists_all_in_groups(capsys: pytest.CaptureFixture[str]) -> None:
    lines = run_show(capsys, "topics").splitlines()
    for name, topic in TOPICS.items():
        assert topic.group in lines and any(line.startswith(f"  {name} ") for line in lines), name
    assert max(map(len, lines)) <= 110


def test_a_topic_draws_what_it_is_about_and_no_dense_attention(capsys: pytest.CaptureFixture[str]) -> None:
    sinks = run_show(capsys, "sinks").splitlines()
    assert "which keys each query reads: Causal() & (Band(4) | Tokens(2))" in sinks
    assert " 7 ▒▒▒▒ ·██████████" in [line[:19] for line in sinks]  # two sinks, a gap, and a window of five keys
    for topic in ("rope", "swiglu", "gqa"):  # its members read every earlier key
        assert "which keys each query reads" not in run_show(capsys, topic), topic


def test_laws_parts_and_members_are_explained(capsys: pytest.CaptureFixture[str]) -> None:
    for word in ("laws", "law"):
        out = run_show(capsys, word)
        assert all(f"\n  {name} " in out for name in part_files("laws")) and "--law padding" in out
    for word in ("part", "members"):
        out = run_show(capsys, word)
        assert "A building block of models" in out and "A complete named model" in out


def test_a_page_names_its_topics(capsys: pytest.CaptureFixture[str]) -> None:
    assert "related: kinformer show hashed" in run_show(capsys, "lsh_published", "--length", "4")
    assert "kinformer show mechanisms/lsh" not in run_show(capsys, "hashed", "--length", "4").split("try:")[0]


def test_data_is_what_a_user_types(capsys: pytest.CaptureFixture[str]) -> None:
    out = run_show(capsys, "data")
    forms = kinds_of_data()
    assert forms.keys() == MEMBERS.keys() == {name for name, m in modules("data").items() if hasattr(m, "FORM")}
    assert len({line.rpartition(" ")[2] for line in out.splitlines() if " --out " in line}) == len(forms)  # folders
    for kind, form in forms.items():
        assert f"\n  {form} " in out and f"kinformer train {MEMBERS[kind]} --data {EXAMPLES.get(kind, form)} " in out
    page = run_show(capsys, "text")
    assert page.splitlines()[3] == "--data text=PATH" and "\n  ,documents=...\n" in page
    assert page.index("kinformer train gpt --data text=stdlib") < page.index("TextData")
    assert run_show(capsys, "data/pairs").splitlines()[3] == "--data pairs=FILE.tsv"


def test_claims_and_laws_have_short_pages_and_hide_no_part(capsys: pytest.CaptureFixture[str]) -> None:
    page = run_show(capsys, "bigbird_paths")
    assert "kinformer claim bigbird_paths" in page and page.splitlines()[1].startswith("holds: Random blocks")
    assert "- holds: " in page and "measured in " in page and "seeds: " in page
    assert run_show(capsys, "agent_memory").splitlines()[1].startswith(f"{measured_verdict('agent_memory')}: Agents")
    assert f"    {measured_verdict('spalm_names')}: SPALM predicts" in run_show(capsys, "members/spalm")
    assert run(["show", "claims/bigbird_paths"]) == 0 and capsys.readouterr().out == page
    for law, text in (("padding", "padding on the left"), ("laws/rows", "rows of a decoding state")):
        out = run_show(capsys, law)
        assert text in out and f"kinformer check RUN --law {law.removeprefix('laws/')}" in out
    for name in ("rows", "heads", "merge"):  # a part, a topic and a function
        assert "laws/" not in run_show(capsys, name).splitlines()[0]


def test_every_command_has_a_short_page(capsys: pytest.CaptureFixture[str]) -> None:
    for name, command in COMMANDS.commands.items():  # type: ignore[attr-defined]
        out = run_show(capsys, name)
        assert out.splitlines()[0] == f"kinformer {name}" and f"kinformer {name}" in out
        summary = str(command.help).strip().splitlines()[0]
        assert summary.partition(".")[0] in " ".join(out.split()) and " --help explains " in out, name
    assert "--grid lr=1e-3,3e-3" in run_show(capsys, "compare") and "from kinformer import generate" in run_show(
        capsys, "generate"
    )
    assert run_show(capsys, "datastore build").startswith("kinformer datastore build\n")
    assert run(["show", "compare", "--cost"]) == 2 and "--cost has no effect on 'compare'" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command", [line for topic in TOPICS.values() for line in topic.commands] + ["show compare", "list papers"]
)
def test_a_suggested_command_is_understood(command: str, placeholders: dict[str, str]) -> None:
    words = shlex.split(command.removeprefix("kinformer "))
    parses(words, placeholders)
    if words[0] == "show" and words[1:] != ["compare"]:
        assert find_pages(" ".join(word for word in words[1:] if word != "--cost"))


@pytest.fixture(scope="module")
def placeholders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A value for each placeholder of a suggested command: small models, and files that exist."""
    return make_placeholders(tmp_path_factory.mktemp("placeholders"))


def make_placeholders(base: Path) -> dict[str, str]:
    (base / "text").write_bytes(b"the cat sat on the mat. " * 20)
    (base / "mine.py").write_text("EXAMPLES = ()\n")
    return {
        **dict.fromkeys(("RUN", "DIR", "FOLDER"), folder(base / "run", "gpt", length=16)),
        **dict.fromkeys(("PATH", "FILE", "FILE.tsv", "FILE.csv", "STATE", "STORE"), str(base / "text")),
        "MASKED": folder(base / "bert", "bert", length=16),
        "FILE.py": str(base / "mine.py"),
        "FILE.png": str(base / "new.png"),
        "NAME": "recall",
        "ID": "t_maze",
    }


def parses(words: list[str], placeholders: dict[str, str]) -> None:
    """Parse a command without running it; placeholders stand for a small model and for files that exist."""
    values = placeholders | ({"RUN": placeholders["MASKED"], "DIR": placeholders["MASKED"]} if "fill" in words else {})
    filled = []
    for word in words:
        option, equals, place = word.partition("=")
        filled.append(f"{option}={values.get(place, place)}" if equals else values.get(word, word))
    command: Any = COMMANDS
    while hasattr(command, "commands"):
        command = command.commands[filled.pop(0)]
    if filled != ["--help"]:
        command.make_context(command.name, filled)
