"""Lists that `kinformer show` prints without torch: topics, kinds of data, and a command in short."""

import inspect
import textwrap
from itertools import takewhile
from typing import Any

from rich.console import Console

from kinformer.cli.support import static_source
from kinformer.cli.support.topics import TOPICS, topic_name
from kinformer.core.discover import kinds, part_files
from kinformer.core.public_names import CONTRACTS
from kinformer.lab.claims.support.claim_report import measured_report, measured_verdict
from kinformer.pages.glossary import all_terms
from kinformer.pages.module_docs import sentence

NARROW, WIDE = 60, 110  # characters of a line
LAWS = "laws/"
CLAIMS = "claims/"
MEMBERS = {  # a member that trains with each kind of data
    "text": "gpt",
    "pairs": "transformer",
    "labelled": "bert_classifier",
    "multitask": "camtl",
    "series": "informer",
    "images": "image_transformer",
    "sets": "set_transformer",
    "offline": "decision_transformer",
    "task": "gpt",
    "env": "gtrxl",
}
EXAMPLES = {  # data that needs no file
    "text": "text=stdlib",
    "task": "task=recall,pairs=8",
    "env": "env=t_maze,corridor=10",
}


def print_topics(console: Console) -> None:
    """Print all topics in groups, with one sentence each.

    console: the console to print on.
    """
    console.print("topics of the field; `kinformer show TOPIC` explains one\n", style="bold")
    size = max(map(len, TOPICS))
    for group in dict.fromkeys(entry.group for entry in TOPICS.values()):
        console.print(group, style="bold")
        for name, entry in TOPICS.items():
            if entry.group == group:
                _row(name, sentence(entry.says), size, console)
        console.print()
    further = (
        "`kinformer show` also explains any part or member (`kinformer list`), data, commands, claims (`kinformer "
        "claim`), laws (`kinformer show laws`), and public functions such as fit."
    )
    for line in textwrap.wrap(further, width_of(console)):
        console.print(line)


def print_words(console: Console) -> None:
    """Print the terms of the glossary with one sentence each.

    console: the console to print on.
    """
    console.print("words of this library and of the field; the documentation has the same list\n", style="bold")
    terms = all_terms()
    for name, term in terms.items():
        _row(name, term.says, max(map(len, terms)), console)


def print_part_and_member(console: Console) -> None:
    """Print what a part and a member are.

    console: the console to print on.
    """
    console.print("parts and members", style="bold")
    for name in ("part", "member"):
        _row(name, all_terms()[name].says, len("member"), console)
    commands = ("list", "list members", "show gpt", "show band", "show words")
    for line in ("", "try:", *(f"  kinformer {words}" for words in commands)):
        console.print(line)


def print_laws(console: Console) -> None:
    """Print the topic of laws with the name of every law, as `kinformer check --law` takes it.

    console: the console to print on.
    """
    entry = TOPICS["laws"]
    console.print("laws", style="bold")
    for line in (*textwrap.wrap(entry.says, width_of(console)), ""):
        console.print(line)
    files = part_files("laws")
    for name, file in files.items():
        _row(name, str(static_source.constant(file, "SAYS")), max(map(len, files)), console)
    for line in ("", "try:", *(f"  {command}" for command in entry.commands)):
        console.print(line)


def print_kinds_of_data(console: Console) -> None:
    """Print the kinds of data that --data takes, with an example each.

    console: the console to print on.
    """
    console.print("data: --data takes KIND=PLACE, with options after commas, as in text=PATH,tokenizer=bpe:4096\n")
    forms = kinds_of_data()
    size = max(map(len, forms.values()))
    for kind, form in forms.items():
        text = static_source.first_sentence(part_files("data")[kind])
        _row(form, text, size, console)
    console.print("\ntry:")
    for kind in forms:
        if command := command_with_data(kind):
            console.print(f"  {command}")
    console.print("\n`kinformer show data/text` explains the options of a kind; text=stdlib works on every machine.")


def command_with_data(kind: str) -> str:
    """Return a command that trains with a kind of data; "" for a kind of a plugin.

    kind: the kind, such as "text".
    """
    if kind not in MEMBERS:
        return ""
    place = EXAMPLES.get(kind) or kinds_of_data()[kind]
    folder = "recall" if kind == "task" else MEMBERS[kind]
    return f"kinformer train {MEMBERS[kind]} --data {place} --minutes 1 --out runs/{folder}"


