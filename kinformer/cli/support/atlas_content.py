"""Content of the atlas from the catalogue: facts about members, their commands, and words."""

from pathlib import Path

from kinformer.cli.support.catalogue import list_entries, with_member_facts
from kinformer.cli.support.topic_list import data_to_train
from kinformer.cli.support.topics import TOPICS
from kinformer.core.did_you_mean import list_synonyms
from kinformer.core.discover import part_files, part_names
from kinformer.lab.advise.member_costs import member_costs
from kinformer.lab.claims.support.claim_report import REPORTS, read_reports
from kinformer.pages.atlas.write_atlas import AtlasContent


def atlas_content(claims: Path = REPORTS) -> AtlasContent:
    """Return the facts that the atlas shows about the members of the library.

    claims: folder of reports that `kinformer claim` wrote; default: the reports in the package.
    """
    files = part_files("members")  # without members of plugins, whose costs nobody counted
    members = [entry for entry in with_member_facts(list_entries(["members"])) if entry["name"] in files]
    topics = [
        {
            "name": name,
            "says": topic.says,
            "also": list(topic.also),
            "members": [place.removeprefix("members/") for place in topic.places if place.startswith("members/")],
            "patterns": [place.removeprefix("patterns/") for place in topic.places if place.startswith("patterns/")],
            "draws": topic.draws,
        }
        for name, topic in TOPICS.items()
    ]
    words = list_synonyms([*files, *part_names()])
    reports = read_reports(claims, {claim for entry in members for claim in entry["claims"]})
    commands = {entry["name"]: training_command(entry["name"]) for entry in members}
    return AtlasContent(members, commands, topics, words, reports)


def training_command(name: str) -> str:
    """Return a command that trains a member for a minute.

    name: name of the member.
    """
    data = data_to_train(member_costs()["members"][name]["reads"])
    return f"kinformer train {name} --data {data} --minutes 1 --out runs/{name}"
