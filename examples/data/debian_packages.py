"""One-line descriptions of Debian's packages and the sections that they are in, as tables.

    apt-cache dumpavail > available.txt
    python examples/data/debian_packages.py available.txt data/debian-packages

On a Debian or Ubuntu system, after `apt-get update`. The same line is taken once; sections of fewer
than 200 lines are left out, and those that say how a package is made rather than what it is. Lines
of one source package lie in one table. A tenth is `test.csv`, a tenth `val.csv`. The last line
tells what words alone are good for: TF-IDF with logistic regression.
"""

from __future__ import annotations

import csv
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from sklearn.pipeline import make_pipeline

FEWEST = 200
LEFT_OUT = ("oldlibs", "metapackages", "debug", "tasks")
SPLITS = ("train", "train", "train", "train", "train", "train", "train", "train", "val", "test")


def read_packages(path: Path) -> Iterator[tuple[str, str, str]]:
    """Description, section and source of each package."""
    for paragraph in path.read_text(encoding="utf-8", errors="replace").split("\n\n"):
        lines = (line.partition(": ") for line in paragraph.splitlines() if not line[0].isspace())
        fields = {key: value for key, _, value in lines}
        if "Description" in fields and "Section" in fields:
            source = fields.get("Source", fields["Package"]).partition(" ")[0]
            yield fields["Description"], fields["Section"].rpartition("/")[2], source


def main(listing: str, out: str) -> None:
    """Write three tables, and say what the baseline reaches."""
    found = {text: (section, source) for text, section, source in read_packages(Path(listing))}
    counts = Counter(section for section, _ in found.values())
    sources = sorted({source for _, source in found.values()})
    draws = np.random.default_rng(0).integers(0, len(SPLITS), len(sources))
    split_of = {source: SPLITS[draw] for source, draw in zip(sources, draws, strict=True)}
    rows: dict[str, list[tuple[str, str]]] = {split: [] for split in SPLITS}
    for text, (section, source) in found.items():
        if counts[section] >= FEWEST and section not in LEFT_OUT:
            rows[split_of[source]].append((text, section))
    Path(out).mkdir(parents=True, exist_ok=True)
    for split, some in rows.items():
        with (Path(out) / f"{split}.csv").open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([("text", "label"), *some])
    model = make_pipeline(
        TfidfVectorizer(sublinear_tf=True, ngram_range=(1, 2), min_df=2),
        LogisticRegression(C=10, max_iter=300),
    )
    texts, labels = zip(*rows["train"], strict=True)
    model.fit(texts, labels)
    texts, labels = zip(*rows["test"], strict=True)
    predicted = model.predict(texts)
    print(
        f"{out}: {', '.join(f'{split} {len(some)}' for split, some in rows.items())} texts, "
        f"{len(set(labels))} sections; TF-IDF, logistic regression: accuracy "
        f"{np.mean(predicted == np.array(labels)):.2%}, "
        f"macro F1 {f1_score(labels, predicted, average='macro'):.2%}"
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
