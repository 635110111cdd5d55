"""Pictures of ideas: the figures that the page of an idea names, and the matrix of its pattern."""

import importlib

import torch

from kinformer.core.pattern_parser import parse
from kinformer.pages.idea import Idea
from kinformer.pages.pictures import who_reads
from kinformer.pages.pictures.support.diagram import Diagram
from kinformer.pages.pictures.support.picture_panels import Picture


def idea_figures(idea: Idea, length: int | None = None) -> list[Picture | Diagram]:
    """Draw the figures of an idea, and then the keys of each query under its pattern.

    idea: the idea.
    length: number of positions of the pattern's picture; chosen for the pattern if None.
    """
    drawn: list[Picture | Diagram] = []
    for name in idea.figures:
        with torch.random.fork_rng(devices=[]):  # a figure may train a few numbers, so gradients stay on
            torch.manual_seed(0)
            drawn += importlib.import_module(f"kinformer.pages.figures.{name}").draw()
    return [*drawn, *(who_reads.pictures(parse(idea.pattern), length) if idea.pattern else ())]