def data_to_train(reads: str) -> str:
    """Return the --data value of a command that trains a model, such as "text=stdlib".

    reads: kind of data that the model reads.
    """
    from kinformer.lab.data.support.data_readers import form_of

    form = "text=stdlib" if reads in ("text", "masked") else form_of(reads)
    return EXAMPLES.get(form.partition("=")[0], form)


def kinds_of_data() -> dict[str, str]:
    """Return how --data names each kind of data, such as "text=PATH", by kind; common kinds first."""
    forms = {
        kind: str(form) for kind, file in part_files("data").items() if (form := static_source.constant(file, "FORM"))
    }
    return {kind: forms[kind] for kind in sorted(forms, key=lambda kind: [*MEMBERS, kind].index(kind))}


def print_command(name: str, command: Any, console: Console) -> None:
    """Print a command in short: its summary, its examples, and where its options are explained.

    name: the words that call it, such as "datastore build".
    command: the command, as Typer makes it.
    console: the console to print on.
    """
    summary, examples = summary_and_examples(command.help or "")
    console.print(f"kinformer {name}", style="bold")
    for line in textwrap.wrap(summary, width_of(console) - 2):
        console.print(f"  {line}")
    console.print()
    inside = getattr(command, "commands", {})
    for other, part in inside.items():
        _row(other, part.get_short_help_str(90), max(map(len, inside)), console)
    for line in examples:
        console.print(f"  {line}")
    options = sum(parameter.param_type_name == "option" for parameter in command.params)
    explains = f"explains {options} options" if options > 1 else "explains its arguments"
    more = f"{name} {next(iter(inside))}" if inside else name
    console.print(f"\n  kinformer {more} --help {explains}")


def is_claim_or_law(name: str) -> bool:
    """Return True for the name of a claim of a paper, or of a law that `kinformer check` tests.

    name: the name, such as "padding" or "claims/rope_shift", or "laws/rows" if a part has the name too.
    """
    if name.startswith(CLAIMS):
        return name.removeprefix(CLAIMS) in part_files("claims")
    if name in static_source.first_sentences("claims", "claim") or name.startswith(LAWS):
        return name.removeprefix(LAWS) in (*part_files("laws"), *part_files("claims"))
    has_other_page = name in CONTRACTS or topic_name(name) or any(name in part_files(kind) for kind in kinds())
    return name in part_files("laws") and not has_other_page


def print_claim_or_law(name: str, console: Console) -> None:
    """Print what a claim or a law says, and the command that measures or tests it.

    name: the name of the claim or the law.
    console: the console to print on.
    """
    is_claim, name = name.startswith(CLAIMS), name.removeprefix(LAWS).removeprefix(CLAIMS)
    if not is_claim and name in part_files("laws"):
        kind, text = "laws", str(static_source.constant(part_files("laws")[name], "SAYS"))
        commands = [f"kinformer check FILE.py --law {name}", f"kinformer check RUN --law {name}"]
    else:
        kind, text = "claims", f"{measured_verdict(name)}: {static_source.first_sentence(part_files('claims')[name])}"
        commands = [f"kinformer claim {name}"]
    console.print(f"{kind}/{name}", style="bold")
    details = _claim_details(name) if kind == "claims" else []
    lines = [line for paragraph in (text, *details) for line in textwrap.wrap(paragraph, width_of(console))]
    for line in (*lines, "", "try:", *(f"  {command}" for command in commands)):
        console.print(line)


def summary_and_examples(text: str) -> tuple[str, list[str]]:
    """Return the first sentence of a command's help text, and the lines of its examples.

    text: the help text.
    """
    lines = inspect.cleandoc(text.replace("\b", "")).splitlines()
    begin = next((n for n, line in enumerate(lines) if line.startswith("Examples:")), len(lines))
    examples = takewhile(lambda line: bool(line.strip()), lines[begin + 1 :])
    return sentence(text), textwrap.dedent("\n".join(examples)).splitlines()


def width_of(console: Console) -> int:
    """Return the width of a page in characters: the terminal's width between 60 and 110, otherwise 110.

    console: the console to print on.
    """
    return max(NARROW, min(WIDE, console.width)) if console.is_terminal else WIDE


def _claim_details(name: str) -> list[str]:
    """The measures of a claim and the conditions of its measurement, a line for each; [] without a report."""
    report = measured_report(name)
    if report is None:
        return []
    measures = [f"- {measure.verdict}: {measure.quantity}: {measure.summary}" for measure in report.measures]
    return [report.source, *measures, *report.conditions]


def _row(name: str, text: str, size: int, console: Console) -> None:
    for n, line in enumerate(textwrap.wrap(text, width_of(console) - size - 4)):
        console.print(f"  {name if n == 0 else '':<{size}}  {line}")
