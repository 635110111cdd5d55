"""Lines about the example of a page of `kinformer show`: counts, rows, first steps and measured costs."""

import inspect
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import numpy
import torch

from kinformer.cli.support.page import Page
from kinformer.core.pattern import Pattern
from kinformer.core.task import Task
from kinformer.lab.cost.growth import measure
from kinformer.lab.cost.sparsity import pattern_lines
from kinformer.laws.support.layer_forms import forms
from kinformer.laws.support.subject import Subject
from kinformer.pages.pictures.support.picture_panels import CELLS, span
from kinformer.pages.pictures.support.short_repr import largest_number

WIDTH = 16  # width of every example
SHOWN, ROW_WIDTH = 3, 100  # rows of a task or steps of an environment; characters of a line
TEXT = "ansi"  # render mode of an environment


def example_lines(page: Page, length: int | None) -> Iterator[str]:
    """Yield lines about the example of a page: numbers of a pattern, rows of a task, or first steps.

    page: the page; it must have exactly one example, which is an attention pattern, a task or an environment. Otherwise
        nothing is yielded.
    length: number of positions of a pattern; chosen for the pattern if None.
    """
    if len(page.examples) != 1:
        return
    example = page.examples[0]()
    if isinstance(example, Task):
        yield from task_lines(example)
    if getattr(example, "kind", None) == "environment":
        yield from environment_lines(example)
    if isinstance(example, Pattern) and not example.tensors():
        yield from pattern_lines(example, span(largest_number(example), length, CELLS)[0])


def cost_lines(page: Page, device: torch.device, autocast: AbstractContextManager[Any]) -> Iterator[str]:
    """Measure the time and memory of a page's first example at several lengths, and yield lines to print.

    page: the page.
    device: the device to compute on.
    autocast: the context of the computations.
    """
    for make in page.examples[:1]:
        example = make()
        uses = (
            form
            for form in forms(example() if inspect.isclass(example) else example, make)
            if isinstance(form, Subject)
        )
        for use in uses:
            yield ""
            where = "this machine" if device.type == "cpu" else f"{device} of this machine"
            yield f"  measured on {where}{': ' * bool(use.place)}{use.place}"
            wide = f"width {getattr(example, 'd', use.width)}"
            yield from (f"  {line.replace(f'width {WIDTH}', wide)}" for line in measure(use, device, autocast).lines())
            return


def task_lines(task: Task) -> Iterator[str]:
    """Yield lines about a task: largest row, accuracy of guessing, and 3 rows that never change.

    task: the task.
    """
    rng = numpy.random.default_rng(0)
    yield (
        f"rows of at most {task.width:,} symbols; ^ marks the answers; guessing has accuracy {task.chance_accuracy:.3f}"
    )
    for _ in range(SHOWN):
        row = task.row(rng)
        text, marks = row.text.decode(), "".join("^" if mark else " " for mark in row.answer_mask)
        yield ""
        for first in range(0, len(text), ROW_WIDTH):
            yield f"  {text[first : first + ROW_WIDTH]}"
            if markers := marks[first : first + ROW_WIDTH].rstrip():
                yield f"  {markers}"


def environment_lines(env: Any) -> Iterator[str]:
    """Yield lines about an environment: its spaces and, if it renders text, 3 steps of random actions.

    env: the environment; the episode is the same each time.
    """
    spaces = f"observations: {env.observation_space}; actions: {env.action_space}"
    draws = TEXT in env.metadata.get("render_modes", ())
    yield f"{spaces}; random steps with their rewards" if draws else spaces
    if not draws:
        return
    env.unwrapped.render_mode = TEXT
    env.action_space.seed(0)
    env.reset(seed=0)
    yield ""
    yield from _render_lines(env, "")
    for _ in range(SHOWN):
        action = env.action_space.sample()
        _, reward, over, cut, _ = env.step(action)
        yield ""
        yield from _render_lines(env, f"   action {action}, reward {reward:g}")
        if over or cut:
            return


def _render_lines(env: Any, behind: str) -> Iterator[str]:
    """The lines that an environment renders; `behind` is added to the first."""
    for n, line in enumerate(str(env.render()).splitlines()):
        yield f"  {line}{behind if n == 0 else ''}"
