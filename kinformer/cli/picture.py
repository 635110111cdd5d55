"""The curves of a comparison."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot  # noqa: E402  (the backend is chosen first)

from kinformer.cli.results import Results  # noqa: E402


def draw(results: Results, path: Path) -> None:
    """Bits per byte on valid against minutes of training, a line per member, and the compressors as level lines."""
    figure, axes = pyplot.subplots(figsize=(9, 5), layout="constrained")
    for row in results.members:
        minutes = [point["minutes"] for point in row.points]
        axes.plot(
            minutes, [point["valid"] for point in row.points], marker="o", label=f"{row.name}: {row.bits_per_byte:.2f}"
        )
    for (name, bits), style in zip(results.compressors.items(), ("--", ":"), strict=False):
        axes.axhline(bits, color="gray", linestyle=style, label=f"{name}: {bits:.2f}")
    axes.set_xlabel("minutes of training")
    axes.set_ylabel(f"bits per byte, first {results.settings['valid_bytes']:,} bytes of valid")
    axes.set_title(f"{results.settings['data']}, {results.settings['hardware']}", fontsize=10)
    axes.set_xlim(left=0)
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right upper")
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
